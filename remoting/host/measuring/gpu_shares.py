"""Shares of a real GPU's time: the driver's shares of processes, summed by lease."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId

UNSEEN_BUSY = 0.05
UNSEEN_AFTER_S = 60.0
"""Seconds above ``UNSEEN_BUSY`` without a known process id, after which the driver is taken to use
other process ids (inside some containers)."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU's time as the driver reports it."""

    utilization: float | None
    shares: Mapping[int, float] | None  # by process id; None where it does not say
    instance_activity: float | None = None  # of a MIG instance, for which it says neither
    unseen: bool = False  # our processes have other ids in ``shares``


@dataclass(frozen=True, slots=True)
class Process:
    """A worker on a GPU."""

    lease: LeaseId
    pid: int
    executes: bool  # it has executed calls in the last seconds


def lease_shares(use: GpuUse, processes: Collection[Process]) -> tuple[dict[LeaseId, float], bool]:
    """Return the share of the GPU's time of each lease, and whether that is an estimate.

    There is none where nothing is known. Shares that exceed the GPU's own utilization in sum, which
    is measured over other intervals, are scaled down to it.
    """
    if use.shares is not None and not use.unseen:
        found = dict.fromkeys((each.lease for each in processes), 0.0)
        for each in processes:
            found[each.lease] += use.shares.get(each.pid, 0.0)
        whole = sum(use.shares.values())
        most = 1.0 if use.utilization is None else use.utilization
        scale = most / whole if whole > most else 1.0
        return {lease: share * scale for lease, share in found.items()}, False
    level = use.utilization if use.unseen else use.instance_activity
    if level is None:
        return {}, False
    found = dict.fromkeys((each.lease for each in processes), 0.0)
    # To know the instance's whole activity is exact while one lease has it.
    active = [each for each in processes if each.executes] if len(found) > 1 else [*processes]
    for each in active:
        found[each.lease] += level / len(active)
    return found, use.unseen or len(found) > 1


def is_unseen(use: GpuUse, pids: Collection[int], accounted: int) -> bool:
    """Return whether a GPU seems to compute for processes of ours, none of which is listed."""
    return (
        use.shares is not None
        and use.utilization is not None
        and use.utilization > UNSEEN_BUSY
        and accounted > 0
        and not any(pid in use.shares for pid in pids)
    )
