"""The accept queue: it holds each new connection until its opening has come, and its turn.

An unauthenticated peer must cost little, and most of them never send anything. So a connection that
waits here has no task, no stream and no TLS: it is a socket, a place among the limits and an entry
of one epoll, whose readiness one task awaits for all of them. A TLS opening is parsed when its turn
has come, so none is parsed that nobody would go on with. Connections are accepted and heard in
small batches, so that the server's other tasks have their turns in between.

Bytes are only peeked at. The kernel is told how many to wait for (``SO_RCVLOWAT``), and tells of
new ones and of the other end's end (edge-triggered), so nothing is polled.

Openings are answered in a thread beside the server's loop. To parse an opening and answer it is
most of the cost of an unauthenticated peer. A loop that does it uses up
its share of a busy machine's processors, and then waits for one at each step, with everybody's
commits. An attacker may share the address of somebody who has proven himself. So the loop has
neither a task nor a parser for anybody until the other half of the handshake has come. OpenSSL
works without the interpreter's lock. A handshake begins in that thread, and trio ends it.
"""

import errno
import os
import select
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.fair_access import NetworkTurns
from gpupool.remoting.server.listener.preauth_limits import Place
from gpupool.remoting.server.listener.router import (
    PEEK_SIZE_MAX,
    Admitted,
    Handshake,
    Opening,
    Route,
    Router,
    ToControl,
    ToServer,
    caller,
)
from gpupool.remoting.transport.connections import RateLimitedLog, explain
from gpupool.remoting.transport.pki import TlsContexts


@dataclass(frozen=True, slots=True)
class Contexts:
    """The settings of TLS of one moment, taken on the loop, because a renewal may replace them."""

    control: ssl.SSLContext
    newest_control: ssl.SSLContext
    peer: ssl.SSLContext
    newest_peer: ssl.SSLContext

    @classmethod
    def now(cls, contexts: TlsContexts) -> "Contexts":
        """Return those that new connections take."""
        return cls(
            contexts.control(),
            contexts.control(newest=True),
            contexts.peer_server(),
            contexts.peer_server(newest=True),
        )

    def of(self, wanted: Route) -> ssl.SSLContext | None:
        """Return the settings for a connection; None: this server does no handshake with it."""
        match wanted:
            case ToControl(newest):
                return self.newest_control if newest else self.control
            case ToServer(_, newest):
                return self.newest_peer if newest else self.peer
            case _:
                return None


@dataclass(eq=False, slots=True)
class Begun:
    """Result of an opening; without ``wanted`` and ``error``, more of it is awaited."""

    wanted: Route | None = None
    handshake: Handshake | None = None
    error: RemoteProtocolError | OSError | None = None


Check = Callable[[Route], None]
"""Refuses a connection that can get nowhere, by a ``RemoteProtocolError``."""


def begin(
    sock: socket.socket, opening: Opening, data: bytes, contexts: Contexts, check: Check
) -> Begun:
    """Read and answer the opening of a connection, of which ``data`` was peeked at."""
    begun = Begun()
    try:
        while begun.wanted is None and len(data) >= opening.needed:
            begun.wanted = opening.route(data)
        if begun.wanted is not None:
            check(begun.wanted)
    except RemoteProtocolError as error:
        begun.error = error.with_traceback(None)
        return begun
    context = None if begun.wanted is None else contexts.of(begun.wanted)
    if context is not None:
        try:
            begun.handshake = Handshake(sock, context)
        except OSError as error:  # the other end has gone
            begun.error = error.with_traceback(None)
            return begun
        begun.error = begun.handshake.begin(len(data))
    return begun


Job = tuple[socket.socket, Opening, bytes]


def begin_all(jobs: Sequence[Job], contexts: Contexts, check: Check) -> list[Begun]:
    """Begin some handshakes, one after the other."""
    return [begin(*job, contexts, check) for job in jobs]


ACCEPT_BATCH = 64
HEAR_BATCH = 16
"""Connections that are accepted, and heard, before other tasks get their turn: 2 ms of them. A
kernel with a full queue drops the next ones, so that is emptied soon."""

BEGIN_BATCH = 64
"""Openings that the other thread gets at a time, of all networks in turns: 16 ms of them. On a busy
machine each time is a wait of both threads for a processor, so there should be few."""

GATHER_S = 0.01

EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET

SHORT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
ACCEPT_PAUSE_S = 0.1
"""Seconds to wait when the process is out of descriptors, as trio's own server does."""

OWN_FAULTS = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}
"""Errors of accept() that are not the new connection's."""


