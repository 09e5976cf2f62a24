"""Where a lease can go on another server: GPUs like those that it has, with room for as much."""

from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import Gpu, Lease, Partition, PoolState, Server
from gpupool.pool.model.suspension import GpuMove
from gpupool.pool.policy.admission import Admission
from gpupool.pool.scheduling.moves import kept_refusal, unlike


def plan_relocation(
    state: PoolState, lease: Lease, target: Server
) -> tuple[Partition, ...] | Result:
    """Return partitions on another server, one for each that a lease has, in their order.

    Each time it is the GPU that is left the fullest. A lease that is moved leaves alone what is
    kept for anybody.
    """
    if not target.grantable:
        why = target.drain_reason or target.status.value
        return refuse(RefusalKind.BUSY, f"server {target.name} grants nothing now: {why}")
    chosen: list[Partition] = []
    for part in lease.partitions:
        gpu = state.servers[part.server].gpus.get(part.gpu)
        if gpu is None:
            return refuse(RefusalKind.BUSY, "one of its GPUs is not in the pool now")
        taken = {each.gpu for each in chosen}
        found = _best(state, lease, target, part, gpu, taken)
        if isinstance(found, Result):
            return found
        chosen.append(Partition(target.id, found.id, part.memory))
    return tuple(chosen)


def _best(
    state: PoolState, lease: Lease, target: Server, part: Partition, gpu: Gpu, taken: set[GpuId]
) -> Gpu | Result:
    """Return the GPU for one partition, or why there is none; the last reason is told."""
    if gpu.parent is not None:
        return refuse(RefusalKind.NEVER, f"GPU {gpu.index} that it has is a MIG instance")
    like = [each for each in target.gpus.values() if not unlike(gpu, each)]
    size = f"{part.memory >> 20} MiB"
    why = refuse(RefusalKind.NEVER, f"{target.name} has no GPU like GPU {gpu.index} that it has")
    if like:
        why = refuse(RefusalKind.BUSY, f"no GPU of {target.name} has {size} free for it")
    fitting: list[Gpu] = []
    for other in like:
        if other.id in taken or other.unfit or other.memory_free < part.memory:
            continue
        moves = [GpuMove(target.id, part.gpu, other.id)]
        place = [(target, other)]
        refusal = Admission(state).place_refusal(lease.user, place)
        refusal = refusal or kept_refusal(state, lease, moves)
        if refusal is None:
            fitting.append(other)
        else:
            why = refusal
    return min(fitting, key=lambda each: (each.memory_free, each.index)) if fitting else why
