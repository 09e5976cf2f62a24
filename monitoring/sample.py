"""A sample: a server's message to its exporter once a second, from its table and measurements.

``Telemetry`` says what was measured, the books what the table says of the same GPUs and leases. The
metrics, the history and the checks are made of samples, and of nothing else. Pure code.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.monitoring.frames import ServerMessage
from gpupool.pool.model.bounds import GpuKey, Int, LeaseNumber, Line, Name, Time
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId
from gpupool.pool.model.state import Gpu, PoolState, Server
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.ports import RaftHealth
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import RaftView, gpu_state
from gpupool.pool.view_building import leases_by_gpu, leases_on, raft_view, server_state
from gpupool.remoting.protocol.message_family import message

MILLION = 1_000_000
SERVERS_A_SECOND = 100
"""The pool of more servers is counted less often: its sum must not hold up the control loop."""


@dataclass(frozen=True, slots=True)
class GpuBooks:
    """Table data of one GPU of this server; sizes in bytes."""

    gpu: GpuKey
    index: Int
    model: Line
    memory_total: Int
    capacity: Int  # what leases could have
    granted: Int
    foreign: Int
    leases: Int
    state: Name  # a key of ``PoolBooks.gpus``
    pci_bus_id: Line
    parent: Line  # the physical GPU of a MIG instance, or empty
    emulated: bool
    fault: Line


@dataclass(frozen=True, slots=True)
class LeaseBooks:
    """Table data of one lease with a part on this server that is not freed."""

    lease: LeaseNumber
    user: Line
    user_class: Line  # of its grant
    department: Line  # of its grant
    client: Line
    program: Line
    granted_at: Time
    ending: bool
    granted: dict[GpuKey, Int]  # bytes on each GPU of this server; none while it is suspended
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class CapacityBooks:
    """Table sums over all GPUs of one model, in millionths of GPUs.

    A GPU is granted first, then outside, and the rest of it drained, down, at fault, or free.
    """

    gpus: Int = 0
    granted: Int = 0
    outside: Int = 0
    drained: Int = 0
    down: Int = 0  # also of a server that is not admitted yet
    fault: Int = 0


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """Table sums over the whole pool; sizes in bytes."""

    at: Time
    servers: dict[Name, Int]  # by state: new, idle, mix, full, drain, down
    gpus: dict[Name, Int]  # by state: idle, mix, full, drain, down, new, fault
    capacity: Int
    granted: Int
    foreign: Int
    leases: Int
    waiting: dict[Line, Int]  # by class, by the policy now in force
    oldest_wait_ms: Int
    policy_version: Int
    gpu_shares: float = 0.0  # granted, each GPU's as a share of its capacity
    models: dict[Line, CapacityBooks] = field(default_factory=dict[str, CapacityBooks])


@message(4)
class Sample(ServerMessage):
    """Everything that one server tells its exporter of one second."""

    at: Time  # the pool's time
    name: Line  # of the server; its id is the telemetry's
    pool_name: Line
    state: Name  # of the server
    version: Line
    driver_version: Line
    cuda_version: Line
    telemetry: Telemetry
    gpus: tuple[GpuBooks, ...]
    leases: tuple[LeaseBooks, ...]
    raft: RaftView
    pool: PoolBooks | None  # while in touch with a majority
    dropped: Int = 0  # samples that the exporter never got, since the server started


class Sampler:
    """Builds samples; keeps the pool's sum of a large pool for as long as it may be kept."""

    def __init__(self) -> None:
        self._pool: PoolBooks | None = None

    def sample(
        self, state: PoolState, telemetry: Telemetry, health: RaftHealth, now_ms: int
    ) -> Sample:
        """Return the sample of the server with the given telemetry.

        Args:
            state: the table of this moment.
            telemetry: the server's measurements.
            health: of the server's replication.
            now_ms: the pool's time.
        """
        server = state.servers.get(telemetry.server)
        raft = raft_view(state, health)
        self._pool = self._pool_books(state, now_ms) if raft.quorum else None
        return Sample(
            at=Milliseconds(now_ms),
            name=server.name if server else "",
            pool_name=state.name,
            state=server_state(server) if server else "new",
            version=server.version if server else "",
            driver_version=server.driver_version if server else "",
            cuda_version=server.cuda_version if server else "",
            telemetry=telemetry,
            gpus=_gpu_books(state, server) if server else (),
            leases=_lease_books(state, telemetry.server),
            raft=raft,
            pool=self._pool,
        )

    def _pool_books(self, state: PoolState, now_ms: int) -> PoolBooks:
        kept_for_ms = 1000 * len(state.servers) // SERVERS_A_SECOND
        if self._pool is not None and 0 <= now_ms - self._pool.at < kept_for_ms:
            return self._pool
        return pool_books(state, now_ms)


