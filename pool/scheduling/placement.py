"""Offers: the GPUs that a server can give to a request now, or the reason why it gives none.

A server answers from the replicated table alone. The client ranks the offers of several servers
(``ranking``). A refusal names the nearest possible request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpupool.pool.model.ids import GpuId, lease_name
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.sizes import exact_size_text
from gpupool.pool.model.state import Filter, Gpu, PoolState, Request, Server
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.policy.admission import (
    Admission,
    May,
    duration_text,
    least_need,
    sizes_of,
    sizes_of_all,
)
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.fairness import ReservedGpus
from gpupool.pool.scheduling.filters import (
    admitted,
    any_could_ever_fit,
    facts_text,
    filter_text,
    fitting_cards,
    matches,
    names_server,
    wanted_size,
)
from gpupool.pool.scheduling.offers import NoOffer, Offer, OfferedGpu

Found = dict[str, list[Gpu]]
"""The GPUs that match a request, by the name of their server."""

Cards = dict[str, dict[GpuId, int]]
"""The cards on which a partition fits, by the name of their server, with their capacity."""


def never_reason(state: PoolState, request: Request, may: May | None = None) -> str:
    """Return a sentence with the largest request that could be served instead.

    With ``may``, only GPUs count that it admits.
    """
    unknown = [name for name in request.servers if state.server_named(name) is None]
    if unknown:
        return f"the pool has no server named {', '.join(unknown)}"
    servers = [s for s in state.servers.values() if names_server(request.servers, s) and s.gpus]
    where = "these servers" if request.servers else "the pool"
    if not servers:
        return f"no server of {where} has any GPU" if not request.servers else f"{where} have none"
    found = {server.name: admitted(request, server) for server in servers}
    if not any(found.values()):
        return _mismatch_reason(servers, request.filters, where)
    noun = "matching GPU" if request.filters else "GPU"
    if may is not None:
        found = {s.name: [g for g in found[s.name] if may(s, g)] for s in servers}
        noun = f"such {noun}"
        if not any(found.values()):
            return f"{where} {'have' if request.servers else 'has'} no {noun}"
    cards = {name: fitting_cards(gpus, request) for name, gpus in found.items()}
    if not any(cards.values()):
        return _size_reason(found, request, where, noun)
    if request.across:
        return _together_reason(found, cards, request, noun)
    return _one_server_reason(found, cards, request, noun)


def _size_reason(found: Found, request: Request, where: str, noun: str) -> str:
    """Return that no partition of the request fits on any GPU, and the size of the largest."""
    largest = _gib(max(gpu.capacity for gpus in found.values() for gpu in gpus))
    if request.memory:
        return f"the largest {noun} of {where} has {largest}"
    return f"that is less than 1 MiB, the smallest partition, of {largest}"


def _together_reason(found: Found, cards: Cards, request: Request, noun: str) -> str:
    """Return how many GPUs all servers together have for a request over several servers."""
    which = "these" if request.servers else "all"
    size = " of that size" if request.memory else ""
    text = f"{which} servers together have {_counted(_total(cards), noun)}{size}"
    everything = [gpu for gpus in found.values() for gpu in gpus]
    return text + _each_reason([everything], request, noun)


def _one_server_reason(found: Found, cards: Cards, request: Request, noun: str) -> str:
    """Return the most GPUs that one server has for the request."""
    name = max(cards, key=lambda each: len(cards[each]))
    count = _counted(len(cards[name]), noun)
    text = f"the largest server, {name}, has {count}"
    if request.memory:
        text = f"the most on one server is {count} of that size ({name})"
    total = _total(cards)
    if total >= request.count:
        return f"{text}; with --across there are {total}"
    return text + _each_reason(list(found.values()), request, noun)


def _total(cards: Cards) -> int:
    return sum(map(len, cards.values()))


def _each_reason(groups: list[list[Gpu]], request: Request, noun: str) -> str:
    """Return how much memory the requested number of GPUs could have each, if it is memory."""
    if not request.memory:
        return ""
    one_byte = replace(request, memory=1)
    sizes = [sorted(fitting_cards(group, one_byte).values()) for group in groups]
    each = max((size[-request.count] for size in sizes if len(size) >= request.count), default=0)
    return f"; {_counted(request.count, noun)} could have {_gib(each)} each" if each else ""


def _mismatch_reason(servers: list[Server], filters: tuple[Filter, ...], where: str) -> str:
    """Return the filter that leaves no GPU, and the values that the pool has."""
    left = [(server, gpu) for server in servers for gpu in server.gpus.values()]
    for at, wanted in enumerate(filters):
        passed = [(s, g) for s, g in left if matches(wanted, s, g)]
        if not passed:
            also = " that passes the filters before it" if at else ""
            facts = sorted({fact for s, g in left for fact in facts_text(wanted.key, s, g)})
            is_size = wanted.key == "gpu.memory"
            known = [exact_size_text(int(fact)) if is_size else fact for fact in facts]
            there = (
                f"known values: {', '.join(known[:8])}"
                if known
                else "no server says that of itself"
            )
            more = ", ..." if len(known) > 8 else ""
            return f"no GPU of {where}{also} has {filter_text(wanted)}; {there}{more}"
        left = passed
    return f"no GPU of {where} matches"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def may_have_room(server: Server, request: Request) -> bool:
    """Return whether enough GPUs have memory free; without that there is no offer.

    It checks nothing else, and is a tenth of the work of ``make_offer``.
    """
    missing = 1 if request.across else request.count
    for gpu in server.gpus.values():
        free = gpu.memory_free
        if free and free >= wanted_size(gpu, request):
            missing -= 1
            if missing <= 0:
                return True
    return False


def make_offer(
    state: PoolState, server: Server, request: Request, user: str = ""
) -> Offer | NoOffer:
    """Return the answer of ``server`` to a ``request`` of ``user``, from the table alone."""
    matching = admitted(request, server)
    fitting_count = len(fitting_cards(matching, request))
    # All other servers are checked only when this one could not serve the request alone.
    if fitting_count < request.count and not any_could_ever_fit(state, request):
        return _no_offer(server, RefusalKind.NEVER, never_reason(state, request))
    admission = Admission(state)
    ahead = _count_ahead(state, admission, request, user)
    refusal = _policy_refusal(admission, server, matching, request, user)
    if refusal is not None:
        return NoOffer(server.id, server.name, refusal.kind, refusal.why, ahead)
    why = _never_here(server, request, matching, fitting_count)
    if why := why or _forbidden_here(admission, server, matching, request, user):
        return _no_offer(server, RefusalKind.BUSY, why, never_here=True)
    if not server.grantable:
        why = server.drain_reason or server.status.value
        return _no_offer(server, RefusalKind.BUSY, f"grants nothing now: {why}")
    reserved = fairness.reserved_for_others(state, request.id, user)
    gpus = tuple(
        OfferedGpu(
            gpu=gpu.id,
            index=gpu.index,
            name=gpu.name,
            memory=size,
            memory_free=gpu.memory_free,
            physical=gpu.parent or gpu.id,
            capacity=gpu.capacity,
        )
        for gpu, size in _with_room(server, matching, request, admission.usable(user), reserved)
    )
    needed = 1 if request.across else request.count
    if len({gpu.physical for gpu in gpus}) < needed:
        idle = sum(gpu.memory_granted == 0 for gpu in server.gpus.values())
        drained = sum(bool(gpu.drain_reason) for gpu in server.gpus.values())
        idle_text = f"{idle} idle" + (f", {drained} drained" if drained else "")
        why = f"{len(gpus)} of {len(server.gpus)} GPUs have room ({idle_text})"
        if reserved is not None:
            why += f"; {reserved.entry.user} has waited longer and goes first"
        why += _lacking_text(server, request) + _reserved_text(admission, server, user)
        why += _kept_text(state, server, request) + _coming_text(state, request)
        return _no_offer(server, RefusalKind.BUSY, why, ahead)
    capacity = sum(gpu.capacity for gpu in server.gpus.values())
    granted = sum(gpu.memory_granted for gpu in server.gpus.values())
    load = granted / capacity if capacity else 1.0
    return Offer(server.id, server.name, server.incarnation, gpus, load)


def _count_ahead(state: PoolState, admission: Admission, request: Request, user: str) -> int:
    """Return how many waiting requests have their turn before this one, which may not wait yet."""
    known = state.waiting.get(request.id)
    new = (-admission.terms(user).priority, state.now, request.id)
    return state.waiting.count_before(fairness.turn(known) if known else new)


def _no_offer(
    server: Server, kind: RefusalKind, why: str, ahead: int = 0, *, never_here: bool = False
) -> NoOffer:
    return NoOffer(server.id, server.name, kind.value, why, ahead, never_here)


def has_room_together(
    state: PoolState, servers: Iterable[Server], request: Request, user: str = ""
) -> bool:
    """Return whether these servers together have room for an ``across`` request now."""
    usable = Admission(state).usable(user)
    reserved = fairness.reserved_for_others(state, request.id, user)
    count = 0
    for server in servers:
        # Most servers of a pool that is in demand are full, and there may be a thousand.
        if server.grantable and any(gpu.memory_free for gpu in server.gpus.values()):
            matching = admitted(request, server)
            found = _with_room(server, matching, request, usable, reserved)
            count += len({gpu.parent or gpu.id for gpu, _ in found})
            if count >= request.count:
                return True
    return False


def _with_room(
    server: Server,
    gpus: Iterable[Gpu],
    request: Request,
    usable: May,
    reserved: ReservedGpus | None,
) -> list[tuple[Gpu, int]]:
    """Return those of ``gpus`` that have room for the request now, and the partition's bytes."""
    return [
        (gpu, size)
        for gpu in gpus
        if (size := wanted_size(gpu, request))
        and gpu.memory_free >= size
        and usable(server, gpu)
        and (reserved is None or (server.id, gpu.id) not in reserved.gpus)
    ]


