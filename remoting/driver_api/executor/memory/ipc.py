"""Sharing memory and events with the other processes of a lease on this server.

CUDA's own handles stay among the workers: the host keeps them, and a client gets a token of 32
bytes in place of one. Opened memory is charged once, as it was when it was allocated, until all
processes that have it have let go.
"""

import ctypes
import os

from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import ByValue, Direct
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import (
    FILE_DESCRIPTOR,
    HANDLE_SIZE,
    MEMORY,
    PHYSICAL,
    Tokens,
)
from gpupool.remoting.driver_api.executor.memory.virtual_memory import VirtualMemory
from gpupool.remoting.driver_api.schema.records import NUMBERS

EVENT = b"e"
OPEN_MAX = 4096


class _Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, which are passed by value."""

    _fields_ = [("bytes", ctypes.c_uint8 * HANDLE_SIZE)]


class Ipc(HandlerGroup):
    """The objects that a client process shares, and those that it has opened."""

    def __init__(
        self, client: Client, direct: Direct, tokens: Tokens, virtual: VirtualMemory
    ) -> None:
        super().__init__(client)
        self._direct = direct
        self._virtual = virtual
        self._tokens = tokens
        self._events: dict[int, bytes] = {}  # tokens, by the client's numbers
        client.ended.append(self._ended)
        self._opened: dict[int, list[bytes]] = {}  # a token for each time, by address
        self._count = 0  # of those
        self.methods = {
            "IPC_CLOSE": self._close,
            "IPC_EXPORT": self._export,
            "IPC_OPEN": self._open,
            "IPC_EXPORT_EVENT": self._export_event,
            "IPC_OPEN_EVENT": self._open_event,
            "IPC_EXPORT_PHYSICAL": self._export_physical,
            "IPC_IMPORT_PHYSICAL": self._import_physical,
            "SETTLE": lambda: b"",
        }

    # --- allocations ------------------------------------------------------------------------------

    def _export(self, address: int, size: int) -> bytes:
        device, cost = self.client.allocations[address]
        if not cost:  # a pool's, or a graph's, which CUDA shares by other means or not at all
            raise CudaError(INVALID_VALUE, "cuIpcGetMemHandle")
        handle = ctypes.create_string_buffer(HANDLE_SIZE)
        self._direct.call("cuIpcGetMemHandle", handle, address)
        return self._tokens.share_allocation(MEMORY, address, size, handle.raw, device, cost=cost)

    def _open(self, flags: int, *token: int) -> bytes:
        if self._count >= OPEN_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuIpcOpenMemHandle")
        with self._tokens.opened(MEMORY, token) as found:
            handle = _Handle.from_buffer_copy(found.handle)
            address = self._direct.get("cuIpcOpenMemHandle_v2", ByValue(handle), flags)
        # Drivers may count how often, and give the same address each time.
        self._opened.setdefault(address, []).append(found.token)
        self._count += 1
        return WORDS[2].pack(address, found.size)

    def _close(self, address: int) -> None:
        """Close opened IPC memory on a separate thread, because CUDA first waits for the GPU."""
        tokens = self._opened[address]
        held = tokens.pop()
        if not tokens:
            del self._opened[address]
        self._count -= 1
        freeing = self.waiter.freeing
        freeing.begin(keeps=True)

        def run() -> None:
            try:
                self._direct.call("cuIpcCloseMemHandle", address)
                self._tokens.let_go(held)
            except CudaError as error:
                self.client.fail(NUMBERS["IPC_CLOSE"], error.status)
            finally:
                freeing.end(keeps=True)

        self.waiter.start(self.client.device, run)

    # --- events -----------------------------------------------------------------------------------

    def _export_event(self, number: int) -> bytes:
        if number not in self._events:
            handle = ctypes.create_string_buffer(HANDLE_SIZE)
            self._direct.call("cuIpcGetEventHandle", handle, self.objects["e"][number])
            self._events[number] = self._tokens.share(EVENT, 0, handle.raw, self.client.device)
        return self._events[number]

    def _ended(self, kind: str, number: int) -> None:
        """Share no event any more that has been destroyed."""
        if kind == "e" and number in self._events:
            self._tokens.forget(self._events.pop(number))

    def _open_event(self, number: int, *token: int) -> bytes:
        handle = _Handle.from_buffer_copy(self._tokens.find(EVENT, token).handle)
        self.client.keep("e", number, self._direct.get("cuIpcOpenEventHandle", ByValue(handle)))
        return b""

    # --- physical memory --------------------------------------------------------------------------

    def _export_physical(self, number: int, size: int) -> bytes:
        physical = self._virtual.find(number)
        if physical.opened:
            return physical.opened  # under which it is charged
        if not physical.token:
            name, file = "cuMemExportToShareableHandle", ctypes.c_int(-1)
            self._direct.call(name, file, physical.handle, FILE_DESCRIPTOR, 0)
            try:
                empty, device, cost = bytes(HANDLE_SIZE), physical.device, physical.cost
                physical.token = self._tokens.share(
                    PHYSICAL, size, empty, device, file=file.value, cost=cost
                )
            finally:
                os.close(file.value)
        return physical.token

    def _import_physical(self, number: int, *token: int) -> bytes:
        with self._tokens.opened(PHYSICAL, token) as found:
            handle = self._direct.get("cuMemImportFromShareableHandle", found.file, FILE_DESCRIPTOR)
            self._virtual.adopt(number, handle, found.device, found.token)
        return WORDS[2].pack(found.size, found.device)
