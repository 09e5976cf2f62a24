"""The checker of alerts, with the looks of one sender at the very edge of its times."""

from collections.abc import Sequence

import pytest

from gpupool.pool.alert_log import Alert, AlertLog, Condition, Message
from gpupool.pool.model.ids import ServerId
from gpupool.simulations.checkers.alert_checker import AlertsTold
from gpupool.simulations.cluster.simulated_alerts import FAULT, LOOK_EVERY_S, TIMES
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace

SERVER = ServerId("03a188d0455a")
HELD = Condition(FAULT, "GPU-1", "GPU-1 is at fault")


class Looks:
    """One server's looks, which its alert log and the checker see at the same instants."""

    def __init__(self) -> None:
        scheduler = Scheduler(1)
        self.failures = FailureReporter(scheduler, Trace(scheduler))
        self.checker = AlertsTold(self.failures, TIMES, LOOK_EVERY_S)
        self.log = AlertLog(TIMES)
        self.checker.started(SERVER, 0.0)

    def look(self, now: float, *, majority: bool = True, holds: bool = True) -> Message | None:
        conditions = [HELD] if holds and majority else []
        message = self.log.look(conditions, now, int(1000 * now), sends=majority, majority=majority)
        self.give(now, message, majority=majority, holds=holds)
        return message

    def give(
        self, now: float, message: Message | None, *, majority: bool = True, holds: bool = True
    ) -> None:
        conditions = [HELD] if holds and majority else []
        self.checker.looked(
            SERVER, conditions, now, sends=majority, majority=majority, message=message
        )

    def every_half_second(self, times: Sequence[float]) -> list[Message]:
        return [found for now in times if (found := self.look(now)) is not None]


def alert(now: float) -> Message:
    return Message((Alert("id", FAULT.name, "critical", HELD.subject, "", "", int(1000 * now)),))


@pytest.mark.parametrize("gap_s", [1.3, 1.495, 1.5, 1.505, 1.7])
def test_what_was_out_of_sight_for_just_so_long_is_told_once_or_twice(gap_s: float) -> None:
    """Seed 10061135: a sender without a majority for 1.492 s; its alerts are over after 1.5 s."""
    looks = Looks()
    (first,) = looks.every_half_second([0.5 * n for n in range(1, 8)])
    assert first.alerts[0].subject == "GPU-1"
    looks.look(3.5 + gap_s / 2, majority=False)
    looks.look(3.5 + gap_s, majority=False)
    looks.every_half_second([4.0 + gap_s + 0.5 * n for n in range(16)])
    assert looks.failures.failure is None


def test_what_is_seen_all_along_is_not_told_twice() -> None:
    looks = Looks()
    looks.every_half_second([0.5 * n for n in range(1, 8)])
    looks.give(5.0, alert(5.0))
    assert "tells again" in str(looks.failures.failure)


def test_what_was_over_and_holds_again_is_told() -> None:
    looks = Looks()
    looks.every_half_second([0.5 * n for n in range(1, 8)])
    for n in range(8, 14):
        looks.give(0.5 * n, None, holds=False)
    for n in range(14, 40):
        looks.give(0.5 * n, None)
    assert "nobody told" in str(looks.failures.failure)


def test_a_long_run_tells_of_each_alert_although_it_has_many() -> None:
    """Seeds 11 and 12 for 100 s: a simulated sender might send twenty messages in a whole hour."""
    looks = Looks()
    for n in range(400):
        looks.look(0.5 * n, holds=n % 20 < 15)
    assert looks.failures.failure is None
