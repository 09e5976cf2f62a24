"""Linear algebra beyond `cupy.linalg`."""

from cupyx import _extensions

_extensions.fill(
    globals(),
    """
    block_diag circulant companion convolution_matrix dft fiedler fiedler_companion hadamard
    hankel helmert hilbert khatri_rao kron leslie lu_solve solve_triangular toeplitz
    """,
    """
    bandwidth expm lu lu_factor
    """,
)