def _policy_refusal(
    admission: Admission, server: Server, matching: Sequence[Gpu], request: Request, user: str
) -> Result | None:
    """Return why the policy would refuse any offer of ``server``, or None."""
    state = admission.state
    if not state.policy.version:
        return None

    def fits(may: May) -> bool:
        return any_could_ever_fit(state, request, may)

    def largest(may: May) -> str:
        return never_reason(state, request, may)

    refusal = admission.fit_refusal(user, fits, largest)
    if refusal is not None or not admission.terms(user).caps:
        return refusal
    # What is denied is denied by all servers alike. What it counts as depends on the GPU, though,
    # and another server may have GPUs on which the same request counts less.
    if request.filters or request.servers:
        servers = state.servers.values()
        sizes = sizes_of(gpu for each in servers for gpu in admitted(request, each))
    else:
        sizes = sizes_of_all(state)
    refusal = admission.limit_refusal(user, least_need(request, sizes))
    if refusal is None and matching and not request.across:
        refusal = admission.limit_refusal(user, least_need(request, sizes_of(matching)))
        if refusal is not None:
            return refuse(RefusalKind.BUSY, refusal.why)
    return refusal


def _lacking_text(server: Server, request: Request) -> str:
    """Return the reasons other than leases that keep GPUs from a request, of two GPUs at most."""
    found: list[str] = []
    for gpu in sorted(server.gpus.values(), key=lambda each: each.index):
        if why := gpu.fault or gpu.clash:
            found.append(f"GPU {gpu.index}: {why}")
        elif gpu.memory_free < wanted_size(gpu, request) <= gpu.memory_free + gpu.memory_foreign:
            share = gpu.memory_foreign / max(gpu.memory_total, 1)
            found.append(
                f"programs outside of the pool hold {share:.0%} of the memory of GPU {gpu.index}"
            )
    more = f"; and {len(found) - 2} GPUs more" if len(found) > 2 else ""
    return "".join(f"; {each}" for each in found[:2]) + more


