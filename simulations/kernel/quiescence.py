"""Fault-free intervals of machines and links: promises about time hold only in these.

Checkers of liveness ask for how long no fault has touched the machines that they judge.
"""

from gpupool.simulations.kernel.scheduler import Scheduler

Key = str | tuple[str, str]
"""A machine, or the link of two machines, in the order of their names."""


class QuiescenceTracker:
    """Tracks the faults in force, and the end of the last one, for each machine and link."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._active: dict[Key, int] = {}
        self._ended_at: dict[Key, float] = {}

    def begin(self, key: Key) -> None:
        """Note that something is disturbed from now on."""
        self._active[key] = self._active.get(key, 0) + 1

    def end(self, key: Key) -> None:
        """Note that one disturbance of it is over."""
        self._active[key] = max(0, self._active.get(key, 0) - 1)
        self._ended_at[key] = self._scheduler.now

    def disturb(self, key: Key) -> None:
        """Note a disturbance that is over at once."""
        self._ended_at[key] = self._scheduler.now

    def for_s(self, *keys: Key) -> float:
        """Return for how long none of these has been disturbed."""
        if any(self._active.get(key) for key in keys):
            return 0.0
        return self._scheduler.now - max(
            (self._ended_at.get(key, 0.0) for key in keys), default=0.0
        )


def between(one: str, other: str) -> tuple[str, str]:
    """Return the key of the link between two machines."""
    return (one, other) if one < other else (other, one)
