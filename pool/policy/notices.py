"""Ends that the policy sets: the longest time of a lease, and windows that end what they allowed.

What a lease gets at its grant stays with it, whatever the policy says later: its latest end, its
idle timeout. A window that ends leases is judged when it has opened or closed, against the rules
and leases of that moment: notice is given to those that the rules allow no more, and would allow
had the window not changed. The oldest leases are kept first.
"""

from gpupool.pool.model.commands import EndLease, GiveNotice
from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.policy import Window
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import Lease, PoolState
from gpupool.pool.policy.admission import Admission, duration_text
from gpupool.pool.policy.idleness import effective_timeout_s
from gpupool.pool.policy.rulebook import rulebook

NOTICE_MS_MAX = 5 * 60_000
"""A client is notified so long before the latest end; a tenth of a short time."""


def with_terms(state: PoolState, lease: Lease) -> Lease:
    """Return a new lease with what the policy gives it along."""
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
    """Return what the leader should propose at ``now``, which is not before the table's time."""
    found: list[EndLease | GiveNotice] = [
        EndLease(lease.id, lease.ends_why) for lease in state.leases.ended_by(now)
    ]
    if rulebook(state.policy).ends_leases:
        at = with_changes(state, now=Milliseconds(max(now, state.now)))
        found += [GiveNotice(lease) for lease in allowed_no_more(at)]
    return tuple(found)


def allowed_no_more(state: PoolState) -> dict[LeaseId, Window]:
    """Return the leases to be ended because a window has changed, and which window."""
    book = rulebook(state.policy)
    if not book.ends_leases:
        return {}
    moment = book.moment(state.now)
    found: dict[LeaseId, Window] = {}
    for number, window in enumerate(state.policy.windows):
        if not window.ends_leases:
            continue
        changed_at = book.phase(number, state.now).since
        late = state.now + window.grace_ms
        candidates = {
            lease.id
            for lease in state.leases.values()
            if lease.held
            and lease.granted_at < changed_at
            and (not lease.ends_at or lease.ends_at > late)
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
