"""Fairness between requests: the GPUs that are reserved for the request that goes first.

A request that has waited for the table's ``starved_after_ms`` is starved. The oldest starved one
of the highest priority goes first: offers leave the GPUs alone that are nearest to serving it, and
``apply`` refuses grants of them to others of its priority or less. So a stream of small requests
cannot keep a large one waiting for ever.

The limit stands in the table, because ``apply`` must do the same on every server.
"""

from typing import NamedTuple

from gpupool.pool.model.ids import GpuId, RequestId, ServerId
from gpupool.pool.model.memo import Memo
from gpupool.pool.model.state import PoolState, Request, Server, Waiting
from gpupool.pool.policy.admission import Admission, May, least_need, sizes_of_all
from gpupool.pool.scheduling.capacity import partition_size
from gpupool.pool.scheduling.filters import admitted


def oldest_starved(state: PoolState) -> Waiting | None:
    """Return the starved request that goes first: highest priority, then longest wait.

    One that a limit of the policy holds back reserves nothing: memory alone would not help it.
    """
    limit = state.now - state.starved_after_ms
    starved = state.waiting.since_at_most(limit)
    if not starved:
        return None
    starved.sort(key=lambda w: (-w.priority, w.since, w.request.id))
    if not state.policy.version:
        return starved[0]
    admission = Admission(state)
    return next((w for w in starved if not _is_held_back(admission, w)), None)


def _is_held_back(admission: Admission, entry: Waiting) -> bool:
    """Return whether a limit, rather than memory, is what this entry waits for."""
    if not admission.terms(entry.user).caps:
        return False
    need = least_need(entry.request, sizes_of_all(admission.state))
    return admission.is_limited(entry.user, need)


class ReservedGpus(NamedTuple):
    """The GPUs that only the oldest starved request may take."""

    entry: Waiting
    gpus: frozenset[tuple[ServerId, GpuId]]


def reserved_for_others(
    state: PoolState, request: RequestId, user: str = ""
) -> ReservedGpus | None:
    """Return the GPUs that this request must leave to one that goes first, or None for none."""
    oldest = oldest_starved(state)
    if oldest is None or oldest.request.id == request:
        return None
    if Admission(state).terms(user).priority > oldest.priority:
        return None
    return ReservedGpus(oldest, needed_by(state, oldest))


def needed_by(state: PoolState, entry: Waiting) -> frozenset[tuple[ServerId, GpuId]]:
    """Return the GPUs that are reserved for ``entry``: those that are nearest to serving it."""
    admission = Admission(state)
    # All other requests must leave the same GPUs, until one is granted or freed.
    parts = (
        state.servers,
        entry.request,
        admission.terms(entry.user),
        admission.book.reserved(state),
    )
    known = _needed.get(*parts)
    if known is None:
        usable = admission.usable(entry.user)
        offers = (_offer(each, usable, parts[1:]) for each in state.servers.values())
        nearest = _nearest(entry.request, [each for each in offers if each.fitting])
        known = _needed.put(frozenset(nearest), *parts)
    return known


_needed: Memo[frozenset[tuple[ServerId, GpuId]]] = Memo(8)


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
        request = parts[0]
        fitting = _candidates(server, request, usable) if server.grantable else []
        whole = len(fitting) >= request.count
        lack = _lack(fitting[: request.count]) if whole else None
        known = _offers.put(_Offer(server.id, fitting, lack), server, *parts)
    return known


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
        and (size := request.memory or partition_size(gpu.capacity, request.fraction))
        <= gpu.capacity
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
