"""Groups: the calls of a function of `fuse` are computed as a whole where that is possible."""

import contextlib
import importlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
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


X = np.linspace(0.5, 3, 12).reshape(3, 4)


def thrice(cp: Any, function: Function, *hosts: Any) -> None:
    """Call a fused function three times; compare results and arrays with those of NumPy.

    Its first argument is the module that it computes with.
    """
    fused = cp.fuse(lambda *given: function(cp, *given))
    for _ in range(3):
        theirs = [host.copy() if isinstance(host, np.ndarray) else host for host in hosts]
        ours = [cp.asarray(host) if isinstance(host, np.ndarray) else host for host in hosts]
        made, wanted = fused(*ours), function(np, *theirs)
        results = (made, wanted) if isinstance(wanted, tuple) else ((made,), (wanted,))
        pairs = [*zip(*results, strict=True), *zip(ours, theirs, strict=True)]
        for mine, other in pairs:
            if isinstance(other, np.ndarray):
                assert mine.dtype == other.dtype
                np.testing.assert_allclose(mine.get(), other, rtol=1e-6)


def _chain(xp: Any, x: Any, y: Any) -> Any:
    return xp.sqrt(x * y + 1.5) / (y - 0.25)


def _in_place(_xp: Any, y: Any, x: Any) -> None:
    y += x * 2
    y *= x


def _around(xp: Any, x: Any, y: Any) -> Any:
    near = xp.where(x > y, x - y, y - x).astype(np.float32)
    total = near.sum(axis=0)
    return near, xp.exp(-total) + total


def _long(_xp: Any, x: Any) -> Any:
    for _ in range(70):
        x = x + 1
    return x


def _twice(_xp: Any, x: Any) -> Any:
    return (x + 1) * 2


def _adam(xp: Any, w: Any, g: Any, m: Any, v: Any, rate: float) -> None:
    m *= 0.9
    m += g * 0.1
    v *= 0.999
    v += g * g * 0.001
    w -= rate * m / (xp.sqrt(v) + 1e-3)


def _types(xp: Any, a: Any, b: Any) -> Any:
    c = a + b
    d = c * a
    return d, xp.maximum(c, d) if a.dtype.kind != "c" else d * 2, (d == c) | (c != a)


