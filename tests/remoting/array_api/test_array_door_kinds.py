"""Arguments of other kinds: outcomes of CuPy 14.2 on an H200."""

import importlib
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

HOST = np.arange(6.0).reshape(2, 3)
LIST = HOST.tolist()

WITHOUT_ATTRIBUTE = """
    array_equal choose common_type convolve cov digitize intersect1d isin kron meshgrid nanmean
    packbits poly polyfit roots rot90 setdiff1d sort std tensordot unique zeros_like
    fft.fft2 linalg.cross linalg.det linalg.norm
"""
NOT_OF_NUMPY = "angle array_equiv ediff1d isposinf nonzero poly polyadd roots trapezoid fft.fft2"
NO_INTEGER = "bartlett eye hamming identity tri"


def _call(cp: Any, name: str, value: Any) -> Any:
    """Call a function with one value in all its places."""
    two = "array_equal array_equiv choose convolve cross intersect1d isin kron polyadd setdiff1d"
    count = 2 if name.rpartition(".")[2] in (*two.split(), "digitize", "tensordot") else 1
    more = [cp.ones(3), 1] if name == "polyfit" else []
    return operator.attrgetter(name)(cp)(*[value] * count, *more)


REFUSED: list[tuple[type[Exception], Callable[[Any], Any]]] = [
    *((AttributeError, partial(_call, name=name, value=LIST))
      for name in WITHOUT_ATTRIBUTE.split()),
    *((TypeError, partial(_call, name=name, value=HOST)) for name in NOT_OF_NUMPY.split()),
    *((TypeError, partial(_call, name=name, value=3.0)) for name in NO_INTEGER.split()),
    *((TypeError, lambda cp, name=name: _call(cp, name, cp.asarray(3)))
      for name in NO_INTEGER.split()),
    (TypeError, lambda cp: cp.zeros(iter((2, 3)))),
    (TypeError, lambda cp: cp.ones((2, 3)).sum(np.array(0))),
    (TypeError, lambda cp: cp.tile(cp.ones(3), cp.asarray([1, 2]))),
    (TypeError, lambda cp: cp.split(cp.ones(3), cp.asarray([1, 2]))),
    (TypeError, lambda cp: cp.median(cp.ones((2, 3)), cp.asarray(0))),
    (TypeError, lambda cp: cp.histogramdd(HOST)),
    (AttributeError, lambda cp: cp.take_along_axis(None, cp.asarray([0]), 0)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "call"), REFUSED)
def test_what_cupy_refuses_is_refused(cp: Any, error: Any, call: Any) -> None:
    with pytest.raises(error):
        call(cp)


TAKEN: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda cp: cp.vstack([HOST[0], LIST[1], cp.ones(3)]), [*LIST, [1, 1, 1]]),
    (lambda cp: cp.hstack([HOST[0], [7], cp.ones(1)]), [0, 1, 2, 7, 1]),
    (lambda cp: cp.dstack([HOST[0], LIST[1]]), [[[0, 3], [1, 4], [2, 5]]]),
    (lambda cp: cp.einsum("i,i", [1, 2], np.array([3.0, 4.0])), 11),
    (lambda cp: cp.einsum(HOST, [0, 1], [0]), [3, 12]),
    (lambda cp: cp.linalg.cross(np.eye(3)[0], cp.eye(3)[1]), [0, 0, 1]),
    (lambda cp: cp.linalg.norm(np.array([3.0, 4.0])), 5),
    (lambda cp: cp.take_along_axis(cp.asarray(HOST), np.array([[2], [0]]), 1), [[2], [3]]),
    (lambda cp: cp.zeros_like(np.float32(3)), 0),
    (lambda cp: cp.tril_indices_from(np.eye(2))[0], [0, 1, 1]),
    (lambda cp: cp.asarray(HOST).argmax((1, 0)), 5),
    (lambda cp: cp.asarray(HOST).argmin([1], keepdims=True), [[0], [0]]),
    (lambda cp: cp.asarray(HOST).var(axis=True), [2 / 3, 2 / 3]),
    (lambda cp: cp.asarray(HOST).std(0, keepdims=np.True_), [[1.5, 1.5, 1.5]]),
    (lambda cp: cp.asarray(HOST).cumsum(axis=True)[0], [0, 1, 3]),
    (lambda cp: cp.asarray(HOST).compress(cp.asarray([[0, 1]])), [0]),
    (lambda cp: cp.choose(cp.asarray([1.5, 0.0]), cp.asarray([[1, 2], [3, 4]])), [3, 2]),
    (lambda cp: cp.tile(cp.ones(1), iter((2, 1))), [[1], [1]]),
    (lambda cp: cp.roll(cp.arange(3), 1, iter((0,))), [2, 0, 1]),
    (lambda cp: cp.rot90(cp.asarray(HOST), cp.asarray(2)), [[5, 4, 3], [2, 1, 0]]),
    (lambda cp: cp.rot90(cp.asarray(HOST), cp.asarray(1)), [[2, 5], [1, 4], [0, 3]]),
    (lambda cp: cp.histogramdd([cp.arange(2.0), cp.arange(2.0)], 2)[0], [[1, 0], [0, 1]]),
    (lambda cp: cp.histogram(cp.arange(2.0), 2, None, cp.asarray([3.0, 5.0]))[0], [3, 5]),
    (lambda cp: cp.bincount(cp.asarray([1, 1]), None, None), [0, 2]),
    (lambda cp: cp.asarray(HOST[0]).round(0, None), [0, 1, 2]),
    (lambda cp: cp.fft.fftfreq(cp.asarray(4)), [0, 0.25, -0.5, -0.25]),
    (lambda cp: cp.fft.fftfreq(-4), []),
]


