"""Filters, morphology, measurements and interpolation of images."""

from typing import Any

import cupy as _cupy
import numpy as _np
from cupy._core.dispatch.arguments import is_array as _is_array

from cupyx import _extensions
from cupyx._image_filters import generic_filter as generic_filter
from cupyx._image_filters import generic_filter1d as generic_filter1d

_extensions.fill(globals())


def center_of_mass(input: Any, labels: Any = None, index: Any = None) -> Any:  # noqa: A002
    """Return the centre of an image, or of the part of each label, weighted by its elements.

    It is a tuple of 0-d arrays; where several labels are asked for, a list with an array for each:
    of any number of labels, where one answer has few results.

    Raises:
        IndexError: the image has no dimensions.
    """
    if not input.ndim:
        raise IndexError("list index out of range")  # as SciPy's and CuPy's
    total = globals()["sum"]
    weight, centre = total(input, labels, index), []
    for axis, length in enumerate(input.shape):
        steps = _cupy.arange(length, dtype=float).reshape((-1,) + (1,) * (input.ndim - axis - 1))
        centre.append(total(input * steps, labels, index) / weight)
    return list(_cupy.stack(centre, axis=-1)) if weight.ndim else tuple(centre)


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
    values, counts = (each.get() for each in _cupy.unique(flat, return_counts=True))
    if int(values[0]) < 0:
        raise ValueError("the elements must not be negative")
    places = _cupy.unravel_index(_cupy.argsort(flat, kind="stable"), arr.shape)
    if adaptive_index_dtype:
        kind = _np.min_scalar_type(-(max(arr.shape) + 1))
        places = tuple([each.astype(kind) for each in places])
    found: dict[int, tuple[Any, ...]] = {}
    begin = 0
    for value, count in zip(values.tolist(), counts.tolist()):
        if value != ignore_value:
            found[value] = tuple([each[begin : begin + count] for each in places])
        begin += count
    return found


def _of_labels(input: Any, labels: Any = None, index: Any = None) -> None:  # noqa: A002
    """Raise for arrays of this machine, which an answer would not tell from those of a device."""
    for value, name in ((input, "input"), (labels, "label")):
        if not _is_array(value) and (labels is not None or name == "input"):
            raise TypeError(f"{name} must be cupy.ndarray")
    if not (index is None or _np.isscalar(index) or _is_array(index)):
        raise TypeError("index must be cupy.ndarray or a scalar int")


for _name in ("center_of_mass", "mean", "standard_deviation", "sum", "sum_labels", "variance"):
    globals()[_name] = _extensions.checked(globals()[_name], _of_labels)
