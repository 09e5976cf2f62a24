"""The version of all that servers read from one another, and the rule by which versions differ.

It covers the frames of the links, Raft's messages, the table's commands, and the effects of
``apply``. It lets a pool be upgraded server by server: servers link to those of the version before
and after their own, and the pool speaks the lowest version of all its servers.

What has come with a version is used from then on:

- A command that is newer than the pool's version is refused before it is proposed
  (``commands.SINCE``).
- So is the use of a new field of an older command: it keeps its default, which is not written,
  until ``PoolState.formats`` has reached the field's version. ``apply`` itself reads new fields as
  they come, and changes its effects by that and by ``PoolState.formats`` alone.
- Frames and messages of a kind that the other side does not know are dropped there.

Once the last server is upgraded, none can go back: the table may have what it cannot read.

A server that was admitted and has never been up has no say: its program may never start. The others
go on without it, so it may turn out to be too old for them. Three things keep it from misreading
their log: they do not link to it (``can_link``), the table refuses its ``ServerUp``, and the server
stops by itself when its table says that the pool has a newer version (``PoolMachine``).
"""

from gpupool.pool.errors import GpupoolError

VERSION = 12
"""Of this program. It grows by one with a release that changes any of the above."""

ALL_STARVED_SINCE = 12
"""The pool version from which on GPUs are kept for all starved requests in turn, those that are
free soonest, and limits count both servers of a lease after its move was given up lately."""

ADDRESSES_SINCE = 12
"""The version from which on servers tell each other addresses, over links and in the table."""

BEFORE_VERSIONS = 5
"""Version of a server with a program that states none: it links to that version alone."""


class OutdatedError(GpupoolError):
    """A server's program cannot read its pool's formats any more; the server stops."""

    code = "outdated"

    def __init__(self, agreed: int, own: int) -> None:
        super().__init__(
            "this server's gpupool is older than its pool",
            why=f"all servers of the pool have version {agreed} of the formats, and this one reads "
            f"up to {own}",
            hint="install the gpupool that the other servers have, and start this server again",
        )


def can_link(other: int, agreed: int) -> bool:
    """Return whether a server links to one of the version ``other``.

    ``agreed`` is ``PoolState.formats``, which the other one must be able to read.
    """
    return abs(other - VERSION) <= 1 and other >= agreed
