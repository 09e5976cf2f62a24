"""Linear systems of matrices that a Cholesky factor solves."""

from __future__ import annotations

from typing import Any

import cupy as _cupy
from cupy._door import absent as _absent

from cupyx.linalg import sparse as sparse


def invh(a: Any) -> Any:
    """Return the inverse of a Hermitian positive-definite matrix.

    Raises:
        TypeError: it is no array of the device.
        numpy.linalg.LinAlgError: it is not square; or it is not positive definite, and
            `cupyx.errstate(linalg="raise")` asks for an error.
    """
    if not isinstance(a, _cupy.ndarray):
        raise TypeError(f"a matrix is an array of the device, and this is a {type(a).__name__}")
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise _cupy.linalg.LinAlgError(f"a square matrix is needed, and the shape is {a.shape}")
    factor = _cupy.linalg.cholesky(a)
    identity = _cupy.eye(a.shape[0], dtype=factor.dtype)
    return _cupy.ascontiguousarray(cho_solve((factor, True), identity, check_finite=False))


def cho_solve(
    c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """Return the solution of ``A x = b`` by the Cholesky factor of A.

    Args:
        c_and_lower: the factor, of any number of matrices, and whether it is the lower one.
        b: right-hand sides.
        overwrite_b: has no effect: `b` is never changed.
        check_finite: whether infinite numbers are refused, which waits for the device.

    Raises:
        ValueError: a number is infinite or none.
    """
    del overwrite_b
    factor, lower = c_and_lower
    if check_finite:
        part = _cupy.tril(factor) if lower else _cupy.triu(factor)
        if not (_cupy.isfinite(part).all() & _cupy.isfinite(b).all()):
            raise ValueError("Input array contains NaN or infinity.")
    from cupyx.scipy import linalg

    solve: Any = linalg.__dict__["solve_triangular"]
    # Nobody reads the other triangle, so anything may be there.
    rest = {"lower": lower, "check_finite": False}
    first, second = (0, 2) if lower else (2, 0)
    half = solve(factor, b, trans=first, **rest)
    return solve(factor, half, trans=second, **rest)


__getattr__ = _absent.lookup(__name__)
