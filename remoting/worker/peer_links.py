"""Connections between the workers of one client process, on the servers of one lease.

The client introduces its workers to one another: a key for each, and where the others are. A link
goes one way. The sender's host connects it to a server of the same lease and to nothing else, and
the receiving worker does the handshake of a data session, with its key in place of the ticket.
Then the sender says which of the workers it is, and every transfer is a header and its bytes.
Both ends take transfers in the order in which the client asked for them, so nothing is buffered,
and of two workers that send to each other none waits for ever: of all transfers under way, the
one that was asked for first is awaited by nothing but its two ends.
"""

import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpupool.pool.errors import AuthenticationError, GpupoolError, RemoteProtocolError
from gpupool.remoting.protocol import handshake
from gpupool.remoting.transport.data_connection import SessionAddress, prove
from gpupool.remoting.transport.session_stream import SessionStream

COUNT_MAX = 256
"""Workers of one process: no more than the GPUs of one lease."""

KEY_SIZE = 32
CONNECT_TIMEOUT_S = 5.0
SILENT_MAX_S = 3.5
"""A sender gives up a connection on which nothing is acknowledged for so long."""

TEXT_SIZE_MAX = 1000

INTRODUCTION = struct.Struct("<I")
"""Index of the sender among the process's workers."""

HEADER = struct.Struct("<QQI4x")
"""Number of the transfer, bytes that follow, or bytes of a text that says why there are none."""


TakeLane = Callable[[int, socket.socket, "tuple[bytes, bytes] | None", bytes], None]
"""Takes over a further connection of the client: its direction, the socket, the worker's
certificate and key unless the client has proven itself, and the ticket that it must know."""


class PeerLostError(Exception):
    """The link to another worker broke; ``status`` is cudaErrorDevicesUnavailable."""

    status = 46


class PeerFailedError(Exception):
    """The other worker has nothing to send, because the call that makes the data failed there."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another worker of the same process."""

    server: str  # the server's id
    name: str  # of the server, for people
    session: bytes
    certificate_sha256: bytes
    encryption: str
    key: bytes = field(repr=False)


