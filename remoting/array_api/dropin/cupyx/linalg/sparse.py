"""Sparse linear systems of `cupyx.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cupy._door import absent as _absent


def lschol(A: object, b: Any) -> Any:
    """Return the solution of ``A x = b`` for a sparse, symmetric, positive-definite matrix.

    CuPy factors by Cholesky; this is the general solver, which gives the same numbers.

    Args:
        A: real matrix of (N, N), sparse or dense.
        b: N numbers.

    Raises:
        ValueError: the shapes do not fit.
    """
    from cupyx.scipy.sparse import _matrices, linalg

    if b.ndim != 1:
        raise ValueError("b must be 1-d array whose size is same as A")
    matrix = _matrices.CLASSES["csr_matrix"](A)
    kind = np.promote_types(matrix.dtype, "f")
    return linalg.spsolve(matrix.astype(kind, copy=False), b).astype(np.float64)


__getattr__ = _absent.lookup(__name__)
