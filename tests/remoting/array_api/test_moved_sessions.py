"""A program with a session that goes on with another server's worker, between two calls."""

import contextlib
import json
import subprocess
import textwrap
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


def run(
    agent: door_kit.Agent, offers: list[dict[str, Any]], source: str
) -> subprocess.CompletedProcess[str]:
    text = BEFORE + textwrap.dedent(source)
    return door_kit.run_program(agent, text, json.dumps(offers))


def output(agent: door_kit.Agent, offers: list[dict[str, Any]], source: str) -> str:
    done = run(agent, offers, source)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
        stayed = output(agent, [], EVERYTHING)
        moved = output(agent, offers, EVERYTHING)
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
    with servers() as (agent, offers):
        assert output(agent, offers, source) == "all of them\n"


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
    with servers(transport="unix") as (agent, offers):
        assert output(agent, offers, source) == "0 wrong\n"


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
    with servers() as (agent, offers):
        lines = output(agent, offers, source).splitlines()
    said = "SVD did not converge"
    assert lines == [f"{said} True", "nothing", said]


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
    with servers() as (agent, offers):
        assert output(agent, offers, source) == "[ 4  9 16 25] 14\n"


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


def refused(
    before: str, *memory: int, arguments: str = "", counts: tuple[int, ...] = (2, 2)
) -> str:
    with servers(*memory, counts=counts) as (agent, offers):
        done = output(agent, offers, STAYS.format(before=before, arguments=arguments))
    why, after = done.splitlines()
    assert after == "500500.0 server0 (2,)"
    return why


def test_where_the_pool_says_no_the_program_stays() -> None:
    before = "def no(): raise RuntimeError('the pool says no')"
    assert refused(before, arguments="commit=no") == "the pool says no"


def test_where_there_is_no_room_the_program_stays() -> None:
    why = refused("b = cp.zeros(3 << 20, 'u1')", 8 << 20, 2 << 20)
    assert why.startswith("its state could not be sent: Out of memory allocating 3,145,728 b")


def test_what_cannot_be_sent_is_named_and_the_program_stays() -> None:
    pytest.importorskip("scipy")
    before = "import cupyx.scipy.sparse as sp; m = sp.csr_matrix(cp.eye(3))"
    said = "it has an object of type csr_matrix, which cannot be sent"
    assert refused(before) == said


def test_other_devices_and_a_server_that_is_not_there() -> None:
    assert refused("", counts=(2, 1)) == "server server1 gave another number of devices"
    before = "offers[0]['address'][1] = 1"
    assert "cannot reach server server1: " in refused(before)


def test_a_program_with_two_servers_stays_on_them() -> None:
    with door_kit.pool(1, 1, linked=True) as agent:
        offers = [agent.servers[1].offer()]
        source = STAYS.format(before="", arguments="")
        lines = output(agent, offers, source).splitlines()
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
        lines = output(agent, offers, source).splitlines()
    assert lines == ["its state could not be sent", "True server0", "True server1"]


def test_the_old_server_dies_while_the_state_is_under_way() -> None:
    source = """
    a = cp.ones(1 << 20, 'f8')
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
    with servers() as (agent, offers):
        assert output(agent, offers, source) == "lost 46\nlost 46\n"
