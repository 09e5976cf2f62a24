"""Whom to tell that the pool has room again, without I/O.

A waiting client backs off for up to 5 s. So that memory which is freed does not lie idle for so
long, a server hints ``TryNow`` to as many of its waiting clients as its free memory would serve,
the longest waiting first. A hint promises nothing; the back-off goes on for whom none reaches.
"""

from dataclasses import dataclass, replace

from gpupool.pool.ids import GpuId, RequestId, ServerId
from gpupool.pool.placement import Offer, choose, make_offer
from gpupool.pool.state import Gpu, PoolState, Request, Server

HINT_EVERY_S = 0.5
"""Nobody is told again before; whoever was told has the room counted as taken until then."""

WAITERS_MAX = 1024
"""Waiting requests that one server remembers; one beyond that lives by its back-off alone."""

EXAMINED_MAX = 64
"""Waiting requests looked at in one pass."""


@dataclass(slots=True)
class _Waiter:
    connection: int
    request: Request
    since: float
    hinted_at: float = float("-inf")


class Waiters:
    """The waiting requests that reached this server."""

    def __init__(self) -> None:
        self._waiters: dict[tuple[int, RequestId], _Waiter] = {}
        self._settled: Server | None = None
        self._again_at = float("inf")

    def __len__(self) -> int:
        """Return how many requests wait here."""
        return len(self._waiters)

    def add(self, connection: int, request: Request, now: float) -> None:
        """Remember that ``request`` was told to wait."""
        key = (connection, request.id)
        if key not in self._waiters and len(self._waiters) < WAITERS_MAX:
            self._waiters[key] = _Waiter(connection, request, now)
            self._settled = None

    def discard(self, connection: int, request: RequestId) -> None:
        """Forget one: it was granted or cancelled."""
        self._waiters.pop((connection, request), None)

    def closed(self, connection: int) -> None:
        """Forget all of a connection that is gone."""
        for key in [key for key in self._waiters if key[0] == connection]:
            del self._waiters[key]

    def due(self, state: PoolState, self_id: ServerId, now: float) -> list[tuple[int, RequestId]]:
        """Return whom to hint now, as pairs of connection and request."""
        server = state.servers.get(self_id)
        # Most changes of the table concern other servers, and there are many of both.
        if not self._waiters or server is None:
            return []
        if self._settled is server and now < self._again_at:
            return []
        if not server.grantable:
            return []
        settled = server
        hints: list[tuple[int, RequestId]] = []
        again_at = float("inf")
        for waiter in sorted(self._waiters.values(), key=lambda w: _order(state, w))[:EXAMINED_MAX]:
            if not any(gpu.memory_free for gpu in server.gpus.values()):
                break
            offer = make_offer(replace(state, servers=state.servers | {self_id: server}), server,
                               waiter.request)  # fmt: skip
            if not isinstance(offer, Offer):
                continue
            server = _less(server, offer, waiter.request)
            if waiter.hinted_at + HINT_EVERY_S <= now:
                waiter.hinted_at = now
                hints.append((waiter.connection, waiter.request.id))
            again_at = min(again_at, waiter.hinted_at + HINT_EVERY_S)
        # With nobody to serve, nothing changes before this server's entry in the table does.
        self._settled, self._again_at = settled, again_at
        return hints


def _order(state: PoolState, waiter: _Waiter) -> tuple[int, int, float]:
    entry = state.waiting.get(waiter.request.id)
    if entry is None:
        return (0, 2**63, waiter.since)
    return (-entry.priority, entry.since, waiter.since)


def _less(server: Server, offer: Offer, request: Request) -> Server:
    """Return ``server`` as it would be after ``request`` took what it was offered."""
    choice = choose((offer,), request)
    if choice is not None:
        sizes = {part.gpu: part.memory for part in choice.partitions}
    else:
        sizes = {gpu.gpu: gpu.memory for gpu in offer.gpus}  # a part of an across request
    gpus: dict[GpuId, Gpu] = {
        gpu.id: replace(gpu, memory_granted=gpu.memory_granted + sizes.get(gpu.id, 0))
        for gpu in server.gpus.values()
    }
    return replace(server, gpus=gpus)
