"""Measurements of labels that call a function of the program, or have results of many parts."""

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


def labeled_comprehension(
    input: Any,  # noqa: A002 - SciPy's name
    labels: Any,
    index: Any,
    func: Any,
    out_dtype: Any,
    default: Any,
    pass_positions: bool = False,
) -> Any:
    """Call a function with the elements of each label; return its results as an array.

    With ``out_dtype`` of object the results are a list, as in CuPy. This waits for the labels'
    places, and ``func`` runs in the program, on arrays of the device.

    Raises:
        ValueError: labels are missing, of another shape, or of a type that an index exceeds.
    """
    image = cupy.asarray(input)
    arrays = [image]
    if pass_positions:
        arrays.append(cupy.arange(image.size).reshape(image.shape))
    if labels is None:
        if index is not None:
            raise ValueError("index without defined labels")
        return func(*[each.ravel() for each in arrays])
    try:
        _, labels = cupy.broadcast_arrays(image, labels)
        arrays = [cupy.broadcast_arrays(each, labels)[0] for each in arrays]
    except ValueError:
        raise ValueError(
            "input and labels must have the same shape (excepting dimensions with width 1)"
        ) from None
    if index is None:
        return func(*[each[labels > 0] for each in arrays])
    wanted = np.atleast_1d(cupy.asnumpy(index))
    if wanted.ndim > 1:
        raise ValueError("index must have one axis at most")
    kept = wanted.astype(labels.dtype)
    if (kept.astype(wanted.dtype) != wanted).any():
        raise ValueError(
            f"Cannot convert index values from <{wanted.dtype}> to <{labels.dtype}> "
            "(labels.dtype) without loss of precision"
        )
    order = cupy.argsort(labels.ravel(), kind="stable")
    labels = labels.ravel()[order]
    arrays = [each.ravel()[order] for each in arrays]
    asked = cupy.asarray(kept)
    ends = [cupy.searchsorted(labels, asked, side=side).get() for side in ("left", "right")]
    found: list[Any] = [
        func(*[each[int(low) : int(high)] for each in arrays]) if low < high else None
        for low, high in zip(*ends)
    ]
    present = [bool(low < high) for low, high in zip(*ends)]
    if np.dtype(out_dtype).hasobject:
        made = [value if there else default for value, there in zip(found, present)]
        return made[0] if cupy.isscalar(index) else made
    result = cupy.empty(wanted.shape, out_dtype)
    if default is None and result.dtype.kind in "fc":
        default = np.nan
    if not all(present):
        result[...] = default
    for at, there in enumerate(present):
        if there:
            result[at] = found[at]
    return result[0] if cupy.isscalar(index) else result


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
