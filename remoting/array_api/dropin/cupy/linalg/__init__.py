"""Linear algebra. Shapes follow from the arguments, except for singular and structured results."""

from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError as LinAlgError

from cupy._core import convert as _convert
from cupy._core.dispatch import arguments as _arguments
from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import need
from cupy._core.products import cross as _cross
from cupy._core.products import matmul as matmul
from cupy._core.reductions import reduced_shape as _reduced_shape
from cupy._door import absent as _absent
from cupy._door.meta import fresh


class EighResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    U: Any
    S: Any
    Vh: Any


def _kind(*arrays: Any) -> np.dtype[Any]:
    for array in arrays:
        if array.dtype.kind == "e" or array.dtype.char == "e":
            raise TypeError("array type float16 is unsupported in linalg")
    kinds = [np.dtype(np.float64) if a.dtype.kind in "biu" else a.dtype for a in arrays]
    return np.result_type(*kinds)


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(kind.char.lower())


def _square(a: Any) -> None:
    if need(a).ndim < 2:
        raise LinAlgError(
            f"{a.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if a.shape[-1] != a.shape[-2]:
        raise LinAlgError("Last 2 dimensions of the array must be square")


def _complex(a: Any) -> np.dtype[Any]:
    """Return the type of a matrix's eigenvalues, which CuPy computes only if there are any."""
    _square(a)
    return np.dtype(_kind(a).char.upper()) if a.size else _kind(a)


def cholesky(a: Any) -> Any:
    """Return the lower Cholesky factor."""
    _square(a)
    return make.forward("linalg.cholesky", (a,), {}, fresh(_kind(a), a.shape))


def inv(a: Any) -> Any:
    """Return the inverse."""
    _square(a)
    return make.forward("linalg.inv", (a,), {}, fresh(_kind(a), a.shape))


def det(a: Any) -> Any:
    """Return the determinant."""
    _square(a)
    return make.forward("linalg.det", (a,), {}, fresh(_kind(a), a.shape[:-2]))


def slogdet(a: Any) -> Any:
    """Return the sign and the logarithm of the determinant."""
    _square(a)
    kind = _kind(a)
    metas = (fresh(kind, a.shape[:-2]), fresh(_real(kind), a.shape[:-2]))
    return SlogdetResult(*make.forward_many("linalg.slogdet", (a,), {}, metas))


def eigh(a: Any, UPLO: str = "L") -> Any:
    """Return eigenvalues and eigenvectors of a Hermitian matrix."""
    _square(a)
    if UPLO not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    kind = a.dtype if a.dtype.char == "e" else _kind(a)
    metas = (fresh(_real(kind), a.shape[:-1]), fresh(kind, a.shape))
    return EighResult(*make.forward_many("linalg.eigh", (a, UPLO), {}, metas))


def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Return eigenvalues of a Hermitian matrix."""
    _square(a)
    if UPLO not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return make.forward("linalg.eigvalsh", (a, UPLO), {}, fresh(_real(_kind(a)), a.shape[:-1]))


def eig(a: Any) -> Any:
    """Return eigenvalues and eigenvectors of any square matrix."""
    metas = (fresh(_complex(a), a.shape[:-1]), fresh(_complex(a), a.shape))
    return EigResult(*make.forward_many("linalg.eig", (a,), {}, metas))


def eigvals(a: Any) -> Any:
    """Return eigenvalues of any square matrix."""
    return make.forward("linalg.eigvals", (a,), {}, fresh(_complex(a), a.shape[:-1]))


def qr(a: Any, mode: str = "reduced") -> Any:
    """Return the QR decomposition."""
    if need(a).ndim < 2:
        raise LinAlgError(
            f"{a.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ValueError(f"Unrecognized mode '{mode}'")
    kind = _kind(a)
    rows, columns = a.shape[-2:]
    least, lead = min(rows, columns), a.shape[:-2]
    if mode == "raw":
        return tuple(make.ask("linalg.qr", a, mode))
    if mode == "r":
        return make.forward("linalg.qr", (a, mode), {}, fresh(kind, (*lead, least, columns)))
    width = rows if mode == "complete" else least
    metas = (fresh(kind, (*lead, rows, width)), fresh(kind, (*lead, width, columns)))
    return QRResult(*make.forward_many("linalg.qr", (a, mode), {}, metas))


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return the singular value decomposition."""
    if need(a).ndim < 2:
        raise LinAlgError(
            f"{a.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    kind = _kind(a)
    rows, columns = a.shape[-2:]
    least, lead = min(rows, columns), a.shape[:-2]
    values = fresh(_real(kind), (*lead, least))
    if not compute_uv:
        return make.forward("linalg.svd", (a, full_matrices, False), {}, values)
    u = fresh(kind, (*lead, rows, rows if full_matrices else least))
    v = fresh(kind, (*lead, columns if full_matrices else least, columns))
    return SVDResult(*make.forward_many("linalg.svd", (a, full_matrices, True), {}, (u, values, v)))


def solve(a: Any, b: Any) -> Any:
    """Solve linear equations."""
    _square(a)
    need(b, "b")
    kind = _kind(a, b)
    if (b.ndim == 1 and b.shape[0] != a.shape[-1]) or (b.ndim > 1 and b.shape[-2] != a.shape[-1]):
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) or (..., M,)")
    if b.ndim <= 2 and a.ndim == 2:
        return make.forward("linalg.solve", (a, b), {}, fresh(kind, b.shape))
    return make.lazy("linalg.solve", (a, b), {})


def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Return the least-squares solution, residuals, rank and singular values."""
    return tuple(make.ask("linalg.lstsq", need(a), need(b, "b"), rcond))


def pinv(a: Any, rcond: Any = 1e-15) -> Any:
    """Return the pseudo-inverse."""
    need(a)
    shape = (*a.shape[:-2], a.shape[-1], a.shape[-2])
    kind = a.dtype if 0 in a.shape[-2:] else _kind(a)
    return make.forward("linalg.pinv", (a, rcond), {}, fresh(kind, shape))


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    """Return a norm."""
    need(x, "x")
    if axis is None and ord is not None and x.ndim > 2:
        raise ValueError("Improper number of dimensions to norm.")
    if axis is not None:
        axis = _arguments.plain(axis)
        axes = _arguments.axes_of(axis, x.ndim)
        if len(axes) > 2:
            raise ValueError("Improper number of dimensions to norm.")
    if ord is None or (not isinstance(ord, str) and axis is not None):
        shape = _reduced_shape(x._gp_meta, axis, keepdims)
        kind = np.dtype(np.float64) if x.dtype.kind in "biu" else _real(x.dtype)
        return make.forward("linalg.norm", (x, ord, axis, keepdims), {}, fresh(kind, shape))
    return make.lazy("linalg.norm", (x, ord, axis, keepdims), {})


def cond(x: Any, p: Any = None) -> Any:
    """Return the condition number."""
    return make.lazy("linalg.cond", (_convert.asarray(x), p), {})


def matrix_rank(M: Any, tol: Any = None) -> Any:
    """Return the rank."""
    return make.lazy("linalg.matrix_rank", (need(M), tol), {})


def matrix_power(M: Any, n: Any) -> Any:
    """Return a power of a square matrix."""
    _square(M)
    if not isinstance(n, int):
        raise TypeError("exponent must be an integer")
    kind = M.dtype if n >= 0 else _kind(M)
    return make.forward("linalg.matrix_power", (M, n), {}, fresh(kind, M.shape))


def tensorinv(a: Any, ind: int = 2) -> Any:
    """Return the inverse of a tensor."""
    if ind <= 0:
        raise ValueError("Invalid ind argument")
    need(a)
    return make.forward(
        "linalg.tensorinv", (a, ind), {}, fresh(_kind(a), a.shape[ind:] + a.shape[:ind])
    )


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Solve a tensor equation."""
    given = axes if axes is None else _arguments.integers(axes)
    return make.lazy("linalg.tensorsolve", (need(a), need(b), given), {})


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the vector product of 3-vectors."""
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError("Both input arrays must be (arrays of) 3-dimensional vectors")
    return _cross(x1, x2, axis=axis)


def matrix_transpose(a: Any) -> Any:
    """Return the transpose of the last two axes."""
    if a.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {a.ndim}")
    return a.swapaxes(-1, -2)


__getattr__ = _absent.lookup(__name__)
