"""Functions that call functions of the program."""

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.creation import zeros_like
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.elementwise import where
from cupy._core.joining import expand_dims, stack
from cupy._core.manipulation import moveaxis
from cupy._door.older import zip_strict


def piecewise(x: object, condlist: Any, funclist: Any) -> Any:
    """Evaluate functions, each where its condition holds."""
    array = convert.asarray(x)
    if arguments.is_scalar(condlist):
        condlist = [condlist]
    conditions = (
        [convert.asarray(c) for c in condlist]
        if isinstance(condlist, (list, tuple))
        else [need(condlist)]
        if need(condlist).ndim == array.ndim
        else list(condlist)
    )
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or "
            f"{len(conditions) + 1} functions are expected"
        )
    made = zeros_like(array)
    if len(funclist) > len(conditions):
        rest = ~conditions[0]
        for condition in conditions[1:]:
            rest = rest & ~condition
        conditions = [*conditions, rest]
    for condition, function in zip_strict(conditions, funclist):
        if callable(function):
            raise NotImplementedError("Callable functions are not supported currently")
        value = convert.asarray(function).astype(made.dtype, copy=False)
        made = where(condition, value, made)
    return made


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
