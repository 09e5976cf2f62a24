"""A move of the table's time back: the change of instants, and the leases not moved yet.

An operator's ``SetClock`` begins it (``transitions.clock_setting``). Leases are moved in the order
of their ids, some with each command. One that a command changes meanwhile is moved ahead of them.
"""

from dataclasses import dataclass

from gpupool.pool.model.ids import LeaseId, Milliseconds


@dataclass(frozen=True, slots=True)
class ClockMove:
    """Instants between ``to`` and ``before`` in the table come from the accident."""

    to: Milliseconds
    before: Milliseconds  # the table's time when it was set
    last: LeaseId  # no lease of then has a larger id, and each later one has
    after: LeaseId = LeaseId(0)  # all leases up to this one are moved
    ahead: tuple[LeaseId, ...] = ()  # larger ones that are moved, too

    def is_due(self, lease: LeaseId) -> bool:
        """Return whether a lease is still to be moved."""
        return self.after < lease <= self.last and lease not in self.ahead

    def made_since(self, at: int) -> bool:
        """Return whether an instant that lay in the past is of the accident."""
        return self.to < at <= self.before

    def moved(self, at: int) -> Milliseconds:
        """Return an instant as far from the new time as it was from the old one; 0 is none."""
        return Milliseconds(max(1, at - (self.before - self.to)) if at else 0)

    def cut(self, at: int) -> Milliseconds:
        """Return an instant in the past, or the new time for one of the accident."""
        return Milliseconds(min(at, self.to))

    def past(self, at: int) -> Milliseconds:
        """Return an instant in the past, moved if it is of the accident."""
        return self.moved(at) if self.to < at <= self.before else Milliseconds(at)
