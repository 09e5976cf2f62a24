"""When enough GPUs are free for a request, as far as limits of leases' times say. Pure.

Leases end sooner or at their limits of time. Who is before the request in the queue may take what
becomes free, and the policy may have leases suspended for it, so this is no promise.
"""

from collections.abc import Mapping, Sequence

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Filter, Request
from gpupool.pool.scheduling.capacity import WHOLE_SLACK, partition_size
from gpupool.pool.scheduling.filters import first_mismatch, parse_filter
from gpupool.pool.view import GpuView, LeaseView, PoolView, WaitingView

NEVER = float("inf")

FIRST = 8
"""Requests at the head of the line that are looked at: those behind them come after these."""


def starts_by_s(view: PoolView) -> dict[str, float]:
    """Return after how long enough GPUs are free for those first in line, where limits say it."""
    found = {each.request: start_by_s(view, each) for each in view.waiting[:FIRST]}
    return {request: by_s for request, by_s in found.items() if 0 < by_s < NEVER}


def start_by_s(view: PoolView, request: Request | WaitingView) -> float:
    """Return after how long enough GPUs are free at the latest; infinite if nobody knows."""
    try:
        filters = [f if isinstance(f, Filter) else parse_filter(f) for f in request.filters]
    except ValueError:
        return NEVER  # a newer client asks for what this program does not know
    leases = {lease.id: lease for lease in view.leases if not lease.is_away}
    groups: list[list[float]] = []
    for server in view.servers:
        named = not request.servers or {server.name, server.id} & set(request.servers)
        if named and server.state not in ("down", "drain", "new"):
            fitting = [gpu for gpu in server.gpus if first_mismatch(filters, server, gpu) is None]
            groups.append([_free_after_s(view, gpu, request, leases) for gpu in fitting])
    if request.across:
        groups = [[each for group in groups for each in group]]
    return min((_last_of(group, request.count) for group in groups), default=NEVER)


def _last_of(times: Sequence[float], count: int) -> float:
    return sorted(times)[count - 1] if len(times) >= count else NEVER


def _free_after_s(
    view: PoolView, gpu: GpuView, wish: Request | WaitingView, leases: Mapping[LeaseId, LeaseView]
) -> float:
    """Return when a GPU has room for its part of a request at the latest."""
    if gpu.fault or gpu.drain:
        return NEVER
    needed = wish.memory or partition_size(gpu.capacity, wish.fraction)
    if wish.fraction >= 1.0:
        needed = int(needed * WHOLE_SLACK)  # somebody else's display takes a little
    ends: list[tuple[float, int]] = []
    for lease in (leases[each] for each in gpu.leases if each in leases):
        left_s = max(0, lease.ends_at - view.now) / 1000 if lease.ends_at else NEVER
        ends += [(left_s, part.memory) for part in lease.partitions if part.gpu == gpu.id]
    free, at_s = gpu.memory_free, 0.0
    for left_s, memory in sorted(ends):
        if free >= needed:
            break
        free, at_s = free + memory, left_s
    return at_s if free >= needed else NEVER
