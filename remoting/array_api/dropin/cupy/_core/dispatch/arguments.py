"""Arguments of CuPy's functions: operands, axes, shapes, orders and types, checked as CuPy does."""

from __future__ import annotations

import math
import warnings
from operator import index as _integer
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._door import absent, dtypes, wire
from cupy._door.arrays import Array
from cupy._door.calls import Remote
from cupy._door.older import zip_strict

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from cupy._core.array import ndarray

SUPPORTED = frozenset(wire.DTYPES)
_SCALARS = SUPPORTED | {"V"}
"""Numbers and structures."""


_PYTHON_NUMBERS = (bool, int, float, complex)


class NotAnArrayError(AttributeError, TypeError):
    """CuPy raises the first for a list or a number, and the second for an array of NumPy."""


def dtype_of(dtype: Any) -> np.dtype:
    """Return a dtype of arrays on a device: of numbers, of bytes or of structures.

    Raises:
        ValueError: objects, text and dates stay on the host, and no device computes with numbers
            in the other order of bytes.
        TypeError: a list describes a structure. dask tells CuPy from NumPy by this error.
    """
    made = np.dtype(dtype)
    if made.char not in SUPPORTED:
        hash(dtype)  # as CuPy does: its table of dtypes has it as a key
        if made.hasobject and made.char == "V":
            raise ValueError(f"Unsupported dtype {made}: it contains references to Python objects")
        if made.name == "bfloat16":
            raise ValueError(f"Unsupported dtype bfloat16: {absent.advice('cupy', 'bfloat16')}")
        if not dtypes.is_structure(made):
            raise ValueError(f"Unsupported dtype {made}")
    elif not made.isnative:
        raise ValueError(f"Unsupported dtype {made} with big-endian byte-order")
    return made


def view_dtype_of(dtype: Any) -> np.dtype:
    """Return a dtype that memory may be viewed as: also dates, with which no device computes."""
    made = np.dtype(dtype)
    return made if made.char in "mM" and made.isnative else dtype_of(made)


def is_scalar(value: object) -> bool:
    """Say whether a value is a number or text of the host; `numpy.isscalar` without its guard."""
    return bool(np.isscalar(value))


def operand(value: object) -> Any:
    """Return ``value`` as an array or scalar that a kernel takes; TypeError for host arrays.

    CuPy never uploads operands by itself (cupy#589): the cost would be hidden.
    """
    if isinstance(value, (Remote, *_PYTHON_NUMBERS)):
        return value
    if isinstance(value, np.generic) and value.dtype.char in _SCALARS:
        return value
    convert = getattr(value, "__cupy_get_ndarray__", None)
    if convert is not None:
        return convert()
    if hasattr(value, "__cuda_array_interface__"):
        from cupy._core.convert import from_interface

        return from_interface(value)
    raise NotAnArrayError(f"Unsupported type {type(value)}")


def operand_type(value: object) -> Any:
    """Return an operand's dtype, or int, float, complex for a Python number."""
    if isinstance(value, Remote):
        return value._gp_meta.dtype  # type: ignore[attr-defined]
    if isinstance(value, np.generic):
        return value.dtype
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    return int if isinstance(value, int) else float if isinstance(value, float) else complex


def check_cast(source: np.dtype, target: np.dtype, casting: str) -> None:
    """Raise as a ufunc does for an output that cannot take the result."""
    if casting != "unsafe" and not np.can_cast(source, target, casting):  # type: ignore[arg-type]
        raise TypeError(
            f"output operand requires a reduction from type {source!r} to {target!r}, but "
            f"casting it is not allowed according to casting rule {casting!r}: "
            f"Cannot cast output from {source!r} to {target!r}"
        )


def check_out(out: Any, source: np.dtype, shape: tuple[int, ...]) -> None:
    """Raise for an output of another shape, or of a type that cannot take the result."""
    if need(out, "out").shape != shape:
        raise ValueError("Out shape is mismatched")
    check_cast(source, out.dtype, "same_kind")


def check_number(value: object, dtype: np.dtype) -> None:
    """Raise for a number of Python that a whole type cannot hold, as the worker's NumPy would."""
    if isinstance(value, _PYTHON_NUMBERS) and dtype.kind in "iu":
        np.empty((), dtype)[()] = value.real if isinstance(value, complex) else value


def check_kind(kind: object) -> None:
    """Raise for a kind of sorting that CuPy does not have."""
    if kind is not None and kind != "stable":
        raise ValueError(f"kind can only be None or 'stable', got {kind}")


