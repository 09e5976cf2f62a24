"""Pinned memory in which bytes rest between the socket and a device."""

import ctypes
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gpupool.remoting.driver_api.executor.api import (
    DEVICE_TO_HOST,
    EVENT_DISABLE_TIMING,
    OUT_OF_MEMORY,
    Api,
    CudaError,
)

RING_COUNT, RING_COUNT_MAX = 4, 64
RING_SIZE = 4 << 20
"""Pieces of an upload: one is received while others are copied.

More than the first few are made when a stream is held up by a kernel: what other threads of the
program do waits behind the upload only when all of them are full.
"""

PIECE_SIZE = 8 << 20
"""Of a large download."""

KEPT_MAX = 256 << 20
"""Bytes of pinned memory that are kept for later downloads."""

PINNED_MAX = 4 << 30
"""Most bytes of pinned memory except for uploads: cached, in transit, or used by graph copies."""


class Room:
    """Counts the pinned memory that is there."""

    def __init__(self) -> None:
        self._taken = 0
        self._lock = threading.RLock()  # a buffer may end in the middle of this

    def take(self, size: int) -> None:
        """Count ``size`` bytes.

        Raises:
            CudaError: when there would be too many.
        """
        with self._lock:
            if self._taken + size > PINNED_MAX:
                raise CudaError(OUT_OF_MEMORY, "cuMemHostAlloc")
            self._taken += size

    def give(self, size: int) -> None:
        """Count ``size`` bytes less."""
        with self._lock:
            self._taken -= size


class PinnedMemory:
    """Blocks of pinned memory. To free one waits for the device, so they are used again."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, size: int) -> "ctypes.Array[ctypes.c_uint8]":
        """Return a block of exactly ``size`` bytes; its finalizer gives the memory back."""
        free = self._free[size]
        address: int = free.pop() if free else self._api.runtime.hostAlloc(size, 0)
        block = (ctypes.c_uint8 * size).from_address(address)
        weakref.finalize(block, free.append, address)
        return block


class Buffer:
    """Pinned memory and the event that says when a copy with it is over."""

    __slots__ = ("__weakref__", "address", "event", "size", "view")

    def __init__(self, api: Api, pinned: "PinnedMemory", size: int) -> None:
        memory = pinned.take(size)
        self.address = ctypes.addressof(memory)
        self.size = size
        self.view = memoryview(memory).cast("B")
        self.event: int = api.runtime.eventCreateWithFlags(EVENT_DISABLE_TIMING)


def downloaded(
    api: Api, buffers: Sequence[Buffer], source: int, size: int, stream: int
) -> Iterator[memoryview]:
    """Give ``size`` bytes of device memory in pieces: one can be sent while the next is copied.

    Args:
        api: of a thread whose current device is the memory's.
        buffers: two of at least ``PIECE_SIZE`` bytes; a piece is good until the next is asked for.
        source: address of the first byte.
        size: bytes.
        stream: in which the copies go; what they read must be complete.

    Raises:
        One of ``api.errors`` when a copy fails.
    """
    starts = range(0, size, PIECE_SIZE)

    def begin(at: int) -> None:
        length = min(PIECE_SIZE, size - starts[at])
        target = buffers[at % 2].address
        api.copy(target, source + starts[at], length, DEVICE_TO_HOST, stream)
        api.record(buffers[at % 2].event, stream)

    begin(0)
    for at, start in enumerate(starts):
        if at + 1 < len(starts):
            begin(at + 1)
        api.runtime.eventSynchronize(buffers[at % 2].event)
        yield buffers[at % 2].view[: min(PIECE_SIZE, size - start)]


class Staging:
    """Pinned buffers by device: events belong to one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ring: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._next: defaultdict[int, int] = defaultdict(int)
        self._free: defaultdict[tuple[int, int], list[Buffer]] = defaultdict(list)
        self._kept = 0
        self._room = Room()
        self._pinned = PinnedMemory(api)

    def upload(self, device: int) -> Buffer:
        """Return the next buffer for an upload, waiting until its last copy is over."""
        ring, at = self._ring[device], self._next[device]
        if len(ring) >= RING_COUNT:
            self._next[device] = at = (at + 1) % len(ring)
            buffer = ring[at]
            if len(ring) == RING_COUNT_MAX:
                self._api.runtime.eventSynchronize(buffer.event)
                return buffer
            if self._api.done(buffer.event):
                return buffer
        # Behind the one that is busy, which stays the next but one.
        ring.insert(at, Buffer(self._api, self._pinned, RING_SIZE))
        return ring[at]

    def take(self, device: int, size: int) -> Buffer | None:
        """Return a buffer of at least ``size`` bytes that is kept, to be given back."""
        free = self._free[device, _rounded(size)]
        if not free:
            return None
        self._kept -= free[-1].size
        return free.pop()

    def make(self, size: int) -> Buffer:
        """Return a new buffer of at least ``size`` bytes, of the current device.

        Raises:
            CudaError: when there are too many.
        """
        whole = _rounded(size)
        self._room.take(whole)
        try:
            made = Buffer(self._api, self._pinned, whole)
        except BaseException:
            self._room.give(whole)
            raise
        weakref.finalize(made, self._room.give, whole)
        return made

    def give(self, device: int, buffer: Buffer) -> None:
        """Keep a buffer for later, or let it go."""
        if self._kept + buffer.size <= KEPT_MAX:
            self._kept += buffer.size
            self._free[device, buffer.size].append(buffer)
        else:
            self._api.runtime.eventDestroy(buffer.event)


def _rounded(size: int) -> int:
    return max(4096, 1 << (size - 1).bit_length())
