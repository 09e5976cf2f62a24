"""Sessions from end to end: programs, agents, servers, and their ends."""

import collections
import gc
import importlib
import pickle  # noqa: TID251 - written here only, to see which names a pickle has
import signal
import socket
import time
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest
from tests.remoting.array_api.conftest import SESSIONS

from gpupool.remoting.worker.client_handshake import accept_plain


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_a_program_computes_over_every_transport(transport: str) -> None:
    source = """
import cupy as cp, numpy as np
a = np.random.rand(300, 500)
b = cp.asarray(a)
assert np.array_equal(b.get(), a)
assert np.allclose((b @ b.T).get(), a @ a.T)
big = np.arange(3_000_000)
assert np.array_equal(cp.asarray(big).get(), big)
print(cp.cuda.runtime.getDeviceCount(), cp.cuda.runtime.getDeviceProperties(0)['name'])
"""
    with door_kit.pool(2, transport=transport) as agent:
        assert door_kit.output(agent, source) == "2 b'Emulated GPU'\n"
        assert agent.requests[0]["door"] == "arrays"


def _another_certificate(agent: door_kit.Agent) -> None:
    server = agent.servers[0]
    assert server.tls is not None
    server.tls = (server.tls[0], "0" * 64)


def _another_ticket(agent: door_kit.Agent) -> None:
    offer = {**agent.servers[0].offer(), "ticket": bytes(32).hex()}
    agent.servers[0].offer = lambda: offer  # type: ignore[method-assign]


def _refusing(agent: door_kit.Agent) -> None:
    said = {"what": "lease 7f3a has ended", "why": "idle for 60 s", "hint": "run it again"}
    agent.refusal = {"ok": False, "code": "lease-lost", **said}


@pytest.mark.parametrize(
    ("change", "transport", "says"),
    [
        (_another_certificate, "tls", "certificate is not the one that the lease names"),
        (_another_ticket, "unix", "could not prove that it knows this lease's ticket"),
        (_refusing, "unix", "lease 7f3a has ended; idle for 60 s; run it again"),
    ],
)
def test_a_program_says_why_it_has_no_session(change: Any, transport: str, says: str) -> None:
    with door_kit.pool(1, transport=transport) as agent:
        change(agent)
        assert says in door_kit.run_program(agent, "import cupy; cupy.zeros(3)").stderr


def test_without_a_session_there_is_no_device_and_using_says_what_to_do(tmp_path: Path) -> None:
    """Libraries catch CuPy's error for no device."""
    source = """
import cupy
print(cupy.is_available(), cupy.cuda.is_available())
for ask in (cupy.cuda.runtime.getDeviceCount, cupy.cuda.Device(0).use, lambda: cupy.zeros(3)):
    try:
        ask()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(error.status, error)
"""
    for gone in ({}, {"GPUPOOL_AGENT": str(tmp_path / "gone")}):
        first, *errors = door_kit.output(None, source, **gone).splitlines()
        assert first == "False False"
        assert all(each.startswith("100 cudaErrorNoDevice: ") for each in errors)
        assert ["gpupool run" in each for each in errors] == [True] * 3


DEFERRED = """
import cupy as cp
cp.linalg.pinv(cp.eye(3)); a = cp.linalg.pinv(cp.nan * cp.eye(3))  # the first of its kind waits
b = cp.zeros(4)
c = b + 1
print(c)
"""
BY_DEFAULT = {"GPUPOOL_BLOCKING": ""}  # on emulated GPUs


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (BY_DEFAULT, 3),
        ({"GPUPOOL_BLOCKING": "1"}, 3),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, 3),
        ({"GPUPOOL_BLOCKING": "0"}, 6),
    ],
)
def test_an_error_comes_at_the_call_or_names_its_line(
    environment: dict[str, Any], line: int
) -> None:
    with door_kit.pool(1) as agent:
        done = door_kit.run_program(agent, DEFERRED, **environment)
    assert "LinAlgError: SVD did not converge" in done.stderr
    assert f"line {line}, in <module>\n" in done.stderr
    assert ("by the call at <string>:3" in done.stderr) == (line == 6)


