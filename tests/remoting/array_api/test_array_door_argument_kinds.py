"""Functions of `cupyx` and of `random` take arguments of all kinds that CuPy takes."""

import importlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from door_cases import Described, answering, close, cupyx, refused

pytest.importorskip("scipy")

X = np.random.RandomState(3).rand(6, 5)
Y = X[::-1] + 0.5
V, W = X.ravel()[:24], Y.ravel()[:24]
IMAGE = X > 0.4
LABELS = np.arange(30, dtype="i4").reshape(6, 5) // 8


def on_host(value: Any) -> Any:
    """Return an object that makes an array of NumPy of itself."""
    return answering("__array__", np.asarray(value))


WHOLE: list[Callable[[int], Any]] = [np.int64, np.array, lambda n: answering("__index__", n)]
REAL: list[Callable[[float], Any]] = [np.float64, np.array, lambda x: answering("__float__", x)]
SEVERAL: list[Callable[[Any], Any]] = [
    *(tuple, list, np.array, iter, deque),
    lambda numbers: tuple(map(np.array, numbers)),
    lambda numbers: tuple(np.array(numbers)),
]
ARRAYS: list[Callable[[Any, Any], Any]] = [
    lambda cp, host: Described(cp.asarray(host)),
    lambda cp, host: answering("__cupy_get_ndarray__", cp.asarray(host)),
    lambda _cp, host: on_host(host),
]

CALLS: list[tuple[Any, ...]] = [
    ("ndimage.gaussian_filter", X, [1.0, 2.0], [0, 1]),
    ("ndimage.uniform_filter", X, 3, None, "wrap", 1.0, 1),
    ("ndimage.median_filter", X, [3, 2]),
    ("ndimage.grey_dilation", X, 3),
    ("ndimage.percentile_filter", X, 25.0, 3),
    ("ndimage.shift", X, [1.0, 0.5]),
    ("ndimage.zoom", X, 1.5),
    ("ndimage.distance_transform_edt", IMAGE, [1.0, 2.0]),
    ("ndimage.generate_binary_structure", 2, 1),
    ("ndimage.maximum", X, LABELS, 1),
    ("ndimage.correlate1d", X, [1.0, 2.0, 1.0], 0),
    ("signal.fftconvolve", X, Y, "same", [0, 1]),
    ("signal.lfilter", [1.0, 0.5], [1.0, -0.5], V, 0),
    ("signal.butter", 3, [0.25, 0.5], "band"),
    ("signal.firwin", 5, [0.25, 0.5]),
    ("signal.zpk2tf", [0.5], [0.25], 2.0),
    ("signal.upfirdn", [1.0, 2.0], V, 2, 3),
    ("signal.max_len_seq", 4),
    ("ndimage.label", IMAGE),
    ("linalg.lu", X),
    ("special.sici", V),
    ("signal.stft", V, 1.0, "hann", 8),
    ("signal.welch", V, 2.0, "hann", 8),
    ("signal.argrelmax", V, 0, 2),
    ("signal.detrend", V, 0, "linear", [4, 8]),
    ("signal.windows.gaussian", 8, 2.0),
    ("special.beta", V, 2.0),
    ("special.logsumexp", X, [0, 1]),
    ("special.polygamma", 2, V),
    ("linalg.toeplitz", V, [2.0, 1.0]),
    ("linalg.dft", 4),
    ("fft.fftn", X, [4, 4], [0, 1]),
    ("fft.fftshift", X, 1),
    ("fft.rfftfreq", 8, 0.5),
    ("fft.fftfreq", 8, 0.5),
    ("fft.dctn", X),
    ("stats.zscore", X, 0, 1),
    ("spatial.distance.minkowski", V, W, 2.0),
    ("interpolate.krogh_interpolate", [0.0, 1.0, 2.0], [1.0, 2.0, 4.0], [0.5, 1.5]),
    ("sparse.diags", [[1.0, 2.0, 3.0], [4.0, 5.0]], [0, 1]),
    ("sparse.eye", 3, 4, 1),
]


def _forms(cp: Any, value: Any) -> list[Any]:
    """Return the other forms that CuPy takes for an argument."""
    if isinstance(value, np.ndarray):
        return [made(cp, value) for made in ARRAYS]
    if type(value) in (int, float):
        return [made(value) for made in (WHOLE if type(value) is int else REAL)]
    if type(value) is not list:
        return []
    return [made(value) for made in (SEVERAL if type(value[0]) is not list else [deque])]


