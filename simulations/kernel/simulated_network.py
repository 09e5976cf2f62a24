"""Connections between machines that behave like TCP under faults.

Single bytes are never lost, repeated or reordered: TCP forbids it, and a simulator of whole pools
that did so would find faults that cannot happen and miss those that can. A cut direction holds data
back until it heals, and the kernels resend it then, or until they give the connection up; a reset
loses everything that was in flight. Tests of consensus, which must not rest on TCP's promises, set
``Network.frame_faults``.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, log
from random import Random
from typing import Literal, Protocol

from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace

Tamper = Callable[[str, str, bytes], bytes | None]
"""Called with the machine that sends, the one that receives, and the frame; None loses it."""

Kind = Literal["lose", "truncate", "flip", "duplicate", "reorder", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChances:
    """The chance of each fault, for each frame."""

    lose: float = 0.0
    truncate: float = 0.0  # to a part of it, which may be empty
    flip: float = 0.0  # one bit
    duplicate: float = 0.0
    reorder: float = 0.0  # the frame is late, and those behind it are not
    reset: float = 0.0  # the connection breaks
    late_s: float = 0.3  # the most by which a repeated or reordered frame is late


class FrameFaults:
    """The faults of all frames of bytes in a network: by chance, or by a test's own ``tamper``.

    A chance of nothing draws nothing, so that one kind of fault leaves the others as they were.
    """

    def __init__(
        self, random: Random, chances: FrameChances | None = None, *, tamper: Tamper | None = None
    ) -> None:
        self._random = random
        self.chances = chances or FrameChances()
        self.tamper = tamper
        self.counts: Counter[Kind] = Counter()
        """How often each fault happened by chance."""

    def damaged(self, source: str, target: str, frame: bytes) -> bytes | None:
        """Return a frame after the faults; None when it is lost."""
        if self.tamper is not None:
            changed = self.tamper(source, target, frame)
            if changed is None:
                return None
            frame = changed
        if self._happens("lose"):
            return None
        if frame and self._happens("truncate"):
            frame = frame[: self._random.randrange(len(frame))]
        if frame and self._happens("flip"):
            position = self._random.randrange(len(frame))
            flipped = frame[position] ^ (1 << self._random.randrange(8))
            frame = frame[:position] + bytes([flipped]) + frame[position + 1 :]
        return frame

    def breaks(self) -> bool:
        """Return whether a frame finds its connection broken."""
        return self._happens("reset")

    def late_s(self) -> float:
        """Return by how much a frame is late, in no order with the others; 0 for one in order."""
        return self._draw_late_s() if self._happens("reorder") else 0.0

    def again_s(self) -> float | None:
        """Return how long after its time a frame arrives once more; None when it does not."""
        return self._draw_late_s() if self._happens("duplicate") else None

    def _happens(self, kind: Kind) -> bool:
        chance: float = getattr(self.chances, kind)
        if not chance or self._random.random() >= chance:
            return False
        self.counts[kind] += 1
        return True

    def _draw_late_s(self) -> float:
        return self.chances.late_s * (1.0 - self._random.random())


RESEND_FIRST_S = 0.2
"""Linux resends after 0.2 s at least, then after twice as long each time (RFC 6298, 5.5)."""

CONNECT_AGAIN_S = 1.0
"""Linux repeats the first packet of a connection after a second."""

USER_TIMEOUT_SHARE = 0.85
"""Of its timeout, after which ``remoting.sockets`` lets the kernel give unacknowledged data up."""

HELD_BYTES_MAX = 32 * 1024 * 1024
"""Of one direction; beyond it, sending fails because the queue is full."""


class Endpoint(Protocol):
    """The owner of one end of a connection. Called inside the process that it belongs to."""

    def opened(self, end: "End") -> None:
        """Take our ``end`` of a connection that is up."""
        ...

    def failed(self, reason: str) -> None:
        """There will be no connection."""
        ...

    def received(self, end: "End", payload: object) -> None:
        """Take the payload that the other side sent."""
        ...

    def closed(self, end: "End", reason: str) -> None:
        """Go on without a connection that is gone, not by our own ``close``."""
        ...


FRAME_BYTES = 256
"""Counted bytes of a message that travels as an object."""

Accept = Callable[[str, str], Endpoint | None]
"""Called with the dialling machine and the kind of connection; None refuses it."""


@dataclass(slots=True)
class Link:
    """How one machine reaches another, in one direction."""

    delay_s: float  # the least
    jitter_s: float  # mean of what comes on top of it
    slow_s: float = 0.0  # added while a fault makes it slow
    blocked_since: float | None = None


class _Pipe:
    """One direction of one connection."""

    __slots__ = ("arrives_at", "count", "held", "held_bytes", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.arrives_at = 0.0  # of the newest frame under way: nothing overtakes it
        self.count = 0
        self.held: list[tuple[int, float, object | None]] = []
        self.held_bytes = 0


class End:
    """One end of a connection, for the process that holds it."""

    def __init__(self, connection: "_Connection", process: Process, side: int) -> None:
        self._connection = connection
        self._side = side
        self.process = process
        self.endpoint: Endpoint | None = None
        self.open = True
        self.peer = ""
        """The machine at the other end."""

    def send(self, payload: object) -> bool:
        """Send ``payload`` as one piece; False when the connection is gone or its queue full."""
        connection = self._connection
        if not self.open or connection.pipes[self._side].held_bytes > HELD_BYTES_MAX:
            return False
        connection.send(self._side, payload)
        return True

    def close(self) -> None:
        """Close: data sent before still arrives, data that the other side sends does not."""
        if self.open:
            self.open = False
            self._connection.send(self._side, None)


class _Connection:
    """Two ends, and the pipes between them."""

    def __init__(self, network: "Network", kind: str, dialler: Process, target: Process) -> None:
        self.kind = kind
        self._network = network
        self.ends = (End(self, dialler, 0), End(self, target, 1))
        self.ends[0].peer, self.ends[1].peer = target.machine, dialler.machine
        self.pair = (dialler.machine, target.machine)
        self.counted = ((dialler.machine, kind), (target.machine, kind))
        self.pipes = (
            _Pipe(network.link(dialler.machine, target.machine)),
            _Pipe(network.link(target.machine, dialler.machine)),
        )
        self.broken = False

    def machines(self, side: int) -> tuple[str, str]:
        """Return the machines that data of this direction travels between."""
        return self.ends[side].process.machine, self.ends[1 - side].process.machine

    def send(self, side: int, payload: object | None) -> None:
        """Put a frame, or with None the end of the stream, on its way."""
        pipe = self.pipes[side]
        pipe.count += 1
        if type(payload) is bytes:
            self._network.count(self.counted[side], len(payload))
            faults = self._network.frame_faults
            if faults is not None:
                payload = faults.damaged(*self.machines(side), payload)
                if faults.breaks():
                    self.break_("connection reset", (0.0, 0.0))
                if payload is None or self.broken:
                    return
        if pipe.held or pipe.link.blocked_since is not None:
            self._hold(pipe, pipe.count, payload)
        else:
            self._schedule(side, pipe.count, payload)

    def release(self, side: int) -> None:
        """Send again the data held back while this direction was cut."""
        pipe = self.pipes[side]
        if self.broken or pipe.link.blocked_since is not None:
            return
        held, pipe.held, pipe.held_bytes = sorted(pipe.held, key=lambda h: h[0]), [], 0
        for number, _, payload in held:
            self._schedule(side, number, payload)

    def time_out(self, side: int) -> None:
        """Give the connection up, unless it has come through meanwhile."""
        if self.pipes[side].held and not self.broken:
            self.break_("timed out", (0.0, 0.05))

    def break_(self, reason: str, delay_s: tuple[float, float]) -> None:
        """Lose everything in flight, and let both ends learn of it after their delay."""
        self.broken = True
        self._network.forget(self)
        for end, delay in zip(self.ends, delay_s, strict=True):
            end.process.after(delay, partial(self._tell_closed, end, reason))

    def _hold(self, pipe: _Pipe, number: int, payload: object | None) -> None:
        pipe.held.append((number, self._network.scheduler.now, payload))
        pipe.held_bytes += len(payload) if isinstance(payload, bytes) else FRAME_BYTES

    def _schedule(self, side: int, number: int, payload: object | None) -> None:
        pipe, network = self.pipes[side], self._network
        when = network.scheduler.now + network.draw_latency(pipe.link)
        arrive = partial(self._arrive, side, number, payload)
        faults = network.frame_faults if type(payload) is bytes else None
        if faults is not None and (late_s := faults.late_s()):
            network.scheduler.at(when + late_s, arrive)
            return
        if when < pipe.arrives_at + 1e-7:
            when = pipe.arrives_at + 1e-7
        pipe.arrives_at = when
        network.scheduler.at(when, arrive)
        if faults is not None and (again_s := faults.again_s()) is not None:
            network.scheduler.at(when + again_s, arrive)

    def _arrive(self, side: int, number: int, payload: object | None) -> None:
        if self.broken:
            return
        pipe = self.pipes[side]
        if pipe.held or pipe.link.blocked_since is not None:
            self._hold(pipe, number, payload)
            return
        receiver = self.ends[1 - side]
        self._network.trace.frame(payload)
        process = receiver.process
        if process.paused:
            process.run(partial(self._deliver, receiver, payload))
        elif process.alive:
            self._deliver(receiver, payload)

    def _deliver(self, end: End, payload: object | None) -> None:
        if not end.open or end.endpoint is None:
            return
        if payload is not None:
            end.endpoint.received(end, payload)
            return
        self._network.forget(self)
        self.broken = True
        self._tell_closed(end, "closed by the other side")

    def _tell_closed(self, end: End, reason: str) -> None:
        if end.open:
            end.open = False
            if end.endpoint is not None:
                end.endpoint.closed(end, reason)


class Network:
    """All machines, the links between them, and the connections that are up."""

    def __init__(
        self, scheduler: Scheduler, trace: Trace, random: Random, *, delay_s: float, jitter_s: float
    ) -> None:
        self.scheduler = scheduler
        self.trace = trace
        self._random = random
        self._delay_s, self._jitter_s = delay_s, jitter_s
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[str, tuple[Process, Accept]] = {}
        self._dark: set[str] = set()
        self._connections: dict[_Connection, None] = {}
        self.timeout_s: dict[str, float] = {}
        """Per kind of connection: how long the kernels keep one up that does not get through."""
        self.sent_bytes: dict[tuple[str, str], int] = {}
        """By machine and kind of connection."""
        self.frame_faults: FrameFaults | None = None
        """Faults that TCP would not let happen; None for a network that keeps TCP's guarantees."""

    # --- for processes ----------------------------------------------------------------------------

    def listen(self, process: Process, accept: Accept) -> None:
        """Take connections for the machine of ``process``, instead of the process before it."""
        self._listeners[process.machine] = (process, accept)

    def dial(
        self, process: Process, target: str, kind: str, endpoint: Endpoint, *, timeout_s: float
    ) -> None:
        """Open a connection; ``endpoint`` hears of success or failure exactly once."""
        attempt = _Attempt(self, process, target, kind, endpoint)
        attempt.start(timeout_s)

    # --- for faults -------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """Return the link from one machine to another."""
        link = self._links.get((source, target))
        if link is None:
            delay_s = self._delay_s * (0.5 + self._random.random())
            link = self._links[source, target] = Link(delay_s, self._jitter_s)
        return link

    def blocked(self, source: str, target: str) -> bool:
        """Return whether nothing gets through in this direction."""
        return self.link(source, target).blocked_since is not None

    def block(self, source: str, target: str) -> None:
        """Cut one direction: nothing gets through, and no end hears of it."""
        link = self.link(source, target)
        if link.blocked_since is not None:
            return
        link.blocked_since = since = self.scheduler.now
        for connection in self._between(source, target):
            self._watch(connection, link, since)

    def unblock(self, source: str, target: str, *, within_s: float = inf) -> None:
        """Heal one direction; held-back data is sent again when the kernel next tries to.

        With ``within_s`` it is sent by then: what was cut had only queued it, as a switch may.
        """
        self.link(source, target).blocked_since = None
        for connection in self._between(source, target):
            side = 0 if connection.ends[0].process.machine == source else 1
            held = connection.pipes[side].held
            if held:
                resend_at = min(self._resend_at(held[0][1]), self.scheduler.now + within_s)
                # TCP_USER_TIMEOUT also ends a connection that was not tried again in time.
                give_up_at = held[0][1] + USER_TIMEOUT_SHARE * self.timeout_s[connection.kind]
                if resend_at <= give_up_at:
                    self.scheduler.at(resend_at, partial(connection.release, side))
                else:
                    self.scheduler.at(give_up_at, partial(connection.time_out, side))

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two machines."""
        for connection in self._between(one, other):
            delays = (0.01 * self._random.random(), 0.01 * self._random.random())
            connection.break_("connection reset", delays)

    def process_died(self, process: Process) -> None:
        """Let the kernel close a dead process's connections, after the data or ahead of it."""
        for connection in self._of(process):
            mine = next(end for end in connection.ends if end.process is process)
            if self._random.random() < 0.5:
                mine.close()
            else:
                connection.break_("connection reset", (0.001, 0.001))

    def machine_went_dark(self, machine: str) -> None:
        """Let a machine vanish without a word: peers find out when their kernels give up."""
        self._dark.add(machine)
        for connection in list(self._connections):
            if machine in connection.machines(0):
                connection.broken = True
                for end in connection.ends:
                    if end.process.machine != machine:
                        self._notice_later(connection, end)

    def machine_came_back(self, machine: str) -> None:
        """Let it answer again: for connections that it does not know, with resets."""
        self._dark.discard(machine)
        for connection in list(self._connections):
            if machine in connection.machines(0) and connection.broken:
                delays = (self._random.random(), self._random.random())
                connection.break_("connection reset", delays)

    # --- inside -----------------------------------------------------------------------------------

    def latency(self, source: str, target: str) -> float:
        """Draw how long the next frame takes."""
        return self.draw_latency(self.link(source, target))

    def draw_latency(self, link: Link) -> float:
        """Draw how long the next frame takes on a link."""
        # As ``Random.expovariate`` does it, which is a third of the work here.
        jitter = -log(1.0 - self._random.random()) * (link.jitter_s + link.slow_s * 0.3)
        return link.delay_s + link.slow_s + jitter

    def count(self, source: tuple[str, str], size: int) -> None:
        """Add to the traffic of a machine, by kind of connection."""
        self.sent_bytes[source] = self.sent_bytes.get(source, 0) + size

    def forget(self, connection: _Connection) -> None:
        """Take a connection out of the books."""
        self._connections.pop(connection, None)

    def establish(self, kind: str, dialler: Process, target: Process) -> _Connection:
        """Put a connection into the books."""
        connection = _Connection(self, kind, dialler, target)
        self._connections[connection] = None
        for pipe in connection.pipes:
            if pipe.link.blocked_since is not None:
                self._watch(connection, pipe.link, pipe.link.blocked_since)
        return connection

    def listener(self, machine: str) -> tuple[Process, Accept] | None:
        """Return the process that takes connections there; None when there is none."""
        found = self._listeners.get(machine)
        return found if found is not None and found[0].alive else None

    def is_dark(self, machine: str) -> bool:
        """Return whether a machine answers nothing at all."""
        return machine in self._dark

    def _watch(self, connection: _Connection, link: Link, since: float) -> None:
        timeout_s = self.timeout_s[connection.kind] * (0.85 + 0.15 * self._random.random())

        def give_up() -> None:
            if link.blocked_since == since and not connection.broken:
                connection.break_("timed out", (self._random.random(), self._random.random()))

        self.scheduler.after(timeout_s, give_up)

    def _notice_later(self, connection: _Connection, end: End) -> None:
        def notice() -> None:
            self.forget(connection)
            if end.open:
                end.open = False
                if end.endpoint is not None:
                    end.endpoint.closed(end, "timed out")

        timeout_s = self.timeout_s[connection.kind] * (0.85 + 0.15 * self._random.random())
        end.process.after(timeout_s, notice)

    def _between(self, one: str, other: str) -> list[_Connection]:
        pairs = ((one, other), (other, one))
        return [c for c in self._connections if c.pair in pairs]

    def _of(self, process: Process) -> list[_Connection]:
        return [
            c for c in self._connections if any(e.process is process and e.open for e in c.ends)
        ]

    def _resend_at(self, sent_at: float) -> float:
        pause_s = RESEND_FIRST_S
        when = sent_at
        while when < self.scheduler.now:
            when += pause_s
            pause_s *= 2
        return when


