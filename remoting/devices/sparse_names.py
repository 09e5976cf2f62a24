"""Names of clients' operations on sparse matrices: methods, operators, parts and functions.

Each is an operation of its own, so that nothing of the worker's library is reached by another name.
"""

_METHODS = """
arcsin arcsinh arctan arctanh argmax argmin asfptype astype ceil conj copy count_nonzero deg2rad
diagonal eliminate_zeros expm1 floor getcol getnnz getrow log1p max maximum mean min minimum
multiply nonzero power prune rad2deg reshape rint setdiag sign sin sinh sort_indices sorted_indices
sqrt sum sum_duplicates tan tanh toarray tocoo tocsc tocsr todia transpose trunc
"""

_OPERATORS = "abs add eq ge getitem gt le lt matmul mul ne neg pow sub truediv"

_FUNCTIONS = """
block_array block_diag bmat diags diags_array eye eye_array find hstack identity kron kronsum rand
random random_array spdiags tril triu vstack
"""

_LINALG = """
bicgstab cg cgs eigsh gmres lobpcg lsmr lsqr matrix_power minres norm spilu splu spsolve
spsolve_triangular svds
"""

METHODS = tuple(_METHODS.split())
"""Methods of sparse matrices, called with the client's arguments."""

OPERATORS = tuple(_OPERATORS.split())
"""Operators of Python, where one operand at least is sparse."""

PARTS = ("col", "data", "imag", "indices", "indptr", "offsets", "real", "row")
"""Attributes: arrays, or matrices of the real and imaginary parts."""

FLAGS = ("has_canonical_format", "has_sorted_indices")
FORMATS = ("coo", "csc", "csr", "dia")
FUNCTIONS = tuple(_FUNCTIONS.split())
LINALG = tuple(_LINALG.split())
CSGRAPH = ("connected_components",)
