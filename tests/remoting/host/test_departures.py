"""Sessions that may go on with another server, and the servers that their workers reach."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.pool.test_lease_relocations import C, D, Going, gpu

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Lease
from gpupool.remoting.host.departures import depart, origin_of, servers_of
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.protocol.sessions import Departure

LEASE = LeaseId(7)


def worker(number: int = 1, door: str = "arrays", lease: LeaseId = LEASE) -> WorkerHandle:
    made = WorkerHandle(number, cast(Any, None), socket.socket(), -1, Path())
    made.control.close()
    made.session.lease, made.session.door, made.state = lease, door, WorkerState.CONNECTED
    made.session.id = bytes([number]) * 16
    return made


def test_the_one_session_may_reach_the_other_server_until_it_is_over() -> None:
    mine, other = worker(), worker(2, lease=LeaseId(8))
    assert depart([mine, other], LEASE, D) == Departure(ready=True, session=mine.session.id)
    assert (mine.session.peers, other.session.peers) == ({D}, frozenset())
    mine.session.expects_peers = True
    depart([mine, other], LEASE, None)
    assert (mine.session.peers, mine.session.expects_peers) == (frozenset(), False)


@pytest.mark.parametrize("state", [WorkerState.WAITING, WorkerState.ENDED])
def test_a_session_that_has_not_begun_or_has_ended_is_waited_for(state: WorkerState) -> None:
    mine = worker()
    mine.state = state
    assert depart([mine], LEASE, D) == Departure()
    assert not mine.session.peers


def test_what_cannot_go_is_said() -> None:
    assert depart([], LEASE, D) == Departure(ready=True)
    driver = depart([worker(door="cuda")], LEASE, D)
    assert driver.refusal == "its program uses the CUDA door, and the state is the driver's"
    two = depart([worker(1), worker(2)], LEASE, D)
    assert two.refusal == "it has 2 processes, and one alone can be moved"
    assert not any(each.ready for each in (driver, two))


def test_a_program_computes_with_one_server_though_its_lease_has_parts_on_two() -> None:
    pool = Going()
    held = pool.hold((gpu(0), 40))

    def reached(lease: Lease) -> list[tuple[object, ...]]:
        return [(servers_of(lease, each), origin_of(lease, each)) for each in (C, D)]

    alone: list[tuple[object, ...]] = [((C,), frozenset()), ((D,), frozenset())]
    assert reached(pool.lease(held)) == [((C,), frozenset()), ((C,), frozenset())]
    assert pool.go(held).ok
    assert reached(pool.lease(held)) == [((C,), frozenset()), ((D,), frozenset({C}))]
    assert pool.confirm(held).ok
    assert reached(pool.lease(held)) == alone
    assert pool.do(pool.freed(held, C)).ok
    assert servers_of(pool.lease(held), D) == (D,)
    wide = replace(pool.lease(held), relocation=None)
    assert origin_of(wide, D) == frozenset()
