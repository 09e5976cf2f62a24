"""Usage of leases that counts against the limits of a policy."""

from collections.abc import Callable
from operator import attrgetter

from gpupool.pool.model.policy import UNIT, Usage
from gpupool.pool.model.state import Gpu, Lease, Partition, PartStatus

NOTHING = Usage()


def units_of(partition: Partition, gpu: Gpu) -> int:
    """Return the share of a GPU that a partition counts as, in units of ``policy.UNIT``."""
    return partition.memory * UNIT // gpu.capacity if gpu.capacity else 0


def usage_of(lease: Lease) -> Usage:
    """Return the usage of a lease: the parts not freed yet; a suspended one counts as a lease.

    One that goes to another server has memory on both, and counts one of them.
    """
    if lease.relocation is None and lease.parts and PartStatus.FREED not in lease.parts.values():
        if lease.is_away:
            return Usage(leases=1)
        return Usage(sum(lease.units.values()), sum([p.memory for p in lease.partitions]), 1)
    live = {server for server, part in lease.parts.items() if part is not PartStatus.FREED}
    leases = 1 if live else 0
    if lease.is_away:
        return Usage(leases=leases)
    if lease.relocation is not None:
        live.discard(lease.relocation.uncounted)
    return Usage(
        units=sum(lease.units.get(server, 0) for server in live),
        memory=sum(part.memory for part in lease.partitions if part.server in live),
        leases=leases,
    )


def plus(one: Usage, other: Usage, sign: int = 1) -> Usage:
    """Return the sum of two, or with ``sign`` -1 the difference."""
    return Usage(
        one.units + sign * other.units,
        one.memory + sign * other.memory,
        one.leases + sign * other.leases,
    )


USED: dict[str, Callable[[Usage], int]] = {
    "max_gpus": attrgetter("units"),
    "max_memory": attrgetter("memory"),
    "max_leases": attrgetter("leases"),
}
"""The usage with which a cap of each dimension is compared."""


def used(usage: Usage, dimension: str) -> int:
    """Return the usage with which a cap of this dimension is compared."""
    return USED[dimension](usage)
