"""The age of a follower's table by its leader's messages, and the time that these were under way.

A heartbeat says "at this instant I was in touch with a majority, and so much was committed". A
server that has applied that much has a table as of that instant, also under a later leader.
``TableAge`` keeps these instants until the table has caught up with them.

A message is as old as its way was long, and it may have waited in a socket for half a minute.
``LeaderClock`` compares the clock that each message states with the clock here. The first messages
of a leadership, and those that come after this server stood still, have nothing to be compared
with. So the follower asks the leader for its clock, and believes nothing before the answer: the
answer, and all that follows on its connection, was sent after the question. Pure.

    event                                   what is known of the leader's clock
    a message of another leadership         nothing; the leader is asked
    a new connection, a stop of this server nothing; the leader is asked with its next message
    no answer within ``ASK_AGAIN_S``        nothing; the leader is asked again
    an answer                               it was sent after the question: bounds all that follow
    that took ``ASK_AGAIN_S`` or longer     this bound; the leader is asked again for a closer one
    a message of the same leadership        held up, if it states less than was expected
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

ASK_AGAIN_S = 0.5
"""A question that has no answer for so long may be lost. An answer that comes after all counts,
until one comes that was quicker: by as much as it was late, all messages seem to be late."""

QUESTIONS_MAX = 8
"""Questions that wait for answers: one that took 4 s would not help."""


class _Point(NamedTuple):
    commit_index: int
    as_of: float


class TableAge:
    """The newest instant of which the table is known to hold all that was committed."""

    def __init__(self) -> None:
        """Begin without knowing."""
        self._as_of = -NEVER
        self._points: deque[_Point] = deque()

    def said(self, commit_index: int, as_of: float) -> None:
        """Note from a message that ``commit_index`` was committed at ``as_of``."""
        if len(self._points) == POINTS_MAX:
            self._points.pop()
        self._points.append(_Point(commit_index, as_of))

    def known(self, as_of: float) -> None:
        """Note from another source that the table is as of ``as_of`` at least."""
        self._as_of = max(self._as_of, as_of)

    def as_of(self, applied_index: int) -> float:
        """Return the instant, for a table with everything up to ``applied_index``."""
        while self._points and self._points[0].commit_index <= applied_index:
            self._as_of = max(self._as_of, self._points.popleft().as_of)
        return self._as_of


class LeaderClock:
    """The clock of one leader, as the messages of one connection and term tell it."""

    def __init__(self) -> None:
        """Begin without a message."""
        self._count = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew: by another connection, or after this server stood still."""
        self._of: object = None
        self._offset_s = self._at = 0.0
        self._asked: object = None
        self._asked_at: dict[int, float] = {}  # by the number of the question

    def question(self, leadership: object, now: float) -> int | None:
        """Return the number of the question that is to be asked now; nothing when none is."""
        if leadership != self._asked:
            if leadership == self._of:
                return None
            self._asked, self._asked_at = leadership, {}
        if now < self._asked_at.get(self._count, -NEVER) + ASK_AGAIN_S:
            return None
        self._count += 1
        self._asked_at[self._count] = now
        self._asked_at.pop(self._count - QUESTIONS_MAX, None)
        return self._count

    def answered(self, leadership: object, number: int, clock_s: float, now: float) -> None:
        """Take an answer: the leader's clock showed ``clock_s`` after the question was asked."""
        asked_at = self._asked_at.get(number)
        if leadership != self._asked or asked_at is None:
            return
        offset_s = clock_s - asked_at
        # Questions may have waited together, and the answer to the oldest comes first.
        if leadership != self._of or offset_s < self._expected_s(now):
            self._of, self._offset_s, self._at = leadership, offset_s, now
        if now - asked_at < ASK_AGAIN_S:
            self._asked, self._asked_at = None, {}

    def delay_s(self, leadership: object, clock_s: float, now: float) -> float | None:
        """Return for how long a message was held up, at most; nothing while that is unknown."""
        if leadership != self._of:
            return None
        offset_s, expected_s = clock_s - now, self._expected_s(now)
        if offset_s >= expected_s:
            self._offset_s, self._at = offset_s, now
            return 0.0
        return expected_s - offset_s

    def _expected_s(self, now: float) -> float:
        """Return the clock offset of an undelayed message, less the drift since then (seconds)."""
        return self._offset_s - CLOCK_SLACK * (now - self._at)
