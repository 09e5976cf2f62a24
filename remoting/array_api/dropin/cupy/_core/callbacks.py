"""Functions that call functions of the program."""

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.joining import expand_dims, stack
from cupy._core.manipulation import moveaxis


def apply_along_axis(func1d: Any, axis: int, arr: object, *args: Any, **kwargs: Any) -> Any:
    """Apply a Python function to vectors along an axis."""
    array = need(arr)
    at = arguments.axis_of(axis, array.ndim)
    moved = moveaxis(array, at, -1)
    outer = moved.shape[:-1]
    if 0 in outer:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [convert.asarray(func1d(moved[index], *args, **kwargs)) for index in np.ndindex(outer)]
    joined = stack(parts).reshape(outer + parts[0].shape)
    for offset in range(parts[0].ndim):
        joined = moveaxis(joined, len(outer) + offset, at + offset)
    return joined


def apply_over_axes(func: Any, a: object, axes: Any) -> Any:
    """Apply a function repeatedly, over each axis."""
    value = need(a)
    for axis in (axes,) if isinstance(axes, int) else axes:
        result = func(value, arguments.axis_of(axis, value.ndim))
        if result.ndim != value.ndim:
            result = expand_dims(result, axis)
        value = result
    return value


CALLBACKS = make.public(globals())
