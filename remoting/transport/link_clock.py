"""The measurement of a peer's wall clock over one link, and of steps of this machine's own.

A question and its answer bound the instant at which the peer read its clock, by this server's
monotonic clock. Setting the wall clock here changes no measurement.
"""

import struct

from gpupool.pool.ports import Clock
from gpupool.pool.table_clock import ClockSample

CLOCK_EVERY_S = 5.0
STEP_EVERY_S = 1.0
STEP_S = 0.5
"""A wall clock that moves by more than this against the monotonic one was set."""

WALL = struct.Struct(">Q")  # wall clock in milliseconds


class LinkClock:
    """The wall clock at the other end of one link."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at: float | None = None
        self.sample: ClockSample | None = None
        """The latest measurement."""

    def asked(self) -> None:
        """Note that a question leaves; an answer to an earlier one counts for it no more."""
        self._asked_at = self._clock.monotonic()

    def answered(self, wall_ms: int) -> None:
        """Take an answer; one that nobody asked for says nothing."""
        if (asked_at := self._asked_at) is None:
            return
        self._asked_at = None
        half_s = (self._clock.monotonic() - asked_at) / 2
        middle = asked_at + half_s
        self.sample = ClockSample(wall_ms - int(middle * 1000), middle, half_s)


class WallSteps:
    """Notices that this machine's wall clock was set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_ms = self._now_zero_ms()

    def step_s(self) -> float:
        """Return by how much it was set since the last call; 0 when it only ran."""
        before, self._zero_ms = self._zero_ms, self._now_zero_ms()
        moved_s = (self._zero_ms - before) / 1000
        return moved_s if abs(moved_s) > STEP_S else 0.0

    def _now_zero_ms(self) -> int:
        return self._clock.wall_ms() - int(self._clock.monotonic() * 1000)
