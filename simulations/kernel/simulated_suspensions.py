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

SETTLE_S = 0.05
REFUSES = 0.1
"""The part of suspensions that a host refuses."""

P = SuspensionPhase


class After(Protocol):
    """A process that does something later, if it still lives."""

    def after(self, delay_s: float, action: Callable[[], None]) -> object:
        """Call back after a delay."""
        ...


class Away(Protocol):
    """A machine whose workers let go of memory, and have it again."""

    def set_away(self, lease: LeaseId, away: bool) -> None:
        """Do so for a whole lease."""
        ...

    def relocate(self, lease: LeaseId, moves: Mapping[GpuId, GpuId]) -> None:
        """Have what a lease has on some GPUs be on others."""
        ...

    def memory_of(self, lease: LeaseId) -> tuple[Partition, ...]:
        """Return the partitions of its live workers."""
        ...

    def new_random(self) -> Random:
        """Return a source of chance of its own."""
        ...


@dataclass(slots=True, eq=False)
class _Order:
    number: int
    wanted: bool
    phase: SuspensionPhase = P.RUNNING
    bytes: int = 0
    moves: Mapping[GpuId, GpuId] = field(default_factory=lambda: NO_MOVES)
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
            lease: HostSuspension(each.number, each.phase, each.bytes, "no room in its memory")
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
            return
        order.number, order.wanted, order.moves = number, wanted, moves
        if order.phase is P.REFUSED:
            order.phase = P.RUNNING
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
            step = self._suspended if order.wanted else self._resumed
            self._process.after(self._random.expovariate(1 / MOVE_S), partial(step, lease, order))

    def _relocate(self, lease: LeaseId, order: _Order) -> None:
        self._machine.relocate(lease, order.moves)
        order.moves = NO_MOVES
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
        if self._random.random() < REFUSES:
            order.phase = P.REFUSED if order.wanted else P.RUNNING
        else:
            order.bytes = sum(part.memory for part in self._machine.memory_of(lease))
            order.phase = P.SUSPENDED
            self._machine.set_away(lease, away=True)
        self._drive(lease, order)

    def _resumed(self, lease: LeaseId, order: _Order) -> None:
        if order.gone:
            return
        order.driven, order.phase, order.bytes = False, P.RUNNING, 0
        self._machine.set_away(lease, away=False)
        self._drive(lease, order)
