"""Suspending and resuming leases in the table; ``model.suspension`` has the states and commands.

Memory is given back in one step, by the confirmation of the last server, and taken again in one
step, by ``ResumeLease``. Confirmations carry the number of the suspension that they belong to, so
that a late one of an earlier suspension does nothing. A lease that ends while it is suspended ends
as any other does; freeing its parts gives nothing back a second time.
"""

from dataclasses import replace

from gpupool.pool.model.formats import ALL_STARVED_SINCE
from gpupool.pool.model.ids import Milliseconds, ServerId, lease_name
from gpupool.pool.model.relocation import RelocateLease
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import Lease, PoolState, with_changes
from gpupool.pool.model.suspension import (
    ConfirmResumed,
    ConfirmSuspended,
    GpuMove,
    MoveLease,
    RefuseSuspension,
    ResumeLease,
    SuspendLease,
    SuspendRefusal,
    Suspension,
    SuspensionHistory,
    SuspensionState,
)
from gpupool.pool.policy.giving_way import (
    GOES_ELSEWHERE,
    never_suspendable,
    window_suspensions,
)
from gpupool.pool.policy.rulebook import plus, usage_of
from gpupool.pool.scheduling.moves import kept_refusal, moved
from gpupool.pool.scheduling.preemption import is_due
from gpupool.pool.transitions.kept_records import THE_POOL, emit_event, record
from gpupool.pool.transitions.leases import (
    TEXT_LENGTH_MAX,
    charge,
    count,
    fairness_refusal,
    policy_refusal,
    space_refusal,
)

ORDER_SIZE = 16
ORDER_COUNT_MAX = 8
"""Orders that a lease remembers. A repetition comes within seconds."""

S = SuspensionState


# --- suspending -----------------------------------------------------------------------------------


def suspend_lease(state: PoolState, command: SuspendLease) -> Step:
    """Begin: its servers are told to stop its workers."""
    lease = state.leases.get(command.lease)
    refusal = order_refusal(lease, command)
    if lease is None or refusal is not None:
        return state, refusal or Result(ok=True)
    found = lease.suspension
    if found is not None and found.state is S.RESUMING:
        return state, refuse(RefusalKind.BUSY, "it is being resumed; try again when it runs")
    if found is not None:
        return state, Result(ok=True, why="it is suspended already", lease=lease.id)
    if lease.relocation is not None:
        return state, refuse(RefusalKind.BUSY, f"{GOES_ELSEWHERE}; try again when that is done")
    if why := never_suspendable(state, lease):
        return state, refuse(RefusalKind.BUSY, why)
    if command.for_request is not None and command.for_request not in state.waiting:
        return state, refuse(RefusalKind.CONFLICT, "the request waits no more")
    if not command.by and state.policy.version and not _is_due(state, command):
        return state, refuse(RefusalKind.CONFLICT, "the policy's rules do not ask for it now")
    by = command.by
    suspension = Suspension(
        state=S.SUSPENDING,
        number=state.index,
        by=by,
        why=command.why[:TEXT_LENGTH_MAX],
        since=state.now,
        for_request=command.for_request,
        resume_since=_wanted_since(state) if not by else Milliseconds(0),
    )
    history = with_order(lease.history or SuspensionHistory(), command.order)
    history = replace(history, refusal=None)
    lease = with_changes(lease, suspension=suspension, history=history)
    why = suspension.why or "no reason given"
    if by:
        what = f"lease of {lease.user}: {why}"
        state = record(state, "lease-suspended", by=by, subject=lease_name(lease.id), text=what)
    text = f"by {by or THE_POOL}: {why}"
    return _put(state, lease, "suspending", text), Result(ok=True, lease=lease.id)


def _is_due(state: PoolState, command: SuspendLease) -> bool:
    """Return whether the policy, which a leader has read in an older table, still asks for it."""
    if command.for_request is not None:
        return is_due(state, command.lease, command.for_request)
    return command.lease in window_suspensions(state)


