"""A program with a session that goes on with another server's worker, between two calls.

A program is told so by ``gpupool run``.
"""

import contextlib
import json
import textwrap
import threading
import time
from collections.abc import Generator
from typing import Any

import door_kit
import pytest

BEFORE = """
import json, sys, threading
import cupy as cp, numpy as np
from cupy._door import moving, pool
offers = json.loads(sys.argv[1])
def session():
    return pool.current()
def go_on(at=0, commit=lambda: None):
    moving.go_on(session(), offers[at], commit)
"""


@contextlib.contextmanager
def servers(
    *memory: int, transport: str = "tcp", counts: tuple[int, ...] = (2, 2)
) -> Generator[tuple[door_kit.Agent, list[dict[str, Any]]]]:
    """Run linked servers; a program gets the first, and the offers of all by its arguments."""
    with door_kit.pool(*counts, linked=True, transport=transport) as agent:
        for server, size in zip(agent.servers, memory, strict=False):
            server.devices = door_kit.emulated(len(server.devices), size)
        offers = [server.offer() for server in agent.servers]
        del agent.servers[1:]
        yield agent, [*offers[1:], offers[0]]


def run(agent: door_kit.Agent, offers: list[dict[str, Any]], source: str) -> str:
    return door_kit.output(agent, BEFORE + textwrap.dedent(source), json.dumps(offers))


def moved(source: str, **options: Any) -> list[str]:
    """Return the lines of a program that goes on with another worker by itself."""
    with servers(**options) as (agent, offers):
        return run(agent, offers, source).splitlines()


EVERYTHING = """
    move = go_on if len(offers) == 2 else lambda: None
    rng, bits = cp.random.RandomState(7), cp.random.default_rng(8)
    cp.random.seed(5)
    a = cp.asarray(np.arange(1 << 20, dtype='f4').reshape(1024, 1024))
    rows, turned = a[3:9:2], a.T
    stream = cp.cuda.Stream()
    with cp.cuda.Device(1):
        other = cp.arange(7) * 3
    first = [rng.normal(size=3), bits.random(3), cp.random.rand(2), a.sum()]
    made = cp.ones(5)
    with stream:
        made += 1
        move()
        made *= 3
    rows += 1
    unknown = cp.unique(cp.asarray([3, 1, 3]))
    second = [rng.normal(size=3), bits.random(3), cp.random.rand(2), a.sum(), turned[:, 3].sum()]
    with cp.cuda.Device(1):
        other += 1
        second += [other, cp.concatenate([other, other])]
    move_back = (lambda: go_on(1)) if len(offers) == 2 else lambda: None
    b = cp.asarray(np.arange(3 << 20, dtype='f8'))
    move_back()
    b *= 2
    third = [b[-1], cp.asnumpy(b).sum(), rng.randint(0, 100, 5), made, unknown, cp.fft.fft(a[0])]
    for each in (*first, *second, *third):
        print(cp.asnumpy(each).tobytes().hex() if hasattr(each, 'get') else repr(each))
"""


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_program_gives_the_results_of_one_that_stayed(transport: str) -> None:
    with servers(transport=transport) as (agent, offers):
        stayed = run(agent, [], EVERYTHING)
        moved = run(agent, offers, EVERYTHING)
        assert [len(server.budgets) for server in agent.servers] == [3]
    assert moved == stayed
    assert len(moved.splitlines()) == 17


def test_threads_compute_meanwhile_and_no_call_is_lost_or_made_twice() -> None:
    source = """
    counts = [cp.zeros(1000, 'i8') for _ in range(4)]
    over = threading.Event()
    done = [0] * 4
    def work(at):
        while not over.is_set():
            counts[at] += 1
            done[at] += 1
            if done[at] % 50 == 0:
                assert int(counts[at][7]) == done[at]
    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        go_on(turn % 2)
    over.set()
    for thread in threads:
        thread.join()
    assert [int(c.max()) for c in counts] == done, done
    assert [int(c.min()) for c in counts] == done
    assert min(done) > 0
    print('all of them')
    """
    assert moved(source) == ["all of them"]


