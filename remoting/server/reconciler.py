"""Level-triggered reconciler: compares the table with the host, and proposes the missing commands.

Each pass proposes every command that is still needed, so that no single proposal must succeed. The
plans themselves are in ``pool.reconcile``. This module adds the server's inventory and readings,
and proposes no command while the same one is under way.
"""

from collections.abc import Mapping, Set
from dataclasses import fields, replace
from operator import attrgetter

from gpupool.pool.automatic_drains import SignWatch, plan_drains
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.commands import (
    Command,
    GpuReading,
    ReportGpus,
    ReportIssuer,
    ServerUp,
)
from gpupool.pool.model.formats import ADDRESSES_SINCE
from gpupool.pool.model.ids import Incarnation, LeaseId
from gpupool.pool.model.state import Gpu, PartStatus, PoolState, Server, ServerStatus, with_changes
from gpupool.pool.policy.lease_ends import idle_notice, idle_plan
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.policy.weights import lease_weights
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import plan_host, plan_leader, plan_suspensions
from gpupool.pool.transitions.authorities import fingerprint_of
from gpupool.pool.transitions.leases import goes_on
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.proposer import Decision
from gpupool.remoting.server.server_settings import Software
from gpupool.remoting.server.service_context import ServiceContext

FOREIGN_STEP = 256 << 20
"""Memory of foreign processes is reported when it has changed by more than this."""

REPORT_EVERY_S = 1.0
"""Shortest time between two reports of readings: a flapping process must not fill the log."""

ATTEMPT_S = 2.0
"""A pass gives its proposals up after this time; a later pass proposes them again."""


class LaterStartError(GpupoolError):
    """The pool knows a later start of this server, so it does nothing for this one any more.

    A copy of the state directory ran while the others could not reach this server, and took it
    for a restart. That copy may have been refused since, and the pool would wait for it for ever.
    """

    code = "later-start"

    def __init__(self, server: Server, mine: Incarnation) -> None:
        super().__init__(
            f"the pool knows a later start of {server.name} than this one",
            why=f"start {server.incarnation} at {server.address}; this is start {mine}",
            hint="a copy of its state directory runs or ran elsewhere: end that one, then start "
            "this server again; if the others refuse it, gpupool rejoin makes it a new member",
        )


