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

from gpupool.remoting.devices.cuda_objects.texture_checks import (
    OF_ARRAY,
    bytes_of,
    check_borders,
    check_channel,
    counted_size,
    inside,
)

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
        check_channel(channel)
        return self._texture.ChannelFormatDescriptor(*channel)

    def array(self, channel: Any, width: int, height: int, depth: int, flags: int) -> Any:
        """Return a CUDA array that the partition has room for."""
        backend = self._backend
        budget, index = backend.budget, backend.devices[backend.current].index
        size, made_of = counted_size(channel, width, height, depth), self._channel(channel)
        if not budget.reserve(index, size):
            raise backend.cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY)
        try:
            made = self._kind(made_of, width, height, depth, flags)
        except BaseException:
            budget.release(index, size)
            raise
        weakref.finalize(made, budget.release, index, size)
        made.copied_bytes = bytes_of(channel, width, height, depth)
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
        size, width, height, pitch = inside(kind, what.nbytes, channel, sizes)
        channels = self._channel(channel)
        given = {"sizeInBytes": size, "width": width, "height": height, "pitchInBytes": pitch}
        return make(kind, arr=what, chDesc=channels, **given)

    def texture(self, kind: int, what: Any, channel: Any, sizes: Any, look: Any) -> Any:
        """Return a texture object, which a kernel takes as an argument."""
        modes, filter_mode, read_mode, srgb, colors, *rest = look
        check_borders(modes, colors)
        make = self._texture.TextureDescriptor
        descriptor = make(modes, filter_mode, read_mode, srgb, colors, *rest)
        return self._texture.TextureObject(self._resource(kind, what, channel, sizes), descriptor)

    def surface(self, kind: int, what: Any, channel: Any, sizes: Any) -> Any:
        """Return a surface object, which a kernel takes as an argument."""
        return self._texture.SurfaceObject(self._resource(kind, what, channel, sizes))
