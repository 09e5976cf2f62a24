"""The use of each lease's sessions on this server, summed over its workers, ended ones included."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.telemetry import SessionTelemetry
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.measuring.execution import SILENT_AFTER_S
from gpupool.remoting.host.measuring.gpu_shares import Process, lease_shares
from gpupool.remoting.host.sharing.turns import Got
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol.worker_messages import Report


@dataclass(slots=True)
class Totals:
    """Totals of one lease's workers."""

    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waits: int = 0
    wait_us: int = 0
    retransmits: int | None = None
    doors: set[str] = field(default_factory=set[str])
    transports: set[str] = field(default_factory=set[str])

    def add(self, worker: WorkerHandle) -> None:
        """Add one worker."""
        report = worker.session.totals
        self.calls += report.calls
        self.bytes_in += report.bytes_in
        self.bytes_out += report.bytes_out
        self.waits += report.waits
        self.wait_us += report.wait_us
        if report.retransmits is not None:
            self.retransmits = (self.retransmits or 0) + report.retransmits
        self.doors |= {worker.session.door} - {""}
        if worker.session.transport is not None:
            self.transports.add(worker.session.transport.value)

    def copy(self) -> "Totals":
        """Return totals that grow by themselves."""
        return Totals(
            self.calls,
            self.bytes_in,
            self.bytes_out,
            self.waits,
            self.wait_us,
            self.retransmits,
            set(self.doors),
            set(self.transports),
        )


def shares_by_lease(
    inventory: Inventory, workers: Collection[WorkerHandle], now: float
) -> tuple[dict[LeaseId, dict[GpuId, float]], set[LeaseId]]:
    """Return each lease's share of each real GPU's time, and the leases with estimated shares."""
    found: dict[LeaseId, dict[GpuId, float]] = {}
    estimates: set[LeaseId] = set()
    on: dict[GpuId, list[Process]] = {}
    for worker in workers:
        if worker.session.lease is not None:
            executes = now - worker.session.reported_at < SILENT_AFTER_S
            process = Process(worker.session.lease, worker.process.pid, executes)
            for gpu in worker.session.real:
                on.setdefault(gpu, []).append(process)
    for gpu, processes in on.items():
        shares, estimated = lease_shares(inventory.use(gpu), processes)
        for lease, share in shares.items():
            found.setdefault(lease, {})[gpu] = share
        if estimated:
            estimates |= shares.keys()
    return found, estimates


def memory_in_use(
    inventory: Inventory, workers: Collection[WorkerHandle], reserved: int
) -> int | None:
    """Return the bytes of GPU memory of a lease's workers; None where the driver does not say.

    Args:
        inventory: has the readings.
        workers: of the lease.
        reserved: what the budget counts, which is exact for emulated GPUs.
    """
    if not any(worker.session.real for worker in workers):
        return reserved
    used = 0
    for worker in workers:
        for gpu in worker.session.real:
            processes = inventory.own_processes(gpu)
            if processes is None:
                return None
            used += processes.get(worker.process.pid, 0)
    return used


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """Readings of a lease's sessions from other components."""

    memory_reserved: int
    memory_used: int | None
    idle_s: float | None
    busy: Mapping[GpuId, float]
    estimated: bool
    turns: Mapping[GpuId, Got] = field(default_factory=dict[GpuId, Got])
    not_suspendable: str = ""


def count_states(workers: Iterable[WorkerHandle]) -> dict[str, int]:
    """Return how many workers start, are warm, and serve or are about to."""
    found: dict[str, int] = {"workers_starting": 0, "workers_warm": 0, "workers_serving": 0}
    names = {WorkerState.STARTING: "workers_starting", WorkerState.WARM: "workers_warm"}
    for worker in workers:
        found[names.get(worker.state, "workers_serving")] += 1
    return found


def session_telemetry(
    lease: LeaseId, totals: Totals, workers: Iterable[WorkerHandle], use: LeaseUse
) -> SessionTelemetry:
    """Return the telemetry of one lease; ``workers`` are its live workers."""
    living = list(workers)
    reports: list[Report] = [worker.session.totals for worker in living]
    return SessionTelemetry(
        lease=lease,
        workers=len(living),
        calls=totals.calls,
        bytes_in=totals.bytes_in,
        bytes_out=totals.bytes_out,
        memory_reserved=use.memory_reserved,
        memory_used=use.memory_used,
        waits=totals.waits,
        wait_us=totals.wait_us,
        door="+".join(sorted(totals.doors)),
        transport="+".join(sorted(totals.transports)),
        rtt_us=_mean([each.rtt_us for each in reports]),
        rtt_var_us=_mean([each.rtt_var_us for each in reports]),
        retransmits=totals.retransmits,
        busy={gpu: round(share, 4) for gpu, share in use.busy.items()},
        busy_estimated=use.estimated,
        share_due={gpu: round(each.due, 4) for gpu, each in use.turns.items()},
        share_got={g: round(t.got, 4) for g, t in use.turns.items() if t.got is not None},
        idle_s=None if use.idle_s is None else round(use.idle_s, 1),
        not_suspendable=use.not_suspendable,
    )


def _mean(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known else None


def emulated_busy(
    workers: Iterable[WorkerHandle], now: float
) -> tuple[dict[GpuId, float], dict[LeaseId, dict[GpuId, float]]]:
    """Return the shares of time in which emulated GPUs are in use: of each, and by each lease.

    A worker with several executes one call at a time, so each of them has an equal part.
    """
    by_lease: dict[LeaseId, dict[GpuId, float]] = {}
    sums: dict[GpuId, float] = {}
    for worker in workers:
        emulated = [gpu for gpu in worker.session.devices if gpu not in worker.session.real]
        if worker.session.lease is None or not emulated:
            continue
        each = worker.session.execution.now(now) / len(emulated)
        shares = by_lease.setdefault(worker.session.lease, {})
        for gpu in emulated:
            shares[gpu] = shares.get(gpu, 0.0) + each
            sums[gpu] = sums.get(gpu, 0.0) + each
    # Workers of several leases execute at the same time on several processors, which one GPU
    # would do in turns.
    for shares in by_lease.values():
        for gpu in shares:
            shares[gpu] /= max(1.0, sums[gpu])
    return {gpu: min(1.0, value) for gpu, value in sums.items()}, by_lease
