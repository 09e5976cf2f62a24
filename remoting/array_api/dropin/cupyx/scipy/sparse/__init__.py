"""Sparse matrices and arrays on a device; the server's CuPy computes with them.

On an emulated GPU SciPy computes, where its server has that.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from cupy._door import absent as _absent

from cupyx.scipy.sparse._base import SparseBase as _SparseBase
from cupyx.scipy.sparse._base import issparse as issparse
from cupyx.scipy.sparse._base import isspmatrix as isspmatrix
from cupyx.scipy.sparse._base import sparray as sparray
from cupyx.scipy.sparse._base import spmatrix as spmatrix
from cupyx.scipy.sparse._construct import block_array as block_array
from cupyx.scipy.sparse._construct import block_diag as block_diag
from cupyx.scipy.sparse._construct import bmat as bmat
from cupyx.scipy.sparse._construct import diags as diags
from cupyx.scipy.sparse._construct import diags_array as diags_array
from cupyx.scipy.sparse._construct import eye as eye
from cupyx.scipy.sparse._construct import eye_array as eye_array
from cupyx.scipy.sparse._construct import find as find
from cupyx.scipy.sparse._construct import hstack as hstack
from cupyx.scipy.sparse._construct import identity as identity
from cupyx.scipy.sparse._construct import kron as kron
from cupyx.scipy.sparse._construct import kronsum as kronsum
from cupyx.scipy.sparse._construct import matrix_transpose as matrix_transpose
from cupyx.scipy.sparse._construct import permute_dims as permute_dims
from cupyx.scipy.sparse._construct import rand as rand
from cupyx.scipy.sparse._construct import random as random
from cupyx.scipy.sparse._construct import random_array as random_array
from cupyx.scipy.sparse._construct import spdiags as spdiags
from cupyx.scipy.sparse._construct import swapaxes as swapaxes
from cupyx.scipy.sparse._construct import tril as tril
from cupyx.scipy.sparse._construct import triu as triu
from cupyx.scipy.sparse._construct import vstack as vstack
from cupyx.scipy.sparse._formats import coo_array as coo_array
from cupyx.scipy.sparse._formats import coo_matrix as coo_matrix
from cupyx.scipy.sparse._formats import csc_array as csc_array
from cupyx.scipy.sparse._formats import csc_matrix as csc_matrix
from cupyx.scipy.sparse._formats import csr_array as csr_array
from cupyx.scipy.sparse._formats import csr_matrix as csr_matrix
from cupyx.scipy.sparse._formats import dia_array as dia_array
from cupyx.scipy.sparse._formats import dia_matrix as dia_matrix
from cupyx.scipy.sparse._formats import get_index_dtype as get_index_dtype
from cupyx.scipy.sparse._formats import isspmatrix_coo as isspmatrix_coo
from cupyx.scipy.sparse._formats import isspmatrix_csc as isspmatrix_csc
from cupyx.scipy.sparse._formats import isspmatrix_csr as isspmatrix_csr
from cupyx.scipy.sparse._formats import isspmatrix_dia as isspmatrix_dia
from cupyx.scipy.sparse._formats import safely_cast_index_arrays as safely_cast_index_arrays

try:
    _scipy: _Any = _import_module("scipy.sparse")
    SparseWarning: _Any = _scipy.SparseWarning
    SparseEfficiencyWarning: _Any = _scipy.SparseEfficiencyWarning
except ImportError:
    SparseWarning = type("SparseWarning", (Warning,), {"__module__": __name__})
    SparseEfficiencyWarning = type(
        "SparseEfficiencyWarning", (SparseWarning,), {"__module__": __name__}
    )

linalg = _import_module(f"{__name__}.linalg")  # which needs what is above

_spbase = _SparseBase  # as CuPy names it, for programs that ask what is sparse

__getattr__ = _absent.lookup(__name__)
