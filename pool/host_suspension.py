"""A host's report on the leases that it was ordered to suspend or to resume."""

from dataclasses import dataclass
from enum import Enum


class SuspensionPhase(Enum):
    """How far a host is with one lease."""

    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"  # all its workers have let go of the GPUs' memory
    RESUMING = "resuming"
    REFUSED = "refused"  # it runs on: it could not be suspended
    STRANDED = "stranded"  # it has nothing on a GPU, and cannot go on with those it was moved to


@dataclass(frozen=True, slots=True)
class HostSuspension:
    """One lease on one host."""

    number: int  # of the latest order that the host has taken; earlier ones count no more
    phase: SuspensionPhase
    bytes: int = 0  # of this server's memory that what was on its GPUs takes
    reason: str = ""  # why it was refused, is not resumed yet, or is stranded
