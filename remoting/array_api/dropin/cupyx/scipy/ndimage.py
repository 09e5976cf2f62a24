"""Filters, morphology, measurements and interpolation of images."""

from typing import Any

import numpy as _np
from cupy._core.dispatch.arguments import is_array as _is_array

from cupyx import _extensions
from cupyx._image_filters import generic_filter as generic_filter
from cupyx._image_filters import generic_filter1d as generic_filter1d
from cupyx._image_labels import center_of_mass as _center_of_mass
from cupyx._image_labels import labeled_comprehension as labeled_comprehension
from cupyx._image_labels import value_indices as value_indices

_extensions.fill(globals())

center_of_mass = _center_of_mass  # of any number of labels, where one answer has few results


def _of_labels(input: Any, labels: Any = None, index: Any = None) -> None:  # noqa: A002
    """Raise for arrays of this machine, which an answer would not tell from those of a device."""
    for value, name in ((input, "input"), (labels, "label")):
        if not _is_array(value) and (labels is not None or name == "input"):
            raise TypeError(f"{name} must be cupy.ndarray")
    if not (index is None or _np.isscalar(index) or _is_array(index)):
        raise TypeError("index must be cupy.ndarray or a scalar int")


for _name in ("center_of_mass", "mean", "standard_deviation", "sum", "sum_labels", "variance"):
    globals()[_name] = _extensions.checked(globals()[_name], _of_labels)
