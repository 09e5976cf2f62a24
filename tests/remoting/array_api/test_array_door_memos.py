"""Calls with a remembered plan: the second call must equal the first one."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

BOUND = st.none() | st.integers(-7, 7)
STEP = st.none() | st.integers(-3, 3).filter(bool)
PART = (
    st.integers(-4, 3)
    | st.builds(slice, BOUND, BOUND, STEP)
    | st.none()
    | st.just(...)
    | st.booleans()
    | st.just(np.int64(1))
)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return np.asarray(action())
    except (IndexError, ValueError) as error:
        return type(error)


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, np.ndarray):
        assert ours.shape == theirs.shape
        assert np.array_equal(ours, theirs)
    else:
        assert ours == theirs


@given(st.lists(PART, min_size=1, max_size=4).map(tuple), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_an_index_means_the_same_every_time(cp: Any, index: Any, alone: bool) -> None:
    index = index[0] if alone else index
    for start in (0, 100):
        host = np.arange(start, start + 4 * 5 * 3).reshape(4, 5, 3)
        array = cp.asarray(host)
        # NumPy gives scalars for complete indices, and CuPy arrays: asarray makes both one.
        same(outcome(lambda: array[index].get()), outcome(lambda: host[index]))  # noqa: B023


@given(st.lists(PART, min_size=1, max_size=3).map(tuple))
@settings(max_examples=examples(200), deadline=None)
def test_writing_by_an_index_means_the_same_every_time(cp: Any, index: Any) -> None:
    for value in (7.5, -1.0):
        host = np.arange(4.0 * 5 * 3).reshape(4, 5, 3)
        array = cp.asarray(host)

        def ours(value: float = value, array: Any = array) -> Any:
            array[index] = value
            array[index] = array[index] + cp.asarray(value)
            return array.get()

        def theirs(value: float = value, host: Any = host) -> Any:
            host[index] = value
            host[index] = host[index] + value
            return host

        same(outcome(ours), outcome(theirs))


@pytest.mark.parametrize("index", [(1, False, -6), (4, True), (True, ..., 3)])
def test_an_integer_beside_a_mask_is_checked_at_the_call(cp: Any, index: Any) -> None:
    array = cp.zeros((4, 5, 3))
    with pytest.raises(IndexError):
        array[index] = 1.5
    assert not array.get().any()


def test_an_empty_slice_that_runs_down_is_empty(cp: Any) -> None:
    host = np.arange(3)
    array = cp.asarray(host)
    for index in (slice(-10, None, -1), slice(None, None, -1), slice(-10, -20, -2)):
        for _ in range(2):
            assert array[index].get().tolist() == host[index].tolist()


def test_errors_are_the_same_every_time(cp: Any) -> None:
    a, b = cp.ones((4, 4)), cp.ones((3, 3))
    for _ in range(2):
        for call, kind in (
            (lambda: a[4], IndexError),
            (lambda: a[0, 0, 0], IndexError),
            (lambda: a @ b, ValueError),
            (lambda: a + b, ValueError),
            (lambda: a.reshape(3, 5), ValueError),
            (lambda: a.sum(2), np.exceptions.AxisError),
            (lambda: cp.where(a, a, b), ValueError),
            (lambda: a[1.0], IndexError),
        ):
            with pytest.raises(kind):
                call()


def test_a_plan_serves_subclasses_and_keeps_the_base(cp: Any) -> None:
    class Named(cp.ndarray):
        pass

    array = cp.arange(16.0).reshape(4, 4)
    named = array.view(Named)
    for _ in range(2):
        assert type(named[1]) is Named
        assert type(named[1:2]) is Named
        assert type(named.T) is Named
        assert type(array.T) is cp.ndarray
        assert array[1].base is array.base
        assert array[1:2][0].base is array.base


def test_an_operand_of_another_session_is_refused_by_remembered_plans(cp: Any) -> None:
    import socket

    import door_kit

    ours, theirs = socket.socketpair()
    thread, _ = door_kit.start_worker(theirs, door_kit.emulated(1, door_kit.MIB))
    session = cp._door.pool.attach(ours)
    try:
        a = cp.ones((4, 4))
        assert [a @ a, cp.where(a, a, a), a.dot(a)]
        a[1:2] = a[1:2]
        with cp.cuda.Device(session.first_device):
            b = cp.ones((4, 4))
        for call in (
            lambda: a @ b,
            lambda: a.dot(b),
            lambda: cp.where(a, a, b),
            lambda: a + b,
        ):
            with pytest.raises(ValueError, match="Peer access is unavailable"):
                call()
        a[1:2] = b[1:2]  # a copy between servers
        with cp.cuda.Device(session.first_device):
            assert float((b @ b)[0, 0]) == 4
    finally:
        session.close()
        cp._door.pool._sessions.remove(session)
        del cp._door.pool._devices[session.first_device :]
        thread.join(5)
