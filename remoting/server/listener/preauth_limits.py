"""Limits on connections that have proven nothing yet, for each source address and for all.

A stranger may open as many connections as his kernel lets him; none of them may keep somebody else
out. So a new connection always gets in, and an old one goes for it when there is no room:

* An address (an IPv6 address: its /64 network) has ``per_address`` places. When they are taken, the
  oldest of its own connections that has come least far goes.
* All unknown addresses together have ``total`` places. When these are taken, the address with the
  most connections loses its oldest one that has come least far.
* An address that has proven itself (a token, or a peer's certificate) within ``REMEMBERED_S`` does
  not count among the unknown: a flood of strangers costs it nothing.

TLS handshakes cost processor time (up to 1 ms each, all that belongs to them), so unknown addresses
start at most ``handshakes_per_s`` together, fewer on a busy machine (``Pauses``). Each one gets
its turn: round robin, with a line of their own for addresses that have had none (``NetworkTurns``).
So a login does not wait for a round of all attackers.

A known address may be shared with an attacker, so it has a pace, too: ``KNOWN_PER_S`` of its own.
It may start as many at once as it has places, so clients that come together do not wait. Beyond
its pace the latest to ask go first, because those before them are about to give up.

TLS costs memory until its connection has proven itself: when ``tls_count_max`` of unknown addresses
have some, the next one ends the oldest of the address with the most. The known ones have
``KNOWN_FACTOR`` times as many, by the same rule. Pure: ``accept_queue`` and ``router`` have the
sockets and the waiting.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from gpupool.pool.fair_access import NetworkTurns, network_of
from gpupool.pool.ports import Clock

REMEMBERED_S = 3600.0
KNOWN_FACTOR = 8
"""How many times the places of an unknown address a known one has: a host that starts many jobs."""

KNOWN_COUNT_MAX = 4096
"""Addresses that have proven themselves and are remembered; the oldest ones go first."""

KNOWN_PER_S = 100.0
"""Handshakes of one known address that may begin in a second, after those that begin at once."""

BURST_S = 0.02
"""Seconds of handshakes that may start at once: a loop that is late does not catch up with them.
They start together, so that the loop is woken once for some of them."""

PAUSE_MAX_S = 0.08
LATE_FACTOR = 10
"""How many times a delay of the loop strangers wait more: on a busy machine each of their
handshakes delays everybody else's steps, and they can wait."""

LATE_KEPT = 0.9
"""Part of the longest delay kept from one pause to the next: few pauses show the delay that the
loop's other steps meet."""


CROWD = 64
"""Connections of unknown addresses that are more than some clients that start at once."""


class Stage(IntEnum):
    """How far a connection has come: those at the lowest stage go first."""

    SILENT = 0  # has not sent a whole opening yet
    HANDSHAKE = 1
    GREETING = 2  # encrypted, and its first message is awaited


def _do_nothing() -> None:
    pass


@dataclass(eq=False, slots=True)
class Place:
    """One connection that has proven nothing yet."""

    network: str
    counted: bool  # among the unknown
    evict: Callable[[], None]
    stage: Stage = Stage.SILENT
    go: Callable[[], None] = _do_nothing  # begins its handshake, while that waits


