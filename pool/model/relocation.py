"""Relocation in the table: a lease of the array door that goes to another server of the pool.

It takes memory on the other server with the order, and gives that on the old one back when its
program has gone. In between it has both. One of the two parts ends then, as those of an ended lease
do: its server kills what is left, and frees it.

    held --RelocateLease--> leaving --ConfirmRelocated--> gone --FreeLease of the old part--> held
                               |
                               +-----RefuseRelocation---> stays --FreeLease of the new part-> held

The program goes on with the other server once ``ConfirmRelocated`` is applied, and not before.
"""

from dataclasses import dataclass, field
from enum import Enum

from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, ServerId

RELOCATION_MS = 15 * 60_000
"""A relocation that is not confirmed for so long is given up."""

BEGIN_MS = 60_000
"""A relocation is given up, too, if its program has opened no session on the new server by then."""


class RelocationState(Enum):
    """How far a lease is on its way to another server."""

    LEAVING = "leaving"  # it has memory on both servers, and runs on the old one
    GONE = "gone"  # it runs on the new one, and the old one is to free its part
    STAYS = "stays"  # it runs on the old one, and the new one is to free its part


@dataclass(frozen=True, slots=True)
class Relocation:
    """From where to where a lease goes."""

    state: RelocationState
    number: int  # the index of the order: what confirmations and refusals must carry
    source: ServerId
    target: ServerId
    by: str
    since: Milliseconds
    source_since: Milliseconds  # when it came to the old server
    reason: str = ""  # why it stays
    billed: bool = field(default=False, metadata=OPTIONAL)
    """The new server's part counts in the accounts from the order on, wherever the lease stays."""

    @property
    def ending(self) -> ServerId | None:
        """Return the server with the part that is to be freed."""
        if self.state is RelocationState.LEAVING:
            return None
        return self.source if self.state is RelocationState.GONE else self.target

    @property
    def uncounted(self) -> ServerId:
        """Return the server with the part that policy limits do not count: a lease counts once."""
        return self.source if self.state is RelocationState.GONE else self.target


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RelocateLease:
    """Take memory for a lease on another server, on GPUs like its own; a person's order."""

    lease: LeaseId
    target: ServerId
    by: str
    operator: bool = False
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfirmRelocated:
    """By the old server: all that the program has is on the new one, and it asks to go on there."""

    lease: LeaseId
    server: ServerId
    incarnation: Incarnation
    number: int


@dataclass(frozen=True, slots=True)
class RefuseRelocation:
    """By either server, or by the leader for its deadline: the program stays on the old server."""

    lease: LeaseId
    number: int
    reason: str
    server: ServerId | None = None  # None: the leader
    incarnation: Incarnation = Incarnation(0)
