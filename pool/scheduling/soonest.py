"""The GPUs that serve a request soonest; the GPUs of lasting leases do not.

GPUs for a request that goes first are kept where they are free soonest. Nobody knows the end of a
lease that the policy does not end, but one that is far older than most leases become is no good
guess. A lease lasts when it has run, and by what is known of its end goes on to run, for longer
than each of these:

- the time after which a request is starved;
- twice as long as nine in ten of the latest ended leases did;
- half as long as the request has waited.

The last one bounds the wait. A request that has waited twice as long as the longest of the common
leases takes none of these for lasting, and all those for lasting that are in its way for longer.
So it may turn to another server a few times at first, and cannot do so for ever.
"""

from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import Lease, LeaseRecord, PoolState, Request, Server
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.model.tables import LeaseTable, Memo, PersistentMap
from gpupool.pool.policy.admission import May
from gpupool.pool.scheduling.filters import admitted, wanted_size

LATEST_COUNT = 64
"""Ended leases that say how long leases run."""

SPAN_COUNT = 32
"""Spans with remembered lasting leases: one for each request that goes first, and more."""

Place = tuple[ServerId, GpuId]
Held = dict[GpuId, int]
"""Bytes that lasting leases hold, by GPU."""

_NOTHING: Held = {}


class Span(NamedTuple):
    """The lasting leases of one request: begun before ``begun``, and ending after ``ends``."""

    begun: int
    ends: int


@lru_cache(maxsize=1024)
def _span(begun: int, ends: int) -> Span:
    """Return the same object for the same times: answers are found by it."""
    return Span(begun, ends)


