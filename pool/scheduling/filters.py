"""The GPUs that a request may take: by its filters, ``gpu.memory >= 40GiB``, and by its size.

A filter is parsed once, where a person wrote it, and evaluated in offers, in ``apply`` and in views
by the same pure functions. Evaluation is total: what a server does not know of itself equals
nothing, differs from everything, and is neither smaller nor larger than anything.

    key                       values                                      operators
    server.name               names or ids; * and ? as in the shell       = !=
    server.addr               addresses, networks (10.0.0.0/8), hosts     = != < <= > >=
    server.labels.NAME        text, * and ?; ordered as a version         = != < <= > >=
    gpu.name                  model, with or without the vendor; * ?      = !=
    gpu.memory                sizes: 40GiB, 80GB                          = != < <= > >=
    gpu.compute_capability    versions: 8.6 < 8.10; * and ? with = !=     = != < <= > >=
    gpu.uuid                  NVML's, * and ?                             = !=
    driver.version            versions                                    = != < <= > >=
    cuda.version              versions                                    = != < <= > >=
    link.speed                Mbit/s, or 25G                              = != < <= > >=
    rdma                      yes, no                                     = !=

``=`` takes a list, any of which will do, and ``!=`` one, none of which may match. All filters of a
request must hold. Texts are compared without regard to the case of ASCII letters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Protocol

from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.sizes import exact_size_text, parse_size
from gpupool.pool.model.state import (
    PARTITION_SIZE_MIN,
    Filter,
    Gpu,
    Operator,
    PoolState,
    Request,
    Server,
)

if TYPE_CHECKING:
    from gpupool.pool.policy.admission import May


FILTER_COUNT_MAX = 16
VALUE_COUNT_MAX = 32
VALUE_LENGTH_MAX = 128
TEXT_LENGTH_MAX = 4096
"""Bytes of all filters of a request together: it has to fit into a command."""
LABELS = "server.labels."

LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/+@ -]{0,61}[A-Za-z0-9])?|")
LABEL_COUNT_MAX = 32
"""Of one server."""

VENDORS = ("NVIDIA ", "Tesla ", "GeForce ")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Version = tuple[int, ...]


class ServerFacts(Protocol):
    """The server fields that a filter reads: the table's ``Server``, or a view of it."""

    @property
    def id(self) -> str:
        """Return the id."""
        ...

    @property
    def name(self) -> str:
        """Return the name."""
        ...

    @property
    def address(self) -> str:
        """Return host:port."""
        ...

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels."""
        ...

    @property
    def driver_version(self) -> str:
        """Return NVIDIA's, or an empty string."""
        ...

    @property
    def cuda_version(self) -> str:
        """Return the driver's, or an empty string."""
        ...

    @property
    def link_speed(self) -> int:
        """Return Mbit/s; 0 when unknown."""
        ...

    @property
    def rdma(self) -> bool:
        """Return whether it has an RDMA device."""
        ...


class GpuFacts(Protocol):
    """The GPU fields that a filter reads."""

    @property
    def id(self) -> str:
        """Return NVML's UUID."""
        ...

    @property
    def name(self) -> str:
        """Return the model."""
        ...

    @property
    def memory_total(self) -> int:
        """Return bytes."""
        ...

    @property
    def compute_capability(self) -> str:
        """Return ``9.0``, or an empty string."""
        ...


class Kind(Enum):
    """The type of a key's values."""

    TEXT = "text"
    LABEL = "label"
    ADDRESS = "address"
    SIZE = "size"
    VERSION = "version"
    SPEED = "speed"
    SWITCH = "switch"


KEYS: Mapping[str, Kind] = {
    "server.name": Kind.TEXT,
    "server.addr": Kind.ADDRESS,
    "gpu.name": Kind.TEXT,
    "gpu.memory": Kind.SIZE,
    "gpu.compute_capability": Kind.VERSION,
    "gpu.uuid": Kind.TEXT,
    "driver.version": Kind.VERSION,
    "cuda.version": Kind.VERSION,
    "link.speed": Kind.SPEED,
    "rdma": Kind.SWITCH,
}
EQUALITY = (Operator.EQUAL, Operator.DIFFERENT)
UNORDERED = (Kind.TEXT, Kind.SWITCH)

