"""Splines of `cupyx.scipy.interpolate`, which are the worker's."""

from __future__ import annotations

from typing import Any

from cupyx._interpolators import Interpolator as _Interpolator
from cupyx._interpolators import ask as _ask
from cupyx._interpolators import given as _given
from cupyx._interpolators import on_the_first_axis as _on_the_first_axis
from cupyx._interpolators import send as _send


class BSpline(_Interpolator):
    """A spline by its knots and coefficients."""

    def __init__(self, t: Any, c: Any, k: Any, extrapolate: Any = True, axis: int = 0) -> None:
        self._make("BSpline", t, c, k, extrapolate=extrapolate, axis=axis)

    @classmethod
    def construct_fast(cls, t: Any, c: Any, k: Any, extrapolate: Any = True, axis: int = 0) -> Any:
        """Make one of knots and coefficients; they are checked nevertheless."""
        _on_the_first_axis(axis)
        return cls(t, c, k, extrapolate)

    @classmethod
    def design_matrix(cls, x: Any, t: Any, k: Any, extrapolate: Any = False) -> Any:
        """Return the values of the basis at points, as a sparse matrix."""
        return _ask("BSpline.design_matrix", x, t, k, extrapolate=extrapolate)

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        """Return values at `x`, or those of a derivative."""
        return _send("call", self, x, nu, **_given(extrapolate=extrapolate))

    def derivative(self, nu: int = 1) -> Any:
        """Return the derivative as a spline."""
        return _ask("derivative", self, nu)

    def antiderivative(self, nu: int = 1) -> Any:
        """Return the antiderivative as a spline."""
        return _ask("antiderivative", self, nu)

    def integrate(self, a: Any, b: Any, extrapolate: Any = None) -> Any:
        """Return the integral from `a` to `b`."""
        return _send("integrate", self, a, b, **_given(extrapolate=extrapolate))

    @classmethod
    def basis_element(cls, t: Any, extrapolate: Any = True) -> Any:
        """Return one element of the basis for knots."""
        return _ask("BSpline.basis_element", t, extrapolate=extrapolate)


class NdBSpline(_Interpolator):
    """A tensor product of splines."""

    def __init__(self, t: Any, c: Any, k: Any, *, extrapolate: Any = None) -> None:
        self._make("NdBSpline", t, c, k, **_given(extrapolate=extrapolate))

    @classmethod
    def design_matrix(cls, xvals: Any, t: Any, k: Any, extrapolate: Any = True) -> Any:
        """Return the values of the basis at points, as a sparse matrix."""
        return _ask("NdBSpline.design_matrix", xvals, t, k, extrapolate=extrapolate)

    def __call__(self, xi: Any, *, nu: Any = None, extrapolate: Any = None) -> Any:
        """Return values at points, or those of a derivative."""
        return _send("call", self, xi, **_given(nu=nu, extrapolate=extrapolate))


def make_interp_spline(
    x: Any,
    y: Any,
    k: Any = 3,
    t: Any = None,
    bc_type: Any = None,
    axis: int = 0,
    check_finite: bool = True,
) -> Any:
    """Return the spline through points."""
    rest = {"axis": axis, "check_finite": check_finite, **_given(t=t, bc_type=bc_type)}
    return _ask("make_interp_spline", x, y, k, **rest)


def make_lsq_spline(
    x: Any,
    y: Any,
    t: Any,
    k: Any = 3,
    w: Any = None,
    axis: int = 0,
    check_finite: bool = True,
    *,
    method: str = "qr",
) -> Any:
    """Return the spline with these knots that is nearest to points."""
    rest = {"axis": axis, "check_finite": check_finite, **_given(w=w)}
    if method != "qr":
        rest["method"] = method
    return _ask("make_lsq_spline", x, y, t, k, **rest)


def splder(tck: Any, n: int = 1) -> Any:
    """Return the derivative of a spline, in its form."""
    return _ask("splder", tck, n)


def splantider(tck: Any, n: int = 1) -> Any:
    """Return the antiderivative of a spline, in its form."""
    return _ask("splantider", tck, n)


class UnivariateSpline(_Interpolator):
    """A spline that smooths points."""

    def __init__(
        self,
        x: Any,
        y: Any,
        w: Any = None,
        bbox: Any = (None, None),
        k: int = 3,
        s: Any = None,
        ext: Any = 0,
    ) -> None:
        rest = {"bbox": list(bbox), "k": k, "ext": ext, **_given(w=w, s=s)}
        self._make("UnivariateSpline", x, y, **rest)

    def __call__(self, x: Any, nu: int = 0, ext: Any = None) -> Any:
        """Return values at `x`, or those of a derivative; this waits, as bounds may be an error."""
        return _ask("call", self, x, nu, **_given(ext=ext))

    def set_smoothing_factor(self, s: Any) -> None:
        """Smooth anew by another factor."""
        self._change("set_smoothing_factor", s)

    def get_knots(self) -> Any:
        """Return the knots inside and at the ends."""
        return _ask("get_knots", self)

    def get_coeffs(self) -> Any:
        """Return the coefficients."""
        return _ask("get_coeffs", self)

    def get_residual(self) -> Any:
        """Return the weighted sum of squares that is left."""
        return _ask("get_residual", self)

    def integral(self, a: Any, b: Any) -> Any:
        """Return the integral from `a` to `b`."""
        return _ask("integral", self, a, b)

    def derivatives(self, x: Any) -> Any:
        """Return all derivatives at a point."""
        return _ask("derivatives", self, x)

    def derivative(self, n: int = 1) -> Any:
        """Return the derivative as a spline."""
        return _ask("derivative", self, n)

    def antiderivative(self, n: int = 1) -> Any:
        """Return the antiderivative as a spline."""
        return _ask("antiderivative", self, n)


class InterpolatedUnivariateSpline(UnivariateSpline):
    """A spline through points."""

    def __init__(
        self,
        x: Any,
        y: Any,
        w: Any = None,
        bbox: Any = (None, None),
        k: int = 3,
        ext: Any = 0,
    ) -> None:
        rest = {"bbox": list(bbox), "k": k, "ext": ext, **_given(w=w)}
        self._make("InterpolatedUnivariateSpline", x, y, **rest)


class LSQUnivariateSpline(UnivariateSpline):
    """A spline with given knots that is nearest to points."""

    def __init__(
        self,
        x: Any,
        y: Any,
        t: Any,
        w: Any = None,
        bbox: Any = (None, None),
        k: int = 3,
        ext: Any = 0,
    ) -> None:
        rest = {"bbox": list(bbox), "k": k, "ext": ext, **_given(w=w)}
        self._make("LSQUnivariateSpline", x, y, t, **rest)
