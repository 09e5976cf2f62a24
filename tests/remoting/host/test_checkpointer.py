"""Suspension by the driver's functions: all processes or none, and permanent losses."""

import os
from collections.abc import Callable, Mapping

import pytest

from gpupool.remoting.host.suspension import checkpointer, driver_calls
from gpupool.remoting.host.suspension.checkpointer import (
    CallProcess,
    CheckpointError,
    HangingError,
    Outcome,
    State,
)

RUNNING, LOCKED, CHECKPOINTED = State.RUNNING, State.LOCKED, State.CHECKPOINTED
NEXT = {
    "Lock": (RUNNING, LOCKED),
    "Checkpoint": (LOCKED, CHECKPOINTED),
    "Restore": (CHECKPOINTED, LOCKED),
    "Unlock": (LOCKED, RUNNING),
}


class Driver:
    """The states of processes, as a driver has them; ``fails`` has results for (name, process)."""

    def __init__(self, *processes: int) -> None:
        self.states: dict[int, State] = dict.fromkeys(processes, RUNNING)
        self.fails: dict[tuple[str, int], int] = {}
        self.hangs: set[tuple[str, int]] = set()
        self.started = self.closed = 0
        self.done: list[tuple[str, int]] = []
        self.wants = 0  # the number of pairs that are right: for some GPUs, or for all
        self.asked: list[tuple[int, int, dict[str, str]]] = []

    def make(self) -> "Driver":
        self.started += 1
        return self

    def call(
        self, name: str, process: int, number: int, timeout_s: float, moves: Mapping[str, str] = {}
    ) -> tuple[int, int]:
        if name == "Restore" and moves:
            self.asked.append((process, number, dict(moves)))
            if number != self.wants:
                return 1, 0
        if (name, process) in self.hangs:
            self.hangs.discard((name, process))
            raise HangingError(f"the driver gave no answer within {timeout_s:.0f} s")
        if result := self.fails.get((name, process), 0):
            return result, 0
        if name == "GetState":
            state = self.states[process]
            return (3, 0) if state is State.NO_CUDA else (0, state)
        before, after = NEXT[name]
        if self.states[process] is not before:
            return 401, 0
        self.states[process] = after
        self.done.append((name, process))
        return 0, 0

    def close(self) -> None:
        self.closed += 1


def test_all_are_locked_before_the_first_one_lets_go() -> None:
    driver = Driver(1, 2)
    assert checkpointer.suspend([1, 2], 0, driver.make) == Outcome()
    assert driver.done == [("Lock", 1), ("Lock", 2), ("Checkpoint", 1), ("Checkpoint", 2)]
    assert checkpointer.resume([1, 2], 0, driver.make) == Outcome()
    assert driver.done[4:] == [("Restore", 1), ("Restore", 2), ("Unlock", 1), ("Unlock", 2)]
    assert driver.started == driver.closed == 2


@pytest.mark.parametrize(
    ("name", "result", "why"),
    [
        ("Lock", 600, "did not come to rest within 10 s"),
        ("Checkpoint", 801, "for instance with managed memory"),
        ("Checkpoint", 2, "not enough memory"),
        ("Checkpoint", 999, "the NVIDIA driver answers 999 to Checkpoint"),
        ("GetState", 304, "only root may suspend programs"),
        ("GetState", -1, "older than 570"),
    ],
)
def test_a_refusal_leaves_every_process_running(name: str, result: int, why: str) -> None:
    driver = Driver(1, 2, 3)
    driver.fails[name, 2] = result
    outcome = checkpointer.suspend([1, 2, 3], 0, driver.make)
    assert why in outcome.problem
    assert outcome.lost == ()
    assert set(driver.states.values()) == {RUNNING}


def test_a_call_that_hangs_is_given_up_and_the_processes_run_on() -> None:
    driver = Driver(1, 2)
    driver.hangs.add(("Checkpoint", 2))
    outcome = checkpointer.suspend([1, 2], 1 << 30, driver.make)
    assert outcome == Outcome("the driver gave no answer within 28 s")
    assert set(driver.states.values()) == {RUNNING}
    assert driver.started == 2


def test_a_process_that_cannot_come_back_is_lost_and_the_others_are_not() -> None:
    driver = Driver(1, 2, 3)
    driver.fails |= {("Checkpoint", 3): 801, ("Restore", 2): 2}
    outcome = checkpointer.suspend([1, 2, 3], 0, driver.make)
    assert outcome.lost == (2,)
    assert driver.states == {1: RUNNING, 2: CHECKPOINTED, 3: RUNNING}


