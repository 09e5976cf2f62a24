"""Conversions of floats to whole numbers as a GPU does them; NumPy follows the processor.

What is out of range becomes the nearest number of the type. NaN becomes 0; where one of the two
types has 64 bits, it becomes the number whose highest bit alone is set. `fitted` does it for
whatever stores numbers, and `converting` for whatever has an ``out``.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import is_ndarray, is_sequence

Operation = Callable[..., Any]

_PYTHON = (int, float, complex)
_REGISTERS = {"b": "i", "h": "i", "B": "I", "H": "I"}
"""Types of less than 32 bits get the lower bits of a number of 32."""


def _has_inexact(value: Any) -> bool:
    if is_sequence(value):
        return any(map(_has_inexact, value))
    kind = getattr(value, "dtype", None)
    return isinstance(kind, np.dtype) and kind.kind in "fc"


def _is_whole(value: Any) -> bool:
    if is_sequence(value):
        return any(map(_is_whole, value))
    return is_ndarray(value) and value.dtype.kind in "iu"


def fitted(value: Any, dtype: Any) -> Any:
    """Return numbers that NumPy converts to a type as a GPU does.

    They are `value` itself, or an array of a wider whole type. Python's numbers, which are checked
    before, stay as they are.
    """
    if is_sequence(value):
        return type(value)([fitted(item, dtype) for item in value])
    if not _has_inexact(value):
        return np.asarray(value) if issubclass(type(value), np.integer) else value
    target = np.dtype(dtype)
    array: Any = np.asarray(value)
    if array.dtype.kind == "c" and target.kind not in "cb":
        array = array.real
    if target.kind not in "iu":
        return array
    limits = np.iinfo(_REGISTERS.get(target.char, target.char))
    over, under = array >= float(limits.max), array < float(limits.min)
    none = np.isnan(array)
    wrong = over | under | none
    if not wrong.any():
        return array
    made = array.copy("K")
    made[wrong] = 0
    made = made.astype(limits.dtype)
    if max(array.dtype.itemsize, made.dtype.itemsize) == 8:
        made[none] = limits.min or 1 << limits.bits - 1
    made[over] = limits.max
    made[under] = limits.min
    return made


def converted(value: Any, dtype: Any, order: Any = "K") -> Any:
    """Return a new array of another type."""
    return np.asarray(fitted(value, dtype)).astype(dtype, order=order)


def operands(function: np.ufunc, args: Sequence[Any], dtype: Any = None) -> list[Any]:
    """Return the operands of a ufunc in the types of the loop that it takes for them."""
    kinds: list[Any] = [
        type(arg) if type(arg) in _PYTHON else np.asarray(arg).dtype for arg in args
    ]
    outputs: list[Any] = [None] * function.nout
    named: Any = {}
    if dtype is not None:
        named = {"signature": (*[None] * function.nin, *[np.dtype(dtype)] * function.nout)}
    loop = function.resolve_dtypes((*kinds, *outputs), casting="unsafe", **named)
    pairs = zip(args, loop, strict=False)
    return [np.asarray(fitted(arg, kind)).astype(kind, copy=False) for arg, kind in pairs]


def stored(out: Any, made: Any, where: Any = True) -> Any:
    """Put results into arrays, several if there are several; the client has checked the types."""
    if is_sequence(out):
        return tuple([stored(*pair, where) for pair in zip(out, made, strict=True)])
    np.copyto(out, fitted(made, out.dtype), "unsafe", where)
    return out


def converting(function: Operation) -> Operation:
    """Return an operation that puts results into an ``out`` as a GPU does."""
    names = inspect.signature(function).parameters if inspect.isfunction(function) else ()
    if names and "out" not in names and "kwargs" not in names:
        return function

    def call(*args: object, **kwargs: object) -> Any:
        if (out := kwargs.get("out")) is None:
            return function(*args, **kwargs)
        if not (_has_inexact(args) and (kwargs.get("casting") == "unsafe" or _is_whole(out))):
            return function(*args, **kwargs)
        del kwargs["out"]
        where = kwargs.get("_where", kwargs.get("where", True))
        return stored(out, function(*args, **kwargs), where)

    return call
