"""Code in a worker that sends its host too much: descriptors, calls, messages."""

import os
import time

import pytest
import trio
import trio.lowlevel
from host_kit import EchoClient, MakeHost

pytestmark = pytest.mark.long  # CI runs these as root

DIE_S = 20.0
TURN_S = 0.2
"""A turn of the loop takes a few milliseconds of the processor, on a loaded machine too."""

HOLD_DESCRIPTORS = """
import array, os, socket, struct
s = budget._socket
data = struct.Struct(">BxHxxxxQ").pack(4, 0, 1024) + b"x" * 1000  # SHARE, and never its last byte
fd = os.open("/dev/null", os.O_RDONLY)
sent = 0
try:
    for at in range(len(data)):
        rights = array.array("i", [fd] * {each})
        s.sendmsg([data[at:at + 1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        sent += {each}
except OSError:
    pass
answer = sent
"""

FLOOD = """
import struct, sys, threading, socket
from gpupool.remoting.protocol import worker_messages as m
control = socket.socket(fileno=int(sys.argv[1]))
sock, data = {what}
def flood():
    try:
        while True:
            sock.sendall(data)
    except OSError:
        pass
threading.Thread(target=flood, daemon=True).start()
"""

CALL = 'struct.Struct(">BxHxxxxQ").pack'


async def run(client: EchoClient, code: str) -> None:
    """Start code in a worker, which may not live to answer."""
    await client.send(b"x", code.encode())


@pytest.mark.parametrize("each", [1, 8])
async def test_a_worker_that_leaves_descriptors_with_its_host_is_killed(
    make_host: MakeHost, each: int
) -> None:
    """Three workers took all of the host's descriptors, and no other lease got a session."""
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    _, other = await kit.connect(kit.lease(2))
    before = len(os.listdir("/proc/self/fd"))
    most = before
    await run(client, HOLD_DESCRIPTORS.replace("{each}", str(each)))
    with trio.fail_after(DIE_S):
        while not worker.ended.is_set():
            most = max(most, len(os.listdir("/proc/self/fd")))
            await trio.sleep(0.001)
    assert "more than one descriptor at a time" in worker.exit_reason()
    assert most - before <= 16  # one read takes eight, and clean-up opens some
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not other.ended.is_set()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (f"budget._socket, {CALL}(2, 0, 0) * 4000", "a flood"),  # RELEASE of nothing
        pytest.param(
            f"budget._socket, {CALL}(3, 0, 0) * 4000",  # USAGE
            "before the answer",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "control, m.WORKER.encode(m.Report(1, 2, 3, busy=True)) * 500",
            "a flood",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "control, m.WORKER.encode(m.Log('x')) * 500", "a flood", marks=pytest.mark.long
        ),
        ("control, m.WORKER.encode(m.Rejected('x')) * 500", "a flood"),
    ],
    ids=["release", "usage", "report", "log", "rejected"],
)
async def test_a_worker_that_floods_its_host_is_killed_and_others_are_served(
    make_host: MakeHost, what: str, reason: str
) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease(2))
    await run(client, FLOOD.replace("{what}", what))
    longest = 0.0
    with trio.fail_after(DIE_S):
        while not worker.process.exited.is_set():
            at = time.thread_time()
            await trio.lowlevel.checkpoint()
            longest = max(longest, time.thread_time() - at)
    assert reason in worker.exit_reason()
    assert longest < TURN_S
    assert await other.reserve(1 << 20)


async def test_a_door_that_gives_back_much_at_once_is_served(make_host: MakeHost) -> None:
    """A program that ends returns each of its allocations, and none of that has an answer."""
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    code = (
        "for _ in range(5000): budget.reserve(0, 512)\n"
        "for _ in range(5000): budget.release(0, 512)\n"
        "for _ in range(1000): budget.reserve(0, 512); budget.release(0, 512)\n"
        "answer = budget.usage(0)"
    )
    assert await client.ask(b"x", code.encode()) == b"0"
    assert not worker.process.exited.is_set()


def test_the_log_of_a_door_is_bounded_where_it_is_written() -> None:
    from gpupool.remoting.host import worker_handle
    from gpupool.remoting.worker import worker_main

    assert worker_main.LOG_TEXT_MAX > worker_handle.LOG_TEXT_MAX
