"""The parts of a host that its pool of workers, its watchdog and its openings of sessions share."""

from dataclasses import dataclass

from gpupool.pool.measures import Measures
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.inventory import Inventory, Log
from gpupool.remoting.host.limits import HostLimits
from gpupool.remoting.host.privileged_helper import PrivilegedHelper


@dataclass(frozen=True, slots=True)
class HostParts:
    """See the module."""

    inventory: Inventory  # the GPUs of this server
    budget: Budget  # the reservations and charges of leases and workers
    helper: PrivilegedHelper  # starts, confines, kills and buries workers
    limits: HostLimits
    measures: Measures
    log: Log  # takes one line