@dataclass(eq=False, slots=True)
class _Guest:
    """One connection that waits."""

    sock: socket.socket
    address: tuple[object, ...] | str
    deadline: float
    place: Place
    opening: Opening = field(default_factory=Opening)
    waits: bool = False  # for its turn
    has_turn: bool = False
    low_mark: int = 1
    in_thread: bytes = b""  # its opening, which the other thread has or gets, with the socket
    has_gone: bool = False  # while that had it
    handshake: Handshake | None = None  # that was begun
    wanted: Route | None = None  # once it is known


class AcceptQueue:
    """The connections of one port that wait; see the module."""

    def __init__(
        self, router: Router, nursery: trio.Nursery, *, timeout_s: float, log: RateLimitedLog
    ) -> None:
        """Prepare; each connection is served in ``nursery`` when its turn has come."""
        self._router, self._limits = router, router.limits
        self._nursery = nursery
        self._timeout_s = timeout_s
        self._log = log
        self._epoll = select.epoll()
        self._guests: OrderedDict[int, _Guest] = OrderedDict()  # by descriptor, oldest first
        self._openings = NetworkTurns[_Guest]()  # for the other thread
        self._in_thread: list[_Guest] = []
        self._has_openings = trio.Event()

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Accept connections until cancelled; closes the listeners."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear)
                nursery.start_soon(self._begin)
                nursery.start_soon(self._expire)
                for listener in listeners:
                    nursery.start_soon(self._accept, listener)
        finally:
            for guest in (*self._guests.values(), *self._in_thread):
                self._close(guest)
            self._epoll.close()

    # --- in --------------------------------------------------------------------------------------

    async def _accept(self, listener: trio.SocketListener) -> None:
        descriptor = os.dup(listener.socket.fileno())
        async with listener:
            with socket.socket(fileno=descriptor) as door:
                door.setblocking(False)
                while True:
                    await trio.lowlevel.wait_readable(listener.socket)
                    try:
                        for _ in range(ACCEPT_BATCH):
                            self._enter(*door.accept())
                    except BlockingIOError:
                        await self._gather()
                    except OSError as error:
                        if error.errno in OWN_FAULTS:
                            raise
                        if error.errno in SHORT_OF:
                            self._log.say(f"cannot accept a connection: {error}")
                            await trio.sleep(ACCEPT_PAUSE_S)

    def _enter(self, sock: socket.socket, address: tuple[object, ...] | str) -> None:
        descriptor = sock.fileno()
        host = str(address[0]) if isinstance(address, tuple) else ""
        place = self._limits.enter(host, partial(self._evict, descriptor))
        deadline = trio.current_time() + self._timeout_s
        self._guests[descriptor] = _Guest(sock, address, deadline, place)
        self._epoll.register(descriptor, EVENTS)

    async def _hear(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            told = self._epoll.poll(0, HEAR_BATCH)
            for descriptor, events in told:
                guest = self._guests.get(descriptor)
                if guest is not None:
                    self._hear_one(guest, events)
            if len(told) < HEAR_BATCH:
                await self._gather()

    async def _gather(self) -> None:
        """Let strangers gather when there are many: to wake up for each costs more than they do."""
        if self._limits.is_crowded:
            await trio.sleep(GATHER_S)

    def _hear_one(self, guest: _Guest, events: int) -> None:
        has_ended = bool(events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR))
        if guest.in_thread:
            return  # its events are told anew afterwards
        if guest.waits:
            if has_ended:
                self._remove(guest)
            return
        try:
            if guest.handshake is not None:
                self._go_on(guest, guest.handshake)
                return
            data = guest.sock.recv(PEEK_SIZE_MAX, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = b""
        except OSError as error:
            self._refuse(guest, explain(error))
            return
        if not guest.has_turn and guest.opening.has_record(data):
            guest.waits = True
            self._router.request_turn(guest.place, partial(self._take_turn, guest))
        elif guest.has_turn and len(data) >= guest.opening.needed:
            guest.in_thread = data
            self._openings.add(guest.place.network, guest)
            self._has_openings.set()
        elif not self._route(guest, data) and has_ended:
            self._remove(guest)

    def _take_turn(self, guest: _Guest) -> None:
        guest.waits, guest.has_turn = False, True
        self._hear_one(guest, 0)

    # --- handshakes ------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Read and answer the openings of connections in another thread."""
        limiter = trio.CapacityLimiter(1)
        while True:
            await self._has_openings.wait()
            self._has_openings = trio.Event()
            while self._openings.size:
                await self._begin_some(limiter)

    async def _begin_some(self, limiter: trio.CapacityLimiter) -> None:
        """Begin some that are there; nothing of theirs is kept until the next ones come."""
        count = min(BEGIN_BATCH, self._openings.size)
        guests = self._in_thread = [self._openings.pop() for _ in range(count)]
        jobs = [(guest.sock, guest.opening, guest.in_thread) for guest in guests]
        begin = partial(begin_all, jobs, Contexts.now(self._router.contexts))
        found = await trio.to_thread.run_sync(begin, self._router.check, limiter=limiter)
        self._in_thread = []
        for guest, begun in zip(guests, found, strict=True):
            self._answered(guest, begun)

    def _answered(self, guest: _Guest, begun: Begun) -> None:
        guest.handshake, guest.in_thread = begun.handshake, b""
        if guest.has_gone:
            self._close(guest)
            return
        try:
            if begun.error is not None:
                raise begun.error
            if begun.wanted is None:
                self._set_low_mark(guest, guest.opening.needed)
                self._tell_anew(guest)
                return
        except (RemoteProtocolError, OSError) as error:
            self._refuse(guest, explain(error))
            return
        guest.wanted = begun.wanted
        if begun.handshake is None:
            self._admit(guest, begun.wanted)
            return
        self._limits.take_tls(guest.place)
        if guest.low_mark != 1:
            self._set_low_mark(guest, 1)
        self._tell_anew(guest)

    def _tell_anew(self, guest: _Guest) -> None:
        self._epoll.modify(guest.sock.fileno(), EVENTS)

    def _go_on(self, guest: _Guest, handshake: Handshake) -> None:
        """Give a connection a task, now that the other half of its handshake has come."""
        assert guest.wanted is not None
        error = handshake.hear()
        if error is None:
            self._admit(guest, guest.wanted)
        else:
            self._refuse(guest, explain(error))

    def _route(self, guest: _Guest, data: bytes) -> bool:
        """Admit or refuse a connection that begins with ``data``; False: it is not known yet."""
        try:
            while data and len(data) >= guest.opening.needed:
                if (wanted := guest.opening.route(data)) is not None:
                    self._router.check(wanted)
                    self._admit(guest, wanted)
                    return True
            if guest.low_mark != guest.opening.needed:
                self._set_low_mark(guest, guest.opening.needed)
        except (RemoteProtocolError, OSError) as error:
            self._refuse(guest, explain(error))
            return True
        return False

    def _set_low_mark(self, guest: _Guest, size: int) -> None:
        # The kernel tells at once of what is there already.
        guest.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        guest.low_mark = size

    # --- out -------------------------------------------------------------------------------------

    def _admit(self, guest: _Guest, wanted: Route) -> None:
        """Give a connection a separate task."""
        handshake, guest.handshake = guest.handshake, None
        del self._guests[guest.sock.fileno()]
        self._epoll.unregister(guest.sock.fileno())
        try:
            if guest.low_mark != 1:
                self._set_low_mark(guest, 1)
            tls = None if handshake is None else handshake.stream
            if tls is None:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(guest.sock))
            else:
                stream = tls.transport_stream
        except OSError as error:
            guest.sock.close()
            self._limits.leave(guest.place)
            self._log.say(f"refused {caller(guest.address)}: {explain(error)}")
            return
        admitted = Admitted(
            stream,
            wanted,
            guest.place,
            caller(guest.address),
            guest.deadline,
            handshake,
        )
        guest.place.evict = admitted.scope.cancel
        self._nursery.start_soon(self._router.serve, admitted)

    async def _expire(self) -> None:
        """Refuse late connections; all have equal time, so the oldest is the first."""
        while True:
            wake_at = trio.current_time() + self._timeout_s
            while self._guests:
                oldest = next(iter(self._guests.values()))
                if oldest.deadline > trio.current_time():
                    wake_at = oldest.deadline
                    break
                self._refuse(oldest, explain(trio.TooSlowError()))
            await trio.sleep_until(wake_at)

    def _evict(self, descriptor: int) -> None:
        self._refuse(self._guests[descriptor], "too many connections that have proven nothing")

    def _refuse(self, guest: _Guest, why: str) -> None:
        self._log.say(f"refused {caller(guest.address)}: {why}")
        self._remove(guest)

    def _remove(self, guest: _Guest) -> None:
        del self._guests[guest.sock.fileno()]
        self._limits.leave(guest.place)
        if guest.in_thread and not self._openings.remove(guest.place.network, guest):
            # The number must not become another connection's while the other thread has it.
            guest.has_gone = True
            self._epoll.unregister(guest.sock.fileno())
        else:
            self._close(guest)

    def _close(self, guest: _Guest) -> None:
        guest.sock.close()  # which takes it out of the epoll
        if guest.handshake is not None:
            guest.handshake.free()
            guest.handshake = None
