"""CuPy's checks of image arguments that a worker cannot make: they arrive as arrays.

An array of NumPy is uploaded on its way, and a warning of the worker reaches nobody.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from cupy._core.dispatch.arguments import is_array as _is_array

from cupyx import _extensions
from cupyx._output_places import OUTPUT_PLACES

_CONVOLUTIONS = ("convolve", "convolve1d", "correlate", "correlate1d")
_OF_LABELS = ("center_of_mass", "mean", "standard_deviation", "sum", "sum_labels", "variance")


def add(module: dict[str, Any]) -> None:
    """Let functions of `cupyx.scipy.ndimage` check first."""
    for name in _OF_LABELS:
        module[name] = _extensions.checked(module[name], _of_labels)
    for name in _CONVOLUTIONS:
        place = OUTPUT_PLACES[f"{module['__name__']}.{name}"]
        module[name] = _extensions.checked(module[name], _warning_of(place))


def _of_labels(input: Any, labels: Any = None, index: Any = None) -> None:  # noqa: A002
    if not _is_array(input):
        raise TypeError("input must be cupy.ndarray")
    if labels is None:
        return
    if not _is_array(labels):
        raise TypeError("label must be cupy.ndarray")
    if not (index is None or np.isscalar(index) or _is_array(index)):
        raise TypeError("index must be cupy.ndarray or a scalar int")


def _warning_of(place: int) -> Any:
    def check(input: Any, weights: Any, *args: Any, **kwargs: Any) -> None:  # noqa: A002
        output = args[place - 2] if len(args) > place - 2 else kwargs.get("output")
        if not isinstance(output, (type, np.dtype)) or np.dtype(output).kind == "c":
            return
        if any(_is_complex(value) for value in (input, weights)):
            warnings.warn("promoting specified output dtype to complex", UserWarning, stacklevel=3)

    return check


def _is_complex(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return (np.asarray(value) if dtype is None else value).dtype.kind == "c"
