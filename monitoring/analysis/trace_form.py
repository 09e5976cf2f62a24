"""The one form of traces: jobs and samples, for every file format.

Every importer makes a ``Trace``, and every figure is made of one. What an importer had to leave
out, or to guess, is counted in the trace's notes, which the report prints as sentences.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpupool.pool.errors import GpupoolError

JOB_COUNT_MAX = 2_000_000
SAMPLE_COUNT_MAX = 4_000_000
MACHINE_COUNT_MAX = 65_536
GPU_COUNT_MAX = 65_536
"""Of one job. Longer ones than any server has are jobs; longer than that are mistakes."""

NAME_MAX = 256
TIME_MAX = 1e11
"""Seconds. A time beyond is in another unit, such as milliseconds."""


class TraceError(GpupoolError):
    """A trace is unreadable, or lacks the requested data."""

    code = "trace"


NOTES: dict[str, str] = {
    "cpu-only": "{} job(s) asked for no GPU and are left out",
    "zero-length": "{} job(s) lasted no time; they are counted, and hold nothing",
    "open-end": "{} job(s) had not ended; they count until the end of the trace",
    "never-started": "{} job(s) never started; they are taken to hold what they asked for from "
    "their submission until they were deleted",
    "no-times": "{} job(s) neither started nor ended and are left out",
    "backwards": "{} job(s) end before they begin and are left out",
    "early-start": "{} job(s) start before they were submitted; their start counts for both",
    "not-available": "{} reading(s) are not available: unknown, not idle",
    "twice": "{} local time(s) fall into the hour that the end of daylight saving repeats; they "
    "are taken so that no job runs backwards",
    "skipped": "{} local time(s) fall into the hour that daylight saving skips; they count as an "
    "hour later",
    "steps": "{} row(s) are steps of jobs and are left out, because the jobs themselves are there",
    "repeated": "{} reading(s) came twice for one GPU and time; the first counts",
}
"""Treatment of odd records, one sentence for each kind; ``{}`` is their number."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a program on GPUs, as a scheduler or a recording knows it. Times are seconds."""

    id: str
    submit: float
    start: float | None  # None: it never started
    end: float | None  # None: it had not ended when the trace did
    user: str = ""
    group: str = ""
    gpus: int = 1
    fraction: float = 1.0  # of each GPU; 0 when ``memory`` is given
    memory: int = 0  # bytes on each GPU; 0 when ``fraction`` is given
    model: str = ""
    places: tuple[tuple[str, str], ...] = ()  # machine and GPU, as samples name them

    @property
    def began(self) -> float:
        """Return since when it held, or would have held, its GPUs."""
        return self.submit if self.start is None else self.start

    @property
    def fraction_or_one(self) -> float:
        """Return the share of each GPU; a whole one where bytes were asked for."""
        return self.fraction or 1.0


class Sample(NamedTuple):
    """One reading of one GPU; None for unknown values."""

    t: float
    machine: str
    gpu: str
    busy: float | None  # 0 to 1
    memory: int | None  # bytes in use


@dataclass(frozen=True, slots=True)
class Machine:
    """One server of the trace."""

    name: str
    gpus: int
    model: str = ""
    memory: int = 0  # bytes of each GPU; 0: not known


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs, samples and machines, sorted by time, with counts of odd records."""

    source: str
    begin: float
    end: float
    jobs: tuple[Job, ...] = ()
    samples: tuple[Sample, ...] = ()
    machines: tuple[Machine, ...] = ()
    every_s: float = 0.0  # between two readings of a GPU; 0 without samples
    zone: str = "UTC"  # in which hours and weekdays are shown
    notes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def span_s(self) -> float:
        """Return how long the trace is."""
        return self.end - self.begin

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each kind of odd record."""
        return tuple(NOTES[key].format(f"{n:,}") for key, n in sorted(self.notes.items()) if n)


