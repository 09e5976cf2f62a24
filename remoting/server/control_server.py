"""The control server of one machine: one port for clients, peers and data connections.

The logic is ``controller.Controller``; this gives it sockets, a log and a host. How to use it::

    server = ControlServer(machine=machine, replicated_log=log, host=host, identity=identity,
                           authority=authority_or_none, links=links, incarnation=incarnation,
                           software=Software(address="10.0.0.4:7470", version="0.1.0"),
                           clock=clock, chance=chance, log=log)
    await nursery.start(server.serve, listeners)

It promises two calls: ``follow(servers, voters)`` whenever the table's membership may have changed
(for ``RaftDriver.set_servers`` and ``reconcile_voters``), and ``save_key(pem)`` when, as a new
voter, it was given the CA's key. With ``certificates.save`` it renews its
own certificate, whose settings the links share. Before ``serve``, the host must have killed
every worker of an earlier incarnation.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from gpupool.pool.clock_view import clock_problems
from gpupool.pool.errors import GpupoolError
from gpupool.pool.measures import Measures
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Incarnation, LeaseId, ServerId
from gpupool.pool.ports import Clock, Outcome, Randomness, ReplicatedLog
from gpupool.pool.record_query import AskRecords, records_of_nobody
from gpupool.pool.table_clock import Source, TableClock
from gpupool.pool.transitions.policy_versions import Draft
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.remoting.protocol.sessions import SessionHost
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
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.listener.lobby import Lobby
from gpupool.remoting.server.listener.router import Router, WebDoor
from gpupool.remoting.server.policy_compiler import PolicyCompiler
from gpupool.remoting.server.proposer import Propose
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.server.software import Software
from gpupool.remoting.server.view_thread import make_beside_the_loop
from gpupool.remoting.transport.authority.ca_exchange import CaExchange
from gpupool.remoting.transport.authority.ca_key import CaKey
from gpupool.remoting.transport.authority.ca_vault import CaVault
from gpupool.remoting.transport.authority.certificate_renewal import Renewal, ServerCertificates
from gpupool.remoting.transport.failures import RateLimitedLog, explain
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import Authority, Identity, TlsContexts

CLOCKS_EVERY_S = 1.0


class ControlServer:
    """See the module."""

    _nursery: trio.Nursery | None = None

    def __init__(
        self,
        *,
        machine: PoolMachine,
        replicated_log: ReplicatedLog,
        host: SessionHost,
        identity: Identity,
        authority: Authority | None,
        links: PeerTransport,
        incarnation: Incarnation,
        software: Software,
        clock: Clock,
        rng: Randomness,
        log: logging.Logger,
        settings: ServerSettings | None = None,
        compile_policy: Callable[[bytes, int], Awaitable[Draft]] | None = None,
        make_view: Callable[[ViewOrder], Awaitable[MadeView]] = make_beside_the_loop,
        follow: Callable[[Sequence[ServerId], Sequence[ServerId]], None] = lambda _s, _v: None,
        save_key: Callable[[bytes], None] = lambda _pem: None,
        table_clock: TableClock | None = None,
        measures: Measures | None = None,
        certificates: ServerCertificates | None = None,
        ask_records: AskRecords = records_of_nobody,
        web: WebDoor | None = None,
    ) -> None:
        """Make a server that does not serve yet; see the module for the arguments."""
        self._machine, self._replicated_log = machine, replicated_log
        self._host, self._identity, self._links, self._clock = host, identity, links, clock
        self._log, self._rate_limited_log = log, RateLimitedLog(log, clock)
        self._settings, self._follow = settings or ServerSettings(), follow
        self._table_clock = table_clock or TableClock(
            lambda: machine.state, self_id=identity.server, clock=clock, sample=links.clock_sample
        )
        self._certificates = certificates or ServerCertificates(contexts=TlsContexts(identity))
        self.ca_key = self._make_ca_key(authority, save_key)
        self._exchange = self._make_exchange()
        self._renewal = self._make_renewal()
        self._clock_problems, self._killing = dict[str, str](), set[LeaseId]()
        self._clocks_at = self._asleep_until = float("-inf")
        self._wake, self._loop_lag_s = trio.Event(), 0.0
        self._ask_records, self._web, self._make_view = ask_records, web, make_view
        self._compile_policy = compile_policy or PolicyCompiler().compile
        self._committer = Committer(
            replicated_log, clock=clock, rng=rng, table_clock=self._table_clock
        )
        self.controller = Controller(
            machine,
            self_id=identity.server,
            incarnation=incarnation,
            software=software,
            ca_pem=lambda: self._certificates.contexts.identity.ca_pem,
            signer=lambda: self.ca_key.joiner,
            has_keys=lambda: self.ca_key.is_whole,
            issuer=lambda: self._exchange.issuer,
            host=host,
            clock=clock,
            rng=rng,
            health=replicated_log.health,
            majority_age_s=replicated_log.majority_age_s,
            role=replicated_log.role,
            table_clock=self._table_clock,
            measures=measures,
            loop_lag_s=lambda: self._loop_lag_s,
            settings=self._settings.controller,
            certificate_problems=self._renewal.problems if self._renewal is not None else tuple,
            signer_has_own_user=self._certificates.signer_has_own_user,
        )
        self._streams = ClientStreams(
            self.controller, self._do, settings=self._settings, log=self._rate_limited_log
        )

    def _make_ca_key(self, authority: Authority | None, save: Callable[[bytes], None]) -> CaKey:
        store = self._certificates.store
        return CaKey(
            self._certificates.contexts,
            authority,
            vault=self._certificates.vault or CaVault.of_this_process(self._clock.monotonic),
            machine=self._machine,
            now_ms=self._certificate_ms,
            log=self._log,
            save=save,
            save_next=store.keep_next if store is not None else lambda _authority: None,
            valid=self._certificates.valid,
        )

    def _make_exchange(self) -> CaExchange:
        return CaExchange(
            self._certificates.contexts,
            self.ca_key,
            self._certificates.store,
            machine=self._machine,
            links=self._links,
            now_ms=self._certificate_ms,
            log=self._log,
        )

    def _make_renewal(self) -> Renewal | None:
        if self._certificates.save is None:
            return None
        me = self._identity.server

        def name() -> str:
            server = self._machine.state.servers.get(me)
            return server.name if server is not None else me

        return Renewal(
            self._certificates,
            now_ms=self._certificate_ms,
            name=name,
            signer=lambda: self.ca_key.signer,
            voters=lambda: [each for each in self._machine.state.voters() if each != me],
            ask=lambda peer, csr: self._links.tell(peer, Kind.CERTIFICATE_ASK, csr),
            log=self._log,
        )

    def _certificate_ms(self) -> int:
        """Return the pool's time; where others sign, without a majority's word, this machine's.

        The pool's time stands still in a server that was away, whose certificate may have ended.
        Voters check with their own clocks. Who signs for itself has nobody to check: with a clock
        that is a year ahead, its certificate would not be valid yet for anybody else.
        """
        reading = self._table_clock.reading()
        asks = reading.source is Source.HELD and self.ca_key.signer is None
        return reading.wall_ms if asks else self._table_clock.now_ms()

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled, and close the listeners then, as trio's own servers do.

        With no listeners, streams come through ``serve_stream``.
        """
        self.controller.checks.places_of = self._links.book.places
        router = self._router() if listeners else None
        self._links.takes |= {
            Kind.KEY_ASK: self.ca_key.give,
            Kind.KEY_GIVE: self._exchange.take_key,
            Kind.CERTIFICATE_ASK: self.ca_key.sign_for,
            Kind.NEXT_KEY_GIVE: self._exchange.take_next,
            Kind.NEXT_KEY_KEPT: self._exchange.next_kept,
        }
        self._links.agreed = self._machine.formats
        self._exchange.changed = self._ca_changed
        self._machine.on_apply = lambda: self._wake.set()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                if router is not None:
                    nursery.start_soon(router.pace)
                if self._renewal is not None:
                    self._links.takes[Kind.CERTIFICATE_GIVE] = self._renewal.answered
                    self._renewal.renewed = self._renewed
                    nursery.start_soon(self._renewal.run)
                if router is not None:
                    limit_s = self._settings.unauthenticated_timeout_s
                    lobby = Lobby(router, nursery, timeout_s=limit_s, log=self._rate_limited_log)
                    nursery.start_soon(lobby.run, listeners)
                nursery.start_soon(self._streams.turns.give)
                task_status.started()
                await self._tick()
            finally:
                # From here on nothing is proposed or started any more; tasks wind down.
                self._nursery = None
                self._machine.on_apply = None

    async def leave(self, *, timeout_s: float = 10.0) -> bool:
        """Take this server out of the pool for good; True once that is committed."""
        command = commands.RemoveServer(self._identity.server, "the server itself")
        decision = await self._committer.commit(command, timeout_s=timeout_s)
        return decision.result is not None

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
                if self._exchange.is_behind():
                    self._nursery.start_soon(self._exchange.follow)
            self._report_clocks()
            self._asleep_until = self.controller.wake_at()
            wait_s = max(0.0, self._asleep_until - self._clock.monotonic())
            before = trio.current_time()
            with trio.move_on_after(wait_s) as scope:
                await self._wake.wait()
            if scope.cancelled_caught:
                self._loop_lag_s = max(0.0, trio.current_time() - before - wait_s)
            await trio.lowlevel.checkpoint()

    def _ca_changed(self) -> None:
        """Get a certificate of the CA that signs, and tell clients of the CAs."""
        if self._renewal is not None:
            self._renewal.ca_changed()
        self._do(self.controller.ca_changed())

    def _renewed(self) -> None:
        self._do(self.controller.reconcile_now())

    def _report_clocks(self) -> None:
        """Log what is wrong with the time, once, and that it is right again."""
        now = self._clock.monotonic()
        if now < self._clocks_at:
            return
        self._clocks_at = now + CLOCKS_EVERY_S
        wrong = clock_problems(self._machine.state, self._table_clock.reading())
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
                    self._streams.send(action)
                case Hangup():
                    self._streams.hang_up(action)
                case Propose():
                    decided = partial(self._decided, action.number)
                    self._replicated_log.submit(action.command, action.timeout_s, decided)
                case StartSession():
                    self._nursery.start_soon(self._start_session, action)
                case KillLease():
                    if action.lease not in self._killing:
                        self._killing.add(action.lease)
                        self._nursery.start_soon(self._kill, action)
                case CompilePolicy():
                    self._nursery.start_soon(self._run_compiler, action)
                case AskUsage():
                    self._nursery.start_soon(self._ask_usage, action)
                case MakeView():
                    self._nursery.start_soon(self._run_view, action)
                case AskKey():
                    self._links.tell(action.peer, Kind.KEY_ASK, self.ca_key.request())
                case MakeCa():
                    self._nursery.start_soon(self._make_ca, action)
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

    async def _ask_usage(self, action: AskUsage) -> None:
        try:
            result = await self._ask_records(action.query)
        except GpupoolError as error:
            result = error
        self._do(self.controller.usage_answered(action.number, result))

    async def _run_view(self, action: MakeView) -> None:
        self._do(self.controller.view_made(await self._make_view(action.order)))

    async def _run_compiler(self, action: CompilePolicy) -> None:
        try:
            result = await self._compile_policy(action.packed, action.now_ms)
        except GpupoolError as error:
            result = error
        self._do(self.controller.policy_compiled(action.number, result))

    async def _make_ca(self, action: MakeCa) -> None:
        try:
            result = await self._exchange.make()
        except GpupoolError as error:
            result = error
        self._do(self.controller.ca_made(action.number, result))

    async def _kill(self, action: KillLease) -> None:
        try:
            await self._host.kill_lease(action.lease, action.reason)
        finally:
            self._killing.discard(action.lease)
        # The workers are gone, so the lease can be freed at once.
        self._do(self.controller.reconcile_now())

    # --- connections -----------------------------------------------------------------------------

    def _router(self) -> Router:
        return Router(
            self._certificates.contexts,
            self._machine,
            self._links,
            self._host,
            settings=self._settings,
            log=self._rate_limited_log,
            clock=self._clock,
            client_count=lambda: len(self._streams),
            serve_client=self.serve_stream,
            web=self._web,
        )

    async def serve_stream(
        self, stream: trio.abc.Stream, who: str, proven: Callable[[], None] = lambda: None
    ) -> None:
        """Serve one client, as ``ClientStreams.serve`` says."""
        await self._streams.serve(stream, who, proven)
