"""Helpers of power series: their coefficients, the lowest power first."""

from typing import Any

from cupy._core.creation import zeros_like as _zeros_like
from cupy._core.dispatch.arguments import need
from cupy._core.learned import flatnonzero as _flatnonzero
from cupy._core.learned import trim_zeros as _trim_zeros
from cupy._core.queries import common_type as _common_type
from cupy._core.ufunc import UFUNCS as _UFUNCS


def trimseq(seq: Any) -> Any:
    """Return a series without the zeros at its end, but for one."""
    array = need(seq, "seq")
    if array.ndim == 0:
        raise TypeError("Input must be 1-d array")
    if array.ndim > 1:
        raise ValueError("Input must be 1-d array")
    if array.size == 0:
        return array
    left = _trim_zeros(array, "b")
    return left if left.size else array[:1]


def as_series(alist: Any, trim: bool = True) -> list[Any]:
    """Return series of one type."""
    made: list[Any] = []
    for item in alist:
        if item.size == 0:
            raise ValueError("Coefficient array is empty")
        if item.ndim > 1:
            raise ValueError("Coefficient array is not 1-d")
        if item.dtype.kind == "b":
            raise ValueError("Coefficient arrays have no common type")
        flat = item.ravel()
        made.append(trimseq(flat) if trim else flat)
    kind = _common_type(*made)
    return [item.astype(kind, copy=False) for item in made]


def trimcoef(c: Any, tol: float = 0) -> Any:
    """Return a series without the small coefficients at its end."""
    if tol < 0:
        raise ValueError("tol must be non-negative")
    array = need(c, "c")
    if array.size == 0:
        raise ValueError("Coefficient array is empty")
    if array.ndim > 1:
        raise ValueError("Coefficient array is not 1-d")
    if array.dtype.kind == "b":
        raise ValueError("bool inputs are not allowed")
    array = array.ravel().astype(_common_type(array), copy=False)
    large = _flatnonzero(_UFUNCS["absolute"](array) > tol)
    if not large.size:
        return _zeros_like(array[:1])
    return array[: int(large[-1]) + 1]