class Links:
    """The links of one worker. Its door's thread uses them; others may only `accept`.

    Whatever sends or receives raises PeerLostError, and ``begin`` PeerFailedError, too.
    """

    def __init__(
        self,
        dial: Callable[[str], socket.socket],
        expect: Callable[[tuple[bytes, ...]], None],
    ) -> None:
        """Make links without an introduction.

        Args:
            dial: returns a connection to the server with that id; raises OSError.
            expect: called before others connect here: other workers, or the client by these
                numbers.
        """
        self.may_encrypt = False  # this worker's client uses TLS
        self.lane_ids: tuple[bytes, bytes] | None = None
        self.take_lane: TakeLane | None = None
        self.key = b""  # by which other workers prove themselves; empty before the introduction
        self._dial = dial
        self._expect = expect
        self._index = 0
        self._others: Sequence[Peer | None] = ()
        self._outgoing: dict[int, SessionStream] = {}
        self._incoming: dict[int, SessionStream] = {}
        self._lost: dict[int, str] = {}
        self._bytes_before = (0, 0)  # of the links that were forgotten: in, out

    @property
    def bytes_in(self) -> int:
        """Return how many bytes have come from other workers."""
        now = sum(stream.bytes_in for stream in list(self._incoming.values()))
        return self._bytes_before[0] + now

    @property
    def bytes_out(self) -> int:
        """Return how many bytes have gone to other workers."""
        now = sum(stream.bytes_out for stream in list(self._outgoing.values()))
        return self._bytes_before[1] + now

    def introduce(self, key: bytes, index: int, others: Sequence[Peer | None]) -> None:
        """Accept the client's list of the other workers; once, before any call."""
        if self.key:
            raise RemoteProtocolError("the other workers have been introduced")
        self._index = index
        self._others = others
        self.key = key
        self._expect(())

    def expect_lanes(
        self, ids: tuple[bytes, bytes], take: TakeLane, encrypts: Callable[[], bool]
    ) -> bool:
        """Take further connections of the client that name these numbers; False: none may be.

        Args:
            ids: of the connections that go up, and of those that go down.
            take: takes over a connection; raises GpupoolError.
            encrypts: says whether that can be one with TLS.
        """
        if self.may_encrypt and not encrypts():
            return False
        self.lane_ids, self.take_lane = ids, take
        self._expect(ids)
        return True

    def connect(self, index: int) -> str:
        """Connect to a worker, if that has not been done; return why it cannot be."""
        peer = self._peer(index)
        if index in self._outgoing:
            return ""
        target = SessionAddress(
            peer.session, peer.key, peer.certificate_sha256, encryption=peer.encryption
        )
        try:
            sock = self._dial(peer.server)
            introduction = INTRODUCTION.pack(self._index)
            stream = prove(sock, target, CONNECT_TIMEOUT_S, introduction=introduction)
        except (OSError, GpupoolError) as error:
            return str(error) or type(error).__name__
        stream.lost_after_s = SILENT_MAX_S
        self._outgoing[index] = stream
        return ""

    def accept(self, index: int, stream: SessionStream) -> None:
        """Take the link of a worker that has proven that it knows the key.

        Raises:
            AuthenticationError: when it cannot be the one that it says it is.
        """
        others = self._others
        if not 0 <= index < len(others) or others[index] is None or index in self._incoming:
            raise AuthenticationError("data connection refused", why=f"no worker {index} is due")
        self._incoming[index] = stream
        stream.send_buffers([handshake.ACCEPTED])

    def send(self, index: int, number: int, size: int, pieces: Iterable[memoryview]) -> None:
        """Send one transfer: ``pieces`` of ``size`` bytes in all."""
        stream = self._stream(self._outgoing, index)
        buffers: list[bytes | memoryview] = [HEADER.pack(number, size, 0)]
        try:
            for piece in pieces:
                buffers.append(piece)
                stream.send_buffers(buffers)
                buffers = []
            if buffers:
                stream.send_buffers(buffers)
        except OSError as error:
            raise self._lose(index, error.strerror or str(error)) from error

    def send_failure(self, index: int, number: int, text: str) -> None:
        """Say in place of a transfer why there is none."""
        data = text.encode()[:TEXT_SIZE_MAX] or b"it failed"
        try:
            stream = self._stream(self._outgoing, index)
            stream.send_buffers([HEADER.pack(number, 0, len(data)), data])
        except OSError as error:
            raise self._lose(index, error.strerror or str(error)) from error

    def begin(self, index: int, number: int, size: int) -> None:
        """Wait for one transfer."""
        stream = self._stream(self._incoming, index)
        found, length, failed = HEADER.unpack(self._exactly(stream, index, HEADER.size))
        if found != number or failed > TEXT_SIZE_MAX or length != (0 if failed else size):
            raise self._lose(index, f"it sent transfer {found} of {length} bytes out of turn")
        if failed:
            text = self._exactly(stream, index, failed).decode(errors="replace")
            raise PeerFailedError(text)

    def read(self, index: int, target: memoryview) -> None:
        """Fill ``target`` with the next bytes of the transfer."""
        stream = self._stream(self._incoming, index)
        done = 0
        while done < target.nbytes:
            try:
                got = stream.recv_into(target[done:])
            except OSError as error:  # such as a timeout of the kernel's keep-alive
                raise self._lose(index, error.strerror or str(error)) from error
            if not got:
                raise self._lose(index, "its worker ended")
            done += got

    def skip(self, index: int, size: int) -> None:
        """Read and drop the bytes of a transfer."""
        scratch = memoryview(bytearray(min(size, 1 << 20)))
        while size:
            piece = scratch[: min(size, len(scratch))]
            self.read(index, piece)
            size -= len(piece)

    def cut(self, index: int) -> None:
        """End both links with a worker, also in the middle of a transfer."""
        for links in (self._outgoing, self._incoming):
            if index in links:
                links[index].hang_up()
        self._lost.setdefault(index, "a transfer was interrupted half-way")

    def forget(self) -> None:
        """Close all links, and know no other worker until the next introduction."""
        self.close()
        before = self.bytes_in, self.bytes_out
        self.key, self._others = b"", ()
        self._outgoing, self._incoming, self._lost = {}, {}, {}
        self._bytes_before = before

    def close(self) -> None:
        """Close all links."""
        for links in (self._outgoing, self._incoming):
            for stream in list(links.values()):
                stream.close()

    def _peer(self, index: int) -> Peer:
        peer = self._others[index] if 0 <= index < len(self._others) else None
        if peer is None:
            raise RemoteProtocolError("unknown worker", why=str(index))
        return peer

    def _stream(self, links: dict[int, SessionStream], index: int) -> SessionStream:
        peer = self._peer(index)
        if index in self._lost:
            raise PeerLostError(f"no copies with server {peer.name}: {self._lost[index]}")
        stream = links.get(index)
        if stream is None:
            raise PeerLostError(f"no copies with server {peer.name}: it is not connected")
        return stream

    def _exactly(self, stream: SessionStream, index: int, size: int) -> bytes:
        data = bytearray(size)
        self.read(index, memoryview(data))
        return bytes(data)

    def _lose(self, index: int, why: str) -> PeerLostError:
        """End the links with a worker; later transfers over them fail at once."""
        self._lost.setdefault(index, why)
        for links in (self._outgoing, self._incoming):
            if index in links:
                links[index].hang_up()
        return PeerLostError(f"a copy between servers failed: lost {self._peer(index).name}: {why}")
