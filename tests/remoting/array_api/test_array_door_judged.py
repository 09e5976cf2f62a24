"""Errors raised by calls that wait for the worker's checks, and the remembered calls."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import importlib
import math
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest


def _late_error(cp: Any) -> Any:
    """Make a call fail that is not waited for; return its result."""
    [session] = cp._door.pool.sessions()
    cp.linalg.pinv(cp.eye(3))
    made = cp.linalg.pinv(cp.nan * cp.eye(3))
    session._sender.flush()
    return made


@contextlib.contextmanager
def _questions(session: Any) -> Generator[list[str]]:
    """List the questions that the session asks in a block."""
    asked: list[str] = []
    before = session.ask
    session.ask = lambda *args, **kwargs: asked.append(args[0]) or before(*args, **kwargs)
    try:
        yield asked
    finally:
        del session.ask


def test_another_thread_never_takes_the_error_of_a_call_that_waits(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a, taken = cp.ones(4), []
    before = session.ask

    def other() -> None:
        try:
            before("door.sync")
        except ValueError as error:
            taken.append(error)

    def ask(*args: Any, **kwargs: Any) -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        return before(*args, **kwargs)

    session.ask = ask
    try:
        with pytest.raises(ValueError, match="no such mode"):
            cp.pad(a, 1, "no such mode")
    finally:
        del session.ask
    assert taken == []
    with pytest.raises(ValueError, match="no such mode"):
        cp.pad(a, 1, "no such mode")  # it was not taken for an accepted kind
    session.synchronize()


def test_a_call_that_waits_raises_its_own_error_and_leaves_the_earlier_one(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    _late_error(cp)
    with pytest.raises(ValueError, match="no mode"):
        cp.pad(cp.ones(4), 5, "no mode")
    with pytest.raises(cp.linalg.LinAlgError):
        session.synchronize()
    session.synchronize()


def test_a_right_call_in_place_does_not_raise_an_earlier_error(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a = cp.asarray([3.0, 1.0, 2.0, 0.0, 7.0])
    _late_error(cp)
    a.sort()
    with pytest.raises(cp.linalg.LinAlgError):
        session.synchronize()
    assert a.get().tolist() == [0, 1, 2, 3, 7]


def test_each_of_several_late_errors_is_raised(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    for _ in range(2):
        _late_error(cp)
    for _ in range(2):
        with pytest.raises(cp.linalg.LinAlgError):
            session.synchronize()
    session.synchronize()


def test_a_call_on_the_result_of_a_failed_call_is_not_remembered(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    lost = _late_error(cp)
    with pytest.raises(cp.linalg.LinAlgError) as caught:
        cp.pad(lost, 1, "no mode at all")  # the worker runs nothing on what is not there
    assert "by the call at" in caught.value.__notes__[0]
    session.synchronize()
    with pytest.raises(ValueError, match="no mode at all"):
        cp.pad(cp.ones((3, 3)), 1, "no mode at all")


@pytest.mark.parametrize("wrong", [True, 1.0])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("sum", (2, 31)), ("median", (2, 33)), ("average", (2, 34))],
)
def test_an_axis_that_equals_an_int_makes_no_wrong_memo(
    cp: Any, name: str, shape: tuple[int, int], wrong: Any
) -> None:
    host = np.arange(float(math.prod(shape))).reshape(shape)
    call, a = getattr(cp, name), cp.asarray(host)
    expected = getattr(np, name)(host, axis=1)
    for axis in (wrong, 1, wrong):
        if type(axis) is float:
            with pytest.raises(TypeError):
                call(a, axis=axis)
        else:
            assert np.array_equal(call(a, axis=axis).get(), expected)
    assert call(a, axis=(True,)).get().tolist() == expected.tolist()


def test_kinds_of_equal_slices_of_other_types_differ(cp: Any) -> None:
    judged = importlib.import_module("cupy._door.judged").Judged()
    a = cp.ones(3)
    for part in (slice(1), slice(True), slice(1.0)):
        kind = judged.must_wait("delete", (a, part), {})
        assert kind is not None
        judged.accept(kind)
        assert judged.must_wait("delete", (a, part), {}) is None


@pytest.mark.parametrize(
    ("call", "good", "bad", "error"),
    [
        (
            lambda cp, w: cp.average(cp.ones(3), weights=cp.asarray(w)),
            [1.0, 1.0, 1.0],
            [0.0, 0.0, 0.0],
            ZeroDivisionError,
        ),
        (
            lambda cp, w: cp.average(cp.ones(3), weights=w),
            [1.0, 1.0, 1.0],
            [0.0, 0.0, 0.0],
            ZeroDivisionError,
        ),
        (lambda cp, q: cp.percentile(cp.ones(3), cp.asarray(q)), [10.0, 20.0], [10.0, 200.0], None),
        (lambda cp, q: cp.percentile(cp.ones(3), q), [10, 20], [10, 200], None),
        (lambda cp, q: cp.percentile(cp.ones(3), np.asarray(q)), [1.0, 2.0], [1.0, 200.0], None),
        (lambda cp, q: cp.percentile(cp.ones(3), q), [1.0] * 70, [1.0] * 69 + [101.0], None),
        (lambda cp, q: cp.quantile(cp.ones(3), tuple(q)), [0.1, 0.2], [0.1, 2.0], None),
        (
            lambda cp, w: cp.cov(cp.ones((2, 3)), fweights=cp.asarray(w)),
            [1, 2, 3],
            [0, 0, 0],
            (ZeroDivisionError, ValueError),
        ),
        (lambda cp, n: cp.repeat(cp.ones(2), cp.asarray(n)), [0, 1], [0, -9], None),
    ],
)
def test_errors_that_the_elements_decide_come_out_of_each_call(
    cp: Any, call: Any, good: Any, bad: Any, error: Any
) -> None:
    call(cp, good)
    for _ in range(2):
        with pytest.raises(error or ValueError):
            call(cp, bad)
    cp._door.pool.sessions()[0].synchronize()


def test_a_number_that_no_check_reads_makes_no_new_kind(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a, x = cp.ones(6), cp.arange(4.0)
    calls: list[tuple[Any, int]] = [
        (lambda at: cp.roll(a, at), 1),
        (lambda at: cp.roll(a, at, axis=0), 1),
        (lambda at: cp.interp(x, x, x, left=at * 0.1), 1),
        (lambda at: cp.interp(x, x, x, at * 0.1, float("nan")), 1),
        (lambda _: cp.select([a > 0], [a], float("nan")), 1),
        (lambda at: cp.repeat(a, at), 9),
        (lambda at: cp.pad(a, at), 9),
    ]
    for call, waits in calls:
        with _questions(session) as asked:
            for at in range(1, 10):
                call(at)
        assert len(asked) == waits


def test_a_remembered_kind_is_small(cp: Any) -> None:
    judged = importlib.import_module("cupy._door.judged").Judged()
    a, b = cp.ones(1000), cp.ones(999)
    calls: list[Any] = [
        [1] * 1000,
        [1] * 999 + [2],
        [1] * 999 + [True],
        [[1] * 500] * 2,
        [[[[[[[1, 2]]]]]]],
        [[[[[[[1, 3]]]]]]],
        [a] * 40,
        [a] * 39 + [b],
        (1,) * 1000,
        "x" * 1000,
    ]
    kinds: list[Any] = []
    for value in calls:
        kind = judged.must_wait("pad", (a, value), {"mode": value})
        assert kind == judged.must_wait("pad", (a, value), {"mode": value})
        kinds.append(kind)
    assert len(set(kinds)) == len(kinds)
    assert max(len(repr(kind)) for kind in kinds) < 1000
    each = importlib.import_module("cupy._door.judged").EACH
    assert judged.must_wait("pad", (a, [object()] * 40), {}) is each
