"""Tasks in virtual time: order and times of grants, by the pool's rules and in a strict queue."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.monitoring.analysis.virtual_pool import (
    GPU_MEMORY,
    Fleet,
    Outcome,
    Task,
    VirtualPool,
    percentile,
)
from gpupool.pool.invariants import violations
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.results import Result


def task(at: float, hold: float, count: int = 1, fraction: float = 1.0, memory: int = 0) -> Task:
    return Task(at, count, fraction, memory, ((hold, 0.0),), "ada")


def replay(tasks: Sequence[Task], gpus: int, *, strict: bool = False, width: int = 8) -> Outcome:
    return VirtualPool(Fleet(gpus, width), strict=strict).run(tasks)


def test_one_gpu_serves_in_order() -> None:
    outcome = replay([task(0, 100), task(10, 100), task(20, 100)], 1)
    assert outcome.waits_s == [0.0, 90.0, 180.0]
    assert outcome.last_s == 300.0
    assert outcome.held_gpu_s == pytest.approx(300.0)


def test_shares_lie_on_one_gpu() -> None:
    assert replay([task(0, 100, fraction=0.5), task(1, 100, fraction=0.5)], 1).waits_s == [0, 0]
    half = GPU_MEMORY // 2
    assert replay([task(0, 100, memory=half), task(1, 100, memory=half)], 1).waits_s == [0, 0]
    assert replay([task(0, 100, fraction=0.6), task(1, 100, fraction=0.6)], 1).waits_s == [0, 99]


def test_a_small_request_overtakes_a_large_one_but_not_for_long() -> None:
    # Two GPUs, one of them taken: the pair has to wait, and a single GPU is free meanwhile.
    tasks = [task(0, 1000), task(10, 50, count=2), task(20, 5), task(200, 5)]
    assert replay(tasks, 2).waits_s == [0.0, 0.0, 990.0, 850.0]
    assert replay(tasks, 2, strict=True).waits_s == [0.0, 990.0, 1030.0, 850.0]


def test_small_requests_do_not_starve_a_large_one() -> None:
    stream = [task(at, 30) for at in range(0, 3000, 10)]
    tasks = sorted([*stream, task(15, 30, count=2)], key=lambda each: each.submit_s)
    waits = replay(tasks, 2).waits_s
    assert max(waits) > 60
    assert len(waits) == len(tasks)


def test_requests_beyond_a_server_are_served_by_several() -> None:
    assert replay([task(0, 10, count=12)], 16).waits_s == [0.0]
    outcome = replay([task(0, 10, count=12), task(1, 10)], 8)
    assert (outcome.refused, outcome.waits_s) == (1, [0.0])


def test_requests_beyond_a_gpu_are_refused() -> None:
    outcome = replay([task(0, 10, memory=GPU_MEMORY + (1 << 20))], 8)
    assert (outcome.refused, outcome.waits_s) == (1, [])


def test_pauses_give_the_gpu_to_others() -> None:
    twice = Task(0, 1, 1.0, 0, ((100.0, 200.0), (100.0, 0.0)), "ada")
    outcome = replay([twice, task(50, 300)], 1)
    # The other gets it at 100 for 300 s; the second hold was due at 300.
    assert outcome.waits_s == [0.0, 50.0, 100.0]


@pytest.mark.long
def test_a_run_ends_early_when_the_goal_is_missed() -> None:
    tasks = [task(at, 1000) for at in range(2000)]
    outcome = VirtualPool(Fleet(1)).run(tasks, goal_s=10.0)
    assert not outcome.complete
    assert VirtualPool(Fleet(2000)).run(tasks, goal_s=10.0).complete


def test_percentile() -> None:
    assert percentile([], 0.95) == 0
    assert percentile([5.0], 0.95) == 5
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([1, 2, 3, 4], 0.5) == 2


class AskingAll(VirtualPool):
    """Asks every server, as clients do."""

    @staticmethod
    def _to_ask(alike: list[ServerId], kept: set[ServerId], *, across: bool) -> list[ServerId]:
        return alike


class Watched(VirtualPool):
    """Checks the table after each command."""

    def _apply(self, command: Command) -> Result:
        result = super()._apply(command)
        assert violations(self._state) == []
        return result


@st.composite
def workloads(draw: st.DrawFn) -> list[Task]:
    seeded = random.Random(draw(st.integers(0, 2**32)))
    tasks = [
        task(
            seeded.randrange(2000),
            seeded.choice((1, 50, 400, 900)),
            seeded.choice((1, 1, 1, 2, 3, 5)),
            seeded.choice((1.0, 0.5, 0.35, 0.1)),
        )
        for _ in range(draw(st.integers(1, 40)))
    ]
    return sorted(tasks, key=lambda each: each.submit_s)


@settings(max_examples=examples(25), deadline=None)
@given(tasks=workloads(), gpus=st.integers(5, 14))
def test_one_server_of_each_condition_is_enough(tasks: list[Task], gpus: int) -> None:
    fleet = Fleet(gpus, 4)
    fast, whole = VirtualPool(fleet).run(tasks), AskingAll(fleet).run(tasks)
    assert fast.waits_s == whole.waits_s
    assert Watched(fleet).run(tasks).waits_s == whole.waits_s


@settings(max_examples=examples(25), deadline=None)
@given(tasks=workloads(), strict=st.booleans())
def test_everything_is_served_and_the_same_each_time(tasks: list[Task], strict: bool) -> None:
    outcome = replay(tasks, 7, strict=strict, width=4)
    assert outcome.refused == 0
    assert len(outcome.waits_s) == len(tasks)
    shares = sum(t.count * t.fraction * t.holds[0][0] for t in tasks)
    assert outcome.held_gpu_s == pytest.approx(shares, rel=1e-3)
    assert replay(tasks, 7, strict=strict, width=4) == outcome
