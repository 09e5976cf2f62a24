"""Memory pools that other processes of the lease open, and their allocations.

Both ends of an allocation have a token for it: it stands for what CUDA's driver wants to know when
it imports, which clients could otherwise make up.
"""

import ctypes
import os

from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.memory import address_slices
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import (
    FILE_DESCRIPTOR,
    HANDLE_SIZE,
    POOL,
    Tokens,
)
from gpupool.remoting.driver_api.executor.memory.memory_pools import Pool, Pools

ALLOCATION = b"a"
IMPORTS_MAX = 1 << 16


class SharedPools(HandlerGroup):
    """Shares a client process's memory pools, and opens those of other processes.

    What a pool has is charged until all who have opened the pool have let go of it: nobody tells
    which of its memory one of them still has.
    """

    def __init__(self, client: Client, direct: Direct, tokens: Tokens, pools: Pools) -> None:
        super().__init__(client)
        self._direct = direct
        self._tokens = tokens
        self._pools = pools
        self.methods = {
            "IPC_EXPORT_POOL": self._export,
            "IPC_IMPORT_POOL": self._import,
            "IPC_EXPORT_POINTER": self._export_pointer,
            "IPC_IMPORT_POINTER": self._import_pointer,
        }

    def _export(self, number: int) -> bytes:
        pool = self._pools.find(number)
        if pool.imported:
            raise CudaError(INVALID_VALUE, "cuMemPoolExportToShareableHandle")
        if not pool.token:
            name, file = "cuMemPoolExportToShareableHandle", ctypes.c_int(-1)
            self._direct.call(name, file, pool.handle, FILE_DESCRIPTOR, 0)
            try:
                empty = bytes(HANDLE_SIZE)
                pool.token = self._tokens.share(
                    POOL, 0, empty, pool.device, file=file.value, cost=0
                )
            finally:
                os.close(file.value)
        return pool.token

    def _import(self, number: int, *token: int) -> bytes:
        name = "cuMemPoolImportFromShareableHandle"
        with self._tokens.opened(POOL, token) as found:
            handle = self._direct.get(name, found.file, FILE_DESCRIPTOR, 0)
            self._pools.keep(number, Pool(handle, found.device, imported=True, token=found.token))
        return WORDS[1].pack(found.device)

    def _export_pointer(self, address: int) -> bytes:
        pool, size = self._pools.owner(address)
        self._pools.pledge(pool)
        data = ctypes.create_string_buffer(HANDLE_SIZE)
        self._direct.call("cuMemPoolExportPointer", data, address)
        return self._tokens.share_allocation(ALLOCATION, address, size, data.raw, pool.device)

    def _import_pointer(self, number: int, *token: int) -> bytes:
        """Import each pointer once, as drivers free an import at the first of several frees."""
        pool, key = self._pools.find(number), (number, *token)
        imports, allocations = self._pools.imports, self.client.allocations
        found = self._tokens.find(ALLOCATION, token)
        if not pool.imported:
            raise CudaError(INVALID_VALUE, "cuMemPoolImportPointer")
        address = imports.find(key)
        if address is None:
            if len(imports) >= IMPORTS_MAX:
                raise CudaError(OUT_OF_MEMORY, "cuMemPoolImportPointer")
            address = self._direct.get("cuMemPoolImportPointer", pool.handle, found.handle)
            if not address_slices.holds(address, found.size):
                self.api.runtime.free(address)
                raise CudaError(OUT_OF_MEMORY, "cuMemPoolImportPointer")
            allocations[address] = (pool.device, 0)
            pool.count += 1
        imports.add(key, address, pool)
        return WORDS[2].pack(address, found.size)
