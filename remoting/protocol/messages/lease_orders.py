"""The orders about one lease, which its user may give, too; ``orders`` says how an order works."""

from typing import ClassVar

from gpupool.pool.errors import UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, lease_name
from gpupool.pool.model.relocation import RelocateLease as RelocateCommand
from gpupool.pool.model.suspension import MoveLease as MoveCommand
from gpupool.pool.model.suspension import ResumeLease as ResumeCommand
from gpupool.pool.model.suspension import SuspendLease as SuspendCommand
from gpupool.pool.transitions.leases import PARTITION_COUNT_MAX
from gpupool.pool.view import visible
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.orders import (
    REASON_LENGTH_MAX,
    Issue,
    NumberedOrder,
    Order,
)

END_REASON_LENGTH_MAX = 150


class LeaseOrder(Order):
    """An order about a lease, which is its field ``lease``."""

    __slots__ = ()
    lease: LeaseId

    def named_lease(self) -> LeaseId:
        """Return the lease."""
        return self.lease


class NumberedLeaseOrder(LeaseOrder, NumberedOrder):
    """One that another order undoes."""

    __slots__ = ()
    done: ClassVar[str]

    def outcome(self, note: str) -> str:
        """Return that the order has begun, or the note of the answer."""
        return f"lease {lease_name(self.lease)}" + (f": {note}" if note else f" {self.done}")


@message(53, rights=Rights.OWNER_OR_OPERATOR)
class EndLease(LeaseOrder):
    """End a lease by order; one's own, or any for an operator."""

    lease: LeaseId
    reason: str

    def command(self, issue: Issue) -> Command:
        """Return the command; its reason names the person as well."""
        reason = visible(self.reason[:END_REASON_LENGTH_MAX]) or "ended by order"
        reason = f"{reason} (by {issue.by})"
        return commands.EndLease(self.lease, reason, issue.by, issue.operator)

    def outcome(self, note: str) -> str:
        """Return that its workers are about to end."""
        return f"lease {lease_name(self.lease)} is ending"


@message(62, rights=Rights.OWNER_OR_OPERATOR)
class SuspendLease(NumberedLeaseOrder):
    """Suspend a lease: free its GPUs until a resume; one's own, or any for an operator."""

    lease: LeaseId
    why: str
    order: bytes = b""
    done: ClassVar[str] = "is being suspended"

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        why = visible(self.why[:REASON_LENGTH_MAX])
        by, operator = issue.by, issue.operator
        return SuspendCommand(self.lease, why, by, operator, order=self.order)


@message(63, rights=Rights.OWNER_OR_OPERATOR)
class ResumeLease(NumberedLeaseOrder):
    """Resume a suspended lease; one's own, or any for an operator."""

    lease: LeaseId
    order: bytes = b""
    done: ClassVar[str] = "is being resumed"

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        return ResumeCommand(self.lease, issue.by, issue.operator, self.order)


@message(66, rights=Rights.OWNER_OR_OPERATOR)
class MoveLease(NumberedLeaseOrder):
    """Move a lease to other GPUs of one of its servers; one's own, or any for an operator.

    ``gpus`` are those that it leaves, empty for all that it has there; ``to`` are as many, in their
    order, or none for those that the pool chooses.
    """

    lease: LeaseId
    server: ServerId
    gpus: tuple[GpuId, ...] = ()
    to: tuple[GpuId, ...] = ()
    order: bytes = b""
    done: ClassVar[str] = "is being moved"

    def check(self) -> None:
        """Refuse more GPUs than a lease can have."""
        if max(len(self.gpus), len(self.to)) > PARTITION_COUNT_MAX:
            raise UsageError(f"a lease has at most {PARTITION_COUNT_MAX} GPUs")

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        by, operator = issue.by, issue.operator
        return MoveCommand(self.lease, self.server, by, operator, self.gpus, self.to, self.order)


@message(67, rights=Rights.OWNER_OR_OPERATOR)
class RelocateLease(NumberedLeaseOrder):
    """Move a lease to another server; one's own, or any for an operator."""

    lease: LeaseId
    server: ServerId
    order: bytes = b""
    done: ClassVar[str] = "is being moved"

    def command(self, issue: Issue) -> Command:
        """Return the command."""
        by, operator = issue.by, issue.operator
        return RelocateCommand(self.lease, self.server, by, operator, self.order)
