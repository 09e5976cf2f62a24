"""Checks of CUDA arrays, textures and surfaces, on real GPUs and on emulated ones.

Arguments come from a client as they are. What a texture reads must lie in the array that it is
made from.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

OF_ARRAY, LINEAR, PITCHED = 0, 2, 3
"""``cudaResourceType`` of CUDA's driver_types.h, without mipmapped arrays."""

CHANNEL_BITS = (0, 8, 16, 32)
MODES_MAX, COLORS_MAX = 3, 4
"""Address modes and colours of the border that CUDA's structure has room for."""

GRANULE = 64 << 10
"""Bytes to which a CUDA array's size is rounded up before it is counted."""

LENGTH_MAX = 1 << 20
"""Elements along one axis; CUDA's own limits are lower, but for textures of linear memory."""


def check_channel(channel: Any) -> None:
    """Raise if a description of channels has other bits than CUDA's.

    Raises:
        ValueError: it has other bits, or is no description of channels.
    """
    x, y, z, w, _kind = channel
    if any(bits not in CHANNEL_BITS for bits in (x, y, z, w)):
        raise ValueError(f"channels of {[x, y, z, w]} bits: each has 0, 8, 16 or 32")


def bytes_of(channel: Any, width: int, height: int, depth: int) -> int:
    """Return the bytes of the elements of a CUDA array."""
    return width * max(1, height) * max(1, depth) * sum(channel[:4]) // 8


def counted_size(channel: Any, width: int, height: int, depth: int) -> int:
    """Return the bytes that a CUDA array counts for.

    Raises:
        ValueError: CUDA has no array of these lengths or channels.
    """
    if not 0 < width <= LENGTH_MAX or not (0 <= height <= LENGTH_MAX >= depth >= 0):
        raise ValueError(f"a CUDA array of {width} x {height} x {depth} elements")
    check_channel(channel)
    return -(-bytes_of(channel, width, height, depth) // GRANULE) * GRANULE


def inside(kind: int, nbytes: int, channel: Any, sizes: Any) -> tuple[int, int, int, int]:
    """Return the sizes of a texture of linear memory: its bytes, width, height and pitch.

    Args:
        kind: of the resource.
        nbytes: of the array that it is made from.
        channel: the bits of an element's channels, and the kind of their numbers.
        sizes: as a client gave them.

    Raises:
        ValueError: it would reach outside its array, or there is no texture of this kind.
    """
    size, width, height, pitch = (int(each) for each in sizes)
    if kind == LINEAR:
        fits = 0 < size <= nbytes
    elif kind == PITCHED:
        row = width * sum(channel[:4]) // 8
        fits = width > 0 and height > 0 and row <= pitch
        fits = fits and pitch * (height - 1) + row <= nbytes
    else:
        raise ValueError(f"no texture of resources of the kind {kind}")
    if not fits:
        raise ValueError("the texture would reach outside its array")
    check_channel(channel)
    return size, width, height, pitch


def check_borders(modes: Any, colors: Any) -> None:
    """Raise if there are more address modes or colours than CUDA has room for.

    Raises:
        ValueError: there are more.
    """
    if len(modes or ()) > MODES_MAX or len(colors or ()) > COLORS_MAX:
        raise ValueError("a texture has at most 3 address modes and 4 colours of its border")
