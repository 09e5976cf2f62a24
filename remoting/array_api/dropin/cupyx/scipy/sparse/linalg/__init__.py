"""Linear algebra of sparse matrices; the server's library computes it whole, by name.

A `LinearOperator` is a program's own, so it becomes a matrix for that, or its solver runs here.
"""

from __future__ import annotations

from typing import Any

from cupy._door import absent as _absent

from cupyx import _objects
from cupyx.scipy import sparse as _sparse
from cupyx.scipy.sparse.linalg import _iterative
from cupyx.scipy.sparse.linalg._iterative import cg as cg
from cupyx.scipy.sparse.linalg._iterative import gmres as gmres
from cupyx.scipy.sparse.linalg._operators import LinearOperator as LinearOperator
from cupyx.scipy.sparse.linalg._operators import aslinearoperator as aslinearoperator

SuperLU = vars(_sparse)["_SuperLU"]
for _name in _objects.DECLARED.FUNCTIONS["sparse"]:
    if _name.startswith("linalg.") and _name[7:] not in globals():
        globals()[_name[7:]] = _iterative.with_matrices(_objects.function("sparse", _name))


def factorized(A: object) -> Any:
    """Return a function that solves systems with a matrix."""
    return globals()["splu"](A).solve


__getattr__ = _absent.lookup(__name__)
