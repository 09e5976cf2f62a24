"""Interface of a worker's devices to the array door: specifications, budget and backend."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np

CHUNK = 4 << 20
"""Bytes that are staged at a time between a socket and a device.

Larger pieces gain nothing, and smaller ones stay in the processor's cache between the two copies.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One partition of one GPU, as the worker may use it."""

    index: int  # among the devices of this session
    uuid: str
    name: str
    memory: int  # bytes of the partition
    emulated: bool
    ordinal: int | None  # CUDA ordinal in this process; of an emulated one its place, or None


class Budget(Protocol):
    """The lease's memory account, held by the host process, where no client reaches."""

    def reserve(self, device_index: int, nbytes: int) -> bool:
        """Take ``nbytes`` from the partition; False if it has not that much left."""
        ...

    def release(self, device_index: int, nbytes: int) -> None:
        """Give ``nbytes`` back."""
        ...

    def usage(self, device_index: int) -> int:
        """Return the bytes reserved on that GPU by the whole lease."""
        ...


class DeviceMemoryError(MemoryError):
    """The partition has no room; the text is CuPy's."""


class UnsupportedError(NotImplementedError):
    """A device of this kind cannot do that; the text says why."""


def is_ndarray(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Say whether a value is an array of the host."""
    return isinstance(value, np.ndarray)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Say whether a value is a tuple or a list, and of no derived class."""
    return type(value) in (tuple, list)


def owner_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array of the host that owns an array's memory."""
    base = array.base
    return owner_of(base) if isinstance(base, np.ndarray) else array


def address_of(array: Any) -> int:
    """Return where an array of the host begins."""
    return int(array.__array_interface__["data"][0])


def host_bytes(array: Any) -> memoryview:
    """Return the memory of a contiguous array of bytes on the host."""
    return memoryview(array)


Fill = Callable[[memoryview], None]
"""Fills a host buffer completely with the next bytes of the stream."""


class Backend(Protocol):
    """How calls are executed: by CuPy on real GPUs, or by NumPy on emulated ones."""

    array_type: Any
    """The class of its arrays."""
    fuses: bool
    """Whether a function of several operations costs less as a whole."""

    def operations(self) -> Mapping[str, Callable[..., object]]:
        """Return the closed table of operations that a client may call."""
        ...

    def fuse(self, function: Callable[..., Any]) -> Callable[..., object]:
        """Return a function that computes the same from arrays, in as few kernels as it can."""
        ...

    def be_strict(self) -> Callable[[str, Callable[..., object]], Callable[..., object]] | None:
        """Begin strict mode; return the function that makes a watched operation of one.

        None if devices of this kind have no such mode.
        """
        ...

    def use(self, device: int, stream: object) -> None:
        """Make a device (and a stream object there, or None) current."""
        ...

    def is_array(self, value: object) -> bool:
        """Say whether ``value`` is an array of this backend."""
        ...

    def adopt(self, value: object) -> Any:
        """Return a result as an array with accounted memory; raise if there is no room."""
        ...

    def expect(self, nbytes: int) -> None:
        """Raise before a result of ``nbytes`` is computed that could never fit."""
        ...

    def conform(self, value: Any, strides: tuple[int, ...]) -> Any:
        """Return a new array of the same elements with these strides (of a dense layout)."""
        ...

    def empty(self, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """Return a new dense array on the current device."""
        ...

    def upload(self, array: Any, fill: Fill) -> None:
        """Fill a dense array with the bytes of the stream, in memory order."""
        ...

    def download(self, array: Any, order: str) -> Iterator[memoryview]:
        """Yield the elements in C or F order, piece by piece; each is valid until the next."""
        ...

    def share(self, memory: mmap.mmap) -> None:
        """Take the memory in common with the client, for `fill` and `fetch`."""
        ...

    def fill(self, array: Any, offset: int, start: int, size: int) -> None:
        """Start to copy shared bytes from ``start`` into a dense array, in memory order.

        What the call before started has left the shared memory when this one returns.
        """
        ...

    def fetch(self, array: Any, offset: int, start: int, size: int) -> None:
        """Copy bytes of a dense array, in memory order, into the shared memory at ``start``."""
        ...

    def device_of(self, value: Any) -> int:
        """Return the index of the device that holds an array."""
        ...

    def memory_of(self, value: Any) -> tuple[int, Any, int]:
        """Return the memory that an array lies in: a number, an array of its bytes, the offset.

        Arrays in the same memory give the same number. The array has at least one element.

        Raises:
            UnsupportedError: it lies in memory that is not the session's own.
        """
        ...

    def state_of(self, value: object) -> tuple[list[object], Any]:
        """Return the state that a fresh object of this kind lacks: values, and an array or None.

        Raises:
            UnsupportedError: nobody can know it.
        """
        ...

    def set_state(self, value: object, state: list[object]) -> None:
        """Give a fresh object the plain values of another one.

        Raises:
            ValueError: they are none of an object of this kind.
        """
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Say whether freeing memory could make the call succeed."""
        ...

    def reclaim(self) -> None:
        """Free the memory that the backend itself keeps for reuse."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that was started on all devices is done."""
        ...

    def describe_devices(self) -> Sequence[dict[str, object]]:
        """Return the description of each device for a client, as plain values."""
        ...

    def close(self) -> None:
        """Give all memory back to the budget."""
        ...
