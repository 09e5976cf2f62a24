"""Memory pools, with numbers from the server, and pointers into arrays."""

import contextlib
import ctypes
from collections.abc import Generator
from typing import Any

import numpy as np

from cupy._core.dispatch import make
from cupy._core.dispatch import transfers as _transfers
from cupy._door import pool
from cupy._door.cuda_errors import OutOfMemoryError as OutOfMemoryError
from cupy._door.meta import Meta, contiguous_strides, intern
from cupy.cuda.device import Device


class MemoryPool:
    """The pool of each device. All instances show the same: the partition has but one."""

    def __init__(self, allocator: Any = None) -> None:
        del allocator  # memory always comes from the partition

    def malloc(self, size: int) -> "MemoryPointer":
        """Return memory on the current device."""
        return alloc(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give the memory that no array uses back to the lease."""
        pool.current().ask("cuda.pool.free_all_blocks")

    free_all_free = free_all_blocks

    def n_free_blocks(self) -> int:
        """Return how many blocks are kept for reuse."""
        return self._numbers()[3]

    def used_bytes(self) -> int:
        """Return the bytes that arrays use."""
        return self._numbers()[0]

    def free_bytes(self) -> int:
        """Return the bytes that are kept for reuse."""
        return self._numbers()[1] - self._numbers()[0]

    def total_bytes(self) -> int:
        """Return the bytes that were taken from the partition."""
        return self._numbers()[1]

    def get_limit(self) -> int:
        """Return the limit in bytes; 0 if only the partition limits."""
        return self._numbers()[2]

    def set_limit(self, size: Any = None, fraction: Any = None) -> None:
        """Limit the pool further, in bytes or as a fraction of the partition."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        size = 0 if size is None else size
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(fraction * Device().mem_info[1])
        if size < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        session = pool.current()
        session.ask("cuda.pool.set_limit", (int(size),))
        session.forget_room()

    def _numbers(self) -> list[int]:
        return pool.current().numbers("cuda.pool.numbers", 4)


def limit_pool(text: str) -> None:
    """Limit the current device's pool as CUPY_GPU_MEMORY_LIMIT says: bytes, or a percentage."""
    if text.endswith("%"):
        MemoryPool().set_limit(fraction=float(text[:-1]) / 100)
    else:
        MemoryPool().set_limit(size=int(text))


class MemoryAsyncPool(MemoryPool):
    """The same pool: the partition's accounting holds for every allocator."""


class PinnedMemoryPool:
    """Host memory is this process's own; there is nothing to pin and nothing to keep."""

    def free_all_blocks(self) -> None:
        """Do nothing."""

    def n_free_blocks(self) -> int:
        """Return 0."""
        return 0

    def malloc(self, size: int) -> np.ndarray[Any, Any]:
        """Return host memory."""
        return np.empty(size, np.uint8)


def address(array: Any) -> int:
    """Return where an array is on the server, which it is asked for once."""
    try:
        return array._gp_address
    except AttributeError:
        array._gp_address = array._gp_session.ask("door.pointer", (array,))
        return array._gp_address


class Memory:
    """The allocation that a pointer points into: `MemoryPointer.mem`."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    @property
    def ptr(self) -> int:
        """The address on the server."""
        return address(self._owner)

    @property
    def size(self) -> int:
        """Bytes of the allocation."""
        return self._owner.nbytes

    @property
    def device_id(self) -> int:
        """The device that holds it."""
        return self._owner._gp_device


class Address(int):
    """An address on the server, with its pointer.

    An object that describes an array of this program by ``__cuda_array_interface__`` passes this
    number on, and so becomes an array again. A sum is an address too, which points to no array.
    """

    pointer: "MemoryPointer"

    def __add__(self, offset: int) -> "Address":
        return Address(int(self) + int(offset))

    def __radd__(self, offset: int) -> "Address":
        return Address(int(self) + int(offset))

    def __sub__(self, other: int) -> int:
        left = int(self) - int(other)
        return left if isinstance(other, Address) else Address(left)


class MemoryPointer:
    """A pointer to an array's memory, with an offset in bytes."""

    def __init__(self, array: Any, offset: int = 0) -> None:
        self._array = array
        self._offset = offset

    @property
    def ptr(self) -> int:
        """The address on the server; asking for it waits for everything before."""
        if not self._array.size:
            return 0
        made = Address(address(self._array) + self._offset)
        made.pointer = self
        return made

    @property
    def mem(self) -> Memory:
        """The allocation."""
        return Memory(self._array if self._array._gp_base is None else self._array._gp_base)

    @property
    def device_id(self) -> int:
        """The device that holds it."""
        return self._array._gp_device

    @property
    def device(self) -> Device:
        """The device that holds it."""
        return Device(self._array._gp_device)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self._array, self._offset + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self._array, self._offset - offset)

    def holds(self, meta: Meta) -> bool:
        """Say whether an array here would stay inside the memory that this points into."""
        owner = self._array if self._array._gp_base is None else self._array._gp_base
        start = self._offset
        if owner is not self._array:
            start += address(self._array) - address(owner)
        low, high = meta.extent
        first, end = owner._gp_meta.extent
        return first <= start + low and start + high <= end

    def as_array(self, shape: tuple[int, ...], dtype: Any, strides: Any, order: str) -> Any:
        """Return an array over the memory; the server checks that it stays inside."""
        steps = (
            tuple(strides)
            if strides is not None
            else contiguous_strides(shape, dtype.itemsize, order)
        )
        meta = intern(dtype, shape, steps)
        return make.view(self._array, "door.memory", (self._offset, shape, dtype, steps), meta)

    def _bytes(self, size: int) -> Any:
        return self.as_array((size,), np.dtype(np.uint8), None, "C")

    def copy_from_device(self, src: "MemoryPointer", size: int, stream: Any = None) -> None:
        """Copy bytes from another pointer."""
        self._bytes(size)[...] = src._bytes(size)

    def copy_from_host(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy bytes from an address in this process, or from an object with a buffer."""
        host = np.frombuffer(_host_memory(mem, size), np.uint8, size)
        self._bytes(size)[...] = _transfers.upload(host, self._array._gp_session)

    def copy_from(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy bytes from a pointer or a buffer."""
        if isinstance(mem, MemoryPointer):
            self.copy_from_device(mem, size)
        else:
            self.copy_from_host(mem, size)

    def copy_to_host(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy bytes to an address in this process, or into a writable buffer."""
        np.frombuffer(_host_memory(mem, size), np.uint8, size)[...] = _transfers.download(
            self._bytes(size)
        )

    def memset(self, value: int, size: int, stream: Any = None) -> None:
        """Set bytes."""
        self._bytes(size).fill(value)

    # Each copy is queued, on the current stream.
    copy_from_device_async = copy_from_device
    copy_from_host_async = copy_from_host
    copy_from_async = copy_from
    copy_to_host_async = copy_to_host
    memset_async = memset


def _host_memory(mem: Any, size: int) -> Any:
    """Return a buffer of the program's own memory, of which CuPy takes an address."""
    if isinstance(mem, Address):
        raise TypeError("an address on the server, where one in this process is needed")
    if isinstance(mem, np.generic):
        raise TypeError("an address is an int, or an integer of ctypes")
    address = mem if isinstance(mem, int) else getattr(mem, "value", mem)
    if address is None:  # of a null pointer of ctypes
        address = 0
    if not isinstance(address, int):
        return mem
    if not address and size:
        raise ValueError("the address is null")
    return (ctypes.c_ubyte * size).from_address(address)


def alloc(size: int) -> MemoryPointer:
    """Return memory on the current device."""
    return MemoryPointer(make.empty((int(size),), np.uint8))


malloc_managed = malloc_async = alloc  # memory that two machines share there is none


def set_allocator(allocator: Any = None) -> None:
    """Accept any allocator: memory always comes from the partition, and is accounted there."""


def get_allocator() -> Any:
    """Return the allocator, which is always the partition's."""
    return alloc


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Generator[None]:
    """Accept any allocator for a block of code."""
    yield


class PinnedMemoryPointer(np.ndarray[Any, Any]):
    """Ordinary memory of this process, with an address."""

    @property
    def ptr(self) -> int:
        """The address in this process."""
        return self.ctypes.data


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Return host memory: copies to a server are no faster from pages that are locked."""
    return PinnedMemoryPointer(size, np.uint8)


set_pinned_memory_allocator = set_allocator

default_pool = MemoryPool()
default_pinned_pool = PinnedMemoryPool()