def _state_of(server: Server, gpu: Gpu) -> str:
    return gpu_state(
        server_state(server),
        fault=bool(gpu.fault or gpu.clash),
        drained=bool(gpu.drain_reason),
        granted=gpu.memory_granted,
        free=gpu.memory_free,
        capacity=gpu.capacity,
    )


def pool_books(state: PoolState, now_ms: int) -> PoolBooks:
    """Return the sums of the whole table."""
    servers, gpus = list(state.servers.values()), Counter[str]()
    capacity = granted = foreign = 0
    shares = 0.0
    models: dict[str, Counter[str]] = {}
    for server in servers:
        for gpu in server.gpus.values():
            state_of_gpu = _state_of(server, gpu)
            gpus[state_of_gpu] += 1
            _count_capacity(models.setdefault(gpu.name, Counter()), gpu, state_of_gpu)
            capacity += gpu.capacity
            granted += gpu.memory_granted
            shares += gpu.memory_granted / gpu.capacity if gpu.capacity else 0.0
            foreign += gpu.memory_foreign
    book, waiting = rulebook(state.policy), list(state.waiting.values())
    return PoolBooks(
        at=Milliseconds(now_ms),
        servers=_counted(server_state(server) for server in servers),
        gpus=dict(gpus),
        capacity=capacity,
        granted=granted,
        foreign=foreign,
        leases=len(state.leases),
        waiting=_counted(book.group_of(each.user) for each in waiting),
        oldest_wait_ms=max((max(0, now_ms - each.since) for each in waiting), default=0),
        policy_version=state.policy.version,
        gpu_shares=shares,
        models={name: CapacityBooks(**parts) for name, parts in models.items()},
    )


WITHHELD = {"drain": "drained", "down": "down", "new": "down", "fault": "fault"}
"""Capacity category of a GPU's remainder, by state; in any other state it is free."""


def _count_capacity(parts: Counter[str], gpu: Gpu, state: str) -> None:
    parts["gpus"] += MILLION
    if not gpu.capacity:
        parts["fault"] += MILLION  # nothing of it can be granted
        return
    granted = min(MILLION, MILLION * gpu.memory_granted // gpu.capacity)
    outside = min(MILLION - granted, MILLION * gpu.memory_foreign // gpu.capacity)
    parts["granted"] += granted
    parts["outside"] += outside
    if state in WITHHELD:
        parts[WITHHELD[state]] += MILLION - granted - outside


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words))


def _gpu_books(state: PoolState, server: Server) -> tuple[GpuBooks, ...]:
    leases = leases_by_gpu(state, server.id)
    return tuple(
        GpuBooks(
            gpu=gpu.id,
            index=gpu.index,
            model=gpu.name,
            memory_total=gpu.memory_total,
            capacity=gpu.capacity,
            granted=gpu.memory_granted,
            foreign=gpu.memory_foreign,
            leases=len(leases.get(gpu.id, ())),
            state=_state_of(server, gpu),
            pci_bus_id=gpu.pci_bus_id,
            parent=gpu.parent or "",
            emulated=gpu.emulated,
            fault=gpu.fault or gpu.clash,
        )
        for gpu in sorted(server.gpus.values(), key=lambda gpu: gpu.index)
    )


def _lease_books(state: PoolState, server: ServerId) -> tuple[LeaseBooks, ...]:
    books: list[LeaseBooks] = []
    for lease in leases_on(state, server):
        granted: dict[GpuId, int] = {}
        for part in lease.partitions:
            if part.server == server and not lease.is_away:
                granted[part.gpu] = granted.get(part.gpu, 0) + part.memory
        books.append(
            LeaseBooks(
                lease=lease.id,
                user=lease.user,
                user_class=lease.user_class,
                department=lease.department,
                client=lease.client,
                program=lease.program,
                granted_at=lease.granted_at,
                ending=not lease.held,
                granted=granted,
                suspended=lease.is_away,
            )
        )
    return tuple(books)