def test_a_process_without_cuda_is_said_and_left_alone() -> None:
    driver = Driver(1, 2)
    driver.states[2] = State.NO_CUDA
    assert checkpointer.suspend([1, 2], 0, driver.make) == Outcome(idle=(2,))
    assert driver.states == {1: CHECKPOINTED, 2: State.NO_CUDA}


def test_what_could_not_be_restored_once_is_lost_but_a_late_answer_is_not() -> None:
    driver = Driver(1, 2)
    checkpointer.suspend([1, 2], 0, driver.make)
    driver.hangs.add(("Restore", 2))
    assert checkpointer.resume([1, 2], 0, driver.make).lost == ()
    assert driver.states == {1: LOCKED, 2: CHECKPOINTED}
    assert checkpointer.resume([1, 2], 0, driver.make) == Outcome()
    assert set(driver.states.values()) == {RUNNING}
    checkpointer.suspend([1, 2], 0, driver.make)
    driver.fails["Restore", 2] = 2
    assert checkpointer.resume([1, 2], 0, driver.make).lost == (2,)


def test_a_driver_that_cannot_be_started_costs_nobody_anything() -> None:
    def make() -> Driver:
        raise CheckpointError("it does not start")

    assert checkpointer.suspend([1], 0, make) == Outcome("it does not start")


@pytest.fixture
def call_process(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[int], bool]], CallProcess]:
    """Start the real process without a driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    return CallProcess


def test_a_machine_without_a_driver_says_so(
    call_process: Callable[[Callable[[int], bool]], CallProcess],
) -> None:
    with pytest.raises(CheckpointError, match="older than 570"):
        call_process(lambda _process: os.getpid() > 0)


MOVES = {"GPU-1": "GPU-2"}
BOTH = {1: MOVES, 2: MOVES}


@pytest.mark.parametrize("wants", [0, 1, 2])
def test_processes_are_restored_on_other_gpus_with_the_pairs_that_the_driver_wants(
    wants: int,
) -> None:
    driver = Driver(1, 2)
    driver.wants = wants
    assert checkpointer.suspend([1, 2], 0, driver.make) == Outcome()
    assert checkpointer.resume([1, 2], 0, driver.make, BOTH) == Outcome()
    assert driver.states == {1: RUNNING, 2: RUNNING}
    tried = [(process, number, MOVES) for process in (1, 2) for number in range(wants + 1)]
    assert driver.asked == tried


def test_what_does_not_come_up_elsewhere_can_all_go_back() -> None:
    driver = Driver(1, 2)
    assert checkpointer.suspend([1, 2], 0, driver.make) == Outcome()
    driver.fails["Restore", 2] = 1
    found = checkpointer.resume([1, 2], 0, driver.make, BOTH)
    assert found.unmoved
    assert "does not restore it on the other GPU" in found.problem
    assert (found.lost, found.moved) == ((), (1,))
    assert driver.states == {1: CHECKPOINTED, 2: CHECKPOINTED}
    driver.fails.clear()
    assert checkpointer.resume([1, 2], 0, driver.make) == Outcome()
    assert driver.states == {1: RUNNING, 2: RUNNING}


def test_what_finds_no_room_elsewhere_is_lost() -> None:
    driver = Driver(1)
    assert checkpointer.suspend([1], 0, driver.make) == Outcome()
    driver.fails["Restore", 1] = 2
    found = checkpointer.resume([1], 0, driver.make, BOTH)
    assert (found.lost, found.unmoved) == ((1,), False)


def test_pairs_are_for_all_gpus_and_each_is_there_once() -> None:
    a, b, c, d = (bytes([each]) for each in range(4))
    every = (a, b, c, d)
    assert driver_calls.permutation({a: b}, ()) == {a: b}
    assert driver_calls.permutation({a: b}, every) == {a: b, b: a, c: c, d: d}
    assert driver_calls.permutation({a: b, b: c}, every) == {a: b, b: c, c: a, d: d}
    assert driver_calls.permutation({a: b, b: a}, every) == {a: b, b: a, c: c, d: d}
    assert driver_calls.permutation({a: c, b: b}, every) == {a: c, b: b, c: a, d: d}
