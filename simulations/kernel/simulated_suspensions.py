"""How a simulated host suspends and resumes leases: late, and sometimes not at all.

As ``remoting.host.suspension.suspensions`` does it: an order is noted at once and carried out
later, one after the other, and sessions of a lease are opened once it runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.state import Partition
from gpupool.remoting.protocol.sessions import NO_MOVES

MOVE_S = 0.8
"""Mean time that it takes to suspend or to resume a lease."""

MOVE_S_MAX = 3 * MOVE_S
"""No longer than that, so that a checker knows when it is late."""

SETTLE_S = 0.05
REFUSES = 0.1
"""The part of suspensions that a host refuses."""

STRANDS = 0.2
"""The part of restorations on other GPUs that the driver refuses without harm."""

LOSES = 0.05
"""The share of suspensions and resumptions in which the driver loses the workers' memory."""

P = SuspensionPhase


class After(Protocol):
    """A process that does something later, if it still lives."""

    def after(self, delay_s: float, action: Callable[[], None]) -> object:
        """Call back after a delay."""
        ...


class Away(Protocol):
    """A machine with workers that let go of memory, and take it again."""

    def set_away(self, lease: LeaseId, away: bool) -> None:
        """Do so for a whole lease."""
        ...

    def relocate(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        """Move the memory of a lease from some GPUs to others."""
        ...

    def strand(self, lease: LeaseId) -> None:
        """Take note that a lease cannot go on with the GPUs that it was moved to."""
        ...

    def lose(self, lease: LeaseId) -> None:
        """Let all workers of a lease end, because the driver has lost their memory."""
        ...

    def memory_of(self, lease: LeaseId) -> tuple[Partition, ...]:
        """Return the partitions of its live workers."""
        ...

    def new_random(self) -> Random:
        """Return a separate random source."""
        ...


@dataclass(slots=True, eq=False)
class _Order:
    number: int
    wanted: bool
    phase: SuspensionPhase = P.RUNNING
    bytes: int = 0
    reason: str = ""
    moves: Mapping[GpuId, GpuId] = field(default_factory=lambda: NO_MOVES)
    moved: Mapping[GpuId, GpuId] = field(default_factory=lambda: NO_MOVES)  # counted, not done yet
    driven: bool = False
    gone: bool = False
    waiting: list[tuple[Callable[[], None], Callable[[], None]]] = field(
        default_factory=list[tuple[Callable[[], None], Callable[[], None]]]
    )


class SimulatedSuspensions:
    """The suspended leases of one server process."""

    def __init__(self, machine: Away, process: After, openings: Mapping[LeaseId, object]) -> None:
        """Prepare; ``openings`` are the leases for which sessions are being opened."""
        self._machine = machine
        self._process = process
        self._openings = openings
        self._orders: dict[LeaseId, _Order] = {}
        self._random = machine.new_random()

    def suspend(self, lease: LeaseId, number: int) -> None:
        """Note that a lease is to be suspended."""
        self._order(lease, number, wanted=True)

    def resume(self, lease: LeaseId, number: int, moves: Mapping[GpuId, GpuId] = NO_MOVES) -> None:
        """Note that a lease is to go on, some of it on other GPUs."""
        self._order(lease, number, wanted=False, moves=moves)

    def phases(self) -> dict[LeaseId, HostSuspension]:
        """Return how far each lease is."""
        return {
            lease: HostSuspension(each.number, each.phase, each.bytes, each.reason)
            for lease, each in self._orders.items()
        }

    def holds(self, lease: LeaseId) -> bool:
        """Return whether no session of a lease may be opened now."""
        order = self._orders.get(lease)
        return order is not None and (order.wanted or order.phase is not P.RUNNING)

    def when_running(
        self, lease: LeaseId, start: Callable[[], None], over: Callable[[], None]
    ) -> None:
        """Call ``start`` once a lease runs again, or ``over`` when it has ended."""
        self._orders[lease].waiting.append((start, over))

    def forget(self, lease: LeaseId) -> None:
        """Drop a lease that has ended."""
        order = self._orders.pop(lease, None)
        if order is not None:
            order.gone = True
            for _, over in order.waiting:
                self._process.after(0.0, over)

    def _order(
        self,
        lease: LeaseId,
        number: int,
        *,
        wanted: bool,
        moves: Mapping[GpuId, GpuId] = NO_MOVES,
    ) -> None:
        order = self._orders.get(lease)
        if order is None:
            order = self._orders[lease] = _Order(number, wanted)
        elif number < order.number or (number == order.number and wanted == order.wanted):
            if order.phase is P.STRANDED and number == order.number and not moves:
                self._return(lease, order)
            return
        order.number, order.wanted, order.moves = number, wanted, moves
        if order.phase is P.REFUSED:
            order.phase = P.RUNNING
        if order.phase is P.STRANDED:
            self._return(lease, order)
        self._drive(lease, order)

    def _drive(self, lease: LeaseId, order: _Order) -> None:
        if order.driven or order.gone:
            return
        if order.phase is P.RUNNING and not order.wanted:
            waiting, order.waiting = order.waiting, []
            for start, _ in waiting:
                start()
        elif (order.phase is P.RUNNING) == order.wanted and order.phase is not P.REFUSED:
            order.driven = True
            order.phase = P.SUSPENDING if order.wanted else P.RESUMING
            if order.moves:
                self._relocate(lease, order)
            self._later(self._suspended if order.wanted else self._resumed, lease, order)

    def _later(
        self, step: Callable[[LeaseId, _Order], None], lease: LeaseId, order: _Order
    ) -> None:
        takes_s = min(self._random.expovariate(1 / MOVE_S), MOVE_S_MAX)
        self._process.after(takes_s, partial(step, lease, order))

    def _relocate(self, lease: LeaseId, order: _Order) -> None:
        self._machine.relocate(lease, order.moves)
        order.moved, order.moves = order.moves, NO_MOVES
        waiting, order.waiting = order.waiting, []
        for _, again in waiting:  # Their clients ask again: these would have the old GPUs.
            self._process.after(0.0, again)

    def _suspended(self, lease: LeaseId, order: _Order) -> None:
        if order.gone:
            return
        if lease in self._openings:
            self._process.after(SETTLE_S, partial(self._suspended, lease, order))
            return
        order.driven = False
        lost = self._random.random() < LOSES
        if lost or self._random.random() < REFUSES:
            order.phase = P.REFUSED if order.wanted else P.RUNNING
            order.reason = "the driver has lost it" if lost else "no room in its memory"
            if lost:
                self._machine.lose(lease)
        else:
            order.bytes = sum(part.memory for part in self._machine.memory_of(lease))
            order.phase = P.SUSPENDED
            self._machine.set_away(lease, away=True)
        self._drive(lease, order)

    def _resumed(self, lease: LeaseId, order: _Order) -> None:
        if order.gone:
            return
        order.driven = False
        if order.moved and self._random.random() < STRANDS:
            order.phase, order.reason = P.STRANDED, "the driver refuses the other GPU"
            self._machine.strand(lease)
            return
        order.phase, order.bytes, order.reason, order.moved = P.RUNNING, 0, "", NO_MOVES
        if self._random.random() < LOSES:
            self._machine.lose(lease)
        else:
            self._machine.set_away(lease, away=False)
        self._drive(lease, order)

    def _return(self, lease: LeaseId, order: _Order) -> None:
        """Go on with the GPUs that a lease was moved from, or with others than those and these."""
        self._machine.relocate(lease, {new: old for old, new in order.moved.items()})
        order.phase, order.moved, order.driven = P.RESUMING, NO_MOVES, True
        if order.moves:
            self._relocate(lease, order)
        self._later(self._resumed, lease, order)
