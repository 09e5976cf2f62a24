"""Real GPUs: calls are executed by CuPy, in partitions that look like whole devices."""

import importlib
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import (
    CHUNK,
    Budget,
    DeviceMemoryError,
    DeviceSpec,
    Fill,
    UnsupportedError,
    host_bytes,
)
from gpupool.remoting.devices.cuda_operations import operations

OVERHEAD_BYTES = 512 << 20
"""Charged per device for CUDA's context, modules and workspaces where the host has not done so.

CuPy's documentation says one to few hundred MiB; cuBLAS's workspace on sm_90 alone is 32 MiB.
"""

SMALL_BYTES = 64 << 10
"""Up to here the driver copies pageable memory at once and does not wait for the device."""

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_TO_DEVICE, _TO_HOST = 1, 2
_STAGES = 4


class _Stage:
    """One page-locked buffer, and the event after which it may be used again."""

    def __init__(self, cupy: Any, size: int = CHUNK) -> None:
        self.memory = cupy.cuda.alloc_pinned_memory(size)
        self.view = host_bytes(np.frombuffer(self.memory, np.uint8, size))
        self.pointer = self.memory.ptr
        self.event = cupy.cuda.Event(disable_timing=True)


class CudaBackend:
    """Executes the array door's calls with CuPy."""

    fuses = True

    def __init__(
        self, devices: Sequence[DeviceSpec], budget: Budget, log: Callable[[str], None]
    ) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.array_type = self.cupy.ndarray
        self.devices = devices
        self.log = log
        self.current = 0
        self.budget = budget
        self._runtime = self.cupy.cuda.runtime
        self._index_of = {spec.ordinal: at for at, spec in enumerate(devices)}
        self._sizes: dict[int, int] = {}
        self._stages: dict[int, list[_Stage]] = {}
        self._small: _Stage | None = None  # for small downloads, one at a time
        self._shared = np.empty(0, np.uint8)
        self._locked = False
        self._filling: Any = None  # the event behind the latest copy out of shared memory
        self._limits = [0] * len(devices)
        self._overhead = [0] * len(devices)
        allocator = self.cupy.cuda.PythonFunctionAllocator(self._malloc, self._free)
        self.pool = self.cupy.cuda.MemoryPool(allocator.malloc)
        for at, spec in enumerate(devices):
            self._charge(at, spec)
        self.cupy.cuda.set_allocator(self.pool.malloc)
        self.use(0, None)

    def _charge(self, at: int, spec: DeviceSpec) -> None:
        with self.cupy.cuda.Device(spec.ordinal):
            self._runtime.free(0)  # creates the context
            # A host that accounts by NVML has charged the context already; a budget that shows
            # nothing is charged here, so that the partition is never exceeded silently.
            if self.budget.usage(spec.index):
                return
            overhead = min(OVERHEAD_BYTES, spec.memory // 4)
            if not self.budget.reserve(spec.index, overhead):
                raise DeviceMemoryError(
                    f"the partition of {spec.memory:,} bytes has no room for a CUDA context "
                    f"({overhead:,} bytes)"
                )
            self._overhead[at] = overhead

    # --- memory ---------------------------------------------------------------------------------

    def _malloc(self, size: int, ordinal: int) -> int:
        index = self.devices[self._index_of[ordinal]].index
        if not self.budget.reserve(index, size):
            # The pool then frees its cached memory and tries again, as when CUDA itself refuses.
            raise self._runtime.CUDARuntimeError(_OUT_OF_MEMORY)
        try:
            pointer = int(self._runtime.malloc(size))
        except BaseException:
            self.budget.release(index, size)
            raise
        self._sizes[pointer] = size
        return pointer

    def _free(self, pointer: int, ordinal: int) -> None:
        self._runtime.free(pointer)
        index = self.devices[self._index_of[ordinal]].index
        self.budget.release(index, self._sizes.pop(pointer))

    def limit(self, at: int) -> int:
        """Return the limit that the client has set, 0 if none."""
        return self._limits[at]

    def set_limit(self, size: int) -> None:
        """Limit the current device's pool, never beyond the partition."""
        memory = self.devices[self.current].memory
        self._limits[self.current] = min(size, memory)
        self.pool.set_limit(size=min(size, memory))

    def memory_info(self) -> tuple[int, int]:
        """Return the answer of ``cudaMemGetInfo`` as if the partition were a device."""
        spec = self.devices[self.current]
        return max(0, spec.memory - self.budget.usage(spec.index)), spec.memory

    # --- the backend ----------------------------------------------------------------------------

    def operations(self) -> Mapping[str, Callable[..., object]]:
        """Return the closed table of operations that a client may call."""
        return operations(self)

    def fuse(self, function: Callable[..., Any]) -> Callable[..., object]:
        """Return CuPy's fusion of a function."""
        return self.cupy.fuse(function)

    def be_strict(self) -> None:
        """Return None: compute-sanitizer is for real GPUs."""

    def use(self, device: int, stream: Any) -> None:
        """Make a device, and a stream there, current."""
        self.current = device
        self.cupy.cuda.Device(self.devices[device].ordinal).use()
        (self.cupy.cuda.Stream.null if stream is None else stream).use()

    def is_array(self, value: object) -> bool:
        """Say whether ``value`` is an array; host scalars that CuPy returned count."""
        return isinstance(value, (self.cupy.ndarray, np.ndarray, np.generic))

    def adopt(self, value: object) -> object:
        """Return a result as a device array; CuPy's pool has accounted for it already."""
        return value if isinstance(value, self.cupy.ndarray) else self.cupy.asarray(value)

    def expect(self, nbytes: int) -> None:
        """Do nothing: the pool refuses before anything is computed."""

    def conform(self, value: Any, strides: tuple[int, ...]) -> Any:
        """Return a copy with these strides."""
        made = self.empty(value.dtype, value.shape, strides)
        made[...] = value
        return made

    def empty(self, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """Return a new dense array with the axes in the order that the strides have."""
        axes = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        made = self.cupy.empty(tuple(shape[axis] for axis in axes), dtype)
        back = tuple(axes.index(axis) for axis in range(len(shape)))
        return made.transpose(back) if axes else made

    def _buffers(self) -> list[_Stage]:
        found = self._stages.get(self.current)
        if found is None:
            found = self._stages[self.current] = [_Stage(self.cupy) for _ in range(_STAGES)]
        return found

    def upload(self, array: Any, fill: Fill) -> None:
        """Copy the stream's bytes to the device through page-locked buffers, in turns."""
        pointer, left = array.data.ptr, array.nbytes
        stream = self.cupy.cuda.get_current_stream()
        if left <= SMALL_BYTES:
            host = np.empty(left, np.uint8)
            fill(host_bytes(host))
            self._runtime.memcpyAsync(pointer, host.ctypes.data, left, _TO_DEVICE, stream.ptr)
            return
        stages = self._buffers()
        turn = 0
        while left:
            stage = stages[turn % _STAGES]
            stage.event.synchronize()
            size = min(left, CHUNK)
            fill(stage.view[:size])
            self._runtime.memcpyAsync(pointer, stage.pointer, size, _TO_DEVICE, stream.ptr)
            stage.event.record(stream)
            pointer += size
            left -= size
            turn += 1

    def download(self, array: object, order: str) -> Iterator[memoryview]:
        """Yield the elements; the copy of the next piece runs while one is sent."""
        dense = self.cupy.asarray(array, order="F" if order == "F" else "C")
        pointer, total = dense.data.ptr, dense.nbytes
        stream = self.cupy.cuda.get_current_stream()
        if total <= SMALL_BYTES:
            if self._small is None:
                self._small = _Stage(self.cupy, SMALL_BYTES)
            small = self._small
            self._runtime.memcpyAsync(small.pointer, pointer, total, _TO_HOST, stream.ptr)
            stream.synchronize()
            yield small.view[:total]
            return
        stages = self._buffers()
        pieces = [(at, min(CHUNK, total - at)) for at in range(0, total, CHUNK)]
        started = 0
        for index, (_, size) in enumerate(pieces):
            while started < min(index + 2, len(pieces)):
                at, length = pieces[started]
                stage = stages[started % _STAGES]
                stage.event.synchronize()
                self._runtime.memcpyAsync(stage.pointer, pointer + at, length, _TO_HOST, stream.ptr)
                stage.event.record(stream)
                started += 1
            stage = stages[index % _STAGES]
            stage.event.synchronize()
            yield stage.view[:size]

    def share(self, memory: mmap.mmap) -> None:
        """Keep the shared memory; it is page-locked when it is first used."""
        self._shared = np.frombuffer(memory, np.uint8)

    def _shared_pointer(self) -> int:
        pointer = self._shared.ctypes.data
        if not self._locked:
            self._locked = True
            try:
                self._runtime.hostRegister(pointer, self._shared.nbytes, 0)
            except self._runtime.CUDARuntimeError as error:
                # Copies still work, by way of the driver's own page-locked memory.
                self.log(f"shared memory cannot be page-locked: {error}")
        return pointer

    def fill(self, array: Any, offset: int, start: int, size: int) -> None:
        """Start to copy on the current stream, and wait for the copy that was started before."""
        stream = self.cupy.cuda.get_current_stream()
        pointer = self._shared_pointer() + start
        self._runtime.memcpyAsync(array.data.ptr + offset, pointer, size, _TO_DEVICE, stream.ptr)
        started = self.cupy.cuda.Event(disable_timing=True)
        started.record(stream)
        if self._filling is not None:
            self._filling.synchronize()
        self._filling = started

    def fetch(self, array: Any, offset: int, start: int, size: int) -> None:
        """Copy on the current stream, and wait for that."""
        stream = self.cupy.cuda.get_current_stream()
        pointer = self._shared_pointer() + start
        self._runtime.memcpyAsync(pointer, array.data.ptr + offset, size, _TO_HOST, stream.ptr)
        stream.synchronize()

    def device_of(self, value: Any) -> int:
        """Return the index of the device that holds an array."""
        return self._index_of.get(value.device.id, self.current)

    def memory_of(self, value: Any) -> tuple[int, Any, int]:
        """Return the block of the pool that an array lies in."""
        block = value.data.mem
        kind: Any = block.__class__
        if kind.__name__ != "PooledMemory":
            raise UnsupportedError(
                f"an array of it lies in memory of a {kind.__name__}, which cannot be sent"
            )
        pointer = self.cupy.cuda.MemoryPointer(block, 0)
        data = self.cupy.ndarray((int(block.size),), np.uint8, pointer)
        return int(block.ptr), data, int(value.data.ptr - block.ptr)

    def state_of(self, value: Any) -> tuple[list[object], Any]:
        """Return the array that has the state of a generator.

        An event keeps no time: what asks for it raises CUDA's error, until it is recorded again.
        """
        if isinstance(value, self.cupy.random.RandomState):
            raise UnsupportedError(
                "it has a random state of cuRAND, which does not say how far it is; "
                "cupy.random.Generator can be sent"
            )
        if isinstance(value, self.cupy.random.Generator):
            return [], value.bit_generator._state
        return [], None

    def set_state(self, value: object, state: list[object]) -> None:
        """Refuse plain values: objects of CuPy have none."""
        if state:
            raise ValueError("an object that has no state")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Say whether freeing memory could make the call succeed."""
        if isinstance(error, MemoryError):
            return True
        return getattr(error, "status", None) == _OUT_OF_MEMORY and "cudaErrorMemory" in str(error)

    def reclaim(self) -> None:
        """Free the blocks that the pool keeps, and CuPy's cached FFT plans."""
        self.cupy.fft.config.get_plan_cache().clear()
        for spec in self.devices:
            with self.cupy.cuda.Device(spec.ordinal):
                self.pool.free_all_blocks()

    def synchronize(self) -> None:
        """Wait for all devices; raise the error of a kernel."""
        for spec in self.devices:
            self.cupy.cuda.Device(spec.ordinal).synchronize()
        self.cupy.cuda.Device(self.devices[self.current].ordinal).use()

    def describe_devices(self) -> Sequence[dict[str, object]]:
        """Return the description of each device for a client."""
        made: list[dict[str, object]] = []
        for spec in self.devices:
            device = self.cupy.cuda.Device(spec.ordinal)
            made.append(
                {
                    "name": spec.name,
                    "uuid": spec.uuid,
                    "memory": spec.memory,
                    "emulated": False,
                    "compute_capability": device.compute_capability,
                    "pci_bus_id": device.pci_bus_id,
                }
            )
        return made

    def close(self) -> None:
        """Give the pool's memory and the context's charge back."""
        self._stages.clear()
        self._small = None
        self.reclaim()
        for at, spec in enumerate(self.devices):
            if self._overhead[at]:
                self.budget.release(spec.index, self._overhead[at])
