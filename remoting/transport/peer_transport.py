"""Links between servers: one mutually authenticated connection per pair, kept up and in order.

``PeerTransport`` implements ``ports.PeerLinks`` and reports to a ``ports.PeerEvents``. The server
with the smaller id dials; the other one only when that has not worked for a while, so that a
firewall which is open in one direction is enough. A newer connection always replaces an older one,
because the side that opened it evidently has none.

A frame has a kind: Raft's own, opaque here; the greeting with the sender's wall clock; a question
for the wall clock, asked every ``CLOCK_EVERY_S``, with its answer; addresses of servers; the CA's
key, which a newly promoted voter asks another voter for; the key of a CA that is to be the next,
which every voter gets before anybody trusts it; and a new certificate, which a server without the
key asks a voter for. A server whose wall clock is set greets again at once, and a greeting makes
its receiver ask: only a question measures a clock, because it has bounds.
"""

import contextlib
import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import NotNowError, RemoteProtocolError
from gpupool.pool.model.formats import ADDRESSES_SINCE, VERSION, can_link
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Clock, PeerEvents, Randomness
from gpupool.pool.table_clock import ClockSample
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.framing import Frame, FrameReader, frame_bytes
from gpupool.remoting.transport.address_book import BODY_SIZE_MAX, AddressBook
from gpupool.remoting.transport.authority.ca_bundle import shows_one_of
from gpupool.remoting.transport.bandwidth import BandwidthMeter, Speeds
from gpupool.remoting.transport.connections import GONE, explain
from gpupool.remoting.transport.link_clock import (
    CLOCK_EVERY_S,
    STEP_EVERY_S,
    WALL,
    LinkClock,
    WallSteps,
)
from gpupool.remoting.transport.peer_dial import Dial, Finder, TlsDialler
from gpupool.remoting.transport.peer_link import DECLARED, Kind, PeerLink, Take, why_down
from gpupool.remoting.transport.pki import Identity, TlsContexts

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Of Raft's own frames; the same as consensus allows."""

READ_SIZE = 64 * 1024
GREETING_TIMEOUT_S = 3.0
BACKOFF_BASE_S = 0.05
BACKOFF_MAX_S = 2.0
FALLBACK_DIAL_S = 0.5
"""How long the server with the larger id waits to be dialled before it dials itself. Short, since a
restarted server may not know any address before its table has caught up with somebody's."""

GREETING = struct.Struct(">HQ")  # ``formats.VERSION``, wall clock in milliseconds

LONG_S = 3600.0
CLOSED = "closed by the peer"


