"""The fewest GPUs that would do: tasks are replayed on pools of different sizes.

A pool does when the wait at the goal's share of all requests is at most the goal, and no request
is refused. The answer is as good as the days that were recorded, so it comes with a range: days
are drawn with replacement, as many as there were, and each draw is sized anew.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpupool.monitoring.analysis.demand import (
    Demand,
    Mode,
    Wish,
    concurrency,
    demand_of,
    level_at,
    silos,
)
from gpupool.monitoring.analysis.trace_form import Trace, TraceError
from gpupool.monitoring.analysis.virtual_pool import Fleet, Outcome, Task, VirtualPool
from gpupool.pool.model.units import DAY_S

SHARE = 0.95
FLEET_MAX = 4096 * 8
STEPS = (0.75, 0.85, 0.9, 0.95, 1.0, 1.1, 1.25)
"""Rows of the table, as parts of the number that was found."""

SPREAD_MIN = 500
"""Requests from which on draws are worth other processes."""

Tell = Callable[[str], None]
Spread = Callable[[Callable[[int], int], Iterable[int]], Iterable[int]]
"""Gives a function's values in the order of the numbers, as ``map`` does: on several cores, say."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal for a pool's waits, and the servers of which it is made."""

    wait_s: float = 300.0
    share: float = SHARE
    per_server: int = 8
    wish: Wish = field(default_factory=Wish)
    strict: bool = False
    resamples: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Waits and GPU use of one pool size."""

    gpu_count: int
    p50_s: float
    p95_s: float
    max_s: float
    sum_s: float
    refused: int
    use: float  # share of its GPU time that is held


@dataclass(frozen=True, slots=True)
class Size:
    """How many GPUs one way of use needs."""

    mode: Mode
    gpu_count: int
    low: int  # of the resamples
    high: int
    rows: tuple[Row, ...]
    task_count: int
    too_large: int
    unseen: int
    p95_demand: float  # GPUs that are asked for at once
    peak_demand: float
    parts: tuple[tuple[str, int], ...] = ()  # of silos: each with its own number


def sizes(
    trace: Trace,
    goal: Goal,
    tell: Tell = lambda text: None,
    modes: Sequence[str] = (),
    spread: Spread = map,
) -> list[Size]:
    """Return the sizes for these modes, or for all that the trace says enough for.

    ``spread`` computes the draws of days, which take nearly all of the time.

    Raises:
        TraceError: when it does not say enough for a mode that was asked for.
    """
    wanted = [Mode(mode) for mode in modes]
    if not wanted:
        wanted = [mode for mode in Mode if mode is not Mode.ATTACHED or trace.samples]
        if len(silos(trace)) < 2:
            wanted.remove(Mode.SILOS)
    return [size(trace, mode, goal, tell, spread) for mode in wanted]


def tried(trace: Trace, mode: str, goal: Goal, counts: Sequence[int]) -> list[Row]:
    """Return the waits and GPU use of pools of these sizes in a mode."""
    tasks = demand_of(trace, Mode(mode), goal.wish).tasks
    return [row_of(replay(tasks, count, goal)) for count in counts]


def size(
    trace: Trace,
    mode: Mode,
    goal: Goal,
    tell: Tell = lambda text: None,
    spread: Spread = map,
) -> Size:
    """Return how many GPUs the jobs of ``trace`` need in ``mode``.

    Raises:
        TraceError: when the trace does not say what the mode goes by, or no number would do.
    """
    if not trace.jobs:
        raise TraceError(
            f"{trace.source} has readings of GPUs, but no jobs",
            why="readings alone do not tell the requests of jobs, and their times",
            hint="record with gpupool analyze record, or import the scheduler's accounting as well",
        )
    if mode is Mode.ATTACHED and not trace.samples:
        raise TraceError(
            f"{trace.source} does not say when jobs compute",
            why="it has jobs, but no readings of GPUs",
            hint="leave out --mode attached, or add a trace with readings",
        )
    if mode is Mode.SILOS:
        return _size_silos(trace, goal, tell)
    demand = demand_of(trace, mode, goal.wish)
    found, outcomes = fewest(demand.tasks, goal, tell)
    draw = partial(_drawn, demand.tasks, trace.begin, trace.span_s, goal, found)
    numbers, drawn = range(goal.resamples), list[int]()
    tell(f"{mode.value}: about {found} GPUs, from now the range")
    for each in spread(draw, numbers) if len(demand.tasks) >= SPREAD_MIN else map(draw, numbers):
        drawn.append(each)
        tell(f"{mode.value}: draw {len(drawn)} of {goal.resamples}")
    wanted = {max(1, round(found * step)) for step in STEPS} | {max(1, found - 1)}
    for count in sorted(wanted):
        if count not in outcomes or not outcomes[count].complete:
            tell(f"{mode.value}: {count} GPUs")
            outcomes[count] = replay(demand.tasks, count, goal)
    rows = tuple(row_of(outcomes[count]) for count in sorted(wanted))
    return _size(mode, found, drawn, rows, demand, goal)


