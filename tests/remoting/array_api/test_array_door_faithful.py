"""Results that were wrong without a word: each has the values, types and views of CuPy now.

An outside look ran CuPy's own tests through the door, and found these.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_ravel_of_what_is_not_contiguous_is_a_copy(cp: Any, order: str) -> None:
    a = cp.arange(10)
    flat = a[::2].ravel(order)
    assert flat.flags.c_contiguous
    flat[...] = -1
    assert a.get().tolist() == list(range(10))
    host, device = (
        xp.arange(24).reshape(2, 3, 4).transpose(0, 2, 1)[:, ::-2].ravel(order) for xp in (np, cp)
    )
    assert device.get().tolist() == host.tolist()
    spread = cp.broadcast_to(cp.ones(1), (5,)).ravel(order)
    spread[0] = 7
    assert spread.get().tolist() == [7, 1, 1, 1, 1]


def test_ravel_in_the_order_of_memory(cp: Any) -> None:
    host = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    device = cp.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    assert device.ravel("K").get().tolist() == host.ravel("K").tolist()


@pytest.mark.parametrize(
    "subscripts",
    [
        "ii->i",
        "ij->ji",
        "ji",
        "...ij->...ji",
        "ii...->i...",
        "ij",
        "...->...",
        "j...i",
        "ij...->ij",
    ],
)
def test_einsum_of_one_operand_is_a_view(cp: Any, subscripts: str) -> None:
    host, device = np.arange(4.0).reshape(2, 2), cp.arange(4.0).reshape(2, 2)
    wanted, made = np.einsum(subscripts, host), cp.einsum(subscripts, device, dtype="f4")
    assert made.dtype == np.float64  # of the operand, as a view has it
    assert made.base is device.base
    assert made.get().tolist() == wanted.tolist()
    wanted[...] = 9
    made[...] = 9
    assert device.get().tolist() == host.tolist()


class _Foreign:
    def __init__(self) -> None:
        self.__cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (64, False)}


def test_memory_of_another_library_is_refused_by_its_name(cp: Any) -> None:
    for call in (cp.asnumpy, cp.asarray, cp.array):
        with pytest.raises(TypeError, match="_Foreign holds GPU memory of this process"):
            call(_Foreign())


def test_copyto_judges_numbers_of_numpy_by_their_type(cp: Any) -> None:
    target = cp.zeros(3, "u2")
    for wide in (np.array(1, "u8"), np.uint64(1)):
        with pytest.raises(TypeError, match="Cannot cast uint64 to uint16 in no casting mode"):
            cp.copyto(target, wide, "no")
    cp.copyto(target, np.array([1], "u2"), "equiv")
    cp.copyto(target[1:], np.float64(7.5), "unsafe")
    assert target.get().tolist() == [1, 7, 7]
    with pytest.raises(ValueError, match="non-scalar"):
        cp.copyto(target, np.zeros(3, "u2"))


def test_integers_beyond_a_type_are_refused(cp: Any) -> None:
    with pytest.raises(ValueError, match="high is out of bounds for uint8"):
        cp.random.randint(0, 300, dtype="u1")
    with pytest.raises(ValueError, match="low is out of bounds for uint8"):
        cp.random.randint(-1, 3, dtype="u1")
    assert cp.random.randint(0, 256, 5, dtype="u1").dtype == np.uint8


@pytest.mark.parametrize("make", ["zeros", "empty", "ones"])
def test_the_other_order_of_bytes_is_refused(cp: Any, make: str) -> None:
    with pytest.raises(ValueError, match="big-endian"):
        getattr(cp, make)(2, ">f8")
    assert cp.array(np.array([1.0, 2.0], ">f8")).get().tolist() == [1, 2]


def test_what_an_array_looks_like_cannot_be_set(cp: Any) -> None:
    with pytest.raises(AttributeError):
        cp.zeros(2).flags.c_contiguous = False
    with pytest.raises(np.exceptions.AxisError):
        cp.array(1).argsort(axis=2)


def test_half_precision_stays_where_cupy_keeps_it(cp: Any) -> None:
    for name in ("irfft", "hfft"):
        made = getattr(cp.fft, name)(cp.ones(4, "f2"))
        assert made.dtype == np.float16 == made.get().dtype
    made = cp.fft.irfftn(cp.ones((4, 4), "f2"), axes=(0,))
    assert made.dtype == np.float16 == made.get().dtype
    assert cp.fft.irfftn(cp.ones((4, 4), "f2")).get().dtype == np.float32


def test_a_transform_over_no_axes_is_its_argument(cp: Any) -> None:
    a = cp.ones((2, 2))
    assert (cp.fft.fftn(a, axes=()) == a).all()


def test_quantiles_have_the_type_of_both(cp: Any) -> None:
    assert cp.percentile(cp.arange(5, dtype="f4"), [20, 40.0]).get().tolist() == [
        pytest.approx(0.8),
        pytest.approx(1.6),
    ]
    made = cp.quantile(cp.arange(5, dtype="f2"), cp.array([0.25], "f4"))
    assert made.dtype == np.float32


def test_an_ellipsis_over_no_axis_separates_indices(cp: Any) -> None:
    host = np.arange(60.0).reshape(3, 4, 5)
    device = cp.asarray(host)
    index = (slice(None), [0, 1], ..., [0, 1])
    assert device[index].shape == host[index].shape == (2, 3)
    assert device[index].get().tolist() == host[index].tolist()
    device[index] = cp.arange(6.0).reshape(2, 3)
    host[index] = np.arange(6.0).reshape(2, 3)
    assert (device.get() == host).all()


def test_an_array_like_another_keeps_the_order_of_its_axes(cp: Any) -> None:
    host = np.zeros((2, 3, 4)).swapaxes(0, 1)
    device = cp.zeros((2, 3, 4)).swapaxes(0, 1)
    orders: tuple[Any, ...] = ("C", "F", "A", "K")
    for order in orders:
        wanted = np.empty_like(host, order=order, shape=(4, 2, 3)).strides
        assert cp.empty_like(device, order=order, shape=(4, 2, 3)).strides == wanted


def test_the_inverse_of_an_empty_matrix_has_its_type(cp: Any) -> None:
    assert cp.linalg.pinv(cp.empty((2, 0, 3), "i4")).dtype == np.int32
    assert cp.linalg.pinv(cp.empty((0, 2, 3), "i4")).dtype == np.float64


def test_integers_compare_with_numbers_beyond_their_type(cp: Any) -> None:
    a = cp.arange(3)
    assert (a > -(2**63) - 100).get().all()
    assert not (a == 2**70).get().any()
    assert (a.astype("u1") < 2**70).get().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, _a: xp.linalg.cond([[1.0, 0], [0, 2]]),
        lambda xp, _a: xp.resize(3, (2,)),
        lambda xp, a: xp.delete(a, []),
        lambda xp, a: xp.clip(a, None, None),
        lambda xp, a: xp.histogram(a, bins=np.array([0.0, 2, 5]))[0],
        lambda xp, _a: xp.sort(xp.roots(xp.poly1d([2, -1, -2]))),
        lambda xp, _a: xp.array(3.0).take(0, axis=0),
        lambda xp, _a: xp.random.choice(0, size=0),
    ],
)
def test_what_cupy_takes_is_taken(cp: Any, call: Any) -> None:
    wanted, made = (call(xp, xp.arange(5.0)) for xp in (np, cp))
    assert made.get().tolist() == pytest.approx(np.asarray(wanted).tolist())


def test_distributions_of_kernels_have_any_type(cp: Any) -> None:
    assert cp.random.beta(1.0, 2.0, size=3, dtype="f2").get().dtype == np.float16
    assert cp.random.noncentral_f(3.0, 4.0, 1.0, size=3, dtype="i4").get().dtype == np.int32
    with pytest.raises(TypeError, match="only supports float32 and float64"):
        cp.random.normal(size=3, dtype="f2")


SIZES: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "eye": (ValueError, lambda cp: cp.eye(-1)),
    "eye of columns": (ValueError, lambda cp: cp.eye(3, -1)),
    "eye of half a row": (TypeError, lambda cp: cp.eye(2, 2.5)),
    "eye of a diagonal": (TypeError, lambda cp: cp.eye(2, k=0.5)),
    "identity": (TypeError, lambda cp: cp.identity(2.0)),
    "vander": (ValueError, lambda cp: cp.vander(cp.ones(3), -1)),
    "vander of floats": (TypeError, lambda cp: cp.vander(cp.ones(3), 2.5)),
    "diag": (TypeError, lambda cp: cp.diag(cp.ones(3), 1.5)),
    "permutation": (ValueError, lambda cp: cp.random.permutation(-1)),
    "fft": (TypeError, lambda cp: cp.fft.fft(cp.ones(5), 4.0)),
    "irfft": (TypeError, lambda cp: cp.fft.irfft(cp.ones(5), 2.5)),
    "zeros": (ValueError, lambda cp: cp.zeros((0, 2**63 - 1))),
    "ones": (ValueError, lambda cp: cp.ones((2**62, 4, 0))),
}


@pytest.mark.parametrize(("error", "call"), SIZES.values(), ids=SIZES)
def test_a_size_that_no_array_has_is_an_error_of_the_call(
    cp: Any, error: type[Exception], call: Callable[[Any], Any]
) -> None:
    with pytest.raises(error):
        call(cp)
    assert float(cp.ones(2).sum()) == 2  # the session goes on


CHOICES: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "more than there are": (ValueError, {"a": 3, "size": 5, "replace": False}),
    "more than an array has": (ValueError, {"a": [1.0, 2.0], "size": 3, "replace": False}),
    "of nothing": (ValueError, {"a": 0, "size": 2}),
    "of an empty list": (ValueError, {"a": [], "size": 2}),
    "of None": (ValueError, {"a": None, "size": 2}),
    "other weights": (ValueError, {"a": 3, "size": 2, "p": [0.5, 0.5]}),
    "weights in rows": (ValueError, {"a": 2, "size": 2, "p": [[0.5, 0.5]]}),
    "weights below zero": (ValueError, {"a": 2, "size": 2, "p": [1.5, -0.5]}),
    "weights of more than one": (ValueError, {"a": 2, "size": 2, "p": [1.0, 0.5]}),
    "weights of the rest": (
        NotImplementedError,
        {"a": 2, "size": 1, "replace": False, "p": [0.5, 0.5]},
    ),
}


@pytest.mark.parametrize(("error", "given"), CHOICES.values(), ids=CHOICES)
def test_a_choice_that_cannot_be_made_is_an_error_of_the_call(
    cp: Any, error: type[Exception], given: dict[str, Any]
) -> None:
    with pytest.raises(error):
        cp.random.choice(**given)


def test_choices_of_what_there_is(cp: Any) -> None:
    assert sorted(cp.random.choice(4, 4, replace=False).tolist()) == [0, 1, 2, 3]
    assert cp.random.choice(3, 5, p=[0, 0, 1]).tolist() == [2] * 5
    assert cp.random.choice(0, 0).shape == cp.random.choice([], 0).shape == (0,)


def test_the_centres_of_any_number_of_labels(cp: Any) -> None:
    ndimage: Any = importlib.import_module("cupyx.scipy.ndimage")
    scipy: Any = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(1).random((30, 40))
    labels = np.arange(1200).reshape(30, 40) // 10
    index = np.arange(120)
    found = ndimage.center_of_mass(cp.asarray(image), cp.asarray(labels), cp.asarray(index))
    assert type(found) is list
    wanted = scipy.center_of_mass(image, labels, index)
    assert np.allclose(cp.stack(found).get(), wanted)
    one = ndimage.center_of_mass(cp.asarray(image))
    assert type(one) is tuple
    assert np.allclose([float(each) for each in one], scipy.center_of_mass(image))
    assert one[0].shape == ()
    with pytest.raises(IndexError):
        ndimage.center_of_mass(cp.asarray(True))
    few = ndimage.center_of_mass(cp.asarray(image), cp.asarray(labels), 3)
    assert np.allclose([float(each) for each in few], wanted[3])
