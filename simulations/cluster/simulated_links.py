"""The transport between peers, over the simulated network.

The rules are those of ``remoting.transport.peer_transport``: the server with the smaller id dials,
the other one when that has not worked for a while, a newer connection replaces an older one,
failures back off.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random

from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock, PeerEvents
from gpupool.pool.table_clock import ClockSample
from gpupool.remoting.transport.address_book import AddressBook
from gpupool.remoting.transport.link_clock import (
    CLOCK_EVERY_S,
    STEP_EVERY_S,
    LinkClock,
    WallSteps,
)
from gpupool.remoting.transport.peer_dial import DIAL_TIMEOUT_S
from gpupool.remoting.transport.peer_transport import (
    BACKOFF_BASE_S,
    BACKOFF_MAX_S,
    FALLBACK_DIAL_S,
)
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.simulated_network import End, Endpoint, Network

KIND = "peer"


class Clocks(Enum):
    """Messages of servers about their clocks; the answer to ``ASK`` is the wall clock itself."""

    ASK = "ask"
    STEPPED = "stepped"


class Told(bytes):
    """A server's message to another about addresses."""


class SimulatedTransport:
    """``ports.PeerLinks`` of one server process."""

    def __init__(
        self,
        server: ServerId,
        *,
        process: Process,
        network: Network,
        random: Random,
        locate: Callable[[ServerId], str | None],
        identify: Callable[[str], ServerId | None],
        is_removed: Callable[[ServerId], bool],
        trusts: Callable[[str], bool] = lambda _machine: True,
        understands: Callable[[ServerId], bool] = lambda _peer: True,
        clock: Clock,
        sends: Callable[[bytes], None] = lambda _frame: None,
        book: AddressBook | None = None,
        at: Callable[[str], str | None] = lambda address: address,
        places: Sequence[str] = (),
    ) -> None:
        """Make links; without a ``book`` a server's address is its machine, by ``locate``.

        ``at`` finds the machine at an address, where somebody listens that can be reached.
        """
        self._server = server
        self._sends = sends
        self._process = process
        self._network = network
        self._random = random
        self._book = book or AddressBook(
            server, (0, ()), lambda peer: [each for each in (locate(peer),) if each]
        )
        self._at = at
        self._places = places
        if places:
            process.after(0.0, self._ask_places)
        self._identify = identify
        self._is_removed = is_removed
        self._trusts = trusts
        self._understands = understands
        self._clock = clock
        self._link_clocks: dict[ServerId, LinkClock] = {}
        self._steps = WallSteps(clock)
        process.after(CLOCK_EVERY_S, self._ask_clocks)
        process.after(STEP_EVERY_S, self._tell_steps)
        self._peers: dict[ServerId, int] = {}
        self._links: dict[ServerId, End] = {}
        self._dialling: set[ServerId] = set()
        self.events: PeerEvents | None = None

    def send(self, peer: ServerId, frame: bytes) -> bool:
        """Queue one frame; False when there is no connection or its queue is full."""
        self._sends(frame)
        end = self._links.get(peer)
        return end is not None and end.send(frame)

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        """Set the servers to stay connected to; all others are disconnected."""
        wanted = set(peers) - {self._server}
        for peer in [p for p in self._peers if p not in wanted]:
            del self._peers[peer]
            if (end := self._links.get(peer)) is not None:
                end.close()
                self._lost(peer, end)
        for peer in sorted(wanted - self._peers.keys()):
            self._peers[peer] = 0
            self._dial_later(peer)

    def accept(self, machine: str) -> Endpoint | None:
        """Take a connection that another server opened, unless that one was removed.

        One that is not among the peers is welcome: a server that was away may hear first from a
        voter that it does not know yet.
        """
        peer = self._identify(machine)
        if peer is None or (self._is_removed(peer) and peer not in self._peers):
            return None
        fits = self._trusts(machine) and self._understands(peer)
        return _PeerEnd(self, peer) if fits else None

    def drop_all(self) -> None:
        """End every link; they come up again between servers that trust each other."""
        for peer, end in list(self._links.items()):
            end.close()
            self.lost(peer, end)

    def drop_outdated(self) -> None:
        """End the links to servers that are older than the pool is by now."""
        for peer in [each for each in self._links if not self._understands(each)]:
            end = self._links[peer]
            end.close()
            self.lost(peer, end)

    def connected(self) -> tuple[ServerId, ...]:
        """Return the peers with a live connection."""
        return tuple(self._links)

    def clock_sample(self, peer: ServerId) -> ClockSample | None:
        """Return the latest measurement of the wall clock of ``peer`` over the link that is up."""
        link_clock = self._link_clocks.get(peer)
        return link_clock.sample if link_clock is not None else None

    # --- for the ends -----------------------------------------------------------------------------

    def raised(self, peer: ServerId, end: End) -> None:
        """Put a connection into use, in the place of any older one."""
        self._dialling.discard(peer)
        if self.events is None:
            end.close()
            return
        if self._identify(end.peer) != peer:
            # While the attempt was held up the machine has become another server, which cannot
            # prove that it is the former one.
            end.close()
            self.lost(peer, None)
            return
        if not self._understands(peer):
            end.close()
            self.lost(peer, None)
            return
        if (old := self._links.get(peer)) is not None:
            old.close()
            self._lost(peer, old)
        self._links[peer] = end
        if peer in self._peers:
            self._peers[peer] = 0
        self._link_clocks[peer] = LinkClock(self._clock)
        self._ask_clock(peer)
        if whole := self._book.whole():
            end.send(Told(whole))
        self.events.connected(peer)

    def received(self, peer: ServerId, end: End, payload: "bytes | Clocks | int") -> None:
        """Hand a frame on, unless its connection was replaced."""
        if self._links.get(peer) is not end or self.events is None:
            return
        match payload:
            case Told():
                for server in self._book.heard(peer, bytes(payload), self._peers):
                    self._dial(server)
            case bytes():
                self.events.received(peer, payload)
            case Clocks.STEPPED:
                self._ask_clock(peer)
            case Clocks.ASK:
                end.send(self._clock.wall_ms())
            case int():
                self._link_clocks[peer].answered(payload)

    # --- clocks -----------------------------------------------------------------------------------

    def _ask_clock(self, peer: ServerId) -> None:
        self._link_clocks[peer].asked()
        self._links[peer].send(Clocks.ASK)

    def _ask_clocks(self) -> None:
        for peer in list(self._links):
            self._ask_clock(peer)
        self._process.after(CLOCK_EVERY_S, self._ask_clocks)

    def _tell_steps(self) -> None:
        if news := self._book.news():
            for end in list(self._links.values()):
                end.send(Told(news))
        if self._steps.step_s():
            for end in list(self._links.values()):
                end.send(Clocks.STEPPED)
        self._process.after(STEP_EVERY_S, self._tell_steps)

    def lost(self, peer: ServerId, end: End | None) -> None:
        """Note the end of a connection or of an attempt, and dial again in time."""
        self._dialling.discard(peer)
        if end is not None:
            self._lost(peer, end)
        else:
            self._book.failed(peer)
        if peer in self._peers:
            self._peers[peer] += 1
            self._dial_later(peer)

    def _lost(self, peer: ServerId, end: End) -> None:
        if self._links.get(peer) is end:
            del self._links[peer]
            del self._link_clocks[peer]
            if self.events is not None:
                self.events.disconnected(peer)

    def _dial_later(self, peer: ServerId) -> None:
        failures = self._peers[peer]
        if self._server > peer and failures <= 1:
            # The other one should dial; only when it does not, this one begins to.
            delay_s = FALLBACK_DIAL_S * (1 + self._random.random())
        else:
            limit_s = min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2 ** min(failures, 10))
            delay_s = limit_s * (0.5 + 0.5 * self._random.random()) if failures else 0.0
        self._process.after(delay_s, lambda: self._dial(peer))

    def _ask_places(self) -> None:
        for place in self._places:
            self._look(place)
        self._process.after(BACKOFF_MAX_S, self._ask_places)

    def _look(self, address: str) -> None:
        """Dial the server at an address, under any identity."""
        machine = self._at(address)
        found = self._identify(machine) if machine is not None else None
        if found is not None and found not in (self._server, *self._links):
            self._book.met(found, address)
            self._dial(found, stranger=True)

    def _dial(self, peer: ServerId, *, stranger: bool = False) -> None:
        is_wanted = peer in self._peers or stranger
        if not is_wanted or peer in self._links or peer in self._dialling:
            return
        address = self._book.address(peer)
        machine = self._at(address) if address is not None else None
        # The process that answers must prove that it is the wanted peer.
        known = machine is not None and self._identify(machine) == peer
        if machine is None or not known or not self._understands(peer):
            self.lost(peer, None)
            if address is not None and machine is not None and not known:
                self._look(address)
            return
        self._dialling.add(peer)
        end = _PeerEnd(self, peer)
        self._network.dial(self._process, machine, KIND, end, timeout_s=DIAL_TIMEOUT_S)


class _PeerEnd:
    """Our end of a connection with one peer."""

    def __init__(self, links: SimulatedTransport, peer: ServerId) -> None:
        self._links = links
        self._peer = peer

    def opened(self, end: End) -> None:
        self._links.raised(self._peer, end)

    def failed(self, reason: str) -> None:
        self._links.lost(self._peer, None)

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, bytes | Clocks | int)
        self._links.received(self._peer, end, payload)

    def closed(self, end: End, reason: str) -> None:
        self._links.lost(self._peer, end)
