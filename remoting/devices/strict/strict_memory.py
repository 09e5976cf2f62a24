"""Strict mode's memory of an emulated GPU: written bytes, and the work that used them last.

A byte that `cupy.empty` has left as it was may be copied, and the copy is unwritten too. A function
that computes with it fails, and so does a kernel. `cupy.asnumpy` of an array without one written
element fails as well. Functions of `cupyx` are taken to write into all arguments but the first.
"""

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import address_of, is_ndarray, is_sequence
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDARuntimeError
from gpupool.remoting.devices.operation_names import UFUNCS
from gpupool.remoting.devices.strict.strict_streams import Streams, Work

Array = np.ndarray[Any, Any]
Operation = Callable[..., Any]

LAUNCH_FAILURE = 719
CELLS_MAX = 256 << 20
"""Bytes of an array that has cells: these take ten times as much."""

WRITTEN, READ, READ_BY_BLOCK, BY_ATOMIC, PLANES = 0, 1, 3, 4, 5
"""Cells of a unit, as in ``gpupool_strict.h``."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNREAD = _names("""
    broadcast_to door.fill door.memory door.pointer door.same door.stats door.sync door.touch
    may_share_memory ndarray.as_strided ndarray.diagonal ndarray.field ndarray.getitem ndarray.imag
    ndarray.real ndarray.reshape_view ndarray.squeeze ndarray.swapaxes ndarray.transpose
    ndarray.view shares_memory
""")
"""Operations that touch no element, or that note their accesses by themselves."""

_COPIES = _names("""
    concatenate flip ndarray.astype ndarray.copy ndarray.flatten ndarray.gather ndarray.reshape
    roll stack take
""")
"""Operations that copy elements of the first argument. Run on truth values they copy these."""

_FILLS: dict[str, int] = {
    **dict.fromkeys(("copyto", "fill_diagonal", "ndarray.fill"), 1),
    **dict.fromkeys(("ndarray.setitem", "place", "put", "put_along_axis", "putmask"), 2),
}
"""Operations that write into the first argument, with the place of the elements."""

_OUTPUTS = {"door.concatenate_into": 2, "isneginf": 1, "isposinf": 1}
_CHANGED = {"ndarray.partition": 0, "ndarray.sort": 0, "random.shuffle": 1, "ufunc.at": 1}
"""Operations that write into an argument, with its place; these read it as well."""

_IN_PART = _names("""
    fill_diagonal ndarray.gather ndarray.setitem place put put_along_axis putmask take
    take_along_axis ufunc.at
""")
"""Operations that use some elements of an array, and streams do not look for these."""

_QUEUED = _names("""
    all any argmax argmin argsort clip concatenate copyto cumsum dot door.arange
    door.concatenate_into door.zeros einsum full matmul max mean min ndarray.astype ndarray.copy
    ndarray.fill ndarray.flatten ndarray.gather ndarray.reshape ndarray.setitem ndarray.sort prod
    sort stack std sum take tensordot var where
