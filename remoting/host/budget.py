"""Accounting of device memory per lease and GPU over all workers of the lease; pure.

A partition bounds the sum of what all workers of a lease reserve on that GPU. A reservation is
granted only when it fits. A charge is different: it records memory that is taken already, such as
the overhead of a CUDA context, and may therefore exceed the partition; nothing more can be
reserved until it fits again. Everything that a worker holds returns when it dies.

Memory that a worker shares with others of its lease is charged to the lease, under the token by
which they find it, until the last of them has let go of it or died: CUDA keeps physical memory as
long as any process has it, not only the one that allocated it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.pool.model.ids import GpuId, LeaseId

WorkerKey = int
"""A worker's number in the books, never used twice by one host."""


class BudgetError(ValueError):
    """A worker asked for something that its lease does not have, or returned too much."""


@dataclass(slots=True)
class _Share:
    """One worker's part on one GPU."""

    reserved: int = 0
    charged: int = 0
    pledged: int = 0  # of shared memory, the bytes that the driver counts as this worker's
    peak: int = 0  # the most of those two since the last reading began

    def note_peak(self) -> None:
        self.peak = max(self.peak, self.reserved + self.pledged)


@dataclass(slots=True)
class _Common:
    """Memory that workers of a lease have in common; the one that allocated it has a hold too."""

    gpu: GpuId
    owner: WorkerKey
    size: int = 0
    holds: Counter[WorkerKey] = field(default_factory=Counter[WorkerKey])

    def having(self) -> list[WorkerKey]:
        """Return the workers that the driver counts the memory to: the owner, else all holders."""
        return [self.owner] if self.holds[self.owner] else [*+self.holds]


