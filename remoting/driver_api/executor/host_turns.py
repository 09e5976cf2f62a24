"""Turns of host functions on their way to the thread that tells the client."""

import ctypes
import queue

from gpupool.remoting.driver_api.executor.modules.launcher import Launcher

UNCHECKED = (1 << 64) - 1
"""In place of a ticket: whether anybody expects the function is not known."""

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
        self._put = library.gpupool_turns_put
        self._put.argtypes = [pointer, wide, ctypes.c_int64, wide]
        self._get = library.gpupool_turns_get
        self._get.argtypes = [pointer, pointer]
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

    def get(self) -> Turn:
        """Wait for the next."""
        found = _Turn()
        self._get(self._self, ctypes.byref(found))
        return found.number, found.status, found.ticket

    def expect(self, number: int) -> int:
        """Return what the callback is given for a function."""
        return int(self._expect(self._self, number) or 0)

    def forget(self, expected: int) -> None:
        """Take back what ``expect`` gave: the driver will not call."""
        self._forget(expected)


def turns_of(launcher: Launcher | None) -> NativeTurns | queue.SimpleQueue[Turn]:
    """Return a queue, for callbacks in Python alone where there is no library."""
    return queue.SimpleQueue() if launcher is None else NativeTurns(launcher)