def confirm_suspended(state: PoolState, command: ConfirmSuspended) -> Step:
    """Take note that one server's workers have let go; with the last, give the memory back."""
    lease = _of_server(state, command, S.SUSPENDING)
    if isinstance(lease, Result):
        return state, lease
    suspension = _suspension(lease)
    suspension = replace(
        suspension,
        confirmed=_confirmed(suspension, command.server),
        bytes=suspension.bytes + max(0, command.bytes),
    )
    if lease.parts.keys() - set(suspension.confirmed):
        return _put(state, with_changes(lease, suspension=suspension)), Result(ok=True)
    suspension = replace(suspension, state=S.SUSPENDED, confirmed=())
    history = lease.history or SuspensionHistory()
    history = replace(history, away_since=_wanted_since(state), refusal=None)
    changed = with_changes(lease, suspension=suspension, history=history)
    state = recount(charge(state, lease.partitions, sign=-1), lease, changed)
    if suspension.moves:
        return _arrive(state, changed)
    text = f"its workers have let go; it takes {suspension.bytes >> 20} MiB of its servers' memory"
    return _put(state, changed, "suspended", text), Result(ok=True)


def _arrive(state: PoolState, lease: Lease) -> Step:
    """Resume a lease on other GPUs, or on the GPUs that it has just given back.

    Its memory is its own again before anybody else's command comes, so the way back is free.
    """
    suspension, history = _suspension(lease), (lease.history or SuspensionHistory()).back(state.now)
    there = moved(lease, suspension.moves)
    no_room = resume_refusal(state, there) or kept_refusal(state, lease, suspension.moves)
    if no_room is None:
        kind, text = "moved", f"{suspension.why}, by {suspension.by or THE_POOL}"
        history = replace(history, moved_at=state.now)
    else:
        kind, text = "not-moved", no_room.why
        there, suspension = lease, replace(suspension, moves=())
        history = replace(history, refusal=SuspendRefusal(no_room.why, state.now))
    suspension = replace(suspension, state=S.RESUMING, confirmed=())
    changed = with_changes(there, suspension=suspension, history=history)
    state = recount(charge(state, there.partitions, sign=1), lease, changed)
    return _put(state, changed, kind, text), Result(ok=True)


def refuse_suspension(state: PoolState, command: RefuseSuspension) -> Step:
    """Resume a lease on all its servers, because one of them could not suspend or move it."""
    if _is_arriving(state.leases.get(command.lease)):
        return _go_back(state, command)
    lease = _of_server(state, command, S.SUSPENDING)
    if isinstance(lease, Result):
        return state, lease
    reason = command.reason[:TEXT_LENGTH_MAX] or "its server could not"
    refusal = SuspendRefusal(reason, state.now)
    history = replace(lease.history or SuspensionHistory(), refusal=refusal)
    suspension = replace(_suspension(lease), state=S.RESUMING, confirmed=(), bytes=0, moves=())
    lease = with_changes(lease, suspension=suspension, history=history)
    return _put(state, lease, "not-suspended", reason), Result(ok=True)


def _go_back(state: PoolState, command: RefuseSuspension) -> Step:
    """Resume a moved lease on its old GPUs: its server cannot use the new ones.

    Its workers have nothing on any GPU, so the new ones are given back in the step that takes the
    old ones again. When somebody has these by now, it is suspended until they are free. On several
    servers it cannot be: the others may run already.
    """
    lease = _of_server(state, command, S.RESUMING)
    if isinstance(lease, Result):
        return state, lease
    if command.server not in {each.server for each in _suspension(lease).moves}:
        return state, refuse(RefusalKind.CONFLICT, "it is moved on another server")
    taken = way_back_refusal(state, lease)
    if taken is not None and len(lease.parts) > 1:
        return state, taken
    there = _before_move(lease)
    reason = command.reason[:TEXT_LENGTH_MAX] or "its server could not"
    suspension = replace(_suspension(lease), moves=())
    history = lease.history or SuspensionHistory()
    history = replace(history, refusal=SuspendRefusal(reason, state.now))
    if taken is not None:
        suspension = replace(
            suspension,
            state=S.SUSPENDED,
            resume_since=suspension.resume_since or _wanted_since(state),
        )
        history = replace(history, away_since=_wanted_since(state))
    changed = with_changes(there, suspension=suspension, history=history)
    state = charge(state, lease.partitions, sign=-1)
    if taken is None:
        state = charge(state, there.partitions, sign=1)
    state = recount(state, lease, changed)
    text = reason if taken is None else f"{reason}; it goes on when there is room: {taken.why}"
    return _put(state, changed, "not-moved", text), Result(ok=True)


