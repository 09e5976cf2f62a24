"""Fairness between requests: the GPUs that are reserved for requests that go first.

A request that has waited for the table's ``starved_after_ms`` is starved. Starved requests go
first, in the order of priority and of the length of their waits: offers leave the GPUs alone that
can serve each of them the soonest, in turn, and ``apply`` refuses grants of them to others of its
priority or less. So a stream of small requests cannot keep a large one waiting for ever. One
that nothing can serve, or that waits for a limit, keeps nothing, and takes nothing from those
behind it.

The GPUs of a request are those of the server where the fewest are held by leases that last
(``soonest``), then of the one that is nearest. What is kept there comes nearer only, so a request
stays with it, unless something there turns out to last.

Two more are like it. The GPUs on which leases are suspended for a request are that request's, until
it is granted or gone. And a suspended lease that has waited as long as a starved request to go on
has its own GPUs kept. Who goes first is decided by priority, then by the length of the wait; nobody
leaves GPUs to one that comes after.

The limit stands in the table, because ``apply`` must do the same on every server. A pool of a
former version keeps GPUs for one starved request alone, those that are nearest.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from gpupool.pool.model.formats import ALL_STARVED_SINCE
from gpupool.pool.model.ids import RequestId, ServerId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.state import (
    Gpu,
    Lease,
    PoolState,
    Request,
    Server,
    ServerStatus,
    Waiting,
    with_changes,
)
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.model.tables import Memo, PersistentMap
from gpupool.pool.policy.admission import Admission, least_need, sizes_of_all
from gpupool.pool.scheduling.filters import wanted_size
from gpupool.pool.scheduling.soonest import (
    Board,
    Place,
    Span,
    choose_soonest,
    make_server_offer,
    rows_of,
    span_for,
)

Servers = PersistentMap[ServerId, Server]
NO_PLACE: frozenset[Place] = frozenset()


KEPT_MAX = 16
"""Requests for which GPUs are kept at a time."""

OF_USER_MAX = 8
"""Different requests of one user for which one pass looks: no long line takes others' places."""


def starved(state: PoolState) -> Iterator[Waiting]:
    """Return the starved requests in their turn: highest priority, then longest wait.

    One that a limit of the policy holds back reserves nothing: memory alone would not help it. One
    whose priority is not that of its user any more gets the new one with its next renewal.
    """
    admission = Admission(state)
    has_policy, is_fair = state.policy.version, state.formats() >= ALL_STARVED_SINCE
    for entry in state.waiting.in_turn(state.now - state.starved_after_ms):
        if has_policy and is_held_back(admission, entry):
            continue
        if not is_fair or entry.priority == admission.terms(entry.user).priority:
            yield entry


def is_held_back(admission: Admission, entry: Waiting) -> bool:
    """Return whether this entry waits for a limit, rather than for memory."""
    if not admission.terms(entry.user).caps:
        return False
    need = least_need(entry.request, sizes_of_all(admission.state))
    return admission.is_limited(entry.user, need)


class ReservedGpus(NamedTuple):
    """The GPUs that only one request, or one suspended lease, may take."""

    entry: Waiting
    gpus: frozenset[Place]


def reserved_for_others(
    state: PoolState, request: RequestId, user: str = ""
) -> ReservedGpus | None:
    """Return the GPUs that this request must leave to those that go first, or None for none.

    It names the first of them. The request may be that of a suspended lease, which wants to go on.
    """
    kept = kept_from(state, request, user)
    if len(kept) < 2:
        return kept[0] if kept else None
    return ReservedGpus(kept[0].entry, frozenset().union(*(each.gpus for each in kept)))


def kept_from(state: PoolState, request: RequestId, user: str) -> list[ReservedGpus]:
    """Return the entries that go before this request, the first one first, with their GPUs."""
    found: list[ReservedGpus] = []
    priority, own = None, state.waiting.get(request)
    if own and state.formats() < ALL_STARVED_SINCE:
        own = None
    for each in going_first(state):
        if each.entry.request.id == request or (own and turn(own) < turn(each.entry)):
            break
        if priority is None:
            priority = Admission(state).terms(user).priority
        if priority > each.entry.priority:
            break
        # Suspended leases do not wait for one another: who finds its GPUs free goes on.
        if not (request in state.by_request and each.entry.request.id in state.by_request):
            found.append(each)
    return found


def going_first(state: PoolState) -> tuple[ReservedGpus, ...]:
    """Return the entries for which GPUs are kept, with these GPUs, the first one first."""
    if not state.waiting and not state.leases.suspended():
        return ()  # as at most grants
    known = _going_first.get(state)
    return known if known is not None else _going_first.put(tuple(_go_first(state)), state)


_going_first: Memo[tuple[ReservedGpus, ...]] = Memo(4)


