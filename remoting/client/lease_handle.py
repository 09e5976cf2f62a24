"""A lease: asked for by the allocator, and held by connections until it is released or lost.

The ``Allocator`` carries out the actions of a ``Negotiation`` over this client's connections. The
``LeaseHandle`` lives on those to the servers of the lease.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from gpupool.pool.errors import (
    GpupoolError,
    LeaseLostError,
    LeaseSuspendedError,
    UnreachableError,
)
from gpupool.pool.model.ids import GpuId, ServerId, lease_name
from gpupool.pool.model.state import Request
from gpupool.pool.ports import Clock, Randomness
from gpupool.remoting.client.moving_lease import Bring, LeaseMove, stays_where_it_is
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
from gpupool.remoting.client.session_answer import SessionAnswer, SkippedServer, opened_session
from gpupool.remoting.client.visible_devices import check_places, places_of
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.token_text import hash_secret

#: A lease over several servers is given back if a server has not taken its part by then.
ATTACH_TIMEOUT_S = 5.0

RELEASE_TIMEOUT_S = 2.0

#: A further order is given when one is over.
ORDERS_MAX = 4

#: A cold worker imports CuPy and makes a CUDA context; that takes seconds on a busy server.
SESSION_TIMEOUT_S = 60.0

#: By then ``watch`` has closed the connection to a silent server.
CHECK_TIMEOUT_S = 5.0


class LeaseHandle:
    """A lease, held by this client's connections to its servers until released or lost."""

    def __init__(self, connections: Connections, ticket: bytes, granted: Granted) -> None:
        self.granted, self.lease = granted, granted.lease
        self.name = lease_name(self.lease)
        self.partitions = granted.choice.partitions
        servers = dict.fromkeys(each.server for each in self.partitions)
        self.servers: tuple[ServerId, ...] = tuple(servers)
        self.lost = ""
        """Why the lease ended before it was released; empty while it is held."""
        self.on_notice: Callable[[str], None] = lambda _text: None
        """Called with notices for the user, such as that the lease ends in ten minutes."""
        self.bring: Bring = stays_where_it_is
        """Called when the lease goes to another server and a process has a session of it."""
        self._orders, self._ordered = trio.open_memory_channel[m.LeaseLeaving](ORDERS_MAX)
        self._move: LeaseMove | None = None
        self._program: tuple[str, dict[str, str]] = ("", {})  # of the latest session
        self._ticket = ticket
        self._connections = connections
        self._mine: dict[ServerId, ServerConnection] = {}
        self._over = trio.Event()
        self._released = False
        self._noticed: tuple[ServerId | None, str] = (None, "")
        self._ended = False
        connections.listen(self)

    def server_names(self) -> tuple[str, ...]:
        """Return the names of the servers of this lease."""
        return tuple(map(self._connections.name_of, self.servers))

    def connections(self) -> dict[ServerId, ServerConnection]:
        """Return the connections on which the lease lives."""
        return dict(self._mine)

    async def attach(self, server: ServerId, claimed: ServerConnection | None) -> None:
        """Attach the lease to the connection to ``server``; a claim has attached it to its own.

        Raises:
            GpupoolError: when that server cannot be reached, or does not hold its part.
        """
        with trio.move_on_after(ATTACH_TIMEOUT_S):
            connection = claimed
            if connection is None:
                connection = await self._connections.reach(server, ATTACH_TIMEOUT_S)
                attach = m.Attach(self.lease, self._ticket)
                await connection.call(attach, timeout_s=ATTACH_TIMEOUT_S)
            self._mine[server] = connection
            if connection.closed.is_set():
                raise UnreachableError(f"lost server {connection.name}", why=connection.reason)
            return
        name = self._connections.name_of(server)
        raise UnreachableError(f"server {name} did not take its part of the lease in time")

    async def open_session(
        self,
        door: str,
        program: str,
        visible: str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        timeout_s: float = SESSION_TIMEOUT_S,
    ) -> list[SessionAnswer]:
        """Start a worker on every server of the lease, for one client process.

        Args:
            door: the door by which the program reaches its workers.
            program: the program's name, shown in views.
            visible: its CUDA_VISIBLE_DEVICES. Servers without a device that these name get no
                worker, and are skipped.
            settings: variables of its environment for the drivers of the servers.
            timeout_s: for each server.

        Returns:
            one answer per server, in the order of the program's devices, then those that it skips;
            none if ``visible`` is an error.

        Raises:
            LeaseLostError: when the lease is over.
            GpupoolError: when a server cannot start a worker.
        """
        answers: dict[ServerId, SessionAnswer] = {}
        failures: list[GpupoolError] = []
        given = dict(settings or {})

        async def open_one(server: ServerId, settings: dict[str, str]) -> None:
            self._check_held()
            message = m.OpenSession(self.lease, door, program, settings)
            opened = None
            try:
                while opened is None:
                    with suppress(LeaseSuspendedError):  # It may be so for hours.
                        await self._settled()
                        connection = self._connection_of(server)
                        opened = await connection.call(message, timeout_s=timeout_s)
                connection = self._connection_of(server)
                check_places(settings, len(opened.info.devices), connection.name)
            except GpupoolError as error:
                failures.append(error)
            else:
                answers[server] = opened_session(connection.server, connection.name, opened)

        await self._settled()
        self._check_held()
        wanted = places_of(door, visible, self.partitions, self.servers)
        if wanted is None:
            return []
        self._program = program, given | next(iter(wanted.values()), dict[str, str]())
        async with trio.open_nursery() as nursery:
            for server, numbers in wanted.items():
                nursery.start_soon(open_one, server, given | numbers)
        self._check_held()
        if failures:
            raise failures[0]
        # The CUDA door's library orders the devices by itself.
        order = self.servers if door != "arrays" else dict.fromkeys((*wanted, *self.servers))
        return [answers.get(server) or self._skipped(server) for server in order]

    def _skipped(self, server: ServerId) -> SkippedServer:
        gpus = [GpuId(p.gpu) for p in self.partitions if p.server == server]
        return SkippedServer(self._mine[server].name, tuple(gpus))

    async def wait_lost(self) -> str:
        """Wait until the lease ends without having been released, and return why.

        A server of it that falls silent is noticed within 5 s meanwhile.
        """
        async with trio.open_nursery() as nursery:
            for connection in self._mine.values():
                nursery.start_soon(connection.watch)
            nursery.start_soon(self._follow_orders, nursery)
            await self._over.wait()
            nursery.cancel_scope.cancel()
        return self.lost

    async def check(self) -> str:
        """Ping every server of the lease; return why the lease is lost, empty if it is held.

        A server reports the end of a lease before it ends the workers, and the connection to a dead
        server ends as those to its workers do. So a loss that a program has noticed by its worker
        is known here once all servers have answered or their connections are closed.
        """

        async def ask(connection: ServerConnection) -> None:
            try:
                await connection.call(m.Ping(), timeout_s=CHECK_TIMEOUT_S)
            except GpupoolError:
                await self._over.wait()  # ``left`` is about to report the lost connection

        with trio.move_on_after(CHECK_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for connection in self._mine.values():
                    nursery.start_soon(ask, connection)
        return self.lost

    async def release(self, reason: str = "released") -> None:
        """Give the memory back. If that fails, the lease ends with the connections.

        A lease that was lost with one of its servers is still to be ended on the others.
        """
        if self._released:
            return
        self._released = True
        self._connections.unlisten(self)
        if self._ended:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_TIMEOUT_S):
            for connection in self._mine.values():
                if connection.closed.is_set():
                    continue
                try:
                    release = m.Release(self.lease, reason)
                    await connection.call(release, timeout_s=RELEASE_TIMEOUT_S)
                except GpupoolError:
                    continue  # the next server of the lease can end it as well
                return
        # Nobody confirmed it. Hanging up leaves no doubt.
        for connection in self._mine.values():
            await connection.aclose()

    async def __aenter__(self) -> "LeaseHandle":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.release()

    def _check_held(self) -> None:
        if self.lost or self._released:
            raise LeaseLostError(f"lease {self.name} is void", why=self.lost or "released")

    # --- moves to another server -----------------------------------------------------------------

    async def _follow_orders(self, nursery: trio.Nursery) -> None:
        """Carry out the orders to go to another server, one after the other."""
        async for order in self._ordered:
            if len(self._mine) != 1 or order.server in self._mine:
                continue
            (source,) = self._mine.values()
            move = self._move = LeaseMove(
                order, self._ticket, self._connections, source, self.bring
            )
            try:
                await move.run(*self._program)
            finally:
                self._move = None
                self._end_move(move)
                move.over.set()
            if move.gone and move.target is not None:
                nursery.start_soon(move.target.watch)

    def _end_move(self, move: LeaseMove) -> None:
        """Hold the lease where it is now."""
        holds = move.source
        if move.gone and move.target is not None:
            holds = move.target
            self._mine, self.servers = {holds.server: holds}, (holds.server,)
            self.partitions = move.partitions
        if holds.closed.is_set():
            self._lose(f"lost server {holds.name}: {holds.reason}")

    async def _settled(self) -> None:
        """Wait until the lease is on one server."""
        while self._move is not None:
            await self._move.over.wait()

    def _connection_of(self, server: ServerId) -> ServerConnection:
        """Return the connection to a server of the lease, or to where it has gone from there."""
        return self._mine.get(server) or self._mine[self.servers[0]]

    def _lose(self, reason: str) -> None:
        if not self.lost and not self._released:
            self.lost = reason
            self._over.set()

    # --- what the connections report -------------------------------------------------------------

    def arrived(self, connection: ServerConnection) -> None:
        """Do nothing: the lease went with the old connection."""

    def left(self, connection: ServerConnection) -> None:
        """Lose the lease with the connection to any server of it."""
        if self._mine.get(connection.server) is not connection:
            return
        if self._move is not None and (self._move.gone or not self._move.decided):
            return  # the lease is another server's, or may be, which is being asked
        self._lose(f"lost server {connection.name}: {connection.reason}")

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        """Take note of the end of the lease, and pass notices to the user."""
        if isinstance(message, m.LeaseEnded) and message.lease == self.lease:
            self._ended = True
            self._lose(message.reason)
        elif isinstance(message, m.LeaseNotice) and message.lease == self.lease:
            self._notice(connection.server, message.text)
        elif isinstance(message, m.LeaseLeaving) and message.lease == self.lease:
            with suppress(trio.WouldBlock):  # An order that nobody carries out lapses.
                self._orders.send_nowait(message)

    def _notice(self, server: ServerId, text: str) -> None:
        """Pass on a notice once, though several servers of the lease may send it."""
        last_server, last_text = self._noticed
        if text == last_text and server != last_server:
            return
        self._noticed = (server, text)
        self.on_notice(text)


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
