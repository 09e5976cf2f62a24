"""The control server of one machine: one port for clients, peers and data connections.

The logic is ``controller.Controller``; this gives it sockets, a log and a host. How to use it::

    server = ControlServer(
        controller, replicated_log, authorities=authorities, links=links, log=log
    )
    await nursery.start(server.serve, listeners)

It promises one call: ``follow(servers, voters)`` whenever the table's membership may have changed
(for ``RaftDriver.set_servers`` and ``reconcile_voters``). Before ``serve``, the host must have
killed every worker of an earlier incarnation.
"""

import logging
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
from gpupool.remoting.server.client_streams import ClientStreams
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.listener.accept_queue import AcceptQueue
from gpupool.remoting.server.listener.router import Router, WebDoor
from gpupool.remoting.server.policy_compiler import PolicyCompiler
from gpupool.remoting.server.proposer import Propose
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.server.view_service import make_beside_the_loop
from gpupool.remoting.transport.authority.server_authorities import ServerAuthorities
from gpupool.remoting.transport.failures import RateLimitedLog, explain
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport

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
        while True:
            self._wake = trio.Event()
            state = self._machine.state
            if followed is not state.servers:
                followed = state.servers
                self._follow(tuple(state.servers), state.voters())
                self._links.drop_outdated()
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
