"""Since when nothing has disturbed a machine, or what is between two: then, promises about time."""

from gpupool.simulations.kernel.scheduler import Scheduler

Key = str | tuple[str, str]
"""A machine, or two of them in the order of their names."""


class QuiescenceTracker:
    """What faults are in force, and when the last one ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._world = scheduler
        self._active: dict[Key, int] = {}
        self._ended_at: dict[Key, float] = {}

    def begin(self, key: Key) -> None:
        """Note that something is disturbed from now on."""
        self._active[key] = self._active.get(key, 0) + 1

    def end(self, key: Key) -> None:
        """Note that one disturbance of it is over."""
        self._active[key] = max(0, self._active.get(key, 0) - 1)
        self._ended_at[key] = self._world.now

    def disturb(self, key: Key) -> None:
        """Note a disturbance that is over at once."""
        self._ended_at[key] = self._world.now

    def for_s(self, *keys: Key) -> float:
        """Return for how long none of these has been disturbed."""
        if any(self._active.get(key) for key in keys):
            return 0.0
        return self._world.now - max((self._ended_at.get(key, 0.0) for key in keys), default=0.0)


def between(one: str, other: str) -> tuple[str, str]:
    """Return the key of what is between two machines."""
    return (one, other) if one < other else (other, one)
