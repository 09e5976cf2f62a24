"""Findings of the array API standard's test suite; where CuPy differs, CuPy counts."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import numpy as np
import pytest

INF = float("inf")
NAN = float("nan")


def _same(found: Any, wanted: list[Any]) -> None:
    found = np.asarray(found)
    expected = np.asarray(wanted, found.dtype)
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("kind", ["e", "f", "d"])
def test_quotients_of_infinite_numbers_are_rounded_down_as_on_a_gpu(cp: Any, kind: str) -> None:
    x = cp.asarray([INF, -INF, INF, 3.0, -3.0, 7.0, INF], kind)
    y = cp.asarray([2.0, 2.0, -2.0, -INF, INF, 2.0, INF], kind)
    wanted = [INF, -INF, -INF, -0.0, -0.0, 3.0, NAN]
    _same((x // y).get()[:6], wanted[:6])
    assert bool(cp.isnan(x // y)[6])
    assert (x // y).dtype == kind
    _same((x // 2)[:3].get(), [INF, -INF, INF])
    _same((2 // y)[3:5].get(), [-0.0, 0.0])
    whole, rest = cp.divmod(x, y)
    _same(whole[:6].get(), wanted[:6])
    _same(rest[5:6].get(), [1.0])
    x //= y
    _same(x[:6].get(), wanted[:6])


def test_only_the_chosen_quotients_are_written(cp: Any) -> None:
    x, y = cp.asarray([INF, INF, 5.0]), cp.asarray([1.0, 1.0, 2.0])
    out = cp.full(3, 9.0)
    cp.floor_divide(x, y, out=out, _where=cp.asarray([True, False, True]))
    assert out.get().tolist() == [INF, 9.0, 2.0]
    assert (cp.asarray(INF) // cp.asarray(1.0)).item() == INF
    whole, rest = cp.zeros(3), cp.zeros(3)
    cp.divmod(x, y, whole, rest)
    assert whole.get().tolist() == [INF, INF, 2.0]
    assert np.isnan(rest.get()[:2]).all()


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_quotients_of_infinite_numbers_have_the_order_of_a_sum(cp: Any, axes: Any) -> None:
    x = cp.asarray(np.full((2, 3, 4), INF)).transpose(axes)
    for made, sum_ in ((x // 2, x + 2), (2 % x, 2 + x), (cp.expm1(x + 0j), x + 0j)):
        assert made.get().shape == x.shape  # the worker has compared its strides by now
        assert made.strides == sum_.strides
    assert bool((x // 2 == x).all())


def test_remainders_by_infinite_numbers_are_no_numbers(cp: Any) -> None:
    x, y = cp.asarray([3.0, -3.0, 7.5, INF]), cp.asarray([INF, INF, 2.0, 2.0])
    for made in (x % y, cp.divmod(x, y)[1], cp.remainder(x, y)):
        assert np.isnan(made.get()).tolist() == [True, True, False, True]
        assert made[2].item() == 1.5
    assert np.isnan((3 % y).get()).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", ["F", "D"])
def test_complex_exponentials_less_one_keep_infinite_parts(cp: Any, kind: str) -> None:
    x = np.asarray([complex(INF, 0), complex(NAN, 0), complex(-INF, NAN), -0.0 + 0j, 1 + 2j], kind)
    made = cp.expm1(cp.asarray(x)).get()
    assert made.dtype == kind
    _same(made.real, [INF, NAN, -1.0, 0.0, np.real(np.exp(x[4])) - 1])
    assert made.imag[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    out = cp.zeros(5, "D")
    cp.expm1(cp.asarray(x), out=out)
    _same(out.get().real, made.real.tolist())
    assert cp.expm1(cp.asarray([INF, 0.0])).get().tolist() == [INF, 0.0]


@pytest.mark.parametrize(("kind", "made"), [("f", "F"), ("d", "D"), ("i", "D"), ("F", "F")])
def test_eigenvalues_of_any_matrix_are_complex(cp: Any, kind: str, made: str) -> None:
    host = np.asarray([[[2, 1], [0, 3]], [[1, 0], [0, 1]]], kind)
    values, vectors = cp.linalg.eig(cp.asarray(host))
    assert (values.dtype.char, vectors.dtype.char) == (made, made)
    for at in (0, 1):
        assert np.allclose(host[at] @ vectors[at].get(), vectors[at].get() * values[at].get())
    alone = cp.linalg.eigvals(cp.asarray(host))
    assert alone.dtype.char == made
    assert np.allclose(np.sort(alone.get().real, axis=1), [[2, 3], [1, 1]])


def test_eigenvalues_of_no_matrix_are_real(cp: Any) -> None:
    values, vectors = cp.linalg.eig(cp.zeros((0, 3, 3), "f"))
    assert (values.shape, values.dtype, vectors.shape) == ((0, 3), np.float32, (0, 3, 3))
    assert cp.linalg.eigvals(cp.zeros((0, 3, 3))).dtype == np.float64
