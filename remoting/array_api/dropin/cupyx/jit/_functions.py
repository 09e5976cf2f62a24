"""What a kernel calls beside its arithmetic: barriers, shuffles, atomic operations, `range`.

Each is an object that a program finds in `cupyx.jit`. Called by Python it is an error; where a
kernel's text calls it, `call` gives the C++.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from cupy._core.ufunc import UFUNCS

from cupyx.jit import _ufuncs
from cupyx.jit._kinds import (
    DIM3,
    INT32,
    INT64,
    SIZE,
    UINT32,
    VOID,
    Array,
    Const,
    Item,
    Iterator,
    Kind,
    Pack,
    Pointer,
    Scalar,
    Storage,
    Value,
    cast,
    element,
    packed,
    value_of,
)

FULL_MASK = 0xFFFFFFFF
_UNROLL_MAX = 1 << 31


@dataclass(frozen=True)
class Steps:
    """What `range` gives: only a `for` takes it."""

    start: str
    stop: str
    step: str
    kind: Scalar
    rises: bool | None
    unroll: Any = None


class Builtin:
    """A function for kernels."""

    name = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it has a meaning in the text of a kernel only."""
        raise RuntimeError(
            f"cupyx.jit.{self.name} is for the text of a kernel, and Python cannot call it"
        )

    def __repr__(self) -> str:
        return f"<function {self.name} of cupyx.jit>"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the value of a call in a kernel."""
        raise NotImplementedError


def _constant(item: Any, what: str) -> Any:
    if not isinstance(item, Const):
        raise TypeError(f"{what} must be a constant")
    return item.obj


def _only(name: str, kwargs: dict[str, Any], *names: str) -> None:
    for key in kwargs:
        if key not in names:
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")


def _count(name: str, args: list[Any], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        raise TypeError(f"{name}() takes {least} to {most} arguments, and was given {len(args)}")


def bound(name: str, names: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name, as Python binds them; those behind a bar may be left out."""
    needed, _, optional = names.partition("|")
    every = [*needed.split(), *optional.split()]
    _only(name, kwargs, *every)
    _count(name, args, 0, len(every))
    made = dict(zip(every, args))
    for key, value in kwargs.items():
        if key in made:
            raise TypeError(f"{name}() got multiple values for argument {key!r}")
        made[key] = value
    for key in needed.split():
        if key not in made:
            raise TypeError(f"{name}() missing the argument {key!r}")
    return made


def indexed(array: Item, index: Item, mode: str) -> Value:
    """Return an element of an array, or a part of it.

    Raises:
        TypeError: it is no array, or the index is no integer.
        IndexError: the array has fewer dimensions, or the index is a negative constant.
    """
    kind = array.kind if isinstance(array, Value) else None
    if not isinstance(array, Value) or not isinstance(kind, (Array, Pointer, Iterator)):
        raise TypeError(f"{kind or getattr(array, 'obj', array)} is not subscriptable")
    ndim = kind.ndim if isinstance(kind, Array) else 1
    if isinstance(kind, Array):
        not_negative([index])
    at = value_of(index, mode)
    kinds: tuple[Kind, ...] = at.kind.items if isinstance(at.kind, Pack) else (at.kind,)
    for each in kinds:
        if isinstance(each, Array):
            raise TypeError("an array is no index in a kernel")
        if not isinstance(each, Scalar) or each.letter not in "iu":
            raise TypeError(f"an index must be a whole number, and this is {each}")
    if at.kind == Pack(()) and ndim == 0:
        return element(f"(*{array.code}.data)", kind.element)
    if ndim == 0 and isinstance(at.kind, Scalar):
        raise TypeError("an array without dimensions has the index () alone")
    if len(kinds) > ndim:
        raise IndexError(f"an index of {len(kinds)} dimensions, and the array has {ndim}")
    single = isinstance(at.kind, Scalar)
    if not isinstance(kind, Array):
        if not kinds:
            return array
        code = f"{array.code}[{at.code if single else f'gpjit::get<0>({at.code})'}]"
        return element(code, kind.element) if kind.is_stored else Value(code, kind.element)
    if len(kinds) == ndim:
        begin = f"{at.kind.c}::of("
        if not single and at.code.startswith(begin):  # the items stand there one by one
            return element(f"{array.code}({at.code[len(begin) :]}", kind.element)
        place = f"{array.code}({at.code})" if single else f"{array.code}.of({at.code})"
        return element(place, kind.element)
    code = packed([at]).code if single else at.code
    return Value(f"{array.code}.part({code})", Array(kind.element, ndim - len(kinds)))


def not_negative(items: list[Any]) -> None:
    """Refuse what would read in front of an array: CuPy does, and Python means another element."""
    for item in items:
        numbers = item.obj if isinstance(item, Const) else None
        for number in numbers if isinstance(numbers, tuple) else (numbers,):
            if isinstance(number, (int, np.integer)) and number < 0:
                raise IndexError(
                    f"the index {number} is negative: in a kernel it does not count from the end"
                )