class Reconciler:
    """Proposes the commands of one server that no client asks for."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._self = context.me.id
        self._incarnation = context.me.incarnation
        self._software = context.me.software
        self._host = context.host
        self._clock = context.clock
        self.under_way: set[tuple[str, object]] = set()
        self._unattached: dict[LeaseId, float] = {}
        self._used_since: dict[LeaseId, float] = {}
        self._nearly_since: dict[LeaseId, float] = {}
        self._weights: dict[LeaseId, float] = {}  # that the host was told
        self._signs = SignWatch()
        self._reported_at = float("-inf")
        self._agreed: tuple[object, ...] | None = None  # on what the table and the host agreed last

    def reconcile(
        self,
        health: RaftHealth | None,
        attached: Mapping[LeaseId, Set[int]],
        lost: Mapping[LeaseId, str],
        starting: Mapping[LeaseId, int],
    ) -> None:
        """Propose every command that is needed now, and kill workers without a lease.

        Args:
            health: of consensus, as the leader has it; others have nothing to do about it.
            attached: the leases that have a client's connection here, with the connections.
            lost: the leases held here whose client has gone, with the reason.
            starting: how many workers of a lease are being started; they count as alive.

        Raises:
            LaterStartError: when the table knows a later start of this server. It must stop.
        """
        state, now = self._context.state, self._clock.monotonic()
        counts = dict(self._host.worker_count())
        for lease, count in starting.items():
            counts[lease] = counts.get(lease, 0) + count
        self._follow_leases(state, attached, starting, now)
        unattached_s = {lease: now - since for lease, since in self._unattached.items()}
        plan = plan_host(state, self._self, self._incarnation, counts, unattached_s, lost)
        for lease in plan.kill:
            self._context.kill(lease, "the table does not hold this lease here")
        for command in plan.propose:
            self._once(command)
        self._follow_suspensions(state, counts)
        self._follow_weights(state)
        self._end_idle(state, attached, now)
        if health is not None and health.role is Role.LEADER:
            now_ms = self._context.now_ms()
            ages_s, connected = health.contact_age_s, health.connected
            for command in plan_leader(state, ages_s, now_ms, self._self, connected):
                self._once(command, due_ms=now_ms)
        server = state.servers.get(self._self)
        if server is not None:
            if server.incarnation > self._incarnation:
                raise LaterStartError(server, self._incarnation)
            self._report(state, server)
            self._drain_failing(state)
            self._report_issuer(state, server)

    def _follow_suspensions(self, state: PoolState, counts: Mapping[LeaseId, int]) -> None:
        """Suspend and resume leases on the host as the table says, and report its progress."""
        host = self._host
        plan = plan_suspensions(state, self._self, self._incarnation, host.suspensions(), counts)
        for lease, number in plan.suspend:
            host.suspend(lease, number)
        for lease, number in plan.resume:
            host.resume(lease, number, plan.moves.get(lease, {}))
        for lease in plan.kill:
            self._context.kill(lease, "its memory was given back while it was suspended")
        for command in plan.propose:
            self._once(command)

    def _follow_weights(self, state: PoolState) -> None:
        """Tell the host the weights of its leases' classes, when the policy's have changed."""
        if not rulebook(state.policy).has_weights and not self._weights:
            return
        weights = lease_weights(state, self._self, self._context.now_ms())
        if weights != self._weights:
            self._host.weigh(weights)
            self._weights = weights

    def _follow_leases(
        self,
        state: PoolState,
        attached: Mapping[LeaseId, Set[int]],
        starting: Mapping[LeaseId, int],
        now: float,
    ) -> None:
        """Note since when each lease held here has had no client."""
        held = {
            lease.id
            for lease in state.leases.at(self._self).values()
            if lease.held and lease.parts[self._self] is PartStatus.HELD
        }
        used_since, unattached = self._used_since, self._unattached
        for lease in held:
            # To open a session is use, however long it takes; so is to be suspended.
            is_suspended = state.leases[lease].suspension is not None
            if lease in starting or lease not in used_since or is_suspended:
                used_since[lease] = now
            if lease not in attached:
                unattached.setdefault(lease, now)
            elif lease in unattached:
                del unattached[lease]
        for noted in (unattached, used_since):
            if not noted.keys() <= held:
                for lease in noted.keys() - held:
                    del noted[lease]

    def _end_idle(self, state: PoolState, attached: Mapping[LeaseId, Set[int]], now: float) -> None:
        """Announce and end idle leases; see ``pool.policy.lease_ends``."""
        leases = state.leases
        bounded = [
            (lease, since)
            for lease, since in self._used_since.items()
            if leases[lease].idle_timeout_s
        ]
        if not bounded and not self._nearly_since:
            return  # no lease here has an idle timeout, so the host need not measure
        measured_s = self._host.idle_s()
        idle_s = {
            lease: min(now - since, measured_s.get(lease, now - since)) for lease, since in bounded
        }
        nearly_s = {lease: now - since for lease, since in self._nearly_since.items()}
        plan = idle_plan(state, self._self, self._incarnation, idle_s, nearly_s)
        for lease in plan.nearly - self._nearly_since.keys():
            notice = m.LeaseNotice(lease, idle_notice(state.leases[lease].idle_timeout_s))
            for connection in sorted(attached.get(lease, ())):
                self._context.send(connection, 0, notice)
        self._nearly_since = {lease: self._nearly_since.get(lease, now) for lease in plan.nearly}
        for command in plan.propose:
            self._once(command)

    def _report(self, state: PoolState, server: Server) -> None:
        """Propose the inventory when the table has another one, else readings that moved."""
        readings, devices = self._host.readings(), self._host.gpus()
        agreed, has_keys = self._agreed, self._context.authorities.has_keys()
        names = self._software.names if state.formats() >= ADDRESSES_SINCE else ()
        if (
            agreed is not None
            and agreed[0] is server
            and agreed[1:] == (readings, devices, has_keys, names)
        ):
            return  # as most of the time: the table has changed elsewhere
        self._agreed = None
        gpus = tuple(_with_reading(gpu, readings.get(gpu.id)) for gpu in devices)
        differs = (has_keys, names) != (server.has_keys, server.names)
        differs = differs or self._inventory_differs(server, gpus)
        if server.freeing or differs:
            software = self._software
            self._once(
                ServerUp(
                    server=self._self,
                    incarnation=self._incarnation,
                    address=software.address,
                    version=software.version,
                    driver_version=software.driver_version,
                    cuda_version=software.cuda_version,
                    gpus=gpus,
                    labels=dict(software.labels),
                    link_speed=software.link_speed,
                    rdma=software.rdma,
                    accounts=True,
                    alerts=software.alerts,
                    formats=software.formats,
                    has_keys=has_keys,
                    names=names,
                )
            )
            return
        now = self._clock.monotonic()
        moved = {
            gpu_id: reading
            for gpu_id, reading in readings.items()
            if (known := server.gpus.get(gpu_id)) is not None and _has_moved(known, reading)
        }
        if not moved:
            self._agreed = (server, readings, devices, has_keys, names)
        elif now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._once(ReportGpus(self._self, self._incarnation, moved))

    def _drain_failing(self, state: PoolState) -> None:
        """Drain GPUs of this server that show a sign for which the operators want that."""
        signs = self._signs.look(self._context.me.checks.signs, self._context.now_ms(), state.era)
        for command in plan_drains(state, self._self, signs):
            self._once(command, due_ms=command.onset)

    def _report_issuer(self, state: PoolState, server: Server) -> None:
        """Report the CA that signed this server's certificate, in a pool that exchanges its CA."""
        if not state.authorities or server.incarnation != self._incarnation:
            return
        issuer = self._context.authorities.issuer()
        known = {fingerprint_of(each) for each in state.authorities}
        if issuer != server.issuer and issuer in known:
            self._once(ReportIssuer(self._self, self._incarnation, issuer))

    def _inventory_differs(self, server: Server, gpus: tuple[Gpu, ...]) -> bool:
        software = self._software
        if server.incarnation < self._incarnation or server.status is ServerStatus.JOINED:
            return True
        said = Software(
            address=server.address,
            version=server.version,
            driver_version=server.driver_version,
            cuda_version=server.cuda_version,
            labels=tuple(sorted(server.labels_said.items())),
            link_speed=server.link_speed,
            rdma=server.rdma,
            alerts=server.alerts,
            formats=server.formats,
            names=software.names,  # which ``_report`` compares
        )
        if said != replace(software, labels=tuple(sorted(dict(software.labels).items()))):
            return True
        known = {gpu.id: _fixed(gpu) for gpu in server.gpus.values()}
        present = {gpu.id: _fixed(gpu) for gpu in gpus}
        for gpu in gpus:
            granted = server.gpus[gpu.id].memory_granted if gpu.id in known else 0
            if granted > gpu.capacity:
                present[gpu.id] = known[gpu.id]  # the table takes the new size when that is over
        # What fell off the bus stays in the table, faulty, until its leases are over.
        lost = {
            gpu_id
            for gpu_id in known.keys() - present.keys()
            if not (server.gpus[gpu_id].fault and server.gpus[gpu_id].memory_granted)
        }
        return bool(lost) or any(known.get(gpu_id) != gpu for gpu_id, gpu in present.items())

    def _once(self, command: Command, *, due_ms: int = 0) -> None:
        """Propose ``command`` unless the same is under way; the time may make it due."""
        key = (type(command).__name__, _subject(command))
        if key in self.under_way:
            return
        self.under_way.add(key)

        def decided(decision: Decision) -> None:
            # If it was refused or lost, the next pass proposes it again.
            self.under_way.discard(key)
            result = decision.result
            if result is not None and goes_on(self._context.state, command, result):
                self._once(command)

        self._context.proposer.propose(command, decided, timeout_s=ATTEMPT_S, due_ms=due_ms)


def _subject(command: Command) -> object:
    return next((v for name in _SUBJECTS if (v := getattr(command, name, None))), None)


_SUBJECTS = ("lease", "server", "token")
_CHANGING = ("memory_foreign", "memory_granted", "fault", "clash", "drain_reason")
_FIXED = attrgetter(*(each.name for each in fields(Gpu) if each.name not in _CHANGING))


def _fixed(gpu: Gpu) -> object:
    """Return the fields of ``gpu`` that rarely change, to be compared."""
    return _FIXED(gpu)


def _with_reading(gpu: Gpu, reading: GpuReading | None) -> Gpu:
    if reading is None or (gpu.memory_foreign, gpu.fault) == (
        reading.memory_foreign,
        reading.fault,
    ):
        return gpu
    return with_changes(gpu, memory_foreign=reading.memory_foreign, fault=reading.fault)


def _has_moved(known: Gpu, reading: GpuReading) -> bool:
    if known.fault != reading.fault[:200]:
        return True
    return abs(known.memory_foreign - reading.memory_foreign) > FOREIGN_STEP