def way_back_refusal(state: PoolState, lease: Lease) -> Result | None:
    """Return why a lease that was moved, and is not there yet, cannot have its old GPUs again.

    A drain of an old GPU does not keep it from going back.
    """
    if not _is_arriving(lease):
        return refuse(RefusalKind.CONFLICT, "it is not being moved")
    state = charge(state, lease.partitions, sign=-1)
    for part in _before_move(lease).partitions:
        server = state.servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        if server is None or gpu is None:
            return refuse(RefusalKind.BUSY, "one of its old GPUs is not in the pool now")
        # A drained one has no free memory to grant, but what was given back a moment ago.
        if gpu.memory_total - gpu.memory_reserved - gpu.memory_granted < part.memory:
            return refuse(RefusalKind.BUSY, f"GPU {gpu.index} of {server.name} is taken by now")
    return None


def _is_arriving(lease: Lease | None) -> bool:
    """Return whether a lease has the GPUs that it is moved to, and its workers do not run yet."""
    found = lease.suspension if lease is not None else None
    return found is not None and found.state is S.RESUMING and bool(found.moves)


def _before_move(lease: Lease) -> Lease:
    moves = _suspension(lease).moves
    return moved(lease, [GpuMove(each.server, each.to, each.gpu) for each in moves])


# --- resuming -------------------------------------------------------------------------------------


def resume_lease(state: PoolState, command: ResumeLease) -> Step:
    """Take the memory again, or note that somebody wants the lease back."""
    lease = state.leases.get(command.lease)
    refusal = order_refusal(lease, command)
    if lease is None or refusal is not None:
        return state, refusal or Result(ok=True)
    suspension = lease.suspension
    if suspension is None or suspension.state is S.RESUMING:
        why = "it is not suspended" if suspension is None else "it is being resumed already"
        return state, Result(ok=True, why=why, lease=lease.id)
    if not command.by and not suspension.resume_since:
        return state, refuse(RefusalKind.CONFLICT, "nobody wants it to go on")
    if why := not_resumed_by(command, lease, suspension):
        return state, refuse(RefusalKind.DENIED, why)
    if suspension.state is S.SUSPENDING and not suspension.by:
        why = f"it goes on by itself once there is room again: {suspension.why}"
        return state, Result(ok=True, why=why, lease=lease.id)
    no_room = resume_refusal(state, lease) if lease.is_away else None
    history = with_order(lease.history or SuspensionHistory(), command.order)
    if no_room is not None:
        if not command.by:
            return state, no_room
        suspension = replace(
            suspension, resume_since=suspension.resume_since or _wanted_since(state)
        )
        lease = with_changes(lease, suspension=suspension, history=history)
        why = f"it goes on when there is room: {no_room.why}"
        return _put(state, lease), Result(ok=True, why=why, lease=lease.id)
    history = history.back(state.now)
    suspension = replace(suspension, state=S.RESUMING, confirmed=(), moves=())
    changed = with_changes(lease, suspension=suspension, history=history)
    if lease.is_away:
        state = charge(state, lease.partitions, sign=1)
    state = recount(state, lease, changed)
    if command.by:
        name = lease_name(lease.id)
        what = f"lease of {lease.user}"
        state = record(state, "lease-resumed", by=command.by, subject=name, text=what)
    text = f"by {command.by or THE_POOL}"
    return _put(state, changed, "resuming", text), Result(ok=True, lease=lease.id)


def not_resumed_by(command: ResumeLease | MoveLease, lease: Lease, suspension: Suspension) -> str:
    """Return why the author of an order may not resume a suspended lease, or nothing."""
    if not command.by or command.operator or suspension.by in ("", command.by, lease.user):
        return ""
    return f"{suspension.by} has suspended it, and an operator resumes it"


