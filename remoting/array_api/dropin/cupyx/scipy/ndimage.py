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


def _of_labels(input: Any, labels: Any = None, index: Any = None) -> None:  # noqa: A002
    """Raise for arrays of this machine, which an answer would not tell from those of a device."""
    for value, name in ((input, "input"), (labels, "label")):
        if not _is_array(value) and (labels is not None or name == "input"):
            raise TypeError(f"{name} must be cupy.ndarray")
    if not (index is None or _np.isscalar(index) or _is_array(index)):
        raise TypeError("index must be cupy.ndarray or a scalar int")


for _name in ("center_of_mass", "mean", "standard_deviation", "sum", "sum_labels", "variance"):
    globals()[_name] = _extensions.checked(globals()[_name], _of_labels)
