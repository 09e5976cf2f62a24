"""BLAS of vectors by the names of `cupy.cublas`, on the operations of arrays."""

from typing import Any

import numpy as np

import cupy
from cupy._door.absent import lookup


def _check(*arrays: Any, kinds: str = "fdFD") -> None:
    """Refuse other dtypes."""
    if arrays[0].dtype.char not in kinds:
        raise TypeError("invalid dtype: use dotu, dotc, geru or gerc for complex numbers")


def _vectors(*arrays: Any, kinds: str = "fdFD") -> None:
    for each in arrays:
        if each.ndim != 1:
            raise ValueError(f"x must be a 1D array (actual: {each.ndim})")
        if each.size != arrays[0].size:
            raise ValueError(f"sizes differ (actual: {arrays[0].size} and {each.size})")
        if each.dtype != arrays[0].dtype:
            raise TypeError(f"dtypes differ (actual: {arrays[0].dtype} and {each.dtype})")
    _check(*arrays, kinds=kinds)


def _number(value: Any, like: Any) -> Any:
    """Return a factor in the dtype of an array; it may be an array of a device or the host."""
    if isinstance(value, cupy.ndarray):
        return value.astype(like.dtype, copy=False)
    return np.asarray(value, like.dtype)[()]


def _put(result: Any, out: Any) -> Any:
    """Return a result, in ``out`` where there is one: an array of a device or of the host."""
    if out is None:
        return result
    if not isinstance(out, (cupy.ndarray, np.ndarray)):
        raise TypeError("out must be either cupy or numpy ndarray")
    host = isinstance(out, np.ndarray)
    out[...] = result.get() if host else result
    return out  # type: ignore[reportUnknownVariableType]


def _magnitudes(x: Any) -> Any:
    _vectors(x)
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def asum(x: Any, out: Any = None) -> Any:
    """Return the sum of the magnitudes."""
    return _put(_magnitudes(x).sum(), out)


def nrm2(x: Any, out: Any = None) -> Any:
    """Return the Euclidean norm of a vector."""
    _vectors(x)
    return _put(cupy.linalg.norm(x), out)


def axpy(a: Any, x: Any, y: Any) -> None:
    """Add ``a * x`` to ``y``."""
    _vectors(x, y)
    y += _number(a, x) * x


def scal(a: Any, x: Any) -> None:
    """Multiply ``x`` by ``a``."""
    _vectors(x)
    x *= _number(a, x)


def _product(kinds: str, conjugated: bool) -> Any:
    def function(x: Any, y: Any, out: Any = None) -> Any:
        _vectors(x, y, kinds=kinds)
        return _put((x.conj() if conjugated else x).dot(y), out)

    function.__doc__ = "Return the product of two vectors; `dotc` conjugates the first."
    return function


dot, dotu, dotc = _product("fd", False), _product("fdFD", False), _product("fdFD", True)


__getattr__ = lookup(__name__)
