"""Libraries and modules: loading, linking, kernels and variables."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, NOT_FOUND, CudaError
from gpupool.remoting.driver_api.executor.client_state import (
    OBJECTS_MAX,
    WORDS,
    Client,
    HandlerGroup,
)
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.memory.memory import Memory
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.modules.kernels import Kernels
from gpupool.remoting.driver_api.executor.modules.linker import Linker, Options
from gpupool.remoting.driver_api.executor.modules.module_variables import Variables

IMAGE_SIZE_MAX = 1 << 30
IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED


class Modules(HandlerGroup):
    """The libraries and modules of a client process, and its links."""

    def __init__(
        self, client: Client, direct: Direct, kernels: Kernels, memory: Memory, images: Images
    ) -> None:
        super().__init__(client)
        self.images = images
        self.direct = direct
        self.kernels = kernels
        self.variables = Variables(client, memory)
        self.linker = Linker(direct)
        self.modules: dict[int, tuple[int, bool]] = {}
        self.unloaded: list[Callable[[int], None]] = []  # called with the number of a module
        self.methods = {
            "UNLOAD_LIBRARY": self._unload,
            "UNLOAD_MODULE": self._unload,
            "LINK_DESTROY": self.linker.destroy,
            "LOAD_LIBRARY": self._load_library,
            "LOAD_MODULE": self._load_module,
            "LOAD_KNOWN": self._load_known,
            "LOAD_COMPILED": self._load_compiled,
            "LIBRARY_MODULE": self._library_module,
            "FIND_KERNEL": self._find_kernel,
            "FIND_FUNCTION": self._find_function,
            "FIND_GLOBAL": self._find_global,
            "FIND_MANAGED": self._find_managed,
            "ENUMERATE": self._enumerate,
            "LINK_CREATE": self._link_create,
            "LINK_ADD": self._link_add,
            "LINK_COMPLETE": self.linker.complete,
            "LINK_SAID": self.linker.said,
        }

    def _image(self, size: int) -> bytearray:
        if size != self.client.record.bulk or size > IMAGE_SIZE_MAX:
            raise RemoteProtocolError("malformed image")
        image = bytearray(size + 1)  # PTX needs a zero behind it
        self.session.reader.into(memoryview(image)[:size])
        self.client.record.bulk = 0
        return image

    def _load_library(self, number: int, size: int) -> bytes:
        image = self._image(size)
        self._load(number, image, library=True)
        self.images.keep(image)
        return b""

    def _load_module(self, number: int, size: int) -> bytes:
        image = self._image(size)
        self._load(number, image, library=False)
        self.images.keep(image)
        return b""

    def _load_known(self, number: int, library: int, size: int, *digest: int) -> bytes:
        image = self.images.load(WORDS[4].pack(*digest), size)
        if image is None:
            raise CudaError(NOT_FOUND, "cuModuleLoadData")
        self._load(number, image, library=bool(library))
        return b""

    def _load_compiled(self, number: int, library: int, size: int, *given: int) -> bytes | None:
        """Load PTX with options of the compiler; the reply has its logs, also after a failure."""
        image, options, made = self._image(size), Options(given), ctypes.c_uint64(0)
        data = ctypes.c_char.from_buffer(image)
        wishes = (options.names, options.values, options.count)
        try:
            with self.variables.charged(number, image):
                if library:
                    self.direct.call("cuLibraryLoadData", made, data, *wishes, None, None, 0)
                else:
                    order = (options.count, options.names, options.values)
                    self.direct.call("cuModuleLoadDataEx", made, data, *order)
                self._keep_module(number, made.value, library=bool(library))
        except CudaError as error:
            self.session.reply(self.client.record.request, error.status, options.said())
            return None
        return options.said()

    def _load(self, number: int, image: bytearray, *, library: bool) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(image))
        with self.variables.charged(number, image):
            if library:
                made = self.api.call("cuLibraryLoadData", address, [], [], 0, [], [], 0)
            else:
                made = self.api.call("cuModuleLoadData", address)
            self._keep_module(number, int(made), library=library)

    def _link_create(self, number: int, *given: int) -> bytes:
        self.linker.create(number, *given)
        return b""

    def _link_add(self, number: int, kind: int, size: int, name: bytes) -> bytes:
        self.linker.add(number, kind, self._image(size), size, name)
        return b""

    def _keep_module(self, number: int, handle: int, *, library: bool) -> None:
        if number in self.modules or len(self.modules) >= OBJECTS_MAX:
            raise RemoteProtocolError("a module that cannot be made")
        self.modules[number] = (handle, library)

    def _unload(self, number: int) -> None:
        handle, library = self.modules.pop(number)
        for ended in self.unloaded:
            ended(number)
        self.api.call("cuLibraryUnload" if library else "cuModuleUnload", handle)
        self.variables.release(number)

    def _library_module(self, library: int, number: int) -> bytes:
        module = self.api.call("cuLibraryGetModule", self.modules[library][0])
        self._keep_module(number, int(module), library=False)
        return b""

    def _find_kernel(self, library: int, number: int, name: bytes) -> bytes:
        handle = int(self.api.call("cuLibraryGetKernel", self.modules[library][0], name))
        return self.kernels.keep(number, handle, kernel=True)

    def _find_function(self, module: int, number: int, name: bytes) -> bytes:
        handle = int(self.api.call("cuModuleGetFunction", self.modules[module][0], name))
        return self.kernels.keep(number, handle, kernel=False)

    def _find_global(self, number: int, wanted: bytes) -> bytes:
        handle, library = self.modules[number]
        name = "cuLibraryGetGlobal" if library else "cuModuleGetGlobal"
        address, size = self.api.call(name, handle, wanted)
        self.variables.found(number, wanted, int(size))
        return self._described(int(address), int(size))

    def _find_managed(self, number: int, name: bytes) -> bytes:
        handle, library = self.modules[number]
        if not library:
            raise CudaError(INVALID_HANDLE, "cuLibraryGetManaged")
        address, size = ctypes.c_uint64(0), ctypes.c_uint64(0)
        self.direct.call("cuLibraryGetManaged", address, size, handle, name)
        return self._described(address.value, size.value)

    def _described(self, address: int, size: int) -> bytes:
        """Return where a variable lies, and in which managed memory, or twice 0."""
        managed = ctypes.c_int(0)
        self.direct.call("cuPointerGetAttribute", managed, IS_MANAGED, address)
        base, whole = ctypes.c_uint64(0), ctypes.c_uint64(0)
        if managed.value:
            self.direct.call("cuMemGetAddressRange_v2", base, whole, address)
        return WORDS[4].pack(address, size, base.value, whole.value)

    def _enumerate(self, number: int) -> bytes:
        handle, library = self.modules[number]
        kind, ask = ("Library", "Kernel") if library else ("Module", "Func")
        what = "Kernel" if library else "Function"
        count = int(self.api.call(f"cu{kind}Get{what}Count", handle))
        found: list[Any] = (
            self.api.call(f"cu{kind}Enumerate{what}s", count, handle) if count else []
        )
        names = [self.api.call(f"cu{ask}GetName", one) for one in found]
        return struct.pack("<II", len(names), 0) + b"".join(name + b"\0" for name in names)