class _Attempt:
    """One attempt to open a connection."""

    def __init__(
        self, network: Network, process: Process, target: str, kind: str, endpoint: Endpoint
    ) -> None:
        self._network = network
        self._process = process
        self._target = target
        self._kind = kind
        self._endpoint = endpoint
        self._over = False

    def start(self, timeout_s: float) -> None:
        self._process.after(timeout_s, partial(self._fail, "timed out"))
        self._knock()

    def _knock(self) -> None:
        """Send the first packet; if it cannot get through, again after a while."""
        network, here = self._network, self._process.machine
        if self._over or not self._process.alive:
            return
        cut = network.blocked(here, self._target) or network.blocked(self._target, here)
        if cut or network.is_dark(self._target):
            network.scheduler.after(CONNECT_AGAIN_S, self._knock)
            return
        # One round trip for TCP, and one for TLS 1.3.
        delay_s = 2 * (network.latency(here, self._target) + network.latency(self._target, here))
        network.scheduler.after(delay_s, self._arrive)

    def _arrive(self) -> None:
        listener = self._network.listener(self._target)
        if self._over or not self._process.alive:
            return
        if listener is None:
            self._process.run(partial(self._fail, "connection refused"))
            return
        target, accept = listener
        # A stopped process accepts when it continues, if the dialler still waits then.
        target.run(partial(self._accept, target, accept))

    def _accept(self, target: Process, accept: Accept) -> None:
        if self._over or not self._process.alive:
            return
        endpoint = accept(self._process.machine, self._kind)
        if endpoint is None:
            self._process.run(partial(self._fail, "refused"))
            return
        self._over = True
        connection = self._network.establish(self._kind, self._process, target)
        ours, theirs = connection.ends
        ours.endpoint, theirs.endpoint = self._endpoint, endpoint
        endpoint.opened(theirs)
        self._process.run(partial(self._open, ours))

    def _open(self, end: End) -> None:
        if end.open:
            self._endpoint.opened(end)

    def _fail(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._endpoint.failed(reason)
