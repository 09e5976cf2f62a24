"""Tables and measurements of one server for tests, and the samples that are made of them."""

from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.model.ids import (
    GpuId,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.state import (
    Gpu,
    Lease,
    Partition,
    PartStatus,
    PoolState,
    Server,
    ServerStatus,
)
from gpupool.pool.model.tables import LeaseTable, PersistentMap
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.telemetry import GpuTelemetry, HostTelemetry, SessionTelemetry, Telemetry

ME = ServerId("a" * 12)
START_MS = 1_790_000_000_000
GIB = 1 << 30
H200 = 140 * GIB


def health(majority_age_s: float = 0.1) -> RaftHealth:
    """Return the health of a lone server that leads."""
    return RaftHealth(Role.LEADER, ME, 3, 70, 70, (ME,), (), majority_age_s, {}, 1)


def gpu_id(index: int) -> GpuId:
    """Return the id of a GPU."""
    return GpuId(f"GPU-{index:08d}-1111-2222-3333-444455556666")


def table(gpus: int = 2, leases: int = 3, at: int = START_MS) -> PoolState:
    """Return a pool of one server; leases go round its GPUs, two users taking turns."""
    held: list[Lease] = []
    granted = dict.fromkeys(range(gpus), 0)
    for number in range(1, leases + 1):
        index = number % gpus
        granted[index] += 10 * GIB
        held.append(
            Lease(
                id=LeaseId(2 * number),
                request=RequestId(number.to_bytes(16)),
                user=("ada", "bob")[number % 2],
                token=TokenId("t"),
                partitions=(Partition(ME, gpu_id(index), 10 * GIB),),
                parts={ME: PartStatus.HELD},
                ticket_hash=b"",
                granted_at=Milliseconds(at),
                client="ada@laptop",
                program="train.py",
                user_class="lab",
            )
        )
    server = Server(
        id=ME,
        name="gpu-a",
        address="gpu-a:7470",
        voter=True,
        status=ServerStatus.UP,
        version="0.1",
        gpus={
            gpu_id(index): Gpu(
                id=gpu_id(index),
                index=index,
                name="NVIDIA H200",
                memory_total=H200,
                memory_granted=granted[index],
            )
            for index in range(gpus)
        },
    )
    return PoolState(
        name="lab", servers=PersistentMap({ME: server}), leases=LeaseTable((e.id, e) for e in held)
    )


def measured(state: PoolState, at: int, busy: float = 0.5) -> Telemetry:
    """Return the server's telemetry; its counters grow with the time."""
    second = (at - START_MS) // 1000
    server = state.servers[ME]
    return Telemetry(
        server=ME,
        at=Milliseconds(at),
        gpus=tuple(
            GpuTelemetry(
                gpu=gpu.id,
                memory_used=20 * GIB,
                utilization=busy,
                temperature_c=61.0,
                power_w=400.0,
                energy_j=400.0 * second,
                sm_activity=busy / 2,
                memory_bandwidth=0.25,
            )
            for gpu in server.gpus.values()
        ),
        sessions=tuple(
            SessionTelemetry(
                lease=lease.id,
                workers=1,
                calls=100 * second,
                bytes_in=1_000_000 * second,
                bytes_out=500_000 * second,
                memory_reserved=9 * GIB,
                memory_used=8 * GIB,
                waits=10 * second,
                wait_us=20_000 * second,
                door="cuda",
                transport="tcp",
                rtt_us=120,
                rtt_var_us=10,
                retransmits=0,
                busy={part.gpu: busy / 4 for part in lease.partitions},
                idle_s=0.0,
            )
            for lease in state.leases.values()
        ),
        host=HostTelemetry(
            cpu_busy=0.25, memory_total=512 * GIB, memory_available=300 * GIB,
            network_in=2_000_000 * second, network_out=1_000_000 * second,
            disk_total=1000 * GIB, disk_free=500 * GIB, resident={"server": 80_000_000},
        ),
    )  # fmt: skip


def sample(state: PoolState, at: int, busy: float = 0.5) -> Sample:
    """Return the sample of one second."""
    return Sampler().sample(state, measured(state, at, busy), health(), at)
