"""Joining arrays, and the axes of length one that they gain for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, learning, make
from cupy._core.dispatch.arguments import need
from cupy._door.meta import fresh, of_view

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def expand_dims(a: object, axis: object) -> ndarray:
    """Return the array with new axes of length one."""
    array = need(a)
    places = (axis,) if type(axis) is int else arguments.integers(axis)
    meta = of_view(np.expand_dims(array._gp_meta.shadow, places))
    kept = arguments.axes_of(places, meta.ndim)
    index = tuple(None if at in kept else slice(None) for at in range(meta.ndim))
    return array[index]


def _at_least(count: int, function: Callable[[Any], np.ndarray]) -> Any:
    def atleast(*arys: object) -> ndarray | list[ndarray]:
        arrays = [convert.asarray(item) for item in arys]
        made = [
            each if each.ndim >= count else each.reshape(function(each._gp_meta.shadow).shape)
            for each in arrays
        ]
        return made[0] if len(made) == 1 else made

    atleast.__name__ = atleast.__qualname__ = function.__name__
    return atleast


atleast_1d = _at_least(1, np.atleast_1d)
atleast_2d = _at_least(2, np.atleast_2d)
atleast_3d = _at_least(3, np.atleast_3d)


def _joined_dtype(arrays: list[Any], dtype: object) -> np.dtype:
    return (
        arguments.dtype_of(dtype)
        if dtype is not None
        else np.result_type(*[a.dtype for a in arrays])
    )


def _device_arrays(tup: Any) -> list[ndarray]:
    if arguments.is_array(tup):
        tup = list(tup)
    return [need(item, "arrays") for item in tup]


def concatenate(
    tup: object, axis: object = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> ndarray:
    """Join arrays along an axis."""
    plain = out is None and dtype is None and casting == "same_kind"
    brief = learning.short("concatenate", (tup, axis), {}) if plain else None
    made = learning.recall(brief)
    if made is not learning.UNKNOWN:
        return made
    arrays = _device_arrays(tup)
    if not arrays:
        raise ValueError("need at least one array to concatenate")
    if out is not None and dtype is not None:
        raise TypeError("concatenate() only takes `out` or `dtype` as an argument")
    if axis is None:
        arrays, axis = [a.ravel() for a in arrays], 0
    first = arrays[0]
    at = arguments.axis_of(axis, first.ndim) if first.ndim else _zero_dimensional()
    total = 0
    for array in arrays:
        if array.ndim != first.ndim:
            raise ValueError("All arrays to concatenate must have the same ndim")
        if array.shape[:at] + array.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :]:
            raise ValueError("All arrays must have same shape except the axis to concatenate")
        total += array.shape[at]
    shape = (*first.shape[:at], total, *first.shape[at + 1 :])
    kind = _joined_dtype(arrays, dtype) if out is None else out.dtype
    for array in arrays:
        if not np.can_cast(array.dtype, kind, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {array.dtype!r} to {kind!r} "
                f"according to the rule {casting!r}"
            )
    if kind.kind not in "bc" and any(array.dtype.kind == "c" for array in arrays):
        arguments.warn_of_complex()
    if out is not None:
        if out.shape != shape:
            raise ValueError("Output array is the wrong shape")
        make.in_place("door.concatenate_into", (arrays, at, out, casting), {})
        return out
    keywords = {} if dtype is None else {"dtype": kind, "casting": casting}
    args = (arrays, axis if type(axis) is int else at)
    learning.keep(brief, "concatenate", args, keywords, fresh(kind, shape))
    return make.forward("concatenate", args, keywords, fresh(kind, shape))


def _zero_dimensional() -> int:
    raise ValueError("zero-dimensional arrays cannot be concatenated")


def stack(
    tup: object, axis: int = 0, out: object = None, *, dtype: Any = None, casting: str = "same_kind"
) -> ndarray:
    """Join arrays along a new axis."""
    plain = out is None and dtype is None and casting == "same_kind"
    brief = learning.short("stack", (tup, axis), {}) if plain else None
    made = learning.recall(brief)
    if made is not learning.UNKNOWN:
        return made
    arrays = _device_arrays(tup)
    if not arrays:
        raise ValueError("need at least one array to stack")
    if len({array.shape for array in arrays}) > 1:
        raise ValueError("all input arrays must have the same shape")
    shape = arrays[0].shape
    at = arguments.axis_of(axis, len(shape) + 1)
    if not plain:
        parts = [expand_dims(each, at) for each in arrays]
        return concatenate(parts, at, out, dtype=dtype, casting=casting)
    looks = fresh(_joined_dtype(arrays, None), (*shape[:at], len(arrays), *shape[at:]))
    learning.keep(brief, "stack", (arrays, axis), {}, looks)
    return make.forward("stack", (arrays, axis), {}, looks)


def vstack(tup: Any, *, dtype: object = None, casting: str = "same_kind") -> ndarray:
    """Join arrays vertically."""
    arrays = [atleast_2d(item) for item in tup]
    return concatenate(arrays, 0, dtype=dtype, casting=casting)


def row_stack(tup: Any, *, dtype: object = None, casting: str = "same_kind") -> ndarray:
    """Join arrays vertically, under the name that NumPy 2 deprecates."""
    warnings.warn(
        "`row_stack` alias is deprecated. Use `cupy.vstack` directly.",
        DeprecationWarning,
        stacklevel=2,
    )
    return vstack(tup, dtype=dtype, casting=casting)


def hstack(tup: Any, *, dtype: object = None, casting: str = "same_kind") -> ndarray:
    """Join arrays horizontally."""
    arrays = [atleast_1d(item) for item in tup]
    axis = 0 if arrays and arrays[0].ndim == 1 else 1
    return concatenate(arrays, axis, dtype=dtype, casting=casting)


def dstack(tup: Any) -> ndarray:
    """Join arrays along the third axis."""
    return concatenate([atleast_3d(item) for item in tup], 2)


def column_stack(tup: Any) -> ndarray:
    """Join vectors as columns."""
    arrays = [need(item) for item in tup]
    if any(array.ndim not in (1, 2) for array in arrays):
        raise ValueError("Only 1 or 2 dimensional arrays can be column stacked")
    return concatenate([a[:, None] if a.ndim == 1 else a for a in arrays], 1)


def append(arr: object, values: object, axis: object = None) -> ndarray:
    """Return an array with values added at its end."""
    array = convert.asarray(arr)
    more = convert.asarray(values)
    if axis is None:
        return concatenate((array.ravel(), more.ravel()), 0)
    return concatenate((array, more), axis)


JOINING = {**make.public(globals()), "concat": concatenate}
