"""Routes each new connection of the one port by its first bytes, read without taking them.

``accept_queue`` has the connections whose opening has not come, or that wait for their turn.

A TLS ClientHello is read by OpenSSL itself, up to the server name in it; nothing is answered. So
the descriptor can still be handed to a worker, whose own TLS then starts from the first byte.
"""

import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol, cast

import trio

from gpupool.pool.errors import GpupoolError, RemoteProtocolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.protocol.sessions import SessionHost
from gpupool.remoting.server.listener.preauth_limits import Pauses, Place, PreauthLimits, Stage
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.client_tls import (
    CONTROL_NAME,
    MEASURE_SUFFIX,
    NEWEST_CONTROL_NAME,
    NEWEST_SERVER_SUFFIX,
    SERVER_SUFFIX,
    SESSION_SUFFIX,
)
from gpupool.remoting.transport.connections import (
    GONE,
    RateLimitedLog,
    explain,
    free_tls,
    tune,
    within,
)
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.peer_dial import PEER_TIMEOUT_S, proven_peer
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import TlsContexts

RECEIVE_SIZE = 16_384

TlsStream = trio.SSLStream[trio.SocketStream]


class Handshake:
    """A handshake that was begun outside the loop, and the stream that it is for."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        """Prepare to be the server; the caller goes on to own the socket."""
        self._context = context
        self._sock = sock
        transport = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.stream: TlsStream = trio.SSLStream(
            transport, cast("ssl.SSLContext", self), server_side=True, https_compatible=True
        )

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **words: Any
    ) -> ssl.SSLObject:
        """Keep the stream's BIOs and TLS object; this object stands in for its SSL context."""
        self._incoming, self._outgoing = incoming, outgoing
        self._tls = self._context.wrap_bio(incoming, outgoing, **words)
        return self._tls

    def begin(self, size: int) -> ssl.SSLError | OSError | None:
        """Take ``size`` bytes of the connection and answer them; return an error or None.

        An exception would keep its thread's frames alive, and the memory of TLS with them.
        """
        try:
            self._incoming.write(self._sock.recv(size, socket.MSG_DONTWAIT))
        except OSError as error:
            return error.with_traceback(None)
        return self._step() or self._send()

    def hear(self) -> ssl.SSLError | None:
        """Take the bytes that have come since; return the error if the other end has ended."""
        data = self._sock.recv(RECEIVE_SIZE, socket.MSG_DONTWAIT)
        if data:
            self._incoming.write(data)
            return None
        self._incoming.write_eof()
        return self._step()

    def link(self) -> LinkStream:
        """Return the connection as servers use it between them, once the handshake is over."""
        transport, tls = self.stream.transport_stream, self._tls
        link = LinkStream(transport, tls, self._incoming, self._outgoing)
        self.free()
        return link

    def free(self) -> None:
        """Free the memory of TLS now."""
        free_tls(self.stream)
        vars(self).clear()

    def _step(self) -> ssl.SSLError | None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            return error.with_traceback(None)
        return None

    def _send(self) -> OSError | None:
        answer = self._outgoing.read()
        try:
            sent = self._sock.send(answer, socket.MSG_DONTWAIT)
        except OSError as error:
            return error.with_traceback(None)
        return None if sent == len(answer) else BlockingIOError("its buffer is full")


PEEK_SIZE_MAX = 4096
"""OpenSSL 3.5 sends 1.6 KiB with its post-quantum key share; the largest seen are below 2 KiB."""

TLS_RECORD = 0x16
PLAIN_MAGIC = b"gpupool\x01"
SESSION_SIZE = 16
RECORD_HEADER_SIZE = 5
RECORD_COUNT_MAX = 2
_SESSION_NAME = re.compile(r"[0-9a-f]{32}")
_SERVER_NAME = re.compile(r"[0-9a-z]{1,32}")


@dataclass(frozen=True, slots=True)
class ToControl:
    """A client that wants to talk to the control server."""

    newest: bool = False  # it trusts the CA that signs, perhaps no other one


@dataclass(frozen=True, slots=True)
class ToServer:
    """A peer that wants to reach this server id."""

    server: ServerId
    newest: bool = False


@dataclass(frozen=True, slots=True)
class ToMeasure:
    """A peer that wants to measure the way to this server id; see ``transport/bandwidth``."""

    server: ServerId


@dataclass(frozen=True, slots=True)
class ToSession:
    """The data connection of a session."""

    session: bytes


