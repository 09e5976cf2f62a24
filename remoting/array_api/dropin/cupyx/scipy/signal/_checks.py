"""CuPy's checks and warnings in signal processing, where the worker cannot make them."""

from __future__ import annotations

import warnings
from typing import Any

import cupy as _cupy
import numpy as _np

from cupyx import _extensions


def window(function: Any) -> Any:
    """Return `get_window` with a check that refuses values that name no window."""

    def check(window: Any, *_args: Any, **_kwargs: Any) -> None:
        if isinstance(window, (str, tuple)):
            return
        try:
            float(window)
        except (TypeError, ValueError):
            raise ValueError(f"{type(window)} as window type is not supported.") from None

    return _extensions.checked(function, check)


def order(function: Any) -> Any:
    """Return `buttord`, which warns of a filter that does nothing."""

    def buttord(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        if made[0] == 0:
            warnings.warn("Order is zero...check input parameters.", RuntimeWarning, stacklevel=2)
        return made

    buttord.__module__, buttord.__doc__ = function.__module__, function.__doc__
    return buttord


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
