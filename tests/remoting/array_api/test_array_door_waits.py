"""Calls that wait for the worker: how often they do, their errors, and remembered kinds of calls.

Each error comes out of the call that is wrong, and of no other.
"""

import importlib
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import questions, refused

from gpupool.remoting.devices import cuda_operations

LINALG_ERROR = np.linalg.LinAlgError


def _judged() -> Any:
    return importlib.import_module("cupy._door.judged")


def _late_error(cp: Any) -> Any:
    """Make a call fail that is not waited for; return its result."""
    [session] = cp._door.pool.sessions()
    cp.linalg.pinv(cp.eye(3))
    made = cp.linalg.pinv(cp.nan * cp.eye(3))
    session._sender.flush()
    return made


# --- how often ------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "one array": (lambda cp, a: cp.linalg.inv(a), 1),
    "several": (lambda cp, a: cp.linalg.svd(a, full_matrices=False), 1),
    "a list": (lambda cp, a: cp.gradient(a), 1),
    "nothing": (lambda cp, a: cp.fill_diagonal(a, 2.0), 1),
    "an output": (lambda cp, a: cp.cumsum(a, axis=1, out=a), 1),
    "a list of the host": (lambda cp, a: cp.cross(a, [1.0, 2.0, 3.0]), 1),
    "put": (lambda cp, a: cp.put(a, cp.arange(2), 0), 1),
    "of elements": (lambda cp, a: cp.nonzero(a), 3),
    "errors of elements": (lambda cp, a: cp.repeat(a[0], cp.asarray([1, 2, 3])), 3),
    "errors of indices": (lambda cp, a: cp.put(a, cp.arange(2), 0, mode="raise"), 3),
    "a number": (lambda cp, a: cp.shares_memory(a, a), 3),
    "another size": (lambda cp, a: [cp.pad(a, 2), cp.pad(a, 3), cp.pad(a[:2], 2)], 3),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_asks_once_unless_its_elements_decide(cp: Any, name: str) -> None:
    call, times = KINDS[name]
    a = cp.asarray([[4.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
    with questions(cp._door.pool.current()) as asked:
        for _ in range(3):
            call(cp, a)
    assert len(asked) == times


NUMBERS: list[tuple[Callable[[Any, Any, int], Any], int]] = [
    (lambda cp, a, at: cp.roll(a, at), 1),
    (lambda cp, a, at: cp.roll(a, at, axis=0), 1),
    (lambda cp, a, at: cp.interp(a, a, a, left=at * 0.1), 1),
    (lambda cp, a, at: cp.interp(a, a, a, at * 0.1, float("nan")), 1),
    (lambda cp, a, at: cp.isclose(a, a, (0.5, float("nan"))[at % 2]), 1),
    (lambda cp, a, _: cp.select([a > 0], [a], float("nan")), 1),
    (lambda cp, a, at: cp.repeat(a, at), 9),
    (lambda cp, a, at: cp.pad(a, at), 9),
]


@pytest.mark.parametrize(("call", "waits"), NUMBERS)
def test_a_number_that_no_check_reads_makes_no_new_kind(cp: Any, call: Any, waits: int) -> None:
    a = cp.ones(6)
    with questions(cp._door.pool.current()) as asked:
        for at in range(1, 10):
            call(cp, a, at)
    assert len(asked) == waits


def test_a_float_that_is_a_count_is_known_by_its_value(cp: Any) -> None:
    for count in (8.0, 4.0, 8, 4.0):
        assert cp.fft.fftfreq(count, 0.5).shape == (int(count),)
        assert cp.rot90(cp.ones((2, 3)), count / 4).shape == ((2, 3) if count == 8 else (3, 2))


@pytest.mark.parametrize("wrong", [True, 1.0])
@pytest.mark.parametrize("name", ["sum", "median", "average"])
def test_an_axis_that_equals_an_int_makes_no_wrong_memo(cp: Any, name: str, wrong: Any) -> None:
    host = np.arange(62.0).reshape(2, 31)
    call, a = getattr(cp, name), cp.asarray(host)
    expected = getattr(np, name)(host, axis=1)
    for axis in (wrong, 1, wrong):
        if type(axis) is float:
            with pytest.raises(TypeError):
                call(a, axis=axis)
        else:
            assert np.array_equal(call(a, axis=axis).get(), expected)
    assert call(a, axis=(True,)).get().tolist() == expected.tolist()


def _halving(cp: Any, loops: int) -> Any:
    matrix, x = cp.eye(30) / 2, cp.ones(30)
    for _ in range(loops):
        x = matrix @ x
        size = x @ x
        if float(cp.sqrt(size)) < 0:
            break
        x += x / (size + 1)
    return x


def test_a_loop_with_a_stop_test_waits_once_in_each_turn(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    _halving(cp, 3).get()  # whatever waits the first time
    session.waits = importlib.import_module("cupy._door.waits").Waits()
    try:
        _halving(cp, 5)
        few = session.waits.counts.total()
        _halving(cp, 15)
        assert session.waits.counts.total() - 2 * few == 10
    finally:
        session.waits = None


STOPPING = """
import cupy as cp
a = cp.ones(3)
for turn in range(7):
    a += 1
    if float(a.sum()) < 0:
        break
cp.asnumpy(a)
"""


def test_two_v_tell_how_often_a_program_waited_and_where() -> None:
    with door_kit.pool() as agent:
        quiet = door_kit.run_program(agent, STOPPING, GPUPOOL_VERBOSE="1")
        done = door_kit.run_program(agent, STOPPING, GPUPOOL_VERBOSE="2")
    assert (quiet.returncode, quiet.stderr, done.returncode) == (0, "", 0)
    heading, loop, last, *others = done.stderr.splitlines()
    assert heading == f"gpupool: waited for the server {8 + len(others)} times"
    assert loop == "gpupool: waited for the server 7 times: to read an array, at <string>:6"
    assert last == "gpupool: waited for the server 1 times: to read an array, at <string>:8"
    assert not any("<string>" in line for line in others)


def test_places_that_a_program_waited_at_are_bounded(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = importlib.import_module("cupy._door.waits")
    monkeypatch.setattr(waits, "PLACES_MAX", 3)
    monkeypatch.setattr(waits, "SHOWN_MAX", 2)
    account = waits.Waits()
    for name in ("a", "b", "b", "c", "d", "e", "b"):
        account.count(name)
    assert (len(account.counts), account.counts.total()) == (4, 7)
    lines = list(waits.told([account, None]))
    assert lines[0] == "waited for the server 7 times"
    assert lines[1].startswith("waited for the server 3 times: b, at ")
    assert lines[2:] == [
        "waited for the server 2 times: at other places",
        "waited for the server 2 times at 2 other places",
    ]


def test_an_array_is_asked_for_its_address_once(cp: Any) -> None:
    a = cp.arange(6).reshape(2, 3)
    parts = [a[0], a[1], a[:, :2], a[:0]]
    with questions(cp._door.pool.current()) as asked:
        for _ in range(2):
            assert not cp.may_share_memory(parts[0], parts[1])
            assert [cp.may_share_memory(a, part) for part in parts] == [True, True, True, False]
        assert len(asked) == 4
        part, there = a[1], a[1].data.ptr
        part.shape = (3, 1)
        assert part.data.ptr == there


def test_a_block_may_forbid_to_wait_for_the_device(cp: Any) -> None:
    package: Any = importlib.import_module("cupyx")
    with package.allow_synchronize(False):
        b = cp.ones(3) + 1
        for wait in (b.get, lambda: float(b[0]), cp.cuda.Device().synchronize):
            with pytest.raises(package.DeviceSynchronized):
                wait()
        with package.allow_synchronize(True):
            assert b.tolist() == [2, 2, 2]
    assert b.tolist() == [2, 2, 2]


# --- whose error ----------------------------------------------------------------------------------


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


def test_a_call_that_waits_raises_its_own_error_and_leaves_the_earlier_ones(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    for _ in range(2):
        _late_error(cp)
    with pytest.raises(ValueError, match="no mode"):
        cp.pad(cp.ones(4), 5, "no mode")
    a = cp.asarray([3.0, 1.0, 2.0, 0.0, 7.0])
    a.sort()  # a right call in place
    refused(*[(LINALG_ERROR, "", session.synchronize)] * 2)
    session.synchronize()
    assert a.get().tolist() == [0, 1, 2, 3, 7]


def test_a_call_on_the_result_of_a_failed_call_is_not_remembered(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    lost = _late_error(cp)
    with pytest.raises(LINALG_ERROR) as caught:
        cp.pad(lost, 1, "no mode at all")  # the worker runs nothing on what is not there
    assert "by the call at" in caught.value.__notes__[0]
    session.synchronize()
    refused((ValueError, "no mode", lambda: cp.pad(cp.ones((3, 3)), 1, "no mode at all")))


def test_what_depends_on_a_failure_fails_and_the_rest_goes_on(cp: Any) -> None:
    good, bad = cp.arange(3), _late_error(cp)
    worse = bad + 1
    refused((LINALG_ERROR, "", worse.get))
    assert good.tolist() == [0, 1, 2]
    refused((LINALG_ERROR, "", bad.get))


ELEMENTS: list[tuple[Any, Callable[[Any, Any], Any], Any, Any]] = [
    (ZeroDivisionError, lambda cp, w: cp.average(cp.ones(3), weights=cp.asarray(w)),
     [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    (ZeroDivisionError, lambda cp, w: cp.average(cp.ones(3), weights=w),
     [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    (ValueError, lambda cp, q: cp.percentile(cp.ones(3), cp.asarray(q)), [10.0, 20], [10.0, 200]),
    (ValueError, lambda cp, q: cp.percentile(cp.ones(3), q), [10, 20], [10, 200]),
    (ValueError, lambda cp, q: cp.percentile(cp.ones(3), np.asarray(q)), [1.0, 2.0], [1.0, 200.0]),
    (ValueError, lambda cp, q: cp.percentile(cp.ones(3), q), [1.0] * 70, [1.0] * 69 + [101.0]),
    (ValueError, lambda cp, q: cp.quantile(cp.ones(3), tuple(q)), [0.1, 0.2], [0.1, 2.0]),
    ((ZeroDivisionError, ValueError),
     lambda cp, w: cp.cov(cp.ones((2, 3)), fweights=cp.asarray(w)), [1, 2, 3], [0, 0, 0]),
    (ValueError, lambda cp, n: cp.repeat(cp.ones(2), cp.asarray(n)), [0, 1], [0, -9]),
]  # fmt: skip


@pytest.mark.parametrize(("error", "call", "good", "bad"), ELEMENTS)
def test_errors_that_the_elements_decide_come_out_of_each_call(
    cp: Any, error: Any, call: Any, good: Any, bad: Any
) -> None:
    call(cp, good)
    refused(*[(error, "", lambda: call(cp, bad))] * 2)
    cp._door.pool.current().synchronize()


def test_errors_of_linalg_come_where_a_program_wants_them(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, told = importlib.import_module("cupyx"), list[Any]()
    cp.linalg.cholesky(cp.eye(3))
    session = cp._door.pool.current()
    call = session.call

    def tell(name: str, args: Any, *rest: Any) -> Any:
        told.extend([args[0]] if name == "door.linalg_errors" else [])
        return call(name, args, *rest)

    monkeypatch.setattr(session, "call", tell)
    with package.errstate(linalg="raise"):
        refused((LINALG_ERROR, "", lambda: cp.linalg.cholesky(-cp.eye(3))))
        with package.errstate(divide="raise"):
            pass
    assert told == [True, False]
    settings: list[str] = []
    library = types.SimpleNamespace(seterr=lambda linalg: settings.append(linalg))
    monkeypatch.setattr(cuda_operations.importlib, "import_module", lambda _name: library)
    for raised in (True, False):
        cuda_operations.linalg_errors(raised)  # of a real GPU
    assert settings == ["raise", "ignore"]


# --- what is remembered ---------------------------------------------------------------------------


_FIXED = """bartlett blackman diag_indices einsum eye hamming hanning identity indices kaiser
    linspace logspace matrix_power meshgrid pad repeat resize tile tri tril_indices triu_indices"""
"""Rows with results that values of the host decide, and no elements."""


@pytest.mark.parametrize(
    "module", ["cupy._core.learned", "cupy.linalg", "cupy.polynomial.polynomial"]
)
def test_no_row_remembers_what_elements_decide(cp: Any, module: str) -> None:
    from cupy._door.errors import MismatchError  # pyright: ignore[reportMissingImports]

    values = [0, 3, 0, 0], [0, 0, 2, 1], [1, 1, 1, 1], [0, 0, 0, 0], [-1, 4, 4, 2]
    for name, function in vars(importlib.import_module(module)).items():
        if not hasattr(function, "__wrapped__") or name in _FIXED.split():
            continue
        needed = [each.default for each in inspect.signature(function).parameters.values()]
        count = max(1, needed.count(inspect.Parameter.empty))
        for made in [each for value in values for each in (cp.asarray(value), cp.diag(value))]:
            try:
                function(*[made * 1.0] * count)
                cp.cuda.Device().synchronize()
            except MismatchError:
                raise
            except Exception:  # noqa: BLE001 - some take no such arguments
                continue


def test_a_wrong_memory_is_an_error_and_no_wrong_number(cp: Any) -> None:
    from cupy._core.dispatch import make
    from cupy._door.errors import MismatchError
    from cupy._door.meta import fresh

    a, b = cp.ones((2, 3)), cp.ones((3, 2))
    cp.roll(a, 1)
    cp.roll(b, 1)
    known = cp._door.pool.current().judged.known
    first, second = [kind for kind in known if kind[0] == "roll" and len(kind) > 3][:2]
    known[first] = known[second]
    guessed = fresh(np.dtype(np.float32), (2, 3))
    refused(
        (ValueError, "Negative dimensions", lambda: fresh(np.dtype(np.float32), (2, -3))),
        (MismatchError, "the client inferred", cp.roll(a, 1).get),
        (MismatchError, "client inferred float32", make.forward("sqrt", (a,), {}, guessed).get),
    )
    assert a.tolist() == [[1, 1, 1]] * 2


def test_a_row_has_the_parameters_of_a_function(cp: Any) -> None:
    assert [*inspect.signature(cp.linalg.svd).parameters] == ["a", "full_matrices", "compute_uv"]
    refused(
        (TypeError, "keyword argument 'full'", lambda: cp.linalg.svd(cp.eye(2), full=False)),
        (TypeError, "missing 1 .* argument: 'kth'", lambda: cp.partition(cp.ones(3))),
        (TypeError, r"expected cupy\.ndarray, got ndarray", lambda: cp.linalg.inv(np.eye(2))),
    )
    assert cp.linalg.eigh(cp.eye(2))[0].tolist() == [1, 1]


def test_kinds_of_equal_slices_of_other_types_differ(cp: Any) -> None:
    judged, a = _judged().Judged(), cp.ones(3)
    first, again = (judged.must_wait("pad", (a, float("nan")), {}) for _ in range(2))
    assert first == again
    for part in (slice(1), slice(True), slice(1.0)):
        kind = judged.must_wait("delete", (a, part), {})
        assert kind is not None
        judged.accept(kind)
        assert judged.must_wait("delete", (a, part), {}) is None


def test_a_remembered_kind_is_small(cp: Any) -> None:
    judged = _judged().Judged()
    a, b = cp.ones(1000), cp.ones(999)
    values: list[Any] = [
        *([1] * 1000, [1] * 999 + [2], [1] * 999 + [True], [[1] * 500] * 2, (1,) * 1000),
        *([[[[[[[1, 2]]]]]]], [[[[[[[1, 3]]]]]]], [a] * 40, [a] * 39 + [b], "x" * 1000),
    ]
    kinds = [judged.must_wait("pad", (a, value), {"mode": value}) for value in values]
    assert kinds == [judged.must_wait("pad", (a, value), {"mode": value}) for value in values]
    assert len(set(kinds)) == len(kinds)
    assert max(len(repr(kind)) for kind in kinds) < 1000
    assert judged.must_wait("pad", (a, [object()] * 40), {}) is _judged().EACH


def test_the_kinds_that_are_remembered_are_bounded(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_judged(), "KINDS_MAX", 2)
    kinds = _judged().Judged()
    waits: list[bool] = []
    for number in (1, 1, 2, 1, 3, 1):
        kind = kinds.must_wait("pad", (number,), {})
        waits.append(kind is not None)
        if kind is not None:
            kinds.accept(kind)
    # The third kind made it forget the others.
    assert waits == [True, False, True, False, True, True]
    for _ in range(2):
        assert kinds.must_wait("select", ({1: 2},), {}) is _judged().EACH
