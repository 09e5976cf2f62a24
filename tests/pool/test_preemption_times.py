"""When leases can be suspended for a request: what a client that waits is told of it."""

import pytest
from tests.pool.test_preemption import MINUTE_MS, POLICY, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.preemption_times import suspendable_in_ms

PAUSES = POLICY.replace("max_suspended", "min_run_time = '10m'\nmax_suspended")


def told(pool: Preempting, user: str = "boss", request: Request | None = None) -> int | None:
    return suspendable_in_ms(pool.state, user, request or pool.request())


def resumed_again(pool: Preempting, lease: LeaseId) -> None:
    """Have a lease be suspended for a request, and go on."""
    request = pool.request()
    pool.wait("boss", request)
    assert pool.lead()
    pool.confirm(lease)
    assert pool.do(c.CancelRequest(request.id, "no more", "boss")).ok
    pool.lead()
    pool.confirm(lease)


def test_a_wait_ends_with_the_minimum_run_time_of_what_gives_way() -> None:
    """And what is said happens: not a moment earlier, and then."""
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
