"""Wait queue of one server: capacity notifications and short reservations, without I/O.

A waiting client backs off for up to 5 s. Freed memory would lie idle for so long, and a request
that has just come could overtake. This queue prevents both, as far as it can.

Theory of operation
===================

The queue holds the requests that asked this server in vain, one entry for each connection and
request. An entry is in one of three states:

    state    | asks again in vain | its room is free        | KEEP_S later | granted, cancelled,
             |                    |                         |              | silent for FORGET_S
    ---------+--------------------+-------------------------+--------------+---------------------
    waiting  | waiting            | notified: reserved      | -            | forgotten
    reserved | reserved           | -                       | passed       | forgotten
    passed   | waiting            | the same, after others  | -            | forgotten

Who is notified when: ``due`` runs at each change of this server's part of the table, and when a
reservation ends. It walks the entries by turn: reserved ones first, then by the pool's own waiting
line (priority, then age), and those that were passed over last. Each entry whose request would get
an offer from the capacity that is left is notified by ``CapacityAvailable``. A request that needs
several servers is notified only while the whole pool has room for it.

What a reservation is: for ``KEEP_S`` after a notification, its bytes are not offered to any other
request (``without_reserved``). It is kept by this server alone, in memory.

Who calls whom: the lease service adds and discards entries, asks for the room that an offer may
use, and sends what is due. The controller reports closed connections. This module calls nobody.

What is never true: a notification is a promise, a reservation binds ``apply``, or a client depends
on either. The table alone grants; a client that is never notified lives by its back-off.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model.ids import GpuId, RequestId, ServerId
from gpupool.pool.model.state import Gpu, PoolState, Request, Server, with_changes
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.scheduling.offers import Offer
from gpupool.pool.scheduling.placement import has_room_together, make_offer, may_have_room
from gpupool.pool.scheduling.ranking import choose

#: The length of a reservation; to ask and claim takes a tenth of it.
KEEP_S = 0.5

#: A client that waits asks every 5 s or more often; one that does not has gone elsewhere.
FORGET_S = 15.0

#: Waiting requests that one server remembers; one beyond that lives by its back-off alone.
WAITERS_MAX = 1024

#: Waiting requests of one user, and of one token; further ones live by their back-off, too.
WAITER_BOUND = UserBound(user=256, token=192)

#: Waiting requests examined in one pass.
EXAMINED_MAX = 64

#: Waiting requests for which one pass examines all servers; others live by their back-off.
TOGETHER_EXAMINED_MAX = 8


@dataclass(slots=True)
class _Entry:
    connection: int
    request: Request
    holder: Holder
    since: float
    asked_at: float
    notified_at: float = float("-inf")
    reserved_until: float = float("-inf")
    reserved: dict[GpuId, int] = field(default_factory=dict[GpuId, int])  # bytes


class WaitQueue:
    """The waiting requests that reached this server."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, RequestId], _Entry] = {}
        self._seen: Server | None = None
        self._seen_usage: object = None
        self._again_at = float("inf")
        # The tables that ``_forget_served`` has examined last, and the time until which that holds.
        self._examined: tuple[object, object, float] = (None, None, 0.0)

    def __len__(self) -> int:
        """Return how many requests wait here."""
        return len(self._entries)

    def add(self, connection: int, request: Request, now: float, holder: Holder) -> None:
        """Add a request that has asked in vain, or note that it has asked again."""
        entry = self._entries.get((connection, request.id))
        if entry is not None:
            entry.asked_at = now
        elif len(self._entries) < WAITERS_MAX and not WAITER_BOUND.reached(
            holder, (each.holder for each in self._entries.values())
        ):
            entry = _Entry(connection, request, holder, now, now)
            self._entries[(connection, request.id)] = entry
            self._seen = None
            self._examined = (None, None, 0.0)

    def discard(self, connection: int, request: RequestId) -> None:
        """Remove a request that was granted or cancelled."""
        if self._entries.pop((connection, request), None) is not None:
            self._seen = None

    def closed(self, connection: int) -> None:
        """Remove the requests of a connection that is gone."""
        for key in [key for key in self._entries if key[0] == connection]:
            del self._entries[key]
            self._seen = None

    def without_reserved(self, server: Server, request: RequestId, now: float) -> Server:
        """Return ``server`` without the room that is reserved for others than ``request``."""
        for entry in self._entries.values():
            if entry.reserved_until > now and entry.request.id != request:
                server = _less(server, entry.reserved)
        return server

    def wake_at(self) -> float:
        """Return when ``due`` should be called again, if nothing else happens."""
        return self._again_at if self._entries else float("inf")

    def due(
        self, state: PoolState, self_id: ServerId, now: float, state_now: Callable[[], PoolState]
    ) -> list[tuple[int, RequestId]]:
        """Return the pairs of connection and request that are to be notified now.

        ``state_now`` returns the table as of now; it is called only when an entry may fit.
        """
        if not self._entries:
            return []
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
        found: list[tuple[int, RequestId]] = []
        together_count = 0
        for entry in sorted(self._entries.values(), key=lambda each: _turn(state, each, now)):
            if len(found) >= EXAMINED_MAX or not any(g.memory_free for g in server.gpus.values()):
                break
            if entry.reserved_until <= now:
                room, is_whole = _room(state, server, entry.request, entry.holder.user)
                if room and not is_whole:
                    # Several such requests could each hold a part, and none could ever begin. So
                    # a part is reserved only while the pool has all the others as well.
                    together_count += 1
                    if together_count > TOGETHER_EXAMINED_MAX or not _has_rest(
                        state, server, entry
                    ):
                        continue
                if not room:
                    continue
                entry.reserved = room
                entry.notified_at, entry.reserved_until = now, now + KEEP_S
                found.append((entry.connection, entry.request.id))
            server = _less(server, entry.reserved)
            self._again_at = min(self._again_at, entry.reserved_until)
        return found

    def _forget_served(self, state: PoolState, now: float) -> None:
        """Forget requests that another server has served, or that are not repeated any more."""
        examined = self._examined
        if examined[0] is state.by_request and examined[1] is state.closed and now <= examined[2]:
            return
        for key, entry in list(self._entries.items()):
            request = entry.request.id
            known = request in state.by_request or request in state.closed
            if known or entry.asked_at + FORGET_S < now:
                del self._entries[key]
                self._seen = None
        oldest = min((w.asked_at for w in self._entries.values()), default=now)
        self._examined = (state.by_request, state.closed, oldest + FORGET_S)


