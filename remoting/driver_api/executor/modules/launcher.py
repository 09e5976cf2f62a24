"""Frequent records without Python between them, by ``native/launch.c`` where that was built."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from gpupool.remoting.driver_api.build import LAUNCHER, library_dir
from gpupool.remoting.driver_api.schema import table

ABI = 3

CALLED = (
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuLaunchKernelEx",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuStreamQuery",
)
"""What it calls, in the order of its ``struct driver``."""

FILLS_AND_COPIES = ("cuMemcpyDtoDAsync", "cuMemsetD8Async", "cuMemsetD32Async")

ISSUED = frozenset(
    {
        table.LAUNCH,
        table.LAUNCH_EX,
        table.RECORD_EVENT,
        table.WAIT_EVENT,
        table.COPY_IN,
        *(op for op, (name, _, _) in table.CALLS.items() if name in FILLS_AND_COPIES),
    }
)
"""The records that it may issue."""


class Launcher:
    """Issues the frequent records at the start of a frame's records.

    The caller tells it of every function, stream and event that records may name, and keeps the
    memory alive to which a function's addresses point.
    """

    @classmethod
    def load(cls, path: Path | None = None) -> Self | None:
        """Return a launcher for this process, or None where there is no library for it."""
        path = path or library_dir() / LAUNCHER
        try:
            library = ctypes.CDLL(str(path))
            driver = ctypes.CDLL("libcuda.so.1")
            if library.gpupool_launcher_abi() != ABI:
                return None
        except (OSError, AttributeError):
            return None
        called = [_address(driver, name) for name in CALLED]
        return cls(library, called) if called[0] else None

    def __init__(self, library: ctypes.CDLL, called: Sequence[int]) -> None:
        wide, pointer, narrow = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32
        library.gpupool_launcher_new.argtypes = [pointer]
        library.gpupool_launcher_new.restype = pointer
        self.library = library
        addresses = (pointer * len(called))(*called)
        self._self = ctypes.c_void_p(library.gpupool_launcher_new(addresses))
        self._function = library.gpupool_launcher_function
        self._function.argtypes = [pointer, wide, wide, wide, wide, narrow]
        self._stream = library.gpupool_launcher_stream
        self._stream.argtypes = [pointer, wide, wide]
        self._end_stream = library.gpupool_launcher_end_stream
        self._end_stream.argtypes = [pointer, wide]
        self._event = library.gpupool_launcher_event
        self._event.argtypes = [pointer, wide, wide]
        self._end_event = library.gpupool_launcher_end_event
        self._end_event.argtypes = [pointer, wide]
        self._run: Any = library.gpupool_launcher_run
        self._run.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t, pointer]
        self._run.restype = ctypes.c_size_t
        self._idle: Any = library.gpupool_launcher_idle
        self._idle.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int64]
        self._outcome = (ctypes.c_int * 2)()
        self._outcome_address = ctypes.addressof(self._outcome)

    def function(self, number: int, handle: int, values: int, pointers: int, size: int) -> None:
        """Tell of a kernel: where its parameters' bytes lie, and what points to each of them."""
        self._function(self._self, number, handle, values, pointers, size)

    def stream(self, number: int, handle: int) -> None:
        """Tell of a stream."""
        self._stream(self._self, number, handle)

    def end_stream(self, number: int) -> None:
        """Issue nothing more on a stream."""
        self._end_stream(self._self, number)

    def event(self, number: int, handle: int) -> None:
        """Tell of an event."""
        self._event(self._self, number, handle)

    def end_event(self, number: int) -> None:
        """Record an event no more."""
        self._end_event(self._self, number)

    def idle(self, streams: Sequence[int], patience_ns: int) -> bool:
        """Say whether all these streams of the driver come to an end soon; False: not known."""
        handles = (ctypes.c_uint64 * len(streams))(*streams)
        return bool(self._idle(self._self, handles, len(streams), patience_ns))

    def run(self, frame: int, start: int, end: int) -> tuple[int, int, int]:
        """Issue; return where the first record lies that was not, a CUresult, and a count."""
        at = self._run(self._self, frame, start, end, self._outcome_address)
        return at, self._outcome[0], self._outcome[1]


def _address(library: ctypes.CDLL, name: str) -> int:
    """Return where a function is, 0 for one that the library does not have."""
    try:
        function = library[name]
    except AttributeError:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
