"""The next steps of a server, as level-triggered decisions over the table.

Each function compares the table with what a server sees around it and returns what should be
proposed or done. Calling it again before that has happened returns the same, so a lost proposal or
a crash between two steps loses nothing. The caller keeps proposals in flight from piling up.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model.commands import Command, EndLease, FreeLease, ServerContact, Tick
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.relocation import BEGIN_MS, RefuseRelocation, RelocationState
from gpupool.pool.model.state import (
    WAITING_LAPSE_MS,
    Lease,
    PartStatus,
    PoolState,
    Server,
    ServerStatus,
    serves,
    why_over,
    with_changes,
)
from gpupool.pool.model.suspension import (
    ConfirmResumed,
    ConfirmSuspended,
    RefuseSuspension,
    ResumeLease,
    SuspendLease,
    Suspension,
    SuspensionState,
)
from gpupool.pool.policy import lease_ends
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.giving_way import away_too_long, window_reason, window_suspensions
from gpupool.pool.scheduling.preemption import due_preemptions
from gpupool.pool.transitions.lease_relocations import late_relocations
from gpupool.pool.transitions.lease_suspensions import resume_refusal, way_back_refusal
from gpupool.pool.transitions.leases import unfinished

UNREACHABLE_AFTER_S = 10.0
"""Without contact for so long, a server's GPUs are not grantable (design section 3)."""

REACHABLE_WITHIN_S = 2.0
"""Contact as fresh as this makes an unreachable server grantable again."""

UNATTACHED_MAX_S = 10.0
"""A lease without a connection from its client for so long is abandoned, and ends."""


STOPPING = "it is being stopped"
"""The reason of a drain that a server proposes of itself, and takes back when it starts again."""


