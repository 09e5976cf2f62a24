"""Reach: a leader that can talk to fewer servers than another voter lets that one lead.

Two servers may be cut off from each other for long while a third hears both. If one of the two
leads, the pool holds the other one for lost: nothing is granted there, though clients reach it.

A leader that lacks a connection to a server of the pool says to the voters how many it has, and
each answers how many it has itself. One that has more in ``ANSWERS`` answers in a row gets the
leadership. The number of servers that the leader reaches grows with each such change, so that the
leadership cannot go in a circle. An older build drops the messages.
"""

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.model.ids import ServerId

ASK_EVERY_S = 2.0
ANSWERS = 4
"""A dead server's connections do not end everywhere at the same moment."""


class Reach:
    """How many servers this one and the other voters are connected to."""

    def __init__(self, context: NodeContext) -> None:
        """Begin without knowing anything of others."""
        self._context = context
        self._asked_at = context.now
        self._more: dict[ServerId, int] = {}  # answers in a row of voters that reach more
        self._less: set[ServerId] = set()

    def step(self, *, always: bool) -> None:
        """Ask the voters if this server leads and lacks one, or ``always``."""
        context = self._context
        if context.core.state != LEADER:
            self._more = {}
        elif context.now >= self._asked_at + ASK_EVERY_S:
            self._asked_at = context.now
            count, all_others = self._counts()
            if always or count < all_others:
                for voter in context.core.voters:
                    context.frames.send(voter, {"type": "reach", "count": count})
            else:
                self._more = {}

    def on_reach(self, peer: ServerId, message: Message) -> None:
        """Answer the leader; or take a voter's answer."""
        core, (count, _) = self._context.core, self._counts()
        (self._less.add if message["count"] < count else self._less.discard)(peer)
        if core.state == LEADER:
            is_more = message["count"] > count
            self._more[peer] = self._more.get(peer, 0) + 1 if is_more else 0
        elif peer == core.leader:
            self._context.frames.send(peer, {"type": "reach", "count": count})

    def reaches_more(self) -> list[ServerId]:
        """Return the voters that reach more servers than this one does."""
        voters = self._context.core.voters
        return [peer for peer, times in self._more.items() if times >= ANSWERS and peer in voters]

    def reaches_less(self, voter: ServerId) -> bool:
        """Tell whether a voter has last said that it reaches fewer servers, asked or asking."""
        return voter in self._less

    def _counts(self) -> tuple[int, int]:
        """Return how many others this server is connected to, and how many there are."""
        context = self._context
        others = {*context.servers, *context.core.voters} - {context.server_id}
        return len(others & context.frames.connected()), len(others)
