"""A pool as one token's holder sees it, for the page of a server: connected while somebody looks.

The observer has no rights of its own. It connects as the person does, with the person's token, so
the servers decide what is told and done, and the audit names the person. The connections end a
minute after the last look, so a page that nobody has open costs the pool nothing.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from gpupool.monitoring.web.pool_source import ClientSource, Snapshot
from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import ServerId
from gpupool.pool.record_query import RecordQuery
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.usage_query import UsageAnswer
from gpupool.remoting.protocol import messages as m

UNSEEN_S = 60.0
"""The connections end so long after the last look."""

FIRST_S = 3.0

Connect = Callable[[], AbstractAsyncContextManager[Pool]]
Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class LentSource:
    """A ``PoolSource`` by the token of who looks."""

    def __init__(self, user: str, kind: str, connect: Connect, start: Start) -> None:
        """Make it; ``start`` runs a task beside, for as long as the observer does."""
        self._user, self._kind = user, kind
        self._connect = connect
        self._start = start
        self._client: ClientSource | None = None
        self._last: Snapshot | None = None
        self._running = False
        self._watch = trio.CancelScope()
        self._changed = trio.Event()
        self._problem: GpupoolError = UnreachableError("no server has answered yet")

    async def look(self) -> None:
        """Connect if nobody has looked for a while, and wait a little for the first view."""
        if not self._running:
            self._running, self._changed, self._watch = True, trio.Event(), trio.CancelScope()
            self._start(self._run)
        self._watch.deadline = trio.current_time() + UNSEEN_S
        if self.latest() is None:
            with trio.move_on_after(FIRST_S):
                await self._changed.wait()

    async def _run(self) -> None:
        try:
            async with self._connect() as pool, trio.open_nursery() as nursery:
                client = ClientSource(pool)
                nursery.start_soon(client.run)
                with trio.move_on_after(UNSEEN_S) as waited:
                    await client.first()
                if waited.cancelled_caught:
                    raise UnreachableError("no server says what it knows of the pool")
                self._client = client
                self._changed.set()
                with self._watch:
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        except* GpupoolError as group:
            self._problem = _first(group)
        finally:
            if self._client is not None:
                self._last = self._client.latest()
            self._client, self._running = None, False
            self._changed.set()

    # --- PoolSource ------------------------------------------------------------------------------

    def now(self) -> float:
        """Return trio's time."""
        return trio.current_time()

    def latest(self) -> Snapshot | None:
        """Return the latest update, whose age tells when the connections are gone."""
        found = self._client.latest() if self._client is not None else None
        return found or self._last

    def user(self) -> str:
        """Return whose token it is, by the server's word."""
        return self._user

    def is_operator(self) -> bool:
        """Return whether it is an operator's."""
        return self._kind == "operator"

    def only_looks(self) -> bool:
        """Return whether it is a viewer's."""
        return self._kind == "viewer"

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Ask all servers."""
        return await self._connected().usage(query)

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Ask these servers, or all."""
        return await self._connected().history(query, servers)

    async def audit(self) -> m.AuditNow:
        """Ask a server."""
        return await self._connected().audit()

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Ask a server."""
        return await self._connected().policy(version)

    async def policy_history(self) -> Sequence[m.PolicyIs]:
        """Ask a server."""
        return await self._connected().policy_history()

    async def operate(self, order: m.Order) -> str:
        """Give an order with the rights of the token."""
        return await self._connected().operate(order)

    def _connected(self) -> ClientSource:
        if self._client is None:
            raise self._problem
        return self._client


def _first(group: BaseExceptionGroup[GpupoolError]) -> GpupoolError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GpupoolError)
    return error
