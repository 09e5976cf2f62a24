"""The clocks of a machine: a monotonic one with a rate of its own, and a wall clock that jumps."""

from gpupool.simulations.kernel.scheduler import Scheduler

EPOCH_MS = 1_900_000_000_000
"""What a correct wall clock shows when a simulation begins."""


class DriftingClock:
    """``ports.Clock`` under virtual time.

    The monotonic clock never goes back, at any rate; its zero is drawn, so that
    no code can take one machine's instant for another's.
    """

    def __init__(
        self, scheduler: Scheduler, *, origin_s: float, rate: float, wall_error_ms: int
    ) -> None:
        self._scheduler = scheduler
        self._base = origin_s
        self._since = scheduler.now
        self._rate = rate
        self._wall_error_ms = wall_error_ms

    def monotonic(self) -> float:
        """Return this machine's seconds."""
        return self._base + (self._scheduler.now - self._since) * self._rate

    def wall_ms(self) -> int:
        """Return this machine's idea of the milliseconds since the Unix epoch."""
        elapsed_ms = int(self._scheduler.now * 1000)
        drift_ms = int(self._scheduler.now * (self._rate - 1.0) * 1000)
        return EPOCH_MS + elapsed_ms + drift_ms + self._wall_error_ms

    def world_time(self, instant: float) -> float:
        """Return the virtual time at which ``monotonic`` will show ``instant``."""
        return self._since + (instant - self._base) / self._rate

    def set_rate(self, rate: float) -> None:
        """Let the clock run at ``rate`` seconds a second from now on."""
        self._base = self.monotonic()
        self._since = self._scheduler.now
        self._rate = rate

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or a broken time server does."""
        self._wall_error_ms += by_ms
