"""Interpolation: functions, and classes with objects in the worker."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from cupy._core.dispatch import arguments as _arguments

from cupyx import _extensions
from cupyx._interpolators import Interpolator as _Interpolator
from cupyx._interpolators import ask as _ask
from cupyx._interpolators import given as _given
from cupyx._interpolators import on_the_first_axis as _on_the_first_axis
from cupyx._interpolators import send as _send
from cupyx._splines import BSpline as BSpline
from cupyx._splines import InterpolatedUnivariateSpline as InterpolatedUnivariateSpline
from cupyx._splines import LSQUnivariateSpline as LSQUnivariateSpline
from cupyx._splines import NdBSpline as NdBSpline
from cupyx._splines import UnivariateSpline as UnivariateSpline
from cupyx._splines import make_interp_spline as make_interp_spline
from cupyx._splines import make_lsq_spline as make_lsq_spline
from cupyx._splines import splantider as splantider
from cupyx._splines import splder as splder

_extensions.fill(
    globals(),
    """
    barycentric_interpolate interpn krogh_interpolate pchip_interpolate
    """,
)
_one_pchip = globals()["pchip_interpolate"]


def pchip_interpolate(xi: Any, yi: Any, x: Any, der: Any = 0, axis: int = 0) -> Any:
    """Return values or a derivative between points, or a list for a list of derivatives."""
    if _arguments.is_scalar(der):
        return _one_pchip(xi, yi, x, der=der, axis=axis)
    return [_one_pchip(xi, yi, x, der=each, axis=axis) for each in der]


# --- polynomials through points -------------------------------------------------------------------


class BarycentricInterpolator(_Interpolator):
    """The polynomial through points, by weights that new points can be added to."""

    def __init__(self, xi: Any, yi: Any = None, axis: int = 0) -> None:
        self._make("BarycentricInterpolator", xi, yi, axis)

    def __call__(self, x: Any) -> Any:
        """Return values at `x`."""
        return _send("call", self, x)

    def set_yi(self, yi: Any, axis: Any = None) -> None:
        """Replace the values at the points."""
        self._change("set_yi", yi, axis)

    def add_xi(self, xi: Any, yi: Any = None) -> None:
        """Add points, and values at them."""
        self._change("add_xi", xi, yi)


class KroghInterpolator(_Interpolator):
    """The polynomial through points, with derivatives where points occur repeatedly."""

    def __init__(self, xi: Any, yi: Any, axis: int = 0) -> None:
        self._make("KroghInterpolator", xi, yi, axis)

    def __call__(self, x: Any) -> Any:
        """Return values at `x`."""
        return _send("call", self, x)

    def derivatives(self, x: Any, der: Any = None) -> Any:
        """Return derivatives of all orders below `der`."""
        return _send("derivatives", self, x, **_given(der=der))

    def derivative(self, x: Any, der: int = 1) -> Any:
        """Return one derivative."""
        return _send("derivative", self, x, der=der)


class interp1d(_Interpolator):
    """Interpolation along an axis, of several kinds."""

    def __init__(
        self,
        x: Any,
        y: Any,
        kind: Any = "linear",
        axis: int = -1,
        copy: bool = True,
        bounds_error: Any = None,
        fill_value: Any = np.nan,
        assume_sorted: bool = False,
    ) -> None:
        rest = {"bounds_error": bounds_error, "fill_value": fill_value}
        rest |= {"copy": copy, "assume_sorted": assume_sorted}
        self._make("interp1d", x, y, kind=kind, axis=axis, **rest)

    def __call__(self, x: Any) -> Any:
        """Return values at `x`; this waits, because the elements decide about bounds."""
        return _ask("call", self, x)


# --- piecewise polynomials ------------------------------------------------------------------------


class _Piecewise(_Interpolator):
    def __init__(self, c: Any, x: Any, extrapolate: Any = None, axis: int = 0) -> None:
        rest = _given(extrapolate=extrapolate)
        self._make(self._of_worker, c, x, axis=axis, **rest)

    _of_worker = ""

    @classmethod
    def construct_fast(cls, c: Any, x: Any, extrapolate: Any = None, axis: int = 0) -> Any:
        """Make one of coefficients; they are checked nevertheless."""
        _on_the_first_axis(axis)
        return cls(c, x, extrapolate)

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        """Return values at `x`, or those of a derivative."""
        return _send("call", self, x, nu, **_given(extrapolate=extrapolate))

    def extend(self, c: Any, x: Any) -> None:
        """Add break points at either end."""
        self._change("extend", c, x)

    def derivative(self, nu: int = 1) -> Any:
        """Return the derivative as a piecewise polynomial."""
        return _ask("derivative", self, nu)

    def antiderivative(self, nu: int = 1) -> Any:
        """Return the antiderivative as a piecewise polynomial."""
        return _ask("antiderivative", self, nu)

    def integrate(self, a: Any, b: Any, extrapolate: Any = None) -> Any:
        """Return the integral from `a` to `b`."""
        return _send("integrate", self, a, b, **_given(extrapolate=extrapolate))


class PPoly(_Piecewise):
    """A piecewise polynomial by its coefficients and break points."""

    _of_worker = "PPoly"

    def solve(self, y: Any = 0.0, discontinuity: bool = True, extrapolate: Any = None) -> Any:
        """Return where the value is `y`."""
        rest = _given(extrapolate=extrapolate)
        return _ask("solve", self, y, discontinuity=discontinuity, **rest)

    def roots(self, discontinuity: bool = True, extrapolate: Any = None) -> Any:
        """Return where the value is zero."""
        return self.solve(0.0, discontinuity, extrapolate)

    @classmethod
    def from_spline(cls, tck: Any, extrapolate: Any = None) -> Any:
        """Make one of a spline."""
        return _ask("PPoly.from_spline", tck, **_given(extrapolate=extrapolate))

    @classmethod
    def from_bernstein_basis(cls, bp: Any, extrapolate: Any = None) -> Any:
        """Make one of a polynomial in the Bernstein basis."""
        return _ask("PPoly.from_bernstein_basis", bp, **_given(extrapolate=extrapolate))


class BPoly(_Piecewise):
    """A piecewise polynomial in the Bernstein basis."""

    _of_worker = "BPoly"

    @classmethod
    def from_power_basis(cls, pp: Any, extrapolate: Any = None) -> Any:
        """Make one of a piecewise polynomial."""
        return _ask("BPoly.from_power_basis", pp, **_given(extrapolate=extrapolate))

    @classmethod
    def from_derivatives(cls, xi: Any, yi: Any, orders: Any = None, extrapolate: Any = None) -> Any:
        """Make one with these values and derivatives at points."""
        rest = _given(orders=orders, extrapolate=extrapolate)
        return _ask("BPoly.from_derivatives", xi, yi, **rest)


class NdPPoly(_Interpolator):
    """A piecewise polynomial of several variables."""

    def __init__(self, c: Any, x: Any, extrapolate: Any = None) -> None:
        self._make("NdPPoly", c, x, **_given(extrapolate=extrapolate))

    @classmethod
    def construct_fast(cls, c: Any, x: Any, extrapolate: Any = None) -> Any:
        """Make one of coefficients; they are checked nevertheless."""
        return cls(c, x, extrapolate)

    def __call__(self, x: Any, nu: Any = None, extrapolate: Any = None) -> Any:
        """Return values at points, or those of a derivative."""
        return _send("call", self, x, **_given(nu=nu, extrapolate=extrapolate))

    def derivative(self, nu: Any) -> Any:
        """Return the derivative of these orders."""
        return _ask("derivative", self, nu)

    def antiderivative(self, nu: Any) -> Any:
        """Return the antiderivative of these orders."""
        return _ask("antiderivative", self, nu)

    def integrate_1d(self, a: Any, b: Any, axis: int, extrapolate: Any = None) -> Any:
        """Return the integral over one variable, a piecewise polynomial of the others."""
        return _ask("integrate_1d", self, a, b, axis, **_given(extrapolate=extrapolate))

    def integrate(self, ranges: Any, extrapolate: Any = None) -> Any:
        """Return the integral over all variables."""
        return _ask("integrate", self, ranges, **_given(extrapolate=extrapolate))


class CubicHermiteSpline(PPoly):
    """Cubic polynomials with values and derivatives at points."""

    def __init__(self, x: Any, y: Any, dydx: Any, axis: int = 0, extrapolate: Any = None) -> None:
        rest = _given(extrapolate=extrapolate)
        self._make("CubicHermiteSpline", x, y, dydx, axis=axis, **rest)


class PchipInterpolator(CubicHermiteSpline):
    """Cubic polynomials that rise and fall only where the points do."""

    def __init__(self, x: Any, y: Any, axis: int = 0, extrapolate: Any = None) -> None:
        self._make("PchipInterpolator", x, y, axis=axis, **_given(extrapolate=extrapolate))


pchip = PchipInterpolator


class Akima1DInterpolator(CubicHermiteSpline):
    """Cubic polynomials by Akima's derivatives."""

    def __init__(self, x: Any, y: Any, axis: int = 0) -> None:
        self._make("Akima1DInterpolator", x, y, axis=axis)

    def extend(self, c: Any, x: Any, right: bool = True) -> None:
        """Refuse: it would be no interpolator of Akima any more."""
        raise NotImplementedError("Extending a 1-D Akima interpolator is not yet implemented")

    @classmethod
    def from_spline(cls, tck: Any, extrapolate: Any = None) -> Any:
        """Refuse, as CuPy does."""
        raise NotImplementedError("This method does not make sense for an Akima interpolator.")

    @classmethod
    def from_bernstein_basis(cls, bp: Any, extrapolate: Any = None) -> Any:
        """Refuse, as CuPy does."""
        raise NotImplementedError("This method does not make sense for an Akima interpolator.")


