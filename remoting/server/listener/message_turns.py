"""Whose message the server handles next: users in turn, a few milliseconds at a time.

All control messages are handled in one thread, which also keeps this server in touch with the
others. A user with many connections could have it handle their messages alone: each connection
may have sent hundreds at once. So a message is handled at once only while messages take less than
half of the time. Else it waits in the line of its user. ``give`` goes round the users, takes one
message of each, and lets the other tasks of the thread run every ``STEP_S``.
"""

import time
from collections import deque
from collections.abc import Callable

import trio

from gpupool.remoting.transport.failures import GONE

STEP_S = 0.004
"""Messages are handled for so long in one step of the loop, and the last one to its end."""

PART = 0.5
"""The part of the time that messages may take before they wait in lines."""


class _Turn:
    """A message that waits."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], bool]) -> None:
        self.work: Callable[[], bool] | None = work
        self.done = trio.Event()
        self.result = False
        self.error: BaseException | None = None

    def take(self) -> None:
        work, self.work = self.work, None
        if work is None:
            return  # nobody waits for it any more
        try:
            self.result = work()
        except GONE as error:
            self.error = error  # of the connection; others end the server, as anywhere else
        finally:
            self.done.set()


class Turns:
    """The lines of all users. Each connection has one message in them at most."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without messages; ``clock`` measures the work."""
        self._clock = clock
        self._lines: dict[str, deque[_Turn]] = {}  # the user whose turn it is comes first
        self._asked = trio.Event()
        self._used_s, self._at = 0.0, clock()

    async def take(self, user: str, work: Callable[[], bool]) -> bool:
        """Do ``work`` when it is the user's turn, and return its result; what it raises is raised.

        A user is any text; strangers have texts of their own.
        """
        if not self._lines and self._has_time():
            began = self._clock()
            try:
                return work()
            finally:
                self._used_s += self._clock() - began
        turn = _Turn(work)
        self._lines.setdefault(user, deque()).append(turn)
        self._asked.set()
        try:
            await turn.done.wait()
        finally:
            turn.work = None
        if turn.error is not None:
            raise turn.error
        return turn.result

    async def give(self) -> None:
        """Give turns, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._lines:
                await trio.lowlevel.checkpoint()
                end = self._clock() + STEP_S
                while self._lines and self._clock() < end:
                    self._give_one()

    def _give_one(self) -> None:
        user = next(iter(self._lines))
        line = self._lines.pop(user)
        turn = line.popleft()
        if line:
            self._lines[user] = line  # behind the others
        turn.take()

    def _has_time(self) -> bool:
        now = self._clock()
        self._used_s = max(0.0, self._used_s - (now - self._at) * PART)
        self._at = now
        return self._used_s < STEP_S