def test_an_error_that_nothing_waited_for_is_told_at_the_end() -> None:
    with door_kit.pool(1) as agent:
        done = door_kit.run_program(agent, DEFERRED.replace("print(c)", ""))
    assert "cupy: LinAlgError" in done.stderr


def test_out_of_memory_is_raised_by_the_call_that_allocates() -> None:
    # Programs catch it there, to go on with something smaller.
    source = """
import cupy as cp, numpy as np
for make in (lambda: cp.zeros(65 << 17), lambda: cp.asarray(np.ones(65 << 17)),
             lambda: cp.ones(8 << 17) + cp.ones((1024, 8 << 17))):
    try:
        make()
        print("not refused")
    except cp.cuda.memory.OutOfMemoryError as error:
        print("refused")
kept = []
try:
    while True:
        kept.append(cp.ones(1 << 17))  # 1 MiB each
except cp.cuda.memory.OutOfMemoryError:
    print(len(kept))
del kept[10:]
print(float(sum(float(each[0]) for each in kept)), float((cp.ones(4 << 17) * 2)[0]))
for _ in range(300):  # what is dropped gives its room back
    x = cp.ones(4 << 17) + 1
print(float(x[0]))
"""
    with door_kit.pool(1, memory=64 * door_kit.MIB) as agent:
        *refusals, count, sums, last = door_kit.output(agent, source).splitlines()
    assert refusals == ["refused"] * 3
    assert 55 <= int(count) <= 64
    assert (sums, last) == ("10.0 2.0", "2.0")


def test_memory_that_another_process_holds_is_refused_by_the_call_that_allocates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Shared(door_kit.MemoryBudget):
        def usage(self, device_index: int) -> int:
            return super().usage(device_index) + 40 * door_kit.MIB

        def reserve(self, device_index: int, nbytes: int) -> bool:
            left = self.sizes[device_index] - self.usage(device_index)
            return nbytes <= left and super().reserve(device_index, nbytes)

    monkeypatch.setattr(door_kit, "MemoryBudget", Shared)
    source = """
import cupy as cp
try:
    x = cp.empty(30 << 20, "u1")
except cp.cuda.memory.OutOfMemoryError:
    x = cp.ones(8 << 20, "u1")
    print("fell back to", int(x.sum()) >> 20)
"""
    with door_kit.pool(1, memory=64 * door_kit.MIB) as agent:
        assert door_kit.output(agent, source) == "fell back to 8\n"


LOSSES = [
    ("worker", "worker ended"),
    ("agent", "`gpupool run` has ended"),
    ("lost", "lease 7f3a is void"),
]


@pytest.mark.parametrize(("how", "says"), LOSSES)
def test_a_loss_is_an_error_and_never_a_hang(how: str, says: str) -> None:
    source = """
import sys, time
import cupy as cp
a = cp.arange(5)
print(a.sum(), flush=True)
sys.stdin.readline()
try:
    for _ in range(200):
        a = a + 1
        float(a.sum())
        time.sleep(0.01)
except cp.cuda.runtime.CUDARuntimeError as error:
    print(type(error).__name__, error, flush=True)
try:
    cp.zeros(3)
except cp.cuda.runtime.CUDARuntimeError as error:
    print('still', type(error).__name__)
"""
    with door_kit.pool(1) as agent, door_kit.program(agent, source, "10") as process:
        if how == "worker":
            for connection in agent.servers[0].connections:
                connection.shutdown(socket.SHUT_RDWR)
        elif how == "agent":
            for client in agent.clients:
                client.shutdown(socket.SHUT_RDWR)
        else:
            agent.push({"op": "lost", "what": "server-a left the pool; lease 7f3a is void"})
        out, _ = process.communicate("go\n", timeout=20)
    first, still = out.strip().splitlines()
    assert says in first
    assert first.startswith("ConnectionLostError cudaErrorDevicesUnavailable")
    assert still == "still ConnectionLostError"


