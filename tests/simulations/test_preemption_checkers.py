"""The checker of preemption, on tables in which a rule begins between two commands."""

import pytest
from tests.pool.policy_kit import MONDAY_MS, ONE, A, B
from tests.pool.test_preemption import Preempting

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions import lease_suspensions
from gpupool.simulations.checkers.policy_oracle import RulesInForce
from gpupool.simulations.checkers.preemption_checkers import PreemptionHolds
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace

POLICY = """
[class.night]
users = ["ada"]
preemptible = true
[class.staff]
users = ["boss"]
priority = 10
[class.lab]
users = ["cy"]
"""
RESERVED = """
[[reservation]]
class = "lab"
count = 1
from = 2026-11-23T00:01:00
to = 2026-11-23T01:00:00
"""
BEGINS_MS = MONDAY_MS + 60_000
NEEDLESS = "no-more-than-needed"


class Judged(Preempting):
    """A pool of one server with two GPUs; the checker judges its suspensions."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy, gpu_count=2)
        assert self.do(c.DrainServer(B, "for the test", "root")).ok
        scheduler = Scheduler(1)
        self.failures = FailureReporter(scheduler, Trace(scheduler))
        self.checker = PreemptionHolds(self.failures, RulesInForce())

    def judge(self, lease: LeaseId, command: c.SuspendLease) -> None:
        before = self.state
        assert self.do(command).ok
        assert self.phase(lease) == "suspending"
        plain = c.wrap(command, at_ms=self.now, ttl_ms=60_000, era=before.era)
        self.checker.applied(c.unwrap(plain), before, self.state)

    @property
    def failed(self) -> str:
        return self.failures.failure.checker if self.failures.failure is not None else ""


def always(_state: PoolState, _command: c.SuspendLease) -> bool:
    return True


@pytest.mark.parametrize(("policy", "fails"), [(POLICY + RESERVED, ""), (POLICY, NEEDLESS)])
def test_a_suspension_is_judged_by_the_rules_of_its_own_time(
    monkeypatch: pytest.MonkeyPatch, policy: str, fails: str
) -> None:
    """Seed 10001400: a reservation began, and took the room of leases suspended before."""
    pool = Judged(policy)
    pool.now_ms = BEGINS_MS - 1000
    first, second = pool.grant("ada"), pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    assert pool.suspensions() == [first]
    pool.judge(first, c.SuspendLease(first, "boss goes first", for_request=request.id))
    pool.now_ms = BEGINS_MS + 500
    if fails:  # a pool that is not broken refuses it
        monkeypatch.setattr(lease_suspensions, "_is_due", always)
    pool.judge(second, c.SuspendLease(second, "boss goes first", for_request=request.id))
    assert pool.failed == fails


@pytest.mark.parametrize(
    ("refused", "is_back", "fails"),
    [(True, True, ""), (True, False, ""), (False, False, NEEDLESS)],
)
def test_what_was_suspended_beside_a_lease_that_its_driver_lost_was_needed(
    monkeypatch: pytest.MonkeyPatch, refused: bool, is_back: bool, fails: str
) -> None:
    """So another lease gives way, on a server of which nobody needs the first.

    Seed 10070506; in seed 10100917 the lost one was still on its way back.
    """
    pool = Judged(POLICY)
    halves = [pool.hold_for("ada", (0, 40)) for _ in range(2)]
    whole = pool.hold_for("ada", (1, 80))
    request = pool.request()
    pool.wait("boss", request)
    monkeypatch.setattr(lease_suspensions, "_is_due", always)
    for half in halves:
        pool.judge(half, c.SuspendLease(half, "boss goes first", for_request=request.id))
    suspension = pool.state.leases[halves[0]].suspension
    assert suspension is not None
    if refused:
        number, why = suspension.number, "the driver has lost it"
        assert pool.do(c.RefuseSuspension(halves[0], A, ONE, number, why)).ok
        if is_back:
            assert pool.do(c.ConfirmResumed(halves[0], A, ONE, number)).ok
    pool.judge(whole, c.SuspendLease(whole, "boss goes first", for_request=request.id))
    assert pool.failed == fails


@pytest.mark.parametrize(("memory", "fails"), [(40, ""), (10, NEEDLESS)])
def test_what_was_suspended_beside_a_lease_of_an_earlier_plan_was_needed(
    monkeypatch: pytest.MonkeyPatch, memory: int, fails: str
) -> None:
    """Seed 10292125; a lease that was no help, as it is too small, excuses nothing."""
    pool = Judged(POLICY)
    lost, half = pool.hold_for("ada", (0, memory)), pool.hold_for("ada", (0, 40))
    if memory < 40:
        pool.hold_for("cy", (0, 40 - memory))
    whole = pool.hold_for("ada", (1, 80))
    request = pool.request()
    pool.wait("boss", request)
    monkeypatch.setattr(lease_suspensions, "_is_due", always)
    assert pool.do(c.SuspendLease(lost, "boss goes first", for_request=request.id)).ok
    suspension = pool.state.leases[lost].suspension
    assert suspension is not None
    pool.judge(half, c.SuspendLease(half, "boss goes first", for_request=request.id))
    number = suspension.number
    assert pool.do(c.RefuseSuspension(lost, A, ONE, number, "the driver has lost it")).ok
    pool.judge(whole, c.SuspendLease(whole, "boss goes first", for_request=request.id))
    assert pool.failed == fails
