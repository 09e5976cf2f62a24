"""Where the web page's data come from: a protocol, and its implementation for a client.

The application knows ``PoolSource`` alone, so that a server's observer can serve the same pages
with what it has at hand, and tests and measurements can serve pools that do not exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.record_query import RecordQuery
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import PoolView
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.subscription import PoolUpdate
from gpupool.remoting.client.usage_query import UsageAnswer
from gpupool.remoting.protocol import messages as m

INTERVAL_S = 1.0
QUESTIONS_MAX = 2
"""Questions about usage and history at a time: a server refuses a third of one connection."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a pool at one moment. Times of arrival are by the reader's own clock."""

    view: PoolView
    view_at: float
    telemetry: Mapping[ServerId, Telemetry]  # the last of each member, also of silent ones
    heard_at: Mapping[ServerId, float]
    connected: frozenset[ServerId]


class PoolSource(Protocol):
    """A pool as one user sees it."""

    def now(self) -> float:
        """Return the time by which ``Snapshot`` tells when things arrived."""
        ...

    def latest(self) -> Snapshot | None:
        """Return what is known; None before anything has arrived."""
        ...

    def user(self) -> str:
        """Return the name of the user who looks."""
        ...

    def is_operator(self) -> bool:
        """Return whether this user may give all orders."""
        ...

    def only_looks(self) -> bool:
        """Return whether this user may give no order at all."""
        ...

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Return records of leases, of all servers that answer."""
        ...

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Return what these servers have measured, or all that answer, each for itself."""
        ...

    async def audit(self) -> m.AuditNow:
        """Return the latest administrative acts."""
        ...

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Return a version of the policy; 0 stands for the one in force."""
        ...

    async def policy_history(self) -> Sequence[m.PolicyIs]:
        """Return the versions of the policy that are kept, without their texts."""
        ...

    async def operate(self, order: m.Order) -> str:
        """Give an order, and return its outcome as a sentence."""
        ...


class ClientSource:
    """A pool through the control protocol, with the credentials of one user."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._latest: Snapshot | None = None
        self._user, self._operator = pool.user(), pool.is_operator()
        self._arrived = trio.Event()
        self._asking = trio.CapacityLimiter(QUESTIONS_MAX)

    async def run(self) -> None:
        """Take the updates of one subscription for all viewers, until cancelled."""
        async with self._pool.subscribe(INTERVAL_S) as updates:
            async for update in updates:
                self.take(update, trio.current_time())

    async def first(self) -> None:
        """Wait for the first update."""
        await self._arrived.wait()

    def take(self, update: PoolUpdate, now: float) -> None:
        """Keep what arrived; a server that is silent keeps its last measurements."""
        members = {server.id for server in update.view.servers}
        before = self._latest
        telemetry = {k: v for k, v in before.telemetry.items() if k in members} if before else {}
        heard = {k: v for k, v in before.heard_at.items() if k in members} if before else {}
        for server, measured in update.telemetry.items():
            if server in members and measured is not telemetry.get(server):
                telemetry[server], heard[server] = measured, now
        connected = frozenset(members.intersection(update.connected))
        self._latest = Snapshot(update.view, now - update.age_s, telemetry, heard, connected)
        self._arrived.set()

    def now(self) -> float:
        """Return trio's time."""
        return trio.current_time()

    def latest(self) -> Snapshot | None:
        """Return the latest update."""
        return self._latest

    def user(self) -> str:
        """Return whose token this is, also when no server is connected any more."""
        self._user = self._pool.user() or self._user
        return self._user

    def is_operator(self) -> bool:
        """Return whether the token is an operator's, by the last server that said so."""
        if self._pool.connections.by_server:
            self._operator = self._pool.is_operator()
        return self._operator

    def only_looks(self) -> bool:
        """Return whether the token is a viewer's."""
        return any(
            each.welcome.kind is TokenKind.VIEWER
            for each in self._pool.connections.by_server.values()
        )

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Ask all servers, after the questions that are under way."""
        async with self._asking:
            return await self._pool.usage(query)

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Ask these servers, or all, after the questions that are under way."""
        async with self._asking:
            return await self._pool.history(query, servers)

    async def audit(self) -> m.AuditNow:
        """Ask a server."""
        return await self._pool.audit()

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Ask a server."""
        return await self._pool.policy(version)

    async def policy_history(self) -> Sequence[m.PolicyIs]:
        """Ask a server."""
        return await self._pool.policy_history()

    async def operate(self, order: m.Order) -> str:
        """Order it as ``gpupool kill`` and ``gpupool drain`` do."""
        return await self._pool.operate(order)