@dataclass(slots=True)
class _LeaseBook:
    partitions: dict[GpuId, int]
    #: Sum over all shares per GPU; kept up to date so that a reservation costs no sum.
    used: dict[GpuId, int]
    shares: dict[tuple[WorkerKey, GpuId], _Share] = field(
        default_factory=dict[tuple[WorkerKey, GpuId], _Share]
    )
    common: dict[bytes, _Common] = field(default_factory=dict[bytes, _Common])  # by token


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

    def move(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        """Move a lease's books from some GPUs to others; harmless if the lease is not open."""
        book = self._leases.get(lease)
        if book is None:
            return
        book.partitions = {moves.get(gpu, gpu): n for gpu, n in book.partitions.items()}
        book.used = {moves.get(gpu, gpu): n for gpu, n in book.used.items()}
        book.shares = {(key, moves.get(gpu, gpu)): n for (key, gpu), n in book.shares.items()}
        for common in book.common.values():
            common.gpu = moves.get(common.gpu, common.gpu)

    def close_lease(self, lease: LeaseId) -> None:
        """Drop the books of a lease after all its workers have ended.

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
        share.note_peak()
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
        """Set the memory of ``worker`` on ``gpu`` beside its reservations; always succeeds.

        Raises:
            BudgetError: when the worker has no partition of that GPU, or the size is negative.
        """
        book, share = self._share(worker, gpu, size)
        book.used[gpu] += size - share.charged
        share.charged = size

    def pledge(self, worker: WorkerKey, gpu: GpuId, token: bytes, size: int) -> None:
        """Keep ``size`` reserved bytes of ``worker`` charged as long as any worker holds them.

        Raises:
            BudgetError: when it has not reserved so much, or the token is for something else.
        """
        book, share = self._share(worker, gpu, size)
        common = book.common.get(token) or _Common(gpu, worker)
        if token not in book.common:
            common.holds[worker] = 1
        strange = (common.gpu, common.owner) != (gpu, worker) or not common.holds[worker]
        if size > share.reserved or strange:
            raise BudgetError(f"worker {worker} cannot share {size} bytes")
        book.common[token] = common
        share.reserved -= size
        self._grow(book, common, size)

    def take_back(self, worker: WorkerKey, token: bytes, size: int) -> None:
        """Note that ``size`` pledged bytes of ``worker`` are gone.

        They stay charged if anybody else has a hold, who may still have them.

        Raises:
            BudgetError: when it has not pledged so much.
        """
        book, common = self._common(worker, token)
        if common is None or common.owner != worker or not 0 <= size <= common.size:
            raise BudgetError(f"worker {worker} has not pledged {size} bytes")
        if common.holds.total() == 1:
            self._grow(book, common, -size)
            book.used[common.gpu] -= size

    def hold(self, worker: WorkerKey, token: bytes) -> None:
        """Note that ``worker`` opens the memory of this token; harmless if nothing is charged."""
        book, common = self._common(worker, token)
        if common is not None:
            self._hold(book, token, worker, common.holds[worker] + 1)

    def let_go(self, worker: WorkerKey, token: bytes) -> None:
        """Note that ``worker`` has closed, or freed, the memory of this token.

        Raises:
            BudgetError: when it has no hold.
        """
        book, common = self._common(worker, token)
        if common is None or common.holds[worker] < 1:
            raise BudgetError(f"worker {worker} lets go of what it does not hold")
        self._hold(book, token, worker, common.holds[worker] - 1)

    def end_worker(self, worker: WorkerKey) -> None:
        """Return everything that ``worker`` holds; harmless for one that never had a lease."""
        lease = self._lease_of.pop(worker, None)
        if lease is None:
            return
        book = self._leases[lease]
        for token in [token for token, each in book.common.items() if each.holds[worker]]:
            self._hold(book, token, worker, 0)
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
        """Return the bytes that one worker has reserved on ``gpu``, and those charged to it.

        What it has pledged counts as reserved; when its owner has let go, for all who hold it.
        """
        lease = self._lease_of.get(worker)
        if lease is None:
            return 0, 0
        book = self._leases[lease]
        share = book.shares.get((worker, gpu)) or _Share()
        return share.reserved + share.pledged, share.charged

    def begin_reading(self) -> None:
        """Reset ``peak``: the driver is asked from now on for each worker's memory."""
        for book in self._leases.values():
            for share in book.shares.values():
                share.peak = share.reserved + share.pledged

    def peak(self, worker: WorkerKey, gpu: GpuId) -> int:
        """Return the most bytes that ``held`` had as reserved since the last ``begin_reading``."""
        lease = self._lease_of.get(worker)
        share = self._leases[lease].shares.get((worker, gpu)) if lease is not None else None
        return share.peak if share is not None else 0

    def shared(self, lease: LeaseId) -> int:
        """Return how much is charged to ``lease`` under tokens: how many of them."""
        book = self._leases.get(lease)
        return len(book.common) if book else 0

    def used_on(self, gpu: GpuId) -> int:
        """Return the bytes that all leases of this host hold on ``gpu``."""
        return sum(book.used.get(gpu, 0) for book in self._leases.values())

    def is_open(self, lease: LeaseId) -> bool:
        """Return whether the books of ``lease`` are open."""
        return lease in self._leases

    def leases(self) -> tuple[LeaseId, ...]:
        """Return the leases with open books."""
        return tuple(self._leases)

    def _common(self, worker: WorkerKey, token: bytes) -> tuple[_LeaseBook, _Common | None]:
        lease = self._lease_of.get(worker)
        if lease is None:
            raise BudgetError(f"worker {worker} has no lease")
        book = self._leases[lease]
        return book, book.common.get(token)

    def _grow(self, book: _LeaseBook, common: _Common, size: int) -> None:
        """Change the size of shared memory; the charge stays the same."""
        common.size += size
        self._attribute(book, common, size)

    def _hold(self, book: _LeaseBook, token: bytes, worker: WorkerKey, count: int) -> None:
        """Set how often a worker holds shared memory; release memory without a holder."""
        common = book.common[token]
        self._attribute(book, common, -common.size)
        common.holds[worker] = count
        self._attribute(book, common, common.size)
        if not common.holds.total():
            book.used[common.gpu] -= common.size
            del book.common[token]

    @staticmethod
    def _attribute(book: _LeaseBook, common: _Common, size: int) -> None:
        for worker in common.having():
            share = book.shares.setdefault((worker, common.gpu), _Share())
            share.pledged += size
            share.note_peak()

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
