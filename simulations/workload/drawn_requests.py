"""The workload generator: requests for parts of a GPU, for whole servers, and across servers."""

from random import Random

from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Filter, Placement, Request
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.simulations.kernel.machines import RACKS
from gpupool.simulations.kernel.swarm_options import Options

FRACTIONS = (0.25, 0.5, 0.6, 1.0, 1.0)
SIZES_GIB = (2, 5, 8, 12, 16)
IDLE_TIMEOUTS_S = (2.0, 4.0, 8.0)


def draw_request(random: Random, options: Options, client: str) -> Request:
    """Return the next request of a client."""
    count = random.choice((1, 1, 1, 2)) if options.gpus > 1 else 1
    if random.random() < options.wide:
        count = options.gpus
    across = random.random() < options.across
    if across:
        count = random.randint(1, max(2, options.gpus))
    by_memory = random.random() < options.by_memory
    idle = random.random() < options.idle * 0.5
    # Drawn only where it matters, so that it moves nothing elsewhere.
    preemptible = options.preemptible > 0 and random.random() < options.preemptible
    return Request(
        id=RequestId(random.randbytes(16)),
        count=count,
        fraction=0.0 if by_memory else random.choice(FRACTIONS),
        memory=random.choice(SIZES_GIB) << 30 if by_memory else 0,
        across=across,
        filters=_draw_filters(random, options) if random.random() < options.filtered else (),
        placement=Placement(random.choice(options.placements)),
        client=client,
        idle_timeout_s=random.choice(IDLE_TIMEOUTS_S) if idle else 0.0,
        preemptible=preemptible,
    )


def _draw_filters(random: Random, options: Options) -> tuple[Filter, ...]:
    """Return one or two filters that at least some pools can satisfy."""
    number = 1 + random.randrange(options.servers)
    texts = (
        f"server.name = s{number}-*, s{1 + number % options.servers}-*",
        f"server.name != s{number}-*",
        f"server.labels.rack = {random.choice(RACKS)}",
        f"server.labels.rack != {random.choice(RACKS)}",
        f"gpu.memory >= {random.choice(options.gpu_gib)}GiB",
        f"gpu.memory < {max(options.gpu_gib)}GiB" if len(options.gpu_gib) > 1 else "gpu.name = *",
        f"gpu.name = *-{random.choice(options.gpu_gib)}",
    )
    chosen = random.sample(texts, random.choice((1, 1, 2)))
    return tuple(parse_filter(text) for text in chosen)
