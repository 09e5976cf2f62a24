"""Frequent records without Python between them, by ``native/launch.c`` where that was built."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from gpupool.remoting.driver_api.build import LAUNCHER, library_dir
from gpupool.remoting.driver_api.executor.modules.function import Function
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import NUMBERS

ABI = 4

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
    "cuGraphExecNodeSetParams",
    "cuGraphLaunch",
    "cuStreamAddCallback",
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
        NUMBERS["GRAPH_SET"],
        NUMBERS["GRAPH_LAUNCH"],
        NUMBERS["HOST_CALL"],
        *(op for op, (name, _, _) in table.CALLS.items() if name in FILLS_AND_COPIES),
    }
)
"""The records that it may issue."""


class Launcher:
    """Issues the frequent records at the start of a frame's records.

    The caller tells it of every object that records may name, and keeps the memory alive to which
    a function's addresses point.
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
        self._function.argtypes = [pointer, wide, wide, wide, wide, narrow, ctypes.c_int]
        self._keep = library.gpupool_launcher_keep
        self._keep.argtypes = [pointer, ctypes.c_int, wide, wide]
        self._end = library.gpupool_launcher_end
        self._end.argtypes = [pointer, ctypes.c_int, wide]
        self._select = library.gpupool_launcher_select
        self._select.argtypes = [pointer, wide]
        self._kept_by = library.gpupool_launcher_kept_by
        self._kept_by.argtypes = [pointer, pointer]
        self._tell = library.gpupool_launcher_tell
        self._tell.argtypes = [pointer, pointer]
        self._run: Any = library.gpupool_launcher_run
        self._run.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t, pointer]
        self._run.restype = ctypes.c_size_t
        self._idle: Any = library.gpupool_launcher_idle
        self._idle.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int64]
        self._outcome = (ctypes.c_int * 2)()
        self._outcome_address = ctypes.addressof(self._outcome)

    def function(self, number: int, function: Function) -> None:
        """Tell of a kernel with all that a launch needs."""
        where = function.values, function.pointers, function.size, function.kernel
        self._function(self._self, number, function.handle, *where)

    def keep(self, kind: str, number: int, handle: int) -> None:
        """Tell of an object: a stream s, an event e, a graph's node n, an executable graph x.

        Or of a context c, under the number of its device, counted from one.
        """
        self._keep(self._self, ord(kind), number, handle)

    def end(self, kind: str, number: int) -> None:
        """Have an object named no more; harmless if it never was."""
        self._end(self._self, ord(kind), number)

    def select(self, device: int) -> None:
        """Tell which device is current."""
        self._select(self._self, device)

    def kept_by(self, keeping: ctypes.c_uint32) -> None:
        """Have calls that may wait for host functions left to Python while this is not 0."""
        self._kept_by(self._self, ctypes.addressof(keeping))
        self._keeping = keeping

    def tell(self, turns: ctypes.c_void_p) -> None:
        """Give host functions that keep no stream to the driver from now on."""
        self._tell(self._self, turns)

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
