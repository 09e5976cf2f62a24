"""Ufuncs of an emulated device where a kernel of CuPy gives another result than NumPy's loop.

A program that is tested here must see what it will see on a GPU, so these follow CuPy's formulas
at the points where the two differ. Each takes the arguments of the ufunc of its name, of which the
operands are arrays in the types of the loop.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _infinite(value: Array) -> Any:
    return np.isinf(value) if value.dtype.kind in "fc" else False


def _amend(made: Any, values: Any, places: Any, kwargs: dict[str, Any]) -> Any:
    """Return a result with other values at some places; it is new, or the call's `out`."""
    places = places & kwargs.get("where", True)
    values = np.asarray(values).astype(made.dtype)
    if not isinstance(made, np.ndarray):
        return np.where(places, values, made)
    np.copyto(made, values, where=places)  # in place, so that its strides stay
    return made


def _power(x: Any, y: Any, **kwargs: Any) -> Any:
    """Return powers; negative ones of integers are 0, or those of 1 and -1."""
    if x.dtype.kind not in "biu" or not np.any(y < 0):
        return np.power(x, y, **kwargs)
    places = y < 0  # asked first: the result may go into one of the operands
    below = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2, x, 1), 0))
    return _amend(np.power(x, np.maximum(y, 0), **kwargs), below, places, kwargs)


def _floor_divide(x: Any, y: Any, **kwargs: Any) -> Any:
    """Return the floor of the quotient, also of infinite numbers, of which NumPy's is NaN."""
    places = _infinite(x) | _infinite(y)
    if not np.any(places):
        return np.floor_divide(x, y, **kwargs)
    with np.errstate(all="ignore"):
        values = np.floor(np.divide(x, y))
    return _amend(np.floor_divide(x, y, **kwargs), values, places, kwargs)


def _remainder(x: Any, y: Any, **kwargs: Any) -> Any:
    """Return ``x - floor(x / y) * y``, which is NaN if `y` is infinite."""
    places = _infinite(y)
    if not np.any(places):
        return np.remainder(x, y, **kwargs)
    return _amend(np.remainder(x, y, **kwargs), np.nan, places, kwargs)


def _divmod(x: Any, y: Any, **kwargs: Any) -> Any:
    """Return both; outputs come as a pair."""
    if not np.any(_infinite(x) | _infinite(y)):
        return np.divmod(x, y, **kwargs)
    outs: tuple[Array, ...] | None = kwargs.pop("out", None)
    whole = _floor_divide(x, y, **kwargs)
    rest = _remainder(x, y, **kwargs)
    if outs is None:
        return whole, rest
    for out, made in zip(outs, (whole, rest), strict=True):
        np.copyto(out, made, "same_kind", kwargs.get("where", True))
    return outs


def _expm1(x: Any, **kwargs: Any) -> Any:
    """Return ``exp(x) - 1``; so it is computed for complex numbers, also for infinite ones."""
    if x.dtype.kind != "c":
        return np.expm1(x, **kwargs)
    with np.errstate(all="ignore"):
        values = np.exp(x) - 1
        return _amend(np.expm1(x, **kwargs), values, np.full(np.shape(x), True), kwargs)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "divmod": _divmod,
    "expm1": _expm1,
    "floor_divide": _floor_divide,
    "power": _power,
    "remainder": _remainder,
}
