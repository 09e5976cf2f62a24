"""One connection between two servers: its frame kinds, its send queue, its measurements.

A push is a question for the clock with many bytes behind it, which its receiver passes over: the
answer says that they have arrived. Answers come in the order of the questions.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

import trio

from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.framing import frame_bytes
from gpupool.remoting.transport.connections import tcp_info
from gpupool.remoting.transport.link_clock import LinkClock
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.pki import CSR_SIZE_MAX

QUEUE_SIZE_MAX = 32 * 1024 * 1024
QUEUE_COUNT_MAX = 16_384
"""A peer that reads nothing may make us keep this much; then Raft is told that it is gone."""

WRITE_SIZE_MAX = 256 * 1024
"""Small frames are sent together up to here: one TLS record each would cost more than Raft."""

ASKS_MAX = 64
PUSH_SIZE_MAX = 1 << 20
KEY_SIZE_MAX = 4096
CERTIFICATE_SIZE_MAX = 8192

_INFO = struct.Struct("=60x I 36x I 32x I")
"""Path MTU, retransmits, segments sent."""


class Kind(IntEnum):
    """The kind of a frame between peers."""

    RAFT = 0
    GREETING = 1
    KEY_ASK = 2
    KEY_GIVE = 3
    REMOVED = 4  # the receiver is not a member of the pool any more
    CLOCK_ASK = 5
    CLOCK_GIVE = 6
    CERTIFICATE_ASK = 7
    CERTIFICATE_GIVE = 8  # empty when the asked server does not sign it
    NEXT_KEY_GIVE = 9  # a CA that nobody trusts yet: its certificate and its key
    NEXT_KEY_KEPT = 10  # the SHA-256 of that certificate: its key is on the disk
    WEB_ASK = 11  # a request for the certificate of its exporter
    WEB_GIVE = 12  # empty when the asked server does not sign it
    ADDRESSES = 13  # of servers, as ``address_book`` has them


Take = Callable[[ServerId, bytes], bytes | None]
"""Takes the data of a peer's frame; returns the answer, if the frame has one."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A frame of the exchange of keys and certificates, which ``PeerTransport.takes`` handles."""

    size_max: int
    answered_by: Kind | None = None
    says_no: bool = False  # an empty answer is sent


DECLARED: dict[int, Declared] = {
    Kind.KEY_ASK: Declared(KEY_SIZE_MAX, Kind.KEY_GIVE),
    Kind.KEY_GIVE: Declared(KEY_SIZE_MAX),
    Kind.CERTIFICATE_ASK: Declared(CSR_SIZE_MAX, Kind.CERTIFICATE_GIVE, says_no=True),
    Kind.CERTIFICATE_GIVE: Declared(CERTIFICATE_SIZE_MAX),
    Kind.NEXT_KEY_GIVE: Declared(KEY_SIZE_MAX, Kind.NEXT_KEY_KEPT),
    Kind.NEXT_KEY_KEPT: Declared(KEY_SIZE_MAX),
    Kind.WEB_ASK: Declared(CSR_SIZE_MAX, Kind.WEB_GIVE, says_no=True),
    Kind.WEB_GIVE: Declared(CERTIFICATE_SIZE_MAX),
}


@dataclass(eq=False, slots=True)
class PeerLink:
    """One live connection."""

    peer: ServerId
    stream: trio.abc.Stream
    clock: LinkClock
    queue: deque[bytes] = field(default_factory=deque[bytes])
    queue_size: int = 0
    more: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    greeted: bool = False
    version: int = VERSION  # of the other side
    asks: deque[int] = field(default_factory=lambda: deque[int](maxlen=ASKS_MAX))
    """The bytes behind each question that is not answered yet; 0: only the clock was asked for."""
    pushed_at: float | None = None  # trio's time; None: no push is under way
    arrived: trio.Event = field(default_factory=trio.Event)  # the push that is under way

    def put(self, data: bytes) -> bool:
        """Write frames or queue them; False when too many wait for a peer that reads nothing."""
        stream = self.stream
        if isinstance(stream, LinkStream) and not self.queue and stream.send_now(data):
            if stream.has_rest:
                self.more.set()
            return True
        if len(self.queue) >= QUEUE_COUNT_MAX or self.queue_size + len(data) > QUEUE_SIZE_MAX:
            return False
        self.queue.append(data)
        self.queue_size += len(data)
        self.more.set()
        return True

    def take(self) -> bytes:
        """Return the next bytes to write: small frames together, a large one alone."""
        parts: list[bytes] = []
        size = 0
        while self.queue and (not parts or size + len(self.queue[0]) <= WRITE_SIZE_MAX):
            parts.append(self.queue.popleft())
            size += len(parts[-1])
        self.queue_size -= size
        return b"".join(parts)

    @property
    def has_more(self) -> bool:
        """True while something waits for the task that writes."""
        return bool(self.queue) or (isinstance(self.stream, LinkStream) and self.stream.has_rest)

    def push(self, size: int) -> bool:
        """Send ``size`` bytes for the peer to confirm; False when a push is under way."""
        if self.pushed_at is not None or not self.greeted or len(self.asks) >= ASKS_MAX:
            return False
        if not self.put(frame_bytes(Kind.CLOCK_ASK, bytes(size), size_max=PUSH_SIZE_MAX)):
            return False
        self.asks.append(size)
        self.pushed_at, self.arrived = trio.current_time(), trio.Event()
        return True

    def answered(self) -> bool:
        """Take an answer; return whether it is that of a push, which has arrived."""
        if not (self.asks and self.asks.popleft()):
            return False
        self.pushed_at = None
        self.arrived.set()
        return True

    def path(self) -> "LinkPath | None":
        """Ask the kernel about this connection; None where it does not say."""
        stream = self.stream
        while not isinstance(stream, trio.SocketStream):
            stream = getattr(stream, "transport_stream", None)
            if stream is None:
                return None
        found = tcp_info(cast(socket.socket, stream.socket), _INFO)
        return None if found is None else LinkPath(*found)


@dataclass(frozen=True, slots=True)
class LinkPath:
    """The kernel's TCP figures of a link."""

    mtu: int  # bytes, of the whole path
    resent: int  # segments sent again since the link came up
    sent: int  # segments


def why_down(is_replaced: bool, is_member: bool) -> str:
    """Return why a server has ended a link itself."""
    why = "closed by this server" if is_member else "it is no member of the pool"
    return "a newer link took its place" if is_replaced else why