def resume_refusal(state: PoolState, lease: Lease) -> Result | None:
    """Return why a suspended lease cannot have its memory again now, or None."""
    for partition in lease.partitions:
        server = state.servers.get(partition.server)
        if server is None or partition.gpu not in server.gpus:
            return refuse(RefusalKind.BUSY, "one of its GPUs is not in the pool now")
        gpu = server.gpus[partition.gpu]
        if gpu.unfit:
            what = f"GPU {gpu.index} of {server.name}"
            return refuse(RefusalKind.BUSY, f"{what} grants nothing now: {gpu.unfit}")
    parts, goes_on = lease.partitions, state.formats() >= ALL_STARVED_SINCE
    return (
        space_refusal(state, parts, goes_on=goes_on)
        or policy_refusal(state, lease.user, parts, lease_count=0)
        or fairness_refusal(state, lease.request, lease.user, parts)
    )


def confirm_resumed(state: PoolState, command: ConfirmResumed) -> Step:
    """Take note that one server's workers go on; with the last, the lease is plainly held."""
    lease = _of_server(state, command, S.RESUMING)
    if isinstance(lease, Result):
        return state, lease
    suspension = _suspension(lease)
    suspension = replace(suspension, confirmed=_confirmed(suspension, command.server))
    if lease.parts.keys() - set(suspension.confirmed):
        return _put(state, with_changes(lease, suspension=suspension)), Result(ok=True)
    history = lease.history or SuspensionHistory()
    if suspension.by != lease.user:
        # Its user could otherwise keep it from giving way, by suspending it again and again.
        history = replace(history, resumed_at=state.now)
    lease = with_changes(lease, suspension=None, history=history)
    return _put(state, lease, "resumed", f"of {lease.user}"), Result(ok=True)


# --- shared ---------------------------------------------------------------------------------------


def order_refusal(
    lease: Lease | None, command: SuspendLease | ResumeLease | MoveLease | RelocateLease
) -> Result | None:
    """Return the result of an order that cannot be or was carried out, else None."""
    name = lease_name(command.lease)
    if lease is None:
        return refuse(RefusalKind.NEVER, f"the pool has no lease {name}")
    if command.by and command.by != lease.user and not command.operator:
        return refuse(RefusalKind.DENIED, f"lease {name} belongs to {lease.user}")
    if not lease.held:
        return refuse(RefusalKind.CLOSED, f"lease {name} has ended: {lease.end_reason}")
    if len(command.order) not in (0, ORDER_SIZE):
        return refuse(RefusalKind.INVALID, "malformed number of an order")
    if command.order and lease.history is not None and command.order in lease.history.orders:
        return Result(ok=True, lease=lease.id)
    return None


def with_order(history: SuspensionHistory, order: bytes) -> SuspensionHistory:
    """Return a history that knows an order by its number."""
    if not order:
        return history
    return replace(history, orders=(*history.orders, order)[-ORDER_COUNT_MAX:])


def _of_server(
    state: PoolState, command: ConfirmSuspended | RefuseSuspension | ConfirmResumed, wanted: S
) -> Lease | Result:
    """Return the lease of a server's word, or why the word counts no more."""
    lease, server = state.leases.get(command.lease), state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return refuse(RefusalKind.CONFLICT, "not the current incarnation")
    if lease is None or not lease.held or command.server not in lease.parts:
        return refuse(RefusalKind.CONFLICT, "the lease has ended")
    suspension = lease.suspension
    if suspension is None or suspension.number != command.number:
        return refuse(RefusalKind.CONFLICT, "that suspension is over")
    if suspension.state is not wanted:
        return refuse(RefusalKind.CONFLICT, f"the lease is {suspension.state.value}")
    return lease


def _suspension(lease: Lease) -> Suspension:
    assert lease.suspension is not None, "checked by _of_server"
    return lease.suspension


def _confirmed(suspension: Suspension, server: ServerId) -> tuple[ServerId, ...]:
    return tuple(sorted({*suspension.confirmed, server}))


def _wanted_since(state: PoolState) -> Milliseconds:
    """Return the table's time for a field in which 0 means never."""
    return Milliseconds(max(1, state.now))


def recount(state: PoolState, before: Lease, after: Lease) -> PoolState:
    """Return ``state`` with the policy's books as the change of a lease makes them."""
    return count(state, before.user, plus(usage_of(after), usage_of(before), -1), sign=1)


def _put(state: PoolState, lease: Lease, kind: str = "", text: str = "") -> PoolState:
    state = with_changes(state, leases=state.leases.set(lease.id, lease))
    return emit_event(state, kind, lease_name(lease.id), text) if kind else state
