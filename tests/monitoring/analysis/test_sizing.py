"""The fewest GPUs: traces with a known answer, and facts without influence on the answer."""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from gpupool.monitoring.analysis import sizing
from gpupool.monitoring.analysis.cores import on_all_cores
from gpupool.monitoring.analysis.demand import (
    Mode,
    Wish,
    concurrency,
    demand_of,
    joined,
    level_at,
    silos,
)
from gpupool.monitoring.analysis.sizing import Goal, fewest, replay, resampled, size, sizes, tried
from gpupool.monitoring.analysis.trace_form import Builder, Job, Sample, Trace, TraceError
from gpupool.monitoring.analysis.virtual_pool import Task

HOUR = 3600.0
GOAL = Goal(resamples=0)


def binomial_p95(count: int, share: float) -> int:
    total = 0.0
    for k in range(count + 1):
        total += math.comb(count, k) * share**k * (1 - share) ** (count - k)
        if total >= 0.95:
            return k
    return count


def synthetic(users: int = 100, share: float = 0.2, days: int = 40, seed: int = 1) -> Trace:
    """Return users that hold a GPU all the time and compute in spells, independently."""
    draw = random.Random(seed)
    builder = Builder("synthetic")
    end, every = days * 86_400.0, 2 * HOUR
    spell = 20 * HOUR
    for user in range(users):
        builder.add_job(
            Job(f"{user}", 0.0, 0.0, end, f"u{user}", gpus=1, places=(("m", str(user)),))
        )
        busy = draw.random() < share
        for at in range(int(end / every)):
            chance = every / spell if busy else every / spell * share / (1 - share)
            busy = busy ^ (draw.random() < chance)
            builder.add_sample(Sample(at * every, "m", str(user), float(busy), None))
    return builder.trace()


@pytest.mark.long
def test_a_trace_with_a_known_answer() -> None:
    trace = synthetic()
    assert binomial_p95(100, 0.2) == 27
    recorded = size(trace, Mode.RECORDED, GOAL)
    assert recorded.p95_demand == 100
    assert recorded.gpu_count == 95  # the goal leaves five of the hundred requests aside
    # A lease outlives its spell by the idle timeout, which is nothing here.
    wish = Wish(idle_timeout_s=0.0)
    attached = size(trace, Mode.ATTACHED, replace(GOAL, wish=wish))
    assert abs(attached.gpu_count - 27) <= 1
    assert abs(attached.p95_demand - 27) <= 1


def jobs(*rows: tuple[float, float, int, float], users: str = "aabb") -> Trace:
    builder = Builder("jobs")
    for number, (submit, hold, count, fraction) in enumerate(rows):
        user = users[number % len(users)]
        builder.add_job(
            Job(str(number), submit, submit, submit + hold, user, user * 2, count, fraction)
        )
    return builder.trace()


def random_jobs(count: int = 90, seed: int = 3) -> Trace:
    draw = random.Random(seed)
    return jobs(
        *(
            (
                draw.uniform(0, 5 * 86_400),
                draw.expovariate(1 / (6 * HOUR)),
                draw.choice((1, 1, 1, 2, 4)),
                draw.choice((1.0, 0.5, 0.25)),
            )
            for _ in range(count)
        )
    )


def test_each_mode_asks_for_what_it_means() -> None:
    half = jobs((0, HOUR, 1, 0.5), (0, HOUR, 1, 0.5), (0, HOUR, 1, 0.5), (0, HOUR, 1, 0.5))
    assert size(half, Mode.RECORDED, GOAL).gpu_count == 2
    assert size(half, Mode.WHOLE, GOAL).gpu_count == 4
    apart = jobs((0, HOUR, 2, 1.0), (2 * HOUR, HOUR, 2, 1.0), users="ab")
    assert size(apart, Mode.WHOLE, GOAL).gpu_count == 2
    alone = size(apart, Mode.SILOS, GOAL)
    assert (alone.gpu_count, alone.parts) == (4, (("aa", 2), ("bb", 2)))


def test_a_longer_wait_needs_fewer_gpus() -> None:
    two = jobs((0, 600, 1, 1.0), (0, 600, 1, 1.0))
    assert size(two, Mode.RECORDED, GOAL).gpu_count == 2
    assert size(two, Mode.RECORDED, replace(GOAL, wait_s=600)).gpu_count == 1


def test_a_slowdown_holds_gpus_for_longer() -> None:
    tasks = demand_of(jobs((0, 100, 1, 1.0)), Mode.RECORDED, Wish(slowdown=1.05)).tasks
    assert tasks[0].holds == ((pytest.approx(105.0), 0.0),)


