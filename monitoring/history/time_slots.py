"""Samples to rows: everything of ten seconds becomes one row of each GPU, lease, server and pool.

A clock that was set back makes no rows until it has caught up, so that no slot is there twice; what
is left out is counted. A reading that is not to be had is in no sum and no count. Pure.

A mark of a GPU is a number, so that it is a key of a table: a reason, of which milliseconds are
kept, or an Xid error, of which it is kept how often it came. A GPU to which nothing happens has no
rows.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.monitoring.history.series import SLOT_S, WAIT_UNITS_A_MS
from gpupool.monitoring.sample import GpuBooks, LeaseBooks, PoolBooks, Sample
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.units import KIB, MIB
from gpupool.pool.telemetry import GpuTelemetry, HostTelemetry, SessionTelemetry

REASONS = ("power", "thermal", "hw_thermal", "hw_power_brake", "sync_boost")
"""Those of ``GpuTelemetry.throttled_s``, in an order that stays: their places are in files."""

FIRST_XID = 1000
THROTTLED, XID = "throttled", "xid"


def reason_mark(reason: str) -> int | None:
    """Return the mark of a reason for which clocks are held down; None if it is not known."""
    return REASONS.index(reason) if reason in REASONS else None


def xid_mark(xid: int) -> int:
    """Return the mark of an Xid error."""
    return FIRST_XID + xid


def word_of(mark: int) -> str:
    """Return a mark's word for questions: ``throttled.power``, ``xid.79``; empty for none."""
    if mark >= FIRST_XID:
        return f"{XID}.{mark - FIRST_XID}"
    return f"{THROTTLED}.{REASONS[mark]}" if 0 <= mark < len(REASONS) else ""


GAP_S = 15
"""After longer silence counters begin anew: growth meanwhile is of no slot."""

GROWN_MAX = 1 << 33
"""In one sample: beyond any network or GPU, and so little that years of it are an integer."""

SURE_N = SLOT_S // 2
"""Samples of a slot from which it is known whether anything was done in it."""

Row = Counter[str]


@dataclass(slots=True)
class Slot:
    """The rows of ten seconds."""

    t: int  # Unix seconds, by the pool's time
    gpus: dict[GpuId, Row] = field(default_factory=dict[GpuId, Row])
    leases: dict[tuple[LeaseId, GpuId], Row] = field(
        default_factory=dict[tuple[LeaseId, GpuId], Row]
    )
    marks: dict[tuple[GpuId, int], Row] = field(default_factory=dict[tuple[GpuId, int], Row])
    server: Row = field(default_factory=Row)
    pool: Row = field(default_factory=Row)
    models: dict[str, Row] = field(default_factory=dict[str, Row])
    gpu_books: dict[GpuId, GpuBooks] = field(default_factory=dict[GpuId, GpuBooks])
    lease_books: dict[LeaseId, LeaseBooks] = field(default_factory=dict[LeaseId, LeaseBooks])
    worked: set[tuple[LeaseId, GpuId]] = field(default_factory=set[tuple[LeaseId, GpuId]])
    unsure: set[tuple[LeaseId, GpuId]] = field(default_factory=set[tuple[LeaseId, GpuId]])


