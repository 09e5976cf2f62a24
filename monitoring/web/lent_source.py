"""A pool as one token's holder sees it, for the page of a server: connected while somebody looks.

The exporter has no rights of its own. It connects as the person does, with the person's token, so
the servers decide what is told and done, and the audit names the person. The connections end a
minute after the last look, so a page that nobody has open costs the pool nothing.
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.remoting.client.pool_client import Pool

UNSEEN_S = 60.0
"""The connections end so long after the last look."""

FIRST_S = 3.0

Connect = Callable[[], AbstractAsyncContextManager[Pool]]
Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class LentSource(PoolSource):
    """A pool by the viewer's token."""

    def __init__(self, user: str, kind: str, connect: Connect, start: Start) -> None:
        """Make it; ``start`` runs a task beside, for as long as the exporter does."""
        super().__init__()
        self._user, self._kind = user, kind
        self._connect = connect
        self._start = start
        self._running = False
        self._wanted = trio.CancelScope()
        self._changed = trio.Event()

    async def look(self) -> None:
        """Connect if nobody has looked for a while, and wait a little for the first view."""
        if not self._running:
            self._running, self._changed, self._wanted = True, trio.Event(), trio.CancelScope()
            self._start(self._run)
        self._wanted.deadline = self.now() + UNSEEN_S
        if self.latest() is None:
            with trio.move_on_after(FIRST_S):
                await self._changed.wait()

    async def _run(self) -> None:
        self._arrived = trio.Event()
        try:
            async with self._connect() as pool, trio.open_nursery() as nursery:
                nursery.start_soon(self.follow, pool)
                with trio.move_on_after(UNSEEN_S) as waited:
                    await self.first()
                if waited.cancelled_caught:
                    raise UnreachableError("no server answers with a view of the pool")
                self._pool = pool
                self._changed.set()
                with self._wanted:
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        except* GpupoolError as group:
            self._problem = _first(group)
        finally:
            self._pool, self._running = None, False
            self._changed.set()

    def user(self) -> str:
        """Return the token's user, by the server's word."""
        return self._user

    def is_operator(self) -> bool:
        """Return whether it is an operator's."""
        return self._kind == "operator"

    def only_looks(self) -> bool:
        """Return whether it is a viewer's."""
        return self._kind == "viewer"


def _first(group: BaseExceptionGroup[GpupoolError]) -> GpupoolError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, GpupoolError)
    return error
