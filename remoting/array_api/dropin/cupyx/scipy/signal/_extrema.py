"""Extrema by a comparison of the program, which runs on this machine."""

from __future__ import annotations

from typing import Any

import cupy as _cupy
import numpy as _np


def argrelextrema(
    data: Any, comparator: Any, axis: int = 0, order: int = 1, mode: str = "clip"
) -> Any:
    """Return where each element compares so with its neighbours; the comparison runs here."""
    if int(order) != order or order < 1:
        raise ValueError("Order must be an int >= 1")
    if mode == "raise":
        raise NotImplementedError("CuPy `take` doesn't support `mode='raise'`.")
    data = _cupy.asarray(data)
    length = data.shape[axis]
    places = _np.arange(length)
    found = _cupy.ones(data.shape, bool)
    for shift in range(1, order + 1):
        for step in (shift, -shift):
            near = places + step
            near = near % length if mode == "wrap" else _np.clip(near, 0, length - 1)
            found &= comparator(data, _cupy.take(data, near, axis=axis))
    return _cupy.nonzero(found)
