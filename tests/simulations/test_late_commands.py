"""The checker of late commands, on tables with their time set and leases still being moved."""

import pytest
from tests.pool.policy_kit import MONDAY_MS, ONE, A, B, upgraded
from tests.pool.test_clock_setting import MendedPool
from tests.simulations.mutations import broken_leases

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import encode
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId
from gpupool.pool.transitions import clock_setting
from gpupool.simulations.checkers.late_commands import LateCommands
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace


class Judged(MendedPool):
    """A pool with its commands judged by the checker."""

    def __init__(self) -> None:
        super().__init__()
        upgraded(self.machine)
        scheduler = Scheduler(1)
        self.failures = FailureReporter(scheduler, Trace(scheduler))
        self.checker = LateCommands(self.failures)

    def judge(self, command: c.Command) -> None:
        before = self.state
        result = self.do(command)
        assert result.ok, result
        plain = c.wrap(command, at_ms=self.now_ms, ttl_ms=60_000, era=before.era)
        self.checker.applied(self.state.index, c.unwrap(plain), encode(result), before, self.state)

    def of_an_accident(self, *servers: ServerId) -> LeaseId:
        """Return a lease that was granted an hour from now, by the time that will be set."""
        self.now_ms += 3_600_000
        return self.hold(*((GpuId(f"{server}-0"), 20) for server in servers))

    def set_clock(self) -> None:
        self.judge(c.SetClock(Milliseconds(MONDAY_MS + 1000), 0, "root"))
        self.now_ms = MONDAY_MS + 1010
        assert self.state.moving is not None, "no lease is moved yet"

    @property
    def failed(self) -> str:
        return self.failures.failure.checker if self.failures.failure is not None else ""


@pytest.fixture(autouse=True)
def none_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", 0)


def test_a_lease_is_moved_to_the_time_that_was_set_also_by_a_command_that_is_refused() -> None:
    """Seed 710568: the checker took that for the free of a former incarnation."""
    pool = Judged()
    lease = pool.of_an_accident(A)
    pool.do(c.EndLease(lease, "done"))
    pool.set_clock()
    pool.judge(c.FreeLease(lease, A, ONE))
    assert pool.failed == ""


def test_a_former_incarnation_that_is_heard_is_noticed_all_the_same() -> None:
    pool = Judged()
    lease = pool.of_an_accident(A)
    pool.do(c.EndLease(lease, "done"))
    pool.set_clock()
    with broken_leases.free_ignores_incarnation():
        pool.judge(c.FreeLease(lease, A, ONE))
    assert pool.failed == "incarnation-current"


@pytest.mark.parametrize("is_broken", [False, True])
def test_one_part_that_was_given_back_before_the_time_was_set_is_not_given_back_again(
    is_broken: bool,
) -> None:
    pool = Judged()
    lease = pool.of_an_accident(A, B)
    pool.do(c.EndLease(lease, "done"))
    pool.judge(c.FreeLease(lease, A, ONE))
    if is_broken:
        with broken_leases.free_twice_counts_twice():
            pool.set_clock()
    else:
        pool.set_clock()
    assert pool.failed == ("freed-once" if is_broken else "")