def test_large_copies_of_other_threads_end_before_and_go_on_after() -> None:
    source = """
    host = np.arange(5 << 20, dtype='f4')
    over = threading.Event()
    wrong = []
    def work():
        while not over.is_set():
            there = cp.asarray(host)
            if not np.array_equal(there.get(), host):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        go_on(turn % 2)
    over.set()
    for thread in threads:
        thread.join()
    print(len(wrong), 'wrong')
    """
    assert moved(source, transport="unix") == ["0 wrong"]


def test_errors_of_calls_before_are_told_once_with_their_place() -> None:
    source = """
    cp.linalg.pinv(cp.eye(3))  # the first call of its kind waits
    bad = cp.linalg.pinv(cp.nan * cp.eye(3))
    go_on()
    for attempt in range(2):
        try:
            cp.cuda.Device().synchronize()
            print('nothing')
        except np.linalg.LinAlgError as error:
            print(error, 'by the call at' in str(error.__notes__))
    try:
        bad.get()
    except np.linalg.LinAlgError as error:
        print(error)
    """
    said = "SVD did not converge"
    assert moved(source) == [f"{said} True", "nothing", said]


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="needs a C++ compiler")
def test_kernels_are_launched_after_it_without_being_made_again() -> None:
    source = """
    code = 'extern "C" __global__ void add(int *a, int by) { a[threadIdx.x] += by; }'
    raw = cp.RawKernel(code, 'add')
    typed = cp.ElementwiseKernel('T x', 'T y', 'y = x * x', 'square')
    reduced = cp.ReductionKernel('T x', 'T y', 'x', 'a + b', 'y = a', '0', 'total')
    a = cp.arange(4, dtype='i4')
    raw((1,), (4,), (a, 1)), typed(a), reduced(a)
    go_on()
    raw((1,), (4,), (a, 1))
    print(typed(a), reduced(a))
    """
    assert moved(source) == ["[ 4  9 16 25] 14"]


STAYS = """
    a = cp.arange(1000.0)
    {before}
    try:
        go_on({arguments})
        print('moved')
    except moving.MoveRefusedError as error:
        print(error)
    a += 1
    print(float(a.sum()), session().name, cp.random.RandomState(3).normal(size=2).shape)
"""


SPARSE = "import cupyx.scipy.sparse as sp; m = sp.csr_matrix(cp.eye(3))"


@pytest.mark.parametrize(
    ("before", "said", "options"),
    [
        ("def no(): raise RuntimeError('the pool says no')", "the pool says no", {"commit": "no"}),
        (
            "b = cp.zeros(3 << 20, 'u1')",
            "its state could not be sent: Out of memory allocating 3,145,728 b",
            {"memory": (8 << 20, 2 << 20)},
        ),
        (SPARSE, "it has an object of type csr_matrix, which cannot be sent", {}),
        ("", "server server1 gave another number of devices", {"counts": (2, 1)}),
        ("offers[0]['address'][1] = 1", "cannot reach server server1: ", {}),
    ],
)
def test_where_it_cannot_go_the_program_stays(
    before: str, said: str, options: dict[str, Any]
) -> None:
    if before == SPARSE:
        pytest.importorskip("scipy")
    arguments = f"commit={options['commit']}" if "commit" in options else ""
    with servers(*options.get("memory", ()), counts=options.get("counts", (2, 2))) as both:
        why, after = run(*both, STAYS.format(before=before, arguments=arguments)).splitlines()
    assert after == "500500.0 server0 (2,)"
    assert why.startswith(said)


def test_a_program_with_two_servers_stays_on_them() -> None:
    with door_kit.pool(1, 1, linked=True) as agent:
        offers = [agent.servers[1].offer()]
        source = STAYS.format(before="", arguments="")
        lines = run(agent, offers, source).splitlines()
    assert lines[0] == "a program with GPUs of several servers stays on them"


