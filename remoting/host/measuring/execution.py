"""The share of time in which a worker executes calls, where no driver measures it."""

from dataclasses import dataclass

SILENT_AFTER_S = 2.0
"""Workers report each second while they execute calls, so one that is silent executes none."""


@dataclass(slots=True)
class Execution:
    """The share of time in which one worker executes calls, by its reports."""

    share: float = 0.0
    at: float = float("-inf")  # of the last report
    _executed_us: int = 0

    def take(self, executed_us: int, now: float) -> None:
        """Take a worker's total execution time in microseconds, at time ``now``."""
        # After a silence, what is new was executed within the last second.
        interval_s = now - self.at if now - self.at < SILENT_AFTER_S else 1.0
        if interval_s > 0:
            new_s = max(0, executed_us - self._executed_us) / 1e6
            self.share = min(1.0, new_s / interval_s)
            self._executed_us, self.at = executed_us, now

    def now(self, now: float) -> float:
        """Return the share in the last second."""
        return self.share if now - self.at < SILENT_AFTER_S else 0.0
