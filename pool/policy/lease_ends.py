"""The ends of leases that nobody orders: disuse, the longest time, windows of the policy.

All of it is decisions without a clock; a server's reconciler asks for them and proposes commands.

**Disuse.** A lease is idle on a server while none of its sessions there executes a call and none
of its processes computes on a GPU; a session that opens counts as use. The clock is that server's
monotonic one. A lease on several servers is idle only when it is idle on all of them: each server
says in the table when its part is *nearly* idle, a notice before the timeout, and takes that back
on use. A server that finds its own part nearly idle, and reads the same of all others, sends the
notice; when that has held for as long as the notice promises, it ends the lease. So the decision
needs nobody but the servers of the lease, survives any leader, and asks no client.

**The policy.** What a lease gets at its grant stays with it, whatever the policy says later: its
latest end, its idle timeout. A window that ends leases is judged when it has opened or closed,
against the rules and leases of that moment: notice is given to those that the rules allow no more,
and would allow had the window not changed. The oldest leases are kept first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpupool.pool.model.commands import Command, EndLease, GiveNotice, NoteIdle
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.policy import Window
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import Lease, PartStatus, PoolState, with_changes
from gpupool.pool.policy.admission import Admission, duration_text
from gpupool.pool.policy.rulebook import rulebook

NOTICE_MAX_S = 60.0
NOTICE_SHARE = 0.1
"""Of the timeout: how long before the end the notice comes, if that is less than a minute."""

NOTICE_MS_MAX = 5 * 60_000
"""A client is notified so long before the latest end; a tenth of a short time."""


# --- disuse ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """The notices and commands of a server about unused leases."""

    nearly: frozenset[LeaseId]  # idle on all servers, and within the notice of their end
    propose: tuple[Command, ...]


NOTHING_TO_DO = IdlePlan(frozenset(), ())


def notice_s(timeout_s: float) -> float:
    """Return the time between the notice and the end of an idle lease."""
    return min(NOTICE_MAX_S, NOTICE_SHARE * timeout_s)


def effective_timeout_s(*wishes_s: float) -> float:
    """Return the shortest of several idle timeouts, of which 0 means none."""
    return min((wish for wish in wishes_s if wish > 0), default=0.0)


def idle_plan(
    state: PoolState,
    self_id: ServerId,
    incarnation: Incarnation,
    idle_s: Mapping[LeaseId, float],
    nearly_s: Mapping[LeaseId, float],
) -> IdlePlan:
    """Return the leases with an end to announce, and the commands to propose.

    Args:
        state: the table as applied here.
        self_id: this server.
        incarnation: of this process. Nothing is planned before the table knows it.
        idle_s: for each lease held here, seconds since its last use on this server.
        nearly_s: for each lease that the plans before had in ``nearly``, seconds since the first.
    """
    server = state.servers.get(self_id)
    if not idle_s or server is None or server.incarnation != incarnation:
        return NOTHING_TO_DO
    nearly: set[LeaseId] = set()
    propose: list[Command] = []
    for lease_id, unused_s in idle_s.items():
        lease = state.leases.get(lease_id)
        if lease is None or not _held_here(lease, self_id) or not lease.idle_timeout_s:
            continue
        if lease.suspension is not None:
            continue  # what its program does not use, others do
        early_s = notice_s(lease.idle_timeout_s)
        here = unused_s >= lease.idle_timeout_s - early_s
        if len(lease.parts) > 1 and here != (self_id in lease.idle_on):
            propose.append(NoteIdle(lease_id, self_id, incarnation, here))
        if not here or not _idle_elsewhere(lease, self_id):
            continue
        nearly.add(lease_id)
        if nearly_s.get(lease_id, 0.0) >= early_s and unused_s >= lease.idle_timeout_s:
            propose.append(EndLease(lease_id, idle_reason(lease.idle_timeout_s)))
    return IdlePlan(frozenset(nearly), tuple(propose))


def idle_reason(timeout_s: float) -> str:
    """Return why an idle lease ended."""
    return f"it was not used for {duration(timeout_s)}, its idle timeout"


def idle_notice(timeout_s: float) -> str:
    """Return the notice for the users of a lease before it ends."""
    early_s = notice_s(timeout_s)
    return (
        f"it has not been used for {duration(timeout_s - early_s)}, and ends in "
        f"{duration(early_s)} unless it is"
    )


def duration(seconds: float) -> str:
    """Return ``seconds`` in words that lose nothing that matters: ``45 s``, ``29 min``, ``8 h``."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def _held_here(lease: Lease, server: ServerId) -> bool:
    return lease.held and lease.parts.get(server) is PartStatus.HELD


