"""A launch in strict mode: the memory that a kernel may use, and the words of its fault."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import address_of
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDADriverError, CUDARuntimeError
from gpupool.remoting.devices.host_kernels.kernel_source import SHARED_MAX
from gpupool.remoting.devices.strict.strict_memory import Span, StrictMode

# As in gpupool_strict.h.
_BOUNDS, _MISALIGNED, _UNWRITTEN, _RACE = 1, 2, 3, 4
_FIELDS = """
    regions count unordered unordered_count shared step
    kind address size write thread other other_step place line x y z
    shared_start shared_end dynamic_start
"""
_SPACES = ("", "static shared memory", "dynamic shared memory", "a variable of the module")


def need_shared(name: str, static: int, dynamic: int) -> None:
    """Raise if a block of a kernel would have more shared memory than a card."""
    if static + dynamic > SHARED_MAX:
        raise CUDADriverError(
            f"strict: CUDA_ERROR_INVALID_VALUE: kernel {name!r} has {static:,} bytes of static "
            f"shared memory, and this launch asks for {dynamic:,} of dynamic shared memory: a "
            f"block has {SHARED_MAX:,} bytes in all"
        )


class _Watch(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _FIELDS.split())


class StrictLaunch:
    """One launch of a kernel, watched."""

    def __init__(
        self, mode: StrictMode, name: str, shared: int = 0, arguments: Sequence[Any] | None = None
    ) -> None:
        """Prepare a launch.

        Args:
            mode: of the session.
            name: of the kernel.
            shared: bytes of dynamic shared memory.
            arguments: objects of ctypes that a kernel of our own source reads.
        """
        self._mode, self._name, self._arguments = mode, name, arguments
        self._unordered = mode.streams.unordered()
        self._watch, self._block = _Watch(shared=shared, step=mode.streams.step), (1, 1, 1)

    def begin(self, library: Any, block: Sequence[int], pointers: Any) -> None:
        """Let a library watch its next launch, with so many threads in a block."""
        self._block, watch = tuple(block), self._watch
        rows = [
            (it.start, it.end, _address(it.written), _address(it.cells), it.shift)
            for it in self._mode.memories()
        ]
        for each in (pointers, *(self._arguments or ())):
            start = ctypes.addressof(each)
            rows.append((start, start + ctypes.sizeof(each), 0, 0, 0))
        self._kept = [
            np.array(sorted(rows), np.uint64),
            np.array([(work.first, work.last) for work in self._unordered], np.uint64),
        ]
        watch.regions, watch.unordered = map(_address, self._kept)
        watch.count, watch.unordered_count = map(len, self._kept)
        library.gpupool_watch(ctypes.byref(watch))

    def end(self, status: int) -> None:
        """Note the kernel's work.

        Raises:
            CUDARuntimeError: a GPU does not take it, or it has no certain result.
        """
        self._mode.streams.finish(f"kernel {self._name!r}", self._watch.step)
        if self._watch.kind:
            raise CUDARuntimeError(status, f"strict: {self._text()}")

    def _text(self) -> str:
        watch = self._watch
        line = f", kernel.cu:{watch.line}" if self._arguments is None and watch.line else ""
        did = f"{'writes' if watch.write else 'reads'} {watch.size} bytes at {watch.address:#x}"
        place, thread = self._place(), self._thread(watch.thread)
        who = f"thread {thread} of block {watch.x, watch.y, watch.z} of kernel {self._name!r}{line}"
        if watch.kind == _BOUNDS:
            return (
                f"cudaErrorIllegalAddress: {who} {did}, out of bounds: {place}. Let the kernel "
                "compare its index with the array's length"
            )
        if watch.kind == _MISALIGNED:
            return f"cudaErrorMisalignedAddress: {who} {did}, no multiple of that: {place}"
        if watch.kind == _UNWRITTEN:
            return f"{who} {did} that nothing has written: {place}. Write it, or use cupy.zeros"
        step = watch.other_step
        for work in self._unordered:
            if work.first <= step <= work.last:
                return (
                    f"{who} {did}, {place}, which {work.name} used in another stream, and nothing "
                    "orders the two: record an event and let the stream wait for it, or synchronize"
                )
        if step:
            other, cure = "a thread of another block", "an atomic operation, or another launch"
        else:
            other, cure = f"thread {self._thread(watch.other)}", "a barrier, or an atomic operation"
        return f"a race: {who} {did}, {place}, which {other} used as well, and they need {cure}"

    def _thread(self, number: int) -> tuple[int, int, int]:
        x, y, _ = self._block
        return number % x, number // x % y, number // x // y

    def _place(self) -> str:
        watch, address = self._watch, int(self._watch.address)
        if address < 1 << 16:
            return "a null pointer"
        if watch.kind != _BOUNDS and watch.place:
            return _SPACES[int(watch.place)]
        start, given = int(watch.dynamic_start), int(watch.shared)
        near = [
            self._mode.memory_at(address),
            Span(start, start + given, f"the {given:,} bytes of dynamic shared memory"),
            Span(watch.shared_start, watch.shared_end, "the module's static shared memory"),
        ]
        found = [each for each in near if each is not None and (given or each is not near[1])]
        return min(found, key=lambda each: each.distance(address)).text(address)


def _address(array: np.ndarray[Any, Any] | None) -> int:
    return 0 if array is None else address_of(array)
