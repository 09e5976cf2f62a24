"""Inputs of the checks: the readings of a moment, and a short memory of earlier ones. Pure."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpupool.monitoring.health.device_memory import SelfTest
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds
from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.ports import RaftHealth
from gpupool.pool.telemetry import GpuTelemetry, Health, Telemetry

REMEMBERED_EVERY_S = 10.0
REMEMBERED_S = 600.0
COUNTED_EVERY_S = 60.0
COUNTED_S = 3600.0
XIDS_REMEMBERED_S = 86_400.0
LAGS = 10
"""Seconds of the event loop's lag that are looked at together."""


@dataclass(frozen=True, slots=True)
class ExporterReadings:
    """How a server's exporter does."""

    restarts: int = 0
    dropped: int = 0  # samples
    problem: str = ""  # of the accounts or the history


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Everything that one server knows at one moment."""

    now_s: float  # monotonic
    at: Milliseconds  # the pool's time
    telemetry: Telemetry
    state: PoolState
    knows_table: bool = True  # else ``state`` may be that of an earlier start
    health: RaftHealth
    certificates: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that are left, by name: server, web, ca."""
    has_signer: bool = True  # a process that signs certificates
    exporter: ExporterReadings | None = None
    gpus_before: int | None = None
    """GPUs at the last start of this server; None: there was none."""
    errors_a_second: Mapping[GpuId, float] = field(default_factory=dict[GpuId, float])
    """Corrected memory errors of a month, where it is known."""
    tests: Mapping[GpuId, SelfTest] = field(default_factory=dict[GpuId, SelfTest])

    @property
    def server(self) -> Server | None:
        """Return this server as the table has it."""
        return self.state.servers.get(self.telemetry.server)


@dataclass(frozen=True, slots=True)
class Result:
    """A check's result now, before any patience: see ``FindingTracker``."""

    check: str
    subject: str
    status: Health
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Remembered:
    """An earlier moment."""

    now_s: float
    telemetry: Telemetry
    applied_index: int

    def gpu(self, gpu: GpuId) -> GpuTelemetry | None:
        """Return the measurements of one GPU."""
        return next((each for each in self.telemetry.gpus if each.gpu == gpu), None)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of an earlier moment, kept for longer."""

    now_s: float
    elections: int
    exporter: ExporterReadings


@dataclass(frozen=True, slots=True)
class ProgramXid:
    """An error of a program on one GPU, and the only lease that was there."""

    now_s: float
    lease: LeaseId
    user: str


class Past:
    """The latest ten minutes in steps of 10 s, and an hour of a few counters."""

    def __init__(self) -> None:
        self.first: Remembered | None = None
        self.lags: deque[float] = deque(maxlen=LAGS)
        self.program_xids: dict[GpuId, deque[ProgramXid]] = {}
        self._moments: deque[Remembered] = deque()
        self._counts: deque[Counted] = deque()
        self._xids: dict[GpuId, int] = {}

    def moments(self, within_s: float, now_s: float) -> Iterator[Remembered]:
        """Return the remembered moments of the latest seconds, the oldest first."""
        return (each for each in self._moments if each.now_s >= now_s - within_s)

    def since(self, within_s: float, now_s: float) -> Remembered | None:
        """Return the oldest moment of the latest seconds."""
        return next(self.moments(within_s, now_s), None)

    def counted(self, within_s: float, now_s: float) -> Counted | None:
        """Return the oldest counters of the latest seconds."""
        return next((each for each in self._counts if each.now_s >= now_s - within_s), None)

    def look(self, readings: Readings, program_xids: frozenset[int]) -> None:
        """Record the data that is kept of each second: called before the checks."""
        self.lags.append(readings.telemetry.loop_lag_s)
        now = readings.now_s
        for gpu in readings.telemetry.gpus:
            count = sum(times for xid, times in gpu.xids.items() if xid in program_xids)
            known = self._xids.get(gpu.gpu, count)
            self._xids[gpu.gpu] = count
            seen = self.program_xids.setdefault(gpu.gpu, deque(maxlen=64))
            while seen and seen[0].now_s < now - XIDS_REMEMBERED_S:
                seen.popleft()
            if count > known:
                holders = holders_of(readings, gpu.gpu)
                # Which of several programs it was is not known, so none is blamed.
                if len(holders) == 1:
                    seen.append(ProgramXid(now, *next(iter(holders.items()))))

    def remember(self, readings: Readings) -> None:
        """Take note of a moment that is looked back at: called after the checks."""
        now = readings.now_s
        moment = Remembered(now, readings.telemetry, readings.health.applied_index)
        if self.first is None:
            self.first = moment
        if not self._moments or now >= self._moments[-1].now_s + REMEMBERED_EVERY_S - 0.5:
            self._moments.append(moment)
        while self._moments[0].now_s < now - REMEMBERED_S - REMEMBERED_EVERY_S:
            self._moments.popleft()
        if not self._counts or now >= self._counts[-1].now_s + COUNTED_EVERY_S - 0.5:
            exporter = readings.exporter or ExporterReadings()
            self._counts.append(Counted(now, readings.health.elections, exporter))
        while self._counts[0].now_s < now - COUNTED_S - COUNTED_EVERY_S:
            self._counts.popleft()


def holders_of(readings: Readings, gpu: GpuId) -> dict[LeaseId, str]:
    """Return the users of the leases on one GPU of this server."""
    me = readings.telemetry.server
    return {
        lease.id: lease.user
        for lease in readings.state.leases.at(me).values()
        if lease.is_charged(me) and any(part.gpu == gpu for part in lease.partitions)
    }