@dataclass(eq=False, slots=True)
class _Peer:
    """A server to stay connected to."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    changed: trio.Event = field(default_factory=trio.Event)
    other_version: int = VERSION  # of its links, if that was logged
    newer: int = VERSION  # the version with which it has hung up on this server, if that was logged


class PeerTransport:
    """Connections to all peers; see the module."""

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Clock,
        rng: Randomness,
        log: logging.Logger,
        address_of: Callable[[ServerId], str | None] = lambda _peer: None,
        dial: Dial | None = None,
        contexts: TlsContexts | None = None,
        book: AddressBook | None = None,
        places: Sequence[str] = (),
    ) -> None:
        """Make links that are all down.

        Args:
            identity: of this server.
            clock: both clocks; the wall clock is told to peers.
            rng: for the jitter of the back-off.
            log: where connections and their failures are reported.
            address_of: ``host:port`` of a peer, or None when it is not known yet.
            dial: how to connect; tests and simulations replace it.
            contexts: the TLS settings, when others share them.
            book: of addresses, in the place of ``address_of``; it is told to peers.
            places: where a person says that servers of the pool are.
        """
        self.takes: dict[int, Take] = {}
        """Handlers of the ``DECLARED`` frames; each is set by the part that handles it."""
        self.agreed: Callable[[], int] = lambda: 0
        """Returns the version that the pool has agreed on (``PoolState.formats``)."""
        self._self = identity.server
        self._clock = clock
        self._rng = rng
        self._log = log
        contexts = contexts or TlsContexts(identity)
        self.book = book or AddressBook(
            self._self, (0, ()), lambda peer: [text for text in (address_of(peer),) if text]
        )
        tls = TlsDialler(contexts)
        self.finder = Finder(self.book, dial or tls, None if dial else tls.who, log)
        self._places = places
        self.meter = BandwidthMeter(contexts)
        self._events: PeerEvents | None = None
        self._nursery: trio.Nursery | None = None
        self._peers: dict[ServerId, _Peer] = {}
        self._links: dict[ServerId, PeerLink] = {}
        self.removed_by: set[ServerId] = set()
        """Servers that hung up on this one because it was removed from the pool."""

    # --- the port that consensus uses ----------------------------------------------------------

    def send(self, peer: ServerId, frame: bytes) -> bool:
        """Queue one frame; False when there is no connection or its queue is full."""
        return self.tell(peer, Kind.RAFT, frame)

    def set_peers(self, peers: Sequence[ServerId]) -> None:
        """Set the servers to stay connected to; all others are disconnected."""
        wanted = set(peers) - {self._self}
        for peer in [p for p in self._peers if p not in wanted]:
            self._peers.pop(peer).scope.cancel()
            self.finder.failures.forget(peer)
            if (link := self._links.get(peer)) is not None:
                self._drop(link)
        for peer in sorted(wanted - self._peers.keys()):
            self._peers[peer] = _Peer()
            if self._nursery is not None:
                self._nursery.start_soon(self._keep, peer, self._peers[peer])

    def hang_up(self, peer: ServerId) -> None:
        """End the connection with ``peer``, if there is one, because a frame of it was lost."""
        if (link := self._links.get(peer)) is not None:
            self._drop(link)

    # --- what the control server uses ----------------------------------------------------------

    async def run(
        self,
        events: PeerEvents,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep the connections up until cancelled; ``set_peers`` may be called before."""
        self._events = events
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for peer, state in self._peers.items():
                    nursery.start_soon(self._keep, peer, state)
                for place in self._places:
                    nursery.start_soon(self._ask_place, place)
                nursery.start_soon(self._ask_clocks)
                nursery.start_soon(self._tell_steps)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def accept(self, stream: trio.abc.Stream, peer: ServerId) -> None:
        """Use a connection that ``peer`` opened and proved itself on, until it ends.

        The caller has checked that the table does not exclude it. One that is not among the peers
        is welcome: a server that was away may hear first from a voter that it does not know yet.
        """
        if self._nursery is not None:
            await self._converse(PeerLink(peer, stream, LinkClock(self._clock)))
        else:
            await trio.aclose_forcefully(stream)

    async def reject(self, stream: trio.abc.Stream, peer: ServerId) -> None:
        """Tell a server that it was removed from the pool, and hang up."""
        wall = GREETING.pack(VERSION, self._clock.wall_ms())
        data = frame_bytes(Kind.GREETING, wall, size_max=GREETING.size)
        data += frame_bytes(Kind.REMOVED, b"", size_max=0)
        self._log.warning("refused a link from server %s, which was removed from the pool", peer)
        with trio.move_on_after(GREETING_TIMEOUT_S), contextlib.suppress(*GONE):
            await stream.send_all(data)
            while await stream.receive_some(READ_SIZE):
                pass  # until it hangs up, so that it reads what was sent
        await trio.aclose_forcefully(stream)

    def wants(self, peer: ServerId) -> bool:
        """Return whether consensus wants to stay connected to ``peer``."""
        return peer in self._peers

    def clock_sample(self, peer: ServerId) -> ClockSample | None:
        """Return the latest measurement of the wall clock of ``peer`` over the link that is up."""
        link = self._links.get(peer)
        return link.clock.sample if link is not None else None

    def link(self, peer: ServerId) -> PeerLink | None:
        """Return the link with ``peer`` that is up, to be measured."""
        return self._links.get(peer)

    async def measure(self, peer: ServerId) -> Speeds:
        """Measure the bandwidth to ``peer``, over a connection beside the link.

        Raises:
            NotNowError: when no link is up, or one of both is busy.
            GpupoolError: as ``BandwidthMeter.measure``.
        """
        link, text = self._links.get(peer), self.book.address(peer)
        if link is None or not link.greeted or text is None:
            raise NotNowError("there is no link between these servers")
        return await self.meter.measure(peer, parse_address(text))

    def other_versions(self) -> dict[ServerId, int]:
        """Return the peers that speak another version of the links, with theirs."""
        return {
            peer: state.other_version
            for peer, state in self._peers.items()
            if state.other_version != VERSION and peer not in self._links
        }

    def connected(self) -> tuple[ServerId, ...]:
        """Return the peers with a live connection."""
        return tuple(peer for peer, link in self._links.items() if link.greeted)

    def tell(self, peer: ServerId, kind: Kind, body: bytes) -> bool:
        """Send one frame; False when no link is up. An answer comes to ``takes``."""
        link = self._links.get(peer)
        if link is None or not link.greeted:
            return False
        return link.put(frame_bytes(kind, body, size_max=FRAME_SIZE_MAX))

    def drop_outdated(self) -> None:
        """End the links to servers that are older than the pool is by now."""
        for link in [each for each in self._links.values() if each.version < VERSION]:
            if not can_link(link.version, self.agreed()):
                self._drop(link)

    def drop_strangers(self, ca_pem: bytes) -> None:
        """End the links with a peer certificate from no CA of the bundle."""
        for link in list(self._links.values()):
            if not shows_one_of(link.stream, ca_pem):
                self._drop(link)

    # --- inside --------------------------------------------------------------------------------

    async def _keep(self, peer: ServerId, state: _Peer) -> None:
        """Dial ``peer`` again and again whenever there is no connection."""
        failures = 0
        with state.scope:
            if self._self > peer:
                await self._wait_for_change(state, FALLBACK_DIAL_S * (1 + self._rng.random()))
            while True:
                if peer in self._links:
                    failures = 0
                    await self._wait_for_change(state, LONG_S)
                    if peer not in self._links and self._self > peer:
                        delay_s = FALLBACK_DIAL_S * (1 + self._rng.random())
                        await self._wait_for_change(state, delay_s)
                    continue
                stream = await self._try_dial(peer)
                if stream is not None:
                    started = trio.current_time()
                    await self._converse(PeerLink(peer, stream, LinkClock(self._clock)))
                    # A peer that greets and hangs up at once must not be dialled in a hot loop.
                    failures = 0 if trio.current_time() - started > BACKOFF_MAX_S else failures + 1
                else:
                    failures += 1
                limit = min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2 ** min(failures, 10))
                await self._wait_for_change(state, limit * (0.5 + 0.5 * self._rng.random()))

    async def _wait_for_change(self, state: _Peer, timeout_s: float) -> None:
        """Return once a connection came up or went down, or after ``timeout_s``."""
        with trio.move_on_after(timeout_s):
            await state.changed.wait()

    async def _try_dial(self, peer: ServerId) -> trio.abc.Stream | None:
        stream, other = await self.finder.dial(peer, len(self._peers))
        if other is not None and other not in self._links:
            self._tell_change(other)
        return stream

    async def _ask_place(self, place: str) -> None:
        """Keep identifying the server at a place that a person has given, and link to it."""
        peer: ServerId | None = None
        while True:
            if peer is None or peer not in self._links:
                peer = await self.finder.look(place)
                if peer is None:
                    self._log.warning("no server of this pool answers at %s", place)
                elif peer in self._peers:
                    self._tell_change(peer)
                elif (stream := await self._try_dial(peer)) is not None:
                    # It has joined while this server was away.
                    await self._converse(PeerLink(peer, stream, LinkClock(self._clock)))
            await trio.sleep(BACKOFF_MAX_S)

    async def _converse(self, link: PeerLink) -> None:
        """Greet, then carry frames both ways until the connection ends or is replaced."""
        reason = CLOSED
        wall = GREETING.pack(VERSION, self._clock.wall_ms())
        link.put(frame_bytes(Kind.GREETING, wall, size_max=GREETING.size))
        try:
            with link.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, link)
                    await self._read(link)
                    nursery.cancel_scope.cancel()
            if link.scope.cancelled_caught:
                reason = why_down(link.peer in self._links, link.peer in self._peers)
        except* GONE as group:
            reason = explain(group)
        finally:
            self._drop(link)
            await trio.aclose_forcefully(link.stream)
            if link.greeted:
                self._log.info("link to server %s is down: %s", link.peer, reason)
                if reason == CLOSED:
                    self._note_newer(link)
            else:
                self._log.debug("no link to server %s: %s", link.peer, reason)

    def _raise(self, link: PeerLink) -> None:
        """Put a greeted connection into use, in the place of any older one."""
        assert self._events is not None
        if (old := self._links.get(link.peer)) is not None:
            self._drop(old)
        link.greeted = True
        self._links[link.peer] = link
        if (peer := self._peers.get(link.peer)) is not None:
            peer.other_version = VERSION
        self._log.info("link to server %s is up", link.peer)
        self._tell_change(link.peer)
        self._ask_clock(link)
        self._tell_addresses(link, self.book.whole())
        self._events.connected(link.peer)

    def _drop(self, link: PeerLink) -> None:
        """Drop a connection; data still in it is lost."""
        link.scope.cancel()
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._tell_change(link.peer)
            if self._events is not None:
                self._events.disconnected(link.peer)

    def _note_newer(self, link: PeerLink) -> None:
        """Say once that a newer server hangs up: its pool may have left this version behind."""
        peer = self._peers.get(link.peer)
        if peer is None or link.version <= max(VERSION, peer.newer):
            return
        peer.newer = link.version
        what = f"server {link.peer} hung up; it has version {link.version} of the formats"
        self._log.warning("%s, this server %d: upgrade it if that goes on", what, VERSION)

    def _tell_change(self, peer: ServerId) -> None:
        if (state := self._peers.get(peer)) is not None:
            state.changed.set()
            state.changed = trio.Event()

    async def _write(self, link: PeerLink) -> None:
        while True:
            while link.has_more:
                await link.stream.send_all(link.take())
            link.more = trio.Event()
            await link.more.wait()

    async def _read(self, link: PeerLink) -> None:
        reader = FrameReader(GREETING.size)
        with trio.fail_after(GREETING_TIMEOUT_S) as greeting:
            while data := await link.stream.receive_some(READ_SIZE):
                reader.feed(bytes(data))
                frame = reader.next()
                if frame is not None and not link.greeted:
                    self._take_greeting(link, frame.kind, frame.body)
                    self._raise(link)
                    reader.size_max = FRAME_SIZE_MAX  # which holds for the frame after it
                    greeting.deadline = float("inf")
                    frame = reader.next()
                while frame is not None and not link.scope.cancel_called:
                    following = reader.next()
                    self._take(link, frame, more=following is not None)
                    frame = following

    def _take(self, link: PeerLink, frame: Frame, *, more: bool) -> None:
        assert self._events is not None
        kind, body = frame.kind, frame.body
        match kind:
            case Kind.RAFT:
                self._events.received(link.peer, body, more=more)
            case Kind.GREETING:
                self._take_greeting(link, kind, body)
                self._ask_clock(link)
            case Kind.CLOCK_ASK:
                self.tell(link.peer, Kind.CLOCK_GIVE, WALL.pack(self._clock.wall_ms()))
            case Kind.CLOCK_GIVE if len(body) == WALL.size:
                if not link.answered():
                    link.clock.answered(*WALL.unpack(body))
            case Kind.ADDRESSES if len(body) <= BODY_SIZE_MAX:
                for server in self.book.heard(link.peer, body, self._peers):
                    self._tell_change(server)
            case Kind.REMOVED:
                self._log.warning("server %s says that this one was removed", link.peer)
                self.removed_by.add(link.peer)
            case _ if (known := DECLARED.get(kind)) and len(body) <= known.size_max:
                answer = self.takes[kind](link.peer, body) if kind in self.takes else b""
                if known.answered_by and (answer or known.says_no):
                    self.tell(link.peer, known.answered_by, answer or b"")
            case _ if kind > max(Kind) and link.version > VERSION:
                self._log.debug("a newer server %s sent a frame of kind %d", link.peer, kind)
            case _:
                raise RemoteProtocolError("unknown frame from a peer", why=f"kind {kind}")

    def _take_greeting(self, link: PeerLink, kind: int, body: bytes) -> None:
        if kind != Kind.GREETING or len(body) != GREETING.size:
            raise RemoteProtocolError("a peer did not greet")
        version, _wall_ms = GREETING.unpack(body)
        link.version = version
        agreed = self.agreed()
        if not can_link(version, agreed):
            what = f"server {link.peer} has another version of gpupool"
            who = f"this server {VERSION}"
            if VERSION - version == 1:
                who = f"and the servers of the pool have agreed on {agreed}"
            why = f"it has version {version} of the formats, {who}"
            if (peer := self._peers.get(link.peer)) is not None and peer.other_version != version:
                peer.other_version = version
                self._log.warning("%s: %s; upgrade the older one", what, why)
            raise RemoteProtocolError(what, why=why)

    def _tell_addresses(self, link: PeerLink, body: bytes) -> None:
        if body and link.version >= ADDRESSES_SINCE:
            link.put(frame_bytes(Kind.ADDRESSES, body, size_max=BODY_SIZE_MAX))

    # --- clocks --------------------------------------------------------------------------------

    def _ask_clock(self, link: PeerLink) -> None:
        link.clock.asked()
        if self.tell(link.peer, Kind.CLOCK_ASK, b""):
            link.asks.append(0)

    async def _ask_clocks(self) -> None:
        while True:
            await trio.sleep(CLOCK_EVERY_S)
            for link in list(self._links.values()):
                self._ask_clock(link)

    async def _tell_steps(self) -> None:
        """Greet again when this machine's wall clock was set, so that all peers ask for it."""
        steps = WallSteps(self._clock)
        while True:
            await trio.sleep(STEP_EVERY_S)
            news = self.book.news()
            for link in list(self._links.values()):
                self._tell_addresses(link, news)
            if step_s := steps.step_s():
                self._log.warning("this machine's wall clock was set by %+.1f s", step_s)
                body = GREETING.pack(VERSION, self._clock.wall_ms())
                for peer in list(self._links):
                    self.tell(peer, Kind.GREETING, body)
