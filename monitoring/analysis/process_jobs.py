"""Jobs out of processes with memory on GPUs: their times, and their shares of a GPU.

A job is the processes that belong together, such as a process and what it started. It lasts from
the first reading with any of its processes on a GPU to the last. A pause of less than a minute
does not end it. Its share of a GPU is the most memory that it had on any, and a tenth more.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpupool.monitoring.analysis.trace_form import Job, Sample, interval

JOIN_S = 60.0
HEADROOM = 1.1
PARTS = 20
"""Shares are rounded up to a twentieth, the smallest partition that is any use."""


class Held(NamedTuple):
    """One reading of the memory that one process, or several, have on one GPU."""

    t: float
    machine: str
    gpu: str
    tree: str  # which processes belong together, unique on the machine
    user: str
    program: str
    memory: int


def share_of(memory: int, capacity: int) -> float:
    """Return the share of a GPU to ask for, of a job that used this much at most."""
    if not capacity or not memory:
        return 1.0
    return min(1.0, math.ceil(memory * HEADROOM / capacity * PARTS) / PARTS)


def jobs_of(readings: Iterable[Held], capacity: int, every_s: float = 0.0) -> list[Job]:
    """Return the jobs of processes.

    Args:
        readings: of their memory, in any order.
        capacity: bytes of a GPU; 0 when it is not known, and each job counts as using whole ones.
        every_s: between two readings; 0 to find out.
    """
    by_tree: dict[tuple[str, str, str], list[Held]] = {}
    for each in readings:
        by_tree.setdefault((each.machine, each.tree, each.user), []).append(each)
    found: list[Job] = []
    for key in sorted(by_tree):
        held = sorted(by_tree[key])
        step = every_s or interval(Sample(h.t, h.machine, h.gpu, None, None) for h in held)
        begin = 0
        for at in range(1, len(held) + 1):
            if at < len(held) and held[at].t - held[at - 1].t < max(JOIN_S, 1.5 * step):
                continue
            found.append(_job(held[begin:at], key, capacity, step, len(found)))
            begin = at
    return found


def _job(
    held: list[Held], key: tuple[str, str, str], capacity: int, step: float, number: int
) -> Job:
    machine, tree, user = key
    peaks: dict[tuple[float, str], int] = {}
    for each in held:
        peaks[each.t, each.gpu] = peaks.get((each.t, each.gpu), 0) + each.memory
    gpus = sorted({each.gpu for each in held})
    return Job(
        id=f"{machine}/{tree}#{number}",
        submit=held[0].t,
        start=held[0].t,
        end=held[-1].t + step,
        user=user,
        group="",
        gpus=len(gpus),
        fraction=share_of(max(peaks.values()), capacity),
        model="",
        places=tuple((machine, gpu) for gpu in gpus),
    )