class Builder:
    """Collects an importer's records, checks each one, and makes the trace."""

    def __init__(self, source: str, *, zone: str = "UTC", thin_s: float = 0.0) -> None:
        """Begin without records; with ``thin_s``, readings are joined to so long intervals."""
        self.source = source
        self.thin_s = thin_s
        self._open: dict[tuple[str, str], _Interval] = {}
        self.zone = zone
        self.notes: dict[str, int] = {}
        self.jobs: list[Job] = []
        self.samples: list[Sample] = []
        self.machines: dict[str, Machine] = {}
        self.begin: float | None = None  # where a source says it, and not its records
        self.end: float | None = None

    def note(self, key: str, count: int = 1) -> None:
        """Count one more record of a kind."""
        assert key in NOTES
        self.notes[key] = self.notes.get(key, 0) + count

    def add_job(self, job: Job) -> None:
        """Take a job, or note why not.

        Raises:
            TraceError: when it says what cannot be.
        """
        if job.gpus <= 0 or (job.fraction <= 0 and job.memory <= 0):
            self.note("cpu-only")
            return
        if job.gpus > GPU_COUNT_MAX or job.fraction > 1 or not _sane(job):
            raise TraceError(
                f"job {job.id[:40]} of {self.source} makes no sense",
                why=f"{job.gpus} GPUs, {job.fraction:g} of each, from {job.began:g} to {job.end}",
                hint="check the columns and their units",
            )
        if job.start is None and job.end is None:
            self.note("no-times")
            return
        if job.end is not None and job.end < job.began:
            self.note("backwards")
            return
        if job.start is not None and job.start < job.submit:
            self.note("early-start")
            job = replace(job, submit=job.start)
        if job.start is None:
            self.note("never-started")
        if job.end is None:
            self.note("open-end")
        elif job.end == job.began:
            self.note("zero-length")
        if len(self.jobs) >= JOB_COUNT_MAX:
            raise TraceError(
                f"{self.source} has more than {JOB_COUNT_MAX:,} jobs",
                hint="cut the file into shorter spans of time",
            )
        self.jobs.append(job)

    def add_sample(self, sample: Sample) -> None:
        """Take a reading.

        Raises:
            TraceError: when it says what cannot be.
        """
        if sample.busy is None and sample.memory is None:
            self.note("not-available")
        busy = 0.0 if sample.busy is None else sample.busy
        if not 0 <= busy <= 1 or not abs(sample.t) <= TIME_MAX or (sample.memory or 0) < 0:
            raise TraceError(
                f"a reading of GPU {sample.gpu[:40]} on {sample.machine[:40]} makes no sense",
                why=f"busy {sample.busy}, memory {sample.memory}, at {sample.t:g}",
                hint="check the columns and their units",
            )
        if not self.thin_s:
            self._keep(sample)
            return
        key, begin = (sample.machine, sample.gpu), sample.t // self.thin_s * self.thin_s
        known = self._open.get(key)
        if known is not None and known.begin != begin:
            self._keep(known.sample(key))
        if known is None or known.begin != begin:
            known = self._open[key] = _Interval(begin)
        known.add(sample)

    def _keep(self, sample: Sample) -> None:
        if len(self.samples) >= SAMPLE_COUNT_MAX:
            raise TraceError(
                f"{self.source} has more than {SAMPLE_COUNT_MAX:,} readings",
                hint="join them to longer intervals with --every 10m",
            )
        self.samples.append(sample)

    def add_machine(self, machine: Machine) -> None:
        """Take a server."""
        if machine.gpus <= 0:
            return
        if len(self.machines) >= MACHINE_COUNT_MAX or machine.gpus > GPU_COUNT_MAX:
            raise TraceError(f"{self.source} has too many machines, or one with too many GPUs")
        self.machines[machine.name] = machine

    def trace(self) -> Trace:
        """Return the trace.

        Raises:
            TraceError: when there is neither a job nor a reading in it.
        """
        for key, interval_ in self._open.items():
            self._keep(interval_.sample(key))
        self._open.clear()
        self.jobs.sort(key=lambda job: job.submit)  # those of one moment in the source's order
        self.samples.sort(key=lambda sample: sample[:3])
        self._unique()
        every_s = interval(self.samples)
        times = [t for job in self.jobs for t in (job.submit, job.end) if t is not None]
        times += [job.began for job in self.jobs]
        if self.samples:
            # A reading stands for the time until the next one, the last one too.
            times += (self.samples[0].t, self.samples[-1].t + every_s)
        if not times:
            left_out = "; ".join(NOTES[key].format(n) for key, n in self.notes.items())
            raise TraceError(
                f"{self.source} has no job on a GPU and no reading of one",
                why=left_out,
                hint="check that these are the files of that format",
            )
        begin = min(times) if self.begin is None else self.begin
        end = max(times) if self.end is None else self.end
        return Trace(
            source=self.source,
            begin=begin,
            end=end,
            jobs=tuple(self.jobs),
            samples=tuple(self.samples),
            machines=tuple(self.machines[name] for name in sorted(self.machines)),
            every_s=every_s,
            zone=self.zone,
            notes=dict(self.notes),
        )

    def _unique(self) -> None:
        kept: list[Sample] = []
        for sample in self.samples:
            if kept and sample[:3] == kept[-1][:3]:
                self.note("repeated")
            else:
                kept.append(sample)
        self.samples = kept


@dataclass(slots=True)
class _Interval:
    """Readings of one GPU that become one: the mean of busy, the most memory."""

    begin: float
    busy_sum: float = 0.0
    busy_count: int = 0
    memory: int | None = None

    def add(self, sample: Sample) -> None:
        if sample.busy is not None:
            self.busy_sum += sample.busy
            self.busy_count += 1
        if sample.memory is not None:
            self.memory = max(self.memory or 0, sample.memory)

    def sample(self, key: tuple[str, str]) -> Sample:
        busy = self.busy_sum / self.busy_count if self.busy_count else None
        return Sample(self.begin, *key, busy, self.memory)


def _sane(job: Job) -> bool:
    times = [t for t in (job.submit, job.start, job.end) if t is not None]
    return (
        all(abs(t) <= TIME_MAX for t in times)
        and math.isfinite(job.fraction)
        and job.memory >= 0
        and all(len(text) <= NAME_MAX for text in (job.id, job.user, job.group, job.model))
    )


def interval(samples: Iterable[Sample]) -> float:
    """Return the usual time between two readings of one GPU; 0 without any two."""
    last: dict[tuple[str, str], float] = {}
    found: dict[float, int] = {}
    for at, sample in enumerate(samples):
        key = (sample.machine, sample.gpu)
        if key in last and sample.t > last[key]:
            gap = round(sample.t - last[key], 3)
            found[gap] = found.get(gap, 0) + 1
        last[key] = sample.t
        if at > 200_000:  # enough to know it by
            break
    return max(found, key=lambda gap: (found[gap], -gap), default=0.0)
