"""Demand of a trace on a pool: tasks for each way of using it, and concurrent demand.

Four ways are compared. As recorded: a job holds its GPUs from its start to its end. Attached: it
holds them while it computes, and for the idle timeout after. Whole: as recorded, but a share of a
GPU counts as a whole one. Silos: as whole, and no group lends its GPUs to another.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from gpupool.monitoring.analysis.trace_form import Job, Sample, Trace
from gpupool.monitoring.analysis.virtual_pool import GPU_MEMORY, Task

BUSY_FROM = 0.01
"""A GPU works in an interval in which kernels ran for at least this share of the time."""

IDLE_TIMEOUT_S = 1800.0
SILO_COUNT_MAX = 64
"""Silos that are sized by themselves, the largest; those beyond are one together."""

Spans = list[tuple[float, float]]


class Mode(Enum):
    """A way in which jobs use GPUs."""

    RECORDED = "recorded"  # A
    ATTACHED = "attached"  # B
    WHOLE = "whole"  # C
    SILOS = "silos"  # D


@dataclass(frozen=True, slots=True)
class Wish:
    """Assumptions about jobs in a pool."""

    slowdown: float = 1.0  # a job over the network takes so many times as long
    idle_timeout_s: float = IDLE_TIMEOUT_S
    gpu_memory: int = GPU_MEMORY


@dataclass(frozen=True, slots=True)
class Demand:
    """The tasks of a trace in one mode, and counts of the omitted and unread jobs."""

    tasks: tuple[Task, ...]
    too_large: int = 0  # jobs that ask more of one GPU than it has
    unseen: int = 0  # jobs without readings, which count as computing all the time


def demand_of(trace: Trace, mode: Mode, wish: Wish) -> Demand:
    """Return the demand of the jobs of ``trace`` on a pool."""
    readings = Readings(trace.samples, trace.every_s) if mode is Mode.ATTACHED else None
    tasks: list[Task] = []
    too_large = unseen = 0
    for job in trace.jobs:
        if job.memory > wish.gpu_memory:
            too_large += 1
            continue
        held = [(max(job.began, trace.begin), trace.end if job.end is None else job.end)]
        busy = readings.busy_spans(job, *held[0]) if readings is not None else None
        unseen += readings is not None and busy is None
        spans = held if busy is None else _attached(busy, held[0][1], wish.idle_timeout_s)
        if task := _task(job, spans, wish, whole=mode in (Mode.WHOLE, Mode.SILOS)):
            tasks.append(task)
    tasks.sort(key=lambda task: task.submit_s)
    return Demand(tuple(tasks), too_large, unseen)


def _task(job: Job, spans: Spans, wish: Wish, *, whole: bool) -> Task | None:
    if not spans:
        return None  # it never computed
    holds = [
        ((end - begin) * wish.slowdown, max(0.0, later - end))
        for (begin, end), (later, _) in zip(spans, [*spans[1:], (0.0, 0.0)], strict=True)
    ]
    return Task(
        # It waited as long for its first GPU as it does here from when it first computes.
        submit_s=job.submit + max(0.0, spans[0][0] - job.began),
        count=job.gpus,
        fraction=1.0 if whole else job.fraction,
        memory=0 if whole else job.memory,
        holds=tuple(holds),
        user=job.user,
    )


def _attached(busy: Spans, end: float, idle_timeout_s: float) -> Spans:
    """Return when a lease is held that is given back after an idle timeout."""
    held: Spans = []
    for first, last in busy:
        if held and first <= held[-1][1]:
            held[-1] = (held[-1][0], max(held[-1][1], min(end, last + idle_timeout_s)))
        else:
            held.append((first, min(end, last + idle_timeout_s)))
    return held


class Readings:
    """The samples of a trace by GPU, for questions about one GPU and a span of time."""

    def __init__(self, samples: Iterable[Sample], every_s: float) -> None:
        self.every_s = every_s
        self._times: dict[tuple[str, str], list[float]] = {}
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        for sample in samples:
            key = (sample.machine, sample.gpu)
            self._times.setdefault(key, []).append(sample.t)
            self._samples.setdefault(key, []).append(sample)

    @property
    def gpus(self) -> list[tuple[str, str]]:
        """Return the GPUs that were read, in order."""
        return sorted(self._samples)

    def of(self, gpu: tuple[str, str], begin: float, end: float) -> list[Sample]:
        """Return the readings of a GPU from ``begin`` to before ``end``."""
        times = self._times.get(gpu, [])
        return self._samples.get(gpu, [])[bisect_left(times, begin) : bisect_left(times, end)]

    def busy_spans(self, job: Job, begin: float, end: float) -> Spans | None:
        """Return when any GPU of a job computed; None when none of them was ever read.

        What is unknown counts as computing, so that a gap in the readings makes no pool smaller.
        """
        spans: Spans = []
        seen = False
        for place in job.places:
            found = self.of(place, begin, end)
            seen = seen or bool(found)
            known_to = begin
            for sample in found:
                if sample.t > known_to + self.every_s / 2:
                    spans.append((known_to, sample.t))
                known_to = min(end, sample.t + self.every_s)
                if sample.busy is None or sample.busy >= BUSY_FROM:
                    spans.append((sample.t, known_to))
            if found and end > known_to + self.every_s / 2:
                spans.append((known_to, end))
        return joined(spans) if seen else None


def joined(spans: Spans, gap: float = 0.0) -> Spans:
    """Return spans in order, with those joined that overlap or lie at most ``gap`` apart."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def silos(trace: Trace) -> dict[str, Trace]:
    """Return the trace of each group by its name, or of each user where no job has a group."""
    by_group = any(job.group for job in trace.jobs)
    jobs: dict[str, list[Job]] = {}
    for job in trace.jobs:
        jobs.setdefault((job.group if by_group else job.user) or "(none)", []).append(job)
    largest = sorted(jobs, key=lambda name: (-sum(map(gpu_seconds, jobs[name])), name))
    for name in largest[SILO_COUNT_MAX:]:
        jobs.setdefault("(others)", []).extend(jobs.pop(name))
    return {name: replace(trace, jobs=tuple(each)) for name, each in sorted(jobs.items())}


def gpu_seconds(job: Job) -> float:
    """Return for how many seconds of whole GPUs a job held its GPUs, an open end not counted."""
    return job.gpus * max(0.0, (job.began if job.end is None else job.end) - job.began)


def concurrency(tasks: Iterable[Task], gpu_memory: int = GPU_MEMORY) -> list[tuple[float, float]]:
    """Return the GPUs asked for from each moment on, as if nobody ever waited."""
    changes: dict[float, float] = {}
    for task in tasks:
        share = task.memory / gpu_memory if task.memory else task.fraction
        at = task.submit_s
        for hold_s, pause_s in task.holds:
            changes[at] = changes.get(at, 0.0) + task.count * share
            at += hold_s
            changes[at] = changes.get(at, 0.0) - task.count * share
            at += pause_s
    steps: list[tuple[float, float]] = []
    level = 0.0
    for at in sorted(changes):
        level += changes[at]
        steps.append((at, level))
    return steps


def level_at(steps: Sequence[tuple[float, float]], share: float) -> float:
    """Return the level that is not exceeded for this share of the time."""
    lasting = sorted((level, later - at) for (at, level), (later, _) in pairwise(steps))
    total = sum(each for _, each in lasting)
    seen = 0.0
    for level, each in lasting:
        seen += each
        if seen >= share * total:
            return max(0.0, level)
    return 0.0
