"""Contents of a kernel image, as far as visible without the driver; pure.

Only what the driver allocates for variables is counted here. What it needs for code is a part of
the context's overhead, and with lazy loading only the code of kernels that run.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

FATBIN_MAGIC = 0xBA55ED50
FATBIN = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHII4xI20xQ")
"""Kind, version, size of the header, of the payload, of the compressed payload, flags."""

KIND_PTX, KIND_ELF = 1, 2
COMPRESSED = 0x2000 | 0x8000  # LZ4, zstd
ELF_HEAD = struct.Struct("<40xQ10xHHH")
"""Offset of the section headers, their size and count, and the index of the name section."""

SECTION = struct.Struct("<I20xQQ")
"""Where its name is, where it lies, its size."""

ENTRIES_MAX, SECTIONS_MAX = 1024, 1 << 17
VARIABLES = (b".nv.global", b".nv.global.init", b".nv.constant3")
COMMENT = re.compile(rb"/\*.*?\*/|//[^\n]*", re.DOTALL)
DECLARATION = re.compile(rb"(?:^|[\s;}])\.(?:global|const)\s([^;={]+)")
TYPE = re.compile(rb"(?:\.v([248])\s+)?\.(?:[busf]|bf)(8|16|32|64|128)(x2)?\s")
NAME = re.compile(rb"[\w$%]+((?:\s*\[[^\]]*\])*)")
BOUND_SIZE_MAX = 80
BOUND = re.compile(rb"\[\s*(?:0[xX](?P<hex>[\da-fA-F]+)|0[bB](?P<bin>[01]+)|(?P<dec>\d+))?U?\s*\]")


@dataclass(frozen=True, slots=True)
class Contents:
    """Of one image."""

    variables: int  # bytes of variables that were found
    seen: bool  # whether all of it could be read, which compressed images cannot
    prints: bool  # whether kernels in it may call printf
    asserts: bool  # whether they may call assert


def contents_of(image: bytes | bytearray) -> Contents:
    """Return the contents of an ELF image, a fat binary or PTX; nothing for other bytes.

    Of a fat binary the largest entry counts: the driver takes one.
    """
    prints, asserts = b"vprintf" in image, b"__assertfail" in image
    if image[:4] == b"\x7fELF":
        return Contents(_of_elf(image, 0, len(image)), True, prints, asserts)
    if image[:4] != FATBIN_MAGIC.to_bytes(4, "little"):
        size, seen = _of_ptx(image)
        return Contents(size, seen, prints, asserts)
    most, seen = 0, True
    for kind, start, end, compressed in _entries(image):
        if compressed:
            seen = False
        elif kind == KIND_ELF:
            most = max(most, _of_elf(image, start, end))
        elif kind == KIND_PTX:
            size, read = _of_ptx(image[start:end])
            most, seen = max(most, size), seen and read
    return Contents(most, seen, prints or not seen, asserts or not seen)


def _entries(image: bytes | bytearray) -> Iterator[tuple[int, int, int, bool]]:
    """Give the kind, start, end and whether it is compressed of each entry of a fat binary."""
    if len(image) < FATBIN.size:
        return
    at = FATBIN.unpack_from(image)[2]
    for _ in range(ENTRIES_MAX):
        if at + ENTRY.size > len(image):
            return
        kind, _, header, payload, compressed, flags = ENTRY.unpack_from(image, at)
        end = at + header + max(payload, compressed)
        if header < ENTRY.size or end > len(image):
            return
        yield kind, at + header, end, bool(flags & COMPRESSED)
        at = end


def _of_elf(image: bytes | bytearray, start: int, end: int) -> int:
    """Return the size of all sections of variables of the ELF image that lies there."""
    if end - start < 64:
        return 0
    table, size, count, names = ELF_HEAD.unpack_from(image, start)
    count = min(count, SECTIONS_MAX)
    if size < 64 or start + table + count * size > end or names >= count:
        return 0

    def section(number: int) -> tuple[int, int, int]:
        return SECTION.unpack_from(image, start + table + number * size)

    strings = start + section(names)[1]
    total = 0
    for number in range(count):
        name, _, length = section(number)
        at = strings + name
        found = bytes(image[at : at + 64]).split(b"\0", 1)[0] if at < end else b""
        if found in VARIABLES:
            total += length
    return total


def _of_ptx(text: bytes | bytearray) -> tuple[int, bool]:
    """Return the size of all variables that PTX declares, and whether all of them could be read."""
    total, seen = 0, True
    for declaration in DECLARATION.finditer(COMMENT.sub(b" ", text)):
        found = TYPE.search(declaration[1])
        if found is None:
            continue  # a reference to a texture, which takes nothing
        element = int(found[2]) // 8 * int(found[1] or 1) * (2 if found[3] else 1)
        for name in NAME.finditer(declaration[1], found.end()):
            count = _count_of(name[1])
            seen = seen and count is not None
            total += element * (count or 1)
    return total, seen


def _count_of(bounds: bytes) -> int | None:
    """Return how many elements a variable has; None if a bound is more than a number.

    One without a bound counts as one: its initial values are in the image.
    """
    count = 1
    for bound in re.findall(rb"\[[^\]]*\]", bounds):
        found = BOUND.fullmatch(bound)
        if found is None or len(bound) > BOUND_SIZE_MAX:
            return None
        digits = found["dec"] or b"1"
        octal = len(digits) > 1 and digits.startswith(b"0") and not {*b"89"} & {*digits}
        if found["hex"] or found["bin"]:
            count *= int(found["hex"], 16) if found["hex"] else int(found["bin"], 2)
        else:
            count *= int(digits, 8 if octal else 10)
    return count
