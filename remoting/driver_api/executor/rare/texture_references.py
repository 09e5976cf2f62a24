"""Texture and surface references, the predecessors of texture and surface objects."""

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, CudaError
from gpupool.remoting.driver_api.executor.client_state import (
    OBJECTS_MAX,
    WORDS,
    Client,
    HandlerGroup,
)
from gpupool.remoting.driver_api.executor.direct import ByValue, Direct
from gpupool.remoting.driver_api.executor.memory.cuda_arrays import Arrays
from gpupool.remoting.driver_api.executor.modules.modules import Modules

TO_ARRAY, TO_MIPMAP, TO_LINEAR, TO_PITCHED, TO_SURFACE = range(5)
DESCRIPTOR = struct.Struct("<QQII")
"""CUDA_ARRAY_DESCRIPTOR."""

NAMES = (
    *("Format", "FilterMode", "MipmapFilterMode", "MipmapLevelBias", "MipmapLevelClamp"),
    *("MaxAnisotropy", "BorderColor", "Flags"),
)
"""Texture reference properties by number; the address modes of each dimension follow."""

OF_TWO = {"Format", "MipmapLevelClamp"}
OF_FLOATS = {"MipmapLevelBias", "MipmapLevelClamp"}
DIMENSIONS = 3


@dataclass(slots=True)
class Reference:
    """A reference, and the client's number of the module that has it; 0: none has."""

    handle: int
    module: int


class References(HandlerGroup):
    """The texture and surface references of a client process."""

    def __init__(self, client: Client, direct: Direct, modules: Modules, arrays: Arrays) -> None:
        super().__init__(client)
        self._direct = direct
        self._modules = modules
        self._arrays = arrays
        self._references: dict[int, Reference] = {}
        modules.unloaded.append(self._end)
        self.methods = {
            "REFERENCE_BIND": self._bind,
            "REFERENCE_DESTROY": self._destroy,
            "REFERENCE_FIND": self._find,
            "REFERENCE_CREATE": self._create,
            "REFERENCE_PLACE": self._place,
            "REFERENCE_SET": self._set,
            "REFERENCE_GET": self._get,
        }

    def _keep(self, number: int, handle: int, module: int) -> bytes:
        if number in self._references or len(self._references) >= OBJECTS_MAX:
            raise RemoteProtocolError("a reference that cannot be made")
        self._references[number] = Reference(handle, module)
        return b""

    def _find(self, module: int, number: int, surface: int, name: bytes) -> bytes:
        symbol = "cuModuleGetSurfRef" if surface else "cuModuleGetTexRef"
        owner = self._modules.modules[module][0]
        handle = self._direct.get(symbol, owner, name)
        return self._keep(number, handle, module)

    def _create(self, number: int) -> bytes:
        return self._keep(number, self._direct.get("cuTexRefCreate"), 0)

    def _destroy(self, number: int) -> None:
        if self._references[number].module:
            raise CudaError(INVALID_VALUE, "cuTexRefDestroy")
        self._direct.call("cuTexRefDestroy", self._references.pop(number).handle)

    def _end(self, module: int) -> None:
        """Forget the references of a module that is no more."""
        gone = [number for number, one in self._references.items() if one.module == module]
        for number in gone:
            del self._references[number]

    # --- what is bound ----------------------------------------------------------------------------

    def _bind(self, number: int, to: int, target: int, *more: int) -> None:
        self._place(number, to, target, *more)

    def _place(self, number: int, to: int, target: int, *more: int) -> bytes:
        """Bind, and return at which offset from its start a kernel finds linear memory."""
        reference, direct = self._references[number].handle, self._direct
        offset = ctypes.c_uint64(0)
        if to == TO_ARRAY:
            direct.call("cuTexRefSetArray", reference, self._arrays.handle(target), more[0])
        elif to == TO_SURFACE:
            direct.call("cuSurfRefSetArray", reference, self._arrays.handle(target), more[0])
        elif to == TO_MIPMAP:
            mipmap = self._arrays.mipmap(target)
            direct.call("cuTexRefSetMipmappedArray", reference, mipmap, more[0])
        elif to == TO_LINEAR:
            direct.call("cuTexRefSetAddress_v2", offset, reference, target, more[0])
        elif to == TO_PITCHED:
            pitch, width, height, kind, channels = more
            described = DESCRIPTOR.pack(width, height, kind, channels)
            direct.call("cuTexRefSetAddress2D_v3", reference, described, target, pitch)
        else:
            raise RemoteProtocolError("malformed binding")
        return WORDS[1].pack(offset.value)

    # --- how it is read ---------------------------------------------------------------------------

    def _setting(self, what: int) -> tuple[str, tuple[int, ...]]:
        """Return the name of a setting, and its dimension if it has one."""
        if what < len(NAMES):
            return NAMES[what], ()
        dimension = what - len(NAMES)
        if dimension >= DIMENSIONS:
            raise RemoteProtocolError("no such setting of a reference")
        return "AddressMode", (dimension,)

    def _set(self, number: int, what: int, *words: int) -> bytes:
        reference = self._references[number].handle
        name, dimension = self._setting(what)
        values: list[Any] = list(words[: 2 if name in OF_TWO else 1])
        if name == "BorderColor":
            values = [WORDS[2].pack(*words)]
        elif name in OF_FLOATS:
            values = [ByValue(ctypes.c_float(_float_of(word))) for word in values]
        self._direct.call(f"cuTexRefSet{name}", reference, *dimension, *values)
        return b""

    def _get(self, number: int, what: int) -> bytes:
        reference = self._references[number].handle
        name, dimension = self._setting(what)
        found = [(ctypes.c_uint64 * 2)() for _ in range(2 if name in OF_TWO else 1)]
        self._direct.call(f"cuTexRefGet{name}", *found, reference, *dimension)
        return bytes(found[0]) if len(found) == 1 else WORDS[2].pack(found[0][0], found[1][0])


def _float_of(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFFF))[0]
