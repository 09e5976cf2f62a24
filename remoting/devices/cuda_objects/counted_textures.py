"""Textures and surfaces of real GPUs, which kernels read and write by coordinates.

CUDA arrays do not come from CuPy's memory pool, so each is counted against the partition here.
What a texture reads must lie in the array that it is made from.
"""

import importlib
import weakref
from collections.abc import Callable
from typing import Any

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
OF_ARRAY, LINEAR, PITCHED = 0, 2, 3
"""``cudaResourceType`` of CUDA's driver_types.h, without mipmapped arrays."""

_CHANNEL_BITS = (0, 8, 16, 32)
_MODES_MAX, _COLORS_MAX = 3, 4
"""Address modes and colours of the border that CUDA's structure has room for."""

GRANULE = 64 << 10
"""Bytes to which a CUDA array's size is rounded up before it is counted."""

_LENGTH_MAX = 1 << 20
"""Elements along one axis; CUDA's own limits are lower, but for textures of linear memory."""


def _element_size(channel: Any) -> float:
    """Return the bytes of an element; ValueError for channels of other bits than CUDA's."""
    *bits, _kind = channel
    if len(bits) != 4 or any(each not in _CHANNEL_BITS for each in bits):
        raise ValueError(f"channels of {bits} bits: there are four, and each has 0, 8, 16 or 32")
    return sum(bits) / 8


def _inside(kind: int, nbytes: int, channel: Any, sizes: Any) -> dict[str, int]:
    """Return the sizes of a texture of linear memory as CuPy takes them.

    Args:
        kind: of the resource.
        nbytes: of the array that it is made from.
        channel: the bits of an element's channels, and the kind of their numbers.
        sizes: bytes, width, height and pitch, as a client gave them.

    Raises:
        ValueError: it would reach outside its array, or there is no texture of this kind.
    """
    size, width, height, pitch = map(int, sizes)
    row = width * _element_size(channel)
    if kind == LINEAR:
        fits = 0 < size <= nbytes
    elif kind == PITCHED:
        fits = width > 0 and height > 0 and row <= pitch
        fits = fits and pitch * (height - 1) + row <= nbytes
    else:
        raise ValueError(f"no texture of resources of the kind {kind}")
    if not fits:
        raise ValueError("the texture would reach outside its array")
    return {"sizeInBytes": size, "width": width, "height": height, "pitchInBytes": pitch}


class CudaTextures:
    """The operations that make CUDA arrays, and textures and surfaces of them.

    Their arguments come from a client as they are.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._texture: Any = importlib.import_module("cupy.cuda.texture")
        self._kind: Any = type("CountedArray", (self._texture.CUDAarray,), {})  # for `finalize`

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return name to callable."""
        return {
            "cuda.array.create": self.array,
            "cuda.array.copy_from": self.copy_from,
            "cuda.array.copy_to": self.copy_to,
            "cuda.texture.create": self.texture,
            "cuda.surface.create": self.texture,
        }

    def array(self, channel: Any, width: int, height: int, depth: int, flags: int) -> Any:
        """Return a CUDA array that the partition has room for."""
        if not 0 < width <= _LENGTH_MAX or not (0 <= height <= _LENGTH_MAX >= depth >= 0):
            raise ValueError(f"a CUDA array of {width} x {height} x {depth} elements")
        backend = self._backend
        budget, index = backend.budget, backend.devices[backend.current].index
        copied = int(width * max(1, height) * max(1, depth) * _element_size(channel))
        counted = -(-copied // GRANULE) * GRANULE
        described = self._texture.ChannelFormatDescriptor(*channel)
        if not budget.reserve(index, counted):
            raise backend.cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY)
        try:
            made = self._kind(described, width, height, depth, flags)
        except BaseException:
            budget.release(index, counted)
            raise
        weakref.finalize(made, budget.release, index, counted)
        made.copied_bytes = copied
        return made

    def _need_array(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise TypeError("not a CUDA array")
        return value

    def _need_bytes(self, value: Any, other: Any) -> Any:
        """Return a CUDA array; raise unless the other has as many bytes, which CuPy copies."""
        array = self._need_array(value)
        if not isinstance(other, self._backend.cupy.ndarray):
            raise TypeError("a CUDA array is copied from and to an array of the device")
        if other.nbytes != array.copied_bytes:
            raise ValueError(
                f"an array of {other.nbytes} bytes, and the CUDA array has {array.copied_bytes}"
            )
        return array

    def copy_from(self, array: Any, source: Any, stream: Any) -> None:
        """Copy an array of the device into a CUDA array."""
        self._need_bytes(array, source).copy_from(source, stream)

    def copy_to(self, array: Any, target: Any, stream: Any) -> None:
        """Copy a CUDA array into an array of the device."""
        self._need_bytes(array, target).copy_to(target, stream)

    def _resource(self, kind: int, what: Any, channel: Any, sizes: Any) -> Any:
        make = self._texture.ResourceDescriptor
        if kind == OF_ARRAY:
            return make(kind, cuArr=self._need_array(what))
        if not isinstance(what, self._backend.cupy.ndarray) or not what.flags.c_contiguous:
            raise TypeError("a texture of linear memory needs a dense array of the device")
        given = _inside(kind, what.nbytes, channel, sizes)
        return make(kind, arr=what, chDesc=self._texture.ChannelFormatDescriptor(*channel), **given)

    def texture(self, kind: int, what: Any, channel: Any, sizes: Any, look: Any = None) -> Any:
        """Return a texture, or without ``look`` a surface, which a kernel takes as an argument.

        Raises:
            ValueError: it would reach outside its array, or CUDA's structure lacks room for it.
        """
        resource = self._resource(kind, what, channel, sizes)
        if look is None:
            return self._texture.SurfaceObject(resource)
        modes, _filter, _read, _srgb, colors, *_rest = look
        if len(modes or ()) > _MODES_MAX or len(colors or ()) > _COLORS_MAX:
            raise ValueError("a texture has at most 3 address modes and 4 colours of its border")
        return self._texture.TextureObject(resource, self._texture.TextureDescriptor(*look))
