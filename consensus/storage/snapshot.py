"""Snapshots of the whole table: atomic, checksummed files, two kept; and their way to a peer."""

import hashlib
import logging
import re
import struct
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpupool.consensus.protocol import cbor_pieces, closed_cbor
from gpupool.consensus.protocol.raft_settings import SNAPSHOT_BYTES_MAX, SNAPSHOT_CHUNK_BYTES
from gpupool.consensus.storage.disk import Disk, storage_errors
from gpupool.pool.errors import NoRoomError, RemoteProtocolError, StorageError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.pieces import Field, PieceDecoder

FORMAT_VERSION = 1
SNAPSHOTS_KEPT = 2
"""One more than needed: if the newest turns out to be damaged, the one before it and the journal,
which reaches back to it, still give the same table."""

_MAGIC = b"gpupoolS"
_HEADER = struct.Struct("<8sIQ32s")
_TEMPORARY = "snapshot.new"
_NAME = re.compile(r"snapshot-(\d{20})")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table after the entry at ``index``, and the voters in force there."""

    index: int
    term: int
    voters: tuple[ServerId, ...]
    state: Plain


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot file: header with SHA-256, then CBOR."""
    body = closed_cbor.encode(
        {
            "index": snapshot.index,
            "term": snapshot.term,
            "voters": list(snapshot.voters),
            "state": snapshot.state,
        }
    )
    digest = hashlib.sha256(body).digest()
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, len(body), digest) + body


def encode_in_pieces(
    index: int, term: int, voters: tuple[ServerId, ...], fields: list[Field]
) -> Generator[None, None, bytes]:
    """Return the result of ``encode_snapshot``, in steps of a millisecond or so."""
    known: dict[str, Plain] = {"index": index, "term": term, "voters": [*voters]}
    body = [cbor_pieces.map_head(len(known) + 1)]
    body += [closed_cbor.encode(name) + closed_cbor.encode(each) for name, each in known.items()]
    body += [closed_cbor.encode("state"), cbor_pieces.map_head(len(fields))]
    for piece in cbor_pieces.encode_fields(fields):
        body.append(piece)
        yield
    digest = hashlib.sha256()
    for piece in body:
        digest.update(piece)
    length = sum(map(len, body))
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, length, digest.digest())
    return b"".join([header, *body])


def decode_in_pieces(
    data: bytes, restoring: PieceDecoder[Any]
) -> Generator[None, None, tuple[Snapshot, Any]]:
    """Return the snapshot in ``data`` without its state, and the state that was made of it.

    Raises:
        ValueError: as ``decode_snapshot``; it is a ``CodecError`` when the state is not one.
    """
    reader = cbor_pieces.PieceReader(_checked_body(data))
    known: dict[str, Plain] = {}
    state: Any = None
    try:
        for _ in range(reader.map_length()):
            name = reader.text()
            if name in known:
                raise ValueError(f"it has {name!r} twice")
            known[name] = None
            if name == "state":
                state = yield from _decode_state(reader, restoring)
            else:
                known[name] = reader.value()
        reader.finish()
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
    return _snapshot_of(known), state


