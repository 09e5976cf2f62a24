"""Textures and surfaces: arrays that a kernel reads or writes by coordinates.

CUDA arrays and what is made of them live in the worker. Descriptors are values of this program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cupy._door import pool
from cupy._door.calls import Remote, remote_object, remote_of
from cupy.cuda import runtime


@dataclasses.dataclass(eq=False)
class ChannelFormatDescriptor:
    """The bits of the four channels of an element, and the kind of their numbers."""

    x: int
    y: int
    z: int
    w: int
    f: int


class CUDAarray(Remote):
    """An array in the form that textures read fastest, of one to three axes."""

    __slots__ = ("depth", "desc", "flags", "height", "ndim", "width")

    def __new__(
        cls,
        desc: ChannelFormatDescriptor,
        width: int,
        height: int = 0,
        depth: int = 0,
        flags: int = 0,
    ) -> Any:
        """Make one on the current device."""
        if width == 0:
            raise ValueError("To create a CUDA array, width must be nonzero.")
        if height == 0 and depth > 0:
            raise ValueError("To create a 2D CUDA array, height must be nonzero.")
        args = (dataclasses.astuple(desc), width, height, depth, flags)
        made = remote_object(cls, pool.current(), "cuda.array.create", args)
        made.desc, made.width, made.height, made.depth = desc, width, height, depth
        made.flags = flags
        made.ndim = 3 if depth > 0 else 2 if height > 0 else 1
        return made

    def _copy(self, operation: str, array: object, stream: object) -> None:
        self._gp_session.ask(operation, (self, array, remote_of(stream)))

    def copy_from(self, in_arr: object, stream: object = None) -> None:
        """Copy an array of the GPU or of NumPy into this one.

        Args:
            in_arr: of the shape (depth, height, channels * width), without axes that are 0.
            stream: in which an array of the GPU is copied; the current one by default.
        """
        from cupy._core import host_arrays  # which imports this package

        self._copy("cuda.array.copy_from", host_arrays.ascontiguousarray(in_arr), stream)

    def copy_to(self, out_arr: Any, stream: Any = None) -> None:
        """Copy this one into an array of the GPU or of NumPy, which must be C-contiguous."""
        if not out_arr.flags.c_contiguous:
            raise ValueError("The output array must be C-contiguous")
        if isinstance(out_arr, Remote):
            self._copy("cuda.array.copy_to", out_arr, stream)
            return
        from cupy._core import creation  # which imports this package

        between = creation.empty(out_arr.shape, out_arr.dtype)
        self._copy("cuda.array.copy_to", between, stream)
        if stream is not None:
            stream.synchronize()
        out_arr[...] = between.get()


@dataclasses.dataclass(eq=False)
class ResourceDescriptor:
    """Memory of a texture or a surface: a CUDA array, or an array of the GPU."""

    restype: int
    cuArr: CUDAarray | None = None
    arr: Any = None
    chDesc: ChannelFormatDescriptor | None = None
    sizeInBytes: int = 0
    width: int = 0
    height: int = 0
    pitchInBytes: int = 0

    def __post_init__(self) -> None:
        if self.restype == runtime.cudaResourceTypeMipmappedArray:
            raise NotImplementedError("cudaResourceTypeMipmappedArray is not supported, as in CuPy")

    def packed(self) -> tuple[Any, ...]:
        """Return the arguments of the worker's operations."""
        what = self.cuArr if self.restype == runtime.cudaResourceTypeArray else self.arr
        if not isinstance(what, Remote):
            raise ValueError("a texture is of a CUDAarray or of an array of the GPU")
        channel = None if self.chDesc is None else dataclasses.astuple(self.chDesc)
        sizes = (self.sizeInBytes, self.width, self.height, self.pitchInBytes)
        return (self.restype, what, channel, sizes)


@dataclasses.dataclass(eq=False)
class TextureDescriptor:
    """Modes of texture reads: beyond borders, between elements, and number format."""

    addressModes: Any = None
    filterMode: int = 0
    readMode: int = 0
    sRGB: Any = None
    borderColors: Any = None
    normalizedCoords: Any = None
    maxAnisotropy: Any = None


class TextureObject(Remote):
    """A texture, as an argument of a kernel."""

    __slots__ = ("ResDesc", "TexDesc")

    def __new__(cls, ResDesc: ResourceDescriptor, TexDesc: TextureDescriptor) -> Any:
        """Make one where its array is."""
        packed = ResDesc.packed()
        args = (*packed, dataclasses.astuple(TexDesc))
        made = remote_object(cls, packed[1]._gp_session, "cuda.texture.create", args)
        made.ResDesc, made.TexDesc = ResDesc, TexDesc
        return made


class SurfaceObject(Remote):
    """A surface, which a kernel can write, as an argument of it."""

    __slots__ = ("ResDesc",)

    def __new__(cls, ResDesc: ResourceDescriptor) -> Any:
        """Make one where its array is."""
        packed = ResDesc.packed()
        made = remote_object(cls, packed[1]._gp_session, "cuda.surface.create", packed)
        made.ResDesc = ResDesc
        return made