WEIGHTS = [np.linspace(start, 3, 12).astype("f").reshape(3, 4) for start in range(4)]
PROGRAMS: dict[str, tuple[Function, tuple[Any, ...], list[int]]] = {
    # The first call defines its records, and is not understood. `y - 0.25` has another shape.
    "a chain": (_chain, (X, X[0]), [2]),
    "a chain of one shape": (_chain, (X, X + 1), [2]),
    "written into": (_in_place, (X, X + 1), [2]),
    "around the rest": (_around, (X, X[::-1].copy()), [2, 2]),
    "with a question": (lambda xp, x: (x + 1)[xp.nonzero(x > 1)[0][0]] * 2, (X,), []),
    "too long": (_long, (X,), []),
    "a step of Adam": (_adam, (*WEIGHTS, 0.01), [2]),
    **{f"type {kind}": (_types, (X.astype(kind), (X > 1).astype(kind)), [2])
       for kind in "bBhHiIqQefdFD"},
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_is_one_program_where_that_is_possible(
    cp: Any, kernels: Kernels, name: str
) -> None:
    function, hosts, runs = PROGRAMS[name]
    thrice(cp, function, *hosts)
    assert kernels.runs == runs


def test_numbers_may_change_from_call_to_call(cp: Any, kernels: Kernels) -> None:
    step = cp.fuse(lambda x, n, r: (x + n) * r - n)
    a = cp.asarray(X)
    for n, r in ((1, 0.5), (2, 0.25), (3, -1.0), (1 << 40, 2.0)):
        np.testing.assert_allclose(step(a, n, r).get(), (X + n) * r - n)
    assert kernels.runs == [3]


def test_an_array_that_is_read_elsewhere_is_not_written_into_too_early(
    cp: Any, kernels: Kernels
) -> None:
    def function(y: Any, x: Any) -> Any:
        y += x * 2
        return y - x

    fused = cp.fuse(function)
    for _ in range(3):
        a, b = cp.arange(8.0), np.arange(8.0)
        made, wanted = fused(a[1:], a[:-1]), function(b[1:], b[:-1])
        np.testing.assert_array_equal(a.get(), b)
        np.testing.assert_array_equal(made.get(), wanted)
    assert not any(kernels.runs)


def test_a_program_that_no_kernel_can_be_is_tried_once(cp: Any, kernels: Kernels) -> None:
    for refuses in (True, False):
        kernels.refuses = refuses
        thrice(cp, _twice, X)
        assert kernels.runs == [0]


def test_a_kernel_of_another_type_is_not_used(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fuse(_self: Any, function: Function) -> Function:
        return lambda *inputs: asked.append(1) or function(*[each.astype("f8") for each in inputs])

    monkeypatch.setattr(EmulatedBackend, "fuse", fuse)
    thrice(cp, lambda _xp, x: (x + 1) * x, X.astype(np.float32))
    assert asked == [1]


def test_an_error_within_leaves_the_calls_before_it(cp: Any, kernels: Kernels) -> None:
    def function(x: Any, y: Any) -> Any:
        x += 1
        x *= 2
        return x + y

    fused, a, wanted = cp.fuse(function), cp.asarray(X), X
    for _ in range(3):
        with pytest.raises(ValueError, match="broadcast"):
            fused(a, cp.ones(3))
        wanted = (wanted + 1) * 2
    np.testing.assert_array_equal(a.get(), wanted)
    assert kernels.runs == [2]


@contextlib.contextmanager
def limited(cp: Any, free: int) -> Generator[None]:
    """Limit the memory to the used bytes and so many more."""
    cp.cuda.Device().synchronize()
    pool, session = cp.get_default_memory_pool(), cp._door.pool.current()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + free)
    session._queue.set_room(0, 1 << 40)
    try:
        yield
    finally:
        pool.set_limit(size=0)


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
    with limited(cp, a.nbytes * 3 // 2):
        made = fused(a)
        after = cp.asarray([1.0]) + 1
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            after.get()
        assert after.tolist() == [2]
        del made
    assert sum(kernels.runs) == 3


def test_a_group_takes_no_more_memory_than_its_calls(cp: Any, kernels: Kernels) -> None:
    def function(x: Any) -> Any:
        for _ in range(12):
            x = cp.cumsum(x)
        return (x + 1) * 2

    a, fused = cp.ones(1 << 18), cp.fuse(function)
    for _ in range(3):
        fused(a)
    for each in (function, fused):
        with limited(cp, 4 * a.nbytes):
            assert float(each(a)[0]) == 4
    assert kernels.runs == [3]


def _until_flushed(sender: Any) -> None:
    before, deadline = sender.flushes, time.monotonic() + 10
    while sender.flushes == before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_function_that_goes_on_or_an_interrupt_holds_nothing_back(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = cp._door.pool.current()._sender
    monkeypatch.setattr(flusher(), "HOLD_S", 0.02)

    def function(x: Any) -> Any:
        made = x + 1
        _until_flushed(sender)
        return made * 2

    x = cp.asarray(X) + 0  # so that nobody asks in the function how much memory is left
    np.testing.assert_array_equal(cp.fuse(function)(x).get(), (X + 1) * 2)
    sender.held_since = time.monotonic()  # as an interrupt leaves it
    np.testing.assert_array_equal(function(x).get(), (X + 1) * 2)
    sender.held_since = 0.0


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

    monkeypatch.setattr(wire, "SIZED_RECORD", Asking)
    thrice(cp, lambda _xp, x: (x + 1) * 2 - x * 3, X)
    assert kernels.runs == []


def test_a_function_on_a_server_of_before_runs_as_it_is(
    cp: Any, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cp._door.pool.current(), "takes_groups", False)
    thrice(cp, _twice, X)
    assert kernels.runs == []


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
        *((), (Handle(1),), ((Handle(1), 2.0),), (Handle(1), ()), (True, None), (1.0, 2.0)),
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
