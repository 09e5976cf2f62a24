"""Accounting of device memory per lease and GPU over all workers of the lease; pure.

A partition bounds the sum of what all workers of a lease reserve on that GPU. A reservation is
granted only when it fits. A charge is different: it records memory that is taken already, such as
the overhead of a CUDA context, and may therefore exceed the partition; nothing more can be
reserved until it fits again. Everything that a worker holds returns when it dies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.pool.ids import GpuId, LeaseId

WorkerKey = int
"""What names a worker in the books: its number, never used twice by one host."""


class BudgetError(ValueError):
    """A worker asked for something that its lease does not have, or returned too much."""


@dataclass(slots=True)
class _Share:
    """One worker's part on one GPU."""

    reserved: int = 0
    charged: int = 0


@dataclass(slots=True)
class _LeaseBook:
    partitions: dict[GpuId, int]
    #: Sum over all shares per GPU; kept up to date so that a reservation costs no sum.
    used: dict[GpuId, int]
    shares: dict[tuple[WorkerKey, GpuId], _Share] = field(
        default_factory=dict[tuple[WorkerKey, GpuId], _Share]
    )


class Budget:
    """The books of one host. Not thread-safe: one thread owns it."""

    def __init__(self) -> None:
        self._leases: dict[LeaseId, _LeaseBook] = {}
        self._lease_of: dict[WorkerKey, LeaseId] = {}

    def open_lease(self, lease: LeaseId, partitions: Mapping[GpuId, int]) -> None:
        """Start the books of ``lease``, or check that they are for the same partitions.

        Raises:
            BudgetError: when the lease is open with other partitions.
        """
        book = self._leases.get(lease)
        if book is None:
            self._leases[lease] = _LeaseBook(dict(partitions), dict.fromkeys(partitions, 0))
        elif book.partitions != dict(partitions):
            raise BudgetError(f"lease {lease} is open with other partitions")

    def close_lease(self, lease: LeaseId) -> None:
        """Drop the books of a lease whose workers have all ended.

        Raises:
            BudgetError: when a worker still holds memory.
        """
        if any(owner == lease for owner in self._lease_of.values()):
            raise BudgetError(f"lease {lease} still has workers")
        self._leases.pop(lease, None)

    def add_worker(self, worker: WorkerKey, lease: LeaseId) -> None:
        """Let ``worker`` reserve from the partitions of an open ``lease``.

        Raises:
            BudgetError: when the lease is not open, or the worker already has one.
        """
        if lease not in self._leases:
            raise BudgetError(f"lease {lease} is not open")
        if worker in self._lease_of:
            raise BudgetError(f"worker {worker} already has a lease")
        self._lease_of[worker] = lease

    def reserve(self, worker: WorkerKey, gpu: GpuId, size: int) -> bool:
        """Reserve ``size`` bytes if the lease has them left on ``gpu``; return whether it had.

        Raises:
            BudgetError: when the worker has no partition of that GPU, or the size is negative.
        """
        book, share = self._share(worker, gpu, size)
        if book.used[gpu] + size > book.partitions[gpu]:
            return False
        share.reserved += size
        book.used[gpu] += size
        return True

    def release(self, worker: WorkerKey, gpu: GpuId, size: int) -> None:
        """Return ``size`` bytes that ``worker`` reserved on ``gpu``.

        Raises:
            BudgetError: when it has not reserved so much; nothing is changed then.
        """
        book, share = self._share(worker, gpu, size)
        if size > share.reserved:
            raise BudgetError(f"worker {worker} returns {size} of {share.reserved} bytes")
        share.reserved -= size
        book.used[gpu] -= size

    def charge(self, worker: WorkerKey, gpu: GpuId, size: int) -> None:
        """Set what ``worker`` takes on ``gpu`` beside its reservations; always succeeds.

        Raises:
            BudgetError: when the worker has no partition of that GPU, or the size is negative.
        """
        book, share = self._share(worker, gpu, size)
        book.used[gpu] += size - share.charged
        share.charged = size

    def end_worker(self, worker: WorkerKey) -> None:
        """Return everything that ``worker`` holds; harmless for one that never had a lease."""
        lease = self._lease_of.pop(worker, None)
        if lease is None:
            return
        book = self._leases[lease]
        for key in [key for key in book.shares if key[0] == worker]:
            share = book.shares.pop(key)
            book.used[key[1]] -= share.reserved + share.charged

    def usage(self, lease: LeaseId, gpu: GpuId) -> int:
        """Return the bytes that all workers of ``lease`` hold on ``gpu``, charges included."""
        book = self._leases.get(lease)
        return book.used.get(gpu, 0) if book else 0

    def partition(self, lease: LeaseId, gpu: GpuId) -> int:
        """Return the size of the lease's partition of ``gpu``, 0 when it has none."""
        book = self._leases.get(lease)
        return book.partitions.get(gpu, 0) if book else 0

    def held(self, worker: WorkerKey, gpu: GpuId) -> tuple[int, int]:
        """Return the bytes that one worker has reserved on ``gpu``, and those charged to it."""
        lease = self._lease_of.get(worker)
        share = self._leases[lease].shares.get((worker, gpu)) if lease is not None else None
        return (share.reserved, share.charged) if share else (0, 0)

    def used_on(self, gpu: GpuId) -> int:
        """Return the bytes that all leases of this host hold on ``gpu``."""
        return sum(book.used.get(gpu, 0) for book in self._leases.values())

    def leases(self) -> tuple[LeaseId, ...]:
        """Return the leases whose books are open."""
        return tuple(self._leases)

    def _share(self, worker: WorkerKey, gpu: GpuId, size: int) -> tuple[_LeaseBook, _Share]:
        lease = self._lease_of.get(worker)
        if lease is None:
            raise BudgetError(f"worker {worker} has no lease")
        book = self._leases[lease]
        if gpu not in book.partitions:
            raise BudgetError(f"lease {lease} has no partition of {gpu}")
        if size < 0:
            raise BudgetError("negative size")
        share = book.shares.get((worker, gpu))
        if share is None:
            share = book.shares[worker, gpu] = _Share()
        return book, share
