"""Sharing memory and events with the other processes of a lease on this server.

CUDA's own handles stay among the workers: the host keeps them, and a client gets a token of 32
bytes in place of one. What is opened counts for whoever allocated it.
"""

import ctypes
import os
import struct
from typing import Protocol, runtime_checkable

from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver.client import WORDS, Area, Client
from gpupool.remoting.driver.direct import ByValue, Direct
from gpupool.remoting.driver.virtual import VirtualMemory

TOKEN_SIZE, TOKEN_WORDS = 32, 4
HANDLE_SIZE = 64
FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
VALUE = struct.Struct("<cQ64s")
"""What the host keeps: the kind, a size, and CUDA's handle; behind it, the GPU's UUID."""

MEMORY, EVENT, PHYSICAL = b"m", b"e", b"p"
TOKENS_MAX = 4096
OPEN_MAX = 4096


@runtime_checkable
class Sharer(Protocol):
    """A budget whose host also passes handles on between the workers of a lease."""

    def share(self, token: bytes, value: bytes, descriptor: int = -1) -> bool:
        """Let the other workers find a handle; False if there are too many."""
        ...

    def find(self, token: bytes) -> tuple[bytes, int] | None:
        """Return a handle, and its descriptor or -1."""
        ...


class _Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, which are passed by value."""

    _fields_ = [("bytes", ctypes.c_uint8 * HANDLE_SIZE)]


class Ipc(Area):
    """What a client process shares, and what it has opened."""

    def __init__(self, client: Client, direct: Direct, virtual: VirtualMemory) -> None:
        super().__init__(client)
        self._direct = direct
        self._virtual = virtual
        self._sharer = client.budget if isinstance(client.budget, Sharer) else None
        self._tokens: dict[bytes, bytes] = {}  # by what the host keeps
        self._opened: set[int] = set()
        self.posted = {
            table.IPC_CLOSE: (1, self._close),
        }
        self.asked = {
            table.IPC_EXPORT: (2, self._export),
            table.IPC_OPEN: (1 + TOKEN_WORDS, self._open),
            table.IPC_EXPORT_EVENT: (1, self._export_event),
            table.IPC_OPEN_EVENT: (1 + TOKEN_WORDS, self._open_event),
            table.IPC_EXPORT_PHYSICAL: (2, self._export_physical),
            table.IPC_IMPORT_PHYSICAL: (1 + TOKEN_WORDS, self._import_physical),
            table.SETTLE: (0, lambda: b""),
        }

    # --- tokens -----------------------------------------------------------------------------------

    def _share(
        self, kind: bytes, size: int, handle: bytes, device: int, *, file: int = -1
    ) -> bytes:
        """Return the token of a handle, the same one each time for one of CUDA's."""
        value = VALUE.pack(kind, size, handle) + self.client.devices[device].uuid.encode()
        token = self._tokens.get(value) if file < 0 else None
        if token is not None:
            return token
        if self._sharer is None:
            raise CudaError(NOT_SUPPORTED, "cuIpcGetMemHandle")
        token = os.urandom(TOKEN_SIZE)
        if len(self._tokens) >= TOKENS_MAX or not self._sharer.share(token, value, file):
            raise CudaError(OUT_OF_MEMORY, "cuIpcGetMemHandle")
        if file < 0:
            self._tokens[value] = token
        return token

    def _find(self, kind: bytes, words: tuple[int, ...]) -> tuple[int, bytes, int, int]:
        """Return the size, CUDA's handle, the device and the descriptor behind a token."""
        if self._sharer is None:
            raise CudaError(NOT_SUPPORTED, "cuIpcOpenMemHandle")
        found = self._sharer.find(WORDS[TOKEN_WORDS].pack(*words))
        if found is None:
            raise CudaError(INVALID_VALUE, "cuIpcOpenMemHandle")
        value, file = found
        has, size, handle = VALUE.unpack_from(value)
        uuid = value[VALUE.size :].decode()
        devices = [device.index for device in self.client.devices if device.uuid == uuid]
        if has != kind or not devices:
            if file >= 0:
                os.close(file)
            raise CudaError(INVALID_VALUE, "cuIpcOpenMemHandle")
        return size, handle, devices[0], file

    # --- allocations ------------------------------------------------------------------------------

    def _export(self, address: int, size: int) -> bytes:
        device, _cost = self.client.allocations[address]
        handle = ctypes.create_string_buffer(HANDLE_SIZE)
        self._direct.call("cuIpcGetMemHandle", handle, address)
        return self._share(MEMORY, size, handle.raw, device)

    def _open(self, flags: int, *token: int) -> bytes:
        size, raw, _device, _file = self._find(MEMORY, token)
        if len(self._opened) >= OPEN_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuIpcOpenMemHandle")
        handle = _Handle.from_buffer_copy(raw)
        address = self._direct.get("cuIpcOpenMemHandle_v2", ByValue(handle), flags)
        self._opened.add(address)
        return WORDS[2].pack(address, size)

    def _close(self, address: int) -> None:
        """Close what was opened, on a thread of its own: CUDA waits for the GPU before it does."""
        self._opened.remove(address)
        freeing = self.waiter.freeing
        freeing.begin()

        def run() -> None:
            try:
                self._direct.call("cuIpcCloseMemHandle", address)
            except CudaError as error:
                self.client.fail(table.IPC_CLOSE, error.status)
            finally:
                freeing.end()

        self.waiter.start(self.client.device, run)

    # --- events -----------------------------------------------------------------------------------

    def _export_event(self, number: int) -> bytes:
        handle = ctypes.create_string_buffer(HANDLE_SIZE)
        self._direct.call("cuIpcGetEventHandle", handle, self.objects["e"][number])
        return self._share(EVENT, 0, handle.raw, self.client.device)

    def _open_event(self, number: int, *token: int) -> bytes:
        _size, raw, _device, _file = self._find(EVENT, token)
        handle = _Handle.from_buffer_copy(raw)
        self.client.keep("e", number, self._direct.get("cuIpcOpenEventHandle", ByValue(handle)))
        return b""

    # --- physical memory --------------------------------------------------------------------------

    def _export_physical(self, number: int, size: int) -> bytes:
        handle, device = self._virtual.handle(number)
        file = ctypes.c_int(-1)
        self._direct.call("cuMemExportToShareableHandle", file, handle, FILE_DESCRIPTOR, 0)
        try:
            return self._share(PHYSICAL, size, bytes(HANDLE_SIZE), device, file=file.value)
        finally:
            os.close(file.value)

    def _import_physical(self, number: int, *token: int) -> bytes:
        size, _raw, device, file = self._find(PHYSICAL, token)
        try:
            handle = self._direct.get("cuMemImportFromShareableHandle", file, FILE_DESCRIPTOR)
        finally:
            os.close(file)
        self._virtual.adopt(number, handle, device)
        return WORDS[2].pack(size, device)