def test_a_waiting_call_hears_of_the_loss(tmp_path: Path) -> None:
    source = """
import cupy as cp
try:
    cp.zeros(3)
except cp.cuda.runtime.CUDARuntimeError as error:
    print(error)
"""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "silent.sock"))
    listener.listen()
    server = door_kit.Server("silent", listener, door_kit.emulated(1, door_kit.MIB))
    accepted: list[socket.socket] = []

    def silent() -> None:
        # Proves itself, then says nothing: only the agent's word can end the client's wait.
        connection, _ = listener.accept()
        accept_plain(connection, server.session, server.ticket)
        connection.sendall(b"\x01")
        accepted.append(connection)
        agent.push({"op": "lost", "what": "the server is gone"})

    server.serve = silent  # type: ignore[method-assign]
    agent = door_kit.Agent(tmp_path, [server])
    try:
        assert "the server is gone" in door_kit.output(agent, source)
    finally:
        agent.close()
        for connection in accepted:
            connection.close()


def test_a_forked_child_has_a_session_of_its_own() -> None:
    source = """
import os, cupy as cp, warnings
warnings.simplefilter('ignore')
a = cp.arange(4)
print(a.sum(), flush=True)
pid = os.fork()
if pid == 0:
    try:
        a + 1
    except Exception as error:
        print('belongs to the parent' in str(error), flush=True)
    print(cp.arange(3).sum(), flush=True)
    del a
    os._exit(0)
os.waitpid(pid, 0)
print((a * 2).sum())
"""
    with door_kit.pool(1) as agent:
        assert door_kit.output(agent, source).split() == ["6", "True", "3", "12"]
        assert len(agent.requests) == 2
        assert agent.requests[1]["ppid"] == agent.requests[0]["pid"]


def test_arrays_are_pickled_by_their_elements() -> None:
    source = """
import multiprocessing as mp, pickle, cupy as cp
def double(x):
    return x * 2
if __name__ == '__main__':
    a = cp.arange(6).reshape(2, 3).T
    b = pickle.loads(pickle.dumps(a))
    assert (b == a).all() and b.strides == a.strides
    with mp.get_context('fork').Pool(1) as workers:
        print(workers.apply(double, (cp.arange(3),)))
"""
    with door_kit.pool(1) as agent:
        assert door_kit.output(agent, source, PYTHONWARNINGS="ignore") == "[0 2 4]\n"


def test_pickles_name_functions_by_modules_that_stay(cp: Any) -> None:
    # Programs keep pickles: a module that a pickle names cannot be moved.
    for value, name in (
        (cp.arange(3), b"cupy._core.convert\narray\n"),
        (cp.asnumpy, b"cupy._core.host_arrays\nasnumpy\n"),
        (cp.ndarray, b"cupy\nndarray\n"),
    ):
        assert name in pickle.dumps(value, 2)


