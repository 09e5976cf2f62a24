"""Code in a worker that lies to its host: it ends its own worker, and changes nothing else."""

import socket
from functools import partial
from pathlib import Path

import pytest
import trio
from host_kit import MakeHost

from gpupool.pool.measures import Measures, Transport
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerProcess, read_messages
from gpupool.remoting.protocol import helper_messages, worker_messages
from gpupool.remoting.protocol.worker_messages import Connected, WorkerMessage

DIE_S = 20.0

LIE = """
import socket, sys
from gpupool.remoting.protocol import framing, helper_messages, worker_messages as m
def frame(kind, **fields):
    return framing.frame_bytes(kind, framing.dump(fields), size_max=1 << 20)
def report(calls=1, **more):
    return frame(5, calls=calls, bytes_in=2, bytes_out=3, **more)
socket.socket(fileno=int(sys.argv[1])).sendall({data})
"""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('frame(3, transport="x" * 47_000)', "Connected.transport: beyond its bound"),
        ('frame(3, transport="unix")', "it sent Connected out of turn"),
        ("report(2**64 - 1)", "Report.calls: beyond its bound"),
        ("report(2**53 + 1)", "counters beyond all measure"),
        ("report(-1)", "Report.calls: beyond its bound"),
        ("report(rtt_us=2**32)", "Report.rtt_us: beyond its bound"),
        ("report(7) + report(8, retransmits=3) + report(8, retransmits=2)", "counters that fell"),
        ("report(1 << 40) + report(1)", "counters that fell"),
        ('frame(6, text="x" * 40_000)', "Log.text: beyond its bound"),
    ],
)
async def test_a_worker_that_lies_ends_and_nothing_else_does(
    make_host: MakeHost, data: str, reason: str
) -> None:
    """Texts of a worker became labels, and its numbers sums, until the server could not go on."""
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    other, _ = await kit.connect(kit.lease(2))
    await client.send(b"x", LIE.replace("{data}", data).encode())
    with trio.fail_after(DIE_S):
        await worker.ended.wait()
    assert reason in worker.exit_reason()
    sessions = {each.lease: each for each in kit.host.telemetry()[1]}
    assert all(each.calls <= 2**53 for each in sessions.values())
    assert {each.transport for each in sessions.values()} == {"unix"}
    assert await other.reserve(1 << 20)


@pytest.mark.parametrize(
    ("status", "reason"), [(-9, "it lied"), (3, "it lied"), (-11, "killed by SIGSEGV")]
)
async def test_the_reason_to_kill_it_is_told_unless_it_ended_by_itself(
    status: int, reason: str
) -> None:
    """A worker that closed its socket, too, was said to have "exited with code 3"."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = WorkerProcess(1, -1, kill=lambda: None, reap=trio.sleep_forever)
        worker = WorkerHandle(1, process, ours, -1, Path())
        worker.kill("it lied")
        process.returncode = status
        assert worker.exit_reason() == reason


@pytest.mark.parametrize("transport", ["a word", ""])
async def test_whatever_is_wrong_with_a_message_ends_its_worker_alone(transport: str) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    killed: list[bool] = []

    async def reap() -> helper_messages.Reaped:
        return helper_messages.Reaped(0)

    process = WorkerProcess(1, -1, kill=partial(killed.append, True), reap=reap)
    worker = WorkerHandle(1, process, ours, -1, Path())
    measures = Measures()

    def handle(message: WorkerMessage) -> None:
        assert isinstance(message, Connected)
        measures.observe("session_rtt_seconds", 0.1, Transport(message.transport))

    with ours, theirs:
        theirs.sendall(worker_messages.WORKER.encode(Connected(transport)))
        with trio.fail_after(DIE_S):
            await read_messages(worker, handle)
    assert killed == [True]
    assert (
        worker.ending.kill_reason
        == f"it broke the protocol: '{transport}' is not a valid Transport"
    )
    assert measures.histograms() == {}
