"""When enough GPUs are free for a request, as far as limits of leases' times say. Pure.

Leases end sooner or at their limits of time. Who is before the request in the queue may take what
becomes free, and the policy may have leases suspended for it, so this is no promise.
"""

from collections.abc import Mapping, Sequence

from gpupool.pool.model.ids import LeaseId
from gpupool.pool.model.state import Filter, Request
from gpupool.pool.scheduling.filters import (
    WHOLE_SLACK,
    first_mismatch,
    parse_filter,
    partition_size,
)
from gpupool.pool.view import GpuView, LeaseView, PoolView, WaitingView

NEVER = float("inf")

FIRST = 8
"""Requests at the head of the line that are looked at: those behind them come after these."""


Ending = Mapping[LeaseId, LeaseView]
"""The leases that end at a limit of time."""


def starts_by_s(view: PoolView) -> dict[str, float]:
    """Return after how long enough GPUs are free for those first in line, where limits say it."""
    ending = _ending(view)
    found = {each.request: _start_by_s(view, each, ending) for each in view.waiting[:FIRST]}
    return {request: by_s for request, by_s in found.items() if 0 < by_s < NEVER}


def start_by_s(view: PoolView, request: Request | WaitingView) -> float:
    """Return after how long enough GPUs are free at the latest; infinite if nobody knows."""
    return _start_by_s(view, request, _ending(view))


def _ending(view: PoolView) -> Ending:
    return {each.id: each for each in view.leases if each.ends_at and not each.is_away}


def _start_by_s(view: PoolView, request: Request | WaitingView, ending: Ending) -> float:
    try:
        filters = [f if isinstance(f, Filter) else parse_filter(f) for f in request.filters]
    except ValueError:
        return NEVER  # a newer client asks for what this program does not know
    groups: list[list[float]] = []
    for server in view.servers:
        named = not request.servers or {server.name, server.id} & set(request.servers)
        if named and server.state not in ("down", "drain", "new"):
            fitting = [gpu for gpu in server.gpus if first_mismatch(filters, server, gpu) is None]
            groups.append([_free_after_s(view, gpu, request, ending) for gpu in fitting])
    if request.across:
        groups = [[each for group in groups for each in group]]
    return min((_last_of(group, request.count) for group in groups), default=NEVER)


def _last_of(times: Sequence[float], count: int) -> float:
    return sorted(times)[count - 1] if len(times) >= count else NEVER


def _free_after_s(
    view: PoolView, gpu: GpuView, wish: Request | WaitingView, ending: Ending
) -> float:
    """Return when a GPU has room for its part of a request at the latest."""
    if gpu.fault or gpu.drain:
        return NEVER
    needed, free = wish.memory or partition_size(gpu.capacity, wish.fraction), gpu.memory_free
    if wish.fraction >= 1.0:
        needed = int(needed * WHOLE_SLACK)  # somebody else's display takes a little
    if free >= needed:
        return 0.0
    leases = (ending[each] for each in gpu.leases if each in ending)
    parts = ((lease.ends_at, part) for lease in leases for part in lease.partitions)
    for ends_at, memory in sorted((at, part.memory) for at, part in parts if part.gpu == gpu.id):
        free += memory
        if free >= needed:
            return max(0, ends_at - view.now) / 1000
    return NEVER
