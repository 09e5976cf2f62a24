"""Power series: evaluation, and the matrices that belong to them."""

import operator
from typing import Any

import numpy as np

from cupy._core import convert as _convert
from cupy._core.creation import arange as _arange
from cupy._core.dispatch.arguments import is_array as _is_array
from cupy._core.dispatch.arguments import need
from cupy._core.joining import atleast_1d as _atleast_1d
from cupy._core.learned import eye as _eye
from cupy._core.manipulation import moveaxis as _moveaxis
from cupy._core.reductions import REDUCTIONS as _REDUCTIONS
from cupy.polynomial import polyutils as _polyutils


def polyvander(x: Any, deg: int) -> Any:
    """Return the powers of each point, from 0 to ``deg``, along a new last axis."""
    try:
        degree = operator.index(deg)
    except TypeError as error:
        raise TypeError(f"deg must be an integer, received {deg}") from error
    if degree < 0:
        raise ValueError("degree must be non-negative")
    points = need(x, "x")
    points = points if points.ndim else points.ravel()
    kind = np.float64 if points.dtype.kind in "biu" else points.dtype
    powers = _arange(degree + 1, dtype=kind)
    return _moveaxis(points ** powers.reshape((-1,) + (1,) * points.ndim), 0, -1)


def polycompanion(c: Any) -> Any:
    """Return the companion matrix; its eigenvalues are the roots."""
    (series,) = _polyutils.as_series([need(c, "c")])
    degree = series.size - 1
    if degree == 0:
        raise ValueError("Series must have maximum degree of at least 1.")
    matrix = _eye(degree, k=-1, dtype=series.dtype)
    matrix[:, -1] -= series[:-1] / series[-1]
    return matrix


def _series(c: Any, x: Any, tensor: bool) -> tuple[Any, Any]:
    """Return coefficients or roots and points as they are combined; whole numbers become floats."""
    series = _atleast_1d(_convert.asarray(c))
    if series.dtype.kind in "biu":
        series = series.astype(np.float64)
    points = _convert.asarray(x) if isinstance(x, (tuple, list)) else x
    if _is_array(points) and tensor:
        series = series.reshape(series.shape + (1,) * points.ndim)
    return series, points


def polyval(x: Any, c: Any, tensor: bool = True) -> Any:
    """Evaluate a series at points, by Horner's rule."""
    series, points = _series(c, x, tensor)
    total = series[-1] + points * 0
    for index in range(2, len(series) + 1):
        total = series[-index] + total * points
    return total


def polyvalfromroots(x: Any, r: Any, tensor: bool = True) -> Any:
    """Evaluate a polynomial that its roots give."""
    roots, points = _series(r, x, tensor)
    if not tensor and _is_array(points) and points.ndim >= roots.ndim:
        raise ValueError("x.ndim must be < r.ndim when tensor == False")
    return _REDUCTIONS["prod"](points - roots, axis=0)
