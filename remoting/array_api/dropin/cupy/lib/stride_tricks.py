"""Views with other shapes and strides."""

from typing import Any

import numpy as np

from cupy._core import convert as _convert
from cupy._core.dispatch.make import as_strided as as_strided


def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """Return a view of all windows of a shape."""
    if subok:
        raise NotImplementedError("subok=True is not supported")
    if writeable:
        raise NotImplementedError("writeable=True is not supported")
    array = _convert.asarray(x)
    view = np.lib.stride_tricks.sliding_window_view(array._gp_meta.shadow, window_shape, axis)
    return as_strided(array, view.shape, view.strides)
