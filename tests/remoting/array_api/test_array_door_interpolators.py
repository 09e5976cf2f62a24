"""Interpolators of `cupyx.scipy.interpolate`: objects of the worker, beside SciPy's."""

import copy
from typing import Any

import numpy as np
import pytest
from door_cases import close, package, questions, refused

scipy: Any = pytest.importorskip("scipy")
ours = package("scipy.interpolate")

X = np.asarray([0.0, 0.7, 1.5, 2.2, 3.4, 4.0, 5.1, 6.0])
Y = np.column_stack([np.sin(X), X**2])
AT = np.linspace(0.2, 5.8, 7)
KNOTS = np.asarray([0.0, 0, 0, 0, 2, 3, 5, 6, 6, 6, 6])
POINTS = np.random.RandomState(2).rand(30, 2)
INNER = np.asarray([[0.4, 0.5], [0.6, 0.45]])
GRID = (np.arange(4.0), np.arange(5.0))
VALUES = np.random.RandomState(3).rand(4, 5)

CALLS: dict[str, Any] = {
    "barycentric": lambda m, of: m.BarycentricInterpolator(of(X), of(Y))(of(AT)),
    "krogh": lambda m, of: m.KroghInterpolator(of(X), of(Y))(of(AT)),
    "krogh derivatives": lambda m, of: m.KroghInterpolator(of(X), of(Y)).derivatives(of(AT), 3),
    "krogh derivative": lambda m, of: m.KroghInterpolator(of(X), of(Y)).derivative(of(AT), 2),
    "line": lambda m, of: m.interp1d(of(X), of(Y), axis=0)(of(AT)),
    "nearest": lambda m, of: m.interp1d(of(X), of(Y.T), "nearest")(of(AT)),
    "quadratic": lambda m, of: m.interp1d(of(X), of(Y), "quadratic", axis=0)(of(AT)),
    "beyond": lambda m, of: m.interp1d(of(X), of(X), fill_value="extrapolate")(of(AT + 3)),
    "cubic": lambda m, of: m.CubicSpline(of(X), of(Y), bc_type="natural")(of(AT)),
    "clamped": lambda m, of: m.CubicSpline(of(X), of(X), bc_type=((1, 0.5), (2, 0.0)))(of(AT), 1),
    "integral": lambda m, of: m.CubicSpline(of(X), of(Y)).integrate(0.5, 3),
    "derivative": lambda m, of: m.CubicSpline(of(X), of(Y)).derivative()(of(AT)),
    "roots": lambda m, of: m.CubicSpline(of(X), of(np.sin(X))).roots(),
    "solution": lambda m, of: m.PchipInterpolator(of(X), of(X**2)).solve(2.0),
    "coefficients": lambda m, of: m.PchipInterpolator(of(X), of(Y)).c,
    "akima": lambda m, of: m.Akima1DInterpolator(of(X), of(Y))(of(AT)),
    "hermite": lambda m, of: m.CubicHermiteSpline(of(X), of(Y), of(Y * 0))(of(AT)),
    "bernstein": lambda m, of: m.BPoly(of(Y[:6].reshape(3, 2, 2)), of(X[:3]))(of(AT / 5)),
    "by derivatives": lambda m, of: m.BPoly.from_derivatives(of(X), of(Y[:, None]))(of(AT)),
    "power": lambda m, of: (
        m.PPoly.from_bernstein_basis(m.BPoly(of(Y[:4].reshape(2, 2, 2)), of(X[:3]))).c
    ),
    "back": lambda m, of: m.BPoly.from_power_basis(m.CubicSpline(of(X), of(Y))).c,
    "of a spline": lambda m, of: m.PPoly.from_spline(m.make_interp_spline(of(X), of(X**3)))(of(AT)),
    "two variables": lambda m, of: m.NdPPoly(
        of(np.arange(12.0).reshape(2, 3, 2, 1)), (of(X[:3]), of(X[:2]))
    )(of(INNER)),
    "over one": lambda m, of: m.NdPPoly(
        of(np.arange(12.0).reshape(2, 3, 2, 1)), (of(X[:3]), of(X[:2]))
    ).integrate_1d(0, 1, 0)(of(INNER[0])),
    "spline": lambda m, of: m.BSpline(of(KNOTS), of(X[:7]), 3)(of(AT), 1),
    "antiderivative": lambda m, of: m.BSpline(of(KNOTS), of(X[:7]), 3).antiderivative()(of(AT)),
    "of knots": lambda m, of: m.BSpline(of(KNOTS), of(X[:7]), 3).integrate(1, 4),
    "element": lambda m, of: m.BSpline.basis_element(of(X[:4]))(of(AT)),
    "fast": lambda m, of: m.BSpline.construct_fast(of(KNOTS), of(X[:7]), 3)(of(AT)),
    "design": lambda m, of: m.BSpline.design_matrix(of(AT), of(KNOTS), 3).toarray(),
    "through": lambda m, of: m.make_interp_spline(of(X), of(Y), 5)(of(AT)),
    "near": lambda m, of: m.make_lsq_spline(of(X), of(Y), of(KNOTS[[0, 1, 2, 3, 5, 7, 8, 9, 10]]))(
        of(AT)
    ),
    "of a triple": lambda m, of: m.splder(m.make_interp_spline(of(X), of(Y)), 2)(of(AT)),
    "smooth": lambda m, of: m.UnivariateSpline(of(X), of(np.sin(X)), s=0.1)(of(AT)),
    "smooth derivative": lambda m, of: m.UnivariateSpline(of(X), of(X), k=2).derivative()(of(AT)),
    "smooth integral": lambda m, of: m.InterpolatedUnivariateSpline(of(X), of(X)).integral(1, 2),
    "smooth knots": lambda m, of: m.LSQUnivariateSpline(of(X), of(X**2), of(X[3:5])).get_knots(),
    "triangles": lambda m, of: m.LinearNDInterpolator(of(POINTS), of(POINTS[:, 0]))(of(INNER)),
    "cubic triangles": lambda m, of: m.CloughTocher2DInterpolator(of(POINTS), of(POINTS[:, 1]))(
        of(INNER)
    ),
    "nearest point": lambda m, of: m.NearestNDInterpolator(of(POINTS), of(POINTS))(of(INNER)),
    "radial": lambda m, of: m.RBFInterpolator(of(POINTS), of(POINTS[:, 0]), kernel="linear")(
        of(INNER)
    ),
    "grid": lambda m, of: m.RegularGridInterpolator(tuple(map(of, GRID)), of(VALUES))(of(INNER)),
    "nearest in a grid": lambda m, of: m.RegularGridInterpolator(tuple(map(of, GRID)), of(VALUES))(
        of(INNER), method="nearest"
    ),
    "product": lambda m, of: m.NdBSpline((of(KNOTS), of(KNOTS)), of(np.eye(7)), 3)(of(INNER)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interpolator_gives_what_scipy_gives(cp: Any, ours: Any, name: str) -> None:
    made = CALLS[name](ours, cp.asarray)
    assert isinstance(made, cp.ndarray)
    close(made, CALLS[name](scipy.interpolate, lambda value: value), 1e-9, 1e-12)


def test_an_interpolator_changes_and_has_attributes(cp: Any, ours: Any) -> None:
    made = ours.BarycentricInterpolator(X[:4])
    made.set_yi(cp.asarray(X[:4] ** 3))
    made.add_xi(cp.asarray(X[4:6]), X[4:6] ** 3)
    close(made(AT), AT**3, 1e-9)
    line = ours.interp1d(X, X, bounds_error=False)
    assert np.isnan(line([9.0]).get()).all()
    line.fill_value = "extrapolate"
    close(line([9.0]), np.array([9.0]))
    spline = ours.BSpline(KNOTS, X[:7], 3)
    assert (spline.k, spline.axis, spline.extrapolate) == (3, 0, True)
    assert [type(each) for each in spline.tck] == [cp.ndarray, cp.ndarray, int]
    spline.c[...] = 1
    np.testing.assert_allclose(spline(AT).get(), 1)
    spline.c = cp.full(7, 2.0)
    np.testing.assert_allclose(spline(AT).get(), 2)
    spline.extrapolate = False
    assert np.isnan(float(spline(7.0)))
    for wrong in (cp.ones(3), cp.ones(7, "f4"), 1.0):
        refused((TypeError, "shape", lambda: setattr(spline, "c", wrong)))  # noqa: B023
    refused(
        (AttributeError, "", lambda: setattr(spline, "t", cp.ones(11))),
        (AttributeError, "no attribute", lambda: spline.nothing),
    )


def test_results_have_the_classes_of_cupy(cp: Any, ours: Any) -> None:
    cubic = ours.CubicSpline(cp.asarray(X), Y)
    assert isinstance(cubic, ours.PPoly)
    assert isinstance(cubic.derivative(), ours.PPoly)
    assert type(ours.make_interp_spline(X, Y)) is ours.BSpline
    assert ours.pchip is ours.PchipInterpolator
    smooth = ours.UnivariateSpline(X, X, s=0)
    assert type(smooth) is ours.InterpolatedUnivariateSpline
    triple = ours.splantider((KNOTS, np.pad(X[:7], (0, 4)), 3))
    assert [type(each) for each in triple] == [cp.ndarray, cp.ndarray, int]
    listed = ours.pchip_interpolate(X, X**2, AT, der=[0, 1])
    assert len(listed) == 2
    close(listed[1], scipy.interpolate.pchip_interpolate(X, X**2, AT, der=1))

    class Own(ours.CubicSpline):
        kept = 3

    assert type(Own(X, Y)) is Own


def test_what_is_wrong_is_an_error_of_its_call(cp: Any, ours: Any) -> None:
    refused(
        (ValueError, "", lambda: ours.CubicSpline(X[::-1], X)),
        (ValueError, "", lambda: ours.BSpline(KNOTS, X[:3], 3)),
        (TypeError, "", lambda: ours.CubicSpline(X, X, method="own")),
        (NotImplementedError, "", lambda: ours.Akima1DInterpolator(X, X).extend(X, X)),
        (NotImplementedError, "", lambda: ours.PPoly.construct_fast(Y, X, axis=1)),
        (ValueError, "", lambda: ours.interp1d(X, X)(9.0)),
        (ValueError, "", lambda: ours.RegularGridInterpolator(GRID, VALUES)([[9.0, 0.0]])),
        (TypeError, "", lambda: ours.CubicSpline(X, X).__reduce_ex__(2)),
        (TypeError, "", lambda: copy.copy(ours.CubicSpline(X, X))),
        (TypeError, "", lambda: copy.deepcopy(ours.CubicSpline(X, X))),
    )
    assert float(cp.ones(1)[0]) == 1, "the session lives"


def test_calls_do_not_wait_and_dropped_objects_are_freed(cp: Any, ours: Any) -> None:
    session = cp._door.pool.current()
    cubic, at = ours.CubicSpline(X, np.repeat(Y, 200, axis=1)), cp.asarray(AT)
    cubic(at)
    with questions(session, "begin") as asked:
        values = [cubic(at) for _ in range(5)]
    assert asked == []
    assert values[4].shape == (7, 400)
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    del cubic, values
    session.synchronize()
    assert pool.used_bytes() < before - 3 * 7 * 400 * 8