@dataclass(frozen=True, slots=True)
class ToWeb:
    """An HTTPS client: a browser, or Prometheus."""

    name: str  # that was asked for


@dataclass(frozen=True, slots=True)
class ToPlainHttp:
    """A plain HTTP client on the HTTPS port."""

    opening: bytes


Route = ToControl | ToServer | ToMeasure | ToSession | ToWeb | ToPlainHttp

HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
HTTPS_ONLY = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 36\r\n"
    b"Connection: close\r\n\r\nThis port speaks https and no http.\n"
)
OWN_DOMAIN = "gpupool"
PLAIN_ANSWER_S = 1.0


class WebDoor(Protocol):
    """Takes the connections of HTTPS clients."""

    async def serve(self, stream: trio.SocketStream, prove: Callable[[], None]) -> None:
        """Hand the untouched connection over, and return when it has ended.

        ``prove`` is called when a good token came over it.

        Raises:
            RemoteProtocolError: when nobody takes it.
        """
        ...


ServeClient = Callable[[TlsStream, str, Callable[[], None]], Awaitable[None]]
"""Serves one client: takes its stream, its address for logs, and a callback for when it is
authenticated."""


def route(data: bytes) -> Route | None:
    """Return where a connection that begins with ``data`` wants to go; None: not known yet.

    Raises:
        RemoteProtocolError: when it can never become one of ours.
    """
    if not data:
        return None
    if data[0] == TLS_RECORD:
        name = client_hello_name(data)
        return None if name is None else _route_name(name)
    if data.startswith(HTTP_METHODS):
        return ToPlainHttp(data[:8])
    magic = data[: len(PLAIN_MAGIC)]
    if magic != PLAIN_MAGIC[: len(magic)] and not _may_become_http(data):
        raise RemoteProtocolError("not a gpupool connection", why=f"it begins with {_shown(data)}")
    if len(data) < len(PLAIN_MAGIC) + SESSION_SIZE:
        return None
    return ToSession(bytes(data[len(PLAIN_MAGIC) : len(PLAIN_MAGIC) + SESSION_SIZE]))


def _may_become_http(data: bytes) -> bool:
    return any(method.startswith(data) for method in HTTP_METHODS)


def _route_name(name: str) -> Route:
    if name.rpartition(".")[2] != OWN_DOMAIN:
        return ToWeb(name)
    if name in (CONTROL_NAME, NEWEST_CONTROL_NAME):
        return ToControl(newest=name == NEWEST_CONTROL_NAME)
    label, dot, rest = name.partition(".")
    if dot + rest in (SERVER_SUFFIX, NEWEST_SERVER_SUFFIX) and _SERVER_NAME.fullmatch(label):
        return ToServer(ServerId(label), newest=dot + rest == NEWEST_SERVER_SUFFIX)
    if dot + rest == MEASURE_SUFFIX and _SERVER_NAME.fullmatch(label):
        return ToMeasure(ServerId(label))
    if dot + rest == SESSION_SUFFIX and _SESSION_NAME.fullmatch(label):
        return ToSession(bytes.fromhex(label))
    raise RemoteProtocolError("not a gpupool connection", why=f"it asks for {name[:80]!r}")


class _PeekingTls(ssl.SSLObject):
    """Notes the name in a ClientHello; each has its own, because threads parse side by side."""

    asked_for: str | None = None


def _note_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
    assert isinstance(tls, _PeekingTls)
    tls.asked_for = name or ""
    return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # enough seen: stop here


@lru_cache(maxsize=1)
def _peeking_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # so that an old client gets a clear refusal
    context.sslobject_class = _PeekingTls
    context.sni_callback = _note_name
    return context


