"""Pinned memory of the client that kernels see: the worker's mirror of it."""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.remoting.driver_api.executor.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory import address_slices
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import Tokens
from gpupool.remoting.driver_api.executor.memory.mirrors import NO_PAGES, Mirror, Write
from gpupool.remoting.driver_api.executor.out_of_band import OutOfBandReplies

MAPPED_SIZE_MAX = 256 << 20
"""Bytes of the client's memory that kernels may see, all together."""

ZEROS = 2 << 20
SHARED_SIZE_MAX = 4 << 30
"""Bytes in common with other workers: NCCL takes 9.6 MB for each way of each channel."""

COMMON = b"h"
PAGE = 4096
ADDRESS_MAX = 1 << 47
FOR_ALL_CONTEXTS, FOR_KERNELS = 1, 2  # CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP
NOTHING, READ_WRITE = 0, 3
SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE, FIXED_NOREPLACE = 1, 2, 0x10, 0x20, 0x4000, 0x100000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def whole_pages(size: int) -> int:
    """Return the memory of this machine that so many bytes take, in whole pages."""
    return (size + PAGE - 1) & -PAGE


def take_pages(start: int, end: int, file: int = -1) -> bool:
    """Map the pages between two addresses, or a file there, if all of them are free."""
    how = SHARED if file >= 0 else PRIVATE | ANONYMOUS
    how |= FIXED if address_slices.is_filled(start, end) else FIXED_NOREPLACE
    got = LIBC.mmap(start, end - start, READ_WRITE, how, file, 0)
    if got not in (start, None, ctypes.c_void_p(-1).value):
        LIBC.munmap(got, end - start)  # a kernel before 4.17 takes the address as a wish
    return got == start


def map_anywhere(size: int, file: int) -> int:
    """Map a file and return where.

    Raises:
        CudaError: when there is no room for it.
    """
    got = LIBC.mmap(None, size, READ_WRITE, SHARED, file, 0)
    if got in (None, ctypes.c_void_p(-1).value):
        raise CudaError(OUT_OF_MEMORY, "cuMemHostRegister")
    return got


def give_pages(start: int, end: int) -> None:
    """Restore the former state of pages: a placeholder mapping or none."""
    if address_slices.is_filled(start, end):
        how = PRIVATE | ANONYMOUS | NORESERVE | FIXED
        LIBC.mmap(start, end - start, NOTHING, how, -1, 0)
    else:
        LIBC.munmap(start, end - start)


@dataclass(frozen=True, slots=True)
class Common:
    """Memory that several workers have; the token is its maker's."""

    address: int
    size: int
    token: bytes


class Mapped(HandlerGroup):
    """Mapped pinned memory of a client process."""

    def __init__(
        self, client: Client, out_of_band_replies: OutOfBandReplies, tokens: Tokens
    ) -> None:
        super().__init__(client)
        self._out_of_band_replies = out_of_band_replies
        self._tokens = tokens
        self._shared: dict[int, Common] = {}
        self.methods = {
            "MAP_WRITE": self._map_write,
            "MAP_HOST": self._map_host,
            "MAP_FREE": self._map_free,
            "MAP_SHARED": self._map_shared,
        }

    def _map_host(self, number: int, size: int, wish: int) -> bytes:
        """Make a mirror, at the client's own address if that is free here.

        Bytes behind the record are what lies there; without them it is zeros.
        """
        self._admit(number, size)
        given = self.client.record.bulk
        data = self.client.read_bulk(size, MAPPED_SIZE_MAX) if given else bytearray(size)
        mirror = self._mirror_at(wish, size) or self._mirror_anywhere(size)
        mirror.bytes[:] = np.frombuffer(data, np.uint8)
        # Zeros that nobody writes are one page, which the processor has in its cache.
        for at in range(0, size, ZEROS):
            part = mirror.bytes[at : at + ZEROS]
            if part.any():
                mirror.shadow[at : at + ZEROS] = part
        self.waiter.add_mirror(number, mirror)
        self._out_of_band_replies.start()
        self._out_of_band_replies.need()
        return WORDS[1].pack(mirror.seen)

    def _admit(self, number: int, size: int, *, shared: bool = False) -> None:
        """Raise CudaError when so much more may not be mapped."""
        mirrors = self.waiter.mirrors
        if shared:
            left = SHARED_SIZE_MAX - sum(common.size for common in self._shared.values())
        else:
            left = MAPPED_SIZE_MAX - sum(whole_pages(len(each.bytes)) for each in mirrors.values())
        if number in mirrors or number in self._shared or not 0 < whole_pages(size) <= left:
            raise CudaError(OUT_OF_MEMORY, "cuMemHostGetDevicePointer")

    def _map_shared(self, number: int, size: int, wish: int, *key: int) -> bytes:
        """Make memory in which kernels meet those of other workers of the lease.

        The client has a file mapped there, of which it knows a key; what is in it stays here.
        """
        self._admit(number, size, shared=True)
        whole = whole_pages(size)
        file, token = self._tokens.common(COMMON, key, whole)
        common = Common(0, 0, token)
        try:
            free = wish % PAGE == 0 and 0 < wish <= ADDRESS_MAX - whole
            mapped = free and take_pages(wish, wish + whole, file)
            common = Common(wish if mapped else map_anywhere(whole, file), whole, token)
            self.api.call(
                "cuMemHostRegister", common.address, whole, FOR_ALL_CONTEXTS | FOR_KERNELS
            )
            seen = int(self.api.call("cuMemHostGetDevicePointer", common.address, 0))
        except CudaError:
            self._end_shared(common)
            raise
        finally:
            os.close(file)
        self._shared[number] = common
        return WORDS[1].pack(seen)

    def _end_shared(self, common: Common) -> None:
        if common.token:
            self._tokens.forget(common.token)
        if common.size:
            give_pages(common.address, common.address + common.size)

    def _mirror_at(self, wish: int, size: int) -> Mirror | None:
        """Make a mirror at ``wish``, on separate pages; None if the address is taken."""
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

    def _map_write(self, number: int, first: int, size: int, masked: int) -> None:
        data = self.client.read_bulk(Write.length(size, masked), MAPPED_SIZE_MAX)
        frame = self.session.reader.frame
        self.waiter.write_mirror(frame, number, Write.of(first, size, masked, data))

    def _map_free(self, number: int) -> None:
        if number in self._shared:
            self._free_shared(self._shared.pop(number))
            return
        mirror = self.waiter.take_mirror(number)
        self._out_of_band_replies.leave()

        def job() -> None:
            self.api.runtime.deviceSynchronize()
            if mirror.pages != NO_PAGES:
                self.api.call("cuMemHostUnregister", mirror.address)
                give_pages(*mirror.pages)
            else:
                self.api.runtime.freeHost(mirror.address)

        self.waiter.start(self.client.device, self.waiter.guarded(self.client.record.request, job))

    def _free_shared(self, common: Common) -> None:
        def job() -> None:
            self.api.runtime.deviceSynchronize()
            self.api.call("cuMemHostUnregister", common.address)
            self._end_shared(common)

        self.waiter.start(self.client.device, self.waiter.guarded(self.client.record.request, job))
