"""Measures the bandwidth between two servers, over a connection made for that alone.

The server that was asked dials the other one's port, by TLS as links do: each shows a certificate
of the pool's CA, and each checks whose it is. The name that it asks for tells the other server
that this is no link. It sends zeros for about half a second and is told how many came; then the
other one sends. Links carry Raft, so nothing of this goes over them.

Both ends work in a thread with a blocking socket: OpenSSL and the kernel do their work without the
interpreter's lock, so the server's loop, and Raft's heartbeats with it, go on meanwhile. A server
is in one measurement at a time; bytes and time of each are limited.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from gpupool.pool.errors import AuthenticationError, GpupoolError, NotNowError, UnreachableError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport.client_tls import MEASURE_SUFFIX, server_of
from gpupool.remoting.transport.connections import explain
from gpupool.remoting.transport.pki import (
    Identity,
    TlsContexts,
    peer_client_context,
    peer_server_context,
)

SEND_S = 0.45
"""Each way; with the handshake a pair takes about a second."""
STEP_S = 5.0
"""The longest wait for bytes to move; on a way that is very slow it may end the measurement."""
LIMIT_S = 8.0
"""The longest that one end sends or receives, however slowly."""
BLOCK_SIZE = 256 * 1024
SIZE_MAX = 4 << 30
"""Bytes one way: 76 Gbit/s for ``SEND_S``."""

DOOR_COUNT_MAX = 2
"""Connections that dial in for this at a time; one is measured, and the other told to wait."""

GO, BUSY = b"\x01", b"\x02"
_MORE, _LAST = b"\x01" + bytes(BLOCK_SIZE - 1), b"\x00" + bytes(BLOCK_SIZE - 1)
_COUNT = struct.Struct(">QQ")  # bytes, and the nanoseconds in which they came

NO_END = "the measurement has no end"
UNDER_WAY = "another measurement is under way there"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bandwidth of a path, in bits per second."""

    there: int  # from the server that dialled
    back: int


def measure_name(server: ServerId) -> str:
    """Return the TLS name that a server asks for which wants to measure."""
    return server + MEASURE_SUFFIX


class BandwidthMeter:
    """Both ends of measurements, of one server."""

    def __init__(self, contexts: TlsContexts) -> None:
        """Make it; ``contexts`` has the identity that this server shows."""
        self._contexts = contexts
        self._one = threading.Lock()
        self._dialling = trio.CapacityLimiter(1)
        self._doors = trio.CapacityLimiter(DOOR_COUNT_MAX)

    @property
    def has_room(self) -> bool:
        """Return whether one more connection may dial in."""
        return self._doors.available_tokens > 0

    async def measure(self, peer: ServerId, address: Address) -> Speeds:
        """Measure the way to ``peer`` and back, within about a second.

        Raises:
            NotNowError: when one of both is in another measurement.
            UnreachableError: when there is no such way, or it is too slow to be measured.
            AuthenticationError: when another server answers there.
        """
        identity = self._contexts.identity
        dial = partial(self._exclusively, partial(_dial, identity, peer, address))
        try:
            return await trio.to_thread.run_sync(
                dial, abandon_on_cancel=True, limiter=self._dialling
            )
        except OSError as error:
            what = "the way between these servers could not be measured"
            raise UnreachableError(what, why=explain(error)) from error

    async def serve(self, sock: socket.socket, members: frozenset[ServerId]) -> ServerId:
        """Serve as the other end for a member that has dialled; return the member's id.

        Raises:
            AuthenticationError: when it is none of ``members``.
            OSError: when it hangs up, or something takes too long.
        """
        serve = partial(_serve, self._contexts.identity, sock, members, self._one)
        return await trio.to_thread.run_sync(serve, abandon_on_cancel=True, limiter=self._doors)

    def _exclusively(self, dial: Callable[[], Speeds]) -> Speeds:
        if not self._one.acquire(blocking=False):
            raise NotNowError("another measurement is under way on this server")
        try:
            return dial()
        finally:
            self._one.release()


# --- in threads ----------------------------------------------------------------------------------


def _dial(identity: Identity, peer: ServerId, address: Address) -> Speeds:
    context = peer_client_context(identity)
    context.check_hostname = False  # the name says what for; whose certificate it is, see below
    target = address.host, address.port
    with (
        socket.create_connection(target, timeout=STEP_S) as tcp,
        context.wrap_socket(tcp, server_hostname=measure_name(peer)) as tls,
    ):
        if server_of(tls.getpeercert()) != peer:
            raise AuthenticationError("another server answers at that address")
        if _exactly(tls, len(GO)) != GO:
            raise NotNowError("the way between these servers was not measured", why=UNDER_WAY)
        _send(tls)
        there = _rate(*_COUNT.unpack(_exactly(tls, _COUNT.size)))
        return Speeds(there, _rate(*_receive(tls)))


def _serve(
    identity: Identity, sock: socket.socket, members: frozenset[ServerId], one: threading.Lock
) -> ServerId:
    sock.settimeout(STEP_S)
    with sock, peer_server_context(identity).wrap_socket(sock, server_side=True) as tls:
        peer = server_of(tls.getpeercert())
        if peer is None or peer not in members:
            raise AuthenticationError("it is no member of the pool that wants to measure")
        if not one.acquire(blocking=False):
            tls.sendall(BUSY)
            return peer
        try:
            tls.sendall(GO)
            tls.sendall(_COUNT.pack(*_receive(tls)))
            _send(tls)
        finally:
            one.release()
        return peer


def _send(tls: socket.socket) -> None:
    began, left = time.monotonic(), SIZE_MAX // BLOCK_SIZE
    while time.monotonic() < began + SEND_S and left > 1:
        _send_block(tls, _MORE, began + LIMIT_S)
        left -= 1
    _send_block(tls, _LAST, began + LIMIT_S)


def _send_block(tls: socket.socket, block: bytes, end: float) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[tls.send(rest) :]
        if time.monotonic() > end:
            raise TimeoutError(NO_END)


def _receive(tls: socket.socket) -> tuple[int, int]:
    """Receive until the last block; return the bytes after the first ones, and their time in ns."""
    block = memoryview(bytearray(BLOCK_SIZE))
    began = first = total = 0
    while True:
        filled = 0
        while filled < BLOCK_SIZE:
            count = tls.recv_into(block[filled:])
            if not count:
                raise ConnectionResetError("it hung up")
            filled += count
            now = time.monotonic_ns()
            if not began:
                began, first = now, count
            if now - began > LIMIT_S * 1e9:
                raise TimeoutError(NO_END)
        total += filled
        if block[0] == _LAST[0]:
            return total - first, max(time.monotonic_ns() - began, 1)
        if total > SIZE_MAX:
            raise TimeoutError(NO_END)


def _exactly(tls: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = tls.recv(size - len(data))
        if not more:
            raise ConnectionResetError("it hung up")
        data += more
    return data


def _rate(size: int, took_ns: int) -> int:
    if not 0 < size <= SIZE_MAX or took_ns <= 0:
        raise GpupoolError("the other server counted wrongly")
    return size * 8 * 1_000_000_000 // took_ns
