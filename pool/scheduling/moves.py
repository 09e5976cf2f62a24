"""Where a lease can be moved: other GPUs of the same server, of the same model, with room.

A program goes to another server by itself (``lease_relocations``). MIG instances are not suspended
at all.
"""

from collections.abc import Sequence

from gpupool.pool.model.ids import GpuId, lease_name
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import Gpu, Lease, Partition, PoolState, Server, with_changes
from gpupool.pool.model.suspension import GpuMove
from gpupool.pool.policy.admission import Admission
from gpupool.pool.scheduling import fairness

NO_OTHER_SERVER = (
    "a lease is moved among the GPUs of one server, because what its program has there lives in "
    "that server's worker process"
)


def plan_moves(
    state: PoolState,
    lease: Lease,
    server: Server,
    gpus: Sequence[GpuId],
    to: Sequence[GpuId],
) -> tuple[GpuMove, ...] | Result:
    """Return the moves of a lease's partitions, or the reason why they cannot move.

    Args:
        state: the table.
        lease: a lease that runs or is suspended.
        server: one of its servers.
        gpus: the GPUs that it leaves; empty for all that it has there.
        to: where they go, in this order; empty for the best ones.
    """
    name = f"lease {lease_name(lease.id)}"
    mine = [part for part in lease.partitions if part.server == server.id]
    unknown = [gpu for gpu in gpus if gpu not in {part.gpu for part in mine}]
    if unknown:
        what = f"{name} has no GPU {unknown[0][:64]} of {server.name}"
        return refuse(RefusalKind.NEVER, what)
    leaving = [part for part in mine if part.gpu in gpus] if gpus else mine
    if to and len(to) != len(leaving):
        count = f"{len(leaving)} GPU{'s' * (len(leaving) > 1)}"
        return refuse(RefusalKind.NEVER, f"{name} has {count} of {server.name}: name as many")
    fixed = _fixed(server, leaving)
    if fixed:
        return refuse(RefusalKind.NEVER, fixed)
    chosen = list(to) if to else _best(state, lease, server, leaving)
    if isinstance(chosen, Result):
        return chosen
    moves = [
        GpuMove(server.id, part.gpu, gpu)
        for part, gpu in zip(leaving, chosen, strict=True)
        if part.gpu != gpu
    ]
    if not moves:
        return refuse(RefusalKind.NEVER, f"{name} has these GPUs already")
    return _objection(state, lease, server, moves) or tuple(moves)


def no_gpu_there(lease: Lease, server: Server) -> str:
    """Return that a lease cannot be moved to, or on, a server of which it has no GPU."""
    return f"lease {lease_name(lease.id)} has no GPU of {server.name}: {NO_OTHER_SERVER}"


def moved(lease: Lease, moves: Sequence[GpuMove]) -> Lease:
    """Return a lease with its partitions where the moves bring them."""
    goes = {(each.server, each.gpu): each.to for each in moves}
    partitions = tuple(
        Partition(part.server, goes.get((part.server, part.gpu), part.gpu), part.memory)
        for part in lease.partitions
    )
    return with_changes(lease, partitions=partitions)


def _fixed(server: Server, leaving: Sequence[Partition]) -> str:
    """Return why GPUs cannot be left, wherever to."""
    for part in leaving:
        gpu = server.gpus.get(part.gpu)
        if gpu is None:
            return f"GPU {part.gpu} of {server.name} is not in the pool now"
        what = f"GPU {gpu.index} of {server.name}"
        if gpu.parent is not None:
            return f"{what} is a MIG instance, and programs on one cannot be suspended"
    return ""


