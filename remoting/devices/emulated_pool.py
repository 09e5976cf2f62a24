"""The memory pool of an emulated device: CuPy's numbers, over the lease's budget."""

from gpupool.remoting.devices.base import Budget, DeviceMemoryError

UNIT = 512
"""CuPy rounds every allocation up to this many bytes (``ALLOCATION_UNIT_SIZE``)."""


def rounded(nbytes: int) -> int:
    """Return how many bytes the pool takes for an array of ``nbytes``."""
    return (nbytes + UNIT - 1) // UNIT * UNIT


class EmulatedPool:
    """Counts the bytes that arrays use and those kept for reuse; NumPy has the bytes themselves.

    Free blocks are kept by their exact size, as in CuPy, until `free_all_blocks` or need. One
    thread, the session's, uses it.
    """

    def __init__(self, budget: Budget, device: int, memory: int) -> None:
        self._budget = budget
        self._device = device
        self._free: dict[int, int] = {}
        self.memory = memory
        self.limit = 0  # bytes; 0 is none, as in CuPy
        self.total = 0
        self.used = 0

    def allocate(self, nbytes: int) -> int:
        """Take memory for one array; return the block's size.

        Raises:
            DeviceMemoryError: neither the limit nor the budget has room, even with nothing kept.
        """
        size = rounded(nbytes)
        if size == 0:
            return 0
        if self._free.get(size):
            self._free[size] -= 1
        elif not self._grow(size):
            self.free_all_blocks()
            if not self._grow(size):
                raise self.error(size)
        self.used += size
        return size

    def check(self, nbytes: int) -> None:
        """Raise if ``nbytes`` could not be allocated now, without allocating them.

        NumPy only tells how much it took when it has taken it; this keeps a result that is far
        too large from being computed at all.
        """
        size = rounded(nbytes)
        if size > (self.limit or self.memory) - self.used:
            raise self.error(size)

    def error(self, size: int) -> DeviceMemoryError:
        """Return the error of a failed allocation, in CuPy's words."""
        limit = f", limit set to: {self.limit:,} bytes" if self.limit else ""
        return DeviceMemoryError(
            f"Out of memory allocating {size:,} bytes "
            f"(allocated so far: {self.total:,} bytes{limit})."
        )

    def _grow(self, size: int) -> bool:
        if self.limit and self.total + size > self.limit:
            return False
        if not self._budget.reserve(self._device, size):
            return False
        self.total += size
        return True

    def release(self, size: int) -> None:
        """Take a block back and keep it for reuse."""
        if size:
            self.used -= size
            self._free[size] = self._free.get(size, 0) + 1

    def free_all_blocks(self) -> None:
        """Give everything that no array uses back to the budget."""
        for size, count in self._free.items():
            if count:
                self.total -= size * count
                self._budget.release(self._device, size * count)
        self._free.clear()

    def free_blocks(self) -> int:
        """Return how many blocks are kept."""
        return sum(self._free.values())

    def free_memory(self) -> int:
        """Return the free memory of ``cudaMemGetInfo``: the partition less the lease's use."""
        return max(0, self.memory - self._budget.usage(self._device))

    def close(self) -> None:
        """Give everything back, used or not."""
        if self.total:
            self._budget.release(self._device, self.total)
        self.total = self.used = 0
        self._free.clear()
