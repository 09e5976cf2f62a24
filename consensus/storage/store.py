"""A server's durable state as a whole: journal and snapshots, brought into agreement."""

from contextlib import suppress
from pathlib import Path

from gpupool.consensus.protocol import membership
from gpupool.consensus.storage.disk import Disk, FileDisk, storage_errors
from gpupool.consensus.storage.journal import JOURNAL, REJOIN_HINT, Journal, Superblock
from gpupool.consensus.storage.peer_memory import PeerMemory
from gpupool.consensus.storage.snapshot import Snapshot, SnapshotStore
from gpupool.pool.errors import NoRoomError, StorageError
from gpupool.pool.model.ids import ServerId

DIRECTORY = "consensus"
"""Name of consensus's own directory in a server's state directory."""

FORGOTTEN = "forgotten"
"""A file that says why this storage must not be used any more."""

MEMBERSHIP_TYPE = b"\x02"
"""First byte of a log entry that holds a configuration, as in pysyncobj."""


class Storage:
    """Journal and snapshots of one server; made by ``open_storage`` or, in simulations, by hand.

    Attributes:
        journal: the log behind the older snapshot, with term and vote.
        snapshots: the snapshot files; ``snapshots.latest`` is where a start begins.
        superblock: what the journal held at its last sync, and what is missing from it.
        memory: what is known of the other servers.
    """

    def __init__(self, disk: Disk, *, create: bool) -> None:
        """Read the storage on ``disk``, or with ``create`` write that of a new server.

        Raises:
            StorageError: when something is damaged, missing, or would be overwritten.
        """
        self.disk = disk
        self._drops = False
        names = disk.names()
        if create and JOURNAL not in names and any(n.startswith("snapshot-") for n in names):
            raise StorageError(
                "there is a snapshot but no journal",
                hint="remove this server from the pool and let it join again",
            )
        if FORGOTTEN in names:
            why = disk.read(FORGOTTEN).decode(errors="replace")
            raise StorageError("this server may not take part any more", why=why, hint=REJOIN_HINT)
        self.superblock = Superblock(disk)
        self.superblock.keep()
        self.memory = PeerMemory(disk)
        open_journal = Journal.create if create else Journal.open
        self.journal = open_journal(disk, self.superblock)
        self.snapshots = SnapshotStore(disk)
        self._reconcile()

    @property
    def empty(self) -> bool:
        """True when nothing was ever written: no entry, no term, no snapshot."""
        return (
            self.journal.last_index == 1
            and self.journal.term == 0
            and self.snapshots.latest is None
        )

    def installed(self, snapshot: Snapshot, data: bytes) -> None:
        """Make a leader's snapshot, already in a file, the start of this server's log.

        Entries behind it stay if the log agrees with the snapshot; a log that does not reach it,
        or disagrees with it, has nothing that could have been committed behind it.
        """
        self.snapshots.saved(snapshot, data)
        self._reconcile()

    def taken(self, *, drop_entries_min: int = 1, drop_bytes_min: int = 0) -> None:
        """Let the next ``sync`` drop the entries that no snapshot needs.

        Writing the journal anew copies all that it keeps, while every commit waits. It is done
        once it drops so many entries, or once the file has grown by so many bytes.
        """
        dropped = self.snapshots.oldest_index - self.journal.base_index
        worth_it = dropped >= drop_entries_min or self.journal.bytes_since_rewrite >= drop_bytes_min
        self._drops = dropped > 0 and worth_it

    @property
    def sync_is_long(self) -> bool:
        """True when the next ``sync`` writes the journal anew, which takes 10 ms and more."""
        return self._drops

    def sync(self) -> None:
        """Make the journal durable; if due, rewrite it without entries that no snapshot needs."""
        base = self.snapshots.oldest_index
        drops, self._drops = self._drops, False
        if drops and (term := self.journal.term_at(base)) is not None:
            self.journal.rewrite(base, term, keep=True)
        else:
            self.journal.sync()

    def forget(self, why: str) -> None:
        """Note, durably, that this storage must never be used again.

        Without room for that, the others say so again after the next start.
        """
        what = "the end of this server's membership cannot be written"
        with suppress(NoRoomError), storage_errors(what):
            self.disk.write(FORGOTTEN, why.encode())
            self.disk.sync(FORGOTTEN)
            self.disk.sync_directory()

    def close(self) -> None:
        """Seal the journal and let the directory go."""
        self.journal.close()
        if isinstance(self.disk, FileDisk):
            self.disk.close()

    def _reconcile(self) -> None:
        """Bring the journal in line with the newest snapshot after any crash (finding S1).

        A crash may fall between the rename of a snapshot and the rewriting of the journal. What
        the journal holds beyond the snapshot is never dropped, unless it contradicts it.
        """
        snapshot, journal = self.snapshots.latest, self.journal
        snapshot_index = snapshot.index if snapshot else 1
        if journal.base_index > snapshot_index:
            damaged = ", ".join(sorted(self.snapshots.damaged)) or "none is there"
            raise StorageError(
                f"the journal starts after entry {journal.base_index}, and no intact snapshot "
                "reaches so far",
                why=f"damaged: {damaged}",
                hint=REJOIN_HINT,
            )
        if snapshot is not None and journal.term_at(snapshot.index) != snapshot.term:
            # The power failed after the snapshot and before this. Its term is one that this server
            # was in, so its peers may remember it, and call a journal of an older term an old copy.
            if journal.term < snapshot.term:
                journal.set_vote(snapshot.term, None)
            journal.rewrite(snapshot.index, snapshot.term, keep=False)


def open_storage(state_dir: Path, *, create: bool = False) -> Storage:
    """Open, or with ``create`` make, the storage of one server below ``state_dir``.

    ``create`` belongs to a server whose identity was made just now. An existing server that lost
    its storage has forgotten what it promised, and must join again under a new identity.
    """
    disk = FileDisk(state_dir / DIRECTORY)
    try:
        return Storage(disk, create=create)
    except BaseException:
        disk.close()
        raise


def bootstrap(storage: Storage, server_id: ServerId) -> None:
    """Start a pool on a new server's storage, with ``server_id`` as its only voter."""
    if not storage.empty:
        raise StorageError("a pool can only be started on empty storage")
    journal = storage.journal
    term = journal.term + 1
    journal.set_vote(term, None)
    command = MEMBERSHIP_TYPE + membership.encode_voters((server_id,))
    journal.append(command, journal.last_index + 1, term)
    journal.sync()
