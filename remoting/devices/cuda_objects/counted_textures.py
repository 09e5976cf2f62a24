"""Textures and surfaces of real GPUs, which kernels read and write by coordinates.

CUDA arrays do not come from CuPy's memory pool, so each is counted against the partition here.
What a texture reads must lie in the array that it is made from.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import weakref
from collections.abc import Callable
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

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


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
            "cuda.surface.create": self.surface,
        }

    def _channel(self, channel: Any) -> Any:
        x, y, z, w, kind = channel
        if any(bits not in CHANNEL_BITS for bits in (x, y, z, w)):
            raise ValueError(f"channels of {[x, y, z, w]} bits: each has 0, 8, 16 or 32")
        return self._texture.ChannelFormatDescriptor(x, y, z, w, kind)

    def array(self, channel: Any, width: int, height: int, depth: int, flags: int) -> Any:
        """Return a CUDA array that the partition has room for."""
        if not 0 < width <= LENGTH_MAX or not (0 <= height <= LENGTH_MAX >= depth >= 0):
            raise ValueError(f"a CUDA array of {width} x {height} x {depth} elements")
        backend = self._backend
        budget, index = backend.budget, backend.devices[backend.current].index
        made_of = self._channel(channel)
        size = width * max(1, height) * max(1, depth) * sum(channel[:4]) // 8
        size = -(-size // GRANULE) * GRANULE
        if not budget.reserve(index, size):
            raise backend.cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY)
        try:
            made = self._kind(made_of, width, height, depth, flags)
        except BaseException:
            budget.release(index, size)
            raise
        weakref.finalize(made, budget.release, index, size)
        return made

    def _need_array(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise TypeError("not a CUDA array")
        return value

    def copy_from(self, array: Any, source: Any, stream: Any) -> None:
        """Copy an array of the device into a CUDA array."""
        self._need_array(array).copy_from(source, stream)

    def copy_to(self, array: Any, target: Any, stream: Any) -> None:
        """Copy a CUDA array into an array of the device."""
        self._need_array(array).copy_to(target, stream)

    def _resource(self, kind: int, what: Any, channel: Any, sizes: Any) -> Any:
        make = self._texture.ResourceDescriptor
        if kind == OF_ARRAY:
            return make(kind, cuArr=self._need_array(what))
        size, width, height, pitch = (int(each) for each in sizes)
        if not isinstance(what, self._backend.cupy.ndarray) or not what.flags.c_contiguous:
            raise TypeError("a texture of linear memory needs a dense array of the device")
        if kind == LINEAR:
            inside = 0 < size <= what.nbytes
        elif kind == PITCHED:
            row = width * sum(channel[:4]) // 8
            inside = width > 0 and height > 0 and row <= pitch
            inside = inside and pitch * (height - 1) + row <= what.nbytes
        else:
            raise ValueError(f"no texture of resources of the kind {kind}")
        if not inside:
            raise ValueError("the texture would reach outside its array")
        channels = self._channel(channel)
        given = {"sizeInBytes": size, "width": width, "height": height, "pitchInBytes": pitch}
        return make(kind, arr=what, chDesc=channels, **given)

    def texture(self, kind: int, what: Any, channel: Any, sizes: Any, look: Any) -> Any:
        """Return a texture object, which a kernel takes as an argument."""
        modes, filter_mode, read_mode, srgb, colors, *rest = look
        if len(modes or ()) > MODES_MAX or len(colors or ()) > COLORS_MAX:
            raise ValueError("a texture has at most 3 address modes and 4 colours of its border")
        make = self._texture.TextureDescriptor
        descriptor = make(modes, filter_mode, read_mode, srgb, colors, *rest)
        return self._texture.TextureObject(self._resource(kind, what, channel, sizes), descriptor)

    def surface(self, kind: int, what: Any, channel: Any, sizes: Any) -> Any:
        """Return a surface object, which a kernel takes as an argument."""
        return self._texture.SurfaceObject(self._resource(kind, what, channel, sizes))
