"""The client's side of a lease that goes to another server of the pool.

The client holds the lease by a connection to the new server as well, has a session opened there,
and lets the program bring all that it has. Then it asks the old server whether the program may go
on. Where that does not answer, the new one says where the lease is. As long as neither has said so,
the program stays: a worker of a lease that has gone ends by itself.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Partition
from gpupool.remoting.client.server_connections import Connections, ServerConnection
from gpupool.remoting.client.session_answer import OpenedSession, opened_session
from gpupool.remoting.protocol import messages as m

REACH_TIMEOUT_S = 5.0
OPEN_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 4.0
"""A server answers within 2 s, if only to say that it has no majority."""

IN_DOUBT_S = 60.0
"""For so long the new server is asked where the lease is; an election takes less than a second."""

RETRY_S = 0.3

Ask = Callable[[], Awaitable[str]]
"""Asks whether the program may go on; returns why not, empty when it may."""

Bring = Callable[[bytes, OpenedSession, Ask], Awaitable[str]]
"""Tells a session's process to move to another session; returns the reason if it stays."""

LOG = logging.getLogger("gpupool.client")


async def stays_where_it_is(_session: bytes, _offer: OpenedSession, _ask: Ask) -> str:
    """Return the reason that a program stays: nobody here can tell it to move."""
    return "its lease is held by gpupool alloc or a Python program, which does not tell it to go"


class LeaseMove:
    """One order to go to another server, from the client's side."""

    def __init__(
        self,
        order: m.LeaseLeaving,
        ticket: bytes,
        connections: Connections,
        source: ServerConnection,
        bring: Bring,
    ) -> None:
        self.order = order
        self.source = source
        self.target: ServerConnection | None = None
        self.gone = False
        self.decided = True
        """Whether it is known where the lease is; its old server may have moved it, or not."""
        self.over = trio.Event()
        self._ticket, self._connections, self._bring = ticket, connections, bring

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return those of the lease on the new server."""
        return self.order.partitions

    async def run(self, program: str, settings: dict[str, str]) -> None:
        """Bring the lease to the new server; ``gone`` says afterwards whether it is there.

        Args:
            program: the program's name, shown in views.
            settings: variables of its environment for the driver there.
        """
        try:
            why = await self._bring_over(program, settings)
        except GpupoolError as error:
            why = str(error)
        if not self.gone and self.decided:
            await self._stay(why)

    async def _bring_over(self, program: str, settings: dict[str, str]) -> str:
        order = self.order
        target = await self._reach(order.server)
        await target.call(m.Attach(order.lease, self._ticket), timeout_s=REACH_TIMEOUT_S)
        self.target = target
        if not order.session:
            return await self._ask()
        message = m.OpenSession(order.lease, "arrays", program, settings)
        opened = await target.call(message, timeout_s=OPEN_TIMEOUT_S)
        offer = opened_session(target.server, target.name, opened)
        return await self._bring(order.session, offer, self._ask)

    async def _reach(self, server: ServerId) -> ServerConnection:
        return await self._connections.reach(server, REACH_TIMEOUT_S)

    async def _ask(self) -> str:
        """Ask the old server; return why the program stays, empty when it may go on."""
        order = self.order
        if self.gone:
            return ""
        self.decided = False
        why = "the pool does not say where it is"
        try:
            message = m.GoOn(order.lease, order.number, order.server)
            await self.source.call(message, timeout_s=ANSWER_TIMEOUT_S)
            self.gone = self.decided = True
        except (DeniedError, LeaseLostError) as error:
            self.decided, why = True, error.why or error.what
        except GpupoolError as error:
            LOG.debug("lease %x: the old server did not answer: %s", order.lease, error)
            with trio.move_on_after(IN_DOUBT_S):
                why = await self._ask_the_new_one()
        return "" if self.gone else why

    async def _ask_the_new_one(self) -> str:
        """Ask until it is known where the lease is, or the new server is lost, too."""
        order, target = self.order, self.target
        assert target is not None, "the lease is attached there"
        while not target.closed.is_set():
            try:
                message = m.GoOn(order.lease, order.number, order.server)
                await target.call(message, timeout_s=ANSWER_TIMEOUT_S)
            except (DeniedError, LeaseLostError) as error:
                self.decided = True
                return error.why or error.what
            except GpupoolError:
                await trio.sleep(RETRY_S)
            else:
                self.gone = self.decided = True
                return ""
        return f"lost both servers, {self.source.name} and {target.name}"

    async def _stay(self, why: str) -> None:
        """Tell the old server that the program stays; without it, the pool gives up by itself."""
        order = self.order
        try:
            message = m.GoOn(order.lease, order.number, order.server, why or "it stays")
            await self.source.call(message, timeout_s=ANSWER_TIMEOUT_S)
        except GpupoolError as error:
            LOG.debug("lease %x: cannot say that it stays: %s", order.lease, error)
