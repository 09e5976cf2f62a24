"""The age of a follower's table by its leader's messages, and the doubt about late messages.

A heartbeat says "at this instant I was in touch with a majority, and so much was committed". A
server that has applied that much has a table as of that instant, also under a later leader.
``TableAge`` keeps these instants until the table has caught up with them.

A message is as old as its way was long, and it may have waited in a socket for half a minute.
``LeaderClock`` compares the clock that each message states with the clock here: a message that was
held up states too little. The first messages of a leadership have nothing to be compared with, and
a server that was itself stopped cannot tell which messages waited meanwhile: ``TableAge.doubt``
makes it wait for the messages after those. Pure.
"""

from collections import deque
from typing import NamedTuple

NEVER = float("inf")

POINTS_MAX = 64
"""Instants that wait for the table; in between them it would only seem a little older."""

CLOCK_SLACK = 0.125
"""Two clocks may differ in rate by this much, before a punctual message seems to be late. Real ones
differ by 0.0002; a message that was held up for 30 s is noticed either way."""

LATE_S = 1.5
"""Without a step for so long, a server was stopped: its timers alone wake it more often."""

DOUBT_S = 0.1
"""What has waited in sockets is read within this time, once anything of it is."""


class _Point(NamedTuple):
    commit_index: int
    as_of: float


class TableAge:
    """The newest instant of which the table is known to hold all that was committed."""

    def __init__(self) -> None:
        """Begin without knowing."""
        self._as_of = -NEVER
        self._points: deque[_Point] = deque()
        self._doubt_until = -NEVER

    def said(self, commit_index: int, as_of: float, now: float) -> None:
        """Take what a message says: so much was committed at ``as_of``."""
        if now < self._doubt_until:
            return
        if len(self._points) == POINTS_MAX:
            self._points.pop()
        self._points.append(_Point(commit_index, as_of))

    def known(self, as_of: float) -> None:
        """Take over what was known otherwise: the table is as of this instant at least."""
        self._as_of = max(self._as_of, as_of)

    def doubt(self, now: float) -> None:
        """Believe no message that arrives soon: it may have waited while this server stood."""
        self._doubt_until = now + DOUBT_S

    def as_of(self, applied_index: int) -> float:
        """Return the instant, for a table with everything up to ``applied_index``."""
        while self._points and self._points[0].commit_index <= applied_index:
            self._as_of = max(self._as_of, self._points.popleft().as_of)
        return self._as_of


class LeaderClock:
    """The clock of one leader, as the messages of one connection and term tell it."""

    def __init__(self) -> None:
        """Begin without a message."""
        self.forget()

    def forget(self) -> None:
        """Begin anew, by another connection."""
        self._of: object = None
        self._offset_s = self._at = 0.0

    def knows(self, leadership: object) -> bool:
        """Return whether a message of this leadership can be compared with an earlier one."""
        return leadership == self._of

    def delay_s(self, leadership: object, clock_s: float, now: float) -> float:
        """Return for how long a message was held up, against the quickest of this leadership."""
        offset_s = clock_s - now
        expected_s = self._offset_s - CLOCK_SLACK * (now - self._at)
        if leadership != self._of or offset_s >= expected_s:
            self._of, self._offset_s, self._at = leadership, offset_s, now
            return 0.0
        return expected_s - offset_s