def _idle_elsewhere(lease: Lease, server: ServerId) -> bool:
    return all(each == server or each in lease.idle_on for each in lease.parts)


# --- the policy -----------------------------------------------------------------------------------


def with_terms(state: PoolState, lease: Lease) -> Lease:
    """Return a new lease with the terms of the policy."""
    terms = Admission(state).terms(lease.user)
    ends_at = notice_at = 0
    why = ""
    if terms.max_lease is not None and terms.max_lease_ms:
        ends_at = state.now + terms.max_lease_ms
        notice_at = ends_at - min(NOTICE_MS_MAX, terms.max_lease_ms // 10)
        name = terms.max_lease.text(state.policy)
        why = f"a lease of {lease.user} lasts {duration_text(terms.max_lease_ms)} at most ({name})"
    return with_changes(
        lease,
        idle_timeout_s=effective_timeout_s(lease.idle_timeout_s, terms.idle_timeout_ms / 1000),
        ends_at=Milliseconds(ends_at),
        notice_at=Milliseconds(notice_at),
        ends_why=why,
        data_encryption=terms.data_encryption,
    )


def notice_text(lease: Lease) -> str:
    """Return the text of the notice that the client of a lease gets."""
    return f"it ends in {duration_text(lease.ends_at - lease.notice_at)}: {lease.ends_why}"


def due(state: PoolState, now: int) -> tuple[EndLease | GiveNotice, ...]:
    """Return the leader's proposals at ``now``, which is not before the table's time."""
    found: list[EndLease | GiveNotice] = [
        EndLease(lease.id, lease.ends_why) for lease in state.leases.ended_by(now)
    ]
    if rulebook(state.policy).ends_leases:
        at = with_changes(state, now=Milliseconds(max(now, state.now)))
        found += [GiveNotice(lease) for lease in allowed_no_more(at)]
    return tuple(found)


def allowed_no_more(state: PoolState, *, suspends: bool = False) -> dict[LeaseId, Window]:
    """Return the leases that the rules forbid because a window has changed, with that window.

    Those of windows that end leases, or with ``suspends`` of those that suspend them.
    """
    book = rulebook(state.policy)
    if not (book.suspends_leases if suspends else book.ends_leases):
        return {}
    moment = book.moment(state.now)
    found: dict[LeaseId, Window] = {}
    for number, window in enumerate(state.policy.windows):
        if not (window.suspends_leases if suspends else window.ends_leases):
            continue
        changed_at = book.phase(number, state.now).since
        late = state.now + window.grace_ms
        candidates = {
            lease.id
            for lease in state.leases.values()
            if lease.held
            and lease.granted_at < changed_at
            and (suspends or not lease.ends_at or lease.ends_at > late)
        }
        candidates &= book.over(state, moment)
        if candidates:
            candidates -= book.over(state, book.toggled(moment, number))
        found |= dict.fromkeys(sorted(candidates), window)
    return found


def give_notice(state: PoolState, command: GiveNotice) -> Step:
    """Set the end of a lease that the rules allow no more."""
    window = allowed_no_more(state).get(command.lease)
    if window is None:
        return state, refuse(RefusalKind.CONFLICT, "the lease has notice, or its rules allow it")
    lease = state.leases[command.lease]
    number = state.policy.windows.index(window)
    holds = rulebook(state.policy).phase(number, state.now).holds
    what = "has opened" if holds else "has closed"
    lease = with_changes(
        lease,
        ends_at=Milliseconds(state.now + window.grace_ms),
        notice_at=state.now,
        ends_why=f'window "{window.name}" {what} (policy v{state.policy.version}, '
        f"line {window.line})",
    )
    return with_changes(state, leases=state.leases.set(lease.id, lease)), Result(
        ok=True, lease=lease.id
    )
