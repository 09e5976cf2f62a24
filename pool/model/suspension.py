"""Suspension in the table: leases with workers that release their GPUs for a while.

A lease goes from held to suspending, suspended, resuming, and is held again. Its memory is counted
all the time but while it is suspended: it is given back once all servers of the lease have said
that their workers have let go, and taken again before any of them is told to go on.

A lease is moved to other GPUs of its server by a suspension that has ``moves``: with the word of
the last server it gives the old GPUs back and takes the new ones, in one step, and is resuming.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from gpupool.pool.model.bounds import KeptTime
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
)

SPAN_COUNT_MAX = 64
"""Of a lease's times away that are told apart; the oldest two become one when there are more."""

DRIVER_SINCE = 570
"""The first NVIDIA driver with ``cuCheckpointProcess*``."""

DRIVER_TOO_OLD = (
    f"the server's NVIDIA driver is older than {DRIVER_SINCE}, which is the first that can suspend "
    "a program"
)
MIG_INSTANCE = "a MIG instance cannot be suspended"
USES_NCCL = "one of its processes uses NCCL, whose connections to others cannot be suspended"
"""Reasons that the table, a server's host and its privileged helper may find, each in its own
way."""

Span = tuple[KeptTime, KeptTime]
"""From when to before when, in the table's time."""


class SuspensionState(Enum):
    """How far the suspension of a lease is."""

    SUSPENDING = "suspending"  # its servers are told to stop its workers; its memory is counted
    SUSPENDED = "suspended"  # they all have; its memory is given back
    RESUMING = "resuming"  # its memory is counted again, and its servers bring its workers back


@dataclass(frozen=True, slots=True)
class GpuMove:
    """One partition of a lease that goes to another GPU of its server."""

    server: ServerId
    gpu: GpuId
    to: GpuId


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why and how far a lease is suspended."""

    state: SuspensionState
    number: int  # the index of the command that began it: what confirmations must carry
    by: str  # a user; empty: the pool itself
    why: str
    since: Milliseconds
    for_request: RequestId | None = None  # which gets the memory
    confirmed: tuple[ServerId, ...] = ()  # servers that have done what ``state`` asks of them
    bytes: int = 0  # of its servers' memory, that it takes meanwhile
    resume_since: Milliseconds = Milliseconds(0)
    """Since when it goes on as soon as there is room; 0: somebody must say so."""
    moves: tuple[GpuMove, ...] = field(default=(), metadata=OPTIONAL)
    """To be made while it is suspending; made, and to be done by its hosts, while resuming."""


def suspension_reason(suspension: Suspension | None) -> str:
    """Return a lease's suspender and reason, for people; empty for a lease not suspended."""
    if suspension is None:
        return ""
    why = f": {suspension.why}" if suspension.why else ""
    return f"by {suspension.by or 'the pool'}{why}"


@dataclass(frozen=True, slots=True)
class SuspendRefusal:
    """The latest attempt to suspend a lease, which failed."""

    reason: str
    at: Milliseconds


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SuspendLease:
    """First step: all servers of a lease must stop its workers.

    ``by`` is empty when the pool itself suspends it: for a request of higher priority, or because
    of a window of the policy. Then it goes on by itself, too. ``order`` is as in ``DrainServer``.
    """

    lease: LeaseId
    why: str
    by: str = ""
    operator: bool = False
    for_request: RequestId | None = None
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfirmSuspended:
    """Second step, by each server: its workers have let go of their GPUs' memory."""

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    number: int
    bytes: int  # of this server's memory, that they take now


@dataclass(frozen=True, slots=True)
class RefuseSuspension:
    """Instead of the second step: a server cannot suspend this lease, so all go on.

    Instead of the last step of a move: its server cannot bring it back on the new GPUs. Then it
    goes on with its old ones, if nobody has them.
    """

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeLease:
    """Third step: take the memory again, on the same GPUs.

    A person's order that finds no room is kept: the pool orders it again when there is some.
    """

    lease: LeaseId
    by: str = ""  # empty: the pool itself
    operator: bool = False
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfirmResumed:
    """Last step, by each server: its workers go on."""

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    number: int


@dataclass(frozen=True, slots=True)
class MoveLease:
    """Move a lease to other GPUs of one of its servers, by a suspension; a person's order.

    GPUs that it cannot have by then leave it where it was.
    """

    lease: LeaseId
    server: ServerId
    by: str
    operator: bool = False
    gpus: tuple[GpuId, ...] = ()  # that it leaves; empty: all that it has on that server
    to: tuple[GpuId, ...] = ()  # one for each of them, in their order; empty: the pool chooses
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class SuspensionHistory:
    """The suspension history of a lease; a lease has none before its first suspension."""

    resumed_at: Milliseconds = Milliseconds(0)
    """When it was resumed last after others had suspended it, not its own user; 0: never."""
    away_ms: int = 0  # how long its memory was given back, all in all
    away_since: Milliseconds = Milliseconds(0)  # 0: it is not now
    refusal: SuspendRefusal | None = None  # of the latest attempt; None when that has not failed
    orders: tuple[bytes, ...] = field(default=(), metadata=OPTIONAL)  # as in ``Server``
    away: tuple[Span, ...] = field(default=(), metadata=OPTIONAL)
    """The times of ``away_ms``, oldest first: accounts do not count them."""
    moved_at: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)
    """When it got other GPUs than its grant gave it, the latest time; 0: never."""

    def back(self, now: Milliseconds) -> "SuspensionHistory":
        """Return the history of a lease that takes its memory again now."""
        away = self.until(now)
        lasted = sum(end - begin for begin, end in away)
        return replace(self, away=away, away_ms=lasted, away_since=Milliseconds(0))

    def until(self, now: Milliseconds) -> tuple[Span, ...]:
        """Return all times up to ``now`` in which the memory was given back."""
        if not 0 < self.away_since < now:
            return self.away
        found = (*self.away, (self.away_since, now))
        while len(found) > SPAN_COUNT_MAX:
            (begin, end), (later, upto), *rest = found
            found = ((Milliseconds(later - (end - begin)), upto), *rest)  # as long together
        return found