class Range(Builtin):
    """`range`, whose loop can be unrolled: `unroll` is True, False or a number of turns."""

    name = "range"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Steps:
        """Return the bounds for a `for`."""
        _only("range", kwargs, "unroll")
        if not 1 <= len(args) <= 3:
            raise TypeError(f"range expected 1 to 3 arguments, got {len(args)}")
        start, stop, step = (
            (Const(0), args[0], Const(1)) if len(args) == 1 else (*args, Const(1))[:3]
        )
        unroll = self._unroll(kwargs.get("unroll", Const(None)), (start, stop, step))
        rises = None
        if isinstance(step, Const):
            if step.obj == 0:
                raise ValueError("range() arg 3 must not be zero")
            rises = bool(step.obj > 0)
        values = [value_of(each, unit.mode) for each in (start, stop, step)]
        kinds = [each.kind for each in values]
        for kind in kinds:
            if not isinstance(kind, Scalar) or kind.letter not in "iu":
                raise TypeError(f"a range has whole numbers, and this is {kind}")
        if rises is None and getattr(kinds[2], "letter", "") == "u":
            rises = True
        codes = [cast(each, INT64, "unsafe", unit.mode).code for each in (start, stop, step)]
        kind: Any = INT64 if unit.mode == "numpy" else kinds[1]
        return Steps(codes[0], codes[1], codes[2], kind, rises, unroll)

    @staticmethod
    def _unroll(item: Any, bounds: tuple[Any, ...]) -> Any:
        if isinstance(item, Const) and item.obj is None:
            return None
        if not all(isinstance(each, Const) for each in (item, *bounds)):
            raise TypeError("a loop is unrolled where its bounds and `unroll` are constants")
        unroll = item.obj
        if not isinstance(unroll, int):
            raise TypeError(f"unroll must be an integer, and is of {type(unroll).__name__}")
        if unroll is not True and unroll is not False and not 0 < unroll < _UNROLL_MAX:
            warnings.warn(f"a loop cannot be unrolled {unroll} times", stacklevel=2)
            return None
        return 1 if unroll is False else unroll


class Len(Builtin):
    """`len` of an array: its first length."""

    name = "len"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Item:
        """Return the length."""
        del unit
        _only("len", kwargs)
        _count("len", args, 1, 1)
        if isinstance(args[0], Const):
            return Const(len(args[0].obj))
        kind = args[0].kind
        if isinstance(kind, Pack):
            return Const(len(kind.items))
        if not isinstance(kind, Array):
            raise TypeError("len() is for arrays and tuples")
        if not kind.ndim:
            raise TypeError("an array without dimensions has no length")
        return Value(f"{args[0].code}.shape[0]", SIZE)


class Extreme(Builtin):
    """`min` and `max` of several numbers."""

    def __init__(self, name: str, ufunc: str) -> None:
        self.name = name
        self._ufunc = UFUNCS[ufunc]

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Item:
        """Return the number."""
        _only(self.name, kwargs)
        if all(isinstance(arg, Const) for arg in args):
            return Const({"min": min, "max": max}[self.name](*[arg.obj for arg in args]))
        if len(args) < 2:
            raise TypeError(f"{self.name}() compares two numbers or more")
        made = args[0]
        for arg in args[1:]:
            made = _ufuncs.call(self._ufunc, [made, arg], None, unit.mode)
        return made


class Barrier(Builtin):
    """Waits for all threads of the block."""

    name = "syncthreads"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the call."""
        del unit
        bound(self.name, "", args, kwargs)
        return Value("__syncthreads()", VOID)


class WarpBarrier(Builtin):
    """Waits for the threads of the warp that `mask` names; all of them by default."""

    name = "syncwarp"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the call."""
        _count(self.name, args, 0, 0)
        mask = bound(self.name, "| mask", [], kwargs).get("mask", Const(None))
        if isinstance(mask, Const):
            if mask.obj is None:
                return Value("__syncwarp()", VOID)
            return Value(f"__syncwarp({_mask(mask.obj)})", VOID)
        return Value(f"__syncwarp({cast(mask, UINT32, 'same_kind', unit.mode).code})", VOID)


def _mask(mask: Any) -> str:
    if isinstance(mask, bool) or not isinstance(mask, (int, np.integer)):
        raise TypeError("the mask must be a whole number")
    if not 0 <= mask <= FULL_MASK:
        raise ValueError("the mask has more than the 32 threads of a warp")
    return f"{hex(mask)}u"


