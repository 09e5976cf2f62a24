"""Order of turns on one GPU that several leases use; pure, with the time as an argument.

Leases take turns, because a GPU divides its time among processes by no share that we can set. Only
the lease that has the turn launches. At the turn's end the work under way is waited for, and the
lease is charged for all of that time. The next turn goes to the lease that wants one and has got
least for its share (stride scheduling). A lease that wants nothing is passed over, so idle time is
anyone's. While one lease alone wants the GPU its turn has no end, and nothing here runs.

Workers only say what they want and when their work is over. The clock is the host's, so a worker
that lies can waste a turn that it is charged for, or let its work run into the turns of others.
"""

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.pool.model.ids import LeaseId

Seat = int
"""One worker's place at this GPU: the worker's number, never used twice by one host."""

TURN_S = 0.02
"""The mean length of a turn. Shorter ones cost more in changes, longer ones can be felt."""

TURN_MIN_S = 0.005

DRAIN_MAX_S = 0.1
"""Work that runs on for longer after its turn runs beside that of others, and is charged."""

DEBT_MAX_S = 5.0
"""The most, in time of the whole GPU, that one lease waits because it had got more than others."""

RETURN_S = 0.05
"""A lease keeps its credit after a cut-off turn if it wants another turn within this time. A
program that waits for each of its kernels cannot want one before, and its network has a delay."""

CREDIT_MAX_S = 0.1
"""The most that it is owed then, in time of the whole GPU."""

SHARES_ERROR = 1e-9
"""By which shares that are exactly a whole GPU may add up to more."""

FORGET_S = 10.0
"""Half-life in seconds of the time that leases got, and the greatest age of shown figures."""


class Order(enum.Enum):
    """An order to a worker."""

    CLOSE = 0  # launch no more, and say when all work under way is over
    OPEN = 1  # launch
    WATCH = 2  # launch, and say when there has been nothing to launch for a while


@dataclass(frozen=True, slots=True)
class Told:
    """One order for one seat; the answer to a ``CLOSE`` names its number."""

    seat: Seat
    order: Order
    number: int


@dataclass(slots=True)
class Party:
    """One lease at the GPU."""

    share: float  # times the weight of its class: above 1 it may be
    seats: set[Seat] = field(default_factory=set[Seat])
    waiting: set[Seat] = field(default_factory=set[Seat])  # want a turn
    idle: set[Seat] = field(default_factory=set[Seat])  # have said so in this turn
    running: dict[Seat, int] = field(default_factory=dict[Seat, int])  # number of the CLOSE
    charged_from: float | None = None  # has the turn, or runs on after it
    spent_s: float = 0.0  # time divided by share, as in stride scheduling
    cut_off_at: float = -math.inf  # when the work of a turn was over that it had not given away
    recent_s: float = 0.0  # time got while others wanted theirs; decays
    resting: bool = False  # suspended


@dataclass(frozen=True, slots=True)
class Got:
    """A lease's due share of a GPU's time, and the share it got; None: nobody else wanted any."""

    due: float
    got: float | None


