"""Groups: the calls of a function of `fuse` are computed as a whole where that is possible."""

import importlib
import runpy
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_kit import Handle, PipeLinks, Worker

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire, fused_groups
from gpupool.remoting.devices.emulated import EmulatedBackend

Function = Callable[..., Any]


@dataclass
class Kernels:
    """The programs that a worker was given, and how often each has run."""

    runs: list[int] = field(default_factory=list[int])
    refuses: bool = False
    """Whether the worker's library cannot follow a program."""

    def fuse(self, function: Function) -> Function:
        at = len(self.runs)
        self.runs.append(0)

        def kernel(*inputs: Any) -> Any:
            if self.refuses:
                raise NotImplementedError("such a kernel cannot be made")
            self.runs[at] += 1
            return function(*inputs)

        return kernel


@pytest.fixture(autouse=True)
def groups(dropin: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mark functions, as for a worker on a real GPU, and define all records anew.

    Nothing but the functions themselves ends a group: neither time nor a look at the memory left.
    """
    session = dropin._door.pool.current()
    monkeypatch.setattr(session, "takes_groups", True)
    monkeypatch.setattr(flusher(), "HOLD_S", 60.0)
    session.synchronize()
    session._queue.set_room(0, 1 << 40)
    session._handles.begin_anew()
    yield
    session._queue.forget_room()  # other tests use this session


def flusher() -> Any:
    return importlib.import_module("cupy._door.transport.flusher")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    made = Kernels()
    monkeypatch.setattr(EmulatedBackend, "fuse", lambda _self, function: made.fuse(function))
    return made


def thrice(cp: Any, function: Function, *hosts: Any) -> list[Any]:
    """Call a fused function three times; return its results, and its arrays afterwards."""
    fused = cp.fuse(function)
    found = []
    for _ in range(3):
        given = [cp.asarray(host) if isinstance(host, np.ndarray) else host for host in hosts]
        made = fused(*given)
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        arrays = [each for each in (*results, *given) if isinstance(each, cp.ndarray)]
        found.append([each.get() for each in arrays])
    return found


X = np.linspace(0.5, 3, 12).reshape(3, 4)


def test_a_chain_is_one_program_and_its_middle_is_not_kept(cp: Any, kernels: Kernels) -> None:
    rounds = thrice(cp, lambda x, y: cp.sqrt(x * y + 1.5) / (y - 0.25), X, X[0])
    for made, _, _ in rounds:
        np.testing.assert_allclose(made, np.sqrt(X * X[0] + 1.5) / (X[0] - 0.25))
    # The first call defines its records, and is not understood. `y - 0.25` has another shape.
    assert kernels.runs == [2]
    rounds = thrice(cp, lambda x, y: cp.sqrt(x * y + 1.5) / (y - 0.25), X, X + 1)
    for made, _, _ in rounds:
        np.testing.assert_allclose(made, np.sqrt(X * (X + 1) + 1.5) / (X + 0.75))
    assert kernels.runs == [2, 3]  # whose records were all defined before


def test_numbers_may_change_from_call_to_call(cp: Any, kernels: Kernels) -> None:
    step = cp.fuse(lambda x, n, r: (x + n) * r - n)
    a = cp.asarray(X)
    for n, r in ((1, 0.5), (2, 0.25), (3, -1.0), (1 << 40, 2.0)):
        np.testing.assert_allclose(step(a, n, r).get(), (X + n) * r - n)
    assert kernels.runs == [3]


def test_arrays_are_written_into(cp: Any, kernels: Kernels) -> None:
    def function(y: Any, x: Any) -> None:
        y += x * 2
        y *= x

    for y, x in thrice(cp, function, X, X + 1):
        np.testing.assert_allclose(y, (X + (X + 1) * 2) * (X + 1))
        np.testing.assert_array_equal(x, X + 1)
    assert kernels.runs == [2]


def test_an_array_that_is_read_elsewhere_is_not_written_into_too_early(
    cp: Any, kernels: Kernels
) -> None:
    def function(y: Any, x: Any) -> Any:
        y += x * 2
        return y - x

    fused = cp.fuse(function)
    for _ in range(3):
        a = cp.arange(8.0)
        b = np.arange(8.0)
        made = fused(a[1:], a[:-1])
        wanted = function(b[1:], b[:-1])
        np.testing.assert_array_equal(a.get(), b)
        np.testing.assert_array_equal(made.get(), wanted)
    assert not any(kernels.runs)


def test_what_works_on_elements_is_fused_around_the_rest(cp: Any, kernels: Kernels) -> None:
    def function(x: Any, y: Any) -> Any:
        near = cp.where(x > y, x - y, y - x).astype(np.float32)
        total = near.sum(axis=0)
        return near, cp.exp(-total) + total

    for near, total, _, _ in thrice(cp, function, X, X[::-1].copy()):
        wanted = abs(X - X[::-1]).astype(np.float32)
        assert near.dtype == total.dtype == np.float32
        np.testing.assert_allclose(near, wanted)
        np.testing.assert_allclose(total, np.exp(-wanted.sum(0)) + wanted.sum(0), rtol=1e-6)
    assert kernels.runs == [2, 2]


def test_a_program_that_no_kernel_can_be_is_tried_once(cp: Any, kernels: Kernels) -> None:
    kernels.refuses = True
    for made, _ in thrice(cp, lambda x: (x + 1) * 2, X):
        np.testing.assert_array_equal(made, (X + 1) * 2)
    assert kernels.runs == [0]
    kernels.refuses = False
    for made, _ in thrice(cp, lambda x: (x + 1) * 2, X):
        np.testing.assert_array_equal(made, (X + 1) * 2)
    assert kernels.runs == [0]


def test_a_kernel_of_another_type_is_not_used(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def fuse(_self: Any, function: Function) -> Function:
        def kernel(*inputs: Any) -> Any:
            nonlocal asked
            asked += 1
            return function(*[np.asarray(each, np.float64) for each in inputs])

        return kernel

    monkeypatch.setattr(EmulatedBackend, "fuse", fuse)
    for made, _ in thrice(cp, lambda x: (x + 1) * x, X.astype(np.float32)):
        assert made.dtype == np.float32
    assert asked == 1


def test_a_question_within_ends_the_group(cp: Any, kernels: Kernels) -> None:
    for made, _ in thrice(cp, lambda x: (x + 1)[cp.nonzero(x > 1)[0][0]] * 2, X):
        np.testing.assert_array_equal(made, (X[0] + 1) * 2)
    assert kernels.runs == []


def test_an_error_within_leaves_the_calls_before_it(cp: Any, kernels: Kernels) -> None:
    def function(x: Any, y: Any) -> Any:
        x += 1
        x *= 2
        return x + y

    fused = cp.fuse(function)
    a = cp.asarray(X)
    for _ in range(3):
        with pytest.raises(ValueError, match="broadcast"):
            fused(a, cp.ones(3))
    wanted = X
    for _ in range(3):
        wanted = (wanted + 1) * 2
    np.testing.assert_array_equal(a.get(), wanted)
    assert kernels.runs == [2]


def test_functions_are_fused_again_after_one_that_failed(cp: Any, kernels: Kernels) -> None:
    fused = cp.fuse(lambda x: (x + 1) * 2 - x)
    fused(cp.asarray(X))
    cp.get_default_memory_pool().set_limit(size=1 << 20)
    try:
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            fused(cp.ones(1 << 20))
    finally:
        cp.get_default_memory_pool().set_limit(size=0)
    for _ in range(3):  # the first one asks how much memory is left
        np.testing.assert_array_equal(fused(cp.asarray(X)).get(), (X + 1) * 2 - X)
    assert kernels.runs == [2]


def test_a_result_that_cannot_be_laid_out_fails_alone(cp: Any, kernels: Kernels) -> None:
    """As if another process of the lease had taken the rest, of which this one does not know."""
    fused = cp.fuse(lambda x: (x + 1).astype(np.float64, order="C"))
    a = cp.asarray(np.asfortranarray(np.ones((256, 512))), order="F")
    for _ in range(3):
        fused(a)
    cp.cuda.Device().synchronize()
    pool, session = cp.get_default_memory_pool(), cp._door.pool.current()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + a.nbytes * 3 // 2)
    try:
        session._queue.set_room(0, 1 << 40)
        made = fused(a)
        after = cp.asarray([1.0]) + 1
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            after.get()
        assert after.tolist() == [2]
        del made
    finally:
        pool.set_limit(size=0)
    assert sum(kernels.runs) == 3


def test_a_group_takes_no_more_memory_than_its_calls(cp: Any, kernels: Kernels) -> None:
    def function(x: Any) -> Any:
        for _ in range(12):
            x = cp.cumsum(x)
        return (x + 1) * 2

    a, fused = cp.ones(1 << 18), cp.fuse(function)
    pool, session = cp.get_default_memory_pool(), cp._door.pool.current()
    for _ in range(3):
        fused(a)
    cp.cuda.Device().synchronize()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + 4 * a.nbytes)
    try:
        for each in (function, fused):
            session._queue.set_room(0, 1 << 40)
            assert float(each(a)[0]) == 4
    finally:
        pool.set_limit(size=0)
    assert kernels.runs == [3]


def test_a_function_that_goes_on_for_long_holds_nothing_back(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cp._door.pool.current()
    monkeypatch.setattr(flusher(), "HOLD_S", 0.02)

    def function(x: Any) -> Any:
        made = x + 1
        before = session._sender.flushes
        deadline = time.monotonic() + 10
        while session._sender.flushes == before:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return made * 2

    x = cp.asarray(X) + 0  # so that nobody asks in the function how much memory is left
    np.testing.assert_array_equal(cp.fuse(function)(x).get(), (X + 1) * 2)


def test_what_an_interrupt_leaves_open_is_not_held_for_ever(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cp._door.pool.current()
    monkeypatch.setattr(flusher(), "HOLD_S", 0.02)
    x = cp.asarray(X) + 0
    session._sender.held_since = time.monotonic()
    made = x + 1
    before = session._sender.flushes
    deadline = time.monotonic() + 10
    while session._sender.flushes == before:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    np.testing.assert_array_equal(made.get(), X + 1)
    session._sender.held_since = 0.0


def test_what_is_asked_at_the_end_of_a_group_ends_it(
    cp: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destructor may ask something in the middle of any call."""
    session, wire = cp._door.pool.current(), cp._door.wire
    record = wire.SIZED_RECORD

    class Asking:
        size = record.size

        @staticmethod
        def pack(code: int, length: int) -> bytes:
            if code == wire.GROUP:
                session.ask("door.stats")
            return record.pack(code, length)

    fused = cp.fuse(lambda x: (x + 1) * 2 - x * 3)
    monkeypatch.setattr(wire, "SIZED_RECORD", Asking)
    for _ in range(3):
        np.testing.assert_allclose(fused(cp.asarray(X)).get(), (X + 1) * 2 - X * 3)
    assert kernels.runs == []


def test_a_long_function_and_one_on_a_server_of_before_run_as_they_are(
    cp: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(x: Any) -> Any:
        for _ in range(70):
            x = x + 1
        return x

    for made, _ in thrice(cp, long, X):
        np.testing.assert_allclose(made, X + 70)
    monkeypatch.setattr(cp._door.pool.current(), "takes_groups", False)
    for made, _ in thrice(cp, lambda x: x * 2 + 1, X):
        np.testing.assert_array_equal(made, X * 2 + 1)
    assert kernels.runs == []


def test_a_program_of_fused_functions_computes_what_numpy_computes(
    cp: Any, kernels: Kernels
) -> None:
    run = runpy.run_path(str(Path(__file__).with_name("programs") / "fused.py"))["run"]
    for ours, theirs in zip(run(cp), run(np), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-6)
    assert len(kernels.runs) > 30
    assert min(kernels.runs) >= 2


OPERATIONS: dict[str, tuple[int, Function, Function]] = {
    "+": (2, np.add, lambda cp: cp.add),
    "-": (2, np.subtract, lambda cp: cp.subtract),
    "*": (2, np.multiply, lambda cp: cp.multiply),
    "max": (2, np.maximum, lambda cp: cp.maximum),
    "abs": (1, np.absolute, lambda cp: cp.absolute),
    "sin": (1, np.sin, lambda cp: cp.sin),
    "sum": (1, lambda x: x.sum(0, keepdims=True), lambda _: lambda x: x.sum(0, keepdims=True)),
    "view": (1, lambda x: x[::-1], lambda _: lambda x: x[::-1]),
}


@st.composite
def functions(draw: st.DrawFn) -> tuple[list[tuple[str, list[int], int]], list[int]]:
    """Draw steps (operation, values, the value it writes into or -1) and the returned values."""
    steps: list[tuple[str, list[int], int]] = []
    for at in range(draw(st.integers(1, 10))):
        name = draw(st.sampled_from(sorted(OPERATIONS)))
        values = st.integers(0, at + 2)
        operands = [draw(values) for _ in range(OPERATIONS[name][0])]
        into = draw(values) if name in "+-*" and draw(st.integers(0, 3)) == 0 else -1
        steps.append((name, operands, into))
    return steps, draw(st.lists(st.integers(0, len(steps) + 2), max_size=3))


def run(drawn: Any, given: list[Any], table: Callable[[str], Function]) -> Any:
    steps, returned = drawn
    values = list(given)
    for name, operands, into in steps:
        arguments = [values[each] for each in operands]
        if into >= 0 and values[into].shape == np.broadcast_shapes(*[a.shape for a in arguments]):
            values.append(table(name)(*arguments, out=values[into]))
        else:
            values.append(table(name)(*arguments))
    return tuple([values[each] for each in returned])


@given(functions())
def test_a_fused_function_gives_what_it_gives_unfused(cp: Any, drawn: Any) -> None:
    hosts = [np.arange(6.0).reshape(2, 3), np.ones((2, 3)), np.arange(3.0)]
    wanted_arrays = [host.copy() for host in hosts]
    with np.errstate(all="ignore"):
        wanted = run(drawn, wanted_arrays, lambda name: OPERATIONS[name][1])
    fused = cp.fuse(lambda *given: run(drawn, list(given), lambda n: OPERATIONS[n][2](cp)))
    for _ in range(2):
        arrays = [cp.asarray(host) for host in hosts]
        made = fused(*arrays)
        for ours, theirs in zip((*made, *arrays), (*wanted, *wanted_arrays), strict=True):
            np.testing.assert_allclose(ours.get(), theirs, rtol=1e-12)


# --- records of a client that means harm ----------------------------------------------------------


def group(length: int, rest: bytes = b"") -> memoryview:
    return memoryview(array_wire.SIZED_RECORD.pack(array_wire.GROUP, length) + rest)


def test_a_group_that_is_cut_short_ends_the_session() -> None:
    worker = Worker(PipeLinks())
    with pytest.raises(RemoteProtocolError, match="cut short"):
        worker.executor.run(group(1), ask=False)
    with pytest.raises(RemoteProtocolError, match="malformed"):
        worker.executor.run(group(3, b"\0\0\0"), ask=False)
    with pytest.raises(RemoteProtocolError, match="without a call"):
        worker.executor.run(group(0), ask=True)
    worker.executor.run(group(0), ask=False)


@pytest.mark.parametrize("name", ["add", "where", "ndarray.astype", "divmod"])
@pytest.mark.parametrize(
    "args",
    [
        (),
        (Handle(1),),
        ((Handle(1), 2.0),),
        (Handle(1), ()),
        (True, None),
        (1.0, 2.0),
        (Handle(9),) * 2,
        (Handle(1), Handle(3)),  # the first call uses what the second makes
    ],
)
def test_calls_that_no_client_makes_fail_as_they_do_alone(name: str, args: Any) -> None:
    """The same records, in a group and without one, give the same failures or the same end."""
    ends: list[Any] = []
    for grouped in (False, True):
        worker = Worker(PipeLinks())
        worker.put(np.ones(3))
        both = [worker.record(name, *args, meta=array_wire.FIRST_META + 1) for _ in range(2)]
        worker.executor.run(memoryview(b"".join(define for define, _ in both)), ask=False)
        body = b"".join(record for _, record in both)
        try:
            worker.executor.run(group(len(body), body) if grouped else memoryview(body), ask=False)
            ends.append((worker.executor.sequence, worker.client.failures))
        except RemoteProtocolError as error:
            ends.append(str(error))
    assert str(ends[0])[:14] == str(ends[1])[:14] == "unknown handle" or ends[0] == ends[1]


@pytest.mark.parametrize(("argument", "runs", "kept"), [(1, [1], 2), (99, [0], 0)])
def test_a_call_that_failed_before_stops_only_what_uses_it(
    kernels: Kernels, argument: int, runs: list[int], kept: int
) -> None:
    worker = Worker(PipeLinks())
    worker.put(np.ones(3))
    worker.executor.fail_silently(99, ValueError("of a call before"))
    args, meta = (Handle(1), Handle(argument)), array_wire.FIRST_META + 1
    both = [worker.record("add", *args, meta=meta) for _ in range(2)]
    body = b"".join(record for _, record in both)
    worker.executor.run(memoryview(b"".join(define for define, _ in both)), ask=False)
    worker.executor.run(group(len(body), body), ask=False)
    assert kernels.runs == runs
    assert worker.executor.sequence == 2
    assert worker.client.failures == []
    made = [worker.executor.objects[handle] for handle in (2, 3)]
    assert sum(isinstance(each, np.ndarray) for each in made) == kept


def test_programs_are_remembered_up_to_a_bound(
    cp: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_groups, "PLANS_MAX", 2)
    fused = [cp.fuse(lambda x, f=f: f(x + 1) * 2) for f in (cp.cos, cp.tan, cp.exp)]
    a = cp.asarray(X)
    for _ in range(3):
        for each in fused:
            each(a)
    cp.cuda.Device().synchronize()
    assert len(kernels.runs) > 5
    assert struct.calcsize("<II") == array_wire.SIZED_RECORD.size
