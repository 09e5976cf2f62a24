"""When leases may end, as ``LeasesEndRightly`` judges it."""

import pytest
from tests.pool.policy_kit import A
from tests.pool.test_clock_setting import MendedPool
from tests.simulations.test_found_by_simulation import machine_of

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId
from gpupool.simulations.checkers.lease_causes import LeaseCauses
from gpupool.simulations.checkers.lease_checkers import LeasesEndRightly
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace


@pytest.mark.parametrize(
    ("claimed_at", "failed"), [(6.0, ""), (7.5, "ends-for-a-reason"), (None, "ends-for-a-reason")]
)
def test_a_client_may_have_left_at_any_time_since_its_claim(
    claimed_at: float | None, failed: str
) -> None:
    """Seed 10162932: the pool had no majority, so the claim was committed 7.7 s later."""
    pool, causes, scheduler = MendedPool(), LeaseCauses(), Scheduler(1)
    failures = FailureReporter(scheduler, Trace(scheduler))
    checker = LeasesEndRightly(failures, causes)
    machines = {A: machine_of(scheduler)}
    empty = pool.state
    granted = pool.hold((GpuId(f"{A}-0"), 20))
    lease = pool.state.leases[granted]
    if claimed_at is not None:
        causes.claimed(lease.request, claimed_at)
        causes.claimed(lease.request, claimed_at + 5.0)  # Another attempt.
    causes.connection_lost(lease.client, "s1", 7.0)
    held = pool.state
    command = c.CancelRequest(lease.request, "its client disconnected")
    plain = c.wrap(command, at_ms=pool.now_ms, ttl_ms=60_000, era=0)
    checker.applied(c.unwrap(plain), empty, held, machines, 14.6)
    assert failures.failure is None
    assert pool.do(command).ok
    checker.applied(c.unwrap(plain), held, pool.state, machines, 14.7)
    assert (failures.failure.checker if failures.failure else "") == failed
