"""Whom to tell that the pool has room again, and for whom to keep it, without I/O.

A waiting client backs off for up to 5 s. So that memory which is freed does not lie idle for so
long, a server hints ``CapacityAvailable`` to as many of its waiting clients as its free memory
would serve, the longest waiting first. For a moment it offers that room to nobody else, so that a
request which has just come does not overtake. None of this is a promise: ``apply`` decides, the
back-off goes on for whom no hint reaches, and whoever does not follow a hint loses the turn to the
next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.ids import GpuId, RequestId, ServerId
from gpupool.pool.model.state import Gpu, PoolState, Request, Server
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.scheduling.placement import Offer, has_room_together, make_offer, may_have_room
from gpupool.pool.scheduling.ranking import choose

KEEP_S = 0.5
"""How long room is kept for whoever was hinted; asking and claiming takes a tenth of it."""

FORGET_S = 15.0
"""A client that waits asks every 5 s or more often; one that does not has gone elsewhere."""

WAITERS_MAX = 1024
"""Waiting requests that one server remembers; one beyond that lives by its back-off alone."""

EXAMINED_MAX = 64
"""Waiting requests looked at in one pass."""

TOGETHER_EXAMINED_MAX = 8
"""Waiting requests for which one pass looks at all servers; others live by their back-off."""


@dataclass(slots=True)
class _Entry:
    connection: int
    request: Request
    user: str
    since: float
    asked_at: float
    hinted_at: float = float("-inf")
    kept_until: float = float("-inf")
    kept: dict[GpuId, int] = field(default_factory=dict[GpuId, int])  # bytes


class WaitQueue:
    """The waiting requests that reached this server."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, RequestId], _Entry] = {}
        self._seen: Server | None = None
        self._seen_usage: object = None
        self._again_at = float("inf")
        self._looked: tuple[object, object, float] = (None, None, 0.0)
        """What ``_forget_served`` looked at last, and until when that is enough."""

    def __len__(self) -> int:
        """Return how many requests wait here."""
        return len(self._entries)

    def add(self, connection: int, request: Request, now: float, user: str = "") -> None:
        """Remember that ``request`` asked, and was told to wait."""
        waiter = self._entries.get((connection, request.id))
        if waiter is not None:
            waiter.asked_at = now
        elif len(self._entries) < WAITERS_MAX:
            waiter = _Entry(connection, request, user, now, now)
            self._entries[(connection, request.id)] = waiter
            self._seen = None
            self._looked = (None, None, 0.0)

    def discard(self, connection: int, request: RequestId) -> None:
        """Forget one: it was granted or cancelled."""
        if self._entries.pop((connection, request), None) is not None:
            self._seen = None

    def closed(self, connection: int) -> None:
        """Forget all of a connection that is gone."""
        for key in [key for key in self._entries if key[0] == connection]:
            del self._entries[key]
            self._seen = None

    def without_reserved(self, server: Server, request: RequestId, now: float) -> Server:
        """Return ``server`` without the room that it keeps for others than ``request``."""
        for waiter in self._entries.values():
            if waiter.kept_until > now and waiter.request.id != request:
                server = _less(server, waiter.kept)
        return server

    def wake_at(self) -> float:
        """Return when ``due`` should be called again, if nothing else happens."""
        return self._again_at if self._entries else float("inf")

    def due(
        self, state: PoolState, self_id: ServerId, now: float, state_now: Callable[[], PoolState]
    ) -> list[tuple[int, RequestId]]:
        """Return whom to hint now, as pairs of connection and request.

        ``state_now`` returns the table as of now, and is called only when somebody may get a hint.
        """
        self._forget_served(state, now)
        server = state.servers.get(self_id)
        # Most changes of the table concern other servers, and there are many of both.
        held_back = rulebook(state.policy).has_caps and self._seen_usage is not state.usage
        if server is None or (self._seen is server and now < self._again_at and not held_back):
            return []
        self._seen, self._seen_usage, self._again_at = server, state.usage, float("inf")
        if not self._entries or not server.grantable:
            return []
        state = state_now()
        hints: list[tuple[int, RequestId]] = []
        together_count = 0
        for waiter in sorted(self._entries.values(), key=lambda w: _turn(state, w, now)):
            if len(hints) >= EXAMINED_MAX or not any(g.memory_free for g in server.gpus.values()):
                break
            if waiter.kept_until <= now:
                room, is_whole = _room(state, server, waiter.request, waiter.user)
                if room and not is_whole:
                    # Several such requests could each hold a part, and none could ever begin. So
                    # a part is kept only while the pool has all the others as well.
                    together_count += 1
                    if together_count > TOGETHER_EXAMINED_MAX or not _has_rest(
                        state, server, waiter
                    ):
                        continue
                if not room:
                    continue
                waiter.kept = room
                waiter.hinted_at, waiter.kept_until = now, now + KEEP_S
                hints.append((waiter.connection, waiter.request.id))
            server = _less(server, waiter.kept)
            self._again_at = min(self._again_at, waiter.kept_until)
        return hints

    def _forget_served(self, state: PoolState, now: float) -> None:
        """Forget requests that another server has served, or whose client has gone elsewhere."""
        looked = self._looked
        if looked[0] is state.by_request and looked[1] is state.closed and now <= looked[2]:
            return
        for key, waiter in list(self._entries.items()):
            request = waiter.request.id
            known = request in state.by_request or request in state.closed
            if known or waiter.asked_at + FORGET_S < now:
                del self._entries[key]
                self._seen = None
        oldest = min((w.asked_at for w in self._entries.values()), default=now)
        self._looked = (state.by_request, state.closed, oldest + FORGET_S)


def _turn(state: PoolState, waiter: _Entry, now: float) -> tuple[bool, float, int, int, float]:
    """Return the order of turns: those whose room is kept, then by the length of the wait.

    Who had a turn and did not use it comes after all others, until it has asked again in vain.
    """
    is_kept = waiter.kept_until > now
    has_passed = not is_kept and waiter.hinted_at > waiter.asked_at
    passed_at = waiter.hinted_at if has_passed else float("-inf")
    entry = state.waiting.get(waiter.request.id)
    priority, since = (entry.priority, entry.since) if entry else (0, 2**63)
    return (not is_kept, passed_at, -priority, since, waiter.since)


def _room(
    state: PoolState, server: Server, request: Request, user: str
) -> tuple[dict[GpuId, int], bool]:
    """Return the bytes per GPU that ``request`` could get of ``server`` now, and if that is all."""
    if not may_have_room(server, request):
        return {}, False
    offer = make_offer(state, server, request, user)
    if not isinstance(offer, Offer):
        return {}, False
    choice = choose((offer,), request)
    if choice is None:
        return {gpu.gpu: gpu.memory for gpu in offer.gpus}, False  # of an across request
    return {part.gpu: part.memory for part in choice.partitions}, True


def _has_rest(state: PoolState, server: Server, waiter: _Entry) -> bool:
    """Return whether the others have what ``server``, with what it has left, lacks."""
    others = (each for each in state.servers.values() if each.id != server.id)
    return has_room_together(state, (server, *others), waiter.request, waiter.user)


def _less(server: Server, sizes: dict[GpuId, int]) -> Server:
    """Return ``server`` as if these bytes were granted as well."""
    gpus: dict[GpuId, Gpu] = {
        gpu.id: with_changes(gpu, memory_granted=gpu.memory_granted + sizes[gpu.id])
        for gpu in server.gpus.values()
        if gpu.id in sizes
    }
    return with_changes(server, gpus=server.gpus | gpus)
