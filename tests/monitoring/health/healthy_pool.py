"""A healthy pool of three servers as readings, and changes that make one of them ill."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from gpupool.monitoring.health.device_memory import SelfTest
from gpupool.monitoring.health.health_monitor import HealthMonitor
from gpupool.monitoring.health.readings import ExporterReadings, Readings
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.ids import GpuId, Incarnation, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, PoolState, TokenKind, with_changes
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.telemetry import (
    HISTOGRAMS,
    ConsensusTelemetry,
    Finding,
    GpuTelemetry,
    Histogram,
    HostTelemetry,
    Telemetry,
)
from gpupool.pool.transitions.apply import PoolMachine

GIB = 1 << 30
DAY_MS = 86_400_000
A, B, C = (ServerId(letter * 12) for letter in "abc")
START_MS = 1_790_000_000_000
GPUS = tuple(GpuId(f"GPU-{n}") for n in range(8))


def healthy_table(now_ms: int = START_MS) -> PoolState:
    machine = PoolMachine(PoolState())

    def do(command: c.Command) -> None:
        plain = c.wrap(command, at_ms=now_ms, ttl_ms=60_000)
        result = decode(Result, machine.apply(machine.state.index + 1, plain))
        assert result.ok, result

    do(c.CreatePool("c", "pool", "off"))
    year = Milliseconds(now_ms + 365 * DAY_MS)
    do(c.CreateToken(TokenId("root"), TokenKind.OPERATOR, "root", bytes(32), year, ""))
    for server in (A, B, C):
        token = TokenId(f"join-{server[0]}")
        if server != A:
            do(c.CreateToken(token, TokenKind.SERVER, "rack", bytes(32), year, "root"))
        do(c.JoinServer(server, server[0], f"{server[0]}:1", False, None if server == A else token))
        ids = GPUS if server == A else (GpuId(f"GPU-{server[0]}"),)
        gpus = tuple(Gpu(gpu, n, "NVIDIA X", 80 * GIB) for n, gpu in enumerate(ids))
        do(c.ServerUp(server, Incarnation(1), f"{server[0]}:1", "0.1.0", "580.1", "13.0", gpus))
    return machine.state


def empty_histograms() -> dict[str, Histogram]:
    return {name: Histogram((0,) * 15, 0.0) for name in HISTOGRAMS}


@dataclass
class Machine:
    """Server ``a``, the leader, second by second; each part may be made ill."""

    state: PoolState = field(default_factory=healthy_table)
    drain_for: tuple[str, ...] = ()
    noise: Random | None = None
    knows_table: bool = True
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.monitor = HealthMonitor(self.drain_for, failed=self.failed)
        self.gpus = {
            gpu: GpuTelemetry(
                gpu,
                10 * GIB,
                utilization=0.5,
                temperature_c=60.0,
                shutdown_c=95.0,
                ecc_errors=0,
                ecc_corrected=0,
                throttled_s={"thermal": 0.0, "hw_thermal": 0.0, "hw_power_brake": 0.0},
                remapped_rows={"pending": 0, "failed": 0},
                pcie_replays=0,
                nvlink_errors=0,
                nvlinks_up=18,
                pcie_width=16,
                pcie_width_max=16,
                pcie_generation=5,
                pcie_generation_max=5,
                recovery_action=0,
            )
            for gpu in GPUS
        }
        self.host: HostTelemetry | None = HostTelemetry(
            disk_total=1000 * GIB,
            disk_free=500 * GIB,
            descriptors=100,
            descriptors_max=1024,
            network_mtu=9000,
            memory_charged=GIB,
            memory_limit=4 * GIB,
            pids=50,
            pids_max=500,
        )
        self.consensus: ConsensusTelemetry | None = ConsensusTelemetry(
            link_rtt_s={B: 0.0003, C: 0.0003},
            clock_offset_s={B: 0.0, C: 0.0},
            journal_bytes=10 * GIB // 1024,
            snapshot_bytes=GIB // 1024,
            link_mtu={B: 9000, C: 9000},
            link_sent={B: 100_000, C: 100_000},
            link_resent={B: 3, C: 3},
        )
        self.histograms = empty_histograms()
        self.counters: dict[str, int] = {}
        self.loop_lag_s = 0.0
        self.health = RaftHealth(
            role=Role.LEADER,
            leader=A,
            term=3,
            commit_index=100,
            applied_index=100,
            voters=(A, B, C),
            connected=(B, C),
            majority_age_s=0.0,
            contact_age_s={B: 0.0, C: 0.0},
            elections=1,
        )
        self.certificates = {"server": 300 * 86400.0, "ca": 3000 * 86400.0}
        self.has_signer = True
        self.exporter = ExporterReadings()
        self.gpus_before: int | None = len(GPUS)
        self.errors_a_second: dict[GpuId, float] = {}
        self.tests = {gpu: SelfTest(0, 10.0, 10.2) for gpu in GPUS}

    def failed(self, text: str) -> None:
        raise AssertionError(text)

    def change_gpu(self, number: int = 3, **changes: Any) -> None:
        self.gpus[GPUS[number]] = replace(self.gpus[GPUS[number]], **changes)

    def readings(self) -> Readings:
        at = Milliseconds(START_MS + int(1000 * self.now_s))
        return Readings(
            now_s=self.now_s,
            at=at,
            telemetry=Telemetry(
                A,
                at,
                tuple(self.gpus.values()),
                loop_lag_s=self.loop_lag_s,
                counters=self.counters,
                host=self.host,
                consensus=self.consensus,
                histograms=self.histograms,
            ),
            state=with_changes(self.state, now=at),
            knows_table=self.knows_table,
            health=self.health,
            certificates=self.certificates,
            has_signer=self.has_signer,
            exporter=self.exporter,
            gpus_before=self.gpus_before,
            errors_a_second=self.errors_a_second,
            tests=self.tests,
        )

    def second(self) -> tuple[Finding, ...]:
        self.now_s += 1.0
        return self.monitor.round(self.readings())

    def run(self, seconds: int) -> tuple[Finding, ...]:
        found: tuple[Finding, ...] = ()
        for _ in range(seconds):
            found = self.second()
        return found

    def seconds_until(self, check: str, *, gone: bool = False, at_most: int = 700) -> int:
        for number in range(1, at_most):
            if any(each.check == check for each in self.second()) is not gone:
                return number
        raise AssertionError(
            f"{check} {'stays' if gone else 'is not found'}: {self.monitor.findings}"
        )
