"""CUB in a kernel: sums, and largest or smallest numbers, of the threads of a warp or a block.

`WarpReduce[dtype]` and `BlockReduce[dtype, threads]` are types. One is called with an element of
shared memory of its `TempStorage`; the first thread gets the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from cupy._door import absent as _absent

from cupyx.jit import _functions
from cupyx.jit._kinds import Kind as _Kind
from cupyx.jit._kinds import Scalar as _Scalar
from cupyx.jit._kinds import Storage as _Storage
from cupyx.jit._kinds import Value as _Value
from cupyx.jit._kinds import value_of as _value_of

_THREADS_MAX = 1024


@dataclass(frozen=True)
class _Operator(_Kind):
    """What two numbers become; it is passed by name, and has no variable."""

    name: str

    def __str__(self) -> str:
        return f"cub.{self.name}"

    @property
    def c(self) -> str:
        """Raise: it is not kept."""
        raise TypeError(f"{self} is for a call of Reduce alone")


class _MakeOperator(_functions.Builtin):
    def __init__(self, name: str) -> None:
        self.name = f"cub.{name}"
        self._value = _Value(f"gpjit::cub::{name}{{}}", _Operator(name))

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the operator."""
        del unit
        _functions.bound(self.name, "", args, kwargs)
        return self._value


class _Method(_functions.Builtin):
    """`Sum` or `Reduce` of a reduction with its memory."""

    def __init__(self, name: str, reducer: str, element: _Scalar) -> None:
        self.name = name
        self._reducer = reducer
        self._element = element

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the call."""
        names = "input" if self.name == "Sum" else "input reduction_op"
        given = _functions.bound(self.name, names, args, kwargs)
        value = _value_of(given["input"], unit.mode)
        if value.kind != self._element:
            raise TypeError(f"{self.name}() takes {self._element} here, and this is {value.kind}")
        codes = [value.code]
        if "reduction_op" in given:
            operator = given["reduction_op"]
            if not isinstance(operator, _Value) or not isinstance(operator.kind, _Operator):
                raise TypeError("reduction_op is cub.Sum(), cub.Max() or cub.Min()")
            codes.append(operator.code)
        return _Value(f"{self._reducer}.{self.name}({', '.join(codes)})", self._element)


@dataclass(frozen=True)
class _Reducer(_Kind):
    """A reduction with its memory; it is a name, and has no variable in C++."""

    code: str
    element: _Scalar

    def __str__(self) -> str:
        return "reduction of cub"

    @property
    def c(self) -> str:
        """Raise: it is not passed and not kept."""
        raise TypeError("a reduction can only be a variable of the function that makes it")

    def method(self, name: str) -> _Method | None:
        """Return a method."""
        return _Method(name, self.code, self.element) if name in ("Sum", "Reduce") else None


class _Reduction(_functions.Builtin):
    """A type of reductions, for one type of numbers."""

    def __init__(self, name: str, dtype: Any, *sizes: int) -> None:
        self.name = f"cub.{name}"
        self._element = _Scalar(np.dtype(dtype))
        words = [self._element.c, *[str(size) for size in sizes]]
        self._code = f"gpjit::cub::{name}<{', '.join(words)}>"
        self.TempStorage = _Storage(self._code)

    def call(self, unit: Any, args: list[Any], kwargs: dict[str, Any]) -> _Value:
        """Return the reduction with its memory."""
        del unit
        storage = _functions.bound(self.name, "temp_storage", args, kwargs)["temp_storage"]
        if not isinstance(storage, _Value) or storage.kind != self.TempStorage:
            raise TypeError(
                f"{self.name} is called with an element of shared_memory(its TempStorage, 1)"
            )
        code = f"{self._code}({storage.place})"
        return _Value(code, _Reducer(code, self._element))


class _WarpReduce:
    """Reductions of the 32 threads of a warp: `WarpReduce[dtype]`."""

    def __repr__(self) -> str:
        return "cub.WarpReduce without its type, as in WarpReduce[dtype]"

    def __getitem__(self, dtype: Any) -> _Reduction:
        return _Reduction("WarpReduce", dtype)


class _BlockReduce:
    """Reductions of a block of one dimension: `BlockReduce[dtype, threads]`."""

    def __repr__(self) -> str:
        return "cub.BlockReduce without its type, as in BlockReduce[dtype, threads]"

    def __getitem__(self, given: Any) -> _Reduction:
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError("BlockReduce is written with two things: BlockReduce[dtype, threads]")
        dtype, threads = given
        if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)):
            raise TypeError("the threads of a block are a whole number")
        if not 1 <= threads <= _THREADS_MAX:
            raise ValueError(f"a block has 1 to {_THREADS_MAX} threads")
        return _Reduction("BlockReduce", dtype, int(threads))


WarpReduce = _WarpReduce()
BlockReduce = _BlockReduce()
Sum = _MakeOperator("Sum")
Max = _MakeOperator("Max")
Min = _MakeOperator("Min")

__getattr__ = _absent.lookup(__name__)