def test_a_batch_of_long_records_leaves_before_it_is_more_than_a_frame(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [cp.full(1, at) for at in range(3000)]
    sender = cp._door.pool.current()._sender
    # The thread that sends for a program that pauses waits, as for the end of a function.
    monkeypatch.setattr(importlib.import_module("cupy._door.transport.flusher"), "HOLD_S", 60.0)
    monkeypatch.setattr(sender, "held_since", time.monotonic())
    joined = [cp.concatenate(many) for _ in range(60)]  # 24 KB each: 1.4 MB, of 1 MiB at most
    assert joined[0].tolist() == joined[-1].tolist() == list(range(3000))


def test_a_question_has_no_place_and_not_that_of_a_call_long_before(cp: Any) -> None:
    queue, a = cp._door.pool.current()._queue, cp.zeros(3)
    sender = queue._sender
    code = test_a_question_has_no_place_and_not_that_of_a_call_long_before.__code__
    queue._sites[:] = [(code, 0)] * len(queue._sites)  # as after 65,536 calls
    assert float(a.sum()) == 0
    assert queue.place(sender.sequence) == ""
    assert Path(__file__).name in queue.place(sender.sequence - 1)
    assert queue.place(sender.sequence - 1 - len(queue._sites)) == ""  # long before that call


def test_an_interrupt_while_a_full_batch_leaves_loses_no_memory(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    a, pool = cp.zeros(1 << 13), cp.get_default_memory_pool()
    link: Any = importlib.import_module("cupy._door.transport.link").Link
    send, before = link.send_some, pool.used_bytes()

    def interrupt(*args: Any) -> Any:
        monkeypatch.setattr(link, "send_some", send)
        raise KeyboardInterrupt

    for _ in range(5):
        monkeypatch.setattr(link, "send_some", interrupt)
        with pytest.raises(KeyboardInterrupt):
            collections.deque((a + 1 for _ in range(1000)), 0)
    assert pool.used_bytes() == before


def test_a_loop_takes_the_memory_of_two_large_arrays_or_of_a_batch_of_small_ones(cp: Any) -> None:
    gc.collect()  # what earlier tests have left is not counted
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    used, before = pool.used_bytes(), pool.total_bytes()
    for _ in range(20):
        cp.zeros(1 << 20, cp.uint8)
    assert pool.total_bytes() - before <= 2 << 20
    pool.free_all_blocks()
    for _ in range(1000):
        cp.zeros(1 << 10, cp.uint8)
    assert pool.total_bytes() - before <= 130 << 10
    assert pool.used_bytes() == used


def test_memory_comes_back_when_arrays_are_dropped(cp: Any) -> None:
    gc.collect()  # what earlier tests have left is not counted
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    arrays = [cp.zeros(512, cp.uint8) for _ in range(5000)]
    assert pool.used_bytes() == before + 5000 * 512
    del arrays
    assert pool.used_bytes() == before
    array = cp.zeros(1 << 20, cp.uint8)
    view = array[10:20]
    del array
    assert pool.used_bytes() == before + (1 << 20)  # the view still needs it
    del view
    assert pool.used_bytes() == before
    assert pool.total_bytes() >= 1 << 20
    assert pool.n_free_blocks() >= 1
    pool.free_all_blocks()
    assert pool.total_bytes() == pool.used_bytes()


@pytest.mark.long
def test_a_loop_over_large_arrays_needs_no_more_memory_than_on_a_gpu(cp: Any) -> None:
    array = cp.zeros(8 << 20)  # 64 MiB, of 512
    for _ in range(100):
        array = array + 1
    assert float(array[0]) == 100


def test_garbage_of_the_client_is_collected_when_memory_runs_out(cp: Any) -> None:
    class Cycle:
        pass

    gc.disable()
    try:
        for _ in range(20):
            cycle = Cycle()
            cycle.me = cycle  # type: ignore[attr-defined]
            cycle.array = cp.zeros(8 << 20)  # type: ignore[attr-defined]  # 64 MiB each
        assert float(cp.ones(8 << 20).sum()) == 8 << 20
    finally:
        gc.enable()


def test_a_limit_of_the_pool_holds_and_says_so(cp: Any) -> None:
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=1 << 20)
    try:
        assert pool.get_limit() == 1 << 20
        with pytest.raises(cp.cuda.memory.OutOfMemoryError, match="limit set to: 1,048,576 bytes"):
            cp.zeros(1 << 20).get()
    finally:
        pool.set_limit(size=0)
    assert cp.cuda.runtime.memGetInfo()[1] == 512 * door_kit.MIB


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_a_keyboard_interrupt_in_an_upload_leaves_the_session_usable(transport: str) -> None:
    """A terminal interrupts the program in the middle of a frame, and its forked child with it."""
    source = """
import os, signal, time
import cupy as cp, numpy as np
from cupy._door.transport.link import Link
os.setpgid(0, 0)
a = cp.arange(4)
host = np.arange(1 << 19)
pool = cp.get_default_memory_pool()
used = pool.used_bytes()
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    os.close(1), os.close(2)  # a parent that fails is heard at once
    try:
        os.write(theirs, b"x")
        for _ in range(600):  # a signal that comes just before a sleep waits for its end
            time.sleep(0.05)
    except KeyboardInterrupt:
        os._exit(7)
os.read(ours, 1)
send, sends = Link.send_some, []
def send_a_little(link, buffers):
    result = send(link, [buffers[0][:65536]])
    sends.append(1)
    if len(sends) == 10:
        os.killpg(0, signal.SIGINT)
        until = time.monotonic() + 20
        while not sender._stop and time.monotonic() < until:
            time.sleep(0.01)  # in another thread, which the main thread stops meanwhile
    return result
sender = cp._door.pool.current()._sender
Link.send_some = send_a_little
interrupted = False
try:
    cp.asarray(host)
except KeyboardInterrupt:
    interrupted = True
Link.send_some = send
assert 10 <= len(sends) < 64, len(sends)
assert np.array_equal(cp.asarray(host).get(), host)
print(interrupted, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a.sum(), end=" ")
print(pool.used_bytes() - used)
"""
    with door_kit.pool(1, transport=transport) as agent:
        assert door_kit.output(agent, source).split() == ["True", "7", "6", "0"]


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_a_program_that_is_interrupted_in_an_upload_ends_at_once(transport: str) -> None:
    source = """
import os, signal, time
import cupy as cp, numpy as np
from cupy._door.transport.link import Link
a = cp.arange(4)
send, sends = Link.send_some, []
def send_a_little(link, buffers):
    sends.append(1)
    if len(sends) == 10:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert len(sends) < 20
    return send(link, [buffers[0][:65536]])
Link.send_some = send_a_little
cp.asarray(np.arange(1 << 19))
"""
    with door_kit.pool(1, transport=transport) as agent:
        done = door_kit.run_program(agent, source)
    assert done.stderr.endswith("KeyboardInterrupt\n"), done.stderr
    assert done.returncode == -signal.SIGINT


@pytest.mark.long
def test_a_large_array_is_refilled_in_place(cp: Any) -> None:
    host = np.ones(300 << 20, np.uint8)  # of 512 MiB
    array = cp.asarray(host)
    array.set(host)  # a second copy would not fit
    assert int(array[-5:].sum()) == 5


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_and_parts_of_them_are_refilled(cp: Any, order: str) -> None:
    host = np.random.default_rng(2).random((60, 30, 7))
    array = cp.zeros((100, 30, 7), order=order)
    for part in (array[20:80], array[:60], array[::-1][:60]):
        array[...] = 0
        part.set(host)
        assert np.array_equal(part.get(), host)
        assert float(array.sum()) == pytest.approx(host.sum())


@pytest.mark.long
def test_very_many_arrays_are_dropped_at_once(cp: Any) -> None:
    a = cp.arange(3.0)
    views = [a[1] for _ in range(100_000)]  # 12 bytes each to free them: more than one frame
    del views
    assert float(a[1]) == 1


def test_a_program_that_does_not_end_says_where_it_is() -> None:
    source = "import os, time\nif not os.fork(): os._exit(0)\ntime.sleep(60)\n"
    with pytest.raises(AssertionError, match=r"no end after 1 s: .*line 3 in <module>"):
        door_kit.run_program(None, source, timeout_s=1)


def test_a_session_that_is_lost_or_has_an_error_is_made_anew(cp: Any) -> None:
    [session] = SESSIONS
    assert session.wrong() == ""
    cp.linalg.pinv(cp.eye(3))  # the first call of its kind waits
    cp.linalg.pinv(cp.nan * cp.eye(3))
    assert session.wrong().startswith("LinAlgError: ")
    assert session.wrong() == ""
    cp._door.pool.current().lose("the network is cut")
    assert "the network is cut" in session.wrong()
    session.close()
    session.open()
    assert session.wrong() == ""
    assert float(cp.ones(3).sum()) == 3