def _drawn(
    tasks: Sequence[Task], begin: float, span_s: float, goal: Goal, near: int, number: int
) -> int:
    return fewest(resampled(tasks, begin, span_s, goal.seed, number), goal, near=near)[0]


def _size(
    mode: Mode, found: int, drawn: list[int], rows: tuple[Row, ...], demand: Demand, goal: Goal
) -> Size:
    steps = concurrency(demand.tasks, goal.wish.gpu_memory)
    return Size(
        mode=mode,
        gpu_count=found,
        low=min([found, *drawn]),
        high=max([found, *drawn]),
        rows=rows,
        task_count=len(demand.tasks),
        too_large=demand.too_large,
        unseen=demand.unseen,
        p95_demand=level_at(steps, SHARE),
        peak_demand=max((level for _, level in steps), default=0.0),
    )


def _size_silos(trace: Trace, goal: Goal, tell: Tell) -> Size:
    """Size each group by itself, with whole GPUs, and add up."""
    alone = replace(goal, resamples=0)
    sizes: dict[str, int] = {}
    total = demand_of(trace, Mode.SILOS, goal.wish)
    for name, part in silos(trace).items():
        tell(f"silos: {name}")
        demand = demand_of(part, Mode.SILOS, goal.wish)
        sizes[name] = fewest(demand.tasks, alone)[0] if demand.tasks else 0
    found = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    return replace(_size(Mode.SILOS, found, [], (), total, goal), parts=tuple(largest))


def fewest(
    tasks: Sequence[Task], goal: Goal, tell: Tell = lambda text: None, *, near: int = 0
) -> tuple[int, dict[int, Outcome]]:
    """Return the fewest GPUs that meet the goal, and the outcomes by GPU count.

    Waits grow as GPUs become fewer, so it halves the span between a number that does not do and
    one that does. ``near`` is where to begin.

    Raises:
        TraceError: when no pool of a size that could be had would do.
    """
    if not tasks:
        return 0, {}
    tried: dict[int, Outcome] = {}

    def does(count: int) -> bool:
        if count not in tried:
            tell(f"{count} GPUs")
            tried[count] = replay(tasks, count, goal, early=True)
        outcome = tried[count]
        good = outcome.complete and not outcome.refused
        return good and outcome.wait_at(goal.share) <= goal.wait_s

    floor = max(1, max(task.count for task in tasks))
    if near:
        low, high = floor - 1, max(floor, near)
        step = max(1, near // 32)
        if does(high):
            while high - step > low and does(high - step):
                high, step = high - step, step * 2
            low = max(low, high - step)
        else:
            low, high = high, high + step
    else:
        low = floor - 1
        high = max(floor, math.ceil(max(level for _, level in _levels(tasks, goal))))
    while not does(high):
        low, high = high, high + max(1, high // 10)
        if high > FLEET_MAX:
            raise TraceError(
                f"no pool of up to {FLEET_MAX:,} GPUs would do",
                why=f"requests wait longer than {goal.wait_s:g} s, or are refused",
                hint="ask for a longer --wait, or for larger servers with --server-gpus",
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return high, tried


def _levels(tasks: Sequence[Task], goal: Goal) -> list[tuple[float, float]]:
    return concurrency(tasks, goal.wish.gpu_memory) or [(0.0, 1.0)]


def replay(tasks: Sequence[Task], count: int, goal: Goal, *, early: bool = False) -> Outcome:
    """Return the outcome of ``tasks`` in a pool of ``count`` GPUs."""
    fleet = Fleet(count, goal.per_server, goal.wish.gpu_memory)
    pool = VirtualPool(fleet, strict=goal.strict)
    return pool.run(tasks, goal_s=goal.wait_s if early else -1.0, share=goal.share)


def row_of(outcome: Outcome) -> Row:
    """Return the figures of one replay."""
    whole = outcome.gpu_count * outcome.last_s
    return Row(
        gpu_count=outcome.gpu_count,
        p50_s=outcome.wait_at(0.5),
        p95_s=outcome.wait_at(0.95),
        max_s=max(outcome.waits_s, default=0.0),
        sum_s=sum(outcome.waits_s),
        refused=outcome.refused,
        use=outcome.held_gpu_s / whole if whole else 0.0,
    )


def resampled(
    tasks: Sequence[Task], begin: float, span_s: float, seed: int, number: int
) -> tuple[Task, ...]:
    """Return the tasks of whole days that are drawn with replacement, in the order drawn."""
    days = max(1, math.ceil(span_s / DAY_S))
    by_day: list[list[Task]] = [[] for _ in range(days)]
    for task in tasks:
        day = min(days - 1, max(0, int((task.submit_s - begin) // DAY_S)))
        by_day[day].append(task)
    draw = random.Random(seed * 1_000_003 + number)  # noqa: S311  a draw that repeats is wanted
    found: list[Task] = []
    for place in range(days):
        day = draw.randrange(days)
        shift = (place - day) * DAY_S
        found += [replace(task, submit_s=task.submit_s + shift) for task in by_day[day]]
    return tuple(sorted(found, key=lambda task: task.submit_s))
