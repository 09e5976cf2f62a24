"""Moving a lease of the array door to another server; ``model.relocation`` has states and commands.

Memory on the new server is taken with the order, by the rules of a grant. That on the old one is
given back by ``FreeLease``, once the lease is gone from there and its server has killed what is
left. So both count in the books of the GPUs meanwhile. Limits of the policy count one of them.

What ends the lease ends both parts. What ends the new part alone has the lease stay. A
lease goes on GPUs like those that it has, with room for as much.
"""

from dataclasses import replace

from gpupool.pool.model.formats import ALL_STARVED_SINCE
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, ServerId, lease_name
from gpupool.pool.model.relocation import (
    RELOCATION_MS,
    ConfirmRelocated,
    RefuseRelocation,
    RelocateLease,
    Relocation,
    RelocationState,
)
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    Gpu,
    Lease,
    Partition,
    PartStatus,
    PoolState,
    Server,
    ServerStatus,
    with_changes,
)
from gpupool.pool.model.suspension import GpuMove, SuspensionHistory
from gpupool.pool.policy.admission import Admission, duration_text
from gpupool.pool.scheduling.moves import kept_refusal, unlike
from gpupool.pool.transitions.kept_records import emit_event, record
from gpupool.pool.transitions.lease_suspensions import order_refusal, recount, with_order
from gpupool.pool.transitions.leases import TEXT_LENGTH_MAX, charge, stay, units_by_server


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


R = RelocationState


def relocate_lease(state: PoolState, command: RelocateLease) -> Step:
    """Take memory on the other server; the client is told to go there."""
    lease = state.leases.get(command.lease)
    refusal = order_refusal(lease, command)
    if lease is None or refusal is not None:
        return state, refusal or Result(ok=True)
    target = state.servers.get(command.target)
    if target is None:
        return state, refuse(RefusalKind.NEVER, f"the pool has no server {command.target[:64]}")
    if refusal := _unsuitable(state, lease, target.id):
        return state, refusal
    if not command.operator and (wait_ms := lease.moves_from - state.now) > 0:
        why = f"its last move took long and came to nothing; try again in {duration_text(wait_ms)}"
        return state, refuse(RefusalKind.BUSY, why)
    there = plan_relocation(state, lease, target)
    if isinstance(there, Result):
        return state, there
    (source,) = lease.parts
    where = f"from {state.servers[source].name} to {target.name}"
    changed = with_changes(
        lease,
        partitions=(*lease.partitions, *there),
        parts=lease.parts | {target.id: PartStatus.HELD},
        units=lease.units | units_by_server(state, there),
        relocation=Relocation(
            state=R.LEAVING,
            number=state.index,
            source=source,
            target=target.id,
            by=command.by,
            since=state.now,
            source_since=lease.here_since or lease.granted_at,
            billed=state.formats() >= ALL_STARVED_SINCE,
        ),
        history=with_order(lease.history or SuspensionHistory(), command.order),
    )
    state = recount(charge(state, there, sign=1), lease, changed)
    name, what = lease_name(lease.id), f"lease of {lease.user}: {where}"
    state = record(state, "lease-moved", by=command.by, subject=name, text=what)
    state = with_changes(state, leases=state.leases.set(lease.id, changed))
    state = emit_event(state, "moving", name, f"by {command.by}: {where}")
    return state, Result(ok=True, lease=lease.id, why=f"it is being moved {where}")


def _unsuitable(state: PoolState, lease: Lease, target: ServerId) -> Result | None:
    """Return why a lease cannot go to another server now, apart from the room there."""
    if lease.relocation is not None:
        why = "it is being moved to another server already; try again when that is done"
        return refuse(RefusalKind.BUSY, why)
    if lease.suspension is not None:
        return refuse(RefusalKind.BUSY, f"it is {lease.suspension.state.value}; resume it first")
    if len(lease.parts) > 1:
        return refuse(RefusalKind.NEVER, "a lease on several servers stays on them")
    (source,) = lease.parts
    if source == target:
        return refuse(RefusalKind.NEVER, f"it is on {state.servers[source].name} already")
    if state.servers[source].status is not ServerStatus.UP:
        name = state.servers[source].name
        return refuse(
            RefusalKind.BUSY, f"server {name} is not reachable, and has what it is to send"
        )
    return None


def confirm_relocated(state: PoolState, command: ConfirmRelocated) -> Step:
    """Assign the lease to the new server; the old one is to free its part."""
    lease = _leaving(state, command.lease, command.number)
    if isinstance(lease, Result):
        return state, lease
    found = _relocation(lease)
    if command.server != found.source or not _is_current(
        state, command.server, command.incarnation
    ):
        return state, refuse(RefusalKind.CONFLICT, "not the old server's current incarnation")
    changed = with_changes(
        lease,
        parts=lease.parts | {found.source: PartStatus.ENDING},
        relocation=replace(found, state=R.GONE),
        idle_on=tuple(each for each in lease.idle_on if each != found.source),
        here_since=found.since if found.billed else state.now,
    )
    state = recount(with_changes(state, leases=state.leases.set(lease.id, changed)), lease, changed)
    where = f"from {_name(state, found.source)} to {_name(state, found.target)}"
    return emit_event(state, "moved", lease_name(lease.id), where), Result(ok=True)


def refuse_relocation(state: PoolState, command: RefuseRelocation) -> Step:
    """Leave the lease on its old server; the new server is to free its part."""
    lease = _leaving(state, command.lease, command.number)
    if isinstance(lease, Result):
        return state, lease
    found = _relocation(lease)
    if command.server is None:
        if state.now < found.since + RELOCATION_MS:
            return state, refuse(RefusalKind.CONFLICT, "it is not late yet")
    elif command.server not in (found.source, found.target) or not _is_current(
        state, command.server, command.incarnation
    ):
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation of its servers")
    reason = command.reason[:TEXT_LENGTH_MAX] or "its server could not"
    return stay(state, lease, reason), Result(ok=True)


def _leaving(state: PoolState, lease_id: LeaseId, number: int) -> Lease | Result:
    """Return the lease of a word about its relocation, or why the word counts no more."""
    lease = state.leases.get(lease_id)
    if lease is None or not lease.held:
        return refuse(RefusalKind.CONFLICT, "the lease has ended")
    found = lease.relocation
    if found is None or found.number != number or found.state is not R.LEAVING:
        return refuse(RefusalKind.CONFLICT, "that relocation is over")
    return lease


def _is_current(state: PoolState, server: ServerId, incarnation: Incarnation) -> bool:
    known = state.servers.get(server)
    return known is not None and known.incarnation == incarnation


def _relocation(lease: Lease) -> Relocation:
    assert lease.relocation is not None, "checked by _leaving"
    return lease.relocation


def _name(state: PoolState, server: ServerId) -> str:
    return state.servers[server].name if server in state.servers else server


def late_relocations(state: PoolState, now_ms: int) -> tuple[RefuseRelocation, ...]:
    """Return the leader's refusals of relocations that nobody confirms."""
    leaving = state.leases.relocating().values()
    found = ((lease.id, lease.relocation) for lease in leaving if lease.held)
    why = f"it has not gone within {RELOCATION_MS // 60_000} min"
    return tuple(
        RefuseRelocation(lease, each.number, why)
        for lease, each in found
        if each is not None
        and each.state is R.LEAVING
        and max(now_ms, state.now) >= each.since + RELOCATION_MS
    )
