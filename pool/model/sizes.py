"""Sizes as people write them, with one meaning everywhere: requests, filters, policies, emulation.

``KB``, ``MB``, ``GB``, ``TB`` are powers of 1000; ``KiB``, ``MiB``, ``GiB``, ``TiB`` and the bare
letters ``K``, ``M``, ``G``, ``T`` are powers of 1024. What gpupool prints is in powers of 1024.
"""

import re

SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)
BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZE_MAX = 1 << 60

SHARE_MIN = 0.01
"""The smallest share of a GPU's time: with turns of 20 ms, one in two seconds."""


def parse_size(text: str) -> int:
    """Return bytes from ``8G``, ``8GiB`` (1024), ``8GB`` (1000), ``512M``, ``4096B``.

    Raises:
        ValueError: with a sentence, when it is none, or has no unit.
    """
    match = SIZE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is not a size: write a number and its unit, as 8G or 512M")
    units = DECIMAL if (match[3] or "").upper() == "B" else BINARY
    whole, _, part = match[1].partition(".")
    # Integers all the way: a float would make 2 PiB - 1 of 2 PiB.
    size = int(whole + part) * units[match[2].upper()] // 10 ** len(part)
    if size >= SIZE_MAX:
        raise ValueError(f"{text} is not a usable size: it is larger than any memory")
    return size


def exact_size_text(size: int) -> str:
    """Return ``size`` bytes in the largest unit that says it exactly: ``40GiB``, ``7B``."""
    for unit in ("T", "G", "M", "K"):
        if size and size % BINARY[unit] == 0:
            return f"{size // BINARY[unit]}{unit}iB"
    return f"{size}B"