def is_drained_by_stop(server: Server | None, incarnation: Incarnation) -> bool | None:
    """Say whether a server is drained because its former process stopped; None: not known yet.

    A server that starts has the table of its last snapshot. The drain may have come after that,
    so nothing is known before the table has this start of the server.
    """
    if server is None or server.incarnation < incarnation:
        return None
    return server.drain_reason == STOPPING


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The actions of the server that owns the GPUs."""

    kill: tuple[LeaseId, ...]  # leases whose workers must die now, or that are to be forgotten
    propose: tuple[Command, ...]


NOTHING_TO_DO = HostPlan((), ())


def plan_leader(
    state: PoolState,
    contact_age_s: Mapping[ServerId, float],
    now_ms: int,
    self_id: ServerId,
    connected: Collection[ServerId] = (),
) -> tuple[Command, ...]:
    """Return the leader's proposals: contact lost or regained, time, ends by the policy.

    And what it takes up again: commands in batches that are not done.

    A server is in contact again if it is ``connected`` as well: a new leader counts all silence
    from the beginning of its term.
    """
    plan: list[Command] = [*unfinished(state)]
    for server in state.servers.values():
        if server.id == self_id:
            age = 0.0
        elif server.id in contact_age_s:
            age = contact_age_s[server.id]
        else:
            continue
        if server.status is ServerStatus.UP and age > UNREACHABLE_AFTER_S:
            plan.append(ServerContact(server.id, server.incarnation, reachable=False))
        elif (
            server.status is ServerStatus.UNREACHABLE
            and age < REACHABLE_WITHIN_S
            and (server.id in connected or server.id == self_id)
        ):
            plan.append(ServerContact(server.id, server.incarnation, reachable=True))
    if now_ms > state.now and state.waiting.renewed_before(now_ms - WAITING_LAPSE_MS):
        plan.append(Tick())
    plan += lease_ends.due(state, now_ms)
    plan += late_relocations(state, now_ms)
    suspensions = due_suspensions(state, now_ms)
    plan += suspensions
    plan += due_resumptions(state, now_ms, {each.for_request for each in suspensions} - {None})
    return tuple(plan)


def due_suspensions(state: PoolState, now_ms: int) -> tuple[SuspendLease, ...]:
    """Return the suspensions due by the policy: for requests, and because of windows."""
    if not state.leases or not state.policy.version:
        return ()
    if now_ms > state.now:
        state = with_changes(state, now=Milliseconds(now_ms))
    windows = window_suspensions(state).items()
    by_window = [SuspendLease(lease, window_reason(state, window)) for lease, window in windows]
    return (*due_preemptions(state), *by_window)


def due_resumptions(
    state: PoolState, now_ms: int, more_for: Set[RequestId | None] = frozenset()
) -> tuple[ResumeLease | EndLease, ...]:
    """Return the resumptions due now: the first by priority, then by wait, with room.

    One for each pass: it takes memory that the next must not count on. Those for whose requests
    more is being suspended stay. What finds no room and was suspended for too long, ends.
    """
    suspended = state.leases.suspended()
    if not suspended:
        return ()
    if now_ms > state.now:
        state = with_changes(state, now=Milliseconds(now_ms))
    terms = Admission(state).terms
    wanted = [
        (-terms(lease.user).priority, lease.suspension.resume_since, lease.id, lease)
        for lease in suspended.values()
        if lease.held and lease.is_away and lease.suspension and lease.suspension.resume_since
    ]
    plan: list[ResumeLease | EndLease] = []
    for *_, lease in sorted(wanted, key=lambda each: each[:3]):
        request = lease.suspension.for_request if lease.suspension is not None else None
        if request not in more_for and resume_refusal(state, lease) is None:
            plan.append(ResumeLease(lease.id))
            break
    for lease in suspended.values():
        if lease.held and not any(each.lease == lease.id for each in plan):
            why = away_too_long(state, lease)
            plan += [EndLease(lease.id, why, away=True)] if why else []
    return tuple(plan)


def plan_host(
    state: PoolState,
    self_id: ServerId,
    incarnation: Incarnation,
    worker_count: Mapping[LeaseId, int],
    unattached_s: Mapping[LeaseId, float],
    gone: Mapping[LeaseId, str],
) -> HostPlan:
    """Return the workers to kill, the leases to end, and the leases to free.

    Args:
        state: the table as applied here.
        self_id: this server.
        incarnation: of this process. Nothing is planned before the table knows it.
        worker_count: live workers of each lease, this process's own children. Of one with 0 the
            host keeps what it was used for, until it is told that the lease is over.
        unattached_s: for each lease held here, seconds for which no client was attached.
        gone: leases whose client has disappeared, with the reason.
    """
    current = serves(state, self_id, incarnation)
    held: set[LeaseId] = set()
    propose: list[Command] = []
    for lease in state.leases.at(self_id).values() if current else ():
        part = lease.parts[self_id]
        if part is PartStatus.HELD and not why_over(state, lease):
            held.add(lease.id)
            arrives = lease.relocation if _is_awaited(lease, self_id) else None
            if arrives is not None:
                why = gone.get(lease.id, "")
                late = arrives.billed and state.now >= arrives.since + BEGIN_MS
                if not why and unattached_s.get(lease.id, 0.0) > UNATTACHED_MAX_S:
                    why = "its program did not connect to the other server"
                elif not why and late and not worker_count.get(lease.id, 0):
                    why = f"its program has not begun to go within {BEGIN_MS // 1000} s"
                if why:
                    key = (lease.id, arrives.number, why, self_id, incarnation)
                    propose.append(RefuseRelocation(*key))
            elif lease.id in gone:
                propose.append(EndLease(lease.id, gone[lease.id]))
            elif unattached_s.get(lease.id, 0.0) > UNATTACHED_MAX_S:
                propose.append(EndLease(lease.id, "its client never connected"))
        elif part is PartStatus.ENDING and not worker_count.get(lease.id, 0):
            number = lease.relocation.number if lease.relocation is not None else 0
            propose.append(FreeLease(lease.id, self_id, incarnation, number))
    # Fencing: a worker must end when the table does not hold its lease here.
    kill = [lease for lease in worker_count if lease not in held]
    return HostPlan(tuple(kill), tuple(propose)) if kill or propose else NOTHING_TO_DO


def _is_awaited(lease: Lease, server: ServerId) -> bool:
    """Return whether a lease is to come to this server, and is another one's until then."""
    found = lease.relocation
    is_leaving = found is not None and found.state is RelocationState.LEAVING
    return is_leaving and found is not None and found.target == server