@pytest.mark.long
def test_the_same_seed_gives_the_same_report() -> None:
    trace, goal = random_jobs(), replace(GOAL, resamples=3, seed=5)
    first = size(trace, Mode.RECORDED, goal)
    assert size(trace, Mode.RECORDED, goal) == first
    assert first.low <= first.gpu_count <= first.high
    tasks = demand_of(trace, Mode.RECORDED, Wish()).tasks
    draws = [resampled(tasks, trace.begin, trace.span_s, 5, number) for number in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.long
def test_draws_on_all_cores_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, goal = random_jobs(), replace(GOAL, resamples=3, seed=5)
    alone = size(trace, Mode.RECORDED, goal)
    monkeypatch.setattr(sizing, "SPREAD_MIN", 0)
    used: list[int] = []
    with on_all_cores() as spread:

        def counted(function: Callable[[int], int], numbers: Iterable[int]) -> Iterable[int]:
            used.extend(numbers)
            return spread(function, numbers)

        assert size(trace, Mode.RECORDED, goal, spread=counted) == alone
    assert used == [0, 1, 2]


@pytest.mark.long
def test_the_fewest_is_the_fewest_and_more_wait_less() -> None:
    trace = random_jobs()
    tasks = demand_of(trace, Mode.RECORDED, Wish()).tasks
    found, _ = fewest(tasks, GOAL)
    assert (
        replay(tasks, found, GOAL).wait_at(0.95)
        <= 300
        < replay(tasks, found - 1, GOAL).wait_at(0.95)
    )
    near = [fewest(tasks, GOAL, near=guess)[0] for guess in (1, found - 3, found, found + 9)]
    assert near == [found] * 4
    sums = [row.sum_s for row in tried(trace, "recorded", GOAL, range(found - 4, found + 6))]
    assert all(more <= less * 1.02 + 1 for less, more in pairwise(sums))


def test_gpus_are_held_while_they_are_used_and_a_timeout_longer() -> None:
    builder = Builder("readings")
    builder.add_job(Job("1", 0.0, 600.0, 36_000.0, places=(("m", "0"),)))
    for minute in range(600):
        busy = 60 <= minute < 120 or 300 <= minute < 310
        builder.add_sample(Sample(minute * 60.0, "m", "0", float(busy), None))
    demand = demand_of(builder.trace(), Mode.ATTACHED, Wish(idle_timeout_s=1800))
    [task] = demand.tasks
    # It waited 600 s for its first GPU, so its first request is as much earlier.
    assert task.submit_s == 3600 - 600
    assert task.holds == ((5400.0, 9000.0), (2400.0, 0.0))


def test_what_is_not_known_counts_as_computing() -> None:
    builder = Builder("readings")
    builder.add_job(Job("1", 0.0, 0.0, 3600.0, places=(("m", "0"),)))
    builder.add_job(Job("2", 0.0, 0.0, 3600.0, places=(("m", "1"),)))
    for minute in (*range(20), *range(40, 60)):
        builder.add_sample(Sample(minute * 60.0, "m", "0", 0.0, None))
    demand = demand_of(builder.trace(), Mode.ATTACHED, Wish(idle_timeout_s=0))
    assert [task.holds for task in demand.tasks] == [((3600.0, 0.0),), ((1200.0, 0.0),)]
    assert demand.unseen == 1


def test_modes_that_the_trace_says_too_little_for() -> None:
    trace = jobs((0, HOUR, 1, 1.0), users="a")
    assert [each.mode for each in sizes(trace, GOAL)] == [Mode.RECORDED, Mode.WHOLE]
    with pytest.raises(TraceError, match="does not say when jobs compute"):
        sizes(trace, GOAL, modes=("attached",))
    builder = Builder("readings")
    builder.add_sample(Sample(0.0, "m", "0", 0.0, None))
    with pytest.raises(TraceError, match="but no jobs"):
        sizes(builder.trace(), GOAL)


def test_requests_for_more_than_a_gpu_has_are_left_out_and_counted() -> None:
    builder = Builder("memory")
    builder.add_job(Job("1", 0, 0, 60, fraction=0.0, memory=90 << 30))
    builder.add_job(Job("2", 0, 0, 60, fraction=0.0, memory=40 << 30))
    found = size(builder.trace(), Mode.RECORDED, GOAL)
    assert (found.gpu_count, found.too_large, found.task_count) == (1, 1, 1)


def test_jobs_larger_than_any_server_are_served_by_several() -> None:
    assert size(jobs((0, HOUR, 20, 1.0)), Mode.RECORDED, GOAL).gpu_count == 20


def test_concurrency() -> None:
    tasks = [Task(0, 2, 0.5, 0, ((10, 5), (10, 0))), Task(5, 1, 1.0, 0, ((10, 0),))]
    assert concurrency(tasks) == [(0, 1.0), (5, 2.0), (10, 1.0), (15, 1.0), (25, 0.0)]
    assert level_at(concurrency(tasks), 0.5) == 1.0
    assert level_at([], 0.95) == 0.0
    assert joined([(5, 6), (0, 1), (1, 2)], gap=0) == [(0, 2), (5, 6)]


def test_silos_beyond_a_number_are_one() -> None:
    builder = Builder("many")
    for number in range(100):
        builder.add_job(Job(str(number), 0, 0, 60 + number, user=f"u{number}"))
    found = silos(builder.trace())
    assert len(found) == 65
    assert len(found["(others)"].jobs) == 36
