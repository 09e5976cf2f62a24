"""Disjoint address ranges of a lease's servers, so that a device address identifies its server.

A program with GPUs of several servers sees the device addresses of all of them. CUDA places its
memory where its process has nothing yet, so a worker of such a lease first fills everything outside
of its own part with mappings that hold nothing.
"""

import ctypes
from collections.abc import Iterable

TIB, GIB, MIB = 1 << 40, 1 << 30, 1 << 20

FIRST, LAST = 8 * TIB, 80 * TIB
"""Below FIRST lie CUDA's mappings other than its memory, above LAST programs and their
libraries."""

WIDTH_MAX = 8 * TIB

UNTOUCHED = 64 * GIB
"""With less of the lowest addresses, cuInit says that it is out of memory."""

END = 128 * TIB - (1 << 16)
"""The end of the addresses that mmap gives on x86-64 to a program that asks for no higher ones."""

STACK_ROOM = 256 * MIB
"""Below the stack of the main thread, which grows."""

ATTEMPTS = 100

PROT_NONE = 0
MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED_NOREPLACE = 2, 0x20, 0x4000, 0x100000

_own: range | None = None
_filled: list[tuple[int, int]] = []


def slice_of(place: int, servers: int) -> range:
    """Return the addresses of one server of a lease, counted from zero.

    Raises:
        ValueError: when there are more servers than parts.
    """
    width = WIDTH_MAX
    while width * servers > LAST - FIRST:
        width //= 2
    if not 0 <= place < servers or width < TIB:
        raise ValueError(f"no part of the address space for server {place} of {servers}")
    return range(FIRST + place * width, FIRST + (place + 1) * width)


def gaps(maps: Iterable[str], own: range) -> list[tuple[int, int]]:
    """Return the free address ranges to fill, as (start, end): all outside of ``own``.

    Args:
        maps: lines as those of /proc/self/maps.
        own: stays free.
    """
    found: list[tuple[int, int]] = []

    def add(start: int, end: int) -> None:
        start, end = max(start, UNTOUCHED), min(end, END)
        if start < end:
            found.append((start, end))

    at = 0
    for line in maps:
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        free_end = start - STACK_ROOM if "[stack]" in line else start
        add(at, min(free_end, own.start))
        add(max(at, own.stop), free_end)
        at = max(at, end)
    add(at, own.start)
    add(max(at, own.stop), END)
    return found


def confine(place: int, servers: int) -> None:
    """Keep this process to its part of the address space, from now on; before CUDA starts.

    Raises:
        ValueError: when there are more servers than parts.
        OSError: when the system does not allow it.
    """
    global _own
    own = slice_of(place, servers)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE

    def fill(start: int, end: int) -> bool:
        got = libc.mmap(start, end - start, PROT_NONE, flags, -1, 0)
        if got not in (start, None, ctypes.c_void_p(-1).value):
            libc.munmap(got, end - start)
        if got == start:
            _filled.append((start, end))
        return got == start

    for _ in range(ATTEMPTS):
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            lines = maps.readlines()
        # Another thread may put something there meanwhile, and then the rest is still free.
        if all(fill(start, end) for start, end in gaps(lines, own)):
            _own = own
            return
    raise OSError(ctypes.get_errno(), "addresses that are free cannot be filled")


def own() -> range | None:
    """Return this process's part of the address space; None without ``confine``."""
    return _own


def holds(address: int, size: int) -> bool:
    """Say whether memory is where this process may have some; always so without ``confine``."""
    return _own is None or (address in _own and address + max(size, 1) - 1 in _own)


def is_filled(start: int, end: int) -> bool:
    """Say whether the range is a placeholder of ``confine``, which a mapping may replace."""
    return any(first <= start and end <= last for first, last in _filled)
