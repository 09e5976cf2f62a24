"""An emulated GPU: arrays in host memory, computed by NumPy, with CuPy's rules and accounting."""

import mmap
import time
import weakref
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
    address_of,
    host_bytes,
    owner_of,
)
from gpupool.remoting.devices.emulated_operations import Marker, operations
from gpupool.remoting.devices.emulated_pool import EmulatedPool
from gpupool.remoting.devices.emulated_random import generator_state, set_generator_state
from gpupool.remoting.devices.strict.strict_memory import StrictMode
from gpupool.remoting.devices.strict.strict_streams import DEFAULT

Array = np.ndarray


class _Owner(weakref.ref[Array]):
    """A weak reference to an array that owns memory, with the bytes to be returned."""

    __slots__ = ("device", "key", "size")
    device: int
    key: int
    size: int


class EmulatedBackend:
    """Executes the array door's calls with NumPy."""

    array_type = np.ndarray
    fuses = False

    def __init__(self, devices: Sequence[DeviceSpec], budget: Budget) -> None:
        self.devices = devices
        self.pools = [EmulatedPool(budget, spec.index, spec.memory) for spec in devices]
        self.current = 0
        # Every array that owns memory, by id. The weak reference gives the block back when the
        # last view of the array is gone.
        self._owners: dict[int, _Owner] = {}
        self._shared = np.empty(0, np.uint8)
        self.strict: StrictMode | None = None
        """The session's watcher in strict mode."""
        # NumPy keeps this per thread; GPUs neither warn nor raise.
        np.seterr(all="ignore")

    def operations(self) -> Mapping[str, Callable[..., Any]]:
        """Return the closed table of operations that a client may call."""
        return operations(self)

    def fuse(self, function: Callable[..., Any]) -> Callable[..., object]:
        """Return the function as it is: there are no kernels to save."""
        return function

    def be_strict(self) -> Callable[[str, Callable[..., object]], Callable[..., object]]:
        """Begin strict mode; return the function that makes a watched operation of one."""
        self.strict = StrictMode(self.adopt)
        return self.strict.watched

    def use(self, device: int, stream: object) -> None:
        """Make a device current; all its streams are the one thread that computes."""
        self.current = device
        if self.strict is not None:
            self.strict.streams.current = stream or DEFAULT

    def is_array(self, value: object) -> bool:
        """Say whether ``value`` is a NumPy array or scalar."""
        return isinstance(value, (np.ndarray, np.generic))

    def adopt(self, value: object) -> Array:
        """Account for the memory of a new result; views cost nothing."""
        if type(value) is not np.ndarray:
            value = np.asarray(value)
        if not value.flags.writeable:  # as NumPy's diagonals are; a GPU's memory has no such flag
            value.flags.writeable = True
        owner = value
        while isinstance(owner.base, np.ndarray):  # as `owner_of`, without its call
            owner = owner.base
        key = id(owner)
        if key not in self._owners:
            size = self.pools[self.current].allocate(owner.nbytes)
            made = self._owners[key] = _Owner(owner, self._disown)
            made.key = key
            made.device = self.current
            made.size = size
            if self.strict is not None:
                self.strict.allocated(key, owner)
        return value

    def _disown(self, reference: "_Owner") -> None:
        if self._owners.pop(reference.key, None) is not None:  # None once all is closed
            self.pools[reference.device].release(reference.size)
            if self.strict is not None:
                self.strict.freed(reference.key)

    def expect(self, nbytes: int) -> None:
        """Raise before NumPy fills host memory with a result that the partition cannot hold."""
        self.pools[self.current].check(nbytes)

    def conform(self, value: Array, strides: tuple[int, ...]) -> Array:
        """Return a copy with these strides."""
        made = self.empty(value.dtype, value.shape, strides)
        made[...] = value
        return made

    def empty(self, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Return a new dense array with the axes in the order that the strides have.

        New memory is zero, so that nothing of an ended session can be read by the next.
        """
        axes = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        made = np.zeros([shape[axis] for axis in axes], dtype)
        return made.transpose(np.argsort(axes)) if axes else made

    def upload(self, array: Array, fill: Fill) -> None:
        """Receive straight into the array's memory."""
        fill(host_bytes(_flat(array)))
        if self.strict is not None:
            self.strict.write(array)

    def download(self, array: Array, order: str) -> Iterator[memoryview]:
        """Yield the bytes of one contiguous copy, or of the array itself if it is contiguous."""
        dense = np.asarray(array, order="F" if order == "F" else "C")
        flat = dense.reshape(-1, order="F" if order == "F" else "C").view(np.uint8)
        data = host_bytes(flat)
        for start in range(0, data.nbytes, CHUNK):
            yield data[start : start + CHUNK]

    def share(self, memory: mmap.mmap) -> None:
        """Keep the shared memory."""
        self._shared = np.frombuffer(memory, np.uint8)

    def fill(self, array: Array, offset: int, start: int, size: int) -> None:
        """Copy at once."""
        _flat(array)[offset : offset + size] = self._shared[start : start + size]
        if self.strict is not None:
            self.strict.write(array)

    def fetch(self, array: Array, offset: int, start: int, size: int) -> None:
        """Copy at once."""
        self._shared[start : start + size] = _flat(array)[offset : offset + size]

    def device_of(self, value: Array) -> int:
        """Return the index of the device that holds an array."""
        owner = owner_of(value)
        found = self._owners.get(id(owner))
        return found.device if found is not None else self.current

    def memory_of(self, value: Array) -> tuple[int, Array, int]:
        """Return the array that owns the memory, as bytes."""
        owner = owner_of(value)
        if owner.base is not None:
            kind = type(owner.base)
            raise UnsupportedError(
                f"an array of it lies in memory of a {kind.__name__}, which cannot be sent"
            )
        start = address_of(owner)
        return start, _flat(owner), address_of(value) - start

    def state_of(self, value: object) -> tuple[list[object], Any]:
        """Return the state of a generator, and how long ago an event was."""
        if isinstance(value, Marker):
            return [time.perf_counter() - value.time], None
        return generator_state(value), None

    def set_state(self, value: object, state: list[object]) -> None:
        """Set the state of a generator, and when an event was."""
        if not isinstance(value, Marker):
            set_generator_state(value, state)
        elif len(state) == 1 and type(state[0]) is float:
            value.time = time.perf_counter() - state[0]
        else:
            raise ValueError("no time of an event")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Say whether it is the partition's or the host's memory that ran out."""
        return isinstance(error, (DeviceMemoryError, MemoryError))

    def reclaim(self) -> None:
        """Free the blocks that are kept for reuse."""
        for pool in self.pools:
            pool.free_all_blocks()

    def synchronize(self) -> None:
        """Return at once: every call was complete when it returned."""

    def describe_devices(self) -> Sequence[dict[str, object]]:
        """Return the description of each device for a client."""
        return [
            {
                "name": spec.name,
                "uuid": spec.uuid,
                "memory": spec.memory,
                "emulated": True,
                "compute_capability": "90",
                "pci_bus_id": f"0000:00:{spec.index if (at := spec.ordinal) is None else at:02x}.0",
            }
            for spec in self.devices
        ]

    def close(self) -> None:
        """Give all memory back to the budget."""
        self._owners.clear()
        for pool in self.pools:
            pool.close()


def _flat(array: Array) -> Array:
    """Return the bytes of a dense array, in the order in which they are in memory."""
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    flat = array.transpose(axes).reshape(-1)
    assert np.may_share_memory(flat, array)
    return flat.view(np.uint8)