FILTER = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
VERSION = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,19}){0,7}")
"""Sizes and speeds in their normal form are versions of one number."""
INTEGER = re.compile(r"[0-9]{1,19}")
SPEED = re.compile(r"([0-9]{1,9})\s*([MGT]?)(?:bit(?:/s)?)?", re.IGNORECASE)
SPEEDS = {"": 1, "M": 1, "G": 1000, "T": 1_000_000}  # Mbit/s
SWITCHES = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no"}


# --- text to filter, and back ---------------------------------------------------------------------


def parse_filter(text: str) -> Filter:
    """Return the filter that ``text`` writes, its values in their one normal form.

    Raises:
        ValueError: with a sentence that says what is wrong, and what could be meant.
    """
    match = FILTER.fullmatch(text)
    if match is None:
        if _kind(text.strip()) is not None:
            raise ValueError(
                f"{text.strip()!r} alone is no filter: write key, operator and value in "
                f"quotes, as 'gpu.memory >= 40GiB' (the shell takes < and > for itself)"
            )
        raise ValueError(
            f"{text[:80]!r} is not a filter: write key, operator and value, as 'gpu.name = H200'"
        )
    key, sign, values = match.groups()
    operator = Operator("=" if sign == "==" else sign)
    kind = _kind(key)
    if kind is None:
        raise ValueError(_unknown_key(key))
    if kind in UNORDERED and operator not in EQUALITY:
        raise ValueError(f"{key} has no order: use = or !=")
    if not values:
        raise ValueError(f"{key} {operator.value} lacks its value")
    parts = [part.strip() for part in values.split(",")]
    if len(parts) > 1 and operator not in EQUALITY:
        raise ValueError(f"{operator.value} takes one value, not a list")
    if len(parts) > VALUE_COUNT_MAX:
        raise ValueError(f"a list has at most {VALUE_COUNT_MAX} values")
    return Filter(key, operator, tuple(_normal(key, kind, operator, part) for part in parts))


def check_filters(filters: Sequence[Filter]) -> None:
    """Check that one request may have all these filters.

    Raises:
        ValueError: with a sentence.
    """
    if len(set(filters)) > FILTER_COUNT_MAX:
        raise ValueError(f"a request has at most {FILTER_COUNT_MAX} filters")
    if not well_formed(tuple(dict.fromkeys(filters))):
        raise ValueError(f"the filters of a request have at most {TEXT_LENGTH_MAX} bytes")


def filter_text(wanted: Filter) -> str:
    """Return the filter as a person writes it; ``parse_filter`` gives the same one again."""
    values = wanted.values
    if wanted.key == "gpu.memory":
        values = tuple(exact_size_text(int(v)) if INTEGER.fullmatch(v) else v for v in values)
    return f"{wanted.key} {wanted.operator.value} {','.join(values)}"


def well_formed(filters: Sequence[Filter]) -> bool:
    """Return whether these are filters as ``parse_filter`` makes them; senders are not trusted."""
    if not filters:
        return True
    texts = [text for each in filters for text in (each.key, *each.values)]
    length = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if len(filters) > FILTER_COUNT_MAX or length > TEXT_LENGTH_MAX:
        return False
    return all(_is_normal(each) for each in filters)


@lru_cache(maxsize=1024)
def _is_normal(wanted: Filter) -> bool:
    try:
        return parse_filter(filter_text(wanted)) == wanted
    except ValueError:
        return False


def _kind(key: str) -> Kind | None:
    if key.startswith(LABELS) and LABEL_NAME.fullmatch(key.removeprefix(LABELS)):
        return Kind.LABEL
    return KEYS.get(key)


def _unknown_key(key: str) -> str:
    if key in ("server.labels", "server.label", LABELS):
        return "server.labels needs the name of a label, as server.labels.rack"
    close = get_close_matches(key.lower(), [*KEYS, "server.labels."], 1, 0.5)
    if close:
        meant = close[0] + ("NAME" if close[0] == LABELS else "")
        return f"there is no key {key[:60]!r}; did you mean {meant}?"
    return f"there is no key {key[:60]!r}; the keys are {', '.join([*KEYS, LABELS + 'NAME'])}"


