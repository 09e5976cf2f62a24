"""The memory that this server has of the others: their starts, and their promises to it.

A server whose state directory was replaced by an older copy does not know that it has forgotten
something. The others do: each remembers of every other server the highest boot with its
incarnation, the highest term, and the last index that it acknowledged in that term.

The memory may know too little, and never too much. It is noted after the other server said so,
which it does after its own sync; and it is written now and then, not with each commit. A server
that loses the newest part of its memory overlooks something, and accuses nobody falsely.
"""

import logging
import zlib
from dataclasses import dataclass, replace

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.storage.disk import Disk, storage_errors
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain, ServerId

MEMORY = "peers"
_MEMORY_NEW = "peers.new"
_MAGIC = b"gpupoolP"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server: the count of its starts, and a number drawn at this one."""

    boot: int = 0
    incarnation: int = 0  # 0: not told


@dataclass(frozen=True, slots=True)
class Remembered:
    """The starts, term and index that one server has sent so far."""

    start: Start = Start()
    former: Start = Start()
    """The start before it. One that is heard again lives beside a clone."""
    clone: Start = Start()
    """A start that turned out to be a clone's."""
    term: int = 0
    index: int = 0
    """The last index that it acknowledged, or told to be committed, in that term."""


class PeerMemory:
    """The memory of one server, and its file."""

    def __init__(self, disk: Disk) -> None:
        """Read the file; a damaged or missing one leaves the memory empty."""
        self._disk = disk
        self.servers: dict[ServerId, Remembered] = {}
        self.fenced: dict[ServerId, bool] = {}
        """Servers that ``gpupool recover`` left behind, and whether they were told."""
        self.why_fenced = ""
        self.committed = (0, 0)
        """Term and index of an entry that this server knew to be committed."""
        self.dirty = False
        with storage_errors("what is known of the other servers cannot be read"):
            data = disk.read(MEMORY) if MEMORY in disk.names() else b""
        if data:
            try:
                self._take(data)
            except (ValueError, TypeError, KeyError, RemoteProtocolError) as error:
                _log.warning("what was known of the other servers is lost: %s", error)

    def of(self, server: ServerId) -> Remembered:
        """Return the memory of a server; an empty one for a server never heard of."""
        return self.servers.get(server, _NOTHING)

    def set(self, server: ServerId, remembered: Remembered) -> None:
        """Remember something else of a server."""
        self.servers[server] = remembered
        self.dirty = True

    def promised(self, server: ServerId, term: int, index: int) -> None:
        """Remember that a server is in ``term``, and in it has the entries up to ``index``."""
        known = self.servers.get(server, _NOTHING)
        if term > known.term:
            self.set(server, replace(known, term=term, index=index))
        elif term == known.term and index > known.index:
            self.set(server, replace(known, index=index))

    def fence(self, servers: list[ServerId], why: str) -> None:
        """Refuse these servers from now on, for good."""
        self.fenced |= dict.fromkeys(servers, False)
        self.why_fenced = why
        self.dirty = True

    def save(self) -> None:
        """Write the file anew, whole or not at all.

        Raises:
            StorageError: when it cannot be written; it is a ``NoRoomError`` where the disk is full.
        """
        servers: dict[str, Plain] = {
            server: [*_plain(r.start), *_plain(r.former), *_plain(r.clone), r.term, r.index]
            for server, r in sorted(self.servers.items())
        }
        body: dict[str, Plain] = {
            "servers": servers,
            "fenced": dict(sorted(self.fenced.items())),
            "why": self.why_fenced,
            "committed": list(self.committed),
        }
        data = _MAGIC + closed_cbor.encode(body)
        with storage_errors("what is known of the other servers cannot be written"):
            self._disk.write(_MEMORY_NEW, data + zlib.crc32(data).to_bytes(4, "little"))
            self._disk.sync(_MEMORY_NEW)
            self._disk.rename(_MEMORY_NEW, MEMORY)
            self._disk.sync_directory()
        self.dirty = False

    def _take(self, data: bytes) -> None:
        checksum = zlib.crc32(data[:-4]).to_bytes(4, "little")
        if data[: len(_MAGIC)] != _MAGIC or data[-4:] != checksum:
            raise ValueError("its checksum does not match")
        match closed_cbor.decode(data[len(_MAGIC) : -4]):
            case {
                "servers": dict(servers),
                "fenced": dict(fenced),
                "why": str(why),
                "committed": [int(t), int(i)],
            }:
                self.servers = {ServerId(s): _remembered(fields) for s, fields in servers.items()}
                self.fenced = {ServerId(server): told is True for server, told in fenced.items()}
                self.why_fenced = why
                self.committed = (t, i)
            case _:
                raise ValueError("its fields are not those of such a file")


def _plain(start: Start) -> list[Plain]:
    return [start.boot, start.incarnation]


def _remembered(fields: Plain) -> Remembered:
    match fields:
        case [int(a), int(b), int(c), int(d), int(e), int(f), int(term), int(index)]:
            return Remembered(Start(a, b), Start(c, d), Start(e, f), term, index)
        case _:
            raise ValueError("what is said of a server makes no sense")


_NOTHING = Remembered()
