"""Sparse matrices and arrays on a device; the server's CuPy computes with them.

On an emulated GPU SciPy computes, where its server has that.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from cupy._door import absent as _absent

from cupyx import _objects
from cupyx.scipy.sparse import _matrices
from cupyx.scipy.sparse._matrices import SparseBase as _SparseBase
from cupyx.scipy.sparse._matrices import issparse as issparse
from cupyx.scipy.sparse._matrices import isspmatrix as isspmatrix
from cupyx.scipy.sparse._matrices import isspmatrix_coo as isspmatrix_coo
from cupyx.scipy.sparse._matrices import isspmatrix_csc as isspmatrix_csc
from cupyx.scipy.sparse._matrices import isspmatrix_csr as isspmatrix_csr
from cupyx.scipy.sparse._matrices import isspmatrix_dia as isspmatrix_dia
from cupyx.scipy.sparse._matrices import matrix_transpose as matrix_transpose
from cupyx.scipy.sparse._matrices import sparray as sparray
from cupyx.scipy.sparse._matrices import spmatrix as spmatrix

try:
    _scipy: _Any = _import_module("scipy.sparse")
    SparseWarning: _Any = _scipy.SparseWarning
    SparseEfficiencyWarning: _Any = _scipy.SparseEfficiencyWarning
except ImportError:
    SparseWarning = type("SparseWarning", (Warning,), {"__module__": __name__})
    SparseEfficiencyWarning = type(
        "SparseEfficiencyWarning", (SparseWarning,), {"__module__": __name__}
    )


class SuperLU(_objects.RemoteObject):
    """A factorisation on the server; see `cupyx.scipy.sparse.linalg.splu`."""

    shape: tuple[int, ...]

    def _look(self, shape: _Any) -> None:  # type: ignore[override]
        self.shape = tuple(shape)


_SuperLU = SuperLU
globals().update(_matrices.CLASSES)
_objects.fill(globals(), "sparse")
del SuperLU  # it is in `linalg`

linalg = _import_module(f"{__name__}.linalg")  # which needs what is above

_spbase = _SparseBase  # as CuPy names it, for programs that ask what is sparse

__getattr__ = _absent.lookup(__name__)