def span_for(state: PoolState, since: int) -> Span:
    """Return the span of lasting leases for a request that has waited since ``since``."""
    step = max(1, state.starved_after_ms // 4)  # so that answers hold for a while
    longest = max(state.starved_after_ms, _usual_ms(state.records) * 2, (state.now - since) // 2)
    now, longest = state.now // step * step, longest // step * step
    return _span(now - longest, now + longest)


def _usual_ms(records: tuple[LeaseRecord, ...]) -> int:
    """Return how long nine in ten of the latest leases ran."""
    known = _usual.get(records)
    if known is None:
        lengths = sorted(each.ended_at - each.granted_at for each in records[-LATEST_COUNT:])
        known = _usual.put(lengths[len(lengths) * 9 // 10] if lengths else 0, records)
    return known


_usual: Memo[int] = Memo(4)


def _lasts(lease: Lease, span: Span) -> bool:
    """Return whether a lease lasts, and lets go for nobody now."""
    suspension = lease.suspension
    return (
        lease.granted_at < span.begun
        and (not lease.ends_at or lease.ends_at > span.ends)
        and lease.held
        and (suspension is None or suspension.state is SuspensionState.RESUMING)
    )


class _Row:
    """A server with its leases, and the bytes held by leases that were found to last."""

    __slots__ = ("_by_leases", "_by_span", "_leases", "_oldest", "server")

    def __init__(self, server: Server, leases: PersistentMap[LeaseId, Lease]) -> None:
        self.server = server
        self._leases = tuple(leases.values())
        self._oldest = min((each.granted_at for each in self._leases), default=Milliseconds(0))
        self._by_span: dict[Span, Held] = {}
        self._by_leases: dict[tuple[LeaseId, ...], Held] = {}

    def held(self, span: Span | None) -> Held | None:
        """Return the bytes; the same object while the same leases last."""
        if span is None:
            return None
        if not self._leases or self._oldest >= span.begun:
            return _NOTHING
        found = self._by_span.get(span)
        if found is None:
            if len(self._by_span) >= SPAN_COUNT:
                self._by_span.clear()
            last = [each for each in self._leases if _lasts(each, span)]
            held: Held = {}
            for part in (part for lease in last for part in lease.partitions):
                if part.server == self.server.id:
                    held[part.gpu] = held.get(part.gpu, 0) + part.memory
            found = self._by_leases.setdefault(tuple(each.id for each in last), held)
            self._by_span[span] = found
        return found


Rows = tuple[_Row, ...]


def rows_of(servers: PersistentMap[ServerId, Server], leases: LeaseTable[Lease]) -> Rows:
    """Return the servers with their leases; the same object for each that has not changed."""
    known = _all_rows.get(servers, leases)
    if known is None:
        parts = ((each, leases.at(each.id)) for each in servers.values())
        rows = (_rows.get(*each) or _rows.put(_Row(*each), *each) for each in parts)
        known = _all_rows.put(tuple(rows), servers, leases)
    return known


_all_rows: Memo[Rows] = Memo(8)
_rows: Memo[_Row] = Memo(8192)


# --- the choice -----------------------------------------------------------------------------------


class ServerOffer(NamedTuple):
    """One server's offer for a starved request."""

    server: ServerId
    fitting: list["_Candidate"]  # the readiest first, no more than are wanted
    lack: "_Lack | None"  # None: it has too few GPUs by itself


def make_server_offer(
    server: Server, request: Request, usable: May, held: Held | None
) -> ServerOffer:
    """Return a server's offer for a request, without the GPUs that ``usable`` excludes."""
    fitting = _candidates(server, request, usable, held) if server.grantable else []
    whole = len(fitting) >= request.count
    fitting = fitting[: request.count]
    return ServerOffer(server.id, fitting, _lack(fitting) if whole else None)


def choose_soonest(request: Request, offers: list[ServerOffer]) -> list[Place]:
    """Return the GPUs that serve ``request`` soonest, none when there are too few for it.

    They are GPUs of one server, unless the request may have several servers and all together are
    nearer to serving it: free GPUs must not go to others before the request that goes first.
    """
    alone = [(each.lack, each.server, each.fitting) for each in offers if each.lack is not None]
    best = min(alone, default=None)
    if request.across:
        everywhere = [candidate for each in offers for candidate in each.fitting]
        if len(everywhere) >= request.count:
            chosen = sorted(everywhere)[: request.count]
            if best is None or _lack(chosen) < best[0]:
                return [(each.server, each.gpu) for each in chosen]
    return [(each.server, each.gpu) for each in best[2]] if best else []


_Lack = tuple[int, int, int]


def _lack(chosen: list["_Candidate"]) -> _Lack:
    """Return how far these are from being ready.

    It is how many lasting leases keep them from it, how few are ready, how many bytes are missing.
    """
    return (
        sum(each.lasts for each in chosen),
        -sum(each.missing == 0 for each in chosen),
        sum(each.missing for each in chosen),
    )


def _candidates(
    server: Server, request: Request, usable: May, held: Held | None
) -> list["_Candidate"]:
    """Return one GPU of each card that could serve a starved request, the readiest first."""
    found: list[tuple[_Candidate, GpuId | None]] = []
    for gpu in admitted(request, server):
        if gpu.unfit or not usable(server, gpu):
            continue
        size = wanted_size(gpu, request)
        if 0 < size <= gpu.capacity:
            missing = max(0, size - gpu.memory_free)
            # Nobody knows when strangers let go, either.
            stays = 0 if held is None else held.get(gpu.id, 0) + gpu.memory_foreign
            lasts = bool(missing) and stays > gpu.capacity - size
            found.append((_Candidate(lasts, missing, gpu.index, server.id, gpu.id), gpu.parent))
    cards: dict[GpuId, _Candidate] = {}
    for candidate, parent in sorted(found, key=lambda pair: pair[0]):
        cards.setdefault(parent or candidate.gpu, candidate)
    return list(cards.values())


class _Candidate(NamedTuple):
    """A GPU that could serve a starved request, ordered by how soon."""

    lasts: bool  # what is missing is held by leases that last
    missing: int  # bytes
    gpu_index: int
    server: ServerId
    gpu: GpuId


class Board:
    """The offers of all servers for one shape of requests: of 1,000, a grant changes one."""

    def __init__(self) -> None:
        self._rows: Rows = ()
        self._span: Span | None = None
        self._held: list[Held | None] = []
        self._offers: list[ServerOffer] = []

    def offers(
        self, rows: Rows, request: Request, usable: May, span: Span | None
    ) -> list[ServerOffer]:
        """Return the present offer of each server, in their order; the list is the caller's."""
        if len(rows) != len(self._rows):
            self._rows, self._held = (), [None] * len(rows)
            self._offers = [ServerOffer(each.server.id, [], None) for each in rows]
        is_same = span is self._span
        for index, (row, before) in enumerate(zip_longest(rows, self._rows)):
            if row is not before or not is_same:
                held = row.held(span)
                if row is not before or held is not self._held[index]:
                    self._held[index] = held
                    self._offers[index] = make_server_offer(row.server, request, usable, held)
        self._rows, self._span = rows, span
        return self._offers.copy()
