"""What a server can offer for a request, and why it cannot.

This is the server's half, which answers from the replicated table alone. The client's half, which
ranks what came back, is ``choice``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpupool.pool.model.ids import GpuId, Incarnation, ServerId
from gpupool.pool.model.results import Result, refuse
from gpupool.pool.model.sizes import exact_size_text
from gpupool.pool.model.state import Filter, Gpu, PoolState, Request, Server
from gpupool.pool.policy.admission import Admission, May, least_need, sizes_of, sizes_of_all
from gpupool.pool.scheduling.filters import admitted, facts_text, filter_text, matches, names_server
from gpupool.pool.transitions.leases import Kept, partition_size, reserved_for_others

WHOLE_SLACK = 0.95
"""``-p 1`` asks for a whole GPU, and gets one of which others hold at most this little."""


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """One GPU that could serve the request now."""

    gpu: GpuId
    index: int
    name: str
    memory: int  # what the partition would be, bytes
    memory_free: int
    physical: GpuId  # the card, the same for all MIG instances of it
    capacity: int = 0  # bytes of the GPU when nothing is granted


@dataclass(frozen=True, slots=True)
class Offer:
    """What one server can give now."""

    server: ServerId
    name: str
    incarnation: Incarnation
    gpus: tuple[OfferedGpu, ...]
    load: float  # granted share of this server's memory, 0 to 1


@dataclass(frozen=True, slots=True)
class NoOffer:
    """Why a server gives nothing: "busy", "never", "denied", or "no-quorum" when it may not."""

    server: ServerId
    name: str
    kind: str
    why: str
    ahead: int = 0  # requests that wait longer than this one
    never_here: bool = False  # busy, and not for a while: only other servers could ever serve it


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


def may_have_room(server: Server, request: Request) -> bool:
    """Return whether enough GPUs have memory free; without that there is no offer.

    It looks at nothing else, and is a tenth of the work of ``make_offer``.
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
    """Return what ``server`` answers to a ``request`` of ``user``, from the table alone."""
    matching = admitted(request, server)
    fitting_count = len(_fitting_cards(matching, request))
    # All other servers are looked at only when this one could not serve the request alone.
    if fitting_count < request.count and not any_could_ever_fit(state, request):
        return NoOffer(server.id, server.name, "never", never_reason(state, request))
    ahead = len(state.waiting) - (request.id in state.waiting)
    admission = Admission(state)
    refusal = _policy_refusal(admission, server, matching, request, user)
    if refusal is not None:
        return NoOffer(server.id, server.name, refusal.kind, refusal.why, ahead)
    why = _never_here(server, request, matching, fitting_count)
    if why := why or _forbidden_here(admission, server, matching, request, user):
        return NoOffer(server.id, server.name, "busy", why, never_here=True)
    if not server.grantable:
        why = server.drain_reason or server.status.value
        return NoOffer(server.id, server.name, "busy", f"grants nothing now: {why}")
    kept = reserved_for_others(state, request.id, user)
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
        for gpu, size in _with_room(server, matching, request, admission.usable(user), kept)
    )
    needed = 1 if request.across else request.count
    if len({gpu.physical for gpu in gpus}) < needed:
        idle = sum(gpu.memory_granted == 0 for gpu in server.gpus.values())
        why = f"{len(gpus)} of {len(server.gpus)} GPUs have room ({idle} idle)"
        if kept is not None:
            why += f"; {kept.entry.user} has waited longer and goes first"
        why += _reserved_text(admission, server, user)
        return NoOffer(server.id, server.name, "busy", why, ahead)
    capacity = sum(gpu.capacity for gpu in server.gpus.values())
    granted = sum(gpu.memory_granted for gpu in server.gpus.values())
    load = granted / capacity if capacity else 1.0
    return Offer(server.id, server.name, server.incarnation, gpus, load)


def has_room_together(
    state: PoolState, servers: Iterable[Server], request: Request, user: str = ""
) -> bool:
    """Return whether these servers together have room for an ``across`` request now."""
    usable = Admission(state).usable(user)
    kept = reserved_for_others(state, request.id, user)
    count = 0
    for server in servers:
        # Most servers of a pool that is in demand are full, and there may be a thousand.
        if server.grantable and any(gpu.memory_free for gpu in server.gpus.values()):
            matching = admitted(request, server)
            found = _with_room(server, matching, request, usable, kept)
            count += len({gpu.parent or gpu.id for gpu, _ in found})
            if count >= request.count:
                return True
    return False