def _normal(key: str, kind: Kind, operator: Operator, value: str) -> str:
    if not value or len(value) > VALUE_LENGTH_MAX or not value.isprintable():
        raise ValueError(f"a value of {key} has 1 to {VALUE_LENGTH_MAX} printable characters")
    match kind:
        case Kind.SIZE:
            return str(parse_size(value))
        case Kind.SPEED:
            found = SPEED.fullmatch(value)
            if found is None:
                raise ValueError(f"{value!r} is not a speed: write Mbit/s, or 25G")
            return str(int(found[1]) * SPEEDS[found[2].upper()])
        case Kind.SWITCH:
            if value.lower() not in SWITCHES:
                raise ValueError(f"{key} is yes or no, not {value!r}")
            return SWITCHES[value.lower()]
        case Kind.VERSION | Kind.LABEL:
            is_pattern = operator in EQUALITY and (kind is Kind.LABEL or set("*?") & set(value))
            if not is_pattern and VERSION.fullmatch(value) is None:
                what = "number, and only those have an order" if kind is Kind.LABEL else "version"
                raise ValueError(f"{value!r} is not a {what}: write numbers and dots, as 12.4")
            return value
        case Kind.ADDRESS:
            if operator not in EQUALITY and _address(value) is None:
                raise ValueError(f"{value!r} is not an IP address, and only those have an order")
            if "/" in value and _network(value) is None:
                raise ValueError(f"{value!r} is not a network: write it as 10.0.0.0/8")
            return value
        case Kind.TEXT:
            return value


# --- evaluation -----------------------------------------------------------------------------------


def matches(wanted: Filter, server: ServerFacts, gpu: GpuFacts) -> bool:
    """Return whether one GPU of one server matches ``wanted``."""
    return _test(wanted)(server, gpu)


def first_mismatch(filters: Sequence[Filter], server: ServerFacts, gpu: GpuFacts) -> Filter | None:
    """Return the first filter that this GPU does not pass, or None when it passes all."""
    return next((each for each in filters if not _test(each)(server, gpu)), None)


def admitted(request: Request, server: Server) -> list[Gpu]:
    """Return the GPUs of ``server`` of which the request would take a part, full ones included."""
    if not names_server(request.servers, server):
        return []
    if not request.filters:
        return list(server.gpus.values())
    return [g for g in server.gpus.values() if first_mismatch(request.filters, server, g) is None]


def names_server(names: tuple[str, ...], server: Server) -> bool:
    """Return whether a request's list of servers, empty for any, admits ``server``."""
    return not names or server.name in names or server.id in names


def label_refusal(labels: dict[str, str]) -> str:
    """Return why these cannot be labels, or an empty string."""
    for name, value in labels.items():
        if LABEL_NAME.fullmatch(name) is None:
            return f"{name[:80]!r} cannot be a label's name: letters, digits and ._/- , 63 at most"
        if LABEL_VALUE.fullmatch(value) is None:
            return f"{value[:80]!r} cannot be a label's value: 63 simple characters at most"
    return ""


Test = Callable[[ServerFacts, GpuFacts], bool]


@lru_cache(maxsize=1024)
def _test(wanted: Filter) -> Test:
    """Return the predicate of a filter; a malformed one, which nobody makes, matches nothing."""
    kind = _kind(wanted.key)
    if kind is None or not wanted.values:
        return lambda _server, _gpu: False
    if wanted.operator in EQUALITY:
        equals = _equality(wanted.key, kind, wanted.values)
        if wanted.operator is Operator.EQUAL:
            return equals
        return lambda server, gpu: not equals(server, gpu)
    return _order(wanted.key, kind, wanted.operator, wanted.values[0])


def _equality(key: str, kind: Kind, values: tuple[str, ...]) -> Test:
    tests = [_equals_one(kind, value) for value in values]
    return lambda server, gpu: any(
        test(fact) for fact in facts_text(key, server, gpu) for test in tests
    )


def _equals_one(kind: Kind, value: str) -> Callable[[str], bool]:
    if kind in (Kind.SIZE, Kind.SPEED):
        return lambda fact: fact == value
    if kind is Kind.VERSION and (version := _version(value)) is not None:
        return lambda fact: _version(fact) == version
    if kind is Kind.ADDRESS and (network := _network(value)) is not None:
        return lambda fact: (found := _address(fact)) is not None and found in network
    pattern = ascii_lower(value)
    return lambda fact: glob_matches(pattern, ascii_lower(fact))


