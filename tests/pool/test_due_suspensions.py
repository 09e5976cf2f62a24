"""Suspensions, resumptions and endings by the leader: their times, one after the other."""

from tests.pool.policy_kit import at
from tests.pool.test_preemption import NIGHT, POLICY, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId, RequestId
from gpupool.pool.reconcile import due_resumptions, due_suspensions, plan_leader

HOUR_MS = 3_600_000
WHY = "it was suspended for 4h, the longest time (policy v1, line 5: [class.night] max_suspended)"
Due = tuple[c.ResumeLease | c.EndLease, ...]


def two_away() -> tuple[Preempting, LeaseId, LeaseId, RequestId]:
    """Return a pool with two leases that have just given way to one request, which waits."""
    pool = small(POLICY)
    first, second = pool.grant("ada"), pool.grant("bob")
    request = pool.request(2)
    pool.wait("boss", request)
    found = pool.lead()
    assert [each.lease for each in found if isinstance(each, c.SuspendLease)] == [first, second]
    pool.confirm(first)
    pool.confirm(second)
    return pool, first, second, request.id


def test_leases_go_on_one_after_the_other_once_their_request_is_gone() -> None:
    pool, first, second, request = two_away()
    assert due_resumptions(pool.state, pool.now, {request}) == ()
    assert pool.lead() == []
    assert plan_leader(pool.state, {}, pool.now_ms, pool.state.voters()[0]) == ()
    assert pool.do(c.CancelRequest(request, "no more", "boss")).ok
    assert due_resumptions(pool.state, pool.now) == (c.ResumeLease(first),)
    assert due_resumptions(pool.state, pool.now, {request}) == (), "more is being suspended"
    assert due_resumptions(pool.state, pool.now, {RequestId(bytes(16))}) == (c.ResumeLease(first),)
    assert pool.lead() == [c.ResumeLease(first)]
    assert pool.lead() == [c.ResumeLease(second)]
    assert pool.lead() == []


def test_what_was_suspended_for_the_longest_time_ends() -> None:
    pool, first, second, request = two_away()
    ends = tuple(c.EndLease(each, WHY, away=True) for each in (first, second))
    end_ms = pool.now + 4 * HOUR_MS
    assert due_resumptions(pool.state, end_ms - 1, {request}) == ()
    assert due_resumptions(pool.state, end_ms, {request}) == ends
    pool.later(4 * HOUR_MS)
    assert due_resumptions(pool.state, pool.now, {request}) == ends
    assert due_resumptions(pool.state, pool.now - HOUR_MS, {request}) == ends, (
        "time never goes back"
    )
    resumes: Due = (c.ResumeLease(first), ends[1])
    assert due_resumptions(pool.state, pool.now) == resumes, "what goes on does not end"
    assert pool.do(ends[1]).ok
    assert due_resumptions(pool.state, pool.now, {request}) == ends[:1], "once"


def test_a_window_is_judged_at_the_leaders_time_and_never_before_the_tables() -> None:
    pool = small(NIGHT)
    pool.grant("ada")
    younger = pool.grant("bob")
    pool.go_to("2026-11-23T07:59:59")
    orders = (c.SuspendLease(younger, 'window "day" is open (policy v1, line 5)'),)
    opens = at("2026-11-23T08:00:00")
    before = pool.state
    assert due_suspensions(before, opens - 1000) == ()
    assert due_suspensions(before, opens) == orders
    assert plan_leader(before, {}, opens, before.voters()[0]) == orders
    pool.go_to("2026-11-23T08:00:00")
    assert due_suspensions(pool.state, opens) == orders
    assert due_suspensions(pool.state, opens - HOUR_MS) == orders