def _objection(
    state: PoolState, lease: Lease, server: Server, moves: Sequence[GpuMove]
) -> Result | None:
    """Return why these moves cannot be made now, or None."""
    memory = {part.gpu: part.memory for part in lease.partitions if part.server == server.id}
    stays = memory.keys() - {each.gpu for each in moves}
    taken: set[GpuId] = set(stays)
    for each in moves:
        gpu = server.gpus.get(each.to)
        if gpu is None:
            return refuse(RefusalKind.NEVER, f"{server.name} has no GPU {each.to[:64]}")
        if each.to in taken:
            return refuse(
                RefusalKind.NEVER, f"lease {lease_name(lease.id)} would have GPU {gpu.index} twice"
            )
        taken.add(each.to)
        if why := unlike(server.gpus[each.gpu], gpu):
            return refuse(RefusalKind.NEVER, f"GPU {gpu.index} of {server.name} {why}")
        given_back = 0 if lease.is_away else memory.get(each.to, 0)
        if refusal := _no_room(server, gpu, memory[each.gpu], given_back):
            return refusal
    places = [(server, server.gpus[each.to]) for each in moves]
    return Admission(state).place_refusal(lease.user, places) or kept_refusal(state, lease, moves)


def kept_refusal(state: PoolState, lease: Lease, moves: Sequence[GpuMove]) -> Result | None:
    """Refuse GPUs that are kept for a request, or for a suspended lease, that goes first.

    A suspended lease need not leave its own GPUs to another one. A lease that is moved has GPUs,
    so it leaves alone what is kept for anybody.
    """
    priority = Admission(state).terms(lease.user).priority
    for each in fairness.going_first(state):
        if priority > each.entry.priority:
            return None
        for move in moves:
            kept = (move.server, move.to) in each.gpus
            if kept and each.entry.request.id != lease.request:
                server = state.servers[move.server]
                what = f"GPU {server.gpus[move.to].index} of {server.name}"
                who = each.entry.user
                return refuse(RefusalKind.BUSY, f"{what} is kept for {who}, who goes first")
    return None


def unlike(gpu: Gpu, other: Gpu) -> str:
    """Return how another GPU differs from the one that a lease leaves."""
    if other.parent is not None:
        return "is a MIG instance"
    if other.emulated != gpu.emulated:
        return f"is {'an emulated' if other.emulated else 'a real'} one"
    if (other.name, other.capacity) != (gpu.name, gpu.capacity):
        return f"is another model than GPU {gpu.index}"
    return ""


def _no_room(server: Server, gpu: Gpu, memory: int, given_back: int) -> Result | None:
    what = f"GPU {gpu.index} of {server.name}"
    if not server.grantable:
        why = server.drain_reason or server.status.value
        return refuse(RefusalKind.BUSY, f"server {server.name} grants nothing now: {why}")
    if gpu.unfit:
        return refuse(RefusalKind.BUSY, f"{what} grants nothing now: {gpu.unfit}")
    free = gpu.memory_free + given_back
    if free < memory:
        sizes = f"{memory >> 20} MiB are needed, and {max(0, free) >> 20} MiB are free"
        return refuse(RefusalKind.BUSY, f"{what} has no room: {sizes}")
    return None


def _best(
    state: PoolState, lease: Lease, server: Server, leaving: Sequence[Partition]
) -> list[GpuId] | Result:
    """Return GPUs for partitions, each time the one that is left the fullest."""
    has = {part.gpu for part in lease.partitions if part.server == server.id}
    found: list[GpuId] = []
    for part in leaving:
        fitting = [
            gpu
            for gpu in server.gpus.values()
            if gpu.id not in has
            and gpu.id not in found
            and _objection(state, lease, server, [GpuMove(server.id, part.gpu, gpu.id)]) is None
        ]
        if not fitting:
            size = f"{part.memory >> 20} MiB"
            like = f"like GPU {server.gpus[part.gpu].index}"
            why = f"no other GPU of {server.name} {like} has {size} free for it"
            if not server.grantable:
                why = f"server {server.name} grants nothing now, and {NO_OTHER_SERVER}"
            return refuse(RefusalKind.BUSY, why)
        found.append(min(fitting, key=lambda gpu: (gpu.memory_free, gpu.index)).id)
    return found
