"""Frequent records without Python between them, by ``native/launch.c`` where that was built."""

import ctypes
from collections.abc import Sequence
from typing import Any, Self

from gpupool.remoting.driver_api.executor import native_library
from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.modules.function import Function
from gpupool.remoting.driver_api.executor.modules.shared_state import Outcome, Shared
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import NUMBERS
from gpupool.remoting.worker.launch_gate import Gate

ABI = 7

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
    "cuMemcpyDtoHAsync_v2",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime_v2 cuEventElapsedTime",
    "cuEventCreate",
    "cuEventDestroy_v2",
)
"""Driver functions of the launcher, in the order of its ``struct driver``; of several names, the
first that exists."""

ISSUED_CALLS = (
    *("cuMemcpyDtoDAsync", "cuMemsetD8Async", "cuMemsetD32Async"),
    *("cuEventCreate", "cuEventDestroy"),
)

ISSUED = frozenset(
    {
        NUMBERS["LAUNCH"],
        NUMBERS["LAUNCH_EX"],
        NUMBERS["RECORD_EVENT"],
        NUMBERS["WAIT_EVENT"],
        NUMBERS["COPY_IN"],
        NUMBERS["DOWNLOAD"],
        NUMBERS["GRAPH_SET"],
        NUMBERS["GRAPH_LAUNCH"],
        NUMBERS["HOST_CALL"],
        *(op for op, (name, _, _) in table.CALLS.items() if name in ISSUED_CALLS),
    }
)
"""The records that it may issue."""

WAITED = frozenset(
    {NUMBERS["SYNC_STREAM"], NUMBERS["SYNC_DEVICE"], NUMBERS["SYNC_EVENT"], NUMBERS["END_EVENT"]}
)
"""Those that it may wait for."""

SLOTS, SLOT_SIZE = 64, 4096
"""Of the pinned memory for small downloads."""

ANSWER_SIZE = 32


class Launcher:
    """Issues the frequent records at the start of a frame's records.

    The caller tells it of every object that records may name, and keeps the memory alive to which
    a function's addresses point.
    """

    @classmethod
    def load(cls) -> Self | None:
        """Return a launcher for this process, or None where there is no library for it."""
        library = native_library.load()
        if library is None or library.launcher_abi() != ABI:
            return None
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
        called = [_address(driver, name) for name in CALLED]
        return cls(library, called) if called[0] else None

    def __init__(self, library: Any, called: Sequence[int]) -> None:
        self.library = library
        addresses = (ctypes.c_void_p * len(called))(*called)
        self._self = ctypes.c_void_p(library.launcher_new(addresses))
        self._run = library.launcher_run  # of each frame
        self.outcome = Outcome()
        """Of the last run."""
        self._outcome_address = ctypes.addressof(self.outcome)
        self._taken = memoryview(bytearray(SLOTS * (SLOT_SIZE + ANSWER_SIZE)))
        self._taken_address = ctypes.addressof(ctypes.c_char.from_buffer(self._taken))

    def function(self, number: int, function: Function) -> None:
        """Tell of a kernel with all that a launch needs."""
        where = function.values, function.pointers, function.size, function.kernel
        self.library.launcher_function(self._self, number, function.handle, *where)

    def keep(self, kind: str, number: int, handle: int) -> None:
        """Tell of an object: a stream s, an event e, a graph's node n, an executable graph x.

        Or of a context c, under the number of its device, counted from one.
        """
        self.library.launcher_keep(self._self, ord(kind), number, handle)

    def end(self, kind: str, number: int) -> None:
        """Unregister an object; harmless if it was never registered."""
        self.library.launcher_end(self._self, ord(kind), number)

    def event(self, number: int) -> int:
        """Return the handle of an event that the launcher has made; 0 for any other number."""
        return int(self.library.launcher_event(self._self, number))

    def select(self, device: int, *, plain: bool) -> None:
        """Set the current device; ``plain``: with its own context, not a green one."""
        self.library.launcher_select(self._self, device, plain)

    def share(self, shared: Shared, connection: int) -> None:
        """Look at ``shared`` from now on.

        Args:
            shared: what both sides look at.
            connection: a descriptor that the client's bytes come to; -1 if that is not known.
        """
        self.library.launcher_share(self._self, ctypes.addressof(shared), connection)
        self._shared = shared

    def gate(self, gates: ctypes.Array[Gate]) -> None:
        """Issue nothing that has no answer while the current device's gate is closed."""
        self.library.launcher_gate(self._self, ctypes.addressof(gates))
        self._gates = gates

    def tell(self, turns: ctypes.c_void_p) -> None:
        """Give host functions that keep no stream to the driver from now on."""
        self.library.launcher_tell(self._self, turns)

    def idle(self, streams: Sequence[int]) -> bool:
        """Say whether all these streams of the driver come to an end soon; False: not known."""
        handles = (ctypes.c_uint64 * len(streams))(*streams)
        return bool(self.library.launcher_idle(self._self, handles, len(streams)))

    def run(self, frame: int, start: int, end: int, *, alone: bool) -> int:
        """Issue; return where the first record lies that was not, or failed, with the ``outcome``.

        It ends behind a wait that is over. ``alone``: no other frame has come yet.
        """
        return int(self._run(self._self, frame, start, end, alone, self._outcome_address))

    # --- small downloads --------------------------------------------------------------------------

    def begin_downloads(self, device: int, address: int, events: Sequence[int]) -> None:
        """Take small downloads of a device from now on.

        Args:
            device: in the client's order.
            address: of pinned memory of ``SLOTS`` times ``SLOT_SIZE`` bytes, which stays.
            events: of the device, as many.
        """
        self.library.downloads_begin(
            self._self, device, address, (ctypes.c_uint64 * SLOTS)(*events)
        )

    def take_downloads(self) -> tuple[int, bytes]:
        """Return how many are over, and their answers; called by one thread at a time.

        Raises:
            CudaError: when one has failed; then none is taken.
        """
        count, status = ctypes.c_uint32(0), ctypes.c_int(0)
        where = self._taken_address, ctypes.addressof(count), ctypes.addressof(status)
        size = self.library.downloads_take(self._self, *where)
        if status.value:
            raise CudaError(status.value, "cuEventQuery")
        return count.value, bytes(self._taken[:size])

    def downloads_sent(self, count: int) -> None:
        """Note that so many of those that were taken are on their way."""
        self.library.downloads_sent(self._self, count)

    def await_downloads(self) -> None:
        """Wait for all that were asked for.

        Raises:
            CudaError: when one has failed.
        """
        status = int(self.library.downloads_await(self._self))
        if status:
            raise CudaError(status, "cuEventSynchronize")


def _address(library: ctypes.CDLL, names: str) -> int:
    """Return where a function is, 0 for one that the library does not have."""
    for name in names.split():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0
