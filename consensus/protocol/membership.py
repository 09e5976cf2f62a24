"""Raft membership: voter configurations in the log, and the next single change. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_settings import VOTERS_MAX
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import ServerId


@dataclass(frozen=True, slots=True)
class Configuration:
    """The voters, and the index of the log entry that made them so (0: told at the start)."""

    index: int
    voters: tuple[ServerId, ...]


def encode_voters(voters: Sequence[ServerId]) -> bytes:
    """Return a configuration as it stands in the log: all voters, not the difference.

    The whole list makes an entry mean the same wherever the reader's log begins, so that the
    latest entry in the log is in force at a start without replaying the others.
    """
    return closed_cbor.encode({"voters": [*sorted(voters)]})


def decode_voters(data: bytes) -> tuple[ServerId, ...]:
    """Return the voters of ``encode_voters``; raises ``RemoteProtocolError``."""
    match closed_cbor.decode(data):
        case {"voters": list(names), **rest} if not rest:
            voters = tuple(ServerId(name) for name in names if isinstance(name, str))
            if len(voters) == len(names) and len(set(voters)) == len(names) <= VOTERS_MAX:
                return voters
        case _:
            pass
    raise RemoteProtocolError("a list of voters makes no sense")


class Configurations:
    """All configurations from the base of the log on; the newest is in force, committed or not.

    That is the rule of the Raft dissertation (Ongaro 2014, section 4.1): a server uses the
    latest configuration in its log, as soon as it is appended, and until it is truncated.
    """

    def __init__(self, base: Configuration) -> None:
        self._history = [base]
        self.current = base
        """The configuration in force."""

    def at(self, index: int) -> Configuration:
        """Return the configuration in force after the entry at ``index``."""
        return next((c for c in reversed(self._history) if c.index <= index), self._history[0])

    def append(self, index: int, voters: tuple[ServerId, ...]) -> None:
        """Take a configuration that was appended to the log."""
        self.current = Configuration(index, voters)
        self._history.append(self.current)

    def truncate(self, first_index: int) -> None:
        """Drop the configurations of entries that were removed from the log."""
        while len(self._history) > 1 and self._history[-1].index >= first_index:
            self._history.pop()
        self.current = self._history[-1]

    def reset(self, base: Configuration) -> None:
        """Start anew from a snapshot, and keep the configurations behind it."""
        self._history = [base, *(c for c in self._history if c.index > base.index)]
        self.current = self._history[-1]


def objection(current: Sequence[ServerId], desired: Sequence[ServerId]) -> str | None:
    """Return why one step may not lead from ``current`` to ``desired``; None when it may."""
    changed = set(current) ^ set(desired)
    if len(changed) > 1:
        return "voters change one at a time"
    if not desired:
        return "somebody must vote"
    if len(set(desired)) != len(desired):
        return "a voter is named twice"
    if len(desired) > VOTERS_MAX and len(desired) > len(current):
        return f"at most {VOTERS_MAX} servers vote"
    return None


def next_step(
    current: Sequence[ServerId],
    desired: Sequence[ServerId],
    *,
    ready: Collection[ServerId],
    able: Collection[ServerId],
    leader: ServerId,
) -> tuple[ServerId, ...] | None:
    """Return the voters after the one change that brings ``current`` nearer to ``desired``.

    A voter is added before another is removed, so that the number that may fail does not shrink
    on the way; unless there are ``VOTERS_MAX`` already. ``ready`` are the servers that have the
    log and are in touch: others would count for the majority without being able to answer. The
    leader is never removed: it hands its office over first.

    ``able`` are the servers whose answers count now. A voter is removed only while they are a
    majority of the rest: the removal could never be committed otherwise, and nothing else either,
    if the others do not come back or have forgotten what they promised (seed 1146).
    """
    additions = [server for server in sorted(desired) if server not in current]
    removals = [server for server in sorted(current) if server not in desired and server != leader]
    addable = next((server for server in additions if server in ready), None)
    if addable is not None and len(current) < VOTERS_MAX:
        return tuple(sorted((*current, addable)))
    # A voter that is to be replaced stays until its successor can be added, unless there are
    # more voters than wanted anyway.
    room_needed = addable is not None and len(current) >= VOTERS_MAX
    if removals and (not additions or room_needed or len(current) > len(desired)):
        leaves = min(removals, key=lambda server: server in able)
        rest = tuple(server for server in current if server != leaves)
        if sum(server in able for server in rest) > len(rest) // 2:
            return rest
    return None
