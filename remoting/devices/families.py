"""The families of objects that live in a worker, declared for both ends.

A family has the name of a module in `cupyx.scipy`. It is a table of classes. The text of a class
lists its members. The client makes its classes of it, and the worker calls nothing else. Only plain
data is here, because the client reads this file as a program of any Python from 3.9.

Members
    ``name`` is a method that returns one array, for which nothing waits. ``name?`` waits, and the
    worker describes the result. ``name!`` changes the object. ``+name`` is a method of the class.
    ``.name`` is an attribute, with the same marks; ``.name=`` can be set. The object itself as a
    function is ``call``.

    ``"B(A)"`` declares the class B with the members of A, of which it is a subclass.
"""

from __future__ import annotations

_SHARED = "call .extrapolate?="
_PIECEWISE = f"{_SHARED} .axis? .c= .x antiderivative? derivative? extend! integrate"
_SMOOTH = """
call? antiderivative? derivative? derivatives? get_coeffs? get_knots? get_residual integral
set_smoothing_factor!
"""

_INTERPOLATE = {
    "BarycentricInterpolator": "call add_xi! set_yi! .xi .yi .wi",
    "KroghInterpolator": "call derivative derivatives .c .xi .yi",
    "interp1d": "call? .axis? .bounds_error? .fill_value?= .x .y",
    "PPoly": f"{_PIECEWISE} roots? solve? +from_bernstein_basis +from_spline",
    "BPoly": f"{_PIECEWISE} +from_derivatives +from_power_basis",
    "NdPPoly": f"{_SHARED} .c= .x? antiderivative? derivative? integrate? integrate_1d?",
    "CubicHermiteSpline(PPoly)": "",
    "PchipInterpolator(CubicHermiteSpline)": "",
    "Akima1DInterpolator(CubicHermiteSpline)": "",
    "CubicSpline(CubicHermiteSpline)": "",
    "LinearNDInterpolator": "call .values",
    "CloughTocher2DInterpolator": "call .values",
    "NearestNDInterpolator": "call .values",
    "RBFInterpolator": "call .y",
    "RegularGridInterpolator": "call? .bounds_error? .fill_value?= .values",
    "BSpline": f"""
        {_SHARED} .axis? .c= .k? .t .tck? antiderivative? derivative? integrate +basis_element
        +design_matrix
    """,
    "NdBSpline": f"{_SHARED} .c= .k? .t? +design_matrix",
    "UnivariateSpline": _SMOOTH,
    "InterpolatedUnivariateSpline(UnivariateSpline)": "",
    "LSQUnivariateSpline(UnivariateSpline)": "",
}

_SPATIAL = {
    "Delaunay": "find_simplex? vertex_neighbor_vertices? .neighbors .simplices",
    "KDTree": """
        query? query_ball_point? query_pairs? sparse_distance_matrix? .bounds .boxsize .index
        .maxes .mins .tree
    """,
}

_MATRIX = """
arcsin? arcsinh? arctan? arctanh? astype? ceil? conj? copy? count_nonzero? deg2rad?
diagonal? expm1? floor? log1p? maximum? mean? minimum? multiply? nonzero?
power? rad2deg? reshape? rint? setdiag! sign? sin? sinh? sqrt? sum? tan? tanh? toarray tocoo? tocsc?
tocsr? todia? trace transpose? trunc? .data= .imag? .nnz? .real?
"""
_MERGED = f"""
{_MATRIX} argmax? argmin? eliminate_zeros! max? min? sum_duplicates! .has_canonical_format?=
"""
_COMPRESSED = f"""
{_MERGED} prune! sort_indices! sorted_indices? .has_sorted_indices?= .indices= .indptr=
"""
_OF_MATRICES = "asfptype? getcol? getnnz? getrow?"
_MEMBERS = {
    "csr": _COMPRESSED,
    "csc": _COMPRESSED,
    "coo": f"{_MERGED} .col= .row=",
    "dia": f"{_MATRIX} .offsets=",
}
_SPARSE = {
    **{f"{form}_array": text for form, text in _MEMBERS.items()},
    **{f"{form}_matrix": f"{text} {_OF_MATRICES}" for form, text in _MEMBERS.items()},
    "SuperLU": "solve? .L? .U? .nnz? .perm_c .perm_r",
}

_SPARSE_FUNCTIONS = """
block_array block_diag bmat diags diags_array eye eye_array find hstack identity kron kronsum
permute_dims rand random random_array spdiags swapaxes tril triu vstack
csgraph.connected_components
linalg.bicgstab linalg.cg linalg.cgs linalg.eigsh linalg.gmres linalg.lobpcg linalg.lsmr linalg.lsqr
linalg.matrix_power linalg.minres linalg.norm linalg.spilu linalg.splu linalg.spsolve
linalg.spsolve_triangular linalg.svds
"""

FUNCTIONS = {
    "interpolate": ("make_interp_spline", "make_lsq_spline", "splantider", "splder"),
    "sparse": tuple(_SPARSE_FUNCTIONS.split()),
    "spatial": (),
}
"""Functions with objects as arguments or results, which wait, by family."""

_OPERATORS = "abs add eq ge getitem gt le lt matmul mul ne neg pow setitem sub truediv"
OPERATORS = tuple(_OPERATORS.split())
"""Python's operators of sparse matrices."""


def _classes(texts: dict[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    made: dict[str, tuple[str, dict[str, str]]] = {}
    for head, text in texts.items():
        name, _, base = head.rstrip(")").partition("(")
        members = dict(made[base][1]) if base else {}
        for word in text.split():
            plain = word.strip(".+?!=")
            members[plain] = word.replace(plain, "")
        made[name] = (base, members)
    return made


FAMILIES = {
    "interpolate": _classes(_INTERPOLATE),
    "sparse": _classes(_SPARSE),
    "spatial": _classes(_SPATIAL),
}
"""By family and class: the base class, or nothing, and the marks of each member."""
