"""The servers that a node stays connected to, and when each was last heard of."""

from typing import NamedTuple

from gpupool.consensus.core.library import LEADER
from gpupool.consensus.node_context import NodeContext
from gpupool.pool.model.ids import ServerId


class _Known(NamedTuple):
    """All known servers but this one, sorted, and the three books that they come from."""

    servers: tuple[ServerId, ...]
    voters: tuple[ServerId, ...]
    heard: tuple[ServerId, ...]
    known: list[ServerId]


class _Peers(NamedTuple):
    """The servers to connect to, and the voters and servers that they come from."""

    voters: tuple[ServerId, ...]
    servers: tuple[ServerId, ...]
    peers: tuple[ServerId, ...]


class Contacts:
    """The other servers, and the instants at which their messages arrived."""

    def __init__(self, context: NodeContext) -> None:
        """Begin now, without having heard of anyone."""
        self._context = context
        self._heard_at: dict[ServerId, float] = {}
        self._started_at = context.now
        self._leads_since = context.now
        self._led_term = 0
        self._cache = _Known((), (), (), [])
        self._peers = _Peers((), (), ())

    def to_connect(self, *, everyone: bool) -> tuple[ServerId, ...]:
        """Return the voters, or with ``everyone`` all servers of the pool, but this one."""
        voters = self._context.core.voters
        servers = self._context.servers if everyone else ()
        if self._peers.voters is not voters or self._peers.servers is not servers:
            peers = tuple(sorted({*voters, *servers} - {self._context.server_id}))
            self._peers = _Peers(voters, servers, peers)
        return self._peers.peers

    def heard(self, peer: ServerId) -> None:
        """Note a sign of life."""
        self._heard_at[peer] = self._context.now

    def leads_in(self, term: int) -> None:
        """Give everybody time to be heard in a new term: followers do not talk to each other."""
        if term != self._led_term:
            self._led_term, self._leads_since = term, self._context.now

    def forget_strangers(self) -> list[ServerId]:
        """Forget servers that neither belong to the pool, nor vote, nor are connected."""
        context = self._context
        keep = {*context.servers, *context.core.voters}
        gone = [p for p in self._heard_at if p not in keep and p not in context.frames]
        for peer in gone:
            del self._heard_at[peer]
        return gone

    def ages_s(self, now: float) -> dict[ServerId, float]:
        """Return for how long each known server has not been heard of."""
        leads = self._context.core.state == LEADER
        floor = self._leads_since if leads else self._started_at
        return {p: now - max(self._heard_at.get(p, floor), floor) for p in self._known()}

    def _known(self) -> list[ServerId]:
        books = (self._context.servers, self._context.core.voters, tuple(self._heard_at))
        if self._cache[:3] != books:
            known = sorted({name for book in books for name in book} - {self._context.server_id})
            self._cache = _Known(*books, known)
        return self._cache.known
