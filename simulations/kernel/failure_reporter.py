"""The failure reporter: every checker reports here, and the first failure ends the run.

So the transcript of a failed run ends with the failure.
"""

from dataclasses import dataclass

from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace


@dataclass(frozen=True, slots=True)
class Failure:
    """A checker's finding: an event that must never happen."""

    checker: str
    text: str
    at: float  # virtual seconds

    def __str__(self) -> str:
        return f"{self.checker}: {self.text} (at {self.at:.3f} s)"


class FailureReporter:
    """Takes the findings of the checkers."""

    def __init__(self, scheduler: Scheduler, trace: Trace, *, only: str = "") -> None:
        """Make a reporter; with ``only``, only that checker's findings count."""
        self._scheduler = scheduler
        self._trace = trace
        self._only = only
        self.failure: Failure | None = None

    def fail(self, checker: str, text: str, *, hopeless: bool = False) -> None:
        """Record a failure and stop the scheduler; only the first one counts.

        Args:
            checker: the one that failed.
            text: what it found.
            hopeless: whether the run cannot go on, and ends whichever checker was asked for.
        """
        if self.failure is None and (hopeless or self._only in ("", checker)):
            self.failure = Failure(checker, text, self._scheduler.now)
            self._trace.note("checker", "FAILED", f"{checker}: {text}")
            self._scheduler.stopped = True
