"""Linear algebra, which the worker describes: a row for each function."""

# ruff: noqa: A002, D103

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numpy.linalg import LinAlgError as LinAlgError

from cupy._core import learned as _learned
from cupy._core import manipulation as _manipulation
from cupy._core.dispatch import learning as _learning
from cupy._core.dispatch.learning import Array, Asked, Like
from cupy._core.products import matmul as matmul
from cupy._door import absent as _absent

if TYPE_CHECKING:
    from cupy._core.array import ndarray


class EighResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    eigenvalues: ndarray
    eigenvectors: ndarray


class EigResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    eigenvalues: ndarray
    eigenvectors: ndarray


class QRResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    Q: ndarray
    R: ndarray


class SlogdetResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    sign: ndarray
    logabsdet: ndarray


class SVDResult(NamedTuple):
    """Result of a decomposition, by NumPy's names."""

    U: ndarray
    S: ndarray
    Vh: ndarray


def cholesky(a: Array) -> ndarray: ...
def cond(x: Like, p: object = None) -> ndarray: ...
def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> ndarray:
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError("Both input arrays must be (arrays of) 3-dimensional vectors")
    return _learned.cross(x1, x2, axis=axis)


def det(a: Array) -> ndarray: ...
def eig(a: Array) -> EigResult: ...
def eigh(a: Array, UPLO: str = "L") -> EighResult: ...
def eigvals(a: Array) -> ndarray: ...
def eigvalsh(a: Array, UPLO: str = "L") -> ndarray: ...
def inv(a: Array) -> ndarray: ...
def lstsq(a: Array, b: Array, rcond: object = None) -> Asked: ...
def matrix_power(M: Array, n: object) -> ndarray: ...
def matrix_transpose(a: object) -> ndarray:
    return _manipulation.matrix_transpose(a)


def matrix_rank(M: Array, tol: object = None) -> ndarray: ...
def norm(x: Array, ord: object = None, axis: object = None, keepdims: bool = False) -> ndarray: ...
def pinv(a: Array, rcond: object = 1e-15) -> ndarray: ...
def qr(a: Array, mode: str = "reduced") -> QRResult: ...
def slogdet(a: Array) -> SlogdetResult: ...
def solve(a: Array, b: Array) -> ndarray: ...
def svd(a: Array, full_matrices: bool = True, compute_uv: bool = True) -> SVDResult: ...
def tensorinv(a: Array, ind: int = 2) -> ndarray: ...
def tensorsolve(a: Array, b: Array, axes: object = None) -> ndarray: ...


_learning.rows(globals(), "linalg.")
__getattr__ = _absent.lookup(__name__)
