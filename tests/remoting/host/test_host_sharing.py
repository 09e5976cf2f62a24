"""Handles that workers of one lease share, through the host's real sockets."""

import os
import resource
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.budget import Budget, BudgetError
from gpupool.remoting.host.shared_handles import SHARED_MAX, Sharing, descriptor_room
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerSession, serve_budget
from gpupool.remoting.worker.worker_channel import BudgetClient, HostGoneError

ONE, OTHER = LeaseId(1), LeaseId(2)
TOKEN = bytes(range(32))
GPU = GpuId("GPU-a")


class HostedWorker:
    """The parts of a worker that serving a budget needs."""

    def __init__(self, number: int, lease: LeaseId) -> None:
        self.number, self.lease = number, lease
        self.budget, theirs = socket.socketpair()
        self.budget.setblocking(False)
        self.session = WorkerSession(lease=lease, budget=self.budget)
        self.client = BudgetClient(theirs)
        self.theirs = theirs
        self.killed = ""

    def kill(self, why: str) -> None:
        self.killed = why


@contextmanager
def served(
    workers: list[HostedWorker], sharing: Sharing, budget: Budget | None = None
) -> Generator[threading.Thread]:
    """Serve the workers meanwhile, in a thread that ends with their ends."""
    books = budget or Budget()
    for worker in workers:
        books.open_lease(worker.lease, {GPU: 100})
        books.add_worker(worker.number, worker.lease)

    async def serve_all() -> None:
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(serve_budget, cast("WorkerHandle", worker), books, sharing)

    thread = threading.Thread(target=trio.run, args=(serve_all,))
    thread.start()
    try:
        yield thread
    finally:
        for worker in workers:
            worker.theirs.close()
        thread.join(10)
        for worker in workers:
            worker.budget.close()


def test_workers_of_a_lease_find_what_others_shared(tmp_path: Path) -> None:
    """A handle with its descriptor goes to workers of the same lease, and to no others."""
    (tmp_path / "file").write_bytes(b"physical memory")
    sharing = Sharing()
    workers = [HostedWorker(1, ONE), HostedWorker(2, ONE), HostedWorker(3, OTHER)]
    giver, taker, stranger = (worker.client for worker in workers)
    with served(workers, sharing):
        with (tmp_path / "file").open("rb") as file:
            assert giver.share(TOKEN, b"handle", file.fileno())
        assert giver.share(TOKEN[::-1], b"")
        assert taker.find(TOKEN[::-1]) == (b"", -1)
        for _ in range(2):
            found: Any = taker.find(TOKEN)
            assert found is not None and found[0] == b"handle"
            assert os.pread(found[1], 100, 0) == b"physical memory"
            assert not os.get_inheritable(found[1])
            os.close(found[1])
        assert stranger.find(TOKEN) is None
        giver.forget(TOKEN[::-1])
        assert taker.find(TOKEN[::-1]) is None
        assert taker.find(bytes(32)) is None
    assert not any(worker.killed for worker in workers)
    sharing.end_worker(1)
    assert sharing.find(ONE, TOKEN) is None


def test_a_worker_that_opens_memory_holds_what_another_has_pledged() -> None:
    budget, workers = Budget(), [HostedWorker(1, ONE), HostedWorker(2, ONE)]
    giver, taker = (worker.client for worker in workers)
    for worker in workers:
        worker.session.devices = (GPU,)
    with served(workers, Sharing(), budget):
        assert not giver.reserve(0, 1 << 64)
        assert giver.reserve(0, 60)
        assert giver.share(TOKEN, b"handle")
        giver.pledge(TOKEN, 0, 50)
        assert taker.find(TOKEN) is not None  # looks, and opens nothing
        giver.take_back(TOKEN, 10)
        assert giver.usage(0) == 50
        assert taker.find(TOKEN, opens=True) is not None
        giver.forget(TOKEN)
        giver.let_go(TOKEN)
        giver.release(0, 10)
        assert giver.usage(0) == 40
        assert taker.find(TOKEN, opens=True) is None
        taker.let_go(TOKEN)
        assert giver.usage(0) == 0
    assert not any(worker.killed for worker in workers)


def test_memory_is_let_go_of_once_the_host_knows() -> None:
    """Its program may tell another process of the lease, which looks how much memory is left."""
    worker = HostedWorker(1, ONE)
    with worker.budget, worker.theirs:
        worker.budget.shutdown(socket.SHUT_WR)  # no answer comes
        with pytest.raises(HostGoneError):
            worker.client.let_go(TOKEN)
        with pytest.raises(HostGoneError):
            worker.client.take_back(TOKEN, 10)


def test_a_descriptor_that_nobody_asked_for_ends_a_worker(tmp_path: Path) -> None:
    worker = HostedWorker(1, ONE)
    with (
        served([worker], Sharing()) as thread,
        tmp_path.joinpath("file").open("wb") as file,
    ):
        call = b"\x03" + bytes(15)  # asks for the use of a device that it does not have
        socket.send_fds(worker.theirs, [call], [file.fileno()])
        thread.join(10)
    assert "no device 0" in worker.killed


def test_shared_handles_are_bounded_and_closed() -> None:
    sharing = Sharing()
    reading, writing = os.pipe()
    assert sharing.share(1, ONE, TOKEN, b"", writing)
    for at in range(SHARED_MAX - 1):
        assert sharing.share(2, ONE, at.to_bytes(32, "big"), b"", -1)
    assert not sharing.share(2, ONE, b"t" * 32, b"", -1)
    assert sharing.share(2, OTHER, b"t" * 32, b"", -1)
    sharing.forget(2, ONE, bytes(32))
    assert not sharing.share(2, ONE, TOKEN, b"", -1)  # it is taken, and stays whose it is
    assert sharing.share(2, ONE, bytes(32), b"", -1)
    with pytest.raises(BudgetError):
        sharing.share(2, ONE, b"short", b"", -1)
    sharing.end_worker(1)
    assert os.read(reading, 1) == b""  # nobody can write any more
    os.close(reading)
    assert sharing.find(ONE, (7).to_bytes(32, "big")) is not None


def test_descriptors_of_one_lease_leave_room_for_those_of_others(tmp_path: Path) -> None:
    sharing = Sharing(descriptors=8)

    def share(lease: LeaseId, number: int) -> bool:
        file = os.open(tmp_path, os.O_RDONLY)
        return sharing.share(lease, lease, number.to_bytes(32, "big"), b"", file)

    assert [share(ONE, at) for at in range(3)] == [True, True, False]
    assert sharing.share(1, ONE, TOKEN, b"", -1)  # needs none
    assert share(OTHER, 0)
    sharing.end_worker(1)
    assert share(ONE, 0)
    sharing.end_worker(1)
    sharing.end_worker(2)


def test_the_limit_of_descriptors_is_raised_where_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        room = descriptor_room()
        assert room == resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 > 128 or hard <= 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_may_have_only_its_own_handles_forgotten() -> None:
    """Then there is room for others, and the descriptor is closed."""
    sharing = Sharing()
    reading, writing = os.pipe()
    assert sharing.share(1, ONE, TOKEN, b"", writing)
    for worker, lease in ((2, ONE), (1, OTHER)):
        with pytest.raises(BudgetError):
            sharing.forget(worker, lease, TOKEN)
    sharing.forget(1, ONE, TOKEN)
    assert os.read(reading, 1) == b""
    os.close(reading)
    with pytest.raises(BudgetError):
        sharing.forget(1, ONE, TOKEN)
    assert sharing.share(2, ONE, TOKEN, b"", -1)
