"""The durable log: entries, truncations, term and vote in one append-only, checksummed file.

Layout. A file header of 16 bytes, then batches. Everything written between two syncs is one
batch, so the disk can tear only the last one: a later batch is written only after the sync of the
earlier one succeeded. Hence the rule of recovery:

- a broken batch with nothing intact behind it was torn by a crash, and was never acknowledged to
  anyone: it is cut off, and the log says so in one sentence; unless the superblock knows of more
  synced batches than are found. Then some of them are lost, and may have been acknowledged: term
  and vote are taken from the superblock, and this server gets the entries from the others;
- a broken batch with an intact batch header behind it had been synced: the file is damaged, and
  the server refuses to start rather than forget what it promised.

So that the second rule also protects the newest synced batch, ``seal`` writes and syncs an empty
batch when the journal has been at rest for a second, and when it is closed.

The rules rest on every batch but the last being on the disk. The content of a file does not prove
that: after a failed sync the kernel takes pages for clean that it could not write, and a server
that starts again on the same boot reads them from the kernel's memory. So every start writes a new
file, which holds everything that the server has promised.

A batch is ``magic u32 | length u32 | sequence u64 | payload crc32 u32 | header crc32 u32``, with
the header's checksum seeded by the batch's offset, so that no payload can pass for a batch. Its
payload is a run of records, each ``kind u8`` and its fields. All integers are little-endian. Zeros
may follow the last batch: room for more (``disk.py``). The first one of a file starts with the
base: index and term of the entry up to which everything lives in a snapshot. Dropping a prefix
writes a new file beside the old one and renames it, so that a crash leaves the one or the other.

A full disk is no failure: what a refused write has left behind the synced batches was acknowledged
to nobody, and the next ``sync`` writes the same again. Where the sync itself was refused, nobody
knows what the disk has, so that all is written to a new file. The reserve is given up before.

The superblock is the state of the journal at its last sync, in a file beside it. A journal that was
cut in its synced part, or whose newest batch is damaged, looks like one whose last write a crash
tore. The superblock tells the two apart: after each sync of the journal it notes the count of
synced batches, the boot, the term, the vote and the last index.

It costs no sync of its own. The note is one small write into one of two slots in turn, which the
kernel keeps when the process dies; a power loss may undo it. So a superblock may know too little,
and never too much: everything was synced that it calls synced. The other servers' memory of this
one still has what a power loss takes from it (``peer_memory.py``).

When something is missing, the file ``repair`` says how far this server may have made promises. It
is removed when the server has its log back from the others (``persisted_votes.py``).
"""

import logging
import struct
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from gpupool.consensus.protocol.raft_settings import RESERVE_BYTES
from gpupool.consensus.storage.disk import NO_ROOM, Disk, storage_errors
from gpupool.pool.errors import NoRoomError, StorageError

# --- the superblock -------------------------------------------------------------------------------

SUPERBLOCK = "superblock"
REPAIR = "repair"
_REPAIR_NEW = "repair.new"

_SLOT_BYTES = 4096
_SLOTS = 2
_SLOT_MAGIC = b"gpupoolB"
_SLOT_FIELDS = struct.Struct("<8sQIQQQQB")
"""Magic, count of notes, journal, batches, boot, term, last index, length of the vote's name."""
_FLOOR = struct.Struct("<8sQQ")


class Synced(NamedTuple):
    """The state of one journal file after a sync."""

    journal: int
    """Names the file: the checksum of its first batch."""
    batches: int
    boot: int
    term: int
    vote: str | None
    last_index: int


@dataclass(frozen=True, slots=True)
class Floor:
    """How far a server may have made promises that it does not hold any more."""

    term: int
    index: int
    """In any term: for people. By the term it is decided when they are held again."""


