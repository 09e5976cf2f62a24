"""Which leases give way where there are too many to try every set of them."""

from tests.pool.test_preemption import small

from gpupool.pool.scheduling.preemption import EXACT_MAX, preemptions


def test_a_lease_that_clears_all_gpus_is_enough() -> None:
    """It goes on to clear GPUs only as long as the request does not fit."""
    pool = small(gpu_count=2)
    large = pool.hold_for("ada", (0, 40), (1, 40))
    for _ in range(EXACT_MAX // 2 + 1):
        pool.hold_for("bob", (0, 1))
        pool.hold_for("bob", (1, 1))
    pool.wait("boss", pool.request(2, memory=60 << 30))
    assert [each.leases for each in preemptions(pool.state)] == [(large,)]
