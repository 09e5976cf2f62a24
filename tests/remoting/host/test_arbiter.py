"""The thread that gives turns, with workers that are this process: real sockets, real gates."""

import errno
import os
import socket
import time
from dataclasses import dataclass, field

import pytest
import trio
from host_kit import until

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.sharing.arbiter import Arbiter
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.worker.launch_gate import LaunchGate

GPU = GpuId("GPU-1")


@dataclass
class Worker:
    """A worker that passes its socket on to a gate, or keeps it to send anything."""

    gate: LaunchGate | None = field(default_factory=LaunchGate)
    line: socket.socket | None = None
    killed: str = ""

    def send(self, message: worker_messages.TakeTurns, descriptor: int | None = None) -> None:
        assert message == worker_messages.TakeTurns()
        assert descriptor is not None
        self.line = socket.socket(fileno=os.dup(descriptor))
        if self.gate is not None:
            self.gate.attach(self.line)

    def kill(self, reason: str) -> None:
        self.killed = reason

    def launch(self, until_s: float) -> None:
        """Pass the gate again and again, with a little work behind it."""
        assert self.gate is not None
        while time.monotonic() < until_s:
            self.gate.begin(0)
            time.sleep(0.0005)
            self.gate.executing = False


async def test_a_lone_lease_has_no_socket_and_two_share_the_time() -> None:
    workers = {1: Worker(), 2: Worker()}
    arbiter = Arbiter(workers.get)
    arbiter.join(1, LeaseId(1), [(GPU, 0.75)])
    assert workers[1].line is None
    arbiter.join(2, LeaseId(2), [(GPU, 0.25)])
    assert workers[1].line is not None
    end = time.monotonic() + 1.0
    async with trio.open_nursery() as nursery:
        for worker in workers.values():
            nursery.start_soon(trio.to_thread.run_sync, worker.launch, end)
    got = arbiter.got()[LeaseId(1)][GPU]
    assert got.due == 0.75
    assert got.got is not None
    assert abs(got.got - 0.75) < 0.15  # the bound of a loaded machine; exact in virtual time
    arbiter.leave(2)
    gate = workers[1].gate
    assert gate is not None
    await until(lambda: not gate.gates[0].closed)
    arbiter.close()


async def test_a_worker_for_which_there_is_no_socket_leaves_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had joined the turns of its first GPU alone, and the end of its worker ended the host."""
    workers = {1: Worker(), 2: Worker()}
    arbiter = Arbiter(workers.get)
    arbiter.join(1, LeaseId(1), [(GPU, 0.5)])

    def refuse(*_: object) -> tuple[socket.socket, socket.socket]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            arbiter.join(2, LeaseId(2), [(GPU, 0.5), (GpuId("GPU-2"), 0.5)])
        arbiter.weigh({LeaseId(2): 2.0})
        arbiter.leave(2)
    assert arbiter.got() == {LeaseId(1): {GPU: arbiter.got()[LeaseId(1)][GPU]}}
    arbiter.leave(1)
    arbiter.close()


async def test_shares_are_multiplied_by_weights_for_workers_of_now_and_of_later() -> None:
    workers = {number: Worker() for number in (1, 2, 3)}
    arbiter = Arbiter(workers.get)

    def due() -> list[float]:
        return [arbiter.got()[LeaseId(lease)][GPU].due for lease in (1, 2)]

    arbiter.join(1, LeaseId(1), [(GPU, 0.25)])
    arbiter.weigh({LeaseId(1): 2.0, LeaseId(2): 1.5})
    arbiter.join(2, LeaseId(2), [(GPU, 0.25)])
    assert due() == [0.5, 0.375]
    arbiter.join(3, LeaseId(2), [(GPU, 0.25)])
    assert due() == [0.5, 0.375], "a second worker of a lease changes nothing"
    arbiter.weigh({LeaseId(2): 0.5, LeaseId(9): 7.0})
    assert due() == [0.25, 0.125]
    arbiter.weigh({LeaseId(1): 3.0, LeaseId(2): 1.0})
    assert due() == [0.75, 0.25]
    for worker in (1, 2, 3):
        arbiter.leave(worker)
    arbiter.weigh({})
    assert arbiter.got() == {}
    arbiter.close()


async def test_a_lease_that_rests_takes_its_turns_on_another_gpu_from_then_on() -> None:
    other, third = GpuId("GPU-2"), GpuId("GPU-3")
    workers = {number: Worker() for number in (1, 2, 3, 4)}
    arbiter = Arbiter(workers.get)
    arbiter.weigh({LeaseId(1): 2.0})
    for number in (1, 4):  # two processes, each of which has both GPUs
        arbiter.join(number, LeaseId(1), [(GPU, 0.25), (third, 0.5)])
    arbiter.join(2, LeaseId(2), [(GPU, 0.5)])
    arbiter.join(3, LeaseId(3), [(other, 0.5)])
    assert workers[3].line is None
    arbiter.rest(LeaseId(1))
    arbiter.move(LeaseId(1), {GPU: other})
    got = arbiter.got()
    assert {lease: set(gpus) for lease, gpus in got.items()} == {
        LeaseId(1): {other, third},
        LeaseId(2): {GPU},
        LeaseId(3): {other},
    }
    assert got[LeaseId(1)][other].due == 0.5
    assert workers[3].line is not None, "it has a neighbour now"
    gates = [workers[number].gate for number in (1, 4)]
    await until(lambda: all(gate is not None and gate.gates[0].closed for gate in gates))
    end = time.monotonic() + 0.6
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, workers[3].launch, end)
        await trio.sleep(0.1)
        arbiter.come_back(LeaseId(1))
        nursery.start_soon(trio.to_thread.run_sync, workers[1].launch, end)
        await trio.sleep(0.4)
        shares = [arbiter.got()[LeaseId(lease)][other].got for lease in (1, 3)]
    assert all(share is not None and share > 0.2 for share in shares), shares
    for number in workers:
        arbiter.leave(number)
    assert arbiter.got() == {}
    arbiter.close()


async def test_a_worker_that_says_what_is_no_word_is_killed() -> None:
    workers = {1: Worker(), 2: Worker(gate=None)}
    arbiter = Arbiter(workers.get)
    arbiter.join(1, LeaseId(1), [(GPU, 0.5)])
    arbiter.join(2, LeaseId(2), [(GPU, 0.5)])
    line = workers[2].line
    assert line is not None
    line.send(b"much too long a word of a worker")
    await until(lambda: workers[2].killed)
    assert not workers[1].killed
    line.close()
    arbiter.close()
