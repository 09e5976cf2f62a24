"""Measurements of labels with results of many parts."""

from __future__ import annotations

import importlib
from typing import Any

import cupy
import numpy as np


def center_of_mass(
    input: Any,  # noqa: A002 - SciPy's name
    labels: Any = None,
    index: Any = None,
) -> Any:
    """Return the centre of an image, or of the part of each label, weighted by its elements.

    It is a tuple of 0-d arrays; where several labels are asked for, a list with an array for each.

    Raises:
        IndexError: the image has no dimensions.
    """
    if not input.ndim:
        raise IndexError("list index out of range")  # as SciPy's and CuPy's
    total = importlib.import_module("cupyx.scipy.ndimage").sum
    weight, centre = total(input, labels, index), []
    for axis, length in enumerate(input.shape):
        steps = cupy.arange(length, dtype=float).reshape((-1,) + (1,) * (input.ndim - axis - 1))
        centre.append(total(input * steps, labels, index) / weight)
    return list(cupy.stack(centre, axis=-1)) if weight.ndim else tuple(centre)


def value_indices(
    arr: Any, *, ignore_value: Any = None, adaptive_index_dtype: bool = False
) -> dict[int, tuple[Any, ...]]:
    """Return where each value of an array of integers is, as indices along each axis.

    This waits once, for the values and how often they occur. ``adaptive_index_dtype`` gives the
    indices the smallest type that holds them.

    Raises:
        ValueError: the elements are no integers, or negative ones, which CuPy cannot count.
    """
    if arr.dtype.kind not in "iu":
        raise ValueError("Parameter 'arr' must be an integer array")
    flat = arr.reshape(-1)
    if flat.size == 0:
        return {}
    values, counts = (each.get() for each in cupy.unique(flat, return_counts=True))
    if int(values[0]) < 0:
        raise ValueError("the elements must not be negative")
    places = cupy.unravel_index(cupy.argsort(flat, kind="stable"), arr.shape)
    if adaptive_index_dtype:
        kind = np.min_scalar_type(-(max(arr.shape) + 1))
        places = tuple([each.astype(kind) for each in places])
    found: dict[int, tuple[Any, ...]] = {}
    begin = 0
    for value, count in zip(values.tolist(), counts.tolist()):
        if value != ignore_value:
            found[value] = tuple([each[begin : begin + count] for each in places])
        begin += count
    return found