def _host(value: Any) -> list[Any]:
    """Return the arrays of a result."""
    if isinstance(value, (tuple, list)):
        return [_host(each)[0] for each in value]
    value = value.toarray() if hasattr(value, "toarray") else value
    return [np.asarray(value.get() if hasattr(value, "get") else value)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "given"), [(name, given) for name, *given in CALLS])
def test_an_argument_may_be_of_any_kind(cp: Any, name: str, given: list[Any]) -> None:
    path, _, last = name.rpartition(".")
    ours = getattr(cupyx(f"scipy.{path}"), last)
    scipys = getattr(importlib.import_module(f"scipy.{path}"), last)
    on_device = [cp.asarray(each) if isinstance(each, np.ndarray) else each for each in given]
    wanted = _host(ours(*on_device))
    as_scipy = [tuple(each) if type(each) is list else each for each in given]
    close(wanted, _host(scipys(*as_scipy)), 1e-5, 1e-8)
    wrong: list[str] = []
    for place, value in enumerate(given):
        for form in _forms(cp, value):
            try:
                made = _host(ours(*on_device[:place], form, *on_device[place + 1 :]))
                close(made, wanted, 1e-5, 1e-8)
                assert made[0].dtype == wanted[0].dtype
            except (AssertionError, AttributeError, TypeError, ValueError) as error:
                wrong.append(f"{place} {type(form).__name__}: {error}")
    assert not wrong


def test_whole_numbers_of_numpy_travel_as_numbers(cp: Any, monkeypatch: Any) -> None:
    extensions, fft, ndimage = map(cupyx, ("_extensions", "scipy.fft", "scipy.ndimage"))
    sent: list[Any] = []
    monkeypatch.setattr(extensions._make, "lazy", lambda _name, *sending: sent.append(sending))
    a, axes = cp.asarray(X), np.array([0, 1])
    fft.dctn(a, 2, axes, axes)
    ndimage.gaussian_filter(a, np.array(2), axes=axes)
    ndimage.gaussian_filter(a, 1, mode=np.array(["wrap", "mirror"]))
    ndimage.correlate1d(a, axes)
    assert sent[0][0][1:] == (2, [0, 1], [0, 1])  # an array of CuPy can be no axis
    assert (sent[1][0][1:], sent[1][1]) == ((2,), {"axes": [0, 1]})
    assert sent[2][1] == {"mode": ["wrap", "mirror"]}
    assert isinstance(sent[3][0][1], cp.ndarray)


def test_a_long_list_is_an_array(cp: Any) -> None:
    del cp
    assert cupyx("scipy.signal").upfirdn([1, 2], list(range(5000))).tolist()[-2:] == [14995, 9998]


def test_an_array_of_the_host_takes_no_result(cp: Any) -> None:
    ndimage, special = cupyx("scipy.ndimage"), cupyx("scipy.special")
    a, out = cp.asarray(X), np.zeros_like(X)
    for call in (
        lambda: ndimage.gaussian_filter(a, 1, output=out),
        lambda: ndimage.gaussian_filter(a, 1, 0, out),
        lambda: ndimage.distance_transform_edt(a, distances=out),
        lambda: special.erf(a, out),
        lambda: special.erf(a, out=out),
    ):
        refused((TypeError, "expected cupy", call))
    taken = cp.zeros_like(a)
    special.erf(a, Described(taken))
    assert taken.any()


@pytest.mark.parametrize("kind", [range, deque, on_host, Described])
def test_distributions_take_parameters_of_any_kind(cp: Any, kind: Any) -> None:
    sizes = {range: lambda: range(3), Described: lambda: Described(cp.arange(3))}
    several = sizes.get(kind, lambda: kind([0, 1, 2]))()
    for made in (cp.random.RandomState(5), cp.random.default_rng(5)):
        assert made.uniform(several, 3.0).shape == (3,)
    drawn = cp.random.RandomState(5).uniform(several, 3.0)
    assert (drawn == cp.random.RandomState(5).uniform(cp.arange(3), 3.0)).all()


@pytest.mark.parametrize("indices", [[0, 1, 1], np.array([0, 1, 1]), [[0, 1, 1]]])
@pytest.mark.parametrize("kind", [list, tuple, np.array, on_host, Described])
def test_values_are_scattered_of_any_kind(cp: Any, indices: Any, kind: Any) -> None:
    package: Any = importlib.import_module("cupyx")
    values = Described(cp.asarray([1.0, 2.0, 3.0])) if kind is Described else kind([1.0, 2.0, 3.0])
    a = cp.zeros(3)
    package.scatter_add(a, cp.asarray(indices) if isinstance(indices[0], list) else indices, values)
    assert a.tolist() == [1.0, 5.0, 0.0]
