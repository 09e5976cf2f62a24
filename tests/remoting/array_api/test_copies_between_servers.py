"""Arrays of several servers in one program: where they compute, and how they get to one another."""

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import door_kit
import pytest

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server.array_exchange import introduction

COUNT_BYTES = """
import cupy as cp, numpy as np
from cupy._door.transport import link
passed = [0]
def count(name):
    method = getattr(link.Link, name)
    def counted(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        passed[0] += self.sent[-1] if result else 0
        return result
    setattr(link.Link, name, counted)
count('send_some')
take = cp._door.transport.receiver.Receiver._begin_bulk
def begin_bulk(self, reply, body, bulk, after):
    passed[0] += bulk
    return take(self, reply, body, bulk, after)
cp._door.transport.receiver.Receiver._begin_bulk = begin_bulk
"""


def run(source: str, *counts: int, linked: bool = True, **options: Any) -> list[str]:
    """Return the lines of a program with servers of so many GPUs."""
    with door_kit.pool(*(counts or (1, 1)), linked=linked, **options) as agent:
        return door_kit.output(agent, COUNT_BYTES + textwrap.dedent(source)).splitlines()


def beside(
    agent: door_kit.Agent, source: str, first_line: str
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return door_kit.program(agent, COUNT_BYTES + textwrap.dedent(source), first_line)


EVERY_COPY = """
    host = np.arange(200_000.).reshape(400, 500)
    a = cp.asarray(host)
    with cp.cuda.Device(2):
        b = cp.asarray(a)
        assert b.device.id == 2 and a.device.id == 0
        c = (b * 2).copy('F')
        assert cp.array(c, order='K').flags.f_contiguous
    with cp.cuda.Device(1):
        d = cp.asarray(c)
        assert d.device.id == 1 and d.flags.f_contiguous
        e = c.copy('K')
        assert e.flags.f_contiguous and not e.flags.c_contiguous
        f = c.reshape(40, 10, 500).transpose(1, 2, 0).copy('K')
        like = np.asfortranarray(host).reshape(40, 10, 500).transpose(1, 2, 0).copy('K')
        assert f.strides == like.strides
    whole, part = cp.zeros_like(a), cp.zeros((400, 1000))
    cp.copyto(whole, c)
    part[:, ::2] = c
    narrow = cp.zeros((400, 500), 'f4')
    cp.copyto(narrow, c)
    rows = cp.zeros((3, 400, 500))
    cp.copyto(rows, c)
    flags = cp.zeros((400, 500), bool)
    flags[...] = True
    some = cp.zeros((400, 500))
    with cp.cuda.Device(2):
        mask = cp.asarray(flags)
        some[1:3] = c[1:3]
    before = passed[0]
    cp.cuda.Device(0).synchronize()
    total = sum(x.nbytes for x in (a, b, c, d, e, f, whole, part, narrow))
    print('through here' if before > total / 4 else 'from worker to worker')
    for x in (d, e, whole, part[:, ::2]):
        assert np.array_equal(x.get(), host * 2)
    assert np.array_equal(narrow.get(), (host * 2).astype('f4'))
    assert np.array_equal(rows.get(), np.broadcast_to(host * 2, (3, 400, 500)))
    assert np.array_equal(f.get(), (host * 2).reshape(40, 10, 500).transpose(1, 2, 0))
    assert np.array_equal(some.get()[1:3], host[1:3] * 2) and float(some.sum()) != 0
    assert mask.get().all() and mask.device.id == 2
    empty = cp.zeros((0, 3))
    with cp.cuda.Device(2):
        assert cp.asarray(empty).shape == (0, 3)
        back = cp.asarray(a[:, 3])
        assert np.array_equal(back.get(), host[:, 3])
"""


# Over TCP in these two, because large copies to a worker of this machine pass through memory.


@pytest.mark.parametrize(
    ("linked", "way"), [(True, "from worker to worker"), (False, "through here")]
)
def test_every_kind_of_copy_arrives(linked: bool, way: str) -> None:
    assert run(EVERY_COPY, 2, 1, linked=linked, transport="tcp") == [way]


def test_where_workers_cannot_meet_copies_pass_through_the_program() -> None:
    with door_kit.pool(2, 1, linked=True, transport="tcp") as agent:
        listener = agent.servers[1].peer_listener
        assert listener is not None
        listener.close()
        done = door_kit.run_program(
            agent, COUNT_BYTES + textwrap.dedent(EVERY_COPY), GPUPOOL_VERBOSE="1"
        )
    assert done.stdout == "through here\n", done.stderr
    said = "gpupool: copies from server0 to server1 pass through this machine: "
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_workers_that_send_to_each_other_at_once_do_not_wait_for_ever() -> None:
    source = """
    import threading
    size = 4 << 20
    def swap(at):
        for turn in range(6):
            with cp.cuda.Device(at):
                mine = cp.full(size, at * 100 + turn, 'u1')
            with cp.cuda.Device(1 - at):
                theirs = cp.asarray(mine)
                assert int(theirs[size - 1]) == at * 100 + turn
            with cp.cuda.Device(at):
                again = cp.asarray(theirs)
                assert int(again[0]) == at * 100 + turn
    threads = [threading.Thread(target=swap, args=(at % 2,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(threads), 'done')
    """
    assert run(source) == ["4 done"]


def test_a_destructor_in_the_middle_of_a_copy_is_refused_and_the_copy_arrives() -> None:
    source = """
    a = cp.arange(5)
    with cp.cuda.Device(1):
        cp.asarray(a)
    class Last:
        def __del__(self):
            try:
                with cp.cuda.Device(1):
                    cp.asarray(a)
            except RuntimeError as error:
                print(error)
    keep = [Last()]
    inner = cp._door.session.Session.take
    def taking(self, *args, **kwargs):
        keep.clear()
        return inner(self, *args, **kwargs)
    cp._door.session.Session.take = taking
    with cp.cuda.Device(1):
        print(cp.asarray(a).get())
    """
    said = "a destructor cannot copy between GPU servers at this moment"
    assert run(source) == [said, "[0 1 2 3 4]"]


def test_what_failed_on_one_server_is_no_array_on_the_other() -> None:
    source = """
    good = cp.ones(3)
    with cp.cuda.Device(1):
        cp.asarray(good)  # the first copy waits, and would raise what failed before it
    cp.linalg.pinv(cp.eye(300))  # the first call of its kind waits
    bad = cp.linalg.pinv(cp.nan * cp.eye(300))
    def get(array):
        try:
            print(array.get())
        except (RuntimeError, np.linalg.LinAlgError) as error:
            print(type(error).__name__, str(error)[:62])
    with cp.cuda.Device(1):
        filled = cp.zeros((300, 300))
        get(cp.asarray(bad))
        filled[...] = bad
        get(filled)
        fine = cp.asarray(good)
    get(bad)
    print(fine.get())
    """
    copied = "RuntimeError the array could not be copied from its server: LinAlgError: SV"
    assert run(source) == [copied, copied, "LinAlgError SVD did not converge", "[1. 1. 1.]"]


def test_a_copy_that_does_not_fit_is_out_of_memory_and_the_next_one_arrives() -> None:
    source = """
    big = cp.zeros(24 << 20, 'u1')
    small = cp.arange(5)
    with cp.cuda.Device(1):
        keep = cp.zeros(20 << 20, 'u1')
        try:
            cp.asarray(big).get()
        except cp.cuda.memory.OutOfMemoryError as error:
            print('Out of memory' in str(error))
        print(cp.asarray(small).get())
    """
    assert run(source, memory=32 * door_kit.MIB) == ["True", "[0 1 2 3 4]"]


def test_a_worker_that_dies_fails_the_copies_with_it_and_nothing_else() -> None:
    source = """
    a = cp.ones(1000)
    with cp.cuda.Device(1):
        b = cp.asarray(a)
        b.get()
    c = cp.asarray(b)
    c.get()
    print('cut', flush=True)
    input()
    with cp.cuda.Device(1):
        try:
            for _ in range(1000):
                b = cp.asarray(a)
                b.get()
        except cp.cuda.runtime.CUDARuntimeError as error:
            print(error.status, str(error)[:27])
    try:
        cp.cuda.Device(0).synchronize()
    except cp.cuda.runtime.CUDARuntimeError as error:
        print(error.status, error)
    print(float((a + c).sum()))
    """
    with door_kit.pool(1, 1, linked=True) as agent, beside(agent, source, "cut") as process:
        # As when its process ends: the kernel closes all that it had.
        for connection in agent.servers[1].connections:
            # One that was closed already, such as that of a finished handshake, needs no cut.
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        lines = process.communicate("\n", timeout=60)[0].splitlines()
    assert lines[0] == "46 cudaErrorDevicesUnavailable"
    assert lines[-1] == "2000.0"


@pytest.mark.slow
def test_a_route_that_fails_in_the_middle_of_a_copy_is_an_error_on_both_servers() -> None:
    """Nothing says so: no packet of the other server arrives any more."""
    source = """
    import cupy as cp
    a = cp.zeros(32 << 20, 'u1')
    with cp.cuda.Device(1):
        b = cp.zeros(32 << 20, 'u1')
        cp.copyto(b, a)
        b[:1].get()
    print('copying', flush=True)
    def copy():
        while True:
            with cp.cuda.Device(1):
                cp.copyto(b, a)
            cp.cuda.Device(0).synchronize()
    def say(call):
        try:
            call()
        except cp.cuda.runtime.CUDARuntimeError as error:
            print(error.status, str(error).partition(': ')[2], flush=True)
    say(copy)
    with cp.cuda.Device(1):
        say(cp.cuda.Device(1).synchronize)
        print(float(b.sum()))
    print(float(a.sum()))
    """
    alone = ["unshare", "-rn"]
    try:
        probe = [*alone, "ip", "link", "add", "first", "type", "veth"]
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    script = str(Path(__file__).with_name("cut_route.py"))
    argv = [*alone, sys.executable, script, textwrap.dedent(source)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    failed = "46 a copy between servers failed: lost"
    assert done.stdout.splitlines() == [
        f"{failed} server1: no answer for 3.5 s",
        f"{failed} server0: Connection timed out",
        "0.0",
        "0.0",
    ], done.stderr


@pytest.mark.parametrize("first", ["a worker", "a link", "the agent"])
def test_every_device_of_a_lost_lease_says_the_same_whatever_was_noticed_first(first: str) -> None:
    """Here `gpupool run` says nothing by itself: its news may come later than all else."""
    source = """
    a = cp.ones(10)
    with cp.cuda.Device(1):
        b = cp.asarray(a)
        b.get()
    cp.asarray(b).get()
    print('ready', flush=True)
    input()
    def say(device, call):
        try:
            with cp.cuda.Device(device):
                while True:
                    call()
        except cp.cuda.runtime.CUDARuntimeError as error:
            print(error)
    # Both workers have a part in it, and either may be the first to notice.
    say(1, lambda: cp.asarray(a).get())
    for device in (0, 1, 0, 1):
        say(device, lambda: cp.zeros(10).sum().get())
    """
    with door_kit.pool(1, 1, linked=True) as agent, beside(agent, source, "ready") as process:
        agent.lost = "lost server server1"
        client, *links = agent.servers[1].connections
        if first == "the agent":
            agent.push({"op": "lost", "what": agent.lost})
        for connection in {"a worker": [client], "a link": links}.get(first, []):
            connection.shutdown(2)
        lines = process.communicate("\n", timeout=60)[0].splitlines()
    text = "lost server server1; the arrays of this session are gone"
    assert lines == [f"cudaErrorDevicesUnavailable: {text}"] * 5
    assert agent.checks == (first != "the agent")


def test_operations_follow_cupys_rule_for_gpus_without_peer_access() -> None:
    source = """
    a = cp.ones(4)
    with cp.cuda.Device(2):
        b = cp.ones(4)
        view = b[1:]
        marked = cp.cuda.Event()
        marked.record()
    def refused(call):
        try:
            call()
        except ValueError as error:
            assert 'Peer access is unavailable between these devices' in str(error), error
        else:
            raise SystemExit('not refused')
    for call in (
        lambda: a + b, lambda: b + 1, lambda: b.sum(), lambda: cp.concatenate([a, b]),
        lambda: b.__setitem__(0, 3), lambda: cp.unique(b), lambda: a.dot(b),
        lambda: cp.where(a, a, b),
    ):
        refused(call)
    for record in (marked.record, lambda: cp.cuda.Stream().record(marked)):
        try:
            record()
            print('recorded')
        except cp.cuda.runtime.CUDARuntimeError as error:
            assert error.status == 400
    # What computes nothing is possible everywhere.
    assert b[2:].shape == b.T[2:].shape == view.reshape(3, 1)[1:, 0].shape == (2,)
    assert b.get().tolist() == [1.0] * 4 and float(view[0]) == 1.0 and 'array' in repr(b)
    b.set(np.arange(4.))
    b.set(np.arange(4.)[::-1])
    assert b.get().tolist() == [3.0, 2.0, 1.0, 0.0] and b.device.id == 2
    assert (a + a).device.id == 0
    print(cp.cuda.runtime.deviceCanAccessPeer(0, 1), cp.cuda.runtime.deviceCanAccessPeer(0, 2))
    """
    assert run(source, 2, 1) == ["1 0"]


OTHERS: list[list[Any]] = [
    [],
    [None, None],
    [None, ["a", "a", bytes(16), bytes(32), "none", bytes(32)]],
    [None, ["a", "a", bytes(15), bytes(32), "off", bytes(32)]],
    [None, *[["a"]] * 256],
]


def test_malformed_introductions_are_refused() -> None:
    short = {"key": b"short", "others": [None]}
    for peers in ([], short, *({"key": bytes(32), "others": each} for each in OTHERS)):
        with pytest.raises(RemoteProtocolError, match="malformed introduction"):
            introduction(peers)
