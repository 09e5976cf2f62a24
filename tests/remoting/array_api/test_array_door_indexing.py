"""Indices, views and types of pairs: the drop-in infers them as NumPy has them.

Indexing remembers a plan for each form of an index: the second call must equal the first one.
"""

import socket
from collections.abc import Callable
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.properties import examples

DTYPES = "?bBhHiIqQefdFD"
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


def filled(shape: tuple[int, ...], dtype: str, order: str = "C") -> np.ndarray[Any, Any]:
    size = int(np.prod(shape, dtype=int))
    made = (np.arange(size) % 7).astype(dtype).reshape(shape)
    return np.asarray(made, order=order)  # type: ignore[call-overload]


def agree(ours: Any, theirs: Any) -> None:
    """Compare the inferred properties, then the elements; the worker compares its result too."""
    theirs = np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert np.array_equal(ours.get(), theirs)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return np.asarray(action()).tolist()
    except (IndexError, ValueError) as error:
        return type(error)


@given(st.lists(PART, min_size=1, max_size=4).map(tuple), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_an_index_means_the_same_every_time(cp: Any, index: Any, alone: bool) -> None:
    index = index[0] if alone else index
    for start in (0, 100):
        host = np.arange(start, start + 4 * 5 * 3).reshape(4, 5, 3)
        array = cp.asarray(host)
        assert outcome(lambda: array[index].get()) == outcome(lambda: host[index])  # noqa: B023


@given(st.lists(PART, min_size=1, max_size=3).map(tuple))
@settings(max_examples=examples(200), deadline=None)
def test_writing_by_an_index_means_the_same_every_time(cp: Any, index: Any) -> None:
    def written(array: Any, value: Any, number: float) -> Any:
        array[index] = number
        array[index] = array[index] + value
        return array

    for number in (7.5, -1.0):
        host = np.arange(4.0 * 5 * 3).reshape(4, 5, 3)
        array, value = cp.asarray(host), cp.asarray(number)
        ours = outcome(lambda: written(array, value, number).get())  # noqa: B023
        assert ours == outcome(lambda: written(host, number, number))  # noqa: B023


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    index = draw(hnp.basic_indices(shape, allow_newaxis=True))
    items = index if isinstance(index, tuple) else (index,)
    return shape, items if ... in items else (*items, ...)


@given(indexed(), st.sampled_from("CF"), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_part_and_its_reshape_are_views_exactly_where_numpys_are(
    cp: Any, pair: Any, order: str, data: st.DataObject
) -> None:
    shape, index = pair
    host = filled(shape, "i", order)
    array = cp.asarray(host)
    ours, theirs = array[index], host[index]
    agree(ours, theirs)
    if 0 not in theirs.shape:
        for length, mine, wanted in zip(theirs.shape, ours.strides, theirs.strides, strict=True):
            assert length == 1 or mine == wanted
    shapes = data.draw(st.permutations([*theirs.shape, 1]))
    for letter in "CF":
        part = theirs.reshape(shapes, order=letter)  # type: ignore[call-overload]
        made = ours.reshape(shapes, order=letter)
        agree(made, part)
        if part.size > 1:
            assert (made.base is not None) == np.may_share_memory(part, host)
    ours[...] = theirs[...] = 99
    assert np.array_equal(array.get(), host)


def test_what_is_remembered_of_an_index_is_of_its_form(cp: Any) -> None:
    a, places = cp.arange(12.0).reshape(3, 4), cp.asarray([2, 0])
    host = a.get()
    for _ in range(2):
        for ours, theirs in (
            (places, [2, 0]),
            ((slice(None), places), (slice(None), [2, 0])),
            ((places, slice(1, 3)), ([2, 0], slice(1, 3))),
            (([2], 1), ([2], 1)),
        ):
            assert (a[ours].get() == host[theirs]).all()
        a[places] = a[places] + 1
        host[[2, 0]] += 1
        a[[1], 2] = host[[1], 2] = 5
        a[a > 9] = host[host > 9] = 0.5
        assert (a.get() == host).all()


@pytest.mark.parametrize(
    "name", ["add", "multiply", "true_divide", "power", "maximum", "less", "arctan2", "logical_and"]
)
@pytest.mark.parametrize("first", DTYPES)
def test_result_types_of_pairs_are_numpys(cp: Any, name: str, first: str) -> None:
    a = np.ones(2, first)
    for second in [*DTYPES, int, float, complex]:
        b = second(1) if isinstance(second, type) else np.ones(2, second)
        try:
            wanted = getattr(np, name)(a, b).dtype
        except TypeError:
            continue
        theirs = cp.asarray(b) if isinstance(b, np.ndarray) else b
        try:
            ours = getattr(cp, name)(cp.asarray(a), theirs)
        except TypeError:
            # NumPy computes logic of complex numbers and mixed 64-bit integers; CuPy has no loop.
            assert name in ("logical_and", "arctan2", "less", "maximum")
            continue
        assert ours.dtype == wanted, (name, first, second)
        ours.get()


def test_an_operand_of_another_session_is_refused_by_remembered_plans(cp: Any) -> None:
    ours, theirs = socket.socketpair()
    thread, _ = door_kit.start_worker(theirs, door_kit.emulated(1, door_kit.MIB))
    session = cp._door.pool.attach(ours)
    try:
        a = cp.ones((4, 4))
        assert [a @ a, cp.where(a, a, a), a.dot(a)]
        a[1:2] = a[1:2]
        with cp.cuda.Device(session.first_device):
            b = cp.ones((4, 4))
        for call in (lambda: a @ b, lambda: a.dot(b), lambda: cp.where(a, a, b), lambda: a + b):
            refused((ValueError, "Peer access is unavailable", call))
        a[1:2] = b[1:2]  # a copy between servers
        with cp.cuda.Device(session.first_device):
            assert float((b @ b)[0, 0]) == 4
    finally:
        session.close()
        cp._door.pool._sessions.remove(session)
        del cp._door.pool._devices[session.first_device :]
        thread.join(5)
