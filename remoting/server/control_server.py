"""The control server of one machine: one port for clients, peers and data connections.

The logic is ``controller.Controller``; this gives it sockets, a log and a host. How to use it::

    server = ControlServer(
        controller, replicated_log, authorities=authorities, links=links, log=log
    )
    await nursery.start(server.serve, listeners)

It promises one call: ``follow(servers, voters)`` whenever the table's membership may have changed
(for ``RaftDriver.set_servers`` and ``reconcile_voters``). Before ``serve``, the host must have
killed every worker of an earlier incarnation.

**The streams of the clients.** Each is read when it is its user's turn, and has a task that writes.
A client's message is not decoded before its turn. A message to a client waits in an outbox with a
bound; a client that does not read is hung up on.

All control messages are handled in one thread, which also keeps this server in touch with the
others. A user with many connections could keep it busy with theirs alone: each connection
may have sent hundreds at once. So a message is handled at once only while messages take less than
half of the time. Else it waits in the line of its user. ``Turns.give`` goes round the users, takes
one message of each, and lets the other tasks of the thread run every ``STEP_S``.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from gpupool.pool.clock_view import clock_problems
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.ports import Outcome, ReplicatedLog
from gpupool.pool.record_query import AskRecords, records_of_nobody
from gpupool.pool.transitions.policy_versions import Draft
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.view_encoding import MadeView, ViewOrder
from gpupool.remoting.server.actions import (
    Action,
    AskKey,
    AskUsage,
    CompilePolicy,
    Hangup,
    KillLease,
    MakeCa,
    MakeView,
    Send,
    StartSession,
)
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.listener.accept_queue import AcceptQueue
from gpupool.remoting.server.listener.router import Router, WebDoor
from gpupool.remoting.server.policy_compiler import PolicyCompiler
from gpupool.remoting.server.proposer import Propose
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.server.view_service import make_beside_the_loop
from gpupool.remoting.transport.authority.server_authorities import ServerAuthorities
from gpupool.remoting.transport.connections import GONE, RateLimitedLog, explain, within
from gpupool.remoting.transport.message_stream import MessageStream
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport

# --- the streams of the clients -------------------------------------------------------------------

STEP_S = 0.004
"""Messages are handled for so long in one step of the loop, and the last one to its end."""

PART = 0.5
"""The part of the time that messages may take before they wait in lines."""


class _Turn:
    """A message that waits."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work: Callable[[], bool] | None = work
        self.done = trio.Event()
        self.result = False
        self.error: BaseException | None = None

    def take(self) -> None:
        work, self.work = self.work, None
        if work is None:
            return  # nobody waits for it any more
        try:
            self.result = work()
        except GONE as error:
            self.error = error  # of the connection; others end the server, as anywhere else
        finally:
            self.done.set()


