"""Sharing memory and events with the other processes of a lease on this server.

CUDA's own handles stay among the workers: the host keeps them, and a client gets a token of 32
bytes in place of one. What is opened counts for whoever allocated it.
"""

import ctypes
import os

from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver.client import WORDS, Area, Client
from gpupool.remoting.driver.direct import ByValue, Direct
from gpupool.remoting.driver.tokens import FILE_DESCRIPTOR, HANDLE_SIZE, TOKEN_WORDS, Tokens
from gpupool.remoting.driver.virtual import VirtualMemory

MEMORY, EVENT, PHYSICAL = b"m", b"e", b"p"
OPEN_MAX = 4096


class _Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, which are passed by value."""

    _fields_ = [("bytes", ctypes.c_uint8 * HANDLE_SIZE)]


class Ipc(Area):
    """What a client process shares, and what it has opened."""

    def __init__(
        self, client: Client, direct: Direct, tokens: Tokens, virtual: VirtualMemory
    ) -> None:
        super().__init__(client)
        self._direct = direct
        self._virtual = virtual
        self._tokens = tokens
        self._events: dict[bytes, bytes] = {}  # tokens by CUDA's handles
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

    # --- allocations ------------------------------------------------------------------------------

    def _export(self, address: int, size: int) -> bytes:
        device, _cost = self.client.allocations[address]
        handle = ctypes.create_string_buffer(HANDLE_SIZE)
        self._direct.call("cuIpcGetMemHandle", handle, address)
        return self._tokens.share_allocation(MEMORY, address, size, handle.raw, device)

    def _open(self, flags: int, *token: int) -> bytes:
        found = self._tokens.find(MEMORY, token)
        if len(self._opened) >= OPEN_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuIpcOpenMemHandle")
        handle = _Handle.from_buffer_copy(found.handle)
        address = self._direct.get("cuIpcOpenMemHandle_v2", ByValue(handle), flags)
        self._opened.add(address)
        return WORDS[2].pack(address, found.size)

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
        known = self._events.get(handle.raw)
        if known is None:
            known = self._tokens.share(EVENT, 0, handle.raw, self.client.device)
            self._events[handle.raw] = known
        return known

    def _open_event(self, number: int, *token: int) -> bytes:
        handle = _Handle.from_buffer_copy(self._tokens.find(EVENT, token).handle)
        self.client.keep("e", number, self._direct.get("cuIpcOpenEventHandle", ByValue(handle)))
        return b""

    # --- physical memory --------------------------------------------------------------------------

    def _export_physical(self, number: int, size: int) -> bytes:
        physical = self._virtual.find(number)
        if not physical.token:
            name, file = "cuMemExportToShareableHandle", ctypes.c_int(-1)
            self._direct.call(name, file, physical.handle, FILE_DESCRIPTOR, 0)
            try:
                empty, device = bytes(HANDLE_SIZE), physical.device
                physical.token = self._tokens.share(PHYSICAL, size, empty, device, file=file.value)
            finally:
                os.close(file.value)
        return physical.token

    def _import_physical(self, number: int, *token: int) -> bytes:
        found = self._tokens.find(PHYSICAL, token)
        try:
            handle = self._direct.get("cuMemImportFromShareableHandle", found.file, FILE_DESCRIPTOR)
        finally:
            os.close(found.file)
        self._virtual.adopt(number, handle, found.device)
        return WORDS[2].pack(found.size, found.device)
