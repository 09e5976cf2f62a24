"""The scheduler: a heap of events in virtual time, and random sources for the subsystems."""

import hashlib
import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

EVENT_COUNT_MAX = 3_000_000
"""A run that needs more events than this, thirty times the usual, is stuck in a loop."""


class StuckError(Exception):
    """The simulation did not come to its end within ``EVENT_COUNT_MAX`` events."""


class Scheduler:
    """Runs events in the order of virtual time.

    Two events at the same instant happen in the order in which they were scheduled, so a run
    depends on nothing but the seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        """Virtual seconds since the beginning."""
        self.event_count = 0
        self.stopped = False
        """Set by the first failure; no event happens after it."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    def random(self, subsystem: str) -> Random:
        """Return a random source of its own for ``subsystem``.

        A draw added in one subsystem leaves those of all others as they were.
        """
        digest = hashlib.sha256(f"{self.seed}/{subsystem}".encode()).digest()
        return Random(int.from_bytes(digest))  # noqa: S311 - a source that repeats is the point

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen at the instant ``when``, or now if that is past."""
        heappush(self._heap, (when if when > self.now else self.now, next(self._sequence), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen ``delay_s`` from now."""
        when = self.now + delay_s if delay_s > 0.0 else self.now
        heappush(self._heap, (when, next(self._sequence), action))

    def run_until(self, when: float) -> None:
        """Let everything happen that is due up to ``when``.

        Raises:
            StuckError: when that takes more events than any sane run.
        """
        heap = self._heap
        count = self.event_count
        while heap and heap[0][0] <= when and not self.stopped:
            self.now, _, action = heappop(heap)
            self.event_count = count = count + 1
            if count > EVENT_COUNT_MAX:
                raise StuckError(f"{EVENT_COUNT_MAX} events, and only {self.now:.3f} s have passed")
            action()
        if not self.stopped:
            self.now = when
