"""Addresses without memory, for virtual memory management and managed memory.

Where a driver puts small reservations depends on the machine: beside its process's libraries, where
the client's process may have its own, or in the lowest 64 GiB, which a server of several has to
leave free; and it heeds no wish for them (seen on H200s). A large one at a place of our choice is
granted; so one such is made, and divided here.
"""

import secrets
import threading
from bisect import bisect_right, insort

from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, OUT_OF_MEMORY, Api, CudaError
from gpupool.remoting.driver_api.executor.memory import address_slices

ARENA_SIZE = 1 << 40
PLACES = range(17 << 40, 64 << 40, ARENA_SIZE)
"""Start addresses for the arena of a lease's only server; Linux gives them only on request.

AddressSanitizer's shadow ends 2 GiB above 16 TiB in a program that has it (kHighShadowEnd of
asan_mapping.h, 0x10007fff7fff).
"""

GRANULARITY = 2 << 20
"""Of reservations on all GPUs of today."""

PIECES_MAX = 1 << 20


class Arena:
    """A range of addresses of which pieces are taken and given back."""

    def __init__(self, whole: range) -> None:
        self._free: list[tuple[int, int]] = [(whole.start, whole.stop)]
        self._taken: dict[int, int] = {}

    def take(self, size: int, alignment: int, wish: int = 0) -> int | None:
        """Return where ``size`` bytes are free, at ``wish`` if they are there; None: nowhere."""
        if len(self._taken) >= PIECES_MAX:
            return None
        at = bisect_right(self._free, (wish, 1 << 64)) - 1
        places = [(at, wish)] if wish and wish % alignment == 0 and at >= 0 else []
        first = next(
            (
                (at, start)
                for at, (begin, end) in enumerate(self._free)
                if (start := -(-begin // alignment) * alignment) + size <= end
            ),
            None,
        )
        for at, start in (*places, *([first] if first else [])):
            begin, end = self._free[at]
            if begin <= start and start + size <= end:
                rest = [(begin, start), (start + size, end)]
                self._free[at : at + 1] = [one for one in rest if one[0] < one[1]]
                self._taken[start] = size
                return start
        return None

    def has(self, address: int) -> bool:
        """Say whether a piece that was taken starts there."""
        return address in self._taken

    def give(self, address: int, size: int) -> bool:
        """Give back a piece; False when none was taken that starts there and is so large."""
        if self._taken.get(address) != size:
            return False
        del self._taken[address]
        begin, end = address, address + size
        insort(self._free, (begin, end))
        at = self._free.index((begin, end))
        for neighbour in (at + 1, at):
            if 0 < neighbour < len(self._free):
                (one, middle), (other, last) = self._free[neighbour - 1 : neighbour + 1]
                if middle == other:
                    self._free[neighbour - 1 : neighbour + 1] = [(one, last)]
        return True


class Addresses:
    """Reservations of one client process."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._arena: Arena | None = None
        self._tried = False
        self._lock = threading.Lock()

    def reserve(self, size: int, alignment: int, wish: int) -> int:
        """Reserve addresses and return the first; ``wish`` is where they would best lie, or 0.

        Raises:
            CudaError: when there are none that this server of the lease may use.
        """
        if size and size % GRANULARITY == 0:
            arena = self._prepared()
            alignment = max(alignment, GRANULARITY)
            # A power of two, as the driver wants it; what else is given is for it to refuse.
            if arena is not None and alignment & (alignment - 1) == 0:
                with self._lock:
                    found = arena.take(size, alignment, wish)
                if found is not None:
                    return found
        return self._from_driver(size, alignment, wish)

    def give_back(self, address: int, size: int) -> None:
        """Give reserved addresses back.

        Raises:
            CudaError: when they are not what was reserved.
        """
        with self._lock:
            ours = self._arena is not None and self._arena.has(address)
            if self._arena is not None and ours and not self._arena.give(address, size):
                raise CudaError(INVALID_VALUE, "cuMemAddressFree")
        if not ours:
            self._api.call("cuMemAddressFree", address, size)

    def _prepared(self) -> Arena | None:
        """Return the arena, reserved when it is asked for first; None: the driver gives none."""
        if not self._tried:
            self._tried = True
            own, size, wish = address_slices.own(), ARENA_SIZE, secrets.choice(PLACES)
            if own is not None:
                size, wish = min(size, len(own) // 4), own.start + len(own) // 2
            try:
                start = self._from_driver(size, 0, wish)
            except CudaError:
                return None
            self._arena = Arena(range(start, start + size))
        return self._arena

    def _from_driver(self, size: int, alignment: int, wish: int) -> int:
        try:
            address = int(self._api.call("cuMemAddressReserve", size, alignment, wish, 0))
        except CudaError:
            # Where something else lies at the wished address, drivers may give none at all.
            if not wish:
                raise
            address = int(self._api.call("cuMemAddressReserve", size, alignment, 0, 0))
        if not address_slices.holds(address, size):
            self._api.call("cuMemAddressFree", address, size)
            why = f"cuMemAddressReserve, which gave {address:#x} of another server's part,"
            raise CudaError(OUT_OF_MEMORY, why)
        return address
