"""The values that people type and read: sizes, shares, durations, names; parsed strictly."""

import math
import re
from dataclasses import dataclass

from gpupool.pool.model import sizes
from gpupool.pool.model.state import Filter
from gpupool.pool.model.units import MIB

GPU_COUNT_MAX = 256
"""Most GPUs of one request; the table refuses more partitions in one lease."""

EMULATED_COUNT_MAX = 64
EMULATED_MEMORY = 16 << 30
"""Memory of an emulated GPU when none is given; it is only accounted, not allocated."""

SECONDS = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "y": 365 * 86400.0,
}
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwy])")
OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")


@dataclass(frozen=True, slots=True)
class Emulation:
    """How many emulated GPUs to offer, and the memory in bytes that each pretends to have."""

    count: int
    memory: int


def parse_count(text: str) -> int:
    """Return a number of GPUs, 1 to ``GPU_COUNT_MAX``."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{text!r} is not a whole number of GPUs")
    count = int(text[:9])
    if not 1 <= count <= GPU_COUNT_MAX:
        raise ValueError(f"{text} GPUs cannot be had: give a number from 1 to {GPU_COUNT_MAX}")
    return count


def parse_fraction(text: str) -> float:
    """Return a share of a GPU's memory: more than 0, at most 1; ``50%`` is 0.5."""
    percent = text.endswith("%")
    try:
        fraction = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; a share is written as 0.25") from None
    if not math.isfinite(fraction) or not 0.0 < fraction <= 1.0:
        raise ValueError(f"{text} is no share of a GPU: give more than 0 and at most 1, as 0.25")
    return fraction


def parse_share(text: str) -> float:
    """Return a share of a GPU's time: at least ``SHARE_MIN``, at most 1; ``50%`` is 0.5."""
    share = parse_fraction(text)
    if share < sizes.SHARE_MIN:
        raise ValueError(f"{text} is too small a share of a GPU's time: give at least 0.01")
    return share


def parse_size(text: str) -> int:
    """Return bytes from ``8G``, ``8GiB`` (powers of 1024), ``8GB`` (of 1000), ``512M``."""
    size = sizes.parse_size(text)
    if size < MIB:
        raise ValueError(f"{text} is not a usable size: the smallest is 1MiB")
    return size


def parse_partition(text: str) -> int:
    """Return the bytes of a partition: whole MiB, not less than ``text`` says."""
    return -(-parse_size(text) // MIB) * MIB


def parse_filter(text: str) -> Filter:
    """Return the filter of ``key op value``."""
    from gpupool.pool.scheduling import filters

    # Only here, because the table holds the filters of older versions to the rules of old.
    signs = re.match(r"[^=!<>]+([=!<>]+)", text)
    if signs is not None and signs[1] not in OPERATORS:
        raise ValueError(f"there is no operator {signs[1]!r}: write {', '.join(OPERATORS)}")
    return filters.parse_filter(text)


def parse_label(text: str) -> tuple[str, str]:
    """Return the name and value of a server's label, ``NAME=VALUE``."""
    from gpupool.pool.scheduling.filters import label_refusal

    name, value = parse_pair(text)
    if refusal := label_refusal({name: value}):
        raise ValueError(refusal)
    return name, value


IDLE_TIMEOUT_MIN_S = 2.0
"""Workers report once a second, so a shorter timeout could not be told from use."""


def parse_duration(text: str) -> float:
    """Return seconds from ``30``, ``90s``, ``10m``, ``1h30m``, ``365d``, ``1y``."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _sane_duration(float(text), text)
    parts = DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration: write 30s, 10m, 1h30m or 7d")
    return _sane_duration(sum(float(number) * SECONDS[unit] for number, unit in parts), text)


def _sane_duration(seconds: float, text: str) -> float:
    if seconds > 100 * 366 * SECONDS["d"]:
        raise ValueError(f"{text} is longer than a hundred years")
    return seconds


def parse_emulation(text: str) -> Emulation:
    """Return the emulated GPUs for ``N`` or ``N:MEM``, such as ``4:16G``."""
    count, colon, memory = text.partition(":")
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:6]) <= EMULATED_COUNT_MAX):
        raise ValueError(
            f"{count!r} is not a number of emulated GPUs: give 1 to {EMULATED_COUNT_MAX}, as 4:16G"
        )
    return Emulation(int(count), parse_size(memory) if colon else EMULATED_MEMORY)


def parse_pair(text: str) -> tuple[str, str]:
    """Return the name and value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def parse_lease(text: str) -> int:
    """Return the lease that a name such as ``7f3a`` stands for."""
    if re.fullmatch("[0-9a-f]{4}[?]", text):
        raise ValueError(f"{text} is a request that waits: it has no lease yet")
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 < number < 1 << 63:
        raise ValueError(f"{text!r} is not the name of a lease, such as 7f3a")
    return number


def parse_name(text: str) -> str:
    """Return a name for a server or user: letters, digits, dot, dash, underscore; at most 63."""
    if not NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a usable name: letters, digits, dots and dashes, 63 at most"
        )
    return text


def size_text(size: int) -> str:
    """Return ``size`` bytes for people, in at most six characters: ``70.5G``."""
    value, units = float(size), ["B", "K", "M", "G", "T", "P"]
    while value >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    unit = units[0]
    if unit == "B" or value >= 99.95 or value == int(value):
        return f"{value:.0f}{unit}"
    return f"{value:.1f}{unit}"


def duration_text(seconds: float) -> str:
    """Return a duration for people, with two units at most: ``3s``, ``12m``, ``3h05m``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes}m{int(seconds % 60):02d}s" if minutes < 10 else f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    days, hours = minutes // 1440, minutes // 60 % 24
    return f"{days}d{hours:02d}h" if days < 10 and hours else f"{days}d"


def free_text(by_s: float) -> str:
    """Return that GPUs are free after a time, as limits of leases and the policy's rules say."""
    when = duration_text(round(by_s))
    return f"enough GPUs are free in {when} at the latest, by the leases' limits and the policy"
