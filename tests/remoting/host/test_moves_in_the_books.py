"""The host's books of a lease that is moved and goes back, of its room, and of a dead worker."""

# pyright: reportPrivateUsage=false
# The parts are tried without a host around them.

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.suspension.room import Room
from gpupool.remoting.host.suspension.suspensions import Suspensions, _Order
from gpupool.remoting.host.worker_handle import WorkerSession, WorkerState
from gpupool.remoting.host.worker_pool import WorkerPool
from gpupool.remoting.protocol.worker_messages import Ready

LEASE = LeaseId(7)
OLD, NEW = GpuId("old"), GpuId("new")


class Moves:
    """An arbiter that takes note of moves."""

    def __init__(self) -> None:
        self.moved: list[dict[GpuId, GpuId]] = []

    def move(self, lease: LeaseId, moves: dict[GpuId, GpuId]) -> None:
        assert lease == LEASE
        self.moved.append(dict(moves))


def test_a_lease_that_goes_back_is_counted_on_its_old_gpu_again() -> None:
    budget, arbiter = Budget(), Moves()
    budget.open_lease(LEASE, {NEW: 100})
    budget.add_worker(1, LEASE)
    assert budget.reserve(1, NEW, 70)
    process = SimpleNamespace(exited=trio.Event())
    ended, worker = (
        SimpleNamespace(
            session=WorkerSession(lease=lease, devices=(NEW,), real=(NEW,)), process=process
        )
        for lease in (LeaseId(8), LEASE)
    )
    suspensions = object.__new__(Suspensions)
    suspensions._means = cast(
        Any,
        SimpleNamespace(
            budget=budget,
            arbiter=arbiter,
            workers={1: worker, 2: ended},
            log=list[str]().append,
        ),
    )
    order = _Order(1, wanted=False, moved={OLD: NEW}, goes_back=True)
    suspensions._return(LEASE, order)
    assert (order.moved, order.goes_back) == ({}, False)
    assert (worker.session.devices, worker.session.real) == ((OLD,), (OLD,))
    assert (ended.session.devices, ended.session.real) == ((NEW,), (NEW,))
    assert arbiter.moved == [{NEW: OLD}]
    assert budget.usage(LEASE, OLD) == 70
    assert budget.reserve(1, OLD, 30)
    assert not budget.reserve(1, OLD, 1)
    budget.end_worker(1)
    assert budget.usage(LEASE, OLD) == 0


@pytest.mark.parametrize(("moving", "fits"), [(0, True), (35, True), (36, False), (95, False)])
def test_what_is_being_moved_out_leaves_no_room_for_another(moving: int, fits: bool) -> None:
    room = Room(limit=1000, memory_available=lambda: (100, 100))
    place = room.place(60, 0, moving)
    assert (place.problem == "") == fits
    assert (room.no_memory(60, moving) == "") == fits


async def test_a_worker_that_dies_while_it_gets_ready_serves_nobody() -> None:
    doors = frozenset({"arrays"})
    worker: Any = SimpleNamespace(
        doors=doors,
        claimed=False,
        state=WorkerState.STARTING,
        said=Ready(b"", (), ""),
        process=SimpleNamespace(exited=trio.Event()),
        ended=trio.Event(),
        ready=trio.Event(),
        exit_reason=lambda: "it was killed",
    )
    pool = object.__new__(WorkerPool)
    pool._kinds = (doors,)
    pool.workers = {1: worker}
    pool._changed = trio.Event()

    async def until(_worker: object, _event: trio.Event) -> None:
        worker.process.exited.set()  # just after it has said that it is ready

    cast(Any, pool).until = until
    with pytest.raises(WorkerFailedError, match="no worker can be started") as error:
        await pool.claim("arrays")
    assert error.value.why == "it was killed"
