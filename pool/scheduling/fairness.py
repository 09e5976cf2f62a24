"""Fairness between requests: the GPUs that are reserved for the request that goes first.

A request that has waited for the table's ``starved_after_ms`` is starved. The oldest starved one
of the highest priority goes first: offers leave the GPUs alone that are nearest to serving it, and
``apply`` refuses grants of them to others of its priority or less. So a stream of small requests
cannot keep a large one waiting for ever.

Two more are like it. The GPUs on which leases are suspended for a request are that request's, until
it is granted or gone. And a suspended lease that has waited as long as a starved request to go on
has its own GPUs kept. Who goes first is decided by priority, then by the length of the wait; nobody
leaves GPUs to one that comes after.

The limit stands in the table, because ``apply`` must do the same on every server.
"""

from typing import NamedTuple

from gpupool.pool.model.ids import GpuId, RequestId, ServerId
from gpupool.pool.model.memo import Memo
from gpupool.pool.model.persistent_map import PersistentMap
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.state import Gpu, Lease, PoolState, Request, Server, Waiting, with_changes
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.policy.admission import Admission, May, least_need, sizes_of_all
from gpupool.pool.scheduling.capacity import wanted_size
from gpupool.pool.scheduling.filters import admitted

Place = tuple[ServerId, GpuId]
Servers = PersistentMap[ServerId, Server]


def oldest_starved(state: PoolState) -> Waiting | None:
    """Return the starved request that goes first: highest priority, then longest wait.

    One that a limit of the policy holds back reserves nothing: memory alone would not help it.
    """
    starved = state.waiting.in_turn(state.now - state.starved_after_ms)
    if not state.policy.version:
        return next(starved, None)
    admission = Admission(state)
    return next((w for w in starved if not is_held_back(admission, w)), None)


def is_held_back(admission: Admission, entry: Waiting) -> bool:
    """Return whether a limit, rather than memory, is what this entry waits for."""
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
    """Return who goes before this request, the first one first, with their GPUs."""
    found: list[ReservedGpus] = []
    priority: int | None = None
    for each in going_first(state):
        if each.entry.request.id == request:
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
    """Return for whom GPUs are kept, and which, the first one first."""
    head = oldest_starved(state)
    suspended = state.leases.suspended()
    if not suspended:
        return (ReservedGpus(head, needed_by(state, head)),) if head is not None else ()
    known = _going_first.get(state)
    if known is not None:
        return known
    entries = {head.request.id: head} if head is not None else {}
    places: dict[RequestId, frozenset[Place]] = {}
    preempting: set[RequestId] = set()
    for lease in suspended.values():
        entry = _served_by(state, lease)
        if entry is not None:
            entries[entry.request.id] = entry
            preempting.add(entry.request.id)
        if _is_starved(state, lease):
            entries[lease.request] = _as_waiting(state, lease)
            places[lease.request] = frozenset((p.server, p.gpu) for p in lease.partitions)
    found: list[ReservedGpus] = []
    taken: frozenset[Place] = frozenset()
    for entry in sorted(entries.values(), key=turn):
        gpus = places.get(entry.request.id)
        if gpus is None:
            servers = state.servers
            if entry.request.id in preempting:
                servers = with_memory_to_come(state, entry)
            gpus, is_ready = nearest(state, entry, taken, servers)
            if not is_ready and entry is not head:
                continue  # what was suspended for it does not suffice, and goes on
        taken |= gpus
        found.append(ReservedGpus(entry, gpus))
    return _going_first.put(tuple(found), state)


_going_first: Memo[tuple[ReservedGpus, ...]] = Memo(4)


def turn(entry: Waiting) -> tuple[int, int, RequestId]:
    """Return the order in which entries have their turn."""
    return (-entry.priority, entry.since, entry.request.id)


def _served_by(state: PoolState, lease: Lease) -> Waiting | None:
    """Return the waiting request for which a lease is suspended, or None."""
    found = lease.suspension
    if found is None or found.for_request is None or not lease.held:
        return None
    return state.waiting.get(found.for_request)


def _is_starved(state: PoolState, lease: Lease) -> bool:
    """Return whether a suspended lease has long waited for nothing but room."""
    found = lease.suspension
    if found is None or not (lease.held and lease.is_away and found.resume_since):
        return False
    if found.resume_since > state.now - state.starved_after_ms:
        return False
    admission = Admission(state)
    servers = state.servers
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
        coming = [lease for lease in state.leases.values() if _lets_go_for(lease, entry.request.id)]
        servers = _without(state, coming)
        _to_come.put(servers, state.servers, state.leases, entry.request)
    return servers


