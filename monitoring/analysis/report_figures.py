"""The figures of ``gpupool analyze report``: made once, shown in the terminal and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpupool.monitoring.analysis.demand import (
    BUSY_FROM,
    Mode,
    Readings,
    Wish,
    concurrency,
    demand_of,
    level_at,
)
from gpupool.monitoring.analysis.gpu_hours import HELD_FROM, Account, UserHours, account_of
from gpupool.monitoring.analysis.local_times import zone_named
from gpupool.monitoring.analysis.process_jobs import share_of
from gpupool.monitoring.analysis.sizing import SHARE, Goal, Size, Spread, Tell, sizes
from gpupool.monitoring.analysis.trace_form import Trace
from gpupool.pool.model.units import HOUR_S

WEEK_HOURS = 7 * 24
HOUR_COUNT_MAX = 200_000
USER_COUNT_MAX = 20
TOO_LARGE_FROM = 0.5
"""A job that asked for whole GPUs asked for too much when less than this share would have done."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Requests of one user for whole GPUs of which a part would have done."""

    user: str
    jobs: int
    gpu_hours: float
    share: float  # the largest that any of them needed


@dataclass(frozen=True, slots=True)
class Report:
    """GPU use in a trace."""

    source: str
    days: float
    zone: str
    begins: str
    job_count: int
    account: Account
    heat: tuple[tuple[float | None, ...], ...]  # weekday, Monday first, by hour
    heat_of: str  # "busy" or "GPUs asked for"
    users: tuple[UserHours, ...]  # those with the most idle hours first
    too_large: tuple[TooLarge, ...]
    busiest: tuple[str, float]  # when, and how many GPUs were asked for
    p95_demand: float
    peak_demand: float
    sizes: tuple[Size, ...]
    goal: Goal
    assumptions: tuple[str, ...]


def report_of(
    trace: Trace,
    goal: Goal,
    tell: Tell = lambda text: None,
    *,
    sized: bool = True,
    modes: Sequence[str] = (),
    spread: Spread = map,
) -> Report:
    """Return the figures of a trace; with the sizes of pools for these modes, if ``sized``."""
    readings = Readings(trace.samples, trace.every_s)
    account = account_of(trace, readings)
    steps = concurrency(demand_of(trace, Mode.RECORDED, Wish()).tasks)
    by_hour = hourly(steps, trace.begin, trace.end)
    top = max(range(len(by_hour)), key=lambda at: by_hour[at], default=0)
    users = sorted(account.users.values(), key=lambda u: (-u.idle, -u.held, u.user))
    return Report(
        source=trace.source,
        days=trace.span_s / 86_400,
        zone=trace.zone,
        begins=_when(trace, trace.begin),
        job_count=len(trace.jobs),
        account=account,
        heat=_heat(trace, by_hour),
        heat_of="busy" if trace.samples else "GPUs asked for",
        users=tuple(users[:USER_COUNT_MAX]),
        too_large=_too_large(trace, readings),
        busiest=(_when(trace, trace.begin + top * HOUR_S), by_hour[top] if by_hour else 0.0),
        p95_demand=level_at(steps, SHARE),
        peak_demand=max((level for _, level in steps), default=0.0),
        sizes=tuple(sizes(trace, goal, tell, modes, spread)) if sized and trace.jobs else (),
        goal=goal,
        assumptions=_assumptions(trace, goal, sized=sized),
    )


def hourly(steps: list[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Return the mean level of each hour from ``begin``."""
    count = min(HOUR_COUNT_MAX, int((end - begin) // HOUR_S) + 1)
    sums = [0.0] * count
    for at, (start, level) in enumerate(steps):
        stop = steps[at + 1][0] if at + 1 < len(steps) else start
        start = max(start, begin)
        while level > 0 and start < min(stop, end):
            hour = int((start - begin) // HOUR_S)
            if hour >= count:
                break
            until = min(stop, end, begin + (hour + 1) * HOUR_S)
            sums[hour] += level * (until - start) / HOUR_S
            start = until
    return sums


def _cell(trace: Trace, t: float) -> int:
    """Return the hour of the week."""
    moment = datetime.fromtimestamp(t, zone_named(trace.zone))
    return moment.weekday() * 24 + moment.hour


def _heat(trace: Trace, by_hour: list[float]) -> tuple[tuple[float | None, ...], ...]:
    sums, counts = [0.0] * WEEK_HOURS, [0] * WEEK_HOURS
    cells: dict[float, int] = {}  # many readings are of one moment
    for t, value in (
        [(s.t, s.busy) for s in trace.samples if s.busy is not None]
        if trace.samples
        else [(trace.begin + hour * HOUR_S, level) for hour, level in enumerate(by_hour)]
    ):
        hour = t // HOUR_S * HOUR_S
        cell = cells[hour] if hour in cells else cells.setdefault(hour, _cell(trace, t))
        sums[cell] += value
        counts[cell] += 1
    means = [total / n if n else None for total, n in zip(sums, counts, strict=True)]
    return tuple(tuple(means[day * 24 : day * 24 + 24]) for day in range(7))


def _too_large(trace: Trace, readings: Readings) -> tuple[TooLarge, ...]:
    """Return users of whole GPUs with little memory in use, the most hours first."""
    capacity = {machine.name: machine.memory for machine in trace.machines}
    found: dict[str, list[tuple[float, float]]] = {}
    for job in trace.jobs:
        if job.start is None or job.fraction < 1 or not job.places:
            continue
        end = trace.end if job.end is None else job.end
        shares: list[float] = []
        for place in job.places:
            used = [s.memory for s in readings.of(place, job.start, end) if s.memory is not None]
            if used and capacity.get(place[0]):
                shares.append(share_of(max(used), capacity[place[0]]) if max(used) else 0.05)
        if len(shares) == len(job.places) and max(shares) <= TOO_LARGE_FROM:
            hours = job.gpus * (end - job.start) / 3600
            found.setdefault(job.user, []).append((hours, max(shares)))
    rows = [
        TooLarge(user, len(each), sum(h for h, _ in each), max(s for _, s in each))
        for user, each in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.user))[:USER_COUNT_MAX])


def _when(trace: Trace, t: float) -> str:
    zone = zone_named(trace.zone)
    return f"{datetime.fromtimestamp(t, zone if trace.zone != 'UTC' else UTC):%a %Y-%m-%d %H:00}"


def _assumptions(trace: Trace, goal: Goal, *, sized: bool) -> tuple[str, ...]:
    texts = [
        f"A GPU works in an interval in which kernels ran for at least {BUSY_FROM:.0%} of the "
        "time. That says nothing of how well they used it.",
        f"A GPU without kernels is held when a job has it, or when {HELD_FROM >> 30} GiB of its "
        "memory or more are in use. Otherwise it is free.",
        "What was not read is unknown, and not idle.",
    ]
    if not trace.samples:
        texts.append("The trace has no readings: whether held GPUs worked is unknown.")
    if sized and trace.jobs:
        texts += [
            f"A pool does when {goal.share:.0%} of all requests wait at most {goal.wait_s:g} s "
            "and none is refused.",
            f"All its servers are alike, with {goal.per_server} GPUs of "
            f"{goal.wish.gpu_memory / 2**30:.0f} GiB; the models in the trace are not told apart.",
            f"A job takes {goal.wish.slowdown:g} times as long in the pool as recorded. People "
            "are taken to ask as often as they did, though they may ask more when waits are short.",
        ]
    return (*texts, *(f"{sentence}." for sentence in trace.sentences))
