"""The checkers of orders: of a wait that ends by the time of an order, and of late orders."""

from contextlib import nullcontext

import pytest
from tests.pool.policy_kit import Pool
from tests.simulations.mutations.broken_orders import forgets_who_is_there

from gpupool.pool.model import commands as c
from gpupool.pool.model.forgetting import ForgetUser, digest_of
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import WAITING_LAPSE_MS, PoolState, with_changes
from gpupool.simulations.checkers.order_checkers import ForgottenStay, SilencesEnd
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace

SALT = bytes(range(16))


@pytest.mark.parametrize("lapsed", [True, False])
@pytest.mark.parametrize("broken", [True, False])
def test_who_waits_no_more_by_the_time_of_the_order_may_be_forgotten(
    lapsed: bool, broken: bool
) -> None:
    """Seed 10030577: nothing was committed between the end of a wait and the order."""
    scheduler = Scheduler(1)
    failures = FailureReporter(scheduler, Trace(scheduler))
    checker, pool = ForgottenStay(failures), Pool()
    checker.ordered("ada", SALT)
    assert pool.do(c.Wait(pool.request(), "ada", TokenId("ada"), "busy")).ok
    pool.now_ms += WAITING_LAPSE_MS + lapsed
    before, order = pool.state, ForgetUser(SALT, digest_of(SALT, "ada"), "root")
    with forgets_who_is_there() if broken else nullcontext():
        assert pool.do(order).ok == (lapsed or broken)
    checker.applied(c.unwrap(c.wrap(order, at_ms=pool.now_ms, ttl_ms=0)), before, pool.state)
    assert (failures.failure is not None) == (broken and not lapsed)
    assert checker.done == lapsed


@pytest.mark.parametrize("late_ms", [0, 1])
def test_an_order_that_comes_after_its_deadline_forgets_nobody(late_ms: int) -> None:
    """Seed 10130501: a leader took two seconds to commit it, and the table rightly refused it."""
    scheduler = Scheduler(1)
    failures = FailureReporter(scheduler, Trace(scheduler))
    checker, pool = ForgottenStay(failures), Pool()
    checker.ordered("ada", SALT)
    plain = c.wrap(ForgetUser(SALT, digest_of(SALT, "ada"), "root"), at_ms=pool.now_ms, ttl_ms=9)
    at = with_changes(pool.state, now=Milliseconds(pool.now_ms + 9 + late_ms))
    checker.applied(c.unwrap(plain), at, at)
    assert (failures.failure is not None) == (late_ms == 0)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_an_order_that_comes_after_its_deadline_silences_nothing(late_ms: int) -> None:
    """Seed 10151218: here as well the table had rightly refused it."""
    scheduler = Scheduler(1)
    failures = FailureReporter(scheduler, Trace(scheduler))
    now = Milliseconds(1000)
    order = c.SetSilence("disk", "s1", "", "known", Milliseconds(5000), "root", SALT)
    plain = c.wrap(order, at_ms=Milliseconds(now - 9 - late_ms), ttl_ms=9)
    at = PoolState(now=now)
    SilencesEnd(failures).applied(c.unwrap(plain), at, at)
    assert (failures.failure is not None) == (late_ms == 0)