""")
"""Operations beside ufuncs for which CuPy never waits."""


@dataclass
class Span:
    """Memory with a name."""

    start: int
    end: int
    name: str

    def distance(self, address: int) -> int:
        """Return how many bytes an address is outside; 0 or less if it is inside."""
        return max(self.start - address, address - self.end + 1)

    def text(self, address: int) -> str:
        """Return words for an address in it, or beside it."""
        if address < self.start:
            return f"{self.start - address:,} bytes before {self.name}"
        behind = f"{address - self.end:,} bytes" if address > self.end else "right"
        return self.name if address < self.end else f"{behind} behind the end of {self.name}"


class Memory(Span):
    """One allocation of a device."""

    def __init__(self, owner: Array) -> None:
        start, end = map(int, np.lib.array_utils.byte_bounds(owner))
        super().__init__(start, end, f"the array of {owner.dtype}, shape {owner.shape}")
        self.dtype: np.dtype[Any] = owner.dtype
        self.shape: tuple[int, ...] = owner.shape
        self.dense = owner.flags.c_contiguous
        self.written: Array | None = None
        """For each byte whether it was; None if all were."""
        self.shift = {1: 0, 2: 1}.get(owner.dtype.itemsize, 2)
        self._cells: Array | None = None

    @property
    def cells(self) -> Array | None:
        """The last accesses of each unit, as in ``gpupool_strict.h``; None if it is too large."""
        if self._cells is None and self.end - self.start <= CELLS_MAX:
            self._cells = np.zeros((PLANES, (self.end - self.start) >> self.shift), np.uint64)
        return self._cells

    def view(self, array: Array, of: Array, shift: int = 0) -> Array:
        """Return an array's part of notes for each byte, or for each unit."""
        at = (address_of(array) - self.start) >> shift
        steps = [(step >> shift) * of.itemsize for step in array.strides]
        shape = (*array.shape, array.itemsize >> shift)
        return np.lib.stride_tricks.as_strided(of[at:], shape, (*steps, of.itemsize))

    def text(self, address: int) -> str:
        """Return words for an address in it, or beside it."""
        if self.distance(address) > 0:
            return super().text(address)
        place: Any = (address - self.start) // max(1, self.dtype.itemsize)
        if self.dense and self.shape:
            place = (*map(int, np.unravel_index(int(place), self.shape)),)
        return f"element {place} of {self.name}"