class Shuffle(Builtin):
    """Gives a number of another thread of the warp."""

    DTYPES = ("int32", "uint32", "int64", "uint64", "float16", "float32", "float64")

    def __init__(self, way: str) -> None:
        self.name = f"shfl_{way}sync"
        self._unsigned = way in ("up_", "down_")

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the number."""
        given = bound(self.name, "mask var val_id | width", args, kwargs)
        value = value_of(given["var"], unit.mode)
        if not isinstance(value.kind, Scalar) or str(value.kind) not in self.DTYPES:
            raise TypeError(f"`{self.name}` has no numbers of the type {value.kind}")
        if not isinstance(given["mask"], Const):
            raise TypeError("the mask must be a whole number that is constant")
        mask = _mask(given["mask"].obj)
        kind = UINT32 if self._unsigned else INT32
        lane = cast(given["val_id"], kind, "same_kind", unit.mode).code
        width = given.get("width", Const(32))
        if isinstance(width, Const) and width.obj not in (2, 4, 8, 16, 32):
            raise ValueError("the width must be 2, 4, 8, 16 or 32")
        count = cast(width, INT32, "same_kind", unit.mode).code
        return Value(f"__{self.name}({mask}, {value.code}, {lane}, {count})", value.kind)


class Shared(Builtin):
    """Memory that the threads of a block share; with None as its size, that of `shared_mem`."""

    name = "shared_memory"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return a pointer; the declaration goes to the head of the function."""
        given = bound(self.name, "dtype size | alignment", args, kwargs)
        dtype, size, alignment = [
            _constant(given.get(key, Const(None)), key) for key in ("dtype", "size", "alignment")
        ]
        kind = dtype if isinstance(dtype, Storage) else Scalar(np.dtype(dtype))
        for name, number in (("size", size), ("alignment", alignment)):
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise TypeError(f"the {name} of shared memory is a whole number or None")
            if number <= 0:
                raise ValueError(f"the {name} of shared memory is at least 1")
        aligned = f"__align__({max(16, int(alignment or 0))})"
        if size is None:
            name, length = "shared_dynamic", ""
            words = f"extern __shared__ {aligned} unsigned char {name}[];"
        else:
            name, length = unit.fresh("shared_"), f"{int(size)} * sizeof({kind.stored})"
            words = f"__shared__ {aligned} unsigned char {name}[{length}];"
        unit.declare(words)
        return Value(f"reinterpret_cast<{kind.stored} *>({name})", Pointer(kind))


class Atomic(Builtin):
    """Changes an element so that no other thread comes between; gives what was there."""

    def __init__(self, name: str, dtypes: str) -> None:
        self.name = f"atomic_{name.lower()}"
        self._called = f"atomic{name}"
        self._dtypes = dtypes.split()

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the element's value before."""
        names = "array index value alt_value"
        given = bound(self.name, names if self.name == "atomic_cas" else names[:-10], args, kwargs)
        array = given["array"]
        if not isinstance(array, Value) or not isinstance(array.kind, (Array, Pointer)):
            raise TypeError(f"{self.name} changes an element of an array")
        target = indexed(array, given["index"], unit.mode)
        kind = target.kind
        if not isinstance(kind, Scalar) or str(kind) not in self._dtypes:
            raise TypeError(f"`{self.name}` has no numbers of the type {kind}")
        values = [
            cast(given[key], kind, "same_kind", unit.mode).code
            for key in ("value", "alt_value")
            if key in given
        ]
        if kind.stored != kind.c:
            values = [f"static_cast<{kind.stored}>({each})" for each in values]
        code = f"{self._called}(&{target.place}, {', '.join(values)})"
        return Value(element(code, kind).code, kind)


class Edge(Builtin):
    """`begin` and `end` of an array with one dimension: iterators for `thrust`."""

    def __init__(self, name: str, array: Value) -> None:
        self.name = name
        self._array = array

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the iterator."""
        del unit
        bound(self.name, "", args, kwargs)
        kind = self._array.kind
        if not isinstance(kind, Array) or kind.ndim != 1:
            raise NotImplementedError(
                f"{self.name}() is for arrays with one dimension, and this is an {kind}: take one "
                "row, as x[i]"
            )
        return Value(f"gpjit::rows::{self.name}({self._array.code})", Iterator(kind.element))


class Grid(Builtin):
    """Where the thread is in the grid, or how large the grid is, in 1 to 3 dimensions."""

    def __init__(self, name: str, code: str) -> None:
        self.name = name
        self._code = code

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return a number, or a tuple."""
        del unit
        ndim = _constant(bound(self.name, "ndim", args, kwargs)["ndim"], "ndim")
        if not isinstance(ndim, int):
            raise TypeError("ndim must be a whole number")
        if ndim not in (1, 2, 3):
            raise ValueError("a grid has 1, 2 or 3 dimensions")
        values = [Value(self._code.replace("$", letter), UINT32) for letter in "xyz"[:ndim]]
        return values[0] if ndim == 1 else packed(values)


class Lane(Builtin):
    """The thread's number in its warp."""

    name = "laneid"

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """Return the number, which follows from the thread's place in its block."""
        del unit
        bound(self.name, "", args, kwargs)
        return Value(f"({RANK} & 31u)", UINT32)


RANK = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
"""The thread's number in its block."""


def triple(name: str) -> Value:
    """Return one of CUDA's variables with three dimensions."""
    return Value(f"gpjit::three({name})", DIM3, name)


OF_PYTHON: dict[Any, Builtin] = {
    range: Range(),
    len: Len(),
    min: Extreme("min", "minimum"),
    max: Extreme("max", "maximum"),
}
"""Functions of Python that kernels may call."""