class SlotMaker:
    """Adds samples up; gives each slot once, when the first sample after it has come."""

    def __init__(self, last_t: int = -1) -> None:
        """Begin after the slot that was written last."""
        self.last_t = last_t
        self.refused = 0
        """Samples from before the written ones."""
        self._slot: Slot | None = None
        self._before: Sample | None = None
        self._counters: dict[str, int] = {}

    def add(self, sample: Sample) -> Slot | None:
        """Take a sample; return the slot that has ended with it, if one has."""
        t = sample.at // 1000 // SLOT_S * SLOT_S
        if t <= self.last_t or (self._slot is not None and t < self._slot.t):
            self.refused += 1
            return None
        ended = None
        if self._slot is not None and t > self._slot.t:
            ended = self._slot
            self._finish(ended)
            self._forget_ended(each.lease for each in sample.leases)
        if self._slot is None or ended is not None:
            self._slot = Slot(t)
        before = self._before
        if before is not None and not 0 <= sample.at - before.at <= 1000 * GAP_S:
            self._counters.clear()
        self._take(self._slot, sample)
        self._before = sample
        return ended

    def _finish(self, slot: Slot) -> None:
        self.last_t = slot.t
        for key, row in slot.leases.items():
            if row["n"] >= SURE_N and key not in slot.unsure:
                row["slots"] = 1
                row["idle"] = int(key not in slot.worked)

    # --- one sample ------------------------------------------------------------------------------

    def _take(self, slot: Slot, sample: Sample) -> None:
        measured = {each.gpu: each for each in sample.telemetry.gpus}
        for gpu in sample.gpus:
            slot.gpu_books[gpu.gpu] = gpu
            row = slot.gpus.setdefault(gpu.gpu, Row())
            _take_gpu(row, gpu, measured.get(gpu.gpu))
            if gpu.gpu in measured:
                self._take_marks(slot, measured[gpu.gpu])
        sessions = {each.lease: each for each in sample.telemetry.sessions}
        for lease in sample.leases:
            slot.lease_books[lease.lease] = lease
            self._take_lease(slot, lease, sessions.get(lease.lease))
        self._take_server(slot.server, sample)
        if sample.pool is not None:
            _take_pool(slot.pool, sample)
            _take_capacity(slot.models, sample.pool)

    def _take_marks(self, slot: Slot, gpu: GpuTelemetry) -> None:
        """Take for how long clocks were held down, and the Xid errors that have come."""
        name, grown = f"gpu {gpu.gpu}", dict[int, int]()
        for reason, held_s in gpu.throttled_s.items():
            mark = reason_mark(reason)
            if mark is not None:
                grown[mark] = self._grown(f"{name} {mark}", round(1000 * held_s))
        seen_before = self._counters.setdefault(name, 0) > 0
        self._counters[name] = 1
        for xid, count in gpu.xids.items():
            mark = xid_mark(xid)
            if seen_before:
                # The server names an error from its first one on: before, there was none of it.
                self._counters.setdefault(f"{name} {mark}", 0)
            grown[mark] = self._grown(f"{name} {mark}", count)
        for mark, amount in grown.items():
            if amount:
                slot.marks.setdefault((gpu.gpu, mark), Row())["amount"] += amount

    def _take_lease(self, slot: Slot, lease: LeaseBooks, session: SessionTelemetry | None) -> None:
        name, worked, calls = f"lease {lease.lease}", False, 0
        if session is not None:
            calls = self._grown(f"{name} calls", session.calls)
            worked = calls > 0
        for at, (gpu, granted) in enumerate(lease.granted.items()):
            key = (lease.lease, gpu)
            row = slot.leases.setdefault(key, Row())
            row["n"] += 1
            row["granted"] += granted // MIB
            if session is None:
                row["busy_n"] += 1  # without a worker nothing of it computes
                continue
            busy = session.busy.get(gpu)
            if busy is not None:
                _sum(row, "busy", busy * 1000)
                _peak(row, "busy_max", busy * 1000)
            if worked or busy:
                slot.worked.add(key)
            elif busy is None and (session.idle_s is None or session.idle_s < SLOT_S):
                slot.unsure.add(key)
            self._take_memory(row, lease, session)
            if at == 0:
                row["calls"] += calls
                self._take_traffic(row, name, session)

    def _take_memory(self, row: Row, lease: LeaseBooks, session: SessionTelemetry) -> None:
        # A session says what it has on all its GPUs together.
        used = session.memory_used if session.memory_used is not None else session.memory_reserved
        share = used // MIB // len(lease.granted)
        row["memory"] += share
        row["memory_max"] = max(row["memory_max"], share)

    def _take_traffic(self, row: Row, name: str, session: SessionTelemetry) -> None:
        row["bytes_in"] += self._grown(f"{name} in", session.bytes_in, KIB)
        row["bytes_out"] += self._grown(f"{name} out", session.bytes_out, KIB)
        if session.waits is not None:
            row["waits"] += self._grown(f"{name} waits", session.waits)
        if session.wait_us is not None:
            unit = 1000 // WAIT_UNITS_A_MS
            row["wait_time"] += self._grown(f"{name} waited", session.wait_us, unit)
        if session.rtt_us is not None:
            _sum(row, "rtt", session.rtt_us)

    def _take_server(self, row: Row, sample: Sample) -> None:
        telemetry = sample.telemetry
        row["n"] += 1
        row["leases"] += len(sample.leases)
        row["connections"] += telemetry.counters.get("connections", 0)
        row["lag"] += round(telemetry.loop_lag_s * 1e6)
        _peak(row, "lag_max", telemetry.loop_lag_s * 1e6)
        row["elections"] += self._grown("elections", sample.raft.elections)
        row["dropped"] += self._grown("dropped", sample.dropped)
        if telemetry.host is not None:
            self._take_host(row, telemetry.host)
        if telemetry.consensus is not None and telemetry.consensus.link_rtt_s:
            slowest = max(telemetry.consensus.link_rtt_s.values())
            _sum(row, "link_rtt", slowest * 1e6)
            _peak(row, "link_rtt_max", slowest * 1e6)
        commits = telemetry.histograms.get("raft_commit_duration_seconds")
        if commits is not None:
            row["commits"] += self._grown("commits", sum(commits.counts))
            row["commit_time"] += self._grown("commit time", round(commits.sum * 1e6))

    def _take_host(self, row: Row, host: HostTelemetry) -> None:
        if host.cpu_busy is not None:
            _sum(row, "cpu", host.cpu_busy * 1000)
        if host.memory_total is not None and host.memory_available is not None:
            _sum(row, "host_memory", (host.memory_total - host.memory_available) // MIB)
        if host.network_in is not None and host.network_out is not None:
            row["network_n"] += 1
            row["network_in"] += self._grown("network in", host.network_in, KIB)
            row["network_out"] += self._grown("network out", host.network_out, KIB)
        if host.disk_free is not None:
            row["disk_n"] += 1
            row["disk_free"] += host.disk_free // MIB
        row["resident"] += sum(host.resident.values()) // MIB

    def _grown(self, name: str, value: int, unit: int = 1) -> int:
        """Return the growth of a counter in units; the remainder counts next time.

        One that is smaller than before has begun anew; one that is seen for the first time may have
        grown before anybody looked.
        """
        before = self._counters.get(name)
        if before is None:
            self._counters[name] = value
            return 0
        if value < before:
            before = 0
        grown = (value - before) // unit
        self._counters[name] = before + grown * unit
        return min(grown, GROWN_MAX)

    def _forget_ended(self, leases: Iterable[LeaseId]) -> None:
        kept = {f"lease {lease}" for lease in leases}
        for name in [each for each in self._counters if each.startswith("lease ")]:
            if name.rpartition(" ")[0] not in kept:
                del self._counters[name]


def _sum(row: Row, name: str, value: float) -> None:
    row[f"{name}_n"] += 1
    row[name] += round(value)


def _peak(row: Row, name: str, value: float) -> None:
    row[name] = max(row[name], round(value))


def _take_gpu(row: Row, books: GpuBooks, measured: GpuTelemetry | None) -> None:
    row["granted"] += books.granted // MIB
    row["outside"] += books.foreign // MIB
    row["leases"] += books.leases
    row["n"] += 1
    if measured is None:
        return
    _sum(row, "memory", measured.memory_used // MIB)
    _peak(row, "memory_max", measured.memory_used // MIB)
    if measured.utilization is not None:
        _sum(row, "busy", measured.utilization * 1000)
        _peak(row, "busy_max", measured.utilization * 1000)
    if measured.power_w is not None:
        _sum(row, "power", measured.power_w)
        _peak(row, "power_max", measured.power_w)
    if measured.temperature_c is not None:
        _sum(row, "temperature", measured.temperature_c)
        _peak(row, "temperature_max", measured.temperature_c)
    if measured.sm_activity is not None:
        row["activity_n"] += 1
        row["sm"] += round(measured.sm_activity * 1000)
        row["tensor"] += round((measured.tensor_activity or 0.0) * 1000)
        row["bandwidth"] += round((measured.memory_bandwidth or 0.0) * 1000)


def _take_capacity(rows: dict[str, Row], pool: PoolBooks) -> None:
    for model, parts in pool.models.items():
        row = rows.setdefault(model, Row())
        row["n"] += 1
        for name in ("gpus", "granted", "outside", "drained", "down", "fault"):
            row[name] += getattr(parts, name)


def _take_pool(row: Row, sample: Sample) -> None:
    pool = sample.pool
    assert pool is not None
    waiting, gpus = sum(pool.waiting.values()), pool.gpus
    row["n"] += 1
    row["servers"] += sum(pool.servers.values())
    row["servers_down"] += pool.servers.get("down", 0)
    row["gpus"] += sum(gpus.values())
    row["gpus_idle"] += gpus.get("idle", 0)
    row["gpus_out"] += sum(gpus.get(each, 0) for each in ("down", "drain", "fault", "new"))
    row["capacity"] += pool.capacity // MIB
    row["granted"] += pool.granted // MIB
    row["outside"] += pool.foreign // MIB
    row["leases"] += pool.leases
    row["waiting"] += waiting
    row["oldest_wait"] += pool.oldest_wait_ms
    _peak(row, "waiting_max", waiting)
    _peak(row, "oldest_wait_max", pool.oldest_wait_ms)