def _order(key: str, kind: Kind, operator: Operator, value: str) -> Test:
    read = _ordered_address if kind is Kind.ADDRESS else _version
    limit = read(value)

    def test(server: ServerFacts, gpu: GpuFacts) -> bool:
        facts = facts_text(key, server, gpu)
        return any(_compare(read(fact), operator, limit) for fact in facts)

    return test


def _compare(found: Version | None, operator: Operator, limit: Version | None) -> bool:
    if found is None or limit is None:
        return False
    match operator:
        case Operator.LESS:
            return found < limit
        case Operator.AT_MOST:
            return found <= limit
        case Operator.MORE:
            return found > limit
        case _:
            return found >= limit


def facts_text(key: str, server: ServerFacts, gpu: GpuFacts) -> tuple[str, ...]:
    """Return the value of ``key`` as text in normal form; empty when it is unknown."""
    match key:
        case "server.name":
            return (server.name, server.id)
        case "server.addr":
            return (server.address.rpartition(":")[0].strip("[]"),)
        case "gpu.name":
            return (gpu.name, short_model(gpu.name))
        case "gpu.memory":
            return (str(gpu.memory_total),)
        case "gpu.compute_capability":
            return _known(gpu.compute_capability)
        case "gpu.uuid":
            return (gpu.id,)
        case "driver.version":
            return _known(server.driver_version)
        case "cuda.version":
            return _known(server.cuda_version)
        case "link.speed":
            return (str(server.link_speed),) if server.link_speed else ()
        case "rdma":
            return ("yes" if server.rdma else "no",)
        case _:
            value = server.labels.get(key.removeprefix(LABELS))
            return () if value is None else (value,)


def _known(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def short_model(name: str) -> str:
    """Return a GPU's model without the vendor: ``NVIDIA H200`` becomes ``H200``."""
    for vendor in VENDORS:
        name = name.removeprefix(vendor)
    return name or "GPU"


def ascii_lower(text: str) -> str:
    """Return ``text`` in lower case, ASCII alone: Unicode's tables differ between Pythons."""
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def glob_matches(pattern: str, text: str) -> bool:
    """Return whether ``text`` matches ``pattern``, in which * is any text and ? one character.

    Takes at most the product of both lengths, whatever the pattern. GPUs say much the same of
    themselves, so the latest answers are remembered.
    """
    at = start = 0
    star, resume = -1, 0
    while at < len(text):
        if start < len(pattern) and pattern[start] == "*":
            star, resume = start, at
            start += 1
        elif start < len(pattern) and pattern[start] in ("?", text[at]):
            start += 1
            at += 1
        elif star >= 0:
            resume += 1
            start, at = star + 1, resume
        else:
            return False
    return not pattern[start:].strip("*")


def _version(text: str) -> Version | None:
    """Return the numbers of a version without zeros at its end: 12 and 12.0 are one."""
    if VERSION.fullmatch(text) is None:
        return None
    numbers = [int(each) for each in text.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _ordered_address(text: str) -> Version | None:
    found = _address(text)
    return None if found is None else (found.version, int(found))


# --- sizes ----------------------------------------------------------------------------------------

WHOLE_SLACK = 0.95
"""``-p 1`` asks for a whole GPU, and gets one of which others hold at most this little."""


def partition_size(capacity: int, fraction: float) -> int:
    """Return the bytes of ``fraction`` of a GPU, rounded down to whole MiB."""
    return int(capacity * fraction) // PARTITION_SIZE_MIN * PARTITION_SIZE_MIN


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


def any_could_ever_fit(state: PoolState, request: Request, may: "May | None" = None) -> bool:
    """Return whether any server of the table, down ones included, could ever serve it.

    With ``may``, only GPUs count that it admits.
    """
    total = 0
    for server in state.servers.values():
        gpus = admitted(request, server)
        if may is not None:
            gpus = [gpu for gpu in gpus if may(server, gpu)]
        count = len(fitting_cards(gpus, request))
        total += count
        # Mostly the first server could, and there may be a thousand.
        if (total if request.across else count) >= request.count:
            return True
    return False


def fitting_cards(gpus: Sequence[Gpu], request: Request) -> dict[GpuId, int]:
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