class CubicSpline(CubicHermiteSpline):
    """Cubic polynomials with two continuous derivatives."""

    def __init__(
        self,
        x: Any,
        y: Any,
        axis: int = 0,
        bc_type: Any = "not-a-knot",
        extrapolate: Any = None,
    ) -> None:
        rest = {"axis": axis, "bc_type": bc_type, **_given(extrapolate=extrapolate)}
        self._make("CubicSpline", x, y, **rest)


# --- several variables ----------------------------------------------------------------------------


class _Scattered(_Interpolator):
    def __call__(self, *args: Any) -> Any:
        """Return values at points, given as one array or as one for each variable."""
        return _send("call", self, *args)


class LinearNDInterpolator(_Scattered):
    """Linear interpolation between scattered points."""

    def __init__(
        self, points: Any, values: Any, fill_value: Any = np.nan, rescale: bool = False
    ) -> None:
        rest = {"fill_value": fill_value, "rescale": rescale}
        self._make("LinearNDInterpolator", points, values, **rest)


class CloughTocher2DInterpolator(_Scattered):
    """Cubic interpolation between scattered points of the plane."""

    def __init__(
        self,
        points: Any,
        values: Any,
        fill_value: Any = np.nan,
        tol: float = 1e-6,
        maxiter: int = 400,
        rescale: bool = False,
    ) -> None:
        rest = {"fill_value": fill_value, "tol": tol, "maxiter": maxiter, "rescale": rescale}
        self._make("CloughTocher2DInterpolator", points, values, **rest)


