"""Any call of an extension gives SciPy's result, or an error; the session lives on."""

import importlib
import inspect
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.devices.extension_names import EXTENSIONS

pytest.importorskip("scipy")

FUNCTIONS = [(path, name) for path, names in EXTENSIONS.items() for name in names]
OTHERWISE = frozenset(
    (
        # CuPy's conventions, which the emulation has adapters for.
        *("lfilter", "sosfilt", "lfilter_zi", "sosfilt_zi", "lfiltic", "solve_triangular"),
        *("dct", "dst", "idct", "idst", "affine_transform", "distance_transform_edt"),
        *("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"),
        *EXTENSIONS["scipy.spatial.distance"],
    )
)


def numbers() -> Any:
    return st.one_of(
        st.integers(-3, 6), st.floats(-4, 4, width=32), st.just(float("nan")), st.booleans()
    )


@st.composite
def matrices(draw: Any) -> Any:
    random = np.random.RandomState(draw(st.integers(0, 99)))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    dtype = draw(st.sampled_from(["?", "i1", "u2", "i4", "i8", "f4", "f8", "c8", "c16"]))
    return random.randint(0, 4, shape).astype(dtype)


def values() -> Any:
    junk = st.one_of(st.none(), st.sampled_from(["reflect", "same", "hann", "", "x"]))
    shapes = st.lists(st.integers(-1, 4), max_size=3)
    return st.one_of(matrices(), matrices(), numbers(), junk, shapes, shapes.map(tuple))


def theirs(path: str, name: str) -> Any:
    return getattr(importlib.import_module(path), name, None)


def parameters(function: Any) -> tuple[int, list[str]]:
    """Return how many arguments a function cannot do without, and keywords that it takes."""
    if isinstance(function, np.ufunc):
        return function.nin, []
    if inspect.isbuiltin(function):  # it says nothing of its parameters
        return 3, []
    known, first = inspect.signature(function).parameters, inspect.Parameter
    kinds = (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    needed = [each for each in known.values() if each.default is first.empty and each.kind in kinds]
    words = ("axis", "axes", "mode", "order", "n", "norm")
    return len(needed), [name for name in words if name in known]


@st.composite
def calls(draw: Any) -> Any:
    path, name = draw(st.sampled_from(FUNCTIONS))
    function = theirs(path, name)
    if function is None:  # newer versions of SciPy have it no more
        return path, name, (), {}
    needed, words = parameters(function)
    args = tuple(draw(values()) for _ in range(needed))
    more = draw(st.dictionaries(st.sampled_from(["none", *words]), values(), max_size=1))
    more.pop("none", None)
    return path, name, args, more


def outcome(function: Any, args: Any, kwargs: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - any error will do
            return None, error


def compare(cp: Any, made: Any, wanted: Any) -> None:
    if isinstance(wanted, (tuple, list)):
        assert type(made) is type(wanted) or isinstance(made, tuple)
        assert len(made) == len(wanted)
        for one, other in zip(made, wanted, strict=True):
            compare(cp, one, other)
    elif isinstance(wanted, dict):
        assert set(made) == set(wanted)
        for key, value in wanted.items():
            compare(cp, made[key], value)
    elif isinstance(wanted, (np.ndarray, np.generic, int, float, complex)):
        host = cp.asnumpy(made)
        expected: Any = np.asarray(wanted)
        assert host.shape == expected.shape
        if isinstance(wanted, (np.ndarray, np.generic)):
            assert host.dtype == expected.dtype
        np.testing.assert_array_equal(host, expected)
    else:
        assert made == wanted


@settings(
    max_examples=examples(300),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(call=calls())
def test_a_call_gives_what_scipy_gives_or_raises(cp: Any, call: Any) -> None:
    path, name, args, kwargs = call
    wanted, error = outcome(theirs(path, name), args, kwargs)
    function = getattr(importlib.import_module(f"cupyx.{path}"), name)

    def upload(value: Any) -> Any:
        return cp.asarray(value) if isinstance(value, np.ndarray) else value

    def through_the_door() -> Any:
        made = function(*map(upload, args), **{key: upload(each) for key, each in kwargs.items()})
        cp._door.pool.current().synchronize()
        return made

    made, failed = outcome(through_the_door, (), {})
    assert cp._door.pool.current().failure is None, "the session lives"
    if name in OTHERWISE:
        return
    if error is not None:
        assert failed is not None, f"SciPy says {error!r}"
    elif failed is None:
        compare(cp, made, wanted)
    else:
        kinds = (TypeError, ValueError, NotImplementedError, MemoryError, OverflowError)
        assert isinstance(failed, kinds), failed