def _decode_state(
    reader: cbor_pieces.PieceReader, restoring: PieceDecoder[Any]
) -> Generator[None, None, Any]:
    for _ in range(reader.map_length()):
        name, length = reader.text(), reader.list_length()
        if length is None:
            restoring.field(name, reader.value())
        else:
            restoring.begin_rows(name, length)
            for rows in reader.rows(length):
                restoring.rows(name, rows)
                yield
        yield
    return restoring.finish()


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot in ``data``; raises ``ValueError`` with the reason."""
    try:
        value = closed_cbor.decode(_checked_body(data))
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
    return _snapshot_of(value)


def _checked_body(data: bytes) -> bytes:
    if len(data) < _HEADER.size:
        raise ValueError("it is empty" if not data else "it is cut short")
    magic, version, length, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("its header is broken")
    if version != FORMAT_VERSION:
        raise ValueError(f"it has format {version}, not {FORMAT_VERSION}")
    body = data[_HEADER.size :]
    if len(body) != length or hashlib.sha256(body).digest() != digest:
        raise ValueError("its checksum does not match")
    return body


def _snapshot_of(value: Plain) -> Snapshot:
    match value:
        case {"index": int(index), "term": int(term), "voters": list(voters), "state": state}:
            names = tuple(ServerId(voter) for voter in voters if isinstance(voter, str))
            return Snapshot(index, term, names, state)
        case _:
            raise ValueError("its fields are not those of a snapshot")


class SnapshotStore:
    """The snapshot files of one directory.

    ``latest`` is the newest intact one; ``damaged`` names those that could not be read, and why.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.latest: Snapshot | None = None
        self.damaged: dict[str, str] = {}
        self._indices: list[int] = []
        self._encoded: bytes | None = None
        self._load()

    @property
    def oldest_index(self) -> int:
        """Up to here, and no further, may the journal forget its entries; 1 without snapshots.

        While only one snapshot is intact, the journal must still be able to replace it.
        """
        return self._indices[-SNAPSHOTS_KEPT] if len(self._indices) >= SNAPSHOTS_KEPT else 1

    def encoded_latest(self) -> bytes:
        """Return the newest snapshot as it travels to a peer."""
        assert self._encoded is not None, "there is no snapshot"
        return self._encoded

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot durably under its final name, then drop all but the newest two."""
        data = encode_snapshot(snapshot)
        self.write(snapshot.index, data)
        self.saved(snapshot, data)

    def write(self, index: int, data: bytes) -> None:
        """Write a snapshot durably under its final name; ``saved`` takes note of it.

        May run on any thread, since it uses files that nobody else does meanwhile.
        """
        if len(data) > SNAPSHOT_BYTES_MAX:
            raise StorageError("the table is too large for a snapshot", why=f"{len(data)} bytes")
        try:
            with storage_errors("a snapshot cannot be written"):
                self._disk.write(_TEMPORARY, data)
                self._disk.sync(_TEMPORARY)
                self._disk.rename(_TEMPORARY, _name(index))
                self._disk.sync_directory()
        except NoRoomError:
            with suppress(OSError):
                self._disk.remove(_TEMPORARY)
            raise

    def saved(self, snapshot: Snapshot, data: bytes) -> None:
        """Take note of a snapshot that is written, and drop all but the newest two."""
        with storage_errors("a snapshot cannot be written"):
            self._indices = sorted({*self._indices, snapshot.index})
            while len(self._indices) > SNAPSHOTS_KEPT:
                self._disk.remove(_name(self._indices.pop(0)))
        self.latest, self._encoded = snapshot, data

    def _load(self) -> None:
        with storage_errors("the snapshots cannot be read"):
            names = self._disk.names()
            if _TEMPORARY in names:
                self._disk.remove(_TEMPORARY)
            for name in names:
                if not (match := _NAME.fullmatch(name)):
                    continue
                try:
                    data = self._disk.read(name)
                    snapshot = decode_snapshot(data)
                    if snapshot.index != int(match[1]):
                        raise ValueError("its name does not fit its content")
                except ValueError as error:
                    self.damaged[name] = str(error)
                    _log.error("the snapshot %s is damaged and ignored: %s", name, error)
                else:
                    self._indices.append(snapshot.index)
                    self.latest, self._encoded = snapshot, data


class SnapshotSender:
    """One snapshot on its way to one peer: a piece, its answer, the next piece."""

    def __init__(self, snapshot: Snapshot, data: bytes) -> None:
        self.index, self.term, self.total = snapshot.index, snapshot.term, len(data)
        self._data = data
        self.offset = 0
        self.sent_at: float | None = None

    def piece(self, now: float) -> bytes:
        """Return the piece at ``offset``, and note when it went out."""
        self.sent_at = now
        return self._data[self.offset : self.offset + SNAPSHOT_CHUNK_BYTES]

    def acknowledged(self, index: int, received: int) -> bool:
        """Take a peer's answer; False when it belongs to another snapshot or repeats itself."""
        if index != self.index or not 0 <= received <= self.total or received == self.offset:
            return False
        self.offset, self.sent_at = received, None
        return True


class SnapshotReceiver:
    """Pieces of one snapshot from one peer, until they are complete."""

    def __init__(self, peer: ServerId, index: int, total: int) -> None:
        if not 0 < total <= SNAPSHOT_BYTES_MAX:
            raise RemoteProtocolError("a snapshot is too large", why=f"{total} bytes")
        self.peer, self.index, self.total = peer, index, total
        self._data = bytearray()

    @property
    def received(self) -> int:
        """How many bytes are here."""
        return len(self._data)

    def add(self, offset: int, piece: bytes) -> None:
        """Take the piece at ``offset``; pieces out of order are ignored, and asked for again."""
        if offset == len(self._data) and len(piece) <= self.total - offset:
            self._data += piece

    def complete(self) -> bytes | None:
        """Return the snapshot's file once all of it is here, not checked yet."""
        return bytes(self._data) if len(self._data) == self.total else None


def _name(index: int) -> str:
    return f"snapshot-{index:020d}"
