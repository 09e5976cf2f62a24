"""CuPy's checks and warnings in signal processing, where the worker cannot make them."""

from __future__ import annotations

import warnings
from typing import Any

from cupyx import _extensions
from cupyx.scipy.signal import _systems


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


def decimate(function: Any) -> Any:
    """Return `decimate` for filters that may be a system of discrete time."""

    def decimate(
        x: Any, q: Any, n: Any = None, ftype: Any = "iir", axis: int = -1, zero_phase: bool = True
    ) -> Any:
        if isinstance(ftype, _systems.dlti):
            return _systems.ask("decimate", x, q, n, ftype, axis, zero_phase)
        return function(x, q, n, ftype, axis, zero_phase)

    decimate.__module__, decimate.__doc__ = function.__module__, function.__doc__
    return decimate
