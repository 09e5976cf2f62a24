"""Plain launches without Python between them, by ``native/launch.c`` where that was built."""

import ctypes
from pathlib import Path
from typing import Any, Self

from gpupool.remoting.driver_api.build import LAUNCHER, library_dir

ABI = 1


class Launcher:
    """Launches the plain launches at the start of a frame's records.

    The caller tells it of every function and stream that records may name, and keeps the memory
    alive to which a function's addresses point.
    """

    @classmethod
    def load(cls, path: Path | None = None) -> Self | None:
        """Return a launcher for this process, or None where there is no library for it."""
        path = path or library_dir() / LAUNCHER
        try:
            library = ctypes.CDLL(str(path))
            kernel = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)
            if library.gpupool_launcher_abi() != ABI:
                return None
        except (OSError, AttributeError):
            return None
        return cls(library, kernel)

    def __init__(self, library: ctypes.CDLL, kernel: ctypes.c_void_p) -> None:
        wide, pointer, narrow = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32
        library.gpupool_launcher_new.argtypes = [pointer]
        library.gpupool_launcher_new.restype = pointer
        self._library = library
        self._self = ctypes.c_void_p(library.gpupool_launcher_new(kernel))
        self._function = library.gpupool_launcher_function
        self._function.argtypes = [pointer, wide, wide, wide, wide, narrow]
        self._stream = library.gpupool_launcher_stream
        self._stream.argtypes = [pointer, wide, wide]
        self._end_stream = library.gpupool_launcher_end_stream
        self._end_stream.argtypes = [pointer, wide]
        self._run: Any = library.gpupool_launcher_run
        self._run.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t, pointer]
        self._run.restype = ctypes.c_size_t
        self._outcome = (ctypes.c_int * 2)()
        self._outcome_address = ctypes.addressof(self._outcome)

    def function(self, number: int, handle: int, values: int, pointers: int, size: int) -> None:
        """Tell of a kernel: where its parameters' bytes lie, and what points to each of them."""
        self._function(self._self, number, handle, values, pointers, size)

    def stream(self, number: int, handle: int) -> None:
        """Tell of a stream."""
        self._stream(self._self, number, handle)

    def end_stream(self, number: int) -> None:
        """Launch nothing more on a stream."""
        self._end_stream(self._self, number)

    def run(self, frame: int, start: int, end: int) -> tuple[int, int, int]:
        """Launch; return where the first record lies that was not, a CUresult, and a count."""
        at = self._run(self._self, frame, start, end, self._outcome_address)
        return at, self._outcome[0], self._outcome[1]
