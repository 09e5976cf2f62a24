"""The allocator: carries out the actions of a ``Negotiation`` over real connections."""

import os
from collections.abc import Callable

import trio

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Request
from gpupool.pool.ports import Clock, Randomness
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.negotiation import Negotiation
from gpupool.remoting.client.negotiation_actions import (
    Action,
    Call,
    Explain,
    Failed,
    Granted,
    NegotiationSettings,
    Tell,
    Widen,
)
from gpupool.remoting.client.server_connections import Connections, ServerConnection
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.token_text import hash_secret

FAREWELL_TIMEOUT_S = 1.0
WITHDRAWAL_TIMEOUT_S = 3 * FAREWELL_TIMEOUT_S
"""Time to withdraw a request, by several servers if need be. Otherwise the place lapses later."""


class Allocator:
    """Drives one ``Negotiation`` over the connections of a client."""

    def __init__(
        self,
        connections: Connections,
        request: Request,
        *,
        wait_s: float | None,
        clock: Clock,
        rng: Randomness,
        on_status: Callable[[str], None],
        on_choice: Callable[[tuple[str, ...]], None] = lambda _lines: None,
        settings: NegotiationSettings | None = None,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._on_status = on_status
        self._on_choice = on_choice
        self._ticket = os.urandom(32)
        self._final: Granted | Failed | None = None
        self._wake = trio.Event()
        self._claimed: ServerConnection | None = None
        self._cancel_count = 0
        self._nursery: trio.Nursery | None = None
        self.allocation = Negotiation(
            request,
            ticket_hash=hash_secret(self._ticket),
            wait_s=wait_s,
            clock=clock,
            rng=rng,
            settings=settings,
        )

    async def run(self) -> LeaseHandle:
        """Return the lease.

        Raises:
            GpupoolError: when there will be none.
        """
        done = False
        self._connections.listen(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._do(self.allocation.start(*self._servers()))
                result = await self._until_held()
                with trio.move_on_after(FAREWELL_TIMEOUT_S):
                    while self._cancel_count:
                        self._wake = trio.Event()
                        await self._wake.wait()
                nursery.cancel_scope.cancel()
            done = True
        finally:
            self._connections.unlisten(self)
            if not done:
                await self._withdraw()
        if isinstance(result, Failed):
            if result.unsettled is not None and self._claimed is not None:
                await self._claimed.aclose()
            raise result.error
        return result

    def _servers(self) -> tuple[list[ServerId], int]:
        """Return the connected servers, those asked for by name first, and how many there are."""
        connections, names = self._connections, self.allocation.request.servers
        connections.seek(names)
        found = connections.by_server.values()
        first = sorted(found, key=lambda c: c.name not in names and c.server not in names)
        return [c.server for c in first], len(connections.members)

    async def _until_held(self) -> LeaseHandle | Failed:
        while True:
            final = await self._until_final()
            if isinstance(final, Failed):
                return final
            hold = LeaseHandle(self._connections, self._ticket, final)
            try:
                unusable = await self._attach_all(hold, final.choice.server)
            except BaseException:
                await hold.release("its client gave up")
                raise
            if unusable is None:
                return hold
            await hold.release("one of its servers did not take its part")
            self._final = None
            self._do(self.allocation.retry_without(unusable))

    async def _until_final(self) -> Granted | Failed:
        """Return the end, which the first step can be: where no server is there, for one try."""
        while self._final is None:
            self._wake = trio.Event()
            wait_s = self.allocation.wake_at() - self._clock.monotonic()
            with trio.move_on_after(max(0.0, wait_s)):
                await self._wake.wait()
            self._do(self.allocation.poll())
        return self._final

    async def _attach_all(self, hold: LeaseHandle, claimed_at: ServerId) -> ServerId | None:
        """Return the first server that does not take its part, or None."""
        failed: list[ServerId] = []

        async def attach(server: ServerId) -> None:
            try:
                await hold.attach(server, self._claimed if server == claimed_at else None)
            except GpupoolError as error:
                self._on_status(f"{error}; trying without it")
                failed.append(server)

        async with trio.open_nursery() as nursery:
            for server in hold.servers:
                nursery.start_soon(attach, server)
        return failed[0] if failed else None

    def _do(self, actions: list[Action]) -> None:
        assert self._nursery is not None
        for action in actions:
            match action:
                case Call():
                    if isinstance(action.message, m.Claim):
                        self._claimed = self._connections.by_server.get(action.server)
                    elif isinstance(action.message, m.Cancel):
                        self._cancel_count += 1
                    self._nursery.start_soon(self._call, action)
                case Tell():
                    self._on_status(action.text)
                case Widen():
                    self._connections.widen(action.count)
                case Explain():
                    self._on_choice(action.lines)
                case Granted() | Failed():
                    self._final = action
        self._wake.set()

    async def _call(self, action: Call) -> None:
        connection = self._connections.by_server.get(action.server)
        try:
            if connection is None:
                raise UnreachableError(f"lost server {self._connections.name_of(action.server)}")
            answer = await connection.call(action.message, timeout_s=action.timeout_s)
        except GpupoolError as error:
            answer = error
        if isinstance(action.message, m.Cancel):
            self._cancel_count -= 1
        self._do(self.allocation.answered(action.number, answer))

    async def _withdraw(self) -> None:
        """Withdraw the claim and the place in the line."""
        if not self.allocation.leaves_trace:
            return
        claimed = self._claimed
        live = list(self._connections.by_server.values())
        cancel = m.Cancel(self.allocation.request.id, "its client gave up")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + WITHDRAWAL_TIMEOUT_S):
            # A server that has just started, or cannot reach the leader, refuses; another may not.
            for connection in [claimed] if claimed is not None else live:
                try:
                    await connection.call(cancel, timeout_s=FAREWELL_TIMEOUT_S)
                except GpupoolError:
                    continue  # closing the connection has the same effect in the end
                return
        # The claim may still be granted. Without its connection that lease ends at once.
        if claimed is not None:
            await claimed.aclose()

    # --- what the connections report -------------------------------------------------------------

    def arrived(self, connection: ServerConnection) -> None:
        """Ask that server too."""
        self._do(self.allocation.arrived(connection.server))

    def left(self, connection: ServerConnection) -> None:
        """Ask that server no more."""
        self._do(self.allocation.left(connection.server))

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        """Follow a hint."""
        if (
            isinstance(message, m.CapacityAvailable)
            and self.allocation.request.id in message.requests
        ):
            self._do(self.allocation.hinted())