@pytest.mark.parametrize(("call", "wanted"), TAKEN)
def test_what_cupy_takes_is_taken(cp: Any, call: Callable[[Any], Any], wanted: Any) -> None:
    made = call(cp)
    assert isinstance(made, cp.ndarray)
    assert np.allclose(made.get(), wanted)


def test_a_truth_value_has_a_sign_and_is_rounded_as_in_cupy(cp: Any) -> None:
    truth = cp.asarray([True, False])
    assert (cp.sign(truth).dtype, cp.sign(truth).tolist()) == (np.int8, [1, 0])
    assert (cp.around(truth, 1).dtype, cp.around(truth, 1).tolist()) == (np.float16, [1, 0])


def test_what_numpy_has_goes_to_numpy_where_cupy_asks_a_method(cp: Any) -> None:
    row, places = cp.sort(HOST[0]), cp.unravel_index(np.array([4]), (2, 3))
    assert type(row) is type(cp.rot90(HOST)) is type(places[0]) is np.ndarray
    assert type(cp.iscomplex(1j)) is np.bool_


# --- systems of equations -------------------------------------------------------------------------

SYSTEMS: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": lambda cp, a: cp.linalg.cholesky(-a),
    "inv": lambda cp, a: cp.linalg.inv(a),
    "solve": lambda cp, a: cp.linalg.solve(a, cp.ones(3)),
    "tensorinv": lambda cp, a: cp.linalg.tensorinv(a, 1),
    "tensorsolve": lambda cp, a: cp.linalg.tensorsolve(a, cp.ones(3)),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_singular_matrix_gives_no_number_or_the_error_that_was_asked_for(
    cp: Any, name: str
) -> None:
    call, singular = SYSTEMS[name], cp.ones((3, 3), np.float32)
    assert cp.isnan(call(cp, singular)).all()
    with (
        importlib.import_module("cupyx").errstate(linalg="raise"),
        pytest.raises(np.linalg.LinAlgError),
    ):
        call(cp, singular)
    assert cp.isnan(call(cp, singular)).all()


def test_of_several_matrices_the_singular_ones_alone_give_no_number(cp: Any) -> None:
    several = cp.stack([cp.ones((2, 2)), cp.eye(2)])
    assert cp.isnan(cp.linalg.inv(several)).any((1, 2)).tolist() == [True, False]
    with pytest.raises(np.linalg.LinAlgError):
        cp.linalg.inv(cp.ones((2, 3)))


def test_results_of_linalg_are_tuples_and_keep_half_precision(cp: Any) -> None:
    for name in ("eig", "eigh", "qr", "slogdet", "svd"):
        assert type(getattr(cp.linalg, name)(cp.eye(2))) is tuple
    assert cp.linalg.eigvalsh(cp.eye(2, dtype="e")).dtype == np.float16
    assert cp.linalg.lstsq(cp.eye(2), cp.ones(2, "e"), None)[0].tolist() == [1, 1]
