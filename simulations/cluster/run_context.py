"""The context of a run: options, scheduler, trace, network and checkers, shared by all parts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.commands import unwrap
from gpupool.pool.model.ids import LeaseId, Plain, RequestId, ServerId
from gpupool.pool.model.state import PoolState, Request
from gpupool.simulations.checkers.accounts_checker import AccountsClose
from gpupool.simulations.checkers.alert_checker import AlertsTold, OneSender
from gpupool.simulations.checkers.ca_checker import CaHolds
from gpupool.simulations.checkers.drain_checker import UndrainHolds
from gpupool.simulations.checkers.history import History
from gpupool.simulations.checkers.late_commands import LateCommands
from gpupool.simulations.checkers.lease_causes import LeaseCauses
from gpupool.simulations.checkers.lease_checkers import BatchesGoOn, LeasesEndRightly
from gpupool.simulations.checkers.order_checkers import ForgottenStay, SilencesEnd
from gpupool.simulations.checkers.policy_checkers import (
    GrantedAsAsked,
    LeasesEnd,
    PlacesInLine,
    PolicyHolds,
)
from gpupool.simulations.checkers.policy_oracle import RulesInForce
from gpupool.simulations.checkers.preemption_checkers import (
    PreemptionHolds,
    SuspendedGoOn,
    SuspensionsSettle,
)
from gpupool.simulations.checkers.relocation_checkers import RelocationsEnd, RunsOnce
from gpupool.simulations.checkers.safety_checkers import (
    AnswersInTime,
    DeadClientsLeave,
    GrantedIsWanted,
    Linearizable,
    LogsAgree,
    MemoryTruth,
    OneLeader,
    RevokedMeansRevoked,
    TableSound,
)
from gpupool.simulations.checkers.service_checkers import MessageSizes, OneServes, RevokedUnserved
from gpupool.simulations.checkers.time_checker import TableTime
from gpupool.simulations.checkers.version_checker import VersionsAgree
from gpupool.simulations.checkers.vote_checker import VotesDurable
from gpupool.simulations.checkers.waiting_checker import NobodyStarves
from gpupool.simulations.cluster import simulated_alerts
from gpupool.simulations.cluster.shared_tables import SharedTables
from gpupool.simulations.cluster.simulated_alerts import Drawn
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.quiescence import QuiescenceTracker
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_network import Network
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Trace


class Checkers:
    """Every checker of a run."""

    def __init__(self, failures: FailureReporter, empty: PoolState) -> None:
        self.failures = failures
        self.logs = LogsAgree(failures, empty)
        self.leaders = OneLeader(failures)
        self.promises = VotesDurable(failures)
        self.table = TableSound(failures)
        self.memory = MemoryTruth(failures)
        self.dead_clients = DeadClientsLeave(failures)
        self.wanted = GrantedIsWanted(failures)
        self.policy = RevokedMeansRevoked(failures)
        self.answers = AnswersInTime(failures)
        in_force = RulesInForce()
        self.allowed = PolicyHolds(failures, in_force)
        self.fairness = NobodyStarves(failures, in_force)
        self.places = PlacesInLine(failures)
        self.asked = GrantedAsAsked(failures)
        self.ends = LeasesEnd(failures)
        self.causes = LeaseCauses()
        self.batches = BatchesGoOn(failures)
        self.rightly = LeasesEndRightly(failures, self.causes)
        self.late = LateCommands(failures)
        self.time = TableTime(failures)
        self.unserved = RevokedUnserved(failures)
        self.sizes = MessageSizes(failures)
        self.one_serves = OneServes(failures)
        self.linearizable = Linearizable(failures)
        self.accounts = AccountsClose(failures)
        self.authorities = CaHolds(failures)
        self.drains = UndrainHolds(failures)
        self.senders = OneSender(failures)
        self.alerts = AlertsTold(failures, simulated_alerts.TIMES, simulated_alerts.LOOK_EVERY_S)
        self.preemption = PreemptionHolds(failures, in_force)
        self.suspended = SuspendedGoOn(failures, in_force)
        self.settled = SuspensionsSettle(failures)
        self.versions = VersionsAgree(failures)
        self.silences = SilencesEnd(failures)
        self.forgotten = ForgottenStay(failures)
        self.relocations, self.ways = RunsOnce(failures), RelocationsEnd(failures)


@dataclass(slots=True)
class Environment:
    """Shared by everything in one run."""

    options: Options
    scheduler: Scheduler
    trace: Trace
    network: Network
    checkers: Checkers
    empty: PoolState
    """The table with which each server begins."""
    quiescence: QuiescenceTracker
    alerts: Drawn
    """The conditions that senders of alerts see."""
    history: History = field(default_factory=History)
    tables: SharedTables = field(default_factory=SharedTables)
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    clones: dict[str, Machine] = field(default_factory=dict[str, Machine])
    """Machines that run a copy of another machine's state directory."""
    abandoned_requests: dict[RequestId, str] = field(default_factory=dict[RequestId, str])
    """Requests that a living client has left behind for another, with its machine."""
    requests: dict[RequestId, Request] = field(default_factory=dict[RequestId, Request])
    """The requests of the clients' claims, each under every id that it went by."""
    machine_of: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    """Where a server is; the table's addresses say the same."""
    stepped: Callable[[Process], None] = lambda _process: None
    """Called after each step of a server's consensus."""

    def applied(
        self, index: int, command: Plain, result: Plain, before: PoolState, state: PoolState
    ) -> None:
        """Look at the table after a command was applied for the first time anywhere."""
        checkers = self.checkers
        checkers.table.applied(index, state)
        checkers.time.applied(state, self.wall_clocks(), self.scheduler.now)
        checkers.authorities.applied(state, self.machines.values(), self.scheduler.now)
        checkers.memory.applied(index, state, self.machines.values())
        self._judge_command(index, command, result, before, state)
        self.history.pool_holds(state.leases.values(), self.scheduler.now)
        lease = state.leases.get(LeaseId(index))
        checkers.fairness.applied(state)
        checkers.places.applied(state)
        if lease is not None:
            request = self.requests.get(lease.request)
            checkers.policy.applied(lease, state)
            checkers.allowed.granted(lease, state, request)
            checkers.suspended.granted(lease, before, state)
            if request is not None:
                checkers.asked.granted(lease, state, request)
            wanted = lease.request not in self.abandoned_requests
            checkers.wanted.granted(lease.id, lease.client, wanted=wanted)

    def _judge_command(
        self, index: int, command: Plain, result: Plain, before: PoolState, state: PoolState
    ) -> None:
        try:
            envelope = unwrap(command)
        except CodecError:
            return
        machines = {each: self.machines[name] for each, name in self.machine_of.items()}
        now = self.scheduler.now
        self.checkers.rightly.applied(envelope, before, state, machines, now)
        self.checkers.late.applied(index, envelope, result, before, state)
        self.checkers.accounts.applied(envelope, before, state)
        self.checkers.unserved.applied(envelope, before, now)
        self.checkers.drains.applied(envelope, before, state)
        self.checkers.preemption.applied(envelope, before, state)
        self.checkers.versions.applied(before, state)
        self.checkers.silences.applied(envelope, before, state)
        self.checkers.forgotten.applied(envelope, before, state)

    def wall_clocks(self) -> dict[ServerId, int]:
        """Return the wall clock of each server's machine."""
        return {each.server: each.clock.wall_ms() for each in self.machines.values()}

    @property
    def last_server(self) -> ServerId:
        """Return the server that was added last: the one that a long line has drained."""
        return list(self.machines.values())[-1].server

    def locate(self, server: ServerId) -> str | None:
        """Return the machine of a server."""
        return self.machine_of.get(server)

    def find(self, machine: str) -> Machine | None:
        """Return a machine by name, one that runs a copy too."""
        return self.machines.get(machine) or self.clones.get(machine)

    def identify(self, machine: str) -> ServerId | None:
        """Return the server in the certificate that a machine shows."""
        found = self.find(machine)
        return found.server if found is not None else None
