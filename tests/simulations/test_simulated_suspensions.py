"""How a simulated host suspends, resumes and moves leases, and where that fails."""

from collections.abc import Callable, Mapping
from random import Random

import pytest

from gpupool.pool.host_suspension import SuspensionPhase
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.state import Partition
from gpupool.simulations.kernel import simulated_suspensions
from gpupool.simulations.kernel.simulated_suspensions import SimulatedSuspensions

P = SuspensionPhase
LEASE = LeaseId(7)
MOVES = {GpuId("a"): GpuId("b")}


class FakeMachine:
    """A machine with one lease; a process's later actions run on request."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.told: list[str] = []
        self.parts = (Partition(ServerId("s"), GpuId("a"), 1 << 30),)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        assert 0 <= delay_s <= simulated_suspensions.MOVE_S_MAX
        self.later.append(action)

    def happen(self) -> None:
        while self.later:
            self.later.pop(0)()

    def set_away(self, lease: LeaseId, away: bool) -> None:
        self.told.append(f"{lease} {'away' if away else 'back'}")

    def relocate(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        self.told += [f"{lease} from {old} to {new}" for old, new in moves.items()]

    def strand(self, lease: LeaseId) -> None:
        self.told.append(f"{lease} stranded")

    def lose(self, lease: LeaseId) -> None:
        self.told.append(f"{lease} lost")

    def memory_of(self, lease: LeaseId) -> tuple[Partition, ...]:
        assert lease == LEASE
        return self.parts

    def new_random(self) -> Random:
        return Random(1)


def suspended(
    monkeypatch: pytest.MonkeyPatch, *, strands: float = 0.0, loses: float = 0.0
) -> tuple[FakeMachine, SimulatedSuspensions]:
    """Return a host with a suspended lease; from now on its driver fails at the given rates."""
    for name in ("REFUSES", "STRANDS", "LOSES"):
        monkeypatch.setattr(simulated_suspensions, name, 0.0)
    machine = FakeMachine()
    host = SimulatedSuspensions(machine, machine, {})
    host.suspend(LEASE, 5)
    machine.happen()
    assert host.phases()[LEASE].phase is P.SUSPENDED
    assert machine.told == ["7 away"]
    machine.told.clear()
    monkeypatch.setattr(simulated_suspensions, "STRANDS", strands)
    monkeypatch.setattr(simulated_suspensions, "LOSES", loses)
    return machine, host


def test_a_driver_that_refuses_the_other_gpu_leaves_the_lease_stranded_until_it_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, host = suspended(monkeypatch, strands=1.0)
    host.resume(LEASE, 5, MOVES)
    machine.happen()
    said = host.phases()[LEASE]
    assert (said.number, said.phase) == (5, P.STRANDED)
    assert said.reason == "the driver refuses the other GPU"
    assert host.holds(LEASE), "no session is opened meanwhile"
    assert machine.told == ["7 from a to b", "7 stranded"]
    host.resume(LEASE, 5, MOVES)  # repeated, level by level, until the table knows
    machine.happen()
    assert host.phases()[LEASE].phase is P.STRANDED
    host.resume(LEASE, 5)
    machine.happen()
    assert machine.told[2:] == ["7 from b to a", "7 back"]
    assert host.phases()[LEASE].phase is P.RUNNING
    assert not host.holds(LEASE)


def test_only_a_move_strands_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, host = suspended(monkeypatch, strands=1.0)
    host.resume(LEASE, 5)
    machine.happen()
    assert machine.told == ["7 back"]
    assert host.phases()[LEASE].phase is P.RUNNING


@pytest.mark.parametrize("moves", [{}, MOVES])
def test_what_the_driver_loses_ends_and_the_lease_runs_without_it(
    monkeypatch: pytest.MonkeyPatch, moves: Mapping[GpuId, GpuId]
) -> None:
    machine, host = suspended(monkeypatch, loses=1.0)
    host.resume(LEASE, 5, moves)
    machine.happen()
    assert machine.told[-1] == "7 lost"
    assert "7 back" not in machine.told, "it has nothing on a GPU any more"
    assert host.phases()[LEASE].phase is P.RUNNING


def test_what_the_driver_loses_on_its_way_out_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_suspensions, "LOSES", 1.0)
    machine = FakeMachine()
    host = SimulatedSuspensions(machine, machine, {})
    host.suspend(LEASE, 5)
    machine.happen()
    said = host.phases()[LEASE]
    assert (said.phase, said.reason) == (P.REFUSED, "the driver has lost it")
    assert machine.told == ["7 lost"]