class NearestNDInterpolator(_Scattered):
    """The value of the nearest of scattered points."""

    def __init__(self, x: Any, y: Any, rescale: bool = False, tree_options: Any = None) -> None:
        rest = {"rescale": rescale, **_given(tree_options=tree_options)}
        self._make("NearestNDInterpolator", x, y, **rest)

    def __call__(self, *args: Any, **query_options: Any) -> Any:
        """Return values at points; options are those of a search in a tree."""
        return _send("call", self, *args, **query_options)


_LOWEST_DEGREES = {"multiquadric": 0, "linear": 0, "thin_plate_spline": 1, "cubic": 1, "quintic": 2}


class RBFInterpolator(_Interpolator):
    """Interpolation of scattered points by radial functions."""

    def __init__(
        self,
        y: Any,
        d: Any,
        neighbors: Any = None,
        smoothing: Any = 0.0,
        kernel: str = "thin_plate_spline",
        epsilon: Any = None,
        degree: Any = None,
    ) -> None:
        lowest = _LOWEST_DEGREES.get(kernel, -1)
        if degree is not None and -1 < degree < lowest:
            warnings.warn(
                f"`degree` should not be below {lowest} except -1 when `kernel` is {kernel!r}. "
                "The interpolant may not be uniquely solvable.",
                UserWarning,
                stacklevel=2,
            )
        rest = _given(neighbors=neighbors, epsilon=epsilon, degree=degree)
        self._make("RBFInterpolator", y, d, smoothing=smoothing, kernel=kernel, **rest)

    def __call__(self, x: Any) -> Any:
        """Return values at points."""
        return _send("call", self, x)


class RegularGridInterpolator(_Interpolator):
    """Interpolation on a grid of lines along the axes."""

    def __init__(
        self,
        points: Any,
        values: Any,
        method: str = "linear",
        bounds_error: bool = True,
        fill_value: Any = np.nan,
    ) -> None:
        rest = {"method": method, "bounds_error": bounds_error, "fill_value": fill_value}
        self._make("RegularGridInterpolator", points, values, **rest)

    def __call__(self, xi: Any, method: Any = None, *, nu: Any = None) -> Any:
        """Return values at points; this waits, because the elements decide about bounds."""
        return _ask("call", self, xi, **_given(method=method, nu=nu))
