"""Times at which leases can be suspended for a request, as told to a waiting client."""

import pytest
from tests.pool.test_preemption import MINUTE_MS, POLICY, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.preemption import Rules, entry_of, suspendable_in_ms

PAUSES = POLICY.replace("max_suspended", "min_run_time = '10m'\nmax_suspended")


def told(pool: Preempting, user: str = "boss", request: Request | None = None) -> int | None:
    return suspendable_in_ms(pool.state, user, request or pool.request())


def resumed_again(pool: Preempting, lease: LeaseId) -> None:
    """Suspend a lease for a request, and resume it."""
    request = pool.request()
    pool.wait("boss", request)
    assert pool.lead()
    pool.confirm(lease)
    assert pool.do(c.CancelRequest(request.id, "no more", "boss")).ok
    pool.lead()
    pool.confirm(lease)


def test_a_wait_ends_with_the_minimum_run_time_of_what_gives_way() -> None:
    """And the statement comes true: not a moment earlier, and then."""
    pool = small(PAUSES, 1)
    lease = pool.grant("ada")
    assert told(pool) == 0
    resumed_again(pool, lease)
    pool.later(3 * MINUTE_MS)
    assert told(pool) == 7 * MINUTE_MS
    request = pool.request()
    pool.wait("boss", request)
    left_ms = told(pool, request=request)
    assert left_ms is not None
    pool.later(left_ms - 1)
    pool.wait("boss", request)
    assert pool.lead() == []
    pool.later(1)
    assert pool.lead(), "the pool suspends it now"
    assert told(pool, request=request) == 0, "it is on its way"


def test_the_latest_of_those_that_are_needed_counts() -> None:
    pool = small(PAUSES)
    first, second = pool.grant("ada"), pool.grant("bob")
    resumed_again(pool, first)
    pool.later(2 * MINUTE_MS)
    assert told(pool) == 0, "the other gives way"
    assert told(pool, request=pool.request(2)) == 8 * MINUTE_MS, "both have to"
    pool.do(c.EndLease(second, "over", "bob"))
    assert told(pool, request=pool.request(2)) == 8 * MINUTE_MS


@pytest.mark.parametrize(
    ("user", "policy"),
    [
        ("ada", PAUSES),  # of no higher priority
        ("boss", PAUSES.replace("preemptible = true", "preemptible = false")),
        ("boss", PAUSES + "[pool]\nmax_leases = 1\n"),  # a limit that nobody's suspension lifts
        ("boss", ""),
    ],
)
def test_nothing_is_said_where_nobody_gives_way(user: str, policy: str) -> None:
    pool = small(policy, 1)
    pool.grant("ada")
    assert told(pool, user) is None


# --- the bounded number of instants ---------------------------------------------------------------

ALL_PAUSE = PAUSES.replace("priority = 5", "priority = 5\npreemptible = true\nmin_run_time = '10m'")
INSTANTS = "gpupool.pool.scheduling.preemption.LATER_MAX"


def resumed_by_root(pool: Preempting, *leases: LeaseId) -> None:
    """Suspend and resume leases as an operator."""
    for lease in leases:
        assert pool.do(c.SuspendLease(lease, "a pause", "root", operator=True)).ok
        pool.confirm(lease)
        assert pool.do(c.ResumeLease(lease, "root", operator=True)).ok
        pool.confirm(lease)


@pytest.mark.parametrize("other", ["cy", "ended"])
def test_leases_that_cannot_give_way_take_no_instant_from_those_that_can(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has the priority of the request, or is over; its time ends before the other's."""
    monkeypatch.setattr(INSTANTS, 1)
    pool = small(ALL_PAUSE)
    before = pool.grant("cy" if other == "cy" else "bob")
    lease = pool.grant("ada")
    resumed_by_root(pool, before)
    pool.later(2 * MINUTE_MS)
    resumed_by_root(pool, lease)
    pool.later(3 * MINUTE_MS)
    if other == "ended":
        assert pool.do(c.EndLease(before, "over", "bob")).ok
    count = 1 if other == "cy" else 2
    assert told(pool, "cy", pool.request(count)) == 7 * MINUTE_MS


def test_an_instant_that_is_now_takes_none_from_those_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(INSTANTS, 1)
    pool = small(ALL_PAUSE)
    first, second = pool.grant("ada"), pool.grant("bob")
    resumed_by_root(pool, first)
    pool.later(2 * MINUTE_MS)
    resumed_by_root(pool, second)
    pool.later(8 * MINUTE_MS - 1)
    assert told(pool, "boss", pool.request(2)) is None, "only one instant is looked at"
    pool.later(1)
    assert told(pool, "boss", pool.request(2)) == 2 * MINUTE_MS
    assert told(pool) == 0


def test_what_gives_way_to_an_earlier_request_is_not_promised_to_a_later_one() -> None:
    pool = small(ALL_PAUSE, 1)
    pool.grant("ada")
    mine, other = pool.request(), pool.request()
    assert told(pool, "cy", mine) == 0
    pool.wait("boss", other)
    assert told(pool, "cy", mine) is None
    assert told(pool, "boss", other) == 0
    assert told(pool, "boss", pool.request()) is None, "it would come behind"


def test_a_request_that_waits_has_the_place_that_it_got() -> None:
    pool = small(ALL_PAUSE)
    pool.grant("ada")
    request = pool.request()
    rules = Rules(pool.state)
    entry = entry_of(rules, "cy", request)
    now = pool.state.now
    assert (entry.user, entry.priority, entry.since, entry.renewed) == ("cy", 5, now, now)
    pool.wait("cy", request)
    pool.later(5)
    assert entry_of(Rules(pool.state), "cy", request) == pool.state.waiting[request.id]
    assert entry_of(Rules(pool.state), "cy", request).since == now
