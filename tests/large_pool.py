"""A made-up pool of any size, for measuring what draws and merges views."""

from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import Partition
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry, Telemetry
from gpupool.pool.view import GpuView, LeaseView, PoolView, RaftView, ServerView

GIB = 1 << 30
NOW = Milliseconds(1_700_000_000_000)


def large_pool(servers: int, leases: int, gpus: int = 8) -> PoolSnapshot:
    """Return a pool in which each lease has one GPU's share, with measurements of everything."""
    names = [ServerId(f"{number:012x}") for number in range(servers)]
    held = [
        _lease(number, names[number % servers], number // servers % gpus)
        for number in range(leases)
    ]
    by_gpu: dict[GpuId, list[LeaseId]] = {}
    by_server: dict[ServerId, list[LeaseId]] = {}
    for lease in held:
        part = lease.partitions[0]
        by_gpu.setdefault(part.gpu, []).append(lease.id)
        by_server.setdefault(part.server, []).append(lease.id)
    rows = tuple(_server(at, name, by_gpu, gpus) for at, name in enumerate(names))
    raft = RaftView(
        "leader", "server-0", 3, 9, 9, tuple(names[:5]), tuple(names[1:5]), True, 0.0, 1
    )
    view = PoolView(1, "lab", "c0ffee", names[0], NOW, "tls", raft, rows, tuple(held), (), (), ())
    told = {row.id: _telemetry(row, by_server.get(row.id, ())) for row in rows}
    return PoolSnapshot(view, telemetry=told, telemetry_age_s=dict.fromkeys(told, 0.2))


def _gpu_id(server: ServerId, index: int) -> GpuId:
    return GpuId(f"GPU-{server}-{index}")


def _lease(number: int, server: ServerId, gpu: int) -> LeaseView:
    part = Partition(server, _gpu_id(server, gpu), 10 * GIB)
    return LeaseView(
        LeaseId(number + 1),
        f"{number + 1:x}",
        f"user-{number % 50}",
        f"user-{number % 50}@host",
        "train.py",
        "held",
        "",
        (part,),
        Milliseconds(NOW - 1000 * number),
        float(number),
    )


def _server(
    number: int, name: ServerId, by_gpu: dict[GpuId, list[LeaseId]], gpus: int
) -> ServerView:
    cards = tuple(_gpu(_gpu_id(name, index), index, by_gpu) for index in range(gpus))
    return ServerView(
        id=name,
        name=f"server-{number}",
        address=f"10.0.{number // 250}.{number % 250}:7470",
        state="mix",
        reason="",
        voter=number < 5,
        witness=False,
        leader=not number,
        incarnation=Incarnation(1),
        version="0.1.0",
        driver_version="580.1",
        cuda_version="13.0",
        labels={},
        gpus=cards,
        lease_count=len({lease for card in cards for lease in card.leases}),
        joined_at=Milliseconds(0),
    )


def _gpu(name: GpuId, index: int, by_gpu: dict[GpuId, list[LeaseId]]) -> GpuView:
    leases = tuple(by_gpu.get(name, ()))
    granted = 10 * GIB * len(leases)
    return GpuView(
        id=name,
        index=index,
        name="NVIDIA H200",
        memory_total=141 * GIB,
        capacity=140 * GIB,
        memory_granted=granted,
        memory_foreign=0,
        memory_free=140 * GIB - granted,
        compute_capability="9.0",
        pci_bus_id=f"0000:0{index}:00.0",
        emulated=False,
        mig=False,
        fault="",
        leases=leases,
    )


def _telemetry(server: ServerView, leases: "list[LeaseId] | tuple[()]") -> Telemetry:
    cards = tuple(
        GpuTelemetry(each.id, 5 * GIB, (each.index % 10) / 10, 61.0, 350.0, 1e6, 0)
        for each in server.gpus
    )
    sessions = tuple(SessionTelemetry(each, 1, 9, 8, 7, GIB, rtt_us=100) for each in leases)
    return Telemetry(server.id, NOW, cards, sessions)
