"""Moving a lease to other GPUs of its server: the order, by which its suspension begins.

``lease_suspensions`` has the rest: the confirmation of the last server gives the old GPUs back and
takes the new ones in one step. A lease that is moved is counted on one place at every moment.

A suspended lease has nothing on a GPU, so it takes the new ones with the order, and is resuming.
That gets a number of its own: its host has had the one of the suspension already.
"""

from dataclasses import replace

from gpupool.pool.model.ids import lease_name
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import Lease, PoolState, with_changes
from gpupool.pool.model.suspension import (
    GpuMove,
    MoveLease,
    Suspension,
    SuspensionHistory,
    SuspensionState,
)
from gpupool.pool.policy.giving_way import not_suspendable
from gpupool.pool.scheduling.moves import kept_refusal, moved, no_gpu_there, plan_moves
from gpupool.pool.transitions.kept_records import emit_event, record
from gpupool.pool.transitions.lease_suspensions import (
    not_resumed_by,
    order_refusal,
    recount,
    resume_refusal,
    with_order,
)
from gpupool.pool.transitions.leases import charge

SEVERAL_SERVERS = "it is suspended on several servers; only one that runs is moved there"


def move_lease(state: PoolState, command: MoveLease) -> Step:
    """Begin: its servers are told to stop its workers, to go on with other GPUs."""
    lease = state.leases.get(command.lease)
    refusal = order_refusal(lease, command)
    if lease is None or refusal is not None:
        return state, refusal or Result(ok=True)
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse(RefusalKind.NEVER, f"the pool has no server {command.server[:64]}")
    if refusal := _unsuitable(state, lease, command):
        return state, refusal
    moves = plan_moves(state, lease, server, command.gpus, command.to)
    if isinstance(moves, Result):
        return state, moves
    where = ", ".join(_move_text(state, each) for each in moves)
    if lease.is_away:
        return _resume_there(state, command, lease, moves, f"{where} of {server.name}")
    suspension = Suspension(
        state=SuspensionState.SUSPENDING,
        number=state.index,
        by=command.by,
        why=f"to move it {where} of {server.name}",
        since=state.now,
        moves=moves,
    )
    history = with_order(lease.history or SuspensionHistory(), command.order)
    changed = with_changes(lease, suspension=suspension, history=replace(history, refusal=None))
    name, what = lease_name(lease.id), f"lease of {lease.user}: {where} of {server.name}"
    state = record(state, "lease-moved", by=command.by, subject=name, text=what)
    state = with_changes(state, leases=state.leases.set(lease.id, changed))
    state = emit_event(state, "moving", name, f"by {command.by}: {where} of {server.name}")
    return state, Result(ok=True, lease=lease.id, why=f"it is being moved {where} of {server.name}")


def _resume_there(
    state: PoolState, command: MoveLease, lease: Lease, moves: tuple[GpuMove, ...], where: str
) -> Step:
    """Move a suspended lease to other GPUs, and resume it there."""
    there = moved(lease, moves)
    no_room = resume_refusal(state, there) or kept_refusal(state, lease, moves)
    if no_room is not None:
        return state, no_room
    assert lease.suspension is not None, "it is away"
    suspension = replace(
        lease.suspension,
        state=SuspensionState.RESUMING,
        number=state.index,
        confirmed=(),
        moves=moves,
    )
    history = with_order(lease.history or SuspensionHistory(), command.order).back(state.now)
    history = replace(history, moved_at=state.now, refusal=None)
    changed = with_changes(there, suspension=suspension, history=history)
    state = recount(charge(state, there.partitions, sign=1), lease, changed)
    name, what = lease_name(lease.id), f"lease of {lease.user}: {where}"
    state = record(state, "lease-moved", by=command.by, subject=name, text=what)
    state = with_changes(state, leases=state.leases.set(lease.id, changed))
    state = emit_event(state, "moved", name, f"by {command.by}: {where}, to go on there")
    return state, Result(ok=True, lease=lease.id, why=f"it is resumed, and moved {where}")


def _unsuitable(state: PoolState, lease: Lease, command: MoveLease) -> Result | None:
    """Return why a lease cannot be moved at all now, wherever to."""
    found = lease.suspension
    if found is not None and found.moves:
        return refuse(RefusalKind.BUSY, "it is being moved already; try again when it runs")
    if found is not None and found.state is SuspensionState.SUSPENDED:
        if why := not_resumed_by(command, lease, found):
            return refuse(RefusalKind.DENIED, why)
        if len(lease.parts) > 1:
            # Where one server could not have it go on, the others would run already.
            return refuse(RefusalKind.BUSY, SEVERAL_SERVERS)
    elif found is not None:
        return refuse(RefusalKind.BUSY, f"it is {found.state.value}; try again when it runs")
    if command.server not in lease.parts:
        return refuse(RefusalKind.NEVER, no_gpu_there(lease, state.servers[command.server]))
    why = not_suspendable(state, lease)
    return refuse(RefusalKind.BUSY, why) if why else None


def _move_text(state: PoolState, move: GpuMove) -> str:
    gpus = state.servers[move.server].gpus
    return f"from GPU {gpus[move.gpu].index} to GPU {gpus[move.to].index}"
