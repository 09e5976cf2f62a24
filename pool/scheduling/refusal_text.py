"""Texts of refusals: why no server could ever serve a request, and the nearest possible request."""

from dataclasses import replace

from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.sizes import exact_size_text
from gpupool.pool.model.state import Filter, Gpu, PoolState, Request, Server
from gpupool.pool.policy.admission import May
from gpupool.pool.scheduling.capacity import fitting_cards
from gpupool.pool.scheduling.filters import admitted, facts_text, filter_text, matches, names_server

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
