"""Functions of BLAS by their names in `cupy.cublas`, on the operations of arrays."""

from typing import Any

import numpy as np

import cupy
from cupy._door.absent import lookup


def _need(condition: bool) -> None:
    if not condition:
        raise AssertionError("arrays of other shapes or dtypes than this function of BLAS takes")


def _check(*arrays: Any, kinds: str = "fdFD") -> None:
    """Refuse other dtypes, and arrays of several."""
    if arrays[0].dtype.char not in kinds:
        raise TypeError("invalid dtype: use dotu, dotc, geru or gerc for complex numbers")
    _need(all(each.dtype == arrays[0].dtype for each in arrays))


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


def _plus(result: Any, beta: Any, out: Any) -> Any:
    """Add ``beta * out``, which BLAS does not read where beta is 0."""
    factor = _number(beta, result)
    unread = not isinstance(factor, cupy.ndarray) and factor == 0
    return result if unread else result + factor * out


def _op(trans: Any, a: Any) -> Any:
    if trans not in ("N", "T", "H", 0, 1, 2):
        raise TypeError(f"invalid trans (actual: {trans})")
    return a if trans in ("N", 0) else a.T if trans in ("T", 1) else a.T.conj()


def _magnitudes(x: Any) -> Any:
    _vectors(x)
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def _place(name: str) -> Any:
    def function(x: Any, out: Any = None) -> Any:
        return _put((getattr(_magnitudes(x), name)() + 1).astype(np.int32), out)

    function.__doc__ = f"Return the index, from 1, of the magnitudes' {name}."
    return function


iamax, iamin = _place("argmax"), _place("argmin")


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


def gemv(transa: Any, alpha: Any, a: Any, x: Any, beta: Any, y: Any) -> None:
    """Set ``y`` to ``alpha * op(a) @ x + beta * y``."""
    _check(a, x, y)
    y[...] = _plus(_number(alpha, a) * (_op(transa, a) @ x), beta, y)


def geru(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """Add ``alpha * x @ y.T`` to ``a``."""
    _check(a, x, y)
    a += _number(alpha, a) * x[:, None] * y


def gerc(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """Add ``alpha * x @ y.T.conj()`` to ``a``."""
    geru(alpha, x, y.conj(), a)


def ger(alpha: Any, x: Any, y: Any, a: Any) -> None:
    """Add ``alpha * x @ y.T`` to ``a``, of real numbers."""
    _check(a, kinds="fd")
    geru(alpha, x, y, a)


def sbmv(k: int, alpha: Any, a: Any, x: Any, beta: Any, y: Any, lower: bool = False) -> Any:
    """Set ``y`` to ``alpha * A @ x + beta * y``; row by row ``a`` has the diagonals of ``A``."""
    _check(a, x, y, kinds="fd")
    n = a.shape[1]
    made = a[0 if lower else k] * x
    for at in range(1, min(k, n - 1) + 1):
        diagonal = a[at, : n - at] if lower else a[k - at, at:]
        made[: n - at] += diagonal * x[at:]
        made[at:] += diagonal * x[: n - at]
    y[...] = _plus(_number(alpha, a) * made, beta, y)
    return y


def _matrix(result: Any, beta: Any, out: Any) -> Any:
    if out is None:
        return cupy.asfortranarray(result)
    _check(result, out)
    _need(out.shape == result.shape)
    return _put(_plus(result, beta, out), out)


def gemm(
    transa: Any, transb: Any, a: Any, b: Any, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0
) -> Any:
    """Return ``alpha * op(a) @ op(b) + beta * out``."""
    _check(a, b)
    _need(a.ndim == b.ndim == 2)
    return _matrix(_number(alpha, a) * (_op(transa, a) @ _op(transb, b)), beta, out)


def geam(transa: Any, transb: Any, alpha: Any, a: Any, beta: Any, b: Any, out: Any = None) -> Any:
    """Return ``alpha * op(a) + beta * op(b)``."""
    _check(a, b)
    made = _number(alpha, a) * _op(transa, a) + _number(beta, a) * _op(transb, b)
    return _matrix(made, 0, out)


def dgmm(side: Any, a: Any, x: Any, out: Any = None, incx: int = 1) -> Any:
    """Return ``diag(x) @ a`` for side L, ``a @ diag(x)`` for R; of x each ``incx``-th counts."""
    _check(a, x)
    if side not in ("L", "R", 0, 1):
        raise ValueError(f"invalid side (actual: {side})")
    left = side in ("L", 0)
    count, step = a.shape[0 if left else 1], abs(incx)
    _need(x.size >= (count - 1) * step + 1)
    factors = x.ravel()[: (count - 1) * step + 1 : step or 1][:: -1 if incx < 0 else 1]
    made = (factors[:, None] if left else factors) * a
    return made if out is None else _matrix(made, 0, out)


def syrk(
    trans: Any, a: Any, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0, lower: bool = False
) -> Any:
    """Return one triangle of ``alpha * op(a) @ op(a).T + beta * out``; the other stays."""
    _check(a)
    source = a if trans in ("N", 0) else _op(trans, a)
    made = _number(alpha, a) * (source @ source.T)
    if out is None:
        return cupy.asfortranarray(cupy.tril(made) if lower else cupy.triu(made))
    at = cupy.tri(*made.shape, dtype=bool)
    return _put(cupy.where(at if lower else at.T, _plus(made, beta, out), out), out)


def batched_gesv(a: Any, b: Any) -> Any:
    """Solve linear equations, as many as there are matrices."""
    vectors = b.ndim == a.ndim - 1
    made = cupy.linalg.solve(a, b[..., None] if vectors else b)
    return made[..., 0] if vectors else made


__getattr__ = lookup(__name__)