class Superblock:
    """Both slots of the file, and the ``repair`` file beside it."""

    def __init__(self, disk: Disk) -> None:
        """Read both slots; a damaged or missing file leaves ``known`` None."""
        self._disk = disk
        self._count = 0
        self.known: Synced | None = None
        self.floor: Floor | None = None
        """Set while something that may have been acknowledged is missing."""
        names = disk.names()
        with storage_errors("the superblock cannot be read"):
            data = disk.read(SUPERBLOCK) if SUPERBLOCK in names else b""
            repair = disk.read(REPAIR) if REPAIR in names else b""
        for slot in range(_SLOTS):
            found = _unpack_slot(data[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES])
            if found is not None and found[0] > self._count:
                self._count, self.known = found
        if repair:
            # Damaged, it still says that something is missing: then any promise is possible.
            self.floor = _unpack_floor(repair) or Floor(0, 0)
        self._whole = len(data) == _SLOTS * _SLOT_BYTES

    def keep(self) -> None:
        """Make the file, if it is not there; its name is durable with the journal's."""
        if not self._whole:
            with storage_errors("the superblock cannot be written"):
                self._disk.write(SUPERBLOCK, bytes(_SLOTS * _SLOT_BYTES))
                self._disk.sync(SUPERBLOCK)
            self._whole = True

    def note(self, synced: Synced) -> None:
        """Write the journal's synced state to one slot; the other slot stays as it is."""
        self._count += 1
        self.known = synced
        data = _pack_slot(self._count, synced)
        try:
            self._disk.overwrite(SUPERBLOCK, self._count % _SLOTS * _SLOT_BYTES, data)
        except OSError as error:
            if error.errno not in NO_ROOM:  # Some file systems write nothing in its old place.
                raise

    def sync(self) -> None:
        """Make the newest note durable, which is done at a start only."""
        self._disk.sync(SUPERBLOCK)

    def lose(self, floor: Floor) -> None:
        """Note, durably, that promises up to ``floor`` may have been made and are missing.

        Others remember what a server said to them alone: one of a later term may know of no entry.
        """
        known = self.floor or floor
        self.floor = Floor(max(known.term, floor.term), max(known.index, floor.index))
        data = _FLOOR.pack(_SLOT_MAGIC, self.floor.term, self.floor.index)
        with storage_errors("the state of repair cannot be written"):
            self._disk.write(_REPAIR_NEW, data + zlib.crc32(data).to_bytes(4, "little"))
            self._disk.sync(_REPAIR_NEW)
            self._disk.rename(_REPAIR_NEW, REPAIR)
            self._disk.sync_directory()

    def found(self) -> None:
        """Note, durably, that nothing is missing any more."""
        self.floor = None
        with storage_errors("the state of repair cannot be written"):
            self._disk.remove(REPAIR)
            self._disk.sync_directory()


def _pack_slot(count: int, synced: Synced) -> bytes:
    vote = (synced.vote or "").encode()
    data = _SLOT_FIELDS.pack(
        _SLOT_MAGIC,
        count,
        synced.journal,
        synced.batches,
        synced.boot,
        synced.term,
        synced.last_index,
        len(vote),
    )
    data += vote
    return data + zlib.crc32(data).to_bytes(4, "little")


def _unpack_slot(data: bytes) -> tuple[int, Synced] | None:
    if len(data) < _SLOT_FIELDS.size:
        return None
    magic, count, journal, batches, boot, term, last_index, length = _SLOT_FIELDS.unpack_from(data)
    end = _SLOT_FIELDS.size + length
    if magic != _SLOT_MAGIC or data[end : end + 4] != zlib.crc32(data[:end]).to_bytes(4, "little"):
        return None
    vote = data[_SLOT_FIELDS.size : end].decode() or None
    return count, Synced(journal, batches, boot, term, vote, last_index)


def _unpack_floor(data: bytes) -> Floor | None:
    if len(data) != _FLOOR.size + 4 or data[-4:] != zlib.crc32(data[:-4]).to_bytes(4, "little"):
        return None
    magic, term, index = _FLOOR.unpack_from(data)
    return Floor(term, index) if magic == _SLOT_MAGIC else None


# --- batches --------------------------------------------------------------------------------------

FORMAT_VERSION = 1
REJOIN_HINT = '"gpupool rejoin" makes it a new member of the pool, with a new id'

BATCH_HEADER = struct.Struct("<IIQII")
_FILE_MAGIC = b"gpupoolJ"
_FILE_HEADER = struct.Struct("<8sII")
_BATCH_MAGIC = 0xB57C4A1F
_BATCH_BYTES_MAX = 1 << 31


def pack_file_header() -> bytes:
    """Return the first bytes of a file."""
    checksum = zlib.crc32(_FILE_MAGIC + FORMAT_VERSION.to_bytes(4, "little"))
    return _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, checksum)


