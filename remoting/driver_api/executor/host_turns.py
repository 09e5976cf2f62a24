"""Turns of host functions on their way to the thread that tells the client."""

import ctypes
import queue
from collections.abc import Sequence

from gpupool.remoting.driver_api.executor.modules.launcher import Launcher

AT_ONCE = 64
"""Turns that are taken at a time."""

Turn = tuple[int, int, int]
"""A function's number, a CUresult, and a ticket; 0: its stream does not wait."""


class _Turn(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_uint64),
        ("ticket", ctypes.c_uint64),
        ("status", ctypes.c_int64),
    ]


class NativeTurns:
    """Turns by ``native/turns.c``, to which the driver adds without Python."""

    def __init__(self, launcher: Launcher) -> None:
        self._library = library = launcher.library
        self._self = ctypes.c_void_p(library.turns_new())
        self._launcher = launcher
        self._found = (_Turn * AT_ONCE)()
        self.callback = ctypes.cast(library.turns_callback, ctypes.c_void_p).value or 0
        """Address of the callback for the driver; its user data is the result of ``expect``."""

    def put(self, turn: Turn, /) -> None:
        """Add one."""
        number, status, ticket = turn
        self._library.turns_put(self._self, number, status, ticket)

    def get(self) -> Sequence[Turn]:
        """Wait for the next, and take those that have come; called by one thread."""
        count = self._library.turns_get(self._self, self._found, AT_ONCE)
        return [(one.number, one.status, one.ticket) for one in self._found[:count]]

    def lose(self) -> list[int]:
        """Expect no function any more to which the driver has not come; return their numbers."""
        lost: list[int] = []
        numbers = (ctypes.c_uint64 * AT_ONCE)()
        while count := self._library.turns_lose(self._self, numbers, AT_ONCE):
            lost += numbers[:count]
        return lost

    def begin(self) -> None:
        """Allow the launcher to add functions that block no stream: a thread gets their turns."""
        self._launcher.tell(self._self)

    def expect(self, number: int) -> int:
        """Return the user data that the callback gets for a function."""
        return int(self._library.turns_expect(self._self, number) or 0)

    def forget(self, expected: int) -> None:
        """Release the result of ``expect``: no call by the driver follows."""
        self._library.turns_forget(expected)


class PlainTurns:
    """Turns of callbacks in Python alone, where there is no library."""

    def __init__(self) -> None:
        self._turns: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        self.put = self._turns.put

    def get(self) -> Sequence[Turn]:
        """Wait for the next."""
        return [self._turns.get()]

    def lose(self) -> list[int]:
        """Return nothing: the caller that adds functions knows them all."""
        return []

    def begin(self) -> None:
        """Do nothing."""


def turns_of(launcher: Launcher | None) -> NativeTurns | PlainTurns:
    """Return native turns with a launcher, else turns in Python."""
    return PlainTurns() if launcher is None else NativeTurns(launcher)
