"""Which GPUs for a request: what a server can offer, and which offer a client takes.

The server's half answers from the replicated table alone; the client's half ranks what came back.
Best fit first (least memory left over), then the least loaded, then the nearest (design 3.3).
"""

from dataclasses import dataclass

from gpupool.pool.ids import GpuId, Incarnation, ServerId
from gpupool.pool.leases import names_server, partition_size
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
    """Why a server gives nothing: "busy", "never" or "denied"."""

    server: ServerId
    name: str
    kind: str
    why: str
    ahead: int = 0  # requests that wait longer than this one


@dataclass(frozen=True, slots=True)
class Choice:
    """The claim to send for one offer."""

    offer: Offer
    partitions: tuple[Partition, ...]
    left_over: int  # bytes that remain free on the chosen GPUs


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


def make_offer(state: PoolState, server: Server, request: Request) -> Offer | NoOffer:
    """Return what ``server`` answers to ``request``, from the table alone."""
    if not any_could_ever_fit(state, request):
        return NoOffer(server.id, server.name, "never", never_reason(state, request))
    if not names_server(request.servers, server):
        return NoOffer(server.id, server.name, "busy", "not among the servers asked for")
    if not server.grantable:
        why = server.drain_reason or server.status.value
        return NoOffer(server.id, server.name, "busy", f"grants nothing now: {why}")
    if not could_ever_fit(server, request):
        return NoOffer(server.id, server.name, "busy", "has no such GPUs; another server does")
    ahead = sum(w.request.id != request.id for w in state.waiting.values())
    gpus = tuple(
        OfferedGpu(gpu.id, gpu.index, gpu.name, size, gpu.memory_free, gpu.parent or gpu.id)
        for gpu in server.gpus.values()
        if (size := wanted_size(gpu, request)) and gpu.memory_free >= size
    )
    if len({gpu.physical for gpu in gpus}) < request.count:
        idle = sum(gpu.memory_granted == 0 for gpu in server.gpus.values())
        why = f"{len(gpus)} of {len(server.gpus)} GPUs have room ({idle} idle)"
        return NoOffer(server.id, server.name, "busy", why, ahead)
    capacity = sum(gpu.capacity for gpu in server.gpus.values())
    granted = sum(gpu.memory_granted for gpu in server.gpus.values())
    load = granted / capacity if capacity else 1.0
    return Offer(server.id, server.name, server.incarnation, gpus, load)


def could_ever_fit(server: Server, request: Request) -> bool:
    """Return whether an empty, healthy ``server`` could serve ``request``."""
    fitting = {
        gpu.parent or gpu.id
        for gpu in server.gpus.values()
        if 0 < (request.memory or partition_size(gpu.capacity, request.fraction)) <= gpu.capacity
    }
    return len(fitting) >= request.count


def any_could_ever_fit(state: PoolState, request: Request) -> bool:
    """Return whether any server of the table, down ones included, could ever serve it."""
    return any(
        could_ever_fit(server, request)
        for server in state.servers.values()
        if names_server(request.servers, server)
    )


def never_reason(state: PoolState, request: Request) -> str:
    """Return a sentence with the largest request that could be served."""
    servers = [s for s in state.servers.values() if names_server(request.servers, s)]
    if request.servers and not servers:
        return f"the pool has no server named {', '.join(request.servers)}"
    gpu_count = max((len({g.parent or g.id for g in s.gpus.values()}) for s in servers), default=0)
    memory = max((g.capacity for s in servers for g in s.gpus.values()), default=0)
    if not gpu_count:
        return "no server of the pool has any GPU"
    return f"the largest server has {gpu_count} GPU(s), the largest GPU {memory / 2**30:.1f} GiB"


def choose(offer: Offer, request: Request) -> Choice | None:
    """Return the best-fitting GPUs of one offer, or None when it cannot serve the request.

    With mixed GPUs a fraction means the same bytes on each: that of the smallest chosen GPU.
    """
    ranked = sorted(offer.gpus, key=lambda g: (g.memory_free - g.memory, g.index))
    chosen: list[OfferedGpu] = []
    cards: set[GpuId] = set()
    for gpu in ranked:
        if gpu.physical not in cards and len(chosen) < request.count:
            chosen.append(gpu)
            cards.add(gpu.physical)
    if len(chosen) < request.count or not chosen:
        return None
    memory = min(gpu.memory for gpu in chosen)
    partitions = tuple(
        Partition(offer.server, gpu.gpu, memory) for gpu in sorted(chosen, key=lambda g: g.index)
    )
    return Choice(offer, partitions, sum(gpu.memory_free - memory for gpu in chosen))


def rank(
    offers: list[Offer], request: Request, latency_s: dict[ServerId, float] | None = None
) -> list[Choice]:
    """Return one choice per offer that can serve ``request``, best first; a total order."""
    latencies = latency_s or {}
    choices = [choice for offer in offers if (choice := choose(offer, request)) is not None]
    return sorted(
        choices,
        key=lambda c: (
            c.left_over,
            round(c.offer.load, 3),
            latencies.get(c.offer.server, 0.0),
            c.offer.server,
        ),
    )