def _go_first(state: PoolState) -> Iterator[ReservedGpus]:
    suspended: dict[RequestId, Waiting] = {}
    places: dict[RequestId, frozenset[Place]] = {}
    for lease in state.leases.suspended().values():
        entry = _served_by(state, lease)
        if entry is not None:
            suspended[entry.request.id] = entry
        if _is_starved(state, lease):
            suspended[lease.request] = _as_waiting(state, lease)
            places[lease.request] = _places_of(lease)
    line, taken = _Line(state), NO_PLACE
    others = (each for each in line if each.request.id not in suspended)
    for entry in merge(sorted(suspended.values(), key=turn), others, key=turn):
        gpus = places.get(entry.request.id)
        if gpus is None:
            served = entry.request.id in suspended
            servers = with_memory_to_come(state, entry) if served else state.servers
            gpus, is_ready = nearest(state, entry, taken, servers)
            if not served:
                line.note(entry, gpus)
            if not gpus or not (is_ready or line.has(entry)):
                continue  # what was suspended for it does not suffice, and goes on
        taken = _together.get(taken, gpus) or _together.put(taken | gpus, taken, gpus)
        yield ReservedGpus(entry, gpus)


_together: Memo[frozenset[Place]] = Memo(64)


class _Line:
    """The starved requests for which GPUs are looked for, in their turn."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._is_fair = state.formats() >= ALL_STARVED_SINCE
        self._kept_count = 0
        self._examined: Counter[str] = Counter()
        self._in_vain: set[tuple[str, Request]] = set()

    def __iter__(self) -> Iterator[Waiting]:
        """Yield the requests; the GPUs found for each are noted before the next one comes."""
        if not self._is_fair:
            yield from islice(starved(self._state), 1)
            return
        for entry in starved(self._state):
            if self._kept_count >= KEPT_MAX:
                return
            # What is taken only grows, so where there was nothing, nothing is for another.
            if (
                self._examined[entry.user] < OF_USER_MAX
                and (entry.user, shape_of(entry.request)) not in self._in_vain
            ):
                yield entry

    def note(self, entry: Waiting, gpus: frozenset[Place]) -> None:
        """Note the GPUs kept for an entry."""
        self._examined[entry.user] += 1
        self._kept_count += bool(gpus)
        if not gpus:
            self._in_vain.add((entry.user, shape_of(entry.request)))

    def has(self, entry: Waiting) -> bool:
        """Return whether an entry is starved, and not only one that leases are suspended for."""
        if not self._is_fair:
            return entry in islice(starved(self._state), 1)
        return entry.since <= self._state.now - self._state.starved_after_ms


@lru_cache(maxsize=4096)
def shape_of(request: Request) -> Request:
    """Return the shape of a request: GPUs that serve one of a shape serve each of them."""
    shape = attrgetter("count", "fraction", "memory", "servers", "across", "filters")(request)
    return _same_shape(Request(RequestId(b""), *shape))


@lru_cache(maxsize=1024)
def _same_shape(shape: Request) -> Request:
    """Return the same object for equal shapes: answers are found by it."""
    return shape


def turn(entry: Waiting) -> tuple[int, int, RequestId]:
    """Return the order in which entries have their turn."""
    return (-entry.priority, entry.since, entry.request.id)


def _served_by(state: PoolState, lease: Lease) -> Waiting | None:
    """Return the waiting request for which a lease is suspended, or None."""
    found = lease.suspension
    if found is None or found.for_request is None or not lease.held:
        return None
    return state.waiting.get(found.for_request)


def awaited_servers(state: PoolState, lease: Lease) -> list[ServerId]:
    """Return the servers out of contact that have not confirmed a suspension yet."""
    found = lease.suspension
    if found is None or found.state is not SuspensionState.SUSPENDING:
        return []
    others = [each for each in lease.parts if each not in found.confirmed]
    up = ServerStatus.UP
    return [s for s in others if s not in state.servers or state.servers[s].status is not up]


def _places_of(lease: Lease) -> frozenset[Place]:
    known = _places.get(lease.partitions)
    places = frozenset((part.server, part.gpu) for part in lease.partitions)
    return known or _places.put(places, lease.partitions)


_places: Memo[frozenset[Place]] = Memo(64)


def _is_starved(state: PoolState, lease: Lease) -> bool:
    """Return whether a suspended lease has long waited for nothing but room."""
    found, limit = lease.suspension, state.now - state.starved_after_ms
    if found is None or not (lease.held and lease.is_away and 0 < found.resume_since <= limit):
        return False
    admission, servers = Admission(state), state.servers
    spots = [
        (servers[p.server], servers[p.server].gpus[p.gpu])
        for p in lease.partitions
        if p.server in servers and p.gpu in servers[p.server].gpus
    ]
    need = Usage(sum(lease.units.values()), sum(p.memory for p in lease.partitions), 0)
    return (
        len(spots) == len(lease.partitions)
        and not admission.is_limited(lease.user, need)
        and admission.place_refusal(lease.user, spots) is None
    )


def _as_waiting(state: PoolState, lease: Lease) -> Waiting:
    """Return a suspended lease as an entry of the line, by which it has its turn."""
    found = lease.suspension
    assert found is not None, "checked by _is_starved"
    return Waiting(
        request=Request(lease.request, len(lease.partitions), program=lease.program),
        user=lease.user,
        priority=Admission(state).terms(lease.user).priority,
        since=found.resume_since,
        renewed=state.now,
        reason="it is suspended",
    )


def with_memory_to_come(state: PoolState, entry: Waiting) -> Servers:
    """Return the servers as if the leases that are being suspended for ``entry`` had let go.

    So have those that end: their memory comes within seconds, for the first in the line.
    """
    servers = _to_come.get(state.servers, state.leases, entry.request)
    if servers is None:
        known, request = state.leases.values(), entry.request.id
        coming = [lease for lease in known if _lets_go_for(state, lease, request)]
        servers = _without(state, coming)
        _to_come.put(servers, state.servers, state.leases, entry.request)
    return servers


def _lets_go_for(state: PoolState, lease: Lease, request: RequestId) -> bool:
    found = lease.suspension
    if not lease.held:
        return True
    if found is None or found.state is not SuspensionState.SUSPENDING:
        return False
    if found.for_request != request:
        return False
    # Nobody knows when a server that is out of contact confirms it; the request looks elsewhere.
    return state.formats() < ALL_STARVED_SINCE or not awaited_servers(state, lease)


_to_come: Memo[Servers] = Memo(8)


def _without(state: PoolState, leases: list[Lease]) -> Servers:
    servers = state.servers
    parts = ((lease, part) for lease in leases for part in lease.partitions)
    for part in (part for lease, part in parts if lease.is_charged(part.server)):
        server = servers.get(part.server)
        gpu = server.gpus.get(part.gpu) if server is not None else None
        if server is not None and gpu is not None:
            rest = with_changes(gpu, memory_granted=max(0, gpu.memory_granted - part.memory))
            server = with_changes(server, gpus=server.gpus | {gpu.id: rest})
            servers = servers.set(server.id, server)
    return servers


def nearest(
    state: PoolState, entry: Waiting, taken: frozenset[Place], servers: Servers
) -> tuple[frozenset[Place], bool]:
    """Return the GPUs that serve ``entry`` soonest but for those ``taken``, and if they can now.

    ``servers`` are those of the table, or as they will be.
    """
    gpus = needed_by(state, entry, taken, servers)
    free = (
        gpu.memory_free >= wanted_size(gpu, entry.request)
        for gpu in (servers[server].gpus[each] for server, each in gpus)
    )
    return gpus, len(gpus) >= entry.request.count and all(free)


def needed_by(
    state: PoolState,
    entry: Waiting,
    taken: frozenset[Place] = NO_PLACE,
    servers: Servers | None = None,
) -> frozenset[Place]:
    """Return the GPUs that are reserved for ``entry``: those that serve it soonest."""
    admission = Admission(state)
    servers = state.servers if servers is None else servers
    span = span_for(state, entry.since) if state.formats() >= ALL_STARVED_SINCE else None
    # All other requests must leave the same GPUs, until one is granted or freed.
    terms, reserved = admission.terms(entry.user), admission.book.reserved(state)
    leases = None if span is None else state.leases
    parts = (servers, leases, taken, shape_of(entry.request), terms, reserved, span)
    known = _needed.get(*parts)
    if known is None:
        known = _needed.put(_soonest(state, servers, entry, taken, span), *parts)
    return known


_needed: Memo[frozenset[Place]] = Memo(64)


def _soonest(
    state: PoolState,
    servers: Servers,
    entry: Waiting,
    taken: frozenset[Place],
    span: Span | None,
) -> frozenset[Place]:
    admission = Admission(state)
    request, usable = shape_of(entry.request), admission.usable(entry.user)
    parts = request, admission.terms(entry.user), admission.book.reserved(state)
    board = _boards.get(*parts) or _boards.put(Board(), *parts)
    rows = rows_of(servers, state.leases)
    offers = board.offers(rows, request, usable, span)
    touched = {server for server, _ in taken}

    def may(server: Server, gpu: Gpu) -> bool:
        return (server.id, gpu.id) not in taken and usable(server, gpu)

    for index, row in enumerate(rows) if touched else ():
        if row.server.id in touched:
            offers[index] = make_server_offer(row.server, request, may, row.held(span))
    return frozenset(choose_soonest(request, offers))


_boards: Memo[Board] = Memo(24)