def client_hello_name(data: bytes) -> str | None:
    """Return the server name of a TLS ClientHello, "" without one, or None if ``data`` is short.

    Raises:
        RemoteProtocolError: when ``data`` is not the beginning of a ClientHello.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(data)
    tls = _peeking_context().wrap_bio(incoming, outgoing, server_side=True)
    assert isinstance(tls, _PeekingTls)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return tls.asked_for
    except ssl.SSLError as error:
        if tls.asked_for is not None:
            return tls.asked_for
        raise RemoteProtocolError("malformed TLS", why=error.reason or "") from error
    raise RemoteProtocolError("malformed TLS")


class Opening:
    """The first bytes of one connection, parsed only when whole TLS records of it are there.

    OpenSSL parses an opening anew each time, and a stranger must not have it parsed for each byte.
    """

    def __init__(self) -> None:
        self.needed = 1  # bytes before ``route`` can say more
        self._end = 0  # of the records that were parsed
        self._records = 0

    def has_record(self, data: bytes) -> bool:
        """Return whether ``data`` begins with a whole TLS record, which is costly to parse."""
        header = data[:RECORD_HEADER_SIZE]
        if len(header) < RECORD_HEADER_SIZE or header[0] != TLS_RECORD:
            return False
        return len(data) >= RECORD_HEADER_SIZE + int.from_bytes(header[3:], "big")

    def route(self, data: bytes) -> Route | None:
        """Return where a connection wants to go that begins with ``data``; None: not known yet.

        Raises:
            RemoteProtocolError: when it is not one of ours within ``PEEK_SIZE_MAX`` bytes.
        """
        if data[0] != TLS_RECORD:
            self.needed = len(PLAIN_MAGIC) + SESSION_SIZE
            return route(data)
        header = self._end + RECORD_HEADER_SIZE
        if len(data) < header:
            self.needed = header
            return None
        end = header + int.from_bytes(data[header - 2 : header], "big")
        if end > PEEK_SIZE_MAX or self._records == RECORD_COUNT_MAX:
            raise RemoteProtocolError("not a gpupool connection", why="its opening is too long")
        if len(data) < end:
            self.needed = end
            return None
        self._records, self._end, self.needed = self._records + 1, end, end + RECORD_HEADER_SIZE
        return route(data[:end])


@dataclass(eq=False, slots=True)
class Admitted:
    """A connection with a known route that has got its turn."""

    stream: trio.SocketStream
    wanted: Route
    place: Place
    who: str
    deadline: float  # of its handshake
    handshake: Handshake | None = None  # that was begun
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # cancelled to evict it


class Router:
    """Sends each connection to the part that serves it, once its opening is known."""

    def __init__(
        self,
        contexts: TlsContexts,
        machine: PoolMachine,
        links: PeerTransport,
        host: SessionHost,
        *,
        settings: ServerSettings,
        log: RateLimitedLog,
        clock: Clock,
        client_count: Callable[[], int],
        serve_client: ServeClient,
        web: WebDoor | None = None,
    ) -> None:
        self._self_id = contexts.identity.server
        self.contexts = contexts
        self._machine = machine
        self._links = links
        self._host = host
        self._settings = settings
        self._log = log
        self._client_count = client_count
        self._serve_client = serve_client
        self._web = web
        self.limits = PreauthLimits(
            clock,
            total=settings.unauthenticated_count_max,
            per_address=settings.unauthenticated_per_address_max,
            handshakes_per_s=settings.handshakes_per_s,
            tls_count_max=settings.unauthenticated_tls_count_max,
        )
        self._requested = trio.Event()

    async def pace(self) -> None:
        """Start the handshakes that wait as their turns come; never returns."""
        pauses = Pauses()
        while True:
            self._requested = trio.Event()
            if self.limits.release() == float("inf"):  # nobody waits
                await self._requested.wait()
                continue
            wake_at = trio.current_time() + pauses.next_s
            await trio.sleep_until(wake_at)
            pauses.woke_up(trio.current_time() - wake_at)

    def request_turn(self, place: Place, go: Callable[[], None]) -> None:
        """Call ``go`` when a connection may begin its handshake: here, or later."""
        self.limits.request_handshake(place, go)
        self._requested.set()

    def check(self, wanted: Route) -> None:
        """Refuse a connection that can get nowhere before anything is done for it.

        Raises:
            RemoteProtocolError: when it wants what this server has not.
        """
        if isinstance(wanted, ToWeb) and self._web is None:
            why = f"it asks for {wanted.name[:80]!r}"
            raise RemoteProtocolError("not a gpupool connection", why=why)
        if isinstance(wanted, ToPlainHttp) and self._web is None:
            why = f"it begins with {_shown(wanted.opening)}"
            raise RemoteProtocolError("not a gpupool connection", why=why)
        if (
            isinstance(wanted, ToControl)
            and self._client_count() >= self._settings.client_count_max
        ):
            raise RemoteProtocolError("too many clients")
        if isinstance(wanted, ToServer | ToMeasure) and wanted.server != self._self_id:
            raise RemoteProtocolError("it looks for another server", why=wanted.server)
        if isinstance(wanted, ToMeasure) and not self._links.meter.has_room:
            raise RemoteProtocolError("too many servers measure the way to this one")

    async def serve(self, admitted: Admitted) -> None:
        """Serve one connection until it ends."""
        who = admitted.who
        try:
            with admitted.scope:
                await self._serve(admitted)
            if admitted.scope.cancelled_caught:
                self._log.say(f"refused {who}: too many connections that have proven nothing")
        except GONE as error:
            self._log.say(f"refused {who}: {explain(error)}")
        finally:
            admitted.stream.socket.close()  # does nothing to a descriptor that was handed over
            self.limits.leave(admitted.place)

    async def _serve(self, admitted: Admitted) -> None:
        stream, place, who = admitted.stream, admitted.place, admitted.who
        match admitted.wanted:
            case ToSession(session):
                self.limits.leave(place)
                await self._hand_over(session, stream, who)
            case ToControl():
                tune(stream.socket, timeout_s=self._settings.client_timeout_s)
                handshake = await _shake_hands(admitted)
                place.stage = Stage.GREETING
                try:
                    prove = partial(self.limits.prove, place)
                    await self._serve_client(handshake.stream, who, prove)
                finally:
                    handshake.free()
            case ToServer():
                tune(stream.socket, timeout_s=PEER_TIMEOUT_S)
                handshake = await _shake_hands(admitted)
                await self._serve_peer(handshake.link(), place, who)
            case ToMeasure():
                self.limits.leave(place)
                await self._measure(stream, who)
            case ToWeb():
                assert self._web is not None
                await self._web.serve(stream, lambda: self.limits.prove(place))
            case ToPlainHttp():
                with trio.move_on_after(PLAIN_ANSWER_S):
                    await _say_https(stream)
                await trio.aclose_forcefully(stream)

    async def _serve_peer(self, stream: LinkStream, place: Place, who: str) -> None:
        """Serve a peer on a handshaken, mutual TLS connection."""
        peer = proven_peer(stream)
        if peer is None:
            self._log.say(f"refused {who}: its certificate names no server")
            await trio.aclose_forcefully(stream)
            return
        self.limits.prove(place)
        if peer in self._machine.state.removed and not self._links.wants(peer):
            await self._links.reject(stream, peer)
        else:
            await self._links.accept(stream, peer)

    async def _measure(self, stream: trio.SocketStream, who: str) -> None:
        """Give the untouched descriptor to a thread that is the other end of a measurement."""
        if not self._links.meter.has_room:  # it came with others
            await trio.aclose_forcefully(stream)
            return
        members = frozenset(self._machine.state.servers)
        try:
            peer = await self._links.meter.serve(_taken(stream), members)
            self._log.say(f"server {peer} measured the way to this one")
        except (GpupoolError, OSError) as error:
            self._log.say(f"refused {who}: {explain(error)}")

    async def _hand_over(self, session: bytes, stream: trio.SocketStream, who: str) -> None:
        """Give the untouched descriptor to the worker that waits for it."""
        if not self._host.knows_session(session):
            self._log.say(f"refused {who}: no session waits for it")
            await trio.aclose_forcefully(stream)
            return
        descriptor = _taken(stream)
        try:
            await self._host.hand_over(session, descriptor)
        except (GpupoolError, OSError) as error:
            descriptor.close()
            self._log.say(f"refused {who}: {error}")


def _taken(stream: trio.SocketStream) -> socket.socket:
    """Take the descriptor of a connection away from trio."""
    trio.lowlevel.notify_closing(stream.socket)
    return socket.socket(fileno=stream.socket.detach())


async def _say_https(stream: trio.SocketStream) -> None:
    """Answer a request, which must be taken first: a socket with unread bytes is reset."""
    await stream.receive_some(PEEK_SIZE_MAX)
    await stream.send_all(HTTPS_ONLY)
    await stream.send_eof()
    while await stream.receive_some(PEEK_SIZE_MAX):
        pass


async def _shake_hands(admitted: Admitted) -> Handshake:
    """Go on with the handshake that the thread beside the loop has begun."""
    handshake = admitted.handshake
    assert handshake is not None
    left_s = max(0.0, admitted.deadline - trio.current_time())
    try:
        await within(left_s, handshake.stream.do_handshake)
    except BaseException:
        handshake.free()
        raise
    return handshake


def caller(address: object) -> str:
    """Return the other end's address as accept() tells it, for logs."""
    if not isinstance(address, tuple):
        return "a local client"
    host, port, *_ = cast("tuple[object, ...]", address)
    return f"{host}:{port}"


def _shown(data: bytes) -> str:
    """Return the first bytes of a stranger as one can read them."""
    text = data[:8].decode("ascii", "replace")
    return f'"{text}"' if text.isascii() and text.isprintable() else data[:8].hex(" ")
