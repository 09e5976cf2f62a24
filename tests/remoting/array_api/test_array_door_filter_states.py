"""Filters in parts on an emulated GPU: a state in the form of CuPy, computed by SciPy."""

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.remoting.devices.conventions import filter_states as states

scipy: Any = pytest.importorskip("scipy")


def filters() -> Any:
    """Return coefficients of up to three delays, of which few make a sum grow."""
    number = st.floats(-0.375, 0.375, width=32)
    first = st.sampled_from([1.0, -2.0, 0.5])
    numerator = st.lists(number, min_size=1, max_size=4)
    denominator = st.tuples(first, st.lists(number, max_size=3)).map(
        lambda made: [made[0], *made[1]]
    )
    return st.tuples(numerator.map(np.array), denominator.map(np.array))


@given(filters(), st.integers(0, 30), st.integers(0, 30), st.integers(0, 2))
@settings(max_examples=examples(200), deadline=None)
def test_a_signal_in_parts_is_the_signal_at_once(made: Any, one: int, two: int, axis: int) -> None:
    b, a = made
    x = np.random.default_rng(1).random((2, 3, 2))
    x = np.moveaxis(np.resize(x, (3, 2, 31)), -1, axis)
    whole = scipy.signal.lfilter(b, a, x, axis)
    shape = list(x.shape)
    shape[axis] = b.size + a.size - 2
    state, parts = np.zeros(shape), list[Any]()
    for part in np.split(x, sorted((one, two)), axis):
        filtered, state = states.lfilter(b, a, part, axis - 3, state)
        parts.append(filtered)
    np.testing.assert_allclose(np.concatenate(parts, axis), whole, atol=1e-9)


@given(filters(), st.integers(0, 9))
@settings(max_examples=examples(200), deadline=None)
def test_a_state_of_the_past_is_the_past(made: Any, size: int) -> None:
    b, a = made
    x = np.random.default_rng(2).random(size + 8)
    whole = scipy.signal.lfilter(b, a, x)
    past = states.lfiltic(b, a, whole[:size][::-1], x[:size][::-1])
    rest, _ = states.lfilter(b, a, x[size:], zi=past)
    np.testing.assert_allclose(rest, whole[size:], atol=1e-9)


@given(filters())
@example((np.array([0.0]), np.array([1.0, 0.25, 2.0**-126])))  # a singular matrix, by rounding
@example((np.array([0.25]), np.array([1.0, 2.0**-126, 0.25, 2.0**-140])))
@settings(max_examples=examples(200), deadline=None)
def test_a_filter_begins_at_the_end_of_its_response_to_a_step(made: Any) -> None:
    b, a = made
    assume(a[1:].all())  # else the least squares of too few equations: the next test
    assume(abs(a.sum()) > 0.1)
    filtered, _ = states.lfilter(b, a, np.ones(12), zi=states.lfilter_zi(b, a))
    np.testing.assert_allclose(filtered, np.full(12, b.sum() / a.sum()), atol=1e-6)


def test_a_filter_without_some_delays_begins_there_too() -> None:
    b, a = np.array([0.3, 0.2, 0.1]), np.array([1.0, 0.0, 0.25, 0.0])
    filtered, _ = states.lfilter(b, a, np.ones(12), zi=states.lfilter_zi(b, a))
    np.testing.assert_allclose(filtered, np.full(12, b.sum() / a.sum()), atol=1e-9)


def test_the_door_has_states_of_filters(cp: Any) -> None:
    signal: Any = importlib.import_module("cupyx.scipy.signal")
    b, a, x = cp.asarray([1.0, 0.5]), cp.asarray([1.0, -0.2]), cp.arange(6.0)
    whole = signal.lfilter(b, a, x)
    first, state = signal.lfilter(b, a, x[:4], zi=cp.zeros(2))
    assert state.tolist() == [3.0, float(whole[3])]
    rest, _ = signal.lfilter(b, a, x[4:], -1, state)
    assert np.allclose(cp.concatenate([first, rest]).get(), whole.get())
    assert signal.lfiltic(b, a, first[::-1], x[:4][::-1]).tolist() == state.tolist()
    assert np.allclose(signal.lfilter_zi(b, a).get(), [1.0, 1.875])
    sos = cp.asarray([[1.0, 0.5, 0.0, 1.0, -0.2, 0.0]])
    assert np.allclose(signal.sosfilt_zi(sos).get(), [[1, 1, 0, 1.875]])
    filtered, state = signal.sosfilt(sos, x, zi=cp.zeros((1, 4)))
    assert np.allclose(filtered.get(), whole.get())
    assert np.allclose(state.get(), [[4, 5, *whole.get()[-2:]]])
