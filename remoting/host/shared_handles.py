"""The CUDA handles that the workers of one lease share, and no other worker may get.

A client gets a token for a handle, which its worker draws. Another client of the same lease can
open it on this server. In any other lease the token is worth nothing.
"""

import os
import resource
from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host.budget import BudgetError, WorkerKey

TOKEN_SIZE = 32
VALUE_SIZE_MAX = 256
SHARED_MAX = 1024
"""Handles of one lease at a time; some have a descriptor, which this process keeps open."""

DESCRIPTORS_WANTED = 65536
LEASE_PART = 4
"""No lease has more of the descriptors that all may have than one of so many parts."""


def descriptor_room() -> int:
    """Let this process have more descriptors, if it may; return how many leases may leave open.

    The others are for connections: a client must not keep the server from accepting any.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return (DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft) // 2


@dataclass(frozen=True, slots=True)
class Shared:
    """One handle, as bytes and perhaps a descriptor (else -1)."""

    worker: WorkerKey
    value: bytes
    descriptor: int


class Sharing:
    """The shared handles of one host. Not thread-safe: one thread owns it."""

    def __init__(self, descriptors: int = LEASE_PART * SHARED_MAX) -> None:
        """Start without any; ``descriptors`` is how many may be open for all leases together."""
        self._descriptors = descriptors
        self._shared: dict[tuple[LeaseId, bytes], Shared] = {}

    def share(
        self, worker: WorkerKey, lease: LeaseId, token: bytes, value: bytes, descriptor: int
    ) -> bool:
        """Keep a handle for the other workers of ``lease``.

        Returns:
            False when there is no room, or something under this token already.

        The descriptor is closed here, now or when its worker ends.

        Raises:
            BudgetError: when something is too large.
        """
        if len(token) != TOKEN_SIZE or len(value) > VALUE_SIZE_MAX:
            _close(descriptor)
            raise BudgetError("a handle that cannot be shared")
        full = sum(1 for owner, _ in self._shared if owner == lease) >= SHARED_MAX
        full = full or (descriptor >= 0 and not self._may_open(lease))
        if full or (lease, token) in self._shared:
            _close(descriptor)
            return False
        self._shared[lease, token] = Shared(worker, value, descriptor)
        return True

    def _may_open(self, lease: LeaseId) -> bool:
        """Say whether there may be one more descriptor of a lease."""
        owners = [owner for (owner, _), one in self._shared.items() if one.descriptor >= 0]
        own = owners.count(lease)
        return len(owners) < self._descriptors and own < self._descriptors // LEASE_PART

    def find(self, lease: LeaseId, token: bytes) -> Shared | None:
        """Return the handle that a worker of ``lease`` has shared under this token."""
        return self._shared.get((lease, token))

    def forget(self, worker: WorkerKey, lease: LeaseId, token: bytes) -> None:
        """Remove the handle that a worker has shared under this token.

        Raises:
            BudgetError: when it has shared nothing under it.
        """
        found = self._shared.get((lease, token))
        if found is None or found.worker != worker:
            raise BudgetError("a handle that is not this worker's")
        _close(self._shared.pop((lease, token)).descriptor)

    def end_worker(self, worker: WorkerKey) -> None:
        """Forget everything that a worker has shared."""
        for key in [key for key, one in self._shared.items() if one.worker == worker]:
            _close(self._shared.pop(key).descriptor)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
