"""Capacity of GPUs: the size of a partition, and whether an empty GPU could hold it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.state import PARTITION_SIZE_MIN, Gpu, PoolState, Request
from gpupool.pool.scheduling.filters import admitted

if TYPE_CHECKING:
    from gpupool.pool.policy.admission import May

WHOLE_SLACK = 0.95
"""``-p 1`` asks for a whole GPU, and gets one of which others hold at most this little."""


def partition_size(capacity: int, fraction: float) -> int:
    """Return the bytes of ``fraction`` of a GPU, rounded down to whole MiB."""
    return int(capacity * fraction) // PARTITION_SIZE_MIN * PARTITION_SIZE_MIN


def wanted_size(gpu: Gpu, request: Request) -> int:
    """Return the bytes that ``request`` asks of this GPU."""
    if request.memory:
        return request.memory
    size = partition_size(gpu.capacity, request.fraction)
    if request.fraction >= 1.0:
        # A few MiB of a display server must not make a whole GPU unobtainable for ever.
        grantable = partition_size(max(0, gpu.capacity - gpu.memory_foreign), 1.0)
        if grantable >= WHOLE_SLACK * size:
            return grantable
    return size


def any_could_ever_fit(state: PoolState, request: Request, may: "May | None" = None) -> bool:
    """Return whether any server of the table, down ones included, could ever serve it.

    With ``may``, only GPUs count that it admits.
    """
    total = 0
    for server in state.servers.values():
        gpus = admitted(request, server)
        if may is not None:
            gpus = [gpu for gpu in gpus if may(server, gpu)]
        count = len(fitting_cards(gpus, request))
        total += count
        # Mostly the first server could, and there may be a thousand.
        if (total if request.across else count) >= request.count:
            return True
    return False


def fitting_cards(gpus: Sequence[Gpu], request: Request) -> dict[GpuId, int]:
    """Return the cards on which, empty, a partition of the request fits, with their capacity."""
    cards: dict[GpuId, int] = {}
    for gpu in gpus:
        capacity = gpu.capacity
        size = request.memory or partition_size(capacity, request.fraction)
        if 0 < size <= capacity and not gpu.clash:
            card = gpu.parent or gpu.id
            if capacity > cards.get(card, 0):
                cards[card] = capacity
    return cards