def _reserved_text(admission: Admission, server: Server, user: str) -> str:
    group = admission.terms(user).group
    kept = [
        reservation
        for (server_id, _), reservation in admission.book.reserved(admission.state).items()
        if server_id == server.id and reservation.group != group
    ]
    if not kept:
        return ""
    return f"; {len(kept)} kept for class {', '.join(sorted({each.group for each in kept}))}"


def _coming_text(state: PoolState, request: Request) -> str:
    """Return that leases are being suspended for a request, or nothing."""
    users = {
        lease.user
        for lease in state.leases.suspended().values()
        if (found := lease.suspension) is not None
        and found.for_request == request.id
        and found.state is SuspensionState.SUSPENDING
    }
    return f"; a lease of {', '.join(sorted(users))} is being suspended for it" if users else ""


def _kept_text(state: PoolState, server: Server, request: Request) -> str:
    """Return a text on GPUs kept here for a request and on leases that hold them, or nothing."""
    own = next((e for e in fairness.going_first(state) if e.entry.request.id == request.id), None)
    gpus = {gpu for server_id, gpu in own.gpus if server_id == server.id} if own else None
    if not gpus:
        return ""
    holding = [
        lease
        for lease in state.leases.at(server.id).values()
        if lease.is_charged(server.id) and any(part.gpu in gpus for part in lease.partitions)
    ]
    oldest = min(holding, key=lambda each: (each.granted_at, each.id), default=None)
    if oldest is None:
        return ""
    for_long = duration_text(state.now - oldest.granted_at)
    who = f"{lease_name(oldest.id)} of {oldest.user}, held for {for_long}"
    end = f"; it ends within {duration_text(oldest.ends_at - state.now)}" if oldest.ends_at else ""
    count = f"{len(holding)} leases let go" if len(holding) > 1 else "1 lease lets go"
    return f"; {len(gpus)} kept for it until {count}, the oldest is {who}{end}"


def _never_here(
    server: Server, request: Request, matching: Sequence[Gpu], fitting_count: int
) -> str:
    """Return why this server could never serve the request while others could, or nothing."""
    if not names_server(request.servers, server):
        return "not among the servers asked for"
    if not matching and request.filters:
        return "no GPU matches; another server has some"
    if fitting_count < (1 if request.across else request.count):
        return "has no such GPUs; another server does"
    return ""


def _forbidden_here(
    admission: Admission, server: Server, matching: Sequence[Gpu], request: Request, user: str
) -> str:
    """Return that the policy lets ``user`` use too few of this server's GPUs, or nothing."""
    if not admission.terms(user).restricts_places:
        return ""
    allowed = admission.allowed(user)
    count = len(fitting_cards([gpu for gpu in matching if allowed(server, gpu)], request))
    if count >= (1 if request.across else request.count):
        return ""
    return f"the pool's rules let {user} use {count or 'none'} of its GPUs; another server has more"
