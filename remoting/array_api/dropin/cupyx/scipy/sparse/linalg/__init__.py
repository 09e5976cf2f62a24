"""Linear algebra of sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as _np
from cupy._door import absent as _absent

from cupyx.scipy.sparse import _wire
from cupyx.scipy.sparse._base import is_dense as _is_dense
from cupyx.scipy.sparse._base import issparse as _issparse
from cupyx.scipy.sparse.linalg._iterative import bicgstab as bicgstab
from cupyx.scipy.sparse.linalg._iterative import cg as cg
from cupyx.scipy.sparse.linalg._iterative import cgs as cgs
from cupyx.scipy.sparse.linalg._iterative import dense_of as _dense_of
from cupyx.scipy.sparse.linalg._iterative import gmres as gmres
from cupyx.scipy.sparse.linalg._iterative import minres as _minres
from cupyx.scipy.sparse.linalg._operators import LinearOperator as LinearOperator
from cupyx.scipy.sparse.linalg._operators import aslinearoperator as aslinearoperator

SuperLU = _wire.Factors


def _matrix(A: Any) -> Any:
    if isinstance(A, LinearOperator):
        return _dense_of(A)
    if not (_issparse(A) or _is_dense(A)):
        raise TypeError(f"A must be a sparse matrix or an array, not {type(A).__name__}")
    return A


def _square(A: Any) -> Any:
    made = _matrix(A)
    if made.ndim != 2 or made.shape[0] != made.shape[1]:
        raise ValueError(f"A must be a square matrix (A.shape: {A.shape})")
    return made


def _given(**kwargs: Any) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if value is not None}


def _check_system(A: Any, b: Any) -> None:
    """Raise unless A and b form a sparse system with one right side or several."""
    if not _issparse(A):
        raise TypeError("A must be cupyx.scipy.sparse.spmatrix")
    if not _is_dense(b):
        raise TypeError("b must be cupy.ndarray")
    _square(A)
    if b.ndim not in (1, 2):
        raise ValueError(f"b must be 1D or 2D array (b.shape: {b.shape})")
    if A.shape[0] != b.shape[0]:
        raise ValueError(f"matrix dimension mismatch (A.shape: {A.shape}, b.shape: {b.shape})")


def spsolve(A: Any, b: Any) -> Any:
    """Solve a sparse system of equations."""
    _check_system(A, b)
    return _wire.ask("linalg.spsolve", A, b)


def spsolve_triangular(
    A: Any,
    b: Any,
    lower: bool = True,
    overwrite_A: bool = False,
    overwrite_b: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """Solve a triangular sparse system of equations."""
    _check_system(A, b)
    if A.dtype.char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {A.dtype})")
    return _wire.ask(
        "linalg.spsolve_triangular", A, b, bool(lower), unit_diagonal=bool(unit_diagonal)
    )


def _factors(name: str, A: Any, options: dict[str, Any]) -> Any:
    if not _issparse(A):
        raise TypeError("A must be cupyx.scipy.sparse.spmatrix")
    _square(A)
    if A.dtype.char not in "fdFD":
        raise TypeError(f"Invalid dtype (actual: {A.dtype})")
    return _wire.ask(f"linalg.{name}", A, **_given(**options))


def splu(A: Any, **options: Any) -> Any:
    """Return the factorisation of a matrix, which solves systems."""
    return _factors("splu", A, options)


def spilu(A: Any, **options: Any) -> Any:
    """Return an incomplete factorisation of a matrix, which solves systems."""
    return _factors("spilu", A, options)


def factorized(A: Any) -> Any:
    """Return a function that solves systems with a matrix."""
    return splu(A).solve


def lsqr(A: Any, b: Any) -> Any:
    """Solve a system of equations; the first of the ten results is the solution."""
    if not _is_dense(b) or b.ndim != 1 or b.shape[0] != _matrix(A).shape[0]:
        raise ValueError("b must be a vector with as many elements as A has rows")
    return _wire.ask("linalg.lsqr", A, b)


def lsmr(A: Any, b: Any, x0: Any = None, **options: Any) -> Any:
    """Solve a least-squares problem."""
    return _wire.ask("linalg.lsmr", _matrix(A), b, **_given(x0=x0, **options))


def minres(A: Any, b: Any, x0: Any = None, **options: Any) -> Any:
    """Solve a symmetric system of equations."""
    if options.pop("check", False):
        raise NotImplementedError("minres does not check a matrix here: pass one that is symmetric")
    callback = options.pop("callback", None)
    if callback is not None:
        rest: dict[str, Any] = {"M": None, "shift": 0.0, "tol": 1e-5, "maxiter": None, **options}
        return _minres(A, b, x0, callback, **rest)
    matrix = _square(A)
    if options.get("M") is not None:
        options["M"] = _matrix(options["M"])
    return _wire.ask("linalg.minres", matrix, b, **_given(x0=x0, **options))


def eigsh(
    a: Any,
    k: int = 6,
    *,
    which: str = "LM",
    v0: Any = None,
    ncv: Any = None,
    maxiter: Any = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
) -> Any:
    """Return some eigenvalues and eigenvectors of a symmetric matrix."""
    a = _matrix(a)
    n = a.shape[0]
    if a.ndim != 2 or n != a.shape[1]:
        raise ValueError(f"expected square matrix (shape: {a.shape})")
    if a.dtype.char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {a.dtype})")
    if k <= 0:
        raise ValueError(f"k must be greater than 0 (actual: {k})")
    if k >= n:
        raise ValueError(f"k must be smaller than n (actual: {k})")
    if which not in ("LM", "LA", "SA"):
        raise ValueError(f"which must be 'LM','LA'or'SA' (actual: {which})")
    more = _given(v0=v0, ncv=ncv, maxiter=maxiter)
    return _wire.ask(
        "linalg.eigsh", a, k, which=which, tol=tol, return_eigenvectors=return_eigenvectors, **more
    )


def svds(
    a: Any,
    k: int = 6,
    *,
    ncv: Any = None,
    tol: float = 0,
    which: str = "LM",
    maxiter: Any = None,
    return_singular_vectors: bool = True,
) -> Any:
    """Return some singular values and vectors of a matrix."""
    a = _matrix(a)
    if a.ndim != 2:
        raise ValueError(f"expected 2D (shape: {a.shape})")
    if a.dtype.char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {a.dtype})")
    if not 0 < k < min(a.shape):
        raise ValueError(f"k must be between 0 and min(m, n) (actual: {k})")
    more = _given(ncv=ncv, maxiter=maxiter)
    more["return_singular_vectors"] = return_singular_vectors
    return _wire.ask("linalg.svds", a, k, which=which, tol=tol, **more)


def lobpcg(A: Any, X: Any, B: Any = None, M: Any = None, Y: Any = None, **options: Any) -> Any:
    """Return some eigenvalues and eigenvectors, by blocks of vectors."""
    made, mass, before = (each if each is None else _matrix(each) for each in (A, B, M))
    return _wire.ask("linalg.lobpcg", made, X, **_given(B=mass, M=before, Y=Y, **options))


def matrix_power(A: Any, power: Any) -> Any:
    """Return the power of a square sparse matrix."""
    if not _issparse(A):
        raise TypeError("A must be a sparse matrix")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise TypeError(f"a power is of a square matrix, and not of one of shape {A.shape}")
    if not isinstance(power, (int, _np.integer)) or power < 0:
        raise ValueError("the power is an integer >= 0")
    return _wire.ask("linalg.matrix_power", A, int(power))


def norm(x: Any, ord: Any = None, axis: Any = None) -> Any:  # noqa: A002
    """Return the norm of a sparse matrix."""
    if not _issparse(x):
        raise TypeError("input is not sparse. use cupy.linalg.norm")
    return _wire.ask("linalg.norm", x, ord, axis)


__getattr__ = _absent.lookup(__name__)
