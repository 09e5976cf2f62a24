"""The superblock: the state of the journal at its last sync, in a file beside it.

A journal that was cut in its synced part, or whose newest batch is damaged, looks like one whose
last write a crash tore. The superblock tells the two apart: after each sync of the journal it
notes the count of synced batches, the boot, the term, the vote and the last index.

It costs no sync of its own. The note is one small write into one of two slots in turn, which the
kernel keeps when the process dies; a power loss may undo it. So a superblock may know too little,
and never too much: everything was synced that it calls synced. The other servers' memory of this
one still has what a power loss takes from it (``peer_memory.py``).

When something is missing, the file ``repair`` says how far this server may have made promises. It
is removed when the server has its log back from the others (``persisted_votes.py``).
"""

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from gpupool.consensus.storage.disk import NO_ROOM, Disk, storage_errors

SUPERBLOCK = "superblock"
REPAIR = "repair"
_REPAIR_NEW = "repair.new"

_SLOT_BYTES = 4096
_SLOTS = 2
_MAGIC = b"gpupoolB"
_FIELDS = struct.Struct("<8sQIQQQQB")
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
            found = _unpack(data[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES])
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
        data = _pack(self._count, synced)
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
        data = _FLOOR.pack(_MAGIC, self.floor.term, self.floor.index)
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


def _pack(count: int, synced: Synced) -> bytes:
    vote = (synced.vote or "").encode()
    data = _FIELDS.pack(
        _MAGIC,
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


def _unpack(data: bytes) -> tuple[int, Synced] | None:
    if len(data) < _FIELDS.size:
        return None
    magic, count, journal, batches, boot, term, last_index, length = _FIELDS.unpack_from(data)
    end = _FIELDS.size + length
    if magic != _MAGIC or data[end : end + 4] != zlib.crc32(data[:end]).to_bytes(4, "little"):
        return None
    vote = data[_FIELDS.size : end].decode() or None
    return count, Synced(journal, batches, boot, term, vote, last_index)


def _unpack_floor(data: bytes) -> Floor | None:
    if len(data) != _FLOOR.size + 4 or data[-4:] != zlib.crc32(data[:-4]).to_bytes(4, "little"):
        return None
    magic, term, index = _FLOOR.unpack_from(data)
    return Floor(term, index) if magic == _MAGIC else None