class _Crowd:
    """The places of some networks, oldest first; knows the network with the most of them."""

    def __init__(self) -> None:
        self.size = 0
        self._networks: dict[str, dict[Place, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0

    def of(self, network: str) -> dict[Place, None]:
        return self._networks.get(network, {})

    def add(self, place: Place) -> None:
        places = self._networks.setdefault(place.network, {})
        places[place] = None
        self.size += 1
        self._move(place.network, len(places) - 1, len(places))
        self._most = max(self._most, len(places))

    def remove(self, place: Place) -> None:
        """Remove a place, if it is here."""
        places = self._networks.get(place.network, {})
        if place not in places:
            return
        del places[place]
        self.size -= 1
        self._move(place.network, len(places) + 1, len(places))
        if self._most not in self._by_count:
            self._most -= 1  # where that network is now
        if not places:
            del self._networks[place.network]

    def busiest(self, newcomer: str) -> dict[Place, None]:
        """Return the places of the busiest network: the newcomer's, if no other has more."""
        mine = self.of(newcomer)
        if len(mine) == self._most:
            return mine
        return self._networks[next(iter(self._by_count[self._most]))]

    def _move(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_count[before][network]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[network] = None


class _KnownPaces:
    """The pace of each known network, and its separate line of waiting connections."""

    def __init__(self, burst: int) -> None:
        self.size = 0
        self._burst_s = burst / KNOWN_PER_S
        # The next time in the even pace of each network; it lies at most ``_burst_s`` behind.
        self._next_at: OrderedDict[str, float] = OrderedDict()
        self._lines: dict[str, dict[Place, None]] = {}

    def ask(self, place: Place, now: float) -> bool:
        """Return whether a connection may begin its handshake now; else it waits."""
        if place.network not in self._lines and self._take(place.network, now):
            return True
        line = self._lines.setdefault(place.network, {})
        self.size += place not in line  # It stands here once.
        line[place] = None
        return False

    def remove(self, place: Place) -> None:
        """Remove a place, if it waits."""
        line = self._lines.get(place.network, {})
        if place in line:
            del line[place]
            self.size -= 1
            if not line:
                del self._lines[place.network]

    def due(self, now: float) -> Iterator[Place]:
        """Remove and yield the places that are due; others may leave meanwhile."""
        for network in list(self._lines):
            while (line := self._lines.get(network)) and self._take(network, now):
                # The latest one. Each gives up after 2 s, so with more than the pace the first of
                # a line is about to, and its handshake would be for nothing.
                place = next(reversed(line))
                self.remove(place)
                yield place

    def next_at(self, now: float) -> float:
        """Return when the next one may begin."""
        times = (self._next_at.get(network, now) for network in self._lines)
        return min(times, default=float("inf"))

    def _take(self, network: str, now: float) -> bool:
        next_at = max(self._next_at.get(network, float("-inf")), now - self._burst_s)
        if next_at > now:
            return False
        self._next_at[network] = next_at + 1 / KNOWN_PER_S
        self._next_at.move_to_end(network)
        if len(self._next_at) > KNOWN_COUNT_MAX:
            self._next_at.popitem(last=False)
        return True


class PreauthLimits:
    """The places of one port; see the module."""

    def __init__(
        self,
        clock: Clock,
        *,
        total: int,
        per_address: int,
        handshakes_per_s: float,
        tls_count_max: int,
    ) -> None:
        self._clock = clock
        self._total = total
        self._per_address = per_address
        self._interval_s = 1 / handshakes_per_s
        self._tls_count_max = tls_count_max
        self._all, self._unknown = _Crowd(), _Crowd()
        self._unknown_tls, self._known_tls = _Crowd(), _Crowd()
        self._proven: OrderedDict[str, float] = OrderedDict()
        self._line = NetworkTurns[Place]()
        self._known_paces = _KnownPaces(per_address * KNOWN_FACTOR)
        self._next_at = float("-inf")

    @property
    def is_crowded(self) -> bool:
        """Return whether many unknown addresses wait, or one with many connections."""
        return self._unknown.size > CROWD

    @property
    def waiting(self) -> int:
        """Return how many connections wait for their handshake."""
        return self._line.size + self._known_paces.size

    def enter(self, address: str, evict: Callable[[], None]) -> Place:
        """Take a place for a new connection; another one may be evicted for it.

        Args:
            address: the other end's, "" for a process of this machine.
            evict: closes the new connection, if that must go one day. Called at most once.
        """
        network = network_of(address)
        place = Place(network, not self._is_known(network), evict)
        mine = self._all.of(network)
        if len(mine) >= self._per_address * (1 if place.counted else KNOWN_FACTOR):
            self._evict(mine)
        elif place.counted and self._unknown.size >= self._total:
            self._evict(self._unknown.busiest(network))
        self._all.add(place)
        if place.counted:
            self._unknown.add(place)
        return place

    def leave(self, place: Place) -> None:
        """Give a place back; does nothing for one that was given back before."""
        for crowd in (self._all, self._unknown, self._unknown_tls, self._known_tls):
            crowd.remove(place)
        self._line.remove(place.network, place)
        self._known_paces.remove(place)
        place.go = _do_nothing

    def prove(self, place: Place) -> None:
        """Give a place back: its connection has proven itself, and its address is known now."""
        self.leave(place)
        self._proven[place.network] = self._clock.monotonic()
        self._proven.move_to_end(place.network)
        if len(self._proven) > KNOWN_COUNT_MAX:
            self._proven.popitem(last=False)

    # --- handshakes ------------------------------------------------------------------------------

    def request_handshake(self, place: Place, go: Callable[[], None]) -> None:
        """Call ``go`` when this connection may begin its handshake: here, or later.

        A later call comes from ``release``; none comes for a place that was given back.
        """
        if place not in self._all.of(place.network):
            return
        place.stage, place.go = Stage.HANDSHAKE, go
        if place.counted:
            self._line.add(place.network, place)
        elif self._known_paces.ask(place, self._clock.monotonic()):
            _start(place)

    def release(self) -> float:
        """Start the handshakes that are due; return the time of the next call."""
        now = self._clock.monotonic()
        for place in self._known_paces.due(now):
            _start(place)
        self._next_at = max(self._next_at, now - BURST_S)
        while self._line.size and self._next_at <= now:
            self._next_at += self._interval_s
            _start(self._line.pop())
        unknown_at = self._next_at if self._line.size else float("inf")
        return min(unknown_at, self._known_paces.next_at(now))

    def take_tls(self, place: Place) -> None:
        """Note that a connection gets TLS in this process; another one may be evicted for it."""
        crowd, most = self._known_tls, self._tls_count_max * KNOWN_FACTOR
        if place.counted:
            crowd, most = self._unknown_tls, self._tls_count_max
        if crowd.size >= most:
            self._evict(crowd.busiest(place.network))
        crowd.add(place)

    # --- internals -------------------------------------------------------------------------------

    def _is_known(self, network: str) -> bool:
        proven_at = self._proven.get(network)
        return proven_at is not None and self._clock.monotonic() - proven_at < REMEMBERED_S

    def _evict(self, places: dict[Place, None]) -> None:
        victim = min(places, key=_standing)
        self.leave(victim)
        victim.evict()


def _start(place: Place) -> None:
    go, place.go = place.go, _do_nothing  # Nothing refers to a connection that has gone on.
    go()


def _standing(place: Place) -> tuple[bool, Stage]:
    return not place.counted, place.stage


class Pauses:
    """How long handshakes that wait shall wait after others began."""

    def __init__(self) -> None:
        self.next_s = BURST_S
        self._late_s = 0.0

    def woke_up(self, late_s: float) -> None:
        """Take note of how much too late the loop woke up after a pause."""
        self._late_s = max(late_s, LATE_KEPT * self._late_s)
        self.next_s = min(PAUSE_MAX_S, BURST_S + LATE_FACTOR * self._late_s)
