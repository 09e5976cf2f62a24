"""Pinned memory of the client that kernels see: the worker's mirror of it."""

import ctypes
from typing import Any

import numpy as np

from gpupool.remoting.driver import slices, table
from gpupool.remoting.driver.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver.client import WORDS, Area, Client
from gpupool.remoting.driver.overtaking import Overtaker
from gpupool.remoting.driver.waiting import NO_PAGES, Mirror

MAPPED_SIZE_MAX = 256 << 20
"""Bytes of the client's memory that kernels may see, all together."""

PAGE = 4096
ADDRESS_MAX = 1 << 47
FOR_ALL_CONTEXTS, FOR_KERNELS = 1, 2  # CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP
NOTHING, READ_WRITE = 0, 3
PRIVATE, FIXED, ANONYMOUS, NORESERVE, FIXED_NOREPLACE = 0x2, 0x10, 0x20, 0x4000, 0x100000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def take_pages(start: int, end: int) -> bool:
    """Map the pages between two addresses if all of them are free."""
    how = PRIVATE | ANONYMOUS | (FIXED if slices.is_filled(start, end) else FIXED_NOREPLACE)
    got = LIBC.mmap(start, end - start, READ_WRITE, how, -1, 0)
    if got not in (start, None, ctypes.c_void_p(-1).value):
        LIBC.munmap(got, end - start)  # a kernel before 4.17 takes the address as a wish
    return got == start


def give_pages(start: int, end: int) -> None:
    """Give pages back to what was there."""
    if slices.is_filled(start, end):
        how = PRIVATE | ANONYMOUS | NORESERVE | FIXED
        LIBC.mmap(start, end - start, NOTHING, how, -1, 0)
    else:
        LIBC.munmap(start, end - start)


class Mapped(Area):
    """Mapped pinned memory of a client process."""

    def __init__(self, client: Client, overtaker: Overtaker) -> None:
        super().__init__(client)
        self._overtaker = overtaker
        self.posted = {
            table.MAP_WRITE: (3, self._map_write),
        }
        self.asked = {
            table.MAP_HOST: (3, self._map_host),
            table.MAP_FREE: (1, self._map_free),
        }

    def _map_host(self, number: int, size: int, wish: int) -> bytes:
        """Make a mirror, at the client's own address if that is free here.

        Bytes behind the record are what lies there; without them it is zeros.
        """
        mirrors = self.waiter.mirrors
        held = sum(len(mirror.bytes) for mirror in mirrors.values())
        if number in mirrors or not 0 < size <= MAPPED_SIZE_MAX - held:
            raise CudaError(OUT_OF_MEMORY, "cuMemHostGetDevicePointer")
        data = self.client.read_bulk(size, MAPPED_SIZE_MAX) if self.client.bulk else bytearray(size)
        mirror = self._mirror_at(wish, size) or self._mirror_anywhere(size)
        mirror.bytes[:] = mirror.shadow[:] = np.frombuffer(data, np.uint8)
        self.waiter.add_mirror(number, mirror)
        self._overtaker.start()
        self._overtaker.need()
        return WORDS[1].pack(mirror.seen)

    def _mirror_at(self, wish: int, size: int) -> Mirror | None:
        """Make a mirror in pages of its own, or none where there is something else already."""
        start, end = wish & -PAGE, (wish + size + PAGE - 1) & -PAGE
        others = [mirror.pages for mirror in self.waiter.mirrors.values()]
        if not PAGE <= start < end <= ADDRESS_MAX:
            return None
        if any(first < end and start < last for first, last in others):
            return None
        if not take_pages(start, end):
            return None
        try:
            self.api.call("cuMemHostRegister", wish, size, FOR_ALL_CONTEXTS | FOR_KERNELS)
        except CudaError:
            give_pages(start, end)
            return None
        return self._mirror(wish, size, (start, end))

    def _mirror_anywhere(self, size: int) -> Mirror:
        return self._mirror(self.api.runtime.hostAlloc(size, FOR_KERNELS), size, NO_PAGES)

    def _mirror(self, address: int, size: int, pages: tuple[int, int]) -> Mirror:
        seen = int(self.api.call("cuMemHostGetDevicePointer", address, 0))
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
        values = np.frombuffer(memory, np.uint8)
        return Mirror(address, values, np.zeros(size, np.uint8), seen, pages)

    def _map_write(self, number: int, first: int, size: int) -> None:
        data = self.client.read_bulk(size, MAPPED_SIZE_MAX)
        frame = self.session.reader.frame
        self.waiter.write_mirror(frame, number, first, memoryview(data))

    def _map_free(self, number: int) -> None:
        mirror = self.waiter.take_mirror(number)
        self._overtaker.leave()

        def job() -> None:
            self.api.runtime.deviceSynchronize()
            if mirror.pages != NO_PAGES:
                self.api.call("cuMemHostUnregister", mirror.address)
                give_pages(*mirror.pages)
            else:
                self.api.runtime.freeHost(mirror.address)

        self.waiter.start(self.client.device, self.waiter.guarded(self.client.request, job))
