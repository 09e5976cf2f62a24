"""Conversations of clients and servers, recorded, and repeated by hand.

A conversation is a list of events in their order: a client connects to a server, sends a frame, is
sent a frame, hangs up. Its text has one event a line, with the virtual time at which it happened:

    0.004 1 open gpu-1                connection 1 is made, to this server
    0.005 1 < 16 3 HEX                the client sent a frame: kind, number of the call, its body
    0.006 1 > 132 3 HEX               the server sent one
    9.000 1 closed                    the client hung up
"""

import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import trio
from tests.remoting.control.control_cluster import Cluster

from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.framing import ANSWER_SIZE_MAX, HEADER, FrameReader, dump, load

FILE = "conversation.txt"
PATIENCE_S = 10.0
"""Virtual seconds to wait for messages that came at once when recorded."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a conversation."""

    at: float
    connection: int
    what: str  # "open", "<", ">" or "closed"
    server: str = ""
    kind: int = 0
    body: bytes = b""

    @property
    def frame(self) -> bytes:
        return HEADER.pack(len(self.body), self.kind) + self.body

    @property
    def plain(self) -> list[Any]:
        return cast("list[Any]", load(self.body))

    @property
    def call(self) -> int:
        return cast(int, self.plain[0])

    def line(self) -> str:
        words = [f"{self.at:.3f}", str(self.connection), self.what]
        if self.what == "open":
            words.append(self.server)
        elif self.what in "<>":
            words += [str(self.kind), str(self.call), self.body.hex()]
        return " ".join(words)


def parse(text: str) -> list[Event]:
    """Return the events of a text."""
    events: list[Event] = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        at, connection, what, *rest = line.split(" ")
        head = float(at), int(connection), what
        if what == "open":
            events.append(Event(*head, server=rest[0]))
        elif what == "closed":
            events.append(Event(*head))
        else:
            events.append(Event(*head, kind=int(rest[0]), body=bytes.fromhex(rest[2])))
    return events


class Tap(trio.abc.Stream):
    """A client's stream that records its traffic."""

    def __init__(self, inner: trio.abc.Stream, note: Callable[[str, int, bytes], None]) -> None:
        self._inner = inner
        self._note = note
        self._sent = FrameReader(ANSWER_SIZE_MAX)
        self._received = FrameReader(ANSWER_SIZE_MAX)
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sent.feed(bytes(data))
        for frame in self._sent.frames():
            self._note("<", frame.kind, frame.body)
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        self._received.feed(bytes(data))
        for frame in self._received.frames():
            self._note(">", frame.kind, frame.body)
        return data

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._note("closed", 0, b"")
        await self._inner.aclose()


class TappedCluster(Cluster):
    """A pool that records its clients' messages in both directions."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.events: list[Event] = []
        self._count = 0
        self.zero = trio.current_time()

    async def dial(self, address: Address, _context: ssl.SSLContext) -> trio.abc.Stream:
        stream = await super().dial(address, _context)
        self._count += 1
        number = self._count
        self._add(number, "open", server=address.host)
        return Tap(stream, lambda what, kind, body: self._add(number, what, kind=kind, body=body))

    def _add(
        self, number: int, what: str, *, server: str = "", kind: int = 0, body: bytes = b""
    ) -> None:
        at = trio.current_time() - self.zero
        self.events.append(Event(at, number, what, server, kind, body))


# --- saying it again -----------------------------------------------------------------------------


class Line:
    """One connection of a conversation that is said again."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._answers: dict[int, deque[Event]] = {}
        self.pushes: list[Event] = []
        self._reader = FrameReader(ANSWER_SIZE_MAX)
        self._news = trio.Event()
        self.hung_up = False

    async def run(self) -> None:
        """Receive the server's messages, until either end hangs up."""
        try:
            while data := await self.stream.receive_some(1 << 16):
                self._reader.feed(bytes(data))
                for frame in self._reader.frames():
                    event = Event(0.0, 0, ">", kind=frame.kind, body=frame.body)
                    if event.call == 0:
                        self.pushes.append(event)
                    else:
                        self._answers.setdefault(event.call, deque()).append(event)
                self._tell()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass
        self.hung_up = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def answer(self, call: int) -> Event | None:
        """Return the answer to a call, or None when there will be none; each of them once.

        A client's greeting and its first call may have the same number.
        """
        while not self._answers.get(call) and not self.hung_up:
            await self._news.wait()
        return self._answers[call].popleft() if self._answers.get(call) else None

    async def push(self, kind: int) -> None:
        """Wait until something of this kind has been pushed."""
        while all(push.kind != kind for push in self.pushes) and not self.hung_up:
            await self._news.wait()


Pair = tuple[Event, Event | None]


class Replay:
    """Sends the messages of recorded clients, at the same times, to the servers of today.

    Ids of leases depend on how many commands were committed before, which servers are free to
    change. So a client's ``lease`` is put into its calls as today's server has named it.
    """

    def __init__(self, cluster: Cluster, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._nursery = nursery
        self._lines: dict[int, Line] = {}
        self.leases: dict[int, int] = {}
        """Today's ids by the recorded ones."""

        self.answered: list[Pair] = []
        """Each recorded answer with today's."""

    async def run(self, events: list[Event]) -> None:
        """Say all of it; ``answered`` is complete then."""
        zero = trio.current_time()
        for event in events:
            await trio.sleep_until(max(zero + event.at, trio.current_time()))
            if event.what == "open":
                await self._open(event)
                continue
            line = self._lines[event.connection]
            if event.what == "<":
                with_lease = self._renamed(event)
                await line.stream.send_all(with_lease.frame)
            elif event.what == "closed":
                await trio.aclose_forcefully(line.stream)
            elif event.call == 0:
                with trio.move_on_after(PATIENCE_S):
                    await line.push(event.kind)
            else:
                found = None
                with trio.move_on_after(PATIENCE_S):
                    found = await line.answer(event.call)
                self._note_lease(event, found)
                self.answered.append((event, found))

    def pushes(self, connection: int) -> list[Event]:
        """Return the server's unsolicited messages on one connection."""
        return self._lines[connection].pushes

    async def _open(self, event: Event) -> None:
        address = Address(event.server, 7470)
        stream = await self._cluster.dial(address, ssl.create_default_context())
        line = self._lines[event.connection] = Line(stream)
        self._nursery.start_soon(line.run)

    def _renamed(self, event: Event) -> Event:
        call, fields = event.plain
        lease = fields.get("lease")
        if type(lease) is not int:
            return event
        fields = fields | {"lease": self.leases.get(lease, lease)}
        body = dump([call, fields])
        return Event(event.at, event.connection, event.what, kind=event.kind, body=body)

    def _note_lease(self, recorded: Event, found: Event | None) -> None:
        was = recorded.plain[1].get("lease")
        now = found.plain[1].get("lease") if found is not None else None
        if type(was) is int and type(now) is int:
            self.leases[was] = now
