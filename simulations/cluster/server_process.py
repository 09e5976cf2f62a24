"""Server processes: the real consensus, table and controller, as ``gpupool join`` runs them."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gpupool.consensus.core.raft_log import SafetyError
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import Storage, bootstrap
from gpupool.consensus.table_comparison import DivergedError
from gpupool.pool.errors import GpupoolError, NoRoomError, StorageError
from gpupool.pool.model.formats import OutdatedError, can_link
from gpupool.pool.model.ids import GpuId, LeaseId, Plain, ServerId, TokenId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import Committed, Outcome
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.policy_text import compile_text
from gpupool.remoting.protocol.sessions import SessionDevice, SessionInfo
from gpupool.remoting.protocol.view_encoding import make_view_at_once
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
from gpupool.remoting.server.proposer import Propose
from gpupool.remoting.server.reconciler import LaterStartError
from gpupool.remoting.server.server_settings import ServerInstance, Software
from gpupool.simulations.cluster.caller import Packet
from gpupool.simulations.cluster.moved_addresses import links_of
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.cluster.simulated_alerts import SimulatedSender
from gpupool.simulations.cluster.simulated_ca import SimulatedCa
from gpupool.simulations.cluster.simulated_driver import SimulatedDriver
from gpupool.simulations.cluster.simulated_links import KIND as PEER
from gpupool.simulations.cluster.simulated_links import SimulatedTransport
from gpupool.simulations.cluster.watched_tables import WatchedMachine
from gpupool.simulations.kernel.ca_files import FIRST_CA
from gpupool.simulations.kernel.machines import Machine, SimulatedHost
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.simulated_disk import PowerLostError
from gpupool.simulations.kernel.simulated_network import End, Endpoint

POLL_DELAY_S = 0.0001

COMPARE_ENTRIES = 32
"""Servers compare tables more often than real ones do, so that each run sees it many times."""


class ServerProcess(Process):
    """One incarnation of one server."""

    def __init__(
        self,
        environment: Environment,
        machine: Machine,
        *,
        died: Callable[["ServerProcess", str], None],
        create: bool = False,
        first: bool = False,
        servers: Sequence[ServerId] = (),
        clone: bool = False,
    ) -> None:
        """Make a process that does nothing yet.

        Args:
            environment: of the run.
            machine: on which it runs.
            died: called when the process ends by itself, with the reason.
            create: whether the server's storage has to be made.
            first: whether it is the first server of the pool.
            servers: the members that a joining server got.
            clone: whether its state directory is a copy of one that is in use.
        """
        super().__init__(environment.scheduler, machine.name)
        self._environment = environment
        self._host_machine = machine
        self._died = died
        self._create = create
        self._first = first
        self._known = servers
        self._clone = clone
        self._numbers = itertools.count(1)
        self._ends: dict[int, End] = {}
        self._clients: dict[int, str] = {}
        self._tokens: dict[int, TokenId] = {}
        self._killing: set[LeaseId] = set()
        self._poll_at = float("inf")
        self._seen: PoolState | None = None
        self._followed: object = None
        self._alerts: SimulatedSender | None = None
        self.server = machine.server
        self.table = WatchedMachine(environment, machine.name)
        self.links: SimulatedTransport | None = None
        self.replicated_log: SimulatedDriver | None = None
        self.controller: Controller | None = None
        self.table_clock = TableClock(
            lambda: self.table.state, self_id=self.server, clock=machine.clock
        )
        self.ca = SimulatedCa(
            self, environment, machine, self.scheduler.random(f"ca/{machine.name}")
        )
        self.host = SimulatedHost(machine, self, start_s=environment.options.worker_start_s)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the storage, join the peers, kill former workers, then serve."""
        self._guard(self._start)

    def _start(self) -> None:
        machine, environment = self._host_machine, self._environment
        machine.incarnation = type(machine.incarnation)(machine.incarnation + 1)
        environment.trace.note(self.machine, "start", f"incarnation {machine.incarnation}")
        if self._create:  # The power may fail while it is made (seed 1228).
            environment.checkers.promises.forgot(machine.name)
        storage = Storage(machine.disk, create=self._create)
        environment.checkers.promises.started(machine.name, storage.journal)
        if self._first:
            bootstrap(storage, self.server)
            self.ca.files.keys.add(FIRST_CA)
        name = f"{machine.name}/{machine.incarnation}"
        self.links = SimulatedTransport(
            self.server,
            process=self,
            network=environment.network,
            random=self.scheduler.random(f"links/{name}"),
            locate=environment.locate,
            identify=environment.identify,
            is_removed=lambda peer: peer in self.table.state.removed,
            trusts=self.ca.trusts,
            understands=self._understands,
            clock=machine.clock,
            sends=self._sends,
            **links_of(environment, machine, lambda: self.table.state, create=self._create),
        )
        self.table_clock = TableClock(
            lambda: self.table.state,
            self_id=self.server,
            clock=machine.clock,
            sample=self.links.clock_sample,
        )
        self.replicated_log = SimulatedDriver(
            self.server,
            process=self,
            clock=machine.clock,
            disk=machine.disk,
            storage=storage,
            machine=self.table,
            random=self.scheduler.random(f"raft/{name}"),
            links=self.links,
            settings=ConsensusSettings(
                snapshot_entries=environment.options.snapshot_entries,
                compare_entries=COMPARE_ENTRIES,
            ),
            clock_refusal=self.table_clock.refusal,
            incarnation=self.scheduler.random(f"incarnation/{name}"),
            after_step=self._stepped,
            guard=self._guard,
        )
        self.replicated_log.node.set_servers(self._known)
        environment.network.listen(self, self._accept)
        self.replicated_log.start()
        self.host.sweep(partial(self._guard, self._serve))

    def _sends(self, frame: bytes) -> None:
        checkers = self._environment.checkers
        checkers.sizes.frame(self.machine, frame)
        checkers.promises.sent(self.machine, frame)

    def _serve(self) -> None:
        """Begin to answer clients; no worker of a former incarnation lives any more."""
        machine, replicated_log = self._host_machine, self.replicated_log
        assert replicated_log is not None
        labels = (("rack", machine.rack),)
        software = Software(machine.address, labels=labels, formats=machine.formats)
        self.controller = Controller(
            self.table,
            me=ServerInstance(self.server, machine.incarnation, software),
            consensus=replicated_log,
            authorities=self.ca,
            host=self.host,  # type: ignore[arg-type]
            table_clock=self.table_clock,
            rng=self.scheduler.random(f"steward/{machine.name}/{machine.incarnation}"),
        )
        self.controller.context.me.checks.signs = machine.signs
        self.ca.started()
        self._poll()

    def _guard(self, action: Callable[[], None]) -> None:
        """Do something that may end this process."""
        try:
            action()
        except (StorageError, OutdatedError) as error:
            if isinstance(error, NoRoomError) and self.replicated_log:
                self._environment.checkers.failures.fail("full-disk", f"{self.machine}: {error}")
            self._died(self, f"stops: {error}")
        except DivergedError as error:
            if not self.table.is_flipped:
                self._environment.checkers.failures.fail("no-crash", f"{self.machine}: {error}")
            self._died(self, f"stops: {error}")
        except SafetyError as error:
            self._environment.checkers.failures.fail("safety", f"{self.machine}: {error}")
        except PowerLostError:
            self._died(self, "power")
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends a real server as well.
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            self._environment.checkers.failures.fail("no-crash", f"{self.machine}: {text}")
            self._died(self, f"crashes: {text}")

    def _stepped(self, replicated_log: SimulatedDriver) -> None:
        journal = replicated_log.node.storage.journal
        core = replicated_log.node.core
        checkers = self._environment.checkers
        # A copy's votes are none of its original's: they must not count anywhere.
        name = self.machine if self._clone else self.server
        checkers.leaders.stepped(name, core, journal.term, journal.vote)
        if self._clone and replicated_log.node.leads:
            checkers.one_serves.clone_acts(self.machine, "leads")
        self._environment.stepped(self)
        now = self.scheduler.now
        if not self._clone and checkers.senders.due(self.server, now):
            health = replicated_log.health()
            checkers.senders.looked(self.server, self.table.state, health, now)
            if self._alerts is None:
                self._alerts = SimulatedSender(
                    self.server,
                    self._environment.alerts,
                    checkers.senders,
                    checkers.alerts,
                    now,
                )
            self._alerts.look(self.table.state, health, now)
        if self._seen is not self.table.state:
            self._seen = self.table.state
            self.after(POLL_DELAY_S, self._table_changed)

    # --- consensus --------------------------------------------------------------------------------

    def _understands(self, peer: ServerId) -> bool:
        """Return whether a server's program reads this one's messages, as its greeting says."""
        name = self._environment.locate(peer)
        machine = self._environment.find(name) if name is not None else None
        return machine is None or can_link(machine.formats, self.table.formats())

    def propose(self, command: Plain, timeout_s: float, decided: Callable[[Outcome], None]) -> None:
        """Submit a command, as the real server does, with the checkers watching."""
        assert self.replicated_log is not None

        def checked(outcome: Outcome) -> None:
            if isinstance(outcome, Committed):
                if self._clone:
                    text = f"got {command} committed"
                    self._environment.checkers.one_serves.clone_acts(self.machine, text)
                logs = self._environment.checkers.logs
                logs.acknowledged(self.machine, command, outcome)
            decided(outcome)

        self.replicated_log.propose(command, timeout_s, checked)

    def _table_changed(self) -> None:
        state = self.table.state
        # As in ``compose``: a table from before this server joined does not say who belongs to it.
        removed = self.server in state.removed
        known = self.server in state.servers or removed
        if known and self._followed is not state.servers:
            self._followed = state.servers
            self._host_machine.remember(state)
            replicated_log = self.replicated_log
            assert replicated_log is not None
            servers = tuple(state.servers)
            replicated_log.submit(
                lambda _now: replicated_log.node.set_servers(servers, removed=removed)
            )
            voters, witnesses = state.voters(), state.witnesses()
            replicated_log.submit(
                lambda _now: replicated_log.node.reconcile_voters(voters, stopgaps=witnesses)
            )
            assert self.links is not None
            self.links.drop_outdated()
        if known:
            self.ca.follow()
        self._poll()

    # --- the controller ---------------------------------------------------------------------------

    def _poll(self) -> None:
        if self.controller is not None:
            try:
                actions = self.controller.poll()
            except LaterStartError as error:
                self._died(self, f"stops: {error}")
                return
            self.do(actions)
            self._poll_at = float("inf")
            self._set_timer()

    def _set_timer(self) -> None:
        assert self.controller is not None
        clock = self._host_machine.clock
        when = max(clock.world_time(self.controller.wake_at()), self.scheduler.now + POLL_DELAY_S)
        if when < self._poll_at - 1e-6:
            self._poll_at = when
            self.scheduler.at(when, partial(self.run, partial(self._timer, when)))

    def _timer(self, when: float) -> None:
        if when == self._poll_at:
            self._poll()

    def do(self, actions: list[Action]) -> None:
        """Carry out the controller's actions."""
        assert self.controller is not None
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Hangup():
                    if (end := self._ends.pop(action.connection, None)) is not None:
                        end.close()
                        self.run(partial(self._hung_up, action.connection))
                case Propose():
                    decided = partial(self._decided, action.number)
                    self.propose(action.command, action.timeout_s, decided)
                case StartSession():
                    self._start_session(action)
                case KillLease():
                    if action.lease not in self._killing:
                        self._killing.add(action.lease)
                        self.host.kill_lease(action.lease, partial(self._killed, action.lease))
                case CompilePolicy():
                    self.run(partial(self._compile_policy, action))
                case AskKey():
                    self.ca.ask_key(action.peer)
                case MakeCa():
                    self.ca.make(action.number)
                case MakeView():
                    self.run(partial(self._make_view, action))
                case AskUsage():
                    pass  # no client of the simulator asks
        self._set_timer()

    def _send(self, action: Send) -> None:
        if (end := self._ends.get(action.connection)) is None:
            return
        checkers, message = self._environment.checkers, action.message
        if isinstance(message, m.Encoded):
            message = message.decoded()
        assert self.replicated_log is not None
        age_s = self.replicated_log.majority_age_s
        token = self._tokens.get(action.connection, TokenId(""))
        checkers.unserved.sent(self.machine, token, message, age_s, self.scheduler.now)
        checkers.sizes.message(self.machine, message, from_server=True)
        end.send(Packet(action.call, message))

    def controlled(self, act: Callable[[Controller], list[Action]]) -> None:
        """Tell the controller something, and carry out its actions."""
        if self.controller is not None:
            self.do(act(self.controller))

    def _decided(self, number: int, outcome: Outcome) -> None:
        if self.controller is not None:
            self.do(self.controller.decided(number, outcome))

    def _start_session(self, action: StartSession) -> None:
        devices = tuple(
            SessionDevice(index, GpuId(p.gpu), "Simulated", p.memory, emulated=True)
            for index, p in enumerate(action.partitions)
        )
        causes = self._environment.checkers.causes
        causes.session_opened(action.lease.id, self.machine, self.scheduler.now)
        self._environment.checkers.unserved.starts(self.machine, action.lease, self.scheduler.now)
        info = SessionInfo(bytes(16), bytes(32), bytes(32), "", devices)

        def opened(error: GpupoolError | None) -> None:
            if self.controller is not None:
                self.do(self.controller.session_opened(action.number, error or info))

        self.host.open_session(action.lease, action.partitions, opened)

    def _compile_policy(self, action: CompilePolicy) -> None:
        try:
            result = compile_text(action.packed, action.now_ms)
        except GpupoolError as error:
            result = error
        if self.controller is not None:
            self.do(self.controller.policy_compiled(action.number, result))

    def _make_view(self, action: MakeView) -> None:
        made = make_view_at_once(action.order)
        if self.controller is not None:
            self.do(self.controller.view_made(made))

    def _killed(self, lease: LeaseId) -> None:
        self._killing.discard(lease)
        if self.controller is not None:
            self.do(self.controller.reconcile_now())

    # --- connections ------------------------------------------------------------------------------

    def _accept(self, machine: str, kind: str) -> Endpoint | None:
        if kind == PEER:
            return self.links.accept(machine) if self.links is not None else None
        if self.controller is None:
            return None
        return _Served(self, next(self._numbers), machine)

    def served(self, number: int, end: End, client: str) -> None:
        """Take a client's connection."""
        if self.controller is not None:
            self._ends[number] = end
            self._clients[number] = client
            self.do(self.controller.opened(number))

    def received(self, number: int, packet: Packet) -> None:
        """Take a client's message."""
        if self.controller is None:
            return
        message = packet.message
        if isinstance(message, m.Hello):
            self._tokens[number] = message.token
        self._environment.checkers.sizes.message(self.machine, message, from_server=False)
        self.do(self.controller.received(number, packet.call, message))

    def lost(self, number: int) -> None:
        """Take note that a client's connection is gone."""
        self._ends.pop(number, None)
        self._closed(number)

    def _hung_up(self, number: int) -> None:
        """Go on without a connection that this server closed.

        That is no reason for a lease to end, unless the table gave it one to close it.
        """
        state = self.table.state
        token = state.tokens.get(self._tokens.get(number, TokenId("")))
        if token is not None and not token.revoked_at and self.server in state.servers:
            self._clients.pop(number, None)
        self._closed(number)

    def _closed(self, number: int) -> None:
        self._tokens.pop(number, None)
        if (client := self._clients.pop(number, None)) is not None:
            causes = self._environment.checkers.causes
            causes.connection_lost(client, self.machine, self.scheduler.now)
        if self.controller is not None:
            self.do(self.controller.closed(number))


class _Served:
    """The server's end of one client's connection."""

    def __init__(self, server: ServerProcess, number: int, client: str) -> None:
        self._server = server
        self._number = number
        self._client = client

    def opened(self, end: End) -> None:
        self._server.served(self._number, end, self._client)

    def failed(self, reason: str) -> None:
        """Never called: this end does not dial."""

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, Packet)
        self._server.received(self._number, payload)

    def closed(self, end: End, reason: str) -> None:
        self._server.lost(self._number)