def _with_room(
    server: Server, gpus: Iterable[Gpu], request: Request, usable: May, kept: Kept | None
) -> list[tuple[Gpu, int]]:
    """Return those of ``gpus`` that have room for the request now, and the partition's bytes."""
    return [
        (gpu, size)
        for gpu in gpus
        if (size := wanted_size(gpu, request))
        and gpu.memory_free >= size
        and usable(server, gpu)
        and (kept is None or (server.id, gpu.id) not in kept.gpus)
    ]


def _policy_refusal(
    admission: Admission, server: Server, matching: Sequence[Gpu], request: Request, user: str
) -> Result | None:
    """Return why the policy would refuse whatever ``server`` could offer, or None."""
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
            return refuse("busy", refusal.why)
    return refusal


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
    count = len(_fitting_cards([gpu for gpu in matching if allowed(server, gpu)], request))
    if count >= (1 if request.across else request.count):
        return ""
    return f"the pool's rules let {user} use {count or 'none'} of its GPUs; another server has more"


def any_could_ever_fit(state: PoolState, request: Request, may: May | None = None) -> bool:
    """Return whether any server of the table, down ones included, could ever serve it.

    With ``may``, only GPUs count that it admits.
    """
    total = 0
    for server in state.servers.values():
        gpus = admitted(request, server)
        if may is not None:
            gpus = [gpu for gpu in gpus if may(server, gpu)]
        count = len(_fitting_cards(gpus, request))
        total += count
        # Mostly the first server could, and there may be a thousand.
        if (total if request.across else count) >= request.count:
            return True
    return False


def _fitting_cards(gpus: Sequence[Gpu], request: Request) -> dict[GpuId, int]:
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


# --- saying why not -------------------------------------------------------------------------------


def never_reason(state: PoolState, request: Request, may: May | None = None) -> str:
    """Return a sentence with the largest request that could be served instead.

    With ``may``, of GPUs that it admits.
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
    such = "matching GPU" if request.filters else "GPU"
    if may is not None:
        found = {s.name: [g for g in found[s.name] if may(s, g)] for s in servers}
        such = f"such {such}"
        if not any(found.values()):
            return f"{where} {'have' if request.servers else 'has'} no {such}"
    largest = max(gpu.capacity for gpus in found.values() for gpu in gpus)
    cards = {name: _fitting_cards(gpus, request) for name, gpus in found.items()}
    total = sum(map(len, cards.values()))
    if not total and not request.memory:
        return f"that is less than 1 MiB, the smallest partition, of {_gib(largest)}"
    if not total:
        return f"the largest {such} of {where} has {_gib(largest)}"
    if request.across:
        which = "these" if request.servers else "all"
        size = " of that size" if request.memory else ""
        text = f"{which} servers together have {_counted(total, such)}{size}"
        everything = [gpu for gpus in found.values() for gpu in gpus]
        return text + _each_reason([everything], request, such)
    name = max(cards, key=lambda each: len(cards[each]))
    text = f"the most on one server is {_counted(len(cards[name]), such)} of that size ({name})"
    if not request.memory:
        text = f"the largest server, {name}, has {_counted(len(cards[name]), such)}"
    if total >= request.count:
        return f"{text}; with --across there are {total}"
    return text + _each_reason(list(found.values()), request, such)


def _each_reason(groups: list[list[Gpu]], request: Request, such: str) -> str:
    """Return how much memory the requested number of GPUs could have each, if it is memory."""
    if not request.memory:
        return ""
    one_byte = replace(request, memory=1)
    sizes = [sorted(_fitting_cards(group, one_byte).values()) for group in groups]
    each = max((size[-request.count] for size in sizes if len(size) >= request.count), default=0)
    return f"; {_counted(request.count, such)} could have {_gib(each)} each" if each else ""


def _mismatch_reason(servers: list[Server], filters: tuple[Filter, ...], where: str) -> str:
    """Return which filter leaves nothing over, and what there is instead."""
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