def check_added(name: str, dtype: np.dtype) -> None:
    """Raise for types in which no GPU adds atomically."""
    if name == "add" and dtype.char in "?bBhH":
        raise TypeError(f"cupyx.scatter_add does not support {dtype} as data type")


def warn_of_complex(level: int = 4) -> None:
    """Warn as NumPy does where imaginary parts are lost; ``level`` finds the program's line."""
    warnings.warn(
        "Casting complex values to real discards the imaginary part",
        np.exceptions.ComplexWarning,
        stacklevel=level,
    )


def axis_of(axis: Any, ndim: int) -> int:
    """Return a non-negative axis; AxisError if there is none such."""
    made = int(_integer(axis))  # True is 1, as in CuPy
    if not -ndim <= made < ndim:
        raise np.exceptions.AxisError(made, ndim)
    return made + ndim if made < 0 else made


def integer(value: Any) -> int:
    """Return an integer as an int; TypeError for a number of another kind."""
    return int(_integer(value))


def plain(value: Any) -> int | tuple[int, ...]:
    """Return an integer as an int, and those of any sequence as a tuple: lists, NumPy's arrays."""
    if not hasattr(value, "__len__"):
        return int(_integer(value))
    return tuple([int(_integer(item)) for item in value])


def integers(value: object) -> tuple[int, ...]:
    """Return an integer, or those of any sequence, as a tuple."""
    made = plain(value)
    return made if isinstance(made, tuple) else (made,)


def axes_of(axis: object, ndim: int) -> tuple[int, ...]:
    """Return non-negative axes, all of them for None; ValueError for duplicates."""
    if axis is None:
        return tuple(range(ndim))
    made = tuple([axis_of(item, ndim) for item in integers(axis)])
    if len(set(made)) != len(made):
        raise ValueError("duplicate value in 'axis'")
    return made


def shape_of(shape: object) -> tuple[int, ...]:
    """Return a shape as a tuple of non-negative ints; True is 1, as in CuPy."""
    if type(shape) is tuple:
        for length in shape:
            if type(length) is not int or length < 0:
                break
        else:
            return shape  # as nearly all are
    elif shape is None:
        raise TypeError("Use () not None as shape arguments")
    made = integers(shape)
    if any(length < 0 for length in made):
        raise ValueError("Negative dimensions are not allowed")
    return made


def check_strides(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
    """Raise where strides would leave the memory of a contiguous array of the shape."""
    if len(strides) != len(shape):
        raise ValueError("strides and shape have different lengths")
    if 0 in shape:
        return
    steps = [(length - 1) * stride for length, stride in zip_strict(shape, strides)]
    if any(step < 0 for step in steps):
        raise ValueError("ndarray() with strides below 0 is not supported")
    if sum(steps) + itemsize > math.prod(shape) * itemsize:
        # both with a beginning that CuPy's own tests look for
        raise ValueError("ndarray() with strides that leave the memory of a contiguous array")


def normalize_order(order: str | None) -> str:
    """Return one of C, F, A, K, and C for an empty word; ValueError for anything else."""
    letter = "K" if order is None else order[:1].upper() or "C"
    if letter not in ("C", "F", "A", "K"):
        raise ValueError(f"order not understood. order={order}")
    return letter


def is_array(value: object) -> TypeIs[ndarray]:
    """Say whether a value is an array on a device."""
    return isinstance(value, Array)


def need(a: object, name: str = "a") -> ndarray:
    """Return ``a`` if it is a device array; CuPy's functions take nothing else."""
    if is_array(a):
        return a
    convert = getattr(a, "__cupy_get_ndarray__", None)
    if convert is not None:
        return convert()
    raise NotAnArrayError(
        f"Argument {name!r} has incorrect type (expected cupy.ndarray, got {type(a).__name__})"
    )


def able(a: object, method: str) -> Any:
    """Return an object with this method: ``a`` itself, or the array that it converts to."""
    return a if hasattr(a, method) else need(a)


def weak_result(dtype: np.dtype, kinds: list[Any]) -> np.dtype:
    """Return the promoted type of an array with Python numbers, as weak types (NEP 50)."""
    result = dtype
    for kind in kinds:
        if isinstance(kind, np.dtype):
            result = np.promote_types(result, kind)
        elif kind is int:
            result = np.promote_types(result, np.int64) if result.kind == "b" else result
        elif kind is float:
            result = np.dtype(np.float64) if result.kind in "biu" else result
        elif result.kind != "c":
            result = (
                np.promote_types(result, np.complex64)
                if result.kind == "f"
                else np.dtype(np.complex128)
            )
    return result