def check_file_header(data: bytes) -> int:
    """Return where the first batch begins; raise StorageError if the header is none."""
    if len(data) < _FILE_HEADER.size:
        raise damaged(0, "it is empty" if not data else "its header is cut short")
    magic, version, checksum = _FILE_HEADER.unpack_from(data)
    if magic != _FILE_MAGIC or checksum != zlib.crc32(data[:12]):
        raise damaged(0, "its header is broken")
    if version != FORMAT_VERSION:
        raise StorageError(
            f"the journal has format {version}",
            why=f"this gpupool writes format {FORMAT_VERSION}",
            hint="start the gpupool version that wrote it",
        )
    return _FILE_HEADER.size


def pack_batch(payload: bytes, sequence: int, offset: int) -> bytes:
    """Return a batch as it stands at ``offset``."""
    assert len(payload) < _BATCH_BYTES_MAX, "a batch is too long"
    fields = struct.pack("<IIQI", _BATCH_MAGIC, len(payload), sequence, zlib.crc32(payload))
    return fields + zlib.crc32(fields, offset & 0xFFFFFFFF).to_bytes(4, "little") + payload


def unpack_batch_header(data: bytes, offset: int) -> tuple[int, int, int] | None:
    """Return length, sequence and checksum of the batch at ``offset`` if its header is intact."""
    if len(data) - offset < BATCH_HEADER.size:
        return None
    magic, length, sequence, payload_crc, header_crc = BATCH_HEADER.unpack_from(data, offset)
    fields = data[offset : offset + BATCH_HEADER.size - 4]
    if magic != _BATCH_MAGIC or header_crc != zlib.crc32(fields, offset & 0xFFFFFFFF):
        return None
    return length, sequence, payload_crc


def unpack_batch(data: bytes, offset: int, expected_sequence: int) -> bytes | None:
    """Return a batch's payload, if all of it is intact."""
    header = unpack_batch_header(data, offset)
    if header is None:
        return None
    length, sequence, payload_crc = header
    start = offset + BATCH_HEADER.size
    payload = data[start : start + length]
    if sequence != expected_sequence or len(payload) != length:
        return None
    return payload if zlib.crc32(payload) == payload_crc else None


def find_batch(data: bytes, start: int, sequence_min: int) -> int | None:
    """Return the offset of an intact batch header that is newer than ``sequence_min``."""
    magic = _BATCH_MAGIC.to_bytes(4, "little")
    offset = data.find(magic, start)
    while offset >= 0:
        header = unpack_batch_header(data, offset)
        if header is not None and header[1] > sequence_min:
            return offset
        offset = data.find(magic, offset + 1)
    return None


def damaged(offset: int, why: str) -> StorageError:
    """Return the error of a file that differs from its synced content."""
    return StorageError(
        f"the journal is damaged at byte {offset}",
        why=why,
        hint=f"do not delete it: {REJOIN_HINT}",
    )


Entry: TypeAlias = tuple[bytes, int, int]
"""A log entry as pysyncobj has it: command (its first byte is the type), index, term."""

JOURNAL = "journal"
JOURNAL_NEW = "journal.new"
RESERVE = "reserve"
PLACEHOLDER = b"\x01"
"""The command of the base entry: the library's no-op. Index 1, term 0 in an empty log."""

_ENTRY = struct.Struct("<BIQQ")
_TRUNCATE = struct.Struct("<BQ")
_VOTE = struct.Struct("<BQB")
_BOOT = struct.Struct("<BQ")
_BASE = struct.Struct("<BQQ")

_log = logging.getLogger(__name__)


class _Record(IntEnum):
    BASE = 1  # index, term
    ENTRY = 2  # length, index, term, command
    TRUNCATE = 3  # first index that is removed
    VOTE = 4  # term, length of the candidate's name, name
    BOOT = 5  # how many times the journal has been opened for use


