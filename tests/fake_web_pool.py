"""A pool that does not exist, as the web page's source of data: any size, moving as time goes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests import fake_kept

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import DeniedError
from gpupool.pool.history_query import Episode, HistoryPage, HistoryQuery, HistorySeries
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    ServerId,
    lease_name,
)
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import Act, Event, LeaseRecord, Partition, RecordedGpu
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate
from gpupool.pool.record_query import GroupSum, RecordPage, RecordQuery
from gpupool.pool.telemetry import (
    Finding,
    GpuTelemetry,
    Health,
    HostTelemetry,
    SessionTelemetry,
    Telemetry,
)
from gpupool.pool.view import (
    GpuView,
    LeaseView,
    PoolView,
    RaftView,
    ServerView,
    SilenceView,
    WaitingView,
)
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.usage_query import UsageAnswer
from gpupool.remoting.protocol import messages as m

GIB = 1 << 30
START_MS = 1_795_370_400_000
MODELS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
SIZES = (141 * GIB, 80 * GIB)
USERS = ("ada", "grace", "linus", "barbara", "edsger", "katherine", "alan", "radia")
PROGRAMS = ("train.py", "finetune.py --lora", "sweep.py", "serve.py", "notebook", "simulate")
PRICES = '[prices]\ncurrency = "EUR"\n"*H200*" = 2.50\n'
POLICIES = (
    m.PolicyIs(4, "ada", Milliseconds(START_MS - 8_640_000), b""),
    m.PolicyIs(3, "ada", Milliseconds(START_MS - 864_000_000), b""),
)
LOST = "Xid 79: the GPU has fallen off the bus"
LONG = f"\N{HEBREW LETTER ALEF}\N{ARABIC LETTER BEH}\N{RIGHT-TO-LEFT MARK} {'W' * 120}"
HOSTILE = f"<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script> {LONG}"
"""HTML, words from right to left, and a word that is longer than any column."""


@dataclass(eq=False)
class FakePool(PoolSource):
    """Servers with GPUs, some leases on them; ``time_s`` is the clock's time."""

    servers: int = 12
    gpus: int = 8
    leases: int = 40
    waiting: int = 6
    name: str = "ada"
    operator: bool = True
    looks: bool = False  # a viewer's
    time_s: float = 0.0
    hostile: bool = False
    dead: set[int] = field(default_factory=set[int])
    drained: set[int] = field(default_factory=set[int])
    drained_gpus: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    ended: set[int] = field(default_factory=set[int])
    silences: tuple[SilenceView, ...] = ()
    orders: list[m.Order] = field(default_factory=list[m.Order])
    _died_at: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        """Initialize the base class, as every source does."""
        super().__init__()

    def now(self) -> float:
        """Return the clock."""
        return self.time_s

    def latest(self) -> PoolSnapshot:
        """Return the pool as it is now; dead servers keep their last telemetry."""
        at_ms = START_MS + int(self.time_s) * 1000
        leases = tuple(self._lease(n) for n in range(self.leases) if n not in self.ended)
        ids = [self._server_id(n) for n in range(self.servers)]
        telemetry: dict[ServerId, Telemetry] = {}
        for n, server in enumerate(ids):
            moment = float(int(self.time_s))
            if n in self.dead:
                moment = self._died_at.setdefault(n, moment)
            else:
                self._died_at.pop(n, None)
            telemetry[server] = self._telemetry(n, moment, leases)
        view = self._view(at_ms, ids, leases)
        connected = tuple(each for n, each in enumerate(ids) if n not in self.dead)
        self._watch.take(PoolUpdate(view, telemetry, 0.0, connected), self.time_s)
        known = self._watch.snapshot(self.time_s)
        assert known is not None
        return known

    def _server_id(self, n: int) -> ServerId:
        return ServerId(f"{(n * 2654435761) % (1 << 48):012x}")

    def _name(self, n: int) -> str:
        return f"gpu-{'abcdefgh'[n // 16 % 8]}{n % 16:02d}" if self.servers > 8 else f"node-{n}"

    def _places(self, n: int) -> list[tuple[int, int]]:
        count = (1, 1, 2, 1, 4, 1)[n % 6]
        server = (n * 7 + n // 5) % self.servers
        return [(server, (n * 3 + i) % self.gpus) for i in range(min(count, self.gpus))]

    def _lease(self, n: int) -> LeaseView:
        share = (1.0, 0.5, 0.5, 0.25, 1.0, 0.2)[n % 6] * 0.98
        parts = tuple(
            Partition(
                self._server_id(s),
                GpuId(f"GPU-{s}-{g}"),
                int(SIZES[s % 7 == 3] * share) >> 20 << 20,
            )
            for s, g in self._places(n)
        )
        user, program = USERS[n * 5 % 8], PROGRAMS[n % 6]
        if self.hostile and not n:
            program = HOSTILE
        granted = START_MS - (n % 50) * 521_000 - 40_000
        return LeaseView(
            id=LeaseId(0x1000 + n * 37),
            name=lease_name(LeaseId(0x1000 + n * 37)),
            user=user,
            client=HOSTILE
            if self.hostile and n == 1
            else f"{user}@{'laptop' if n % 2 else 'desk'}",
            program=program,
            state="held",
            reason="",
            partitions=parts,
            granted_at=Milliseconds(granted),
            age_s=(START_MS - granted) / 1000 + self.time_s,
            user_class=("students", "research", "staff")[n % 3],
            requested_at=Milliseconds(granted - (n % 4) * 7_300),
            granted_class=("students", "research", "staff")[n % 3],
        )

    def _server(self, n: int, leases: dict[tuple[str, str], list[LeaseView]]) -> ServerView:
        a100 = n % 7 == 3
        gpus: list[GpuView] = []
        for g in range(self.gpus):
            on = leases.get((self._server_id(n), f"GPU-{n}-{g}"), [])
            capacity = SIZES[a100] - GIB
            granted = min(
                capacity,
                sum(p.memory for each in on for p in each.partitions if p.gpu == f"GPU-{n}-{g}"),
            )
            fault = LOST if (n, g) == (4, 2) else ""
            gpus.append(
                GpuView(
                    id=GpuId(f"GPU-{n}-{g}"),
                    index=g,
                    name=MODELS[a100],
                    memory_total=SIZES[a100],
                    capacity=capacity,
                    memory_granted=granted,
                    memory_foreign=0,
                    memory_free=capacity - granted,
                    compute_capability="8.0" if a100 else "9.0",
                    pci_bus_id=f"0000:{g + 1:02x}:00.0",
                    emulated=False,
                    mig=False,
                    fault=fault,
                    drain=self.drained_gpus.get((n, g), ""),
                    leases=tuple(each.id for each in on),
                )
            )
        reason = HOSTILE if self.hostile else "new fan on Thursday"
        held = any(gpu.memory_granted for gpu in gpus)
        state = (
            "down"
            if n in self.dead
            else "drain"
            if n in self.drained
            else "mix"
            if held
            else "idle"
        )
        return ServerView(
            id=self._server_id(n),
            name=self._name(n),
            address=f"10.0.{n // 200}.{n % 200 + 10}:7470",
            state=state,
            reason=reason if n in self.drained else "",
            voter=n < 5,
            witness=False,
            leader=not n,
            incarnation=Incarnation(1),
            version="0.1.0",
            driver_version="580.95.05",
            cuda_version="13.0",
            labels={"rack": f"r{n // 16 + 1}", "room": "b12"},
            gpus=tuple(gpus),
            lease_count=len({lease for gpu in gpus for lease in gpu.leases}),
            joined_at=Milliseconds(START_MS - 86_400_000 * (n % 9 + 1)),
            link_speed=100_000,
            rdma=n % 2 == 0,
            silent_since=Milliseconds(START_MS + int(self._died_at.get(n, 0)) * 1000)
            if n in self.dead
            else Milliseconds(0),
        )

    def _telemetry(self, n: int, at_s: float, leases: tuple[LeaseView, ...]) -> Telemetry:
        server = self._server_id(n)
        at = Milliseconds(START_MS + int(at_s * 1000))
        sessions: list[SessionTelemetry] = []
        if self.leases <= 2000:
            sessions = [
                self._session(each, at_s)
                for each in leases
                if any(part.server == server for part in each.partitions)
            ]
        busy_gpus = (
            {p.gpu for each in leases for p in each.partitions} if self.leases <= 2000 else None
        )
        gpus: list[GpuTelemetry] = []
        for g in range(self.gpus):
            used = busy_gpus is None or f"GPU-{n}-{g}" in busy_gpus
            wave = 0.5 + 0.5 * math.sin(at_s / 23 + n * 1.7 + g * 0.9)
            busy = round(0.25 + 0.74 * wave, 3) if used else 0.0
            gpus.append(
                GpuTelemetry(
                    GpuId(f"GPU-{n}-{g}"),
                    memory_used=int((0.5 + 0.4 * wave) * SIZES[n % 7 == 3]) if used else GIB // 2,
                    utilization=busy,
                    temperature_c=round(36 + 38 * busy),
                    power_w=round(80 + 560 * busy),
                    energy_j=1e6,
                    ecc_errors=0,
                )
            )
        since = Milliseconds(START_MS - 4_000_000)
        text, hint = "8 % of the disk is free", "make room: gpupool doctor shows what takes it"
        disk = Finding("disk", "/var/lib/gpupool", Health.WARN, since, text, hint)
        clock = Finding("clock", "", Health.OK, since, "0.3 ms from the leader")
        lost = Finding("gpu-fault", "GPU-4-2", Health.FAIL, since, f"GPU 2: {LOST}")
        findings = {2: (disk, clock), 4: (lost,) if self.gpus > 2 else ()}.get(n, ())
        host = HostTelemetry(
            cpu_busy=0.2 + 0.01 * (n % 30),
            memory_total=512 * GIB,
            memory_available=300 * GIB,
            network_in=int(at_s * 8e7),
            network_out=int(at_s * 3e7),
            network_speed=100_000,
            disk_total=1800 * GIB,
            disk_free=(150 + 20 * (n % 40)) * GIB,
            resident={"server": 120 << 20, "exporter": 60 << 20, "workers": 3 * GIB},
        )
        return Telemetry(
            server, at, tuple(gpus), tuple(sessions), 0.002, host=host, findings=findings
        )

    def _session(self, lease: LeaseView, at_s: float) -> SessionTelemetry:
        n = int(lease.id)
        return SessionTelemetry(
            lease.id,
            1,
            int(at_s * (900 + n % 700)),
            int(at_s * (2e6 + n * 1000)),
            int(at_s * (7e5 + n * 300)),
            20 * GIB,
            memory_used=(4 + n % 30) * GIB,
            waits=int(at_s * (40 + n % 900)),
            wait_us=int(at_s * 90_000),
            door="cuda",
            transport="tls",
            rtt_us=180 + n % 250,
            busy={p.gpu: 0.4 + (n % 5) / 10 for p in lease.partitions},
            idle_s=0.0,
        )

    def _view(self, at_ms: int, ids: list[ServerId], leases: tuple[LeaseView, ...]) -> PoolView:
        by_gpu: dict[tuple[str, str], list[LeaseView]] = {}
        for each in leases:
            for part in each.partitions:
                by_gpu.setdefault((part.server, part.gpu), []).append(each)
        voters = tuple(ids[:5])
        reason = HOSTILE if self.hostile else "8 whole H200 are wanted, 5 are free"
        return PoolView(
            schema=1,
            name="lab",
            cluster_id="c0ffee0123456789",
            answered_by=ids[0],
            now=Milliseconds(at_ms),
            data_encryption="tls",
            raft=RaftView(
                "leader", self._name(0), 12, 4000, 4000, voters, voters[1:], True, 0.1, 3
            ),
            servers=tuple(self._server(n, by_gpu) for n in range(self.servers)),
            leases=leases,
            silences=self.silences,
            waiting=tuple(
                WaitingView(
                    f"{n:08x}",
                    USERS[n % 8],
                    f"{USERS[n % 8]}@desk",
                    "big.py",
                    (8, 2, 1)[n % 3],
                    (1.0, 0.5, 0.0)[n % 3],
                    (0, 0, 40 * GIB)[n % 3],
                    35.0 * (n + 1) + int(self.time_s),
                    reason if not n % 3 else "gpu.memory >= 80GiB: 2 free, but drained",
                    ("gpu.name = *H200*",) if not n % 3 else (),
                    priority=3 - n % 3,
                    user_class=("research", "students", "staff")[n % 3],
                )
                for n in range(self.waiting)
            ),
            events=tuple(
                Event(
                    Milliseconds(START_MS - (60 - n) * 47_000),
                    ("granted", "ended", "joined")[n % 3],
                    HOSTILE if self.hostile and n == 59 else f"{0x1000 + n * 37:04x}",
                    (f"2 GPUs to {USERS[n % 8]}", "released by its client", "with 8 GPUs")[n % 3],
                )
                for n in range(60)
            ),
            policy_version=4,
            record_count=200,
        )

    def user(self) -> str:
        """Return the name of the viewing user."""
        return self.name

    def is_operator(self) -> bool:
        """Return the value set by the test."""
        return self.operator

    def only_looks(self) -> bool:
        """Return the value set by the test."""
        return self.looks

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Return records of 60 leases, or their sums."""
        answer = UsageAnswer(answered={self._server_id(0): RecordPage(newest=200)})
        records = [self._record(n) for n in range(60)]
        if query.lease:
            records = [each for each in records if each.lease == query.lease]
        if query.by:
            hour = 3_600_000 * UNIT
            names = {"day": [f"2026-11-{n:02d}" for n in range(10, 23)]}.get(query.by, list(USERS))
            for n, name in enumerate(names):
                answer.groups[name] = GroupSum(
                    name,
                    5 + n,
                    str((90 - 7 * n) * hour),
                    str((900 - 70 * n) * GIB * 3_600_000),
                    40_000,
                    9_000,
                )
                answer.whole = answer.whole.plus(answer.groups[name])
        else:
            answer.records = records
        return answer

    def _record(self, n: int) -> LeaseRecord:
        lease = self._lease(n)
        begun = START_MS - (60 - n) * 3_600_000
        server = self._places(n)[0][0]
        return LeaseRecord(
            number=n + 1,
            lease=LeaseId(0x100 + n),
            server=self._server_id(server),
            server_name=self._name(server),
            user=lease.user,
            user_class=lease.user_class,
            department="physics",
            client=lease.client,
            program=lease.program,
            gpus=(RecordedGpu(GpuId("GPU-0-0"), "NVIDIA H200", 70 * GIB, UNIT // 2),),
            requested_at=Milliseconds(begun - 4000),
            granted_at=Milliseconds(begun),
            ended_at=Milliseconds(begun + 1_800_000 + n * 60_000),
            freed_at=Milliseconds(begun + 1_801_000 + n * 60_000),
            reason="released" if n % 5 else "its client is gone",
            idle_timeout_ms=0,
        )

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Return a wave for each server that was asked, with a gap; or sums of samples by user."""
        if query.of == "health":
            return HistoryAnswer({self._server_id(n): self._episodes(n) for n in range(2)})
        if query.of == "capacity":
            return HistoryAnswer({self._server_id(0): fake_kept.capacity(START_MS, MODELS[0])})
        if query.of == "sums":
            return HistoryAnswer({self._server_id(0): fake_kept.sums(query, USERS)})
        if query.of == "storage":
            alive = [n for n in range(self.servers) if n not in self.dead]
            kept = {self._server_id(n): fake_kept.storage(START_MS, n) for n in alive}
            return HistoryAnswer(kept)
        step = max(10, int(query.until - query.since) // 300_000)
        if query.of.startswith("gpu-"):
            mine = (("", ""), ("1000", HOSTILE if self.hostile else "ada"), ("1025", "barbara"))
            return HistoryAnswer({each: fake_kept.of_gpu(query, step, mine) for each in servers})
        wave = 0.0 if query.metric == "capacity" else 0.4
        full = 1000 * {"busy": 1000 * self.gpus, "capacity": 2 << 20}.get(query.metric, 1 << 20)
        full = 60 << 20 if (query.of, query.metric) == ("gpu", "memory") else full
        points = tuple(
            (t, int((wave * math.sin(t / 900) + 0.5) * full), 1000, -1)
            for t in range(int(query.since) // 1000, int(query.until) // 1000, step)
            if not 100 < (t // step) % 300 < 120
        )
        asked = servers or (self._server_id(0),)
        return HistoryAnswer(
            {each: HistoryPage(step, (HistorySeries("", "", points),)) for each in asked}
        )

    def _episodes(self, number: int) -> HistoryPage:
        """Return a GPU that was hot, a disk that is full, and a server that was away."""
        hour, fail = 3_600_000, Health.FAIL
        text = HOSTILE if self.hostile else "GPU 0 has 91 C"
        began = [Milliseconds(START_MS - ago * hour) for ago in (1, 2, 5)]
        ended = Milliseconds(began[1] + 1_500_000)
        heat = Episode("temperature", f"GPU-{number}-0", fail, began[1], ended, text)
        away = Episode("silent", self._name(3), fail, began[2], ended, "it does not answer")
        disk = Episode("disk", "free", Health.WARN, began[0], text="9 GiB are free")
        found = (disk, heat, away) if number else (away,)
        return HistoryPage(episodes=found, oldest=Milliseconds(START_MS - 48 * hour))

    async def audit(self) -> m.AuditNow:
        """Return some acts."""
        acts = tuple(
            Act(
                n + 1,
                n + 10,
                Milliseconds(START_MS - (9 - n) * 900_000),
                "drained",
                "ada",
                self._name(n % self.servers),
                HOSTILE if self.hostile else "new fan",
            )
            for n in range(8)
        )
        return m.AuditNow(acts, len(acts))

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Return one of two policies; the older one had other prices and no currency."""
        from gpupool.pool.transitions.policy_versions import pack_text

        text = "[defaults]\nmax_gpus = 4\n\n[class.students]\nmax_gpus = 2\n\n"
        prices = '[prices]\n"*H200*" = 1\n' if version == 3 else PRICES
        return replace(POLICIES[-1 if version == 3 else 0], packed=pack_text(text + prices))

    async def policy_history(self) -> Sequence[m.PolicyIs]:
        """Return both, the newer one first."""
        return POLICIES

    async def operate(self, order: m.Order) -> str:
        """Do it."""
        self.orders.append(order)
        if not self.operator and not isinstance(order, m.EndLease):
            raise DeniedError("only operators may do that")
        order.check()
        if isinstance(order, m.EndLease):
            self.ended |= {n for n in range(self.leases) if self._lease(n).id == order.lease}
        if isinstance(order, m.DrainServer):
            [n] = [n for n in range(self.servers) if self._name(n) == order.server]
            self.drained = self.drained - {n} if order.reason is None else {*self.drained, n}
        if isinstance(order, m.DrainGpu):
            [n] = [n for n in range(self.servers) if self._name(n) == order.server]
            self.drained_gpus.pop((n, int(order.gpu)), None)
            if order.reason is not None:
                self.drained_gpus[n, int(order.gpu)] = order.reason
        if isinstance(order, m.SetSilence):
            key = order.of, order.server, order.subject
            kept = [s for s in self.silences if (s.check, s.server, s.subject) != key]
            if order.reason is not None:
                until = Milliseconds(START_MS + int(1000 * (self.time_s + order.for_s)))
                kept.append(SilenceView(*key, until, order.reason, self.name, Milliseconds(0)))
            self.silences = tuple(kept)
        return order.outcome("")
