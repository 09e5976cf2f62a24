"""Where all checkers report; the first failure ends the run, so that the transcript ends there."""

from dataclasses import dataclass

from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that must never happen has happened."""

    checker: str
    text: str
    at: float  # virtual seconds

    def __str__(self) -> str:
        return f"{self.checker}: {self.text} (at {self.at:.3f} s)"


class FailureReporter:
    """Takes what the checkers find."""

    def __init__(self, scheduler: Scheduler, trace: Trace, *, only: str = "") -> None:
        """Make a judge, which with ``only`` listens to that one checker."""
        self._world = scheduler
        self._trace = trace
        self._only = only
        self.failure: Failure | None = None

    def fail(self, checker: str, text: str) -> None:
        """Record a failure and stop the world; only the first one counts."""
        if self.failure is None and self._only in ("", checker):
            self.failure = Failure(checker, text, self._world.now)
            self._trace.note("checker", "FAILED", f"{checker}: {text}")
            self._world.stopped = True
