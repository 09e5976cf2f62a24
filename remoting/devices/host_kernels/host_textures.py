"""CUDA arrays, textures and surfaces on an emulated GPU: memory of the host, and where it lies.

A kernel gets the address of a structure, whose form `include/gpupool_textures.h` has too. Only this
module writes such a structure, and nothing here follows an address that comes from a client.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.cuda_objects.texture_checks import (
    COLORS_MAX,
    LINEAR,
    MODES_MAX,
    OF_ARRAY,
    check_borders,
    check_channel,
    counted_size,
    inside,
)
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDARuntimeError

Array = np.ndarray[Any, Any]

FOR_SURFACES = 2
"""``cudaArraySurfaceLoadStore``: a kernel may write into the CUDA array."""

_SIGNED, _UNSIGNED, _FLOAT = 0, 1, 2  # cudaChannelFormatKind
_WRAP, _CLAMP, _MIRROR, _BORDER = 0, 1, 2, 3  # cudaTextureAddressMode
_NUMBERS = "iuf"
"""NumPy's letters for the kinds of channels."""

# As in gpupool_textures.h.
_TEXTURE, _SURFACE = 0x67707465787475, 0x67707375726661


class _Look(ctypes.Structure):
    """A texture or a surface, as kernels read it."""

    _fields_ = (
        ("mark", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("lengths", ctypes.c_int64 * 3),
        ("steps", ctypes.c_int64 * 3),  # bytes from an element to the next along each axis
        ("bits", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("modes", ctypes.c_int32 * MODES_MAX),
        ("linear", ctypes.c_int32),
        ("as_fraction", ctypes.c_int32),
        ("normalized", ctypes.c_int32),
        ("srgb", ctypes.c_int32),
        ("border", ctypes.c_float * COLORS_MAX),
    )


def _invalid() -> CUDARuntimeError:
    return CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument")


def _format(channel: Any) -> tuple[int, int, int]:
    """Return how many channels an element has, their bits, and the kind of their numbers.

    Raises:
        CUDARuntimeError: CUDA has no elements of this form.
        ValueError: the channels have other bits than CUDA's.
    """
    check_channel(channel)
    bits = [int(each) for each in channel[:4]]
    kind = channel[4]
    count = 4 - bits.count(0)
    if count not in (1, 2, 4) or bits != [bits[0]] * count + [0] * (4 - count):
        raise _invalid()
    if kind not in (_SIGNED, _UNSIGNED, _FLOAT) or (kind == _FLOAT and bits[0] == 8):
        raise _invalid()
    return count, bits[0], int(kind)


class HostArray:
    """A CUDA array: memory of the host without gaps."""

    def __init__(self, channel: Any, lengths: Sequence[int], *, for_surfaces: bool) -> None:
        self.channel = channel
        self.lengths = tuple(lengths)  # along x, y and z, without axes that are 0
        self.for_surfaces = for_surfaces
        count, bits, kind = _format(channel)
        self._dtype = np.dtype(f"{_NUMBERS[kind]}{bits // 8}")
        shape = (*self.lengths[:0:-1], count * self.lengths[0])
        self.memory: Array = np.zeros(shape, self._dtype)

    def check(self, array: Any) -> Array:
        """Return an array that has the shape and the type of a copy.

        Raises:
            TypeError: it is no array of the device.
            ValueError: it has another shape, or elements of another type.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError("a CUDA array is copied from and to an array of the device")
        if array.shape != self.memory.shape:
            raise ValueError(
                f"shape mismatch: {array.shape}, and the CUDA array has {self.memory.shape}"
            )
        if array.dtype != self._dtype:
            raise ValueError(f"dtype mismatch: {array.dtype}, and the CUDA array has {self._dtype}")
        return array


class HostObject:
    """A texture or a surface, as an argument of a kernel; it keeps its array."""

    def __init__(self, look: _Look, of: HostArray | Array) -> None:
        self._look = look
        self._of = of

    def argument(self) -> ctypes.c_uint64:
        """Return the kernel argument, which is good as long as this object lives."""
        return ctypes.c_uint64(ctypes.addressof(self._look))


class HostTexture(HostObject):
    """A texture."""


class HostSurface(HostObject):
    """A surface."""


class HostTextures:
    """The operations that make CUDA arrays, and textures and surfaces of them.

    Their arguments come from a client as they are.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return name to callable."""
        return {
            "cuda.array.create": self.array,
            "cuda.array.copy_from": self.copy_from,
            "cuda.array.copy_to": self.copy_to,
            "cuda.texture.create": self.texture,
            "cuda.surface.create": self.surface,
        }

    def array(self, channel: Any, width: Any, height: Any, depth: Any, flags: Any) -> HostArray:
        """Return a CUDA array that the partition has room for."""
        if not all(type(each) is int for each in (width, height, depth, flags)):
            raise TypeError("lengths and flags of a CUDA array are integers")
        size = counted_size(channel, width, height, depth)
        if depth and not height:
            raise _invalid()
        if flags & ~FOR_SURFACES:
            raise UnsupportedError(
                "an emulated GPU has no layered CUDA arrays, none of cubes and none to gather from"
            )
        _format(channel)
        pool = self._backend.pools[self._backend.current]
        pool.reserve(size)
        lengths = [length for length in (width, height, depth) if length]
        try:
            made = HostArray(tuple(channel), lengths, for_surfaces=bool(flags))
        except BaseException:
            pool.give_back(size)
            raise
        weakref.finalize(made, pool.give_back, size)
        return made

    def copy_from(self, array: Any, source: Any, _stream: Any) -> None:
        """Copy an array of the device into a CUDA array."""
        target = _need_array(array)
        target.memory[...] = target.check(source)

    def copy_to(self, array: Any, target: Any, _stream: Any) -> None:
        """Copy a CUDA array into an array of the device."""
        source = _need_array(array)
        source.check(target)[...] = source.memory

    def texture(self, kind: Any, what: Any, channel: Any, sizes: Any, look: Any) -> HostTexture:
        """Return a texture object, which a kernel takes as an argument."""
        modes, filter_mode, read_mode, srgb, colors, normalized, _anisotropy = look
        check_borders(modes, colors)
        made = _resource(kind, what, channel, sizes)
        if any(each not in (0, 1) for each in (filter_mode, read_mode)):
            raise _invalid()
        if any(each not in (_WRAP, _CLAMP, _MIRROR, _BORDER) for each in modes or ()):
            raise _invalid()
        _check_reading(made, linear=filter_mode == 1, as_fraction=read_mode == 1)
        made.mark = _TEXTURE
        made.linear, made.as_fraction = int(filter_mode), int(read_mode)
        made.normalized, made.srgb = bool(normalized), bool(srgb)
        for axis, mode in enumerate(modes or ()):
            made.modes[axis] = int(mode)
        if not normalized:  # CUDA reads these two as "clamp" then
            made.modes[:] = [_CLAMP if each in (_WRAP, _MIRROR) else each for each in made.modes]
        made.border[:] = [*map(float, colors or ()), *[0.0] * COLORS_MAX][:COLORS_MAX]
        return HostTexture(made, what)

    def surface(self, kind: Any, what: Any, channel: Any, sizes: Any) -> HostSurface:
        """Return a surface object, which a kernel takes as an argument."""
        made = _resource(kind, what, channel, sizes)
        if not isinstance(what, HostArray) or not what.for_surfaces:
            raise _invalid()
        made.mark = _SURFACE
        return HostSurface(made, what)


def _need_array(value: Any) -> HostArray:
    if not isinstance(value, HostArray):
        raise TypeError("not a CUDA array")
    return value


def _check_reading(look: _Look, *, linear: bool, as_fraction: bool) -> None:
    """Raise where CUDA reads no elements of this kind so."""
    if look.kind == _FLOAT:
        return
    if as_fraction and look.bits == 32:
        text = "read as normalized float not supported for 32-bit non float type"
        raise CUDARuntimeError(27, f"cudaErrorInvalidNormSetting: {text}")
    if linear and not as_fraction:
        text = "linear filtering not supported for non-float type"
        raise CUDARuntimeError(26, f"cudaErrorInvalidFilterSetting: {text}")


def _resource(kind: Any, what: Any, channel: Any, sizes: Any) -> _Look:
    """Return the place and the type of a texture's or a surface's elements."""
    if kind == OF_ARRAY:
        found = _need_array(what)
        memory, channel, lengths = found.memory, found.channel, [*found.lengths, 1, 1][:3]
        row = memory.shape[-1] * memory.itemsize
    else:
        if not isinstance(what, np.ndarray) or not what.flags.c_contiguous:
            raise TypeError("a texture of linear memory needs a dense array of the device")
        memory = what
        size, width, height, pitch = inside(kind, what.nbytes, channel, sizes)
        count, bits, _ = _format(channel)
        element = count * bits // 8
        lengths = [size // element, 1, 1] if kind == LINEAR else [width, height, 1]
        row = size if kind == LINEAR else pitch
        if not lengths[0]:
            raise _invalid()
    made = _Look()
    made.channels, made.bits, made.kind = _format(channel)
    made.data = int(memory.__array_interface__["data"][0])
    made.lengths[:] = lengths
    made.steps[:] = [made.channels * made.bits // 8, row, row * lengths[1]]
    return made