class Turns:
    """The lines of all users. Each connection has one message in them at most."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without messages; ``clock`` measures the work."""
        self._clock = clock
        self._lines: dict[str, deque[_Turn]] = {}  # the user whose turn it is comes first
        self._asked = trio.Event()
        self._used_s, self._at = 0.0, clock()

    async def take(self, user: str, work: Callable[[], bool]) -> bool:
        """Run ``work`` in the user's turn, and return its result; its exceptions propagate.

        A user is any text; strangers have texts of their own.
        """
        if not self._lines and self._has_time():
            began = self._clock()
            try:
                return work()
            finally:
                self._used_s += self._clock() - began
        turn = _Turn(work)
        self._lines.setdefault(user, deque()).append(turn)
        self._asked.set()
        try:
            await turn.done.wait()
        finally:
            turn.work = None
        if turn.error is not None:
            raise turn.error
        return turn.result

    async def give(self) -> None:
        """Give turns, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._lines:
                await trio.lowlevel.checkpoint()
                end = self._clock() + STEP_S
                while self._lines and self._clock() < end:
                    self._give_one()

    def _give_one(self) -> None:
        user = next(iter(self._lines))
        line = self._lines.pop(user)
        turn = line.popleft()
        if line:
            self._lines[user] = line  # behind the others
        turn.take()

    def _has_time(self) -> bool:
        now = self._clock()
        self._used_s = max(0.0, self._used_s - (now - self._at) * PART)
        self._at = now
        return self._used_s < STEP_S


@dataclass(eq=False, slots=True)
class _Served:
    """One client connection."""

    number: int
    who: str
    outbox: trio.MemorySendChannel[Send | None]
    scope: trio.CancelScope
    dismissed: bool = False  # it read nothing, so nothing more is for it


class ClientStreams:
    """See the module.

    Args:
        controller: gets what arrives.
        do: carries out its actions.
        settings: have the bounds.
        log: of connections that end.
    """

    def __init__(
        self,
        controller: Controller,
        do: Callable[[list[Action]], None],
        *,
        settings: ServerSettings,
        log: RateLimitedLog,
    ) -> None:
        self._controller, self._do = controller, do
        self._settings, self._log = settings, log
        self._numbers, self._served = itertools.count(1), dict[int, _Served]()
        self.turns = Turns()

    def __len__(self) -> int:
        """Return how many connections there are."""
        return len(self._served)

    async def serve(
        self, stream: trio.abc.Stream, who: str, proven: Callable[[], None] = lambda: None
    ) -> None:
        """Serve one client over a stream that needs no more authentication of this server.

        The stream's first message must come within ``unauthenticated_timeout_s``; returns, and
        closes the stream, when either side is done with it. ``proven`` is called once the client
        has shown a good token.
        """
        number = next(self._numbers)
        outbox, queue = trio.open_memory_channel[Send | None](self._settings.outbox_count_max)
        served = _Served(number, who, outbox, trio.CancelScope())
        connection = MessageStream(stream, Connection(End.SERVER))
        reason = ""
        try:
            async with connection:
                with served.scope:
                    self._served[number] = served
                    self._do(self._controller.opened(number))
                    # A stranger has one task, and an end of his costs no group of errors.
                    limit_s = self._settings.unauthenticated_timeout_s
                    first = await within(limit_s, connection.receive)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._write, connection, queue, nursery.cancel_scope)
                        if first is not None:
                            await self._read(served, connection, first, proven)
                        nursery.cancel_scope.cancel()
        except* GONE as group:
            reason = explain(group)
        finally:
            del self._served[number]
            self._do(self._controller.closed(number))
        if reason:
            self._log.say(f"lost {who}: {reason}")

    def send(self, action: Send) -> None:
        """Put a message into the outbox of its client, if that is still there."""
        served = self._served.get(action.connection)
        if served is None or served.dismissed:
            return
        # A client that reads slowly gets the next update instead of this one.
        is_update = m.type_of(action.message) in (m.Update, m.TelemetryUpdate)
        if is_update and served.outbox.statistics().current_buffer_used:
            return
        try:
            served.outbox.send_nowait(action)
        except trio.WouldBlock:
            self._log.say(f"hung up on {served.who}: it reads nothing")
            served.dismissed = True
            served.scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # on its way out; ``closed`` follows

    def hang_up(self, action: Hangup) -> None:
        """Close a connection after the messages in its outbox."""
        served = self._served.get(action.connection)
        if served is None:
            return
        if action.reason:
            self._log.say(f"hung up on {served.who}: {action.reason}")
        try:
            served.outbox.send_nowait(None)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            served.scope.cancel()

    async def _read(
        self,
        served: _Served,
        connection: MessageStream,
        first: tuple[int, m.Message],
        proven: Callable[[], None],
    ) -> None:
        def handle(received: tuple[int, m.Message] | None) -> bool:
            if received is None:
                return False
            self._do(self._controller.received(served.number, *received))
            return True

        def handle_next() -> bool:
            return handle(connection.next_arrived())

        address = served.who.rpartition(":")[0]
        await self.turns.take(address, partial(handle, first))
        user = self._controller.user_of(served.number)
        if user is not None:
            proven()
        while await self.turns.take(user or address, handle_next) or await connection.read():
            pass

    async def _write(
        self,
        connection: MessageStream,
        queue: trio.MemoryReceiveChannel[Send | None],
        scope: trio.CancelScope,
    ) -> None:
        async for action in queue:
            if action is None:
                break
            await connection.send(action.call, action.message)
        scope.cancel()


# --- the server -----------------------------------------------------------------------------------

CLOCKS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundWork:
    """The work that takes too long for the event loop."""

    compile_policy: Callable[[bytes, int], Awaitable[Draft]] = field(
        default_factory=lambda: PolicyCompiler().compile
    )
    make_view: Callable[[ViewOrder], Awaitable[MadeView]] = make_beside_the_loop
    ask_records: AskRecords = records_of_nobody


class ControlServer:
    """See the module."""

    _nursery: trio.Nursery | None = None

    def __init__(
        self,
        controller: Controller,
        replicated_log: ReplicatedLog,
        *,
        authorities: ServerAuthorities,
        links: PeerTransport,
        log: logging.Logger,
        settings: ServerSettings | None = None,
        background: BackgroundWork | None = None,
        follow: Callable[[Sequence[ServerId], Sequence[ServerId]], None] = lambda _s, _v: None,
        web: WebDoor | None = None,
    ) -> None:
        """Make a server that does not serve yet; see the module for the arguments."""
        context = controller.context
        self.controller, self._replicated_log = controller, replicated_log
        self.authorities, self._links = authorities, links
        self._machine, self._host, self._clock = context.machine, context.host, context.clock
        self._log, self._rate_limited_log = log, RateLimitedLog(log, self._clock)
        self._settings, self._follow, self._web = settings or ServerSettings(), follow, web
        self._background = background or BackgroundWork()
        self._clock_problems, self._killing = dict[str, str](), set[LeaseId]()
        self._clocks_at = self._asleep_until = float("-inf")
        self._wake = trio.Event()
        self.streams = ClientStreams(
            controller, self._do, settings=self._settings, log=self._rate_limited_log
        )

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled, and close the listeners then, as trio's own servers do.

        With no listeners, clients come through ``streams``.
        """
        self.controller.context.me.checks.places_of = self._links.book.places
        router = self._router() if listeners else None
        self._links.agreed = self._machine.formats
        self.authorities.connect(self._ca_changed, self._reconcile_now)
        self._machine.on_apply = lambda: self._wake.set()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                if router is not None:
                    nursery.start_soon(router.pace)
                if (renewal := self.authorities.renewal) is not None:
                    nursery.start_soon(renewal.run)
                if router is not None:
                    limit_s = self._settings.unauthenticated_timeout_s
                    queue = AcceptQueue(
                        router, nursery, timeout_s=limit_s, log=self._rate_limited_log
                    )
                    nursery.start_soon(queue.run, listeners)
                nursery.start_soon(self.streams.turns.give)
                task_status.started()
                await self._tick()
            finally:
                # From here on nothing is proposed or started any more; tasks wind down.
                self._nursery = None
                self._machine.on_apply = None

    # --- the beat --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Run the controller's timers, and the consequences of each change of the table."""
        followed: object = None
        followed_ca: object = ()
        agreed = 0
        while True:
            self._wake = trio.Event()
            state = self._machine.state
            if followed is not state.servers:
                followed = state.servers
                self._follow(tuple(state.servers), state.voters())
                if state.formats() != agreed:
                    agreed = state.formats()
                    self._links.drop_outdated()  # a new link is judged when it greets
            self._do(self.controller.poll())
            if followed_ca is not state.authorities and self._nursery is not None:
                followed_ca = state.authorities
                if self.authorities.exchange.is_behind():
                    self._nursery.start_soon(self.authorities.exchange.follow)
            self._report_clocks()
            self._asleep_until = self.controller.wake_at()
            wait_s = max(0.0, self._asleep_until - self._clock.monotonic())
            before = trio.current_time()
            with trio.move_on_after(wait_s) as scope:
                await self._wake.wait()
            if scope.cancelled_caught:
                lag_s = max(0.0, trio.current_time() - before - wait_s)
                self.controller.context.me.measures.loop_lag_s = lag_s
            await trio.lowlevel.checkpoint()

    def _ca_changed(self) -> None:
        self._do(self.controller.ca_changed())

    def _reconcile_now(self) -> None:
        self._do(self.controller.reconcile_now())

    def _report_clocks(self) -> None:
        """Log each clock problem once, and its end."""
        now = self._clock.monotonic()
        if now < self._clocks_at:
            return
        self._clocks_at = now + CLOCKS_EVERY_S
        wrong = clock_problems(self._machine.state, self.controller.context.table_clock.reading())
        for key in wrong.keys() - self._clock_problems.keys():
            self._log.error("%s", wrong[key])
        for key in self._clock_problems.keys() - wrong.keys():
            self._log.warning("no longer so: %s", self._clock_problems[key])
        self._clock_problems = wrong

    def _do(self, actions: list[Action]) -> None:
        """Carry out the controller's actions, without waiting; at the end, do nothing."""
        if self._nursery is None:
            return
        for action in actions:
            match action:
                case Send():
                    self.streams.send(action)
                case Hangup():
                    self.streams.hang_up(action)
                case Propose():
                    decided = partial(self._decided, action.number)
                    self._replicated_log.submit(action.command, action.timeout_s, decided)
                case StartSession():
                    self._nursery.start_soon(self._start_session, action)
                case KillLease():
                    if action.lease not in self._killing:
                        self._killing.add(action.lease)
                        self._nursery.start_soon(self._kill, action)
                case CompilePolicy(number, packed, now_ms):
                    compiled = partial(self.controller.policy_compiled, number)
                    compile_policy = partial(self._background.compile_policy, packed, now_ms)
                    self._nursery.start_soon(self._finish, compile_policy, compiled)
                case AskUsage(number, query):
                    answered = partial(self.controller.usage_answered, number)
                    ask = partial(self._background.ask_records, query)
                    self._nursery.start_soon(self._finish, ask, answered)
                case MakeView(order):
                    make_view = partial(self._background.make_view, order)
                    self._nursery.start_soon(self._finish, make_view, self.controller.view_made)
                case AskKey():
                    self._links.tell(action.peer, Kind.KEY_ASK, self.authorities.key.request())
                case MakeCa(number):
                    made = partial(self.controller.ca_made, number)
                    self._nursery.start_soon(self._finish, self.authorities.exchange.make, made)
        if self.controller.wake_at() < self._asleep_until:
            self._wake.set()

    def _decided(self, number: int, outcome: Outcome) -> None:
        """Take the outcome of an attempt; at the end, do nothing."""
        if self._nursery is not None:
            self._do(self.controller.decided(number, outcome))

    async def _start_session(self, action: StartSession) -> None:
        try:
            result = await self._host.open_session(
                action.lease,
                action.partitions,
                door=action.door,
                program=action.program,
                settings=action.settings,
            )
        except GpupoolError as error:
            result = error
        except OSError as error:
            result = GpupoolError("no worker could be started", why=explain(error))
        if isinstance(result, GpupoolError):
            self._rate_limited_log.say(f"no session for lease {action.lease.id:x}: {result}")
        self._do(self.controller.session_opened(action.number, result))

    async def _finish(
        self, work: Callable[[], Awaitable[Any]], take: Callable[[Any], list[Action]]
    ) -> None:
        """Do something that takes long, and tell the controller of its result or its error."""
        try:
            result = await work()
        except GpupoolError as error:
            result = error
        self._do(take(result))

    async def _kill(self, action: KillLease) -> None:
        try:
            await self._host.kill_lease(action.lease, action.reason)
        finally:
            self._killing.discard(action.lease)
        # The workers are gone, so the lease can be freed at once.
        self._reconcile_now()

    # --- connections -----------------------------------------------------------------------------

    def _router(self) -> Router:
        return Router(
            self.authorities.contexts,
            self._machine,
            self._links,
            self._host,
            settings=self._settings,
            log=self._rate_limited_log,
            clock=self._clock,
            client_count=lambda: len(self.streams),
            serve_client=self.streams.serve,
            web=self._web,
        )
