"""The clocks of a machine: a monotonic one with a rate of its own, and a wall clock that errs."""

from gpupool.simulations.kernel.scheduler import Scheduler

EPOCH_MS = 1_900_000_000_000
"""What a correct wall clock shows when a simulation begins."""


class DriftingClock:
    """``ports.Clock`` under virtual time.

    The monotonic clock never goes back, at any rate; its zero is drawn, so that
    no code can take one machine's instant for another's. The wall clock runs at
    the same rate, and besides it has an error, which may grow and be mended.
    """

    def __init__(
        self, scheduler: Scheduler, *, origin_s: float, rate: float, wall_error_ms: int
    ) -> None:
        self._scheduler = scheduler
        self._base = origin_s
        self._since = scheduler.now
        self._rate = rate
        self._wall_error_ms = wall_error_ms
        self._drift_ms = 0
        """What the wall clock has gained by the rate, until ``_drift_since``."""
        self._drift_since = 0.0
        self._wall_drift = 0.0  # milliseconds that the error grows by each second
        self._wall_drift_since = 0.0
        self._wall_drift_until = float("inf")

    def monotonic(self) -> float:
        """Return this machine's seconds."""
        return self._base + (self._scheduler.now - self._since) * self._rate

    def wall_ms(self) -> int:
        """Return this machine's idea of the milliseconds since the Unix epoch."""
        return EPOCH_MS + int(self._scheduler.now * 1000) + self.wall_error_ms()

    def wall_error_ms(self) -> int:
        """Return how far the wall clock is ahead of the true time."""
        now = self._scheduler.now
        drift_ms = int((now - self._drift_since) * (self._rate - 1.0) * 1000)
        drifted_s = min(now, self._wall_drift_until) - self._wall_drift_since
        wall_drift_ms = round(drifted_s * self._wall_drift)
        return self._wall_error_ms + self._drift_ms + drift_ms + wall_drift_ms

    def world_time(self, instant: float) -> float:
        """Return the virtual time at which ``monotonic`` will show ``instant``."""
        return self._since + (instant - self._base) / self._rate

    def set_rate(self, rate: float) -> None:
        """Let both clocks run at ``rate`` seconds a second from now on."""
        now = self._scheduler.now
        self._drift_ms += int((now - self._drift_since) * (self._rate - 1.0) * 1000)
        self._base, self._since, self._drift_since = self.monotonic(), now, now
        self._rate = rate

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or a broken time server does."""
        self._wall_error_ms += by_ms

    def drift_wall(self, ms_per_s: float) -> None:
        """Let the wall clock alone gain or lose so much from now on, at a steady rate."""
        self._turn_wall(ms_per_s, float("inf"))

    def mend_wall(self, within_s: float = 0.0) -> None:
        """Make the wall clock right: at once, as a step, or slewed in ``within_s`` seconds.

        A drift ends with it. A clock that runs at a wrong rate errs again from then on.
        """
        error_ms = self.wall_error_ms()
        if within_s > 0:
            self._turn_wall(-error_ms / within_s, self._scheduler.now + within_s)
        else:
            self._turn_wall(0.0, float("inf"))
            self._wall_error_ms -= error_ms

    def _turn_wall(self, ms_per_s: float, until: float) -> None:
        """Note what the wall clock has gained so far, and let it gain ``ms_per_s`` from now on."""
        now = self._scheduler.now
        drifted_s = min(now, self._wall_drift_until) - self._wall_drift_since
        self._wall_error_ms += round(drifted_s * self._wall_drift)
        self._wall_drift, self._wall_drift_since, self._wall_drift_until = ms_per_s, now, until
