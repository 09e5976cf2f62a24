"""Accounts from samples: how busy, idle and full grants have been. Pure.

What no sample has seen is unknown, and never counted as idle or as nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpupool.pool.history_query import SampleSum
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.model.units import HOUR_S

COVERAGE_LOW = 0.9
"""Below it a row is marked: most of its figures may be of other hours."""

ROOMY = 1.25
"""Advised request, as a multiple of the maximum used."""

TOO_LARGE, TOO_IDLE = 0.6, 0.5
"""Of the request that was used at most, and of the time in which nothing ran: advice is given."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one row; None is unknown."""

    busy_gpu_hours: float | None = None
    idle_share: float | None = None
    wasted_gpu_hours: float | None = None
    memory_share: float | None = None
    coverage: float | None = None  # of the GPU-hours that samples have seen


NOTHING = Figures()


def merged(sums: Iterable[SampleSum]) -> dict[str, SampleSum]:
    """Return the sums of several servers by key."""
    found: dict[str, SampleSum] = {}
    for each in sums:
        found[each.key] = found[each.key].plus(each) if each.key in found else each
    return found


def figures_of(known: SampleSum | None, gpu_hours: float) -> Figures:
    """Return the figures of a row that has so many GPU-hours."""
    if known is None or known.held <= 0:
        return Figures(coverage=0.0 if gpu_hours > 0 else None)
    seen = known.held / 1e6 / HOUR_S
    return Figures(
        busy_gpu_hours=known.busy / 1000 / HOUR_S if known.busy_n else None,
        idle_share=known.wasted / known.held,
        wasted_gpu_hours=known.wasted / 1e6 / HOUR_S,
        memory_share=known.memory / known.granted if known.granted else None,
        coverage=min(1.0, seen / gpu_hours) if gpu_hours > 0 else None,
    )


def lease_lines(
    parts: Iterable[LeaseRecord], known: SampleSum | None, gpu_hours: float
) -> list[str]:
    """Return the samples' figures of one lease, with advice for the next request."""
    figures = figures_of(known, gpu_hours)
    if known is None or figures.idle_share is None:
        return [
            "busy        unknown: no samples of it are to be had",
            "memory used unknown: no samples of it are to be had",
        ]
    granted = max((gpu.memory for part in parts for gpu in part.gpus), default=0) / 2**30
    peak, share = known.memory_max / 1024, figures.memory_share or 0.0
    busy = "unknown" if figures.busy_gpu_hours is None else f"{figures.busy_gpu_hours:.4f}"
    lines = [
        f"busy        {busy} GPU-hours; idle {figures.idle_share:.0%} of the time",
        f"wasted      {figures.wasted_gpu_hours or 0.0:.4f} GPU-hours, while nothing ran",
        f"memory used {peak:.1f} of {granted:.1f} GiB at most on one GPU, {share:.0%} on average",
        f"coverage    {figures.coverage or 0.0:.0%} of its time was sampled",
    ]
    if (figures.coverage or 0.0) < COVERAGE_LOW:
        return [*lines, "advice      none: too little of it was sampled"]
    advice: list[str] = []
    if peak < TOO_LARGE * granted:
        enough = max(1, math.ceil(peak * ROOMY))
        if enough < granted:
            advice.append(
                f"never used more than {peak:.0f} of {granted:.0f} GiB: -m {enough}G would do"
            )
    if figures.idle_share > TOO_IDLE:
        advice.append(
            f"nothing ran in {figures.idle_share:.0%} of the time: --idle-timeout ends such a lease"
        )
    return [*lines, *(f"advice      {each}" for each in advice)]
