"""Gossip about refused servers: each server can show the refusals of the others.

Only a server that met a forgetful voter refuses it (``persisted_votes.py``), and an operator asks
any server. So each one tells those that it is connected to: when a refusal begins or ends, to a new
connection at once, and every ``TELL_EVERY_S``, for a message may meet a server that does not listen
yet. What is not said again within ``GOSSIP_S`` is forgotten. That covers a teller that ended, was
removed, or started again and remembers less.

Followers without a vote are connected to voters alone. A voter therefore passes on what such a
follower says. It passes on nothing of other voters, so that no gossip goes in a circle.

Gossip is shown, and changes nothing else: whose votes, acknowledgements and messages count, each
server decides by its own memory. It is heard and told of the pool's servers alone, so that it ends
when one is removed. Nothing is sent while nobody is refused, and an older build drops the message.
"""

from typing import NamedTuple

from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.persisted_votes import PersistedVotes
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import RefusedBy

TELL_EVERY_S = 5.0
"""Interval in seconds after which refusals are sent again."""

GOSSIP_S = 20.0
"""For how long it is believed: three repetitions may be lost."""

HEARD_MAX = 64
"""Servers that one teller may speak of at a time."""

REASON_MAX = 500


class _Heard(NamedTuple):
    """One teller's report about one refused server, and the instant at which it expires."""

    reason: str
    until: float


class Gossip:
    """Gossip about refused servers: sent by this server, and received from the others."""

    def __init__(self, context: NodeContext, promises: PersistedVotes) -> None:
        """Begin without gossip; it is in memory alone."""
        self._context = context
        self._persisted_votes = promises
        self._told: dict[ServerId, str] = {}
        self._told_at = context.now
        self._heard: dict[ServerId, dict[ServerId, _Heard]] = {}

    def connected(self, peer: ServerId) -> None:
        """Send a new connection the refusals already told to the others."""
        for server, reason in sorted(self._told.items()):
            self._tell(peer, server, reason)

    def tell(self) -> None:
        """Send all peers the new and ended refusals, and repeat all refusals at intervals."""
        if self._heard:
            self._forget()
        if not self._told and not self._persisted_votes.refused and not self._heard:
            return
        known = self._to_tell()
        repeats = self._context.now >= self._told_at + TELL_EVERY_S
        if known == self._told and not repeats:
            return
        news = {server: "" for server in self._told if server not in known}
        news |= known if repeats else dict(known.items() - self._told.items())
        self._told = known
        if repeats:
            self._told_at = self._context.now
        for peer in sorted(self._context.frames.connected()):
            for server, reason in sorted(news.items()):
                self._tell(peer, server, reason)

    def on_refusal(self, peer: ServerId, message: Message) -> None:
        """Note a peer's report that another server is refused, or no longer refused."""
        server, reason = ServerId(message["server"]), message["reason"][:REASON_MAX]
        heard = self._heard.setdefault(peer, {})
        for_s = min(message["for_ms"] / 1000, GOSSIP_S)
        if for_s <= 0:
            heard.pop(server, None)
        elif server in heard or len(heard) < HEARD_MAX:
            heard[server] = _Heard(reason, self._context.now + for_s)

    def heard(self, now: float) -> dict[ServerId, RefusedBy]:
        """Return the pool's servers that others refuse; of several tellers, the first by id."""
        found: dict[ServerId, RefusedBy] = {}
        for teller, heard in sorted(self._heard.items()):
            for server, (reason, until) in heard.items():
                if now < until and self._is_known(server):
                    found.setdefault(server, RefusedBy(teller, reason))
        return found

    def _to_tell(self) -> dict[ServerId, str]:
        """Return this server's refusals, and at a voter also those of non-voting followers."""
        context, found = self._context, dict[ServerId, str]()
        if context.core.votes:
            for teller, heard in sorted(self._heard.items()):
                if teller not in context.core.voters:
                    found |= {server: each.reason for server, each in heard.items()}
        found |= self._persisted_votes.refused
        known = [server for server in sorted(found) if self._is_known(server)]
        return {server: found[server] for server in known[:HEARD_MAX]}

    def _is_known(self, server: ServerId) -> bool:
        """Tell whether a server belongs to the pool, as far as this one was told."""
        context = self._context
        return server in context.servers or server in (context.server_id, *context.core.voters)

    def _forget(self) -> None:
        now = self._context.now
        for teller, heard in list(self._heard.items()):
            for server in [each for each, (_, until) in heard.items() if now >= until]:
                del heard[server]
            if not heard:
                del self._heard[teller]

    def _tell(self, peer: ServerId, server: ServerId, reason: str) -> None:
        for_ms = int(GOSSIP_S * 1000) if reason else 0
        message: Message = {
            "type": "refusal",
            "server": server,
            "reason": reason,
            "for_ms": for_ms,
        }
        self._context.frames.send(peer, message)
