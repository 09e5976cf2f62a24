"""Relay: two servers without a connection reach each other through a voter that both hear.

A pair of servers may be cut off from each other for long while others hear both. For Raft a
connection through a third server is one like any other: it begins and ends at both ends, and
carries all frames in order or none. Two servers that each reach a majority of the voters have a
voter in common, so that one server in between is always enough::

    event                                        what is done
    a server misses one of a larger id           it asks all voters that it reaches to carry
    a voter that is connected to both            passes on what they send to each other
    the other server, if it misses this one too  begins the connection, and answers
    the answer to what was asked last            begins the connection
    the one in between loses one of the two      the other one ends the connection
    a connection of their own                    takes its place

A number that grows across restarts tells what was asked last. Nothing is sent while nobody is
missed, and an older build drops the messages.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.model.ids import ServerId

ASK_EVERY_S = 1.0
"""One that is missed twice in a row is asked for: a connection that broke is made anew by then."""


class Connections(NamedTuple):
    """Which connections a node wants, and how one that is carried begins, ends and is read."""

    wanted: Callable[[], Collection[ServerId]]
    begin: Callable[[ServerId, ServerId], None]
    end: Callable[[ServerId], None]
    take: Callable[[ServerId, bytes], None]


class Relay:
    """The connections of one node that others carry, and those that it carries for others."""

    def __init__(self, context: NodeContext, connections: Connections) -> None:
        """Begin without any."""
        self._context = context
        self._connections = connections
        self._asks_at = context.now
        self._missed: set[ServerId] = set()
        self._asked: dict[ServerId, int] = {}  # the number of the latest question
        self._answered: dict[ServerId, int] = {}
        self._carried: set[frozenset[ServerId]] = set()

    def step(self) -> None:
        """Ask the voters for the servers that are missed, and end what is not wanted any more."""
        context, frames = self._context, self._context.frames
        if context.now < self._asks_at:
            return
        self._asks_at = context.now + ASK_EVERY_S
        wanted = {*self._connections.wanted()}
        for peer in sorted(frames.carriers.keys() - wanted):
            self._say(frames.carriers[peer], context.server_id, peer, 0)
            self._connections.end(peer)
        before, self._missed = self._missed, wanted - frames.connected()
        for peer in sorted(self._missed & before):
            if peer > context.server_id:
                self._asked[peer] = number = frames.next_number()
                for voter in sorted(frames.direct() & {*context.core.voters}):
                    self._say(voter, context.server_id, peer, number)

    def on_carry(self, peer: ServerId, message: Message) -> None:
        """Pass a message on, or take it."""
        context, frames, begin = self._context, self._context.frames, self._connections.begin
        source, target = ServerId(message["source"]), ServerId(message["target"])
        number, carries = message["number"], frames.carriers.get(source) == peer
        if target != context.server_id:
            if source == peer and target in frames.direct():
                self._carried.add(frozenset((source, target)))
                frames.send(target, message)
        elif message["frame"]:
            if carries:
                self._connections.take(source, message["frame"])
        elif not number:
            if carries:
                self._connections.end(source)
        elif source in frames.direct() or source not in self._connections.wanted():
            return
        elif source > context.server_id:
            if number == self._asked.get(source):
                self._asked[source] = 0
                begin(source, peer)
        elif number > self._answered.get(source, 0):
            self._answered[source] = number
            self._say(peer, context.server_id, source, number)  # before the first frame
            begin(source, peer)

    def disconnected(self, peer: ServerId) -> None:
        """End what ``peer`` carries, and tell those for whom this server carried."""
        for other in [each for each, by in self._context.frames.carriers.items() if by == peer]:
            self._connections.end(other)
        for pair in [each for each in self._carried if peer in each]:
            self._carried.discard(pair)
            for other in pair - {peer}:
                self._say(other, peer, other, 0)

    def _say(self, to: ServerId, source: ServerId, target: ServerId, number: int) -> None:
        message = {"source": source, "target": target, "number": number, "frame": b""}
        self._context.frames.send(to, {"type": "carry", **message})
