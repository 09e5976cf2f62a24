"""Pinned memory of the client that kernels see: the worker's mirror of it."""

import ctypes
from typing import Any

import numpy as np

from gpupool.remoting.driver import table
from gpupool.remoting.driver.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver.client import WORDS, Area, Client
from gpupool.remoting.driver.waiting import Mirror

MAPPED_SIZE_MAX = 256 << 20
"""Bytes of the client's memory that kernels may see, all together."""


class Mapped(Area):
    """Mapped pinned memory of a client process."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.posted = {
            table.MAP_WRITE: (3, self._map_write),
        }
        self.asked = {
            table.MAP_HOST: (2, self._map_host),
            table.MAP_FREE: (1, self._map_free),
        }

    def _map_host(self, number: int, size: int) -> bytes:
        data = self.client.read_bulk(size, MAPPED_SIZE_MAX)
        mirrors = self.waiter.mirrors
        held = sum(len(mirror.bytes) for mirror in mirrors.values())
        if number in mirrors or held + size > MAPPED_SIZE_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuMemHostGetDevicePointer")
        address = self.api.runtime.hostAlloc(size, 2)  # cudaHostAllocMapped
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
        values = np.frombuffer(memory, np.uint8)
        values[:] = np.frombuffer(data, np.uint8)
        mirrors[number] = Mirror(address, values, np.frombuffer(data, np.uint8))
        return WORDS[1].pack(int(self.api.call("cuMemHostGetDevicePointer", address, 0)))

    def _map_write(self, number: int, first: int, size: int) -> None:
        data = self.client.read_bulk(size, MAPPED_SIZE_MAX)
        self.waiter.write_mirror(number, first, memoryview(data))

    def _map_free(self, number: int) -> None:
        mirror = self.waiter.mirrors.pop(number)

        def job() -> None:
            self.api.runtime.deviceSynchronize()
            self.api.runtime.freeHost(mirror.address)

        self.waiter.start(self.client.device, self.waiter.guarded(self.client.request, job))
