"""The parts of a host that its pool of workers, its watchdog and its openings of sessions share.

Among them are its bounds and intervals: of one lease, of one worker, and of all workers.
"""

from dataclasses import dataclass
from pathlib import Path

from gpupool.pool.fair_access import UserBound
from gpupool.pool.measures import Measures
from gpupool.pool.model.units import MIB
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.inventory import Inventory, Log
from gpupool.remoting.host.privileged_helper import PrivilegedHelper


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bounds and intervals of one host; the defaults are meant for everyone."""

    workers_per_lease: int = 64
    #: So that nobody takes all of them.
    workers_per_user: UserBound = UserBound(user=192, token=144)
    workers: int = 256
    connect_timeout_s: float = 60.0  # from a session's opening to its data connection
    sample_interval_s: float = 1.0
    #: Bytes charged for each CUDA context until NVML has measured it. On GPUs from Volta to
    #: Hopper contexts take 300 to 500 MiB (facts: HAMi's issues; CuPy's documentation).
    context_overhead: int = 512 * MIB
    #: Bytes by which NVML may find a lease above its partition before a worker is killed.
    watchdog_slack: int = 256 * MIB
    #: Bytes of the server's memory that any lease may take, or a quarter of it if that is less,
    #: and for each of its workers. A larger lease may take as large a part of it as it has of the
    #: GPUs' memory.
    host_memory: int = 16 * 1024 * MIB
    host_memory_each: int = 1024 * MIB
    #: Bytes of files on this server that a lease's workers may have, and which part of the file
    #: system at most: compiled kernels and images take some hundred MiB.
    files: int = 16 * 1024 * MIB
    files_part: float = 1 / 8
    #: Bytes of the server's memory for what suspended leases have on its GPUs; below 0: half of it.
    suspend_memory: int = -1
    #: Where what does not fit into that goes; None: it is refused.
    suspend_spill: Path | None = None


@dataclass(frozen=True, slots=True)
class HostParts:
    """See the module."""

    inventory: Inventory  # the GPUs of this server
    budget: Budget  # the reservations and charges of leases and workers
    helper: PrivilegedHelper  # starts, confines, kills and buries workers
    limits: HostLimits
    measures: Measures
    log: Log  # takes one line