class Journal:
    """The log in memory, with every change recorded for the next ``sync``.

    ``entries`` is read by everyone and changed only here. ``entries[0]`` is the base, not an
    entry: its command is a placeholder.
    """

    def __init__(self, disk: Disk, superblock: Superblock | None = None) -> None:
        self._disk = disk
        self._superblock = superblock
        self._name = 0
        self.entries: list[Entry] = [(PLACEHOLDER, 1, 0)]
        self.term = 0
        self.vote: str | None = None
        self.synced_vote: tuple[int, str | None] = (0, None)  # term and vote, on the disk
        self.boot = 0
        self.bytes_since_rewrite = 0
        self._pending: list[bytes] = []
        self._sequence = 0
        self._offset = 0
        self._sealed = True
        self._anew = False  # the next sync writes a new file
        self._failure: str | None = None

    # --- life --------------------------------------------------------------------------------

    @classmethod
    def create(cls, disk: Disk, superblock: Superblock | None = None) -> "Journal":
        """Write the journal of a server that has never run; refuse to replace an existing one."""
        if JOURNAL in disk.names():
            raise StorageError("the journal exists already", hint="start without creating it")
        journal = cls(disk, superblock)
        journal._keep_reserve()
        journal._write_new_file()
        return journal

    @classmethod
    def open(cls, disk: Disk, superblock: Superblock | None = None) -> "Journal":
        """Read the journal, and make it durable in a new file without a torn tail.

        Raises:
            StorageError: when there is no journal, or when it is damaged.
        """
        journal = cls(disk, superblock)
        with storage_errors("the journal cannot be read"):
            try:
                data = disk.read(JOURNAL)
            except FileNotFoundError as error:
                raise StorageError(
                    "the journal is missing",
                    why="the state directory has no file named journal",
                    hint=REJOIN_HINT,
                ) from error
        journal._recover(data)
        journal._keep_reserve()
        journal._write_new_file()
        return journal

    def close(self) -> None:
        """Sync and seal, if there is room; the journal must not be used afterwards."""
        if self._failure is None:
            with suppress(NoRoomError):
                self.sync()
                self.seal()
                self.sync()
            self._failure = "the journal is closed"

    # --- the log -----------------------------------------------------------------------------

    @property
    def base_index(self) -> int:
        """The index up to which the log lives in a snapshot only."""
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        """The index of the newest entry, or the base."""
        return self.entries[-1][1]

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``, None when the log does not reach there."""
        position = index - self.entries[0][1]
        return self.entries[position][2] if 0 <= position < len(self.entries) else None

    def append(self, command: bytes, index: int, term: int) -> None:
        """Add the entry that follows the newest one."""
        assert index == self.entries[-1][1] + 1, "entries must be added in order"
        self.entries.append((command, index, term))
        self._pending.append(_ENTRY.pack(_Record.ENTRY, len(command), index, term) + command)

    def truncate(self, first_index: int) -> None:
        """Remove the entry at ``first_index`` and everything behind it."""
        assert self.base_index < first_index, "the base cannot be removed"
        del self.entries[first_index - self.base_index :]
        self._pending.append(_TRUNCATE.pack(_Record.TRUNCATE, first_index))

    def set_vote(self, term: int, vote: str | None) -> None:
        """Set the current term and this server's vote in it."""
        assert term >= self.term, "terms never go back"
        self.term, self.vote = term, vote
        self._pending.append(_pack_vote(term, vote))

    def begin(self) -> int:
        """Count one more start of the server, durably; return the count."""
        self.boot += 1
        self._pending.append(_BOOT.pack(_Record.BOOT, self.boot))
        self.sync()
        if self._superblock is not None:
            with storage_errors("the superblock cannot be written"):
                self._superblock.sync()
        return self.boot

    # --- durability --------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """True when something waits for ``sync``."""
        return bool(self._pending) or self._anew

    def sync(self) -> bool:
        """Write everything noted since the last call as one batch, and sync it once.

        Returns False when there was nothing to do. A failure is final: nobody can know what
        reached the disk, so a second attempt that succeeds would prove nothing.

        Raises:
            NoRoomError: when the disk is full; all that was noted waits for the next call.
            StorageError: when it failed.
        """
        try:
            return self._sync()
        except NoRoomError:
            if not self._drop_reserve():
                raise
            return self._sync()

    def _sync(self) -> bool:
        if self._failure is not None:
            raise StorageError("the journal cannot be written", why=self._failure)
        if self._anew:
            self._write_new_file()
        elif self._pending:
            payload = b"".join(self._pending)
            self._append_batch(payload)
            self._pending.clear()
            self._sealed = not payload
        else:
            return False
        return True

    def seal(self) -> None:
        """Let the next ``sync`` mark the newest batch as synced, by an empty batch behind it."""
        if not self._sealed and not self._pending:
            self._pending.append(b"")

    def rewrite(self, base_index: int, base_term: int, *, keep: bool) -> None:
        """Move the base, atomically, and with it drop everything up to it.

        Args:
            base_index: must be covered by a snapshot that is durable already.
            base_term: the term of the entry at ``base_index``.
            keep: whether the entries behind the new base stay in the log.
        """
        kept: list[Entry] = []
        if keep:
            assert self.term_at(base_index) == base_term, "the new base must be in the log"
            kept = self.entries[base_index - self.base_index + 1 :]
        before, name = self.entries[:], self._name
        self.entries[:] = [(PLACEHOLDER, base_index, base_term), *kept]
        self._anew = True
        try:
            self._write_new_file()
        except NoRoomError:
            if keep and name == self._name:  # What is due needs less room.
                self.entries[:], self._anew = before, False
                self.sync()

    @contextmanager
    def _writing(self) -> Generator[None, None, None]:
        self._failure = "an earlier write failed"
        try:
            with storage_errors("the journal cannot be written"):
                yield
        except NoRoomError:
            self._failure = None
            with suppress(OSError):
                self._disk.remove(JOURNAL_NEW)
            raise
        except StorageError:
            self._drop_reserve()
            raise
        self._failure = None

    def _append_batch(self, payload: bytes) -> None:
        batch = pack_batch(payload, self._sequence, self._offset)
        with self._writing():
            self._disk.append(JOURNAL, batch)
            self._anew = True
            self._disk.sync(JOURNAL)
            self._anew = False
            self._sequence += 1
            self._note_synced()
        self._offset += len(batch)
        self.bytes_since_rewrite += len(batch)

    def _write_new_file(self) -> None:
        _, base_index, base_term = self.entries[0]
        records = [
            _BASE.pack(_Record.BASE, base_index, base_term),
            _BOOT.pack(_Record.BOOT, self.boot),
            _pack_vote(self.term, self.vote),
        ]
        for command, index, term in self.entries[1:]:
            records.append(_ENTRY.pack(_Record.ENTRY, len(command), index, term) + command)
        header = pack_file_header()
        first = b"".join(records)
        batch = pack_batch(first, 0, len(header))
        seal = pack_batch(b"", 1, len(header) + len(batch))
        data = header + batch + seal
        with self._writing():
            self._disk.write(JOURNAL_NEW, data)
            self._disk.sync(JOURNAL_NEW)
            self._disk.rename(JOURNAL_NEW, JOURNAL)
            self._name, self._sequence = zlib.crc32(first), 2
            self._disk.sync_directory()
            self._note_synced()
        self._pending.clear()
        self._offset, self._sealed, self._anew = len(data), True, False
        self.bytes_since_rewrite = 0
        with suppress(StorageError):  # It may have been given up, and there is room again.
            self._keep_reserve()

    def _note_synced(self) -> None:
        self.synced_vote = (self.term, self.vote)
        if self._superblock is not None:
            self._superblock.note(
                Synced(self._name, self._sequence, self.boot, self.term, self.vote, self.last_index)
            )

    # --- the reserve -------------------------------------------------------------------------

    def _keep_reserve(self) -> None:
        try:
            with storage_errors(f"{RESERVE_BYTES >> 20} MiB of disk cannot be reserved"):
                self._disk.reserve(RESERVE, RESERVE_BYTES)
        except NoRoomError:
            self._drop_reserve()
            raise

    def _drop_reserve(self) -> bool:
        """Give the reserve back, so that the server can still write; False if there is none."""
        if RESERVE not in self._disk.names():
            return False
        try:
            self._disk.remove(RESERVE)
        except OSError as error:
            _log.warning("the reserve file could not be removed: %s", error)
            return False
        return True

    # --- recovery ----------------------------------------------------------------------------

    def _recover(self, data: bytes) -> None:
        offset, end = check_file_header(data), len(data.rstrip(b"\0"))
        while offset < end:
            payload = unpack_batch(data, offset, self._sequence)
            if payload is None:
                self._check_torn(data, offset, end)
                break
            if self._sequence == 0:
                self._name = zlib.crc32(payload)
            self._replay(payload, offset)
            self._sequence += 1
            offset += BATCH_HEADER.size + len(payload)
        if self._sequence == 0:
            raise damaged(offset, "its first batch is missing")
        self._check_lost(offset)

    def _check_torn(self, data: bytes, offset: int, end: int) -> None:
        """Tell a batch that a crash tore from one that is damaged."""
        header = unpack_batch_header(data, offset)
        later = find_batch(data, offset + 1, self._sequence)
        if later is not None or (
            header is not None and end > offset + BATCH_HEADER.size + header[0]
        ):
            raise damaged(offset, "more was written behind a batch that is broken")
        if self._sequence == 0:
            raise damaged(offset, "its first batch is broken")
        if self._lost_batches():
            return  # ``_check_lost`` says so.
        _log.warning(
            "the journal's last %d bytes were torn by a crash, and were never acknowledged: "
            "cut off at byte %d",
            end - offset,
            offset,
        )

    def _lost_batches(self) -> int:
        """Return how many batches are missing that the superblock knows to have been synced."""
        known = self._superblock.known if self._superblock is not None else None
        same = known is not None and known.journal == self._name
        return max(known.batches - self._sequence, 0) if same and known is not None else 0

    def _check_lost(self, offset: int) -> None:
        """Take the state of missing synced batches from the superblock.

        The boot, the term and the vote are in it. The entries are not: the others have them.
        """
        count = self._lost_batches()
        if self._superblock is None or self._superblock.known is None or not count:
            return
        known = self._superblock.known
        _log.error(
            "the journal's newest %d synced batches, up to entry %d, are missing or damaged from "
            "byte %d on: they may have been acknowledged. This server does not vote until it has "
            "got them back from the others",
            count,
            known.last_index,
            offset,
        )
        self._superblock.lose(Floor(known.term, known.last_index))
        self.boot = max(self.boot, known.boot)
        if known.term >= self.term:
            self.term, self.vote = known.term, known.vote

    def _replay(self, payload: bytes, batch_offset: int) -> None:
        position = 0
        while position < len(payload):
            try:
                position = self._replay_record(payload, position)
            except (struct.error, ValueError, AssertionError) as error:
                raise damaged(batch_offset, f"a record makes no sense ({error})") from error

    def _replay_record(self, payload: bytes, position: int) -> int:
        kind = payload[position]
        if kind == _Record.ENTRY:
            _, length, index, term = _ENTRY.unpack_from(payload, position)
            start = position + _ENTRY.size
            command = payload[start : start + length]
            if len(command) != length or index != self.last_index + 1:
                raise ValueError("an entry is out of place")
            self.entries.append((command, index, term))
            return start + length
        if kind == _Record.TRUNCATE:
            _, first = _TRUNCATE.unpack_from(payload, position)
            if not self.base_index < first:
                raise ValueError("the base would be removed")
            del self.entries[first - self.base_index :]
            return position + _TRUNCATE.size
        if kind == _Record.VOTE:
            _, self.term, length = _VOTE.unpack_from(payload, position)
            start = position + _VOTE.size
            self.vote = payload[start : start + length].decode() or None
            return start + length
        if kind == _Record.BOOT:
            _, self.boot = _BOOT.unpack_from(payload, position)
            return position + _BOOT.size
        if kind == _Record.BASE and self._sequence == 0 and position == 0:
            _, index, term = _BASE.unpack_from(payload, position)
            self.entries[:] = [(PLACEHOLDER, index, term)]
            return position + _BASE.size
        raise ValueError(f"kind {kind} is unknown")


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return entries in one run of bytes, as they travel between servers."""
    pack = _ENTRY.pack
    return b"".join(
        [
            pack(_Record.ENTRY, len(command), index, term) + command
            for command, index, term in entries
        ]
    )


def decode_entries(data: bytes) -> list[Entry]:
    """Return the entries of ``encode_entries``; raises ``ValueError`` for anything else."""
    entries: list[Entry] = []
    position, end, unpack, size = 0, len(data), _ENTRY.unpack_from, _ENTRY.size
    while position < end:
        if end - position < size:
            raise ValueError("an entry is cut short")
        kind, length, index, term = unpack(data, position)
        position += size
        if kind != _Record.ENTRY or not 0 < length <= end - position:
            raise ValueError("an entry is malformed")
        entries.append((data[position : position + length], index, term))
        position += length
    return entries


def _pack_vote(term: int, vote: str | None) -> bytes:
    name = (vote or "").encode()
    return _VOTE.pack(_Record.VOTE, term, len(name)) + name
