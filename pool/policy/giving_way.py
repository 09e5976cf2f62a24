"""Suspension of leases by the policy's rules: candidates, reasons, and the longest time.

A window with ``leases = "suspend"`` suspends those that the rules allow no more, and would allow
had it not changed. They go on when the rules allow it and there is room. A lease that has been
resumed is left alone for its minimum run time, whoever wants its GPUs, so that nothing is moved
out and back all the time.
"""

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.policy import Window
from gpupool.pool.model.state import Lease, PoolState, ServerStatus
from gpupool.pool.model.suspension import DRIVER_SINCE, DRIVER_TOO_OLD, MIG_INSTANCE
from gpupool.pool.policy.admission import Admission, duration_text
from gpupool.pool.policy.lease_ends import allowed_no_more
from gpupool.pool.policy.rulebook import rulebook

GOES_ELSEWHERE = "it is being moved to another server"


def window_suspensions(state: PoolState) -> dict[LeaseId, Window]:
    """Return the leases to suspend because a window has changed, with that window."""
    if not rulebook(state.policy).suspends_leases:
        return {}
    terms = Admission(state).terms
    return {
        lease_id: window
        for lease_id, window in allowed_no_more(state, suspends=True).items()
        if (lease := state.leases[lease_id]).suspension is None
        and not not_suspendable(state, lease)
        and not too_early(state, lease, terms(lease.user).min_run_ms)
    }


def window_reason(state: PoolState, window: Window) -> str:
    """Return why a lease is suspended by a window, for its owner."""
    number = state.policy.windows.index(window)
    what = "is open" if rulebook(state.policy).phase(number, state.now).holds else "is closed"
    return f'window "{window.name}" {what} (policy v{state.policy.version}, line {window.line})'


def away_too_long(state: PoolState, lease: Lease) -> str:
    """Return why a suspended lease ends now, or nothing while it may stay suspended."""
    source = Admission(state).terms(lease.user).max_suspended
    if source is None or source.rule.number < 0 or lease.history is None or not lease.is_away:
        return ""
    if state.now - lease.history.away_since < source.rule.number:
        return ""
    longest = duration_text(source.rule.number)
    return f"it was suspended for {longest}, the longest time ({source.text(state.policy)})"


def not_suspendable(state: PoolState, lease: Lease) -> str:
    """Return why the servers of a lease could not suspend it now, as far as the table knows."""
    if lease.relocation is not None:
        return GOES_ELSEWHERE
    for part in lease.partitions:
        server = state.servers.get(part.server)
        known = server is not None and part.gpu in server.gpus
        if server is None or not known or server.status is not ServerStatus.UP:
            return f"server {server.name if server is not None else part.server} is not reachable"
    return never_suspendable(state, lease)


def never_suspendable(state: PoolState, lease: Lease) -> str:
    """Return why a lease cannot be suspended on its GPUs at all, as far as the table knows."""
    for part in lease.partitions:
        server = state.servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        if server is None or gpu is None:
            continue
        if gpu.parent is not None:
            return MIG_INSTANCE
        major = server.driver_version.partition(".")[0]
        if not gpu.emulated and major.isdecimal() and int(major) < DRIVER_SINCE:
            return DRIVER_TOO_OLD
    return ""


def running_since(lease: Lease) -> int:
    """Return since when a lease has run without a break."""
    return (
        lease.history.resumed_at
        if lease.history and lease.history.resumed_at
        else (lease.granted_at)
    )


def too_early(state: PoolState, lease: Lease, min_run_ms: int) -> str:
    """Return that a lease has just been resumed, or nothing: it may be suspended again."""
    history = lease.history
    if history is None or state.now >= pause_end(lease, min_run_ms):
        return ""
    if history.refusal is not None:
        return f"it could not be suspended lately: {history.refusal.reason}"
    ran = duration_text(state.now - history.resumed_at)
    return f"it was resumed {ran} ago, and runs for {duration_text(min_run_ms)} at least"


def pause_end(lease: Lease, min_run_ms: int) -> int:
    """Return when a lease may be suspended by the pool, as far as its history goes; 0: always."""
    history = lease.history
    if history is None:
        return 0
    tried_at = history.refusal.at if history.refusal is not None else 0
    latest = max(history.resumed_at, tried_at)
    return latest + min_run_ms if latest else 0
