"""Names of clients' operations on interpolators: classes, methods, attributes and functions.

Each is an operation of its own, so that nothing of the worker's library is reached by another name.
"""

_CLASSES = """
Akima1DInterpolator BPoly BSpline BarycentricInterpolator CloughTocher2DInterpolator
CubicHermiteSpline CubicSpline InterpolatedUnivariateSpline KroghInterpolator LSQUnivariateSpline
LinearNDInterpolator NdBSpline NdPPoly NearestNDInterpolator PPoly PchipInterpolator
RBFInterpolator RegularGridInterpolator UnivariateSpline interp1d
"""

_METHODS = """
add_xi antiderivative call derivative derivatives extend get_coeffs get_knots get_residual integral
integrate integrate_1d roots set_smoothing_factor set_yi solve
"""

CLASSES = tuple(_CLASSES.split())
METHODS = tuple(_METHODS.split())
"""Methods by their names; ``call`` is the interpolator itself as a function."""

IN_PLACE = ("add_xi", "extend", "set_smoothing_factor", "set_yi")
"""Methods that change the interpolator; they give the name of its class."""

_ATTRIBUTES = "axis bounds_error c extrapolate fill_value k t tck values wi x xi y yi"
ATTRIBUTES = tuple(_ATTRIBUTES.split())
FACTORIES = (
    ("BPoly", "from_derivatives"),
    ("BPoly", "from_power_basis"),
    ("BSpline", "basis_element"),
    ("BSpline", "design_matrix"),
    ("NdBSpline", "design_matrix"),
    ("PPoly", "from_bernstein_basis"),
    ("PPoly", "from_spline"),
)
"""Methods of classes, which make an interpolator or a sparse matrix."""

SETTABLE = ("c", "extrapolate", "fill_value")
"""Attributes that a program may set."""

FUNCTIONS = ("make_interp_spline", "make_lsq_spline", "splantider", "splder")
