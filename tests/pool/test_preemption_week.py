"""A simulated week of 20 clients of three classes, and broken builds that its checks notice."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from tests.pool.preemption_week import HOUR_MS, STEP_MS, Broken, week_of
from tests.simulations.mutations import broken_suspensions
from tests.simulations.mutations.patching import patched

from gpupool.pool import reconcile
from gpupool.pool.model.state import Lease, PoolState


@pytest.mark.long
@pytest.mark.parametrize(("seed", "train_h"), [(0, 48), (1, 48), (2, 3)])
def test_a_week_of_three_classes_by_day_and_by_night(seed: int, train_h: int) -> None:
    """Long: a week is 700 leases and 2,000 looks of a leader, 7 s."""
    seen = week_of(seed, train_h)
    assert seen.suspended["train"] > 10
    assert seen.by_window > 3
    assert seen.resumed > 10
    assert seen.finished > 300
    assert bool(seen.ended) == (train_h < 12), "nobody is suspended for longer than a day's window"
    # Whom the others give way to waits as long as it takes to move somebody away.
    waits = sorted(seen.waits_ms["live"])
    assert waits[len(waits) * 9 // 10] <= 2 * STEP_MS


def ends_the_suspended() -> AbstractContextManager[None]:
    """End a lease that has been suspended for an hour, though it may be for longer."""

    def away_too_long(state: PoolState, lease: Lease) -> str:
        history = lease.history
        if not lease.is_away or history is None or state.now - history.away_since < HOUR_MS:
            return ""
        return "it was suspended for too long"

    return patched(reconcile, "away_too_long", away_too_long)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (broken_suspensions.pauses_ignored, "minimum run time"),
        (broken_suspensions.guarantees_ignored, "guarantee"),
        (broken_suspensions.away_for_ever, "suspended too long"),
        (broken_suspensions.resumed_uncharged, "invariants"),
        (ends_the_suspended, "lost"),
    ],
)
def test_broken_builds_are_noticed(
    broken: Callable[[], AbstractContextManager[None]], what: str
) -> None:
    with broken(), pytest.raises(Broken, match=what):
        week_of(seed=0, train_h=3)