def _lets_go_for(lease: Lease, request: RequestId) -> bool:
    found = lease.suspension
    if not lease.held:
        return True
    is_suspending = found is not None and found.state is SuspensionState.SUSPENDING
    return is_suspending and found is not None and found.for_request == request


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
    """Return the GPUs nearest to serving ``entry`` but for those ``taken``, and if they can.

    ``servers`` are those of the table, or as they will be.
    """
    if servers is state.servers and not taken:
        gpus = needed_by(state, entry)
    else:
        gpus = _nearest_gpus(state, servers, entry, taken)
    free = (
        gpu.memory_free >= wanted_size(gpu, entry.request)
        for gpu in (servers[server].gpus[each] for server, each in gpus)
    )
    return gpus, len(gpus) >= entry.request.count and all(free)


def needed_by(state: PoolState, entry: Waiting) -> frozenset[Place]:
    """Return the GPUs that are reserved for ``entry``: those that are nearest to serving it."""
    admission = Admission(state)
    # All other requests must leave the same GPUs, until one is granted or freed.
    terms, reserved = admission.terms(entry.user), admission.book.reserved(state)
    parts = (state.servers, entry.request, terms, reserved)
    known = _needed.get(*parts)
    if known is None:
        gpus = _nearest_gpus(state, state.servers, entry, frozenset())
        known = _needed.put(gpus, *parts)
    return known


_needed: Memo[frozenset[Place]] = Memo(8)


def _nearest_gpus(
    state: PoolState, servers: Servers, entry: Waiting, taken: frozenset[Place]
) -> frozenset[Place]:
    admission = Admission(state)
    request, usable = entry.request, admission.usable(entry.user)
    parts = (request, admission.terms(entry.user), admission.book.reserved(state))
    touched = {server for server, _ in taken}

    def may(server: Server, gpu: Gpu) -> bool:
        return (server.id, gpu.id) not in taken and usable(server, gpu)

    offers = (
        _make_offer(each, request, may) if each.id in touched else _offer(each, usable, parts)
        for each in servers.values()
    )
    return frozenset(_nearest(request, [each for each in offers if each.fitting]))


class _Offer(NamedTuple):
    """What one server has for a starved request."""

    server: ServerId
    fitting: list["_Candidate"]  # the readiest first
    lack: tuple[int, int] | None  # None: it has too few GPUs by itself


_offers: Memo[_Offer] = Memo(8192)
"""A grant changes one server: of 1,000, the others need not be looked at again."""


def _offer(server: Server, usable: May, parts: tuple[Request, object, object]) -> _Offer:
    """Return what ``server`` has; ``parts`` are all else that it follows from."""
    known = _offers.get(server, *parts)
    if known is None:
        known = _offers.put(_make_offer(server, parts[0], usable), server, *parts)
    return known


def _make_offer(server: Server, request: Request, usable: May) -> _Offer:
    fitting = _candidates(server, request, usable) if server.grantable else []
    whole = len(fitting) >= request.count
    return _Offer(server.id, fitting, _lack(fitting[: request.count]) if whole else None)


def _nearest(request: Request, offers: list[_Offer]) -> list[tuple[ServerId, GpuId]]:
    """Return the GPUs nearest to serving ``request``, none when there are too few for it.

    They are GPUs of one server, unless the request may have several servers and all together are
    nearer to serving it: free GPUs must not go to others before the request that goes first.
    """
    alone = [(each.lack, each.server, each.fitting) for each in offers if each.lack is not None]
    best = min(alone, default=None, key=lambda each: each[:2])
    if request.across:
        everywhere = [candidate for each in offers for candidate in each.fitting]
        if len(everywhere) >= request.count:
            chosen = sorted(everywhere)[: request.count]
            if best is None or _lack(chosen) < best[0]:
                return [(each.server, each.gpu) for each in chosen]
    return [(each.server, each.gpu) for each in best[2][: request.count]] if best else []


def _lack(chosen: list["_Candidate"]) -> tuple[int, int]:
    """Return how far these are from being ready: how few are, then how many bytes are missing."""
    return -sum(each.missing == 0 for each in chosen), sum(each.missing for each in chosen)


def _candidates(server: Server, request: Request, usable: May) -> list["_Candidate"]:
    """Return one GPU of each card that could serve a starved request, the readiest first."""
    found = [
        (_Candidate(max(0, size - gpu.memory_free), gpu.index, server.id, gpu.id), gpu.parent)
        for gpu in admitted(request, server)
        if not gpu.unfit
        and usable(server, gpu)
        and 0 < (size := wanted_size(gpu, request)) <= gpu.capacity
    ]
    cards: dict[GpuId, _Candidate] = {}
    for candidate, parent in sorted(found, key=lambda pair: pair[0]):
        cards.setdefault(parent or candidate.gpu, candidate)
    return list(cards.values())


class _Candidate(NamedTuple):
    """A GPU that could serve a starved request, ordered by how little it lacks."""

    missing: int  # bytes
    gpu_index: int
    server: ServerId
    gpu: GpuId