def test_the_new_server_dies_while_the_state_is_under_way() -> None:
    source = """
    a = cp.ones(1 << 20, 'f8')
    b = [cp.ones(1 << 20, 'f8') for _ in range(8)]
    waits = cp._door.moving._await
    def dying(arrival, *rest):
        arrival._connection.link.shut_down()
        return waits(arrival, *rest)
    cp._door.moving._await = dying
    try:
        go_on()
    except moving.MoveRefusedError as error:
        print(str(error).split(':')[0])
    print(float(sum(each.sum() for each in b)) == 8 << 20, session().name)
    cp._door.moving._await = waits
    go_on()
    print(float(sum(each.sum() for each in b)) == 8 << 20, session().name)
    """
    with servers() as (agent, offers):
        lines = run(agent, offers, source).splitlines()
    assert lines == ["its state could not be sent", "True server0", "True server1"]


def test_the_old_server_dies_while_the_state_is_under_way() -> None:
    source = """
    a = cp.ones(1 << 24, 'f8')  # which takes a while
    waits = cp._door.moving._await
    def dying(*rest):
        session()._connection.link.shut_down()
        return waits(*rest)
    cp._door.moving._await = dying
    try:
        go_on()
    except cp.cuda.runtime.CUDARuntimeError as error:
        print('lost', error.status)
    try:
        a.sum()
    except cp.cuda.runtime.CUDARuntimeError as error:
        print('lost', error.status)
    """
    assert moved(source) == ["lost 46", "lost 46"]


LOOP = """
import cupy as cp, time
from cupy._door import pool
a = cp.zeros(1000, 'i8')
turns, until = 0, time.monotonic() + 20
while pool.current().name == 'server0' and time.monotonic() < until:
    a += 1
    turns += 1
print(int(a.sum()) == 1000 * turns, turns > 0, pool.current().name)
"""


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def told(agent: door_kit.Agent, offers: list[dict[str, Any]], source: str) -> list[str]:
    """Run a program that is told to go to the first offer; return its output."""

    def order() -> None:
        until(lambda: agent.followers)
        agent.order(offers[0])

    thread = threading.Thread(target=order)
    thread.start()
    try:
        return door_kit.output(agent, source).splitlines()
    finally:
        thread.join()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_it_goes_on_there_in_the_middle_of_its_calls(transport: str) -> None:
    with servers(transport=transport) as (agent, offers):
        assert told(agent, offers, LOOP) == ["True True server1"]
        until(lambda: len(agent.said) == 3)
        follow, asks, moved = agent.said
        assert len(bytes.fromhex(follow["session"])) == 16
        assert (asks, moved) == ({"op": "go-on"}, {"op": "moved", "stays": ""})


ORDERED = """
import cupy as cp, time
from cupy._door import pool
a = cp.ones(1000, 'i8')
print(int(a.sum()), flush=True)
input()
a += 1
print(int(a.sum()), pool.current().name)
"""


def test_it_stays_where_the_pool_says_so() -> None:
    with servers() as (agent, offers), door_kit.program(agent, ORDERED, "1000") as process:
        agent.stays = "the pool says no"
        until(lambda: agent.followers)
        agent.order(offers[0])
        until(lambda: agent.said[-1]["op"] == "moved")
        assert process.communicate("\n")[0] == "2000 server0\n"
        assert agent.said[-1]["stays"] == "the pool says no"


def test_a_forked_process_does_not_keep_its_parents_connection() -> None:
    source = """
import os, sys, cupy as cp
print(int(cp.ones(3).sum()), flush=True)
if os.fork():
    os._exit(0)
sys.stdin.read()
"""
    with servers() as (agent, _offers), door_kit.program(agent, source, "3") as process:
        until(lambda: len(agent.gone) == 2)
        assert process.stdin is not None
        process.stdin.close()  # only now its child ends


def test_an_older_run_is_not_followed() -> None:
    with servers() as (agent, _offers):
        agent.known_moves = False
        with door_kit.program(agent, ORDERED, "1000") as process:
            assert process.communicate("\n")[0] == "2000 server0\n"
        assert [each["op"] for each in agent.said] == ["follow"]
