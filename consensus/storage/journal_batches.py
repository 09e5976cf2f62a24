"""The batches of a journal's file: their bytes, and what tells an intact one from a broken one.

A file header of 16 bytes comes first. A batch is ``magic u32 | length u32 | sequence u64 | payload
crc32 u32 | header crc32 u32``, with the header's checksum seeded by the batch's offset, so that no
payload can pass for a batch. Its payload is a run of records, each ``kind u8`` and its fields
(``journal.py``). All integers are little-endian. Zeros may follow the last batch: room for more
(``disk.py``).
"""

import struct
import zlib

from gpupool.pool.errors import StorageError

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
    """Return the error of a file that is not what was synced."""
    return StorageError(
        f"the journal is damaged at byte {offset}",
        why=why,
        hint=f"do not delete it: {REJOIN_HINT}",
    )