class StrictMode:
    """The arrays of one session, watched."""

    def __init__(self, adopt: Callable[[Any], Any]) -> None:
        self.streams = Streams()
        self._adopt = adopt
        self._memories: dict[int, Memory] = {}
        self._sorted: list[Memory] | None = None

    # --- allocations ----------------------------------------------------------------------------

    def allocated(self, key: int, owner: Array) -> None:
        """Note an array that owns memory, by a number of it."""
        if owner.nbytes:
            self._memories[key] = Memory(owner)
            self._sorted = None

    def freed(self, key: int) -> None:
        """Forget an array that owns memory."""
        self._memories.pop(key, None)
        self._sorted = None

    def memories(self) -> list[Memory]:
        """Return all allocations by their addresses."""
        if self._sorted is None:
            self._sorted = sorted(self._memories.values(), key=lambda each: each.start)
        return self._sorted

    def memory_at(self, address: int) -> Memory | None:
        """Return the allocation that an address is in, or the nearest one; None without any."""
        found = self.memories()
        at = bisect.bisect_right(found, address, key=lambda each: each.start)
        near = found[max(0, at - 1) : at + 1]
        return min(near, key=lambda each: each.distance(address), default=None)

    def memory_of(self, array: Array) -> Memory | None:
        """Return the allocation of an array; None if it is none of the device."""
        found = self.memory_at(address_of(array)) if array.size else None
        return found if found is not None and found.distance(address_of(array)) <= 0 else None

    # --- unwritten elements ---------------------------------------------------------------------

    def leave_unwritten(self, array: Array) -> Array:
        """Take a new array as one of elements without values."""
        memory = self.memory_of(self._adopt(array))
        if memory is not None:
            memory.written = np.zeros(memory.end - memory.start, np.bool_)
        return array

    def elements(self, array: Array) -> Array | None:
        """Return for each element whether all of it was written; None if all were."""
        memory = self.memory_of(array)
        if memory is None or memory.written is None:
            return None
        if memory.written.all():
            memory.written = None
            return None
        found = np.asarray(memory.view(array, memory.written).all(-1))
        return None if found.all() else found

    def write(self, array: Array, elements: object = True) -> None:
        """Note that an array's elements were written, all or these."""
        memory = self.memory_of(array)
        if memory is None or (memory.written is None and elements is True):
            return
        if memory.written is None:
            memory.written = np.ones(memory.end - memory.start, np.bool_)
        memory.view(array, memory.written)[...] = np.asarray(elements)[..., None]

    def need_written(self, name: str, array: Array, *, some: bool = False) -> None:
        """Raise unless all elements of an array were written, or with ``some`` one of them."""
        found = self.elements(array)
        if found is not None and not (some and found.any()):
            place = tuple(map(int, np.argwhere(~found)[0]))
            raise CUDARuntimeError(
                LAUNCH_FAILURE,
                f"strict: {_shown(name)} reads memory that nothing has written: element {place} of "
                f"an array of {array.dtype}, shape {array.shape}. cupy.empty leaves elements "
                "without values: write them first, or use cupy.zeros",
            )

    def _lacks(self, value: object) -> bool:
        return any(self.elements(array) is not None for array in _arrays(value))

    def _mask(self, value: object) -> Any:
        """Return a value with truth values, whether they were written, in place of elements."""
        if is_sequence(value):
            return [self._mask(each) for each in value]
        if not is_ndarray(value):
            return np.True_
        found = self.elements(value)
        return np.ones(value.shape, np.bool_) if found is None else found

    def _masks(self, name: str, function: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the truth of "was written" for each copied element; None if all were."""
        place = _FILLS.get(name)
        if place is not None and (self._lacks(args[0]) or self._lacks(args[place])):
            made = self._mask(args[0])
            function(made, *args[1:place], self._mask(args[place]), *args[place + 1 :], **kwargs)
            return made
        if name == "where" and self._lacks(args[1:]):
            return function(args[0], *map(self._mask, args[1:]))
        if name in _COPIES and "out" not in kwargs and self._lacks(args[0]):
            first = self._mask(args[0])
            return first if name == "ndarray.astype" else function(first, *args[1:])
        return None

    # --- operations -----------------------------------------------------------------------------

    def watched(self, name: str, function: Operation) -> Operation:
        """Return an operation that checks its arguments, and notes its results."""
        if name == "door.empty":
            return lambda *args, **kwargs: self.leave_unwritten(function(*args, **kwargs))
        if name in ("door.get", "door.fetch"):
            return partial(self._got, function)
        if name.startswith(("cuda.device.", "cuda.event.", "cuda.stream.")):
            return self.streams.watched(name, function)
        if name in _UNREAD or name.startswith(("kernel.", "peer.")):
            return function
        return partial(self._run, name, function)

    def _got(self, function: Operation, array: object, *args: object) -> Any:
        if is_ndarray(array):
            self.need_written("a copy to the host", array, some=True)
            self._check_order("a copy to the host", [array], [])
            self.streams.wait()
        return function(array, *args)

    def _run(self, name: str, function: Operation, *args: Any, **kwargs: object) -> Any:
        copied, reads, writes = _roles(name, args, kwargs)
        for array in reads:
            self.need_written(name, array)
        masks = self._masks(name, function, args, kwargs)
        reads, whole = [*reads, *copied], writes
        if name in _IN_PART:
            part = [_part(args[0], args[1])] if name == "ndarray.setitem" else []
            reads, whole = [each for each in reads if each is not args[0]], [*_arrays(part)]
        self._check_order(name, reads, whole)
        result = function(*args, **kwargs)
        if masks is None:
            for array in writes:
                self.write(array)
        elif name in _FILLS:
            self.write(args[0], masks)
        elif self.memory_of(result) is None:  # and no view
            self.write(self.leave_unwritten(result), masks)
        if self.streams.several:
            made = [array for array in _arrays(result) if self.memory_of(array) is None]
            self._note_order(reads, [*whole, *map(self._adopt, made)])
            self.streams.finish(name, self.streams.step)
            if name not in UFUNCS and name not in _QUEUED and not name.startswith("cuda."):
                self.streams.wait()
        return result

    # --- streams --------------------------------------------------------------------------------

    def _cells(self, array: Array, planes: Iterable[int]) -> list[tuple[int, Array]]:
        """Return an array's cells of some kinds; none if its elements are smaller than a unit."""
        memory = self.memory_of(array)
        if memory is None or memory.cells is None:
            return []
        unit = 1 << memory.shift
        if any(size % unit for size in (address_of(array), array.itemsize, *array.strides)):
            return []
        return [(at, memory.view(array, memory.cells[at], memory.shift)) for at in planes]

    def _check_order(self, name: str, reads: list[Array], writes: list[Array]) -> None:
        """Raise if an operation uses arrays of work in another stream without an order."""
        for work in self.streams.unordered():
            for arrays, planes in ((reads, (WRITTEN, BY_ATOMIC)), (writes, range(PLANES))):
                for array in arrays:
                    for plane, cells in self._cells(array, planes):
                        steps = cells >> np.uint64(32)
                        if np.any((steps >= work.first) & (steps <= work.last)):
                            text = _disorder(name, work, array, plane in (WRITTEN, BY_ATOMIC))
                            raise CUDARuntimeError(LAUNCH_FAILURE, text)

    def _note_order(self, reads: list[Array], writes: list[Array]) -> None:
        stamp = self.streams.step << 32
        for array in reads:
            if found := self._cells(array, (READ_BY_BLOCK, READ)):
                found[0][1][...] = found[1][1]
                found[1][1][...] = stamp
        for array in writes:
            for _, cells in self._cells(array, (WRITTEN,)):
                cells[...] = stamp


def _shown(name: str) -> str:
    """Return the name of an operation as a program knows it."""
    return name.removeprefix("ndarray.").removeprefix("door.")


def _disorder(name: str, work: Work, array: Array, wrote: bool) -> str:
    did = f"{_shown(work.name)} {'wrote' if wrote else 'read'}"
    return (
        f"strict: {_shown(name)} in one stream uses an array of {array.dtype}, shape "
        f"{array.shape}, that {did} in another stream, and nothing orders the two: record an event "
        "and let the stream wait for it, or synchronize"
    )


def _part(array: Array, index: Any) -> Array | None:
    """Return the view that an index of slices and whole numbers names."""
    items: tuple[Any, ...] = index if type(index) in (tuple,) else (index,)
    if not all(each is Ellipsis or isinstance(each, (int, slice, type(None))) for each in items):
        return None
    return array[items if any(each is Ellipsis for each in items) else (*items, ...)]


def _arrays(value: object) -> Iterator[Array]:
    if is_ndarray(value):
        yield value
    elif is_sequence(value):
        for each in value:
            yield from _arrays(each)


def _roles(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[list[Array], ...]:
    """Return the arrays that an operation copies, those that it reads, and those that it writes."""
    out = [kwargs[key] for key in ("out", "output") if key in kwargs]
    rest = [value for key, value in kwargs.items() if key not in ("out", "output")]
    function: Any = getattr(np, name, None) if name in UFUNCS else None
    copied: Any = ()
    if isinstance(function, np.ufunc):
        args, out = args[: function.nin], [*out, *args[function.nin :]]
    elif name.startswith(("cuda.", "cupyx.")):  # into which of the rest it writes is not looked for
        first = int(name.startswith("cupyx."))
        args, out, rest = args[:first], [*out, *args[first:], *rest], []
    elif name in _FILLS:
        place = _FILLS[name]
        copied, out, args = args[place], args[:1], (*args[1:place], *args[place + 1 :])
    elif name in _COPIES:
        copied, args = args[0], args[1:]
    elif name == "where":
        copied, args = args[1:], args[:1]
    elif name in _CHANGED:
        out = [args[_CHANGED[name]]]
    elif len(args) > _OUTPUTS.get(name, len(args)):
        place = _OUTPUTS[name]
        out, args = [args[place]], (*args[:place], *args[place + 1 :])
    return [*_arrays(copied)], [*_arrays([*args, *rest])], [*_arrays(out)]
