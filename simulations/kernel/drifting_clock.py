"""The clocks of a machine: a monotonic one with a separate rate, and a wall clock that errs."""

from gpupool.simulations.kernel.scheduler import Scheduler

EPOCH_MS = 1_900_000_000_000
"""The time of a correct wall clock when a simulation begins."""


class DriftingClock:
    """``ports.Clock`` under virtual time.

    The monotonic clock never goes back, at any rate; its zero is drawn, so that
    no code can take one machine's instant for another's. The wall clock runs at
    the same rate, and besides it has an error, which jumps may change.
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
        """The gain of the wall clock by the rate, until ``_drift_since``."""
        self._drift_since = 0.0

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
        return self._wall_error_ms + self._drift_ms + drift_ms

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
