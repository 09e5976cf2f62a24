"""Errors come out of the call that is wrong, and of no other; most calls do not wait for that."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import types
from typing import Any

import door_kit
import numpy as np
import pytest

from gpupool.remoting.devices import cuda_operations

LINALG_ERROR = np.linalg.LinAlgError


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cp: cp.pad(cp.ones(3), 1, "no such mode"), ValueError),
        (lambda cp: cp.percentile(cp.ones(3), 101), ValueError),
        (lambda cp: cp.quantile(cp.ones(3), 0.5, method="none"), ValueError),
        (lambda cp: cp.convolve(cp.ones(0), cp.ones(2)), ValueError),
        (lambda cp: cp.copyto(cp.ones(3), cp.ones(4)), ValueError),
        (lambda cp: cp.partition(cp.ones(3), 7), ValueError),
        (lambda cp: cp.ones(3).partition(7), ValueError),
        (lambda cp: cp.ones((2, 3)).take(cp.arange(2), axis=0, out=cp.ones(9)), ValueError),
        (lambda cp: cp.ones(3).cumsum(out=cp.ones(4)), ValueError),
        (lambda cp: cp.put(cp.ones(3), cp.asarray([4]), 1, mode="raise"), IndexError),
        (lambda cp: cp.bincount(cp.asarray([-1])), ValueError),
        (lambda cp: cp.unravel_index(cp.asarray([9]), (2, 2)), ValueError),
        (lambda cp: cp.choose(cp.asarray([7]), [cp.ones(1)]), ValueError),
        (lambda cp: cp.cov(cp.ones((2, 2, 2))), ValueError),
        (lambda cp: cp.random.logseries(cp.ones(2)), ValueError),
        (lambda cp: cp.linalg.tensorinv(cp.ones((2, 3))), (LINALG_ERROR, ValueError)),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_call(cp: Any, call: Any, error: Any) -> None:
    with pytest.raises(error):
        call(cp)


def test_only_the_first_call_of_a_kind_waits(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a, questions = cp.ones((3, 5)), []
    before = session.ask
    session.ask = lambda *args, **kwargs: questions.append(args[0]) or before(*args, **kwargs)
    try:
        for _ in range(3):
            cp.pad(a, 2)
        assert questions == ["pad"]
        cp.pad(a, 3)  # other arguments
        cp.pad(cp.ones((3, 6)), 2)  # another shape
        assert len(questions) == 3
        cp.put(a, cp.arange(2), 0)
        cp.put(a, cp.arange(2), 0, mode="raise")
        cp.put(a, cp.arange(2), 0, mode="raise")  # CuPy waits for the elements too
        assert len(questions) == 6
    finally:
        del session.ask


def _k_means(cp: Any, loops: int) -> Any:
    points = cp.random.default_rng(1).random((200, 2))
    centres, old = points[:4].copy(), None
    for _ in range(loops):
        near = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        members = near[None] == cp.arange(4)[:, None]
        counts = cp.maximum(members.sum(axis=1), 1)
        centres = (members[:, :, None] * points[None]).sum(axis=1) / counts[:, None]
        if old is not None and bool((near == old).all() & False):
            break
        old = near
    return centres


def _conjugate_gradients(cp: Any, loops: int) -> Any:
    matrix = cp.eye(30) * 4 - cp.eye(30, k=1) - cp.eye(30, k=-1)
    right = cp.ones(30)
    x, rest = cp.zeros(30), right.copy()
    step, size = rest.copy(), rest @ rest
    for _ in range(loops):
        moved = matrix @ step
        alpha = size / (step @ moved)
        x += alpha * step
        rest -= alpha * moved
        new = rest @ rest
        if float(cp.sqrt(new)) < 0:
            break
        step = rest + (new / size) * step
        size = new
    return x


@pytest.mark.parametrize("program", [_k_means, _conjugate_gradients])
def test_a_loop_with_a_stop_test_waits_once_in_each_turn(cp: Any, program: Any) -> None:
    [session] = cp._door.pool.sessions()
    program(cp, 3).get()  # whatever waits the first time
    session.waits = importlib.import_module("cupy._door.waits").Waits()
    try:
        program(cp, 5)
        few = sum(session.waits.counts.values())
        program(cp, 15)
        assert sum(session.waits.counts.values()) - 2 * few == 10
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
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert done.returncode == 0
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
    assert len(account.counts) == 4
    assert sum(account.counts.values()) == 7
    lines = list(waits.told([account, None]))
    assert lines[0] == "waited for the server 7 times"
    assert lines[1].startswith("waited for the server 3 times: b, at ")
    assert lines[2:] == [
        "waited for the server 2 times: at other places",
        "waited for the server 2 times at 2 other places",
    ]


def test_an_array_is_asked_for_its_address_once(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a = cp.arange(6).reshape(2, 3)
    parts = [a[0], a[1], a[:, :2], a[:0]]
    questions: list[str] = []
    before = session.ask
    session.ask = lambda *args, **kwargs: questions.append(args[0]) or before(*args, **kwargs)
    try:
        shared = [[cp.may_share_memory(x, y) for y in parts] for x in parts]
        assert len(questions) == 3
        part, there = a[1], a[1].data.ptr
        part.shape = (3, 1)
        assert part.data.ptr == there
    finally:
        del session.ask
    host = np.arange(6).reshape(2, 3)
    parts = [host[0], host[1], host[:, :2], host[:0]]
    assert shared == [[np.may_share_memory(x, y) for y in parts] for x in parts]


def test_the_kinds_that_are_remembered_are_bounded(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = importlib.import_module("cupy._door.judged")
    monkeypatch.setattr(judged, "KINDS_MAX", 2)
    kinds = judged.Judged()
    waits: list[bool] = []
    for number in (1, 1, 2, 1, 3, 1):
        kind = kinds.must_wait("pad", (number,), {})
        waits.append(kind is not None)
        if kind is not None:
            kinds.accept(kind)
    # The third kind made it forget the others.
    assert waits == [True, False, True, False, True, True]
    for _ in range(2):
        assert kinds.must_wait("select", ({1: 2},), {}) is judged.EACH


def test_a_program_that_wants_errors_of_linalg_waits_for_them(cp: Any) -> None:
    cupyx = importlib.import_module("cupyx")
    cp.linalg.cholesky(cp.eye(3))
    with cupyx.errstate(linalg="raise"), pytest.raises(LINALG_ERROR):
        cp.linalg.cholesky(-cp.eye(3))


def test_the_worker_is_told_whether_a_program_wants_errors_of_linalg(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupyx, pool = importlib.import_module("cupyx"), cp._door.pool
    cp.ones(1)
    told: list[Any] = []
    for session in pool.sessions():
        call = session.call
        monkeypatch.setattr(
            session,
            "call",
            lambda name, args, kwargs, *metas, call=call: (
                told.append((name, *args)) if name == "door.linalg_errors" else None,
                call(name, args, kwargs, *metas),
            )[1],
        )
    with cupyx.errstate(linalg="raise"):
        cp.ones(1)
        with cupyx.errstate(divide="raise"):
            pass
    assert told == [("door.linalg_errors", True), ("door.linalg_errors", False)]


def test_a_real_gpu_raises_or_ignores_errors_of_linalg(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[str] = []
    library = types.SimpleNamespace(seterr=lambda linalg: settings.append(linalg))
    monkeypatch.setattr(cuda_operations.importlib, "import_module", lambda _name: library)
    for raised in (True, False):
        cuda_operations.linalg_errors(raised)
    assert settings == ["raise", "ignore"]


def test_a_block_may_forbid_to_wait_for_the_device(cp: Any) -> None:
    cupyx = importlib.import_module("cupyx")
    a = cp.ones(3)
    with cupyx.allow_synchronize(False):
        b = a + 1
        for wait in (b.get, lambda: float(b[0]), cp.cuda.Device().synchronize):
            with pytest.raises(cupyx.DeviceSynchronized):
                wait()
        with cupyx.allow_synchronize(True):
            assert b.get().tolist() == [2, 2, 2]
    assert b.get().tolist() == [2, 2, 2]
