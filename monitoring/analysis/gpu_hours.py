"""Where the hours of GPUs went: working, held idle, free, or unknown; by GPU and by user."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpupool.monitoring.analysis.demand import BUSY_FROM, Readings, Spans, gpu_seconds, joined
from gpupool.monitoring.analysis.trace_form import Job, Trace

HELD_FROM = 1 << 30
"""Bytes in use from which a GPU counts as held, though no job is known that holds it."""

BINS = 10


@dataclass(slots=True)
class Hours:
    """GPU-hours by state of the GPUs."""

    working: float = 0.0
    idle: float = 0.0  # held by somebody, and nothing ran
    free: float = 0.0
    unknown: float = 0.0

    @property
    def total(self) -> float:
        """Return all of them."""
        return self.working + self.idle + self.free + self.unknown

    def add(self, kind: str, seconds: float) -> None:
        """Count seconds of one GPU."""
        setattr(self, kind, getattr(self, kind) + seconds / 3600)


@dataclass(slots=True)
class UserHours:
    """Jobs and GPU-hours of one user."""

    user: str
    jobs: int = 0
    held: float = 0.0  # GPU-hours
    working: float = 0.0
    idle: float = 0.0


@dataclass(slots=True)
class Account:
    """The hours of all GPUs of a trace."""

    hours: Hours = field(default_factory=Hours)
    bins: list[float] = field(default_factory=lambda: [0.0] * BINS)  # GPU-hours by tenths of busy
    users: dict[str, UserHours] = field(default_factory=dict[str, UserHours])
    gpu_count: int = 0


def account_of(trace: Trace, readings: Readings) -> Account:
    """Return where the hours of the trace's GPUs went; each moment of each GPU counts once."""
    account = Account()
    held = held_spans(trace)
    for gpu in readings.gpus:
        account.gpu_count += 1
        for begin, end, kind, busy in pieces(trace, readings, gpu, held.get(gpu, [])):
            account.hours.add(kind, end - begin)
            if busy is not None:
                account.bins[min(BINS - 1, int(busy * BINS))] += (end - begin) / 3600
    _unread(trace, readings, account)
    for job in trace.jobs:
        _count_job(trace, readings, job, account)
    return account


def held_spans(trace: Trace) -> dict[tuple[str, str], Spans]:
    """Return when jobs held each GPU that they name."""
    spans: dict[tuple[str, str], Spans] = {}
    for job in trace.jobs:
        if job.start is not None:
            end = trace.end if job.end is None else job.end
            for place in job.places:
                spans.setdefault(place, []).append((job.start, end))
    return {place: joined(each) for place, each in spans.items()}


def pieces(
    trace: Trace, readings: Readings, gpu: tuple[str, str], held: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, str, float | None]]:
    """Return the trace's time on one GPU in pieces: from, to, state, busy share."""
    at = trace.begin
    samples = readings.of(gpu, trace.begin, trace.end)
    for number, sample in enumerate(samples):
        later = samples[number + 1].t if number + 1 < len(samples) else trace.end
        end = min(later, trace.end, sample.t + readings.every_s)
        if sample.t > at:
            yield at, sample.t, "unknown", None
        at = end
        if sample.busy is None:
            yield sample.t, end, "unknown", None
        elif sample.busy >= BUSY_FROM:
            yield sample.t, end, "working", sample.busy
        elif (sample.memory or 0) >= HELD_FROM:
            yield sample.t, end, "idle", sample.busy
        else:
            inside = overlap(held, sample.t, end)
            yield sample.t, sample.t + inside, "idle", sample.busy
            yield sample.t + inside, end, "free", sample.busy
    if trace.end > at:
        yield at, trace.end, "unknown", None


def overlap(spans: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Return for how long any of the spans, which do not overlap, lies in ``begin`` to ``end``."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans)


def _unread(trace: Trace, readings: Readings, account: Account) -> None:
    """Count GPUs without readings: their held time is unknown, the rest is free."""
    read: dict[str, int] = {}
    for machine, _ in readings.gpus:
        read[machine] = read.get(machine, 0) + 1
    unread = sum(max(0, each.gpus - read.get(each.name, 0)) for each in trace.machines)
    account.gpu_count += unread
    if readings.gpus:
        account.hours.add("unknown", unread * trace.span_s)
        return
    whole = unread * trace.span_s
    held = sum(_held_s(trace, job) * job.fraction_or_one for job in trace.jobs)
    # Of a trace that names no machine, nothing is known but what jobs held.
    held = min(held, whole) if unread else held
    account.hours.add("unknown", held)
    account.hours.add("free", max(0.0, whole - held))


def _held_s(trace: Trace, job: Job) -> float:
    if job.start is None:
        return 0.0
    if job.end is None:
        return job.gpus * max(0.0, trace.end - job.start)
    return gpu_seconds(job)


def _count_job(trace: Trace, readings: Readings, job: Job, account: Account) -> None:
    user = account.users.setdefault(job.user, UserHours(job.user))
    user.jobs += 1
    user.held += _held_s(trace, job) / 3600
    if job.start is None:
        return
    end = trace.end if job.end is None else job.end
    for place in job.places:
        for sample in readings.of(place, job.start, end):
            seconds = min(end, sample.t + readings.every_s) - sample.t
            if sample.busy is not None and sample.busy >= BUSY_FROM:
                user.working += seconds / 3600
            elif sample.busy is not None:
                user.idle += seconds / 3600