@dataclass(slots=True)
class SuspensionPlan:
    """A server's actions on its part of suspended leases, in this order."""

    suspend: list[tuple[LeaseId, int]]  # what the host is told, with the number of the suspension
    resume: list[tuple[LeaseId, int]]
    kill: list[LeaseId]  # workers that have memory which the table has given back
    propose: list[Command]
    moves: dict[LeaseId, dict[GpuId, GpuId]] = field(
        default_factory=dict[LeaseId, dict[GpuId, GpuId]]
    )  # where those that are resumed find their memory


def plan_suspensions(
    state: PoolState,
    self_id: ServerId,
    incarnation: Incarnation,
    hosted: Mapping[LeaseId, HostSuspension],
    worker_count: Mapping[LeaseId, int],
) -> SuspensionPlan:
    """Return the orders to the host about suspensions, and the proposals from its reports.

    Args:
        state: the table as applied here.
        self_id: this server.
        incarnation: of this process. Nothing is planned before the table knows it.
        hosted: how far the host is with each lease that it was told to suspend or resume.
        worker_count: live workers of each lease, and those that are being started.
    """
    plan = SuspensionPlan([], [], [], [])
    if not serves(state, self_id, incarnation):
        return plan
    for lease in state.leases.at(self_id).values():
        told = hosted.get(lease.id)
        if lease.held and (lease.suspension is not None or told is not None):
            count = worker_count.get(lease.id, 0)
            _plan_lease(plan, state, lease, told, self_id, incarnation, count)
    return plan


def _plan_lease(
    plan: SuspensionPlan,
    state: PoolState,
    lease: Lease,
    told: HostSuspension | None,
    self_id: ServerId,
    incarnation: Incarnation,
    worker_count: int,
) -> None:
    suspension, key = lease.suspension, (lease.id, self_id, incarnation)
    phase = told.phase if told is not None else None
    if suspension is None:
        if told is not None and phase in (SuspensionPhase.SUSPENDING, SuspensionPhase.SUSPENDED):
            plan.resume.append((lease.id, told.number))
        return
    number = suspension.number
    current = told is not None and told.number >= number
    if suspension.state is SuspensionState.RESUMING:
        if self_id in suspension.confirmed:
            return
        moves = {each.gpu: each.to for each in suspension.moves if each.server == self_id}
        if moves and current and told is not None and phase is SuspensionPhase.STRANDED:
            plan.propose.append(_back_from_move(state, lease, told, key))
            return
        if moves:
            plan.moves[lease.id] = moves
        # Told before it is confirmed: a host that has not begun to suspend it must not begin now.
        plan.resume.append((lease.id, number))
        if phase in (None, SuspensionPhase.RUNNING, SuspensionPhase.REFUSED):
            plan.propose.append(ConfirmResumed(*key, number))
    elif not current:
        plan.suspend.append((lease.id, number))
        if suspension.state is SuspensionState.SUSPENDED and worker_count:
            plan.kill.append(lease.id)
    elif suspension.state is SuspensionState.SUSPENDING:
        plan.propose += _host_says(suspension, told, key)
    elif phase not in (SuspensionPhase.SUSPENDED, SuspensionPhase.STRANDED) and worker_count:
        # Fencing: its memory may be another's by now.
        plan.kill.append(lease.id)


def _back_from_move(
    state: PoolState,
    lease: Lease,
    told: HostSuspension,
    key: tuple[LeaseId, ServerId, Incarnation],
) -> Command:
    """Return the proposal for a lease that cannot go on with the GPUs that it was moved to."""
    no_room = way_back_refusal(state, lease)
    if no_room is None or len(lease.parts) == 1:
        return RefuseSuspension(*key, told.number, told.reason)
    return EndLease(lease.id, f"it could not be moved: {told.reason}; and {no_room.why}")


def _host_says(
    suspension: Suspension,
    told: HostSuspension | None,
    key: tuple[LeaseId, ServerId, Incarnation],
) -> list[Command]:
    """Return the proposals for a lease that the host was ordered to suspend."""
    if told is None or key[1] in suspension.confirmed:
        return []
    if told.phase is SuspensionPhase.SUSPENDED:
        return [ConfirmSuspended(*key, suspension.number, told.bytes)]
    if told.phase is SuspensionPhase.REFUSED:
        return [RefuseSuspension(*key, suspension.number, told.reason)]
    return []
