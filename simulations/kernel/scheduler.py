"""The scheduler: a heap of events in virtual time, and random sources for the subsystems."""

import hashlib
import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

EVENTS_MAX = 3_000_000
"""A run that needs more events than this makes no progress, unless its maker knows better."""

BURST_MAX = 100_000
"""Nor does one in which less than a virtual second passes in so many events."""


class NoProgressError(Exception):
    """The simulation did not come to its end within its limit of events."""


class Scheduler:
    """Runs events in the order of virtual time.

    Two events at the same instant happen in the order in which they were scheduled, so a run
    depends on nothing but the seed.
    """

    def __init__(
        self, seed: int, *, events_max: int = EVENTS_MAX, burst_max: int = BURST_MAX
    ) -> None:
        """Make a scheduler at the instant 0.

        Args:
            seed: of all random sources.
            events_max: the events of a whole run.
            burst_max: the events in which a virtual second passes at the latest.
        """
        self.seed = seed
        self.now = 0.0
        """Virtual seconds since the beginning."""
        self.event_count = 0
        self.stopped = False
        """Set by the first failure; no event happens after it."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._events_max, self._burst_max = events_max, burst_max
        self._looked_at = 0.0
        self._look_again = min(events_max, burst_max)

    def random(self, subsystem: str) -> Random:
        """Return a separate random source for ``subsystem``.

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
            NoProgressError: when that takes more events than any sane run.
        """
        heap = self._heap
        count = self.event_count
        while heap and heap[0][0] <= when and not self.stopped:
            self.now, _, action = heappop(heap)
            self.event_count = count = count + 1
            if count > self._look_again:
                self._check_progress()
            action()
        if not self.stopped:
            self.now = when

    def run_until_true(self, condition: Callable[[], bool], when: float) -> bool:
        """Let everything happen until ``condition`` holds; return whether it did by ``when``.

        Raises:
            NoProgressError: when that takes more events than any sane run.
        """
        while not condition():
            if self.stopped or not self._heap or self._heap[0][0] > when:
                return False
            self.now, _, action = heappop(self._heap)
            self.event_count += 1
            if self.event_count > self._look_again:
                self._check_progress()
            action()
        return True

    def _check_progress(self) -> None:
        text = f"no progress: {self.event_count:,} events, and it is {self.now:.3f} s"
        if self.event_count > self._events_max:
            raise NoProgressError(f"{text}, where {self._events_max:,} end the run")
        if self.now - self._looked_at < 1.0:
            raise NoProgressError(f"{text}, where {self._burst_max:,} move time by a second")
        self._looked_at = self.now
        self._look_again = min(self.event_count + self._burst_max, self._events_max)