class Turns:
    """The turns of one GPU. After each call the caller must send the orders from ``take``."""

    def __init__(self) -> None:
        self._parties: dict[LeaseId, Party] = {}
        self._of: dict[Seat, LeaseId] = {}
        self._owner: LeaseId | None = None
        self._closing = False  # the owner's turn is over, and its work is waited for
        self._limit = math.inf  # when the turn ends, or the wait for its work
        self._given_at = 0.0
        self._number = 0
        self._floor_s = 0.0  # the least that any party that wants a turn has spent
        self._contended_at = -math.inf
        self._told: list[Told] = []

    # --- what happens -----------------------------------------------------------------------------

    def join(self, seat: Seat, lease: LeaseId, share: float, now: float) -> None:
        """Add a worker, which may launch until it is told otherwise."""
        party = self._parties.get(lease)
        if party is None:
            party = self._parties[lease] = Party(share, spent_s=self._floor_s)
        party.seats.add(seat)
        self._of[seat] = lease
        if self._owner is None:
            self._give(lease, now)
        elif self._owner != lease or self._closing:
            # It has launched nothing yet, so nothing of it is waited for.
            self._tell(seat, Order.CLOSE)
        elif self._limit < math.inf:
            self._tell(seat, Order.WATCH)

    def set_share(self, lease: LeaseId, share: float, now: float) -> None:
        """Change a lease's share from now on; the time that it is owed stays the same."""
        party = self._parties.get(lease)
        if party is None or party.share == share:
            return
        runs = party.charged_from is not None
        self._settle(party, now)
        party.charged_from = now if runs else None
        party.spent_s = self._floor_s + (party.spent_s - self._floor_s) * party.share / share
        party.share = share

    def leave(self, seat: Seat, now: float) -> None:
        """Remove a worker that has ended, with all of its work."""
        lease = self._of.pop(seat, None)
        if lease is None:
            return
        party = self._parties[lease]
        party.seats.discard(seat)
        party.waiting.discard(seat)
        party.idle.discard(seat)
        party.running.pop(seat, None)
        if not party.seats:
            self._settle(party, now)
            del self._parties[lease]
            if self._owner == lease:
                self._owner = None
        self._step(now)
        if self._owner is None and len(self._parties) == 1:
            (alone,) = self._parties
            if not self._parties[alone].resting:
                self._give(alone, now)

    def want(self, seat: Seat, now: float) -> None:
        """Note that a worker has something to launch, and may not."""
        party = self._party(seat)
        if party is None or (self._of[seat] == self._owner and not self._closing):
            return  # What it waited for has been told meanwhile.
        if not self._wants(party):
            credit_s = CREDIT_MAX_S if now - party.cut_off_at <= RETURN_S else 0.0
            party.spent_s = max(party.spent_s, self._floor_s - credit_s / party.share)
        party.waiting.add(seat)
        self._step(now)

    def idle(self, seat: Seat, now: float) -> None:
        """Note that a worker with the turn has had nothing to launch for a while."""
        party = self._party(seat)
        if party is not None and self._of[seat] == self._owner and not self._closing:
            party.idle.add(seat)
            self._step(now)

    def drained(self, seat: Seat, number: int, now: float) -> None:
        """Note that the work of a worker is over that was told to close by that number."""
        party = self._party(seat)
        if party is None or party.running.get(seat) != number:
            return
        del party.running[seat]
        if not party.running:
            self._settle(party, now)
            if party.cut_off_at == math.inf:
                party.cut_off_at = now
        self._step(now)

    def rest(self, lease: LeaseId, now: float) -> None:
        """Pass over a lease that is being suspended; its work until then is not charged."""
        party = self._parties.get(lease)
        if party is None or party.resting:
            return
        self._settle(party, now)
        party.resting = True
        party.waiting.clear()
        if self._owner == lease:
            self._owner = None
        for seat in party.seats:
            self._tell(seat, Order.CLOSE)
        party.running.clear()
        self._step(now)

    def come_back(self, lease: LeaseId, now: float) -> None:
        """Count a lease again; its workers are asked anew whether they want something."""
        party = self._parties.get(lease)
        if party is None or not party.resting:
            return
        party.resting = False
        party.spent_s = max(party.spent_s, self._floor_s)
        party.waiting |= party.seats
        self._step(now)

    def tick(self, now: float) -> None:
        """Let the time pass; called at ``wake_at`` or later."""
        self._step(now)

    # --- what follows -----------------------------------------------------------------------------

    def wake_at(self) -> float:
        """Return when ``tick`` is to be called; infinite: no earlier than something happens."""
        return self._limit

    def are_shared(self) -> bool:
        """Return whether several leases use the GPU."""
        return len(self._parties) > 1

    def is_empty(self) -> bool:
        """Return whether there is no worker."""
        return not self._of

    def take(self) -> list[Told]:
        """Return the pending orders to the workers, in the order of sending."""
        told, self._told = self._told, []
        return told

    def got(self, now: float) -> dict[LeaseId, Got]:
        """Return each lease's due share, and the part that it got of the wanted time.

        Due is what it gets at least when all want theirs: no more than all of them add up to.
        """
        fresh = now - self._contended_at < FORGET_S
        whole = sum(party.recent_s for party in self._parties.values())
        return {
            lease: Got(self._due(party), party.recent_s / whole if fresh and whole > 0 else None)
            for lease, party in self._parties.items()
        }

    def _due(self, party: Party) -> float:
        others = (each for each in self._parties.values() if each is not party)
        shares = party.share + sum(each.share for each in others if not each.resting)
        return party.share / shares if shares > 1 + SHARES_ERROR else party.share

    # --- parts ------------------------------------------------------------------------------------

    def _party(self, seat: Seat) -> Party | None:
        lease = self._of.get(seat)
        party = None if lease is None else self._parties[lease]
        return None if party is None or party.resting else party

    def _wants(self, party: Party) -> bool:
        return bool(party.waiting) and not party.resting

    def _step(self, now: float) -> None:
        """End the turn if it is to end, and give the next one."""
        owner = None if self._owner is None else self._parties[self._owner]
        others = [p for lease, p in self._parties.items() if lease != self._owner]
        contended = any(self._wants(party) for party in others)
        if owner is not None and not self._closing:
            if not contended:
                self._settle(owner, now)
                self._limit = math.inf
                return
            if self._limit == math.inf:
                self._end_of_peace(owner, now)
            gives = owner.idle >= owner.seats
            if not gives and (now < self._limit or self._goes_on(owner, now)):
                return
            self._close(owner, now)
            owner.cut_off_at = -math.inf if gives else math.inf
        if self._closing and owner is not None and owner.running and now < self._limit:
            return
        self._closing, self._owner, self._limit = False, None, math.inf
        self._give(self._next(), now)

    def _goes_on(self, owner: Party, now: float) -> bool:
        """Give the owner the next turn too, if it is still owed more than those that want one.

        Turns of work that cannot be cut are longer than meant, and the shortest grow most.
        """
        self._settle(owner, now)
        owner.charged_from = now
        least = min(p.spent_s for p in self._parties.values() if p is not owner and self._wants(p))
        if owner.spent_s >= least:
            return False
        # It has spent the least. Else the bound of its debt could stay below what others spent.
        self._floor_s = max(self._floor_s, owner.spent_s)
        self._limit = now + self._length(owner)
        for seat in sorted(owner.idle):  # it may have launched again since
            self._tell(seat, Order.WATCH)
        owner.idle.clear()
        return True

    def _close(self, owner: Party, now: float) -> None:
        self._closing, self._limit = True, now + DRAIN_MAX_S
        self._contended_at = now
        for seat in sorted(owner.seats):
            owner.running[seat] = self._tell(seat, Order.CLOSE)

    def _next(self) -> LeaseId | None:
        """Return the lease with the least time for its share, among those that want a turn."""
        ready = {k: p for k, p in self._parties.items() if self._wants(p) and not p.running}
        if not ready:
            return None
        lease = min(ready, key=lambda each: (ready[each].spent_s, each))
        self._floor_s = max(self._floor_s, ready[lease].spent_s)
        return lease

    def _give(self, lease: LeaseId | None, now: float) -> None:
        if lease is None:
            return
        party = self._parties[lease]
        self._owner, self._given_at = lease, now
        party.waiting.clear()
        party.idle.clear()
        length = self._length(party)
        contended = length < math.inf
        party.charged_from = now if contended else None
        self._limit = now + length
        for seat in sorted(party.seats):
            self._tell(seat, Order.WATCH if contended else Order.OPEN)

    def _length(self, party: Party) -> float:
        """Return how long its turn is, beside those that want one now."""
        shares = [p.share for p in self._parties.values() if p is not party and self._wants(p)]
        if not shares:
            return math.inf
        part = party.share / (party.share + sum(shares))
        return max(TURN_MIN_S, TURN_S * (len(shares) + 1) * part)

    def _end_of_peace(self, owner: Party, now: float) -> None:
        """Limit the turn of a lease that had the GPU for itself until now.

        What it had before is not charged, if it was more than a turn: it was idle time.
        """
        length = self._length(owner)
        self._limit = max(now, self._given_at + length)
        owner.charged_from = now if self._limit == now else self._given_at
        if self._limit > now:
            for seat in sorted(owner.seats):
                self._tell(seat, Order.WATCH)

    def _settle(self, party: Party, now: float) -> None:
        """Charge a lease's time since the beginning of its turn."""
        began, party.charged_from = party.charged_from, None
        if began is None:
            return
        for each in self._parties.values():
            each.recent_s *= 0.5 ** ((now - began) / FORGET_S)
        party.recent_s += now - began
        spent = party.spent_s + (now - began) / party.share
        party.spent_s = min(spent, self._floor_s + DEBT_MAX_S / party.share)

    def _tell(self, seat: Seat, order: Order) -> int:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._told.append(Told(seat, order, self._number))
        return self._number


def least_wake(turns: Iterable[Turns]) -> float:
    """Return when the first of several GPUs needs a ``tick``."""
    return min((each.wake_at() for each in turns), default=math.inf)