def _turn(state: PoolState, entry: _Entry, now: float) -> tuple[bool, float, int, int, float]:
    """Return the order of turns: reserved entries, then by priority and the length of the wait.

    An entry that was passed over comes after all others, until it has asked again in vain.
    """
    is_reserved = entry.reserved_until > now
    has_passed = not is_reserved and entry.notified_at > entry.asked_at
    passed_at = entry.notified_at if has_passed else float("-inf")
    place = state.waiting.get(entry.request.id)
    priority, since = (place.priority, place.since) if place else (0, 2**63)
    return (not is_reserved, passed_at, -priority, since, entry.since)


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


def _has_rest(state: PoolState, server: Server, entry: _Entry) -> bool:
    """Return whether other servers can add the resources that ``server`` lacks for a request."""
    others = (each for each in state.servers.values() if each.id != server.id)
    return has_room_together(state, (server, *others), entry.request, entry.holder.user)


def _less(server: Server, sizes: dict[GpuId, int]) -> Server:
    """Return ``server`` as if these bytes were granted as well."""
    gpus: dict[GpuId, Gpu] = {
        gpu.id: with_changes(gpu, memory_granted=gpu.memory_granted + sizes[gpu.id])
        for gpu in server.gpus.values()
        if gpu.id in sizes
    }
    return with_changes(server, gpus=server.gpus | gpus)
