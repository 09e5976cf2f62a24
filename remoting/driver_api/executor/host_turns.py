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
        library = launcher.library
        wide, pointer = ctypes.c_uint64, ctypes.c_void_p
        library.gpupool_turns_new.restype = pointer
        self._self = ctypes.c_void_p(library.gpupool_turns_new())
        self._launcher = launcher
        self._found = (_Turn * AT_ONCE)()
        self._put = library.gpupool_turns_put
        self._put.argtypes = [pointer, wide, ctypes.c_int64, wide]
        self._get = library.gpupool_turns_get
        self._get.argtypes, self._get.restype = [pointer, pointer, ctypes.c_size_t], ctypes.c_size_t
        self._lose = library.gpupool_turns_lose
        self._lose.argtypes = [pointer, pointer, ctypes.c_size_t]
        self._lose.restype = ctypes.c_size_t
        self._expect = library.gpupool_turns_expect
        self._expect.argtypes, self._expect.restype = [pointer, wide], pointer
        self._forget = library.gpupool_turns_forget
        self._forget.argtypes = [pointer]
        address = ctypes.cast(library.gpupool_turns_callback, pointer)
        self.callback = address.value or 0
        """Where the driver finds the callback; its data is what ``expect`` gives."""

    def put(self, turn: Turn, /) -> None:
        """Add one."""
        number, status, ticket = turn
        self._put(self._self, number, status, ticket)

    def get(self) -> Sequence[Turn]:
        """Wait for the next, and take those that have come; called by one thread."""
        count = self._get(self._self, self._found, AT_ONCE)
        return [(one.number, one.status, one.ticket) for one in self._found[:count]]

    def lose(self) -> list[int]:
        """Expect no function any more to which the driver has not come; return their numbers."""
        lost: list[int] = []
        numbers = (ctypes.c_uint64 * AT_ONCE)()
        while count := self._lose(self._self, numbers, AT_ONCE):
            lost += numbers[:count]
        return lost

    def begin(self) -> None:
        """Have the launcher add functions that keep no stream: there is a thread that gets them."""
        self._launcher.tell(self._self)

    def expect(self, number: int) -> int:
        """Return what the callback is given for a function."""
        return int(self._expect(self._self, number) or 0)

    def forget(self, expected: int) -> None:
        """Take back what ``expect`` gave: the driver will not call."""
        self._forget(expected)


class PlainTurns:
    """Turns of callbacks in Python alone, where there is no library."""

    def __init__(self) -> None:
        self._turns: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        self.put = self._turns.put

    def get(self) -> Sequence[Turn]:
        """Wait for the next."""
        return [self._turns.get()]

    def lose(self) -> list[int]:
        """Return nothing: who adds functions knows them all."""
        return []

    def begin(self) -> None:
        """Do nothing."""


def turns_of(launcher: Launcher | None) -> NativeTurns | PlainTurns:
    """Return what a process has for turns."""
    return PlainTurns() if launcher is None else NativeTurns(launcher)
