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
its turn: round robin, with a line of their own for addresses that have had none (``_Line``). So a
login does not wait for a round of all attackers. TLS costs memory, too,
until its connection has proven itself: when ``tls_count_max`` of unknown addresses have some, the
next one ends the oldest of the address with the most. Pure: ``lobby`` and ``router`` have the
sockets and the waiting.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from gpupool.pool.ports import Clock

REMEMBERED_S = 3600.0
KNOWN_FACTOR = 8
"""How many times the places of an unknown address a known one has: a host that starts many jobs."""

KNOWN_COUNT_MAX = 4096
"""Addresses that have proven themselves and are remembered; the oldest ones go first."""

FIRST_IN_ROW_MAX = 3
"""Addresses that have their first turn one after the other, while others wait for another turn."""

SERVED_COUNT_MAX = 4096
"""Addresses that have had a turn and are remembered while others wait."""

BURST_S = 0.02
"""Seconds of handshakes that may start at once: a loop that is late does not catch up with them.
They start together, so that the loop is woken once for some of them."""

PAUSE_MAX_S = 0.08
LATE_FACTOR = 10
"""How many times a delay of the loop strangers wait more: on a busy machine each of their
handshakes delays everybody else's steps, and they can wait."""

LATE_KEPT = 0.9
"""How much of the longest delay is kept from one pause to the next: few of them show what the
loop's other steps meet."""


CROWD = 64
"""Connections of unknown addresses that are more than some clients that start at once."""


class Stage(IntEnum):
    """How far a connection has come: those at the lowest stage go first."""

    SILENT = 0  # has not sent a whole opening yet
    HANDSHAKE = 1
    GREETING = 2  # encrypted, and its first message is awaited


@dataclass(eq=False, slots=True)
class Place:
    """One connection that has proven nothing yet."""

    network: str
    counted: bool  # among the unknown
    evict: Callable[[], None]
    stage: Stage = Stage.SILENT


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


class _Line:
    """Who waits for a handshake: an address after the other, one connection of each at a time.

    Addresses that have had no turn stand apart, and have three of four while both kinds wait.
    So the first connection of an address is served soon, and endless new addresses starve nobody.
    """

    def __init__(self) -> None:
        self.size = 0
        self._first: OrderedDict[str, dict[Place, Callable[[], None]]] = OrderedDict()
        self._again: OrderedDict[str, dict[Place, Callable[[], None]]] = OrderedDict()
        self._served: OrderedDict[str, None] = OrderedDict()
        self._in_row = 0  # addresses that had their first turn since another one had one

    def add(self, place: Place, go: Callable[[], None]) -> None:
        self.remove(place)  # It stands here once.
        line = self._again if place.network in self._served else self._first
        line.setdefault(place.network, {})[place] = go
        self.size += 1

    def remove(self, place: Place) -> None:
        """Remove a place, if it waits."""
        for line in (self._first, self._again):
            places = line.get(place.network, {})
            if places.pop(place, None) is not None:
                self.size -= 1
                if not places:
                    del line[place.network]

    def pop(self) -> Callable[[], None]:
        """Return what begins the handshake whose turn it is; somebody waits."""
        is_first = bool(self._first) and not (self._again and self._in_row >= FIRST_IN_ROW_MAX)
        self._in_row = self._in_row + 1 if is_first else 0
        line = self._first if is_first else self._again
        network, places = line.popitem(last=False)
        go = places.pop(next(iter(places)))
        self.size -= 1
        self._served[network] = None
        self._served.move_to_end(network)
        if len(self._served) > SERVED_COUNT_MAX:
            self._served.popitem(last=False)
        if places:
            self._again.setdefault(network, {}).update(places)
        if not self.size:
            self._served.clear()
        return go


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
        self._all, self._unknown, self._with_tls = _Crowd(), _Crowd(), _Crowd()
        self._proven: OrderedDict[str, float] = OrderedDict()
        self._line = _Line()
        self._next_at = float("-inf")

    @property
    def is_crowded(self) -> bool:
        """Return whether many unknown addresses wait, or one with many connections."""
        return self._unknown.size > CROWD

    @property
    def waiting(self) -> int:
        """Return how many connections wait for their handshake."""
        return self._line.size

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
        for crowd in (self._all, self._unknown, self._with_tls):
            crowd.remove(place)
        self._line.remove(place)

    def prove(self, place: Place) -> None:
        """Give a place back: its connection has proven itself, and its address is known now."""
        self.leave(place)
        self._proven[place.network] = self._clock.monotonic()
        self._proven.move_to_end(place.network)
        if len(self._proven) > KNOWN_COUNT_MAX:
            self._proven.popitem(last=False)

    # --- handshakes ------------------------------------------------------------------------------

    def request_handshake(self, place: Place, go: Callable[[], None]) -> None:
        """Have ``go`` called when this connection may begin its handshake: here, or later.

        A later call comes from ``release``; none comes for a place that was given back.
        """
        place.stage = Stage.HANDSHAKE
        if not place.counted:
            go()
            return
        if place not in self._unknown.of(place.network):
            return
        self._line.add(place, go)

    def release(self) -> float:
        """Start the handshakes whose time has come; return when to call this again."""
        now = self._clock.monotonic()
        self._next_at = max(self._next_at, now - BURST_S)
        while self._line.size and self._next_at <= now:
            self._next_at += self._interval_s
            self._line.pop()()
        return self._next_at if self._line.size else float("inf")

    def take_tls(self, place: Place) -> None:
        """Note that a connection gets TLS in this process; another one may be evicted for it."""
        if not place.counted:
            return
        if self._with_tls.size >= self._tls_count_max:
            self._evict(self._with_tls.busiest(place.network))
        self._with_tls.add(place)

    # --- internals -------------------------------------------------------------------------------

    def _is_known(self, network: str) -> bool:
        proven_at = self._proven.get(network)
        return proven_at is not None and self._clock.monotonic() - proven_at < REMEMBERED_S

    def _evict(self, places: dict[Place, None]) -> None:
        victim = min(places, key=_standing)
        self.leave(victim)
        victim.evict()


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


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return the network whose connections are counted together: an IPv4 address, an IPv6 /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
