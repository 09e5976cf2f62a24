"""The data of the web page: a pool through the control protocol, with the rights of one user.

A server's exporter connects as the person who looks (``lent_source``). Tests and measurements serve
pools that do not exist, by a class of their own.
"""

from collections.abc import Sequence

import trio

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolWatch
from gpupool.pool.record_query import RecordQuery
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.usage_query import UsageAnswer
from gpupool.remoting.protocol import messages as m

INTERVAL_S = 1.0
QUESTIONS_MAX = 2
"""Questions about usage and history at a time: a server refuses a third of one connection."""


class PoolSource:
    """A pool as one user sees it."""

    def __init__(self, pool: Pool | None = None) -> None:
        """Make one that asks through ``pool``."""
        self._pool = pool
        self._problem: GpupoolError = UnreachableError("no server has answered yet")
        self._watch = PoolWatch(INTERVAL_S)
        self._user = pool.user() if pool is not None else ""
        self._operator = pool is not None and pool.is_operator()
        self._arrived = trio.Event()
        self._asking = trio.CapacityLimiter(QUESTIONS_MAX)

    async def follow(self, pool: Pool) -> None:
        """Take the updates of one subscription for all viewers, until cancelled."""
        async with pool.subscribe(INTERVAL_S) as updates:
            async for update in updates:
                self._watch.take(update, self.now())
                self._arrived.set()

    async def first(self) -> None:
        """Wait for the first update."""
        await self._arrived.wait()

    def now(self) -> float:
        """Return trio's time."""
        return trio.current_time()

    def latest(self) -> PoolSnapshot | None:
        """Return the current snapshot; None before anything has arrived."""
        return self._watch.snapshot(self.now())

    def known(self) -> PoolSnapshot:
        """Return the current snapshot.

        Raises:
            UnreachableError: when nothing has arrived yet.
        """
        found = self.latest()
        if found is None:
            raise UnreachableError("no server has answered yet")
        return found

    def connected(self) -> Pool:
        """Return the pool to ask.

        Raises:
            GpupoolError: why there is no connection.
        """
        if self._pool is None:
            raise self._problem
        return self._pool

    def user(self) -> str:
        """Return the viewer's user name, also when no server is connected any more."""
        self._user = self.connected().user() or self._user
        return self._user

    def is_operator(self) -> bool:
        """Return whether this user may give all orders, by the last server that said so."""
        pool = self.connected()
        if pool.connections.by_server:
            self._operator = pool.is_operator()
        return self._operator

    def only_looks(self) -> bool:
        """Return whether this user may give no order at all."""
        servers = self.connected().connections.by_server.values()
        return any(each.welcome.kind is TokenKind.VIEWER for each in servers)

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Return records of leases, of all servers, after the questions that are under way."""
        async with self._asking:
            return await self.connected().usage(query)

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Return measurements of these servers, or all, after the queries under way."""
        async with self._asking:
            return await self.connected().history(query, servers)

    async def audit(self) -> m.AuditNow:
        """Return the latest administrative acts."""
        return await self.connected().audit()

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Return a version of the policy; 0 stands for the one in force."""
        return await self.connected().policy(version)

    async def policy_history(self) -> Sequence[m.PolicyIs]:
        """Return the versions of the policy that are kept, without their texts."""
        return await self.connected().policy_history()

    async def operate(self, order: m.Order) -> str:
        """Give an order as ``gpupool kill`` and ``gpupool drain`` do, and return its outcome."""
        return await self.connected().operate(order)
