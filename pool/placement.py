"""Which GPUs for a request: what a server can offer, and which offer a client takes.

The server's half answers from the replicated table alone; the client's half ranks what came back.
Best fit first (least memory left over), then the least loaded, then the nearest (design 3.3).
"""

from dataclasses import dataclass

from gpupool.pool.ids import GpuId, Incarnation, ServerId
from gpupool.pool.leases import kept_for_others, names_server, partition_size
from gpupool.pool.state import Gpu, Partition, PoolState, Request, Server

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


@dataclass(frozen=True, slots=True)
class Choice:
    """The claim to send: one offer, or with ``across`` several together."""

    offers: tuple[Offer, ...]
    partitions: tuple[Partition, ...]
    left_over: int  # bytes that remain free on the chosen GPUs

    @property
    def server(self) -> ServerId:
        """Return the server that is asked to grant it."""
        return self.offers[0].server

    @property
    def incarnations(self) -> dict[ServerId, Incarnation]:
        """Return the incarnations that the offers stated."""
        return {offer.server: offer.incarnation for offer in self.offers}


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


def make_offer(
    state: PoolState, server: Server, request: Request, user: str = ""
) -> Offer | NoOffer:
    """Return what ``server`` answers to a ``request`` of ``user``, from the table alone."""
    del user
    named = names_server(request.servers, server)
    fitting_count = _fitting_count(server, request) if named else 0
    # All other servers are looked at only when this one could not serve the request alone.
    if fitting_count < request.count and not any_could_ever_fit(state, request):
        return NoOffer(server.id, server.name, "never", never_reason(state, request))
    if not named:
        return NoOffer(server.id, server.name, "busy", "not among the servers asked for")
    if not server.grantable:
        why = server.drain_reason or server.status.value
        return NoOffer(server.id, server.name, "busy", f"grants nothing now: {why}")
    if fitting_count < (1 if request.across else request.count):
        return NoOffer(server.id, server.name, "busy", "has no such GPUs; another server does")
    ahead = sum(w.request.id != request.id for w in state.waiting.values())
    gpus = tuple(
        OfferedGpu(gpu.id, gpu.index, gpu.name, size, gpu.memory_free, gpu.parent or gpu.id)
        for gpu in server.gpus.values()
        if (size := wanted_size(gpu, request)) and gpu.memory_free >= size
    )
    kept = kept_for_others(state, request.id)
    if kept is not None:
        gpus = tuple(gpu for gpu in gpus if (server.id, gpu.gpu) not in kept.gpus)
    needed = 1 if request.across else request.count
    if len({gpu.physical for gpu in gpus}) < needed:
        idle = sum(gpu.memory_granted == 0 for gpu in server.gpus.values())
        why = f"{len(gpus)} of {len(server.gpus)} GPUs have room ({idle} idle)"
        if kept is not None:
            why += f"; {kept.entry.user} has waited longer and goes first"
        return NoOffer(server.id, server.name, "busy", why, ahead)
    capacity = sum(gpu.capacity for gpu in server.gpus.values())
    granted = sum(gpu.memory_granted for gpu in server.gpus.values())
    load = granted / capacity if capacity else 1.0
    return Offer(server.id, server.name, server.incarnation, gpus, load)


def any_could_ever_fit(state: PoolState, request: Request) -> bool:
    """Return whether any server of the table, down ones included, could ever serve it."""
    counts = [
        _fitting_count(server, request)
        for server in state.servers.values()
        if names_server(request.servers, server)
    ]
    most = sum(counts) if request.across else max(counts, default=0)
    return most >= request.count


def _fitting_count(server: Server, request: Request) -> int:
    """Return on how many cards of an empty ``server`` a partition of the request fits."""
    fitting = {
        gpu.parent or gpu.id
        for gpu in server.gpus.values()
        if 0 < (request.memory or partition_size(gpu.capacity, request.fraction)) <= gpu.capacity
    }
    return len(fitting)


def never_reason(state: PoolState, request: Request) -> str:
    """Return a sentence with the largest request that could be served."""
    servers = [s for s in state.servers.values() if names_server(request.servers, s)]
    if request.servers and not servers:
        return f"the pool has no server named {', '.join(request.servers)}"
    counts = [len({g.parent or g.id for g in s.gpus.values()}) for s in servers]
    gpu_count = max(counts, default=0)
    memory = max((g.capacity for s in servers for g in s.gpus.values()), default=0)
    if not gpu_count:
        return "no server of the pool has any GPU"
    largest = f"the largest GPU {memory / 2**30:.1f} GiB"
    if request.across:
        return f"all servers together have {sum(counts)} GPU(s), {largest}"
    return f"the largest server has {gpu_count} GPU(s), {largest}"


def choose(offers: tuple[Offer, ...], request: Request) -> Choice | None:
    """Return the best-fitting GPUs of these offers together, or None when they are too few.

    GPUs of an earlier offer come first. With mixed GPUs a fraction means the same bytes on each:
    that of the smallest chosen GPU.
    """
    chosen: list[tuple[ServerId, OfferedGpu]] = []
    cards: set[tuple[ServerId, GpuId]] = set()
    for offer in offers:
        for gpu in sorted(offer.gpus, key=lambda g: (g.memory_free - g.memory, g.index)):
            card = (offer.server, gpu.physical)
            if card not in cards and len(chosen) < request.count:
                chosen.append((offer.server, gpu))
                cards.add(card)
    if len(chosen) < request.count or not chosen:
        return None
    memory = min(gpu.memory for _, gpu in chosen)
    order = {offer.server: place for place, offer in enumerate(offers)}
    chosen.sort(key=lambda pair: (order[pair[0]], pair[1].index))
    return Choice(
        offers=tuple(o for o in offers if any(server == o.server for server, _ in chosen)),
        partitions=tuple(Partition(server, gpu.gpu, memory) for server, gpu in chosen),
        left_over=sum(gpu.memory_free - memory for _, gpu in chosen),
    )


def rank(
    offers: list[Offer], request: Request, latency_s: dict[ServerId, float] | None = None
) -> list[Choice]:
    """Return the choices that serve ``request``, best first; a total order.

    One server is preferred. Only when none can serve an ``across`` request alone do several
    together: as few of them as possible.
    """
    latencies = latency_s or {}

    def preference(choice: Choice) -> tuple[int, float, float, ServerId]:
        offer = choice.offers[0]
        latency = latencies.get(offer.server, 0.0)
        return (choice.left_over, round(offer.load, 3), latency, offer.server)

    choices = [choice for offer in offers if (choice := choose((offer,), request)) is not None]
    if not choices and request.across:
        widest = sorted(
            offers, key=lambda o: (-len({g.physical for g in o.gpus}), o.load, o.server)
        )
        together = choose(tuple(widest), request)
        return [together] if together is not None else []
    return sorted(choices, key=preference)
