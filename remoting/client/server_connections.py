"""A client's connections to the servers of its pool: one each, made again whenever they fail."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import trio

from gpupool.pool.errors import (
    AuthenticationError,
    GpupoolError,
    NoQuorumError,
    UnreachableError,
    UsageError,
)
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Randomness
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.framing import FrameTooLargeError
from gpupool.remoting.transport.client_tls import client_context
from gpupool.remoting.transport.connections import GONE, explain
from gpupool.remoting.transport.dial import DIAL_TIMEOUT_S, Dial, Greeting, connect, worst
from gpupool.remoting.transport.message_stream import MessageStream, OpenCalls

WIDTH_FIRST = 32
"""Servers that a client connects to before it needs more."""

BACKOFF_BASE_S = 0.05
BACKOFF_MAX_S = 5.0
REFUSED_BACKOFF_S = 2.0
"""Shortest pause after a refusal of the token: the server's table may not have the token yet."""

START_TRIES = 5
"""Tries, over about 1.2 s, until a server without a majority counts as tried: it may start up."""

CALL_TIMEOUT_S = 3.0
"""A server answers within 2 s, if only to say that it has no majority."""

SETTLE_S = 0.15
"""How long, after the first connection, others may take to be part of the first round."""


LOOK_EVERY_S = 0.25
ASK_LOOKS, SILENT_LOOKS_MAX = 2, 15
"""Checks of a silent server after which it is sent a ping, and after which it counts as lost.

The second is within 4 s, so that a program gets its error within 5 s even on a busy machine. A
server may pause for 3.2 s (with 64 busy processes on two processors it answered within 0.9 s), and
the network may lose the ping four times in a row.
"""

LOG = logging.getLogger("gpupool.client")

A = TypeVar("A", bound=m.Answer)


class ServerConnection:
    """A welcomed connection to one server: calls out, answers and pushes in."""

    def __init__(self, stream: MessageStream, welcome: m.Welcome, address: Address) -> None:
        self.server = welcome.server
        self.name = welcome.server_name
        self.welcome = welcome
        self.address = address
        self.closed = trio.Event()
        self.reason = ""
        """Why it was lost; empty while it is up."""
        self._given_up = ""
        self.transport = stream.stream
        self._stream = stream
        self._calls = OpenCalls[m.Message]()

    async def run(self, pushed: "Callable[[ServerConnection, m.Message], None]") -> None:
        """Receive until the connection is gone for any reason."""
        reason = "the server hung up"
        try:
            while (received := await self._stream.receive()) is not None:
                call, message = received
                if call == 0:
                    LOG.debug("%s says %s", self.name, gist(message))
                    if isinstance(message, m.Dismissed):
                        reason = m.to_error(message.reason).why or message.reason.what
                    pushed(self, message)
                else:
                    self._calls.answered(call, message)
        except GONE as error:
            reason = explain(error)
        finally:
            self.reason = self._given_up or reason
            self.closed.set()
            self._calls.end()
            await self._stream.aclose()

    async def call(self, message: m.CallFor[A], *, timeout_s: float) -> A:
        """Return the answer to ``message``.

        Raises:
            UnreachableError: when the connection is lost, or no answer comes in time.
            GpupoolError: when the server refuses the call.
        """
        asked_at = trio.current_time()
        with self._calls.opened() as call:
            try:
                with trio.move_on_after(timeout_s):
                    if not self._calls.ended:
                        await self._send(call.number, message)
                        await call.wait()
            except FrameTooLargeError as error:
                raise UsageError("this is too large to be asked for", why=error.why) from error
            except GONE as error:
                raise UnreachableError(f"lost server {self.name}", why=explain(error)) from error
        took_ms = 1000 * (trio.current_time() - asked_at)
        answer, name = call.answer, type(message).__name__
        said = "no answer" if answer is None else gist(answer)
        LOG.debug("%s to %s: %s, %.1f ms", name, self.name, said, took_ms)
        if answer is None:
            why = self.reason or f"no answer within {timeout_s:.3g} s"
            raise UnreachableError(f"lost server {self.name}", why=why)
        if isinstance(answer, m.Refused):
            raise m.to_error(answer)
        if not isinstance(answer, message.declared.answered_by or m.Answer):
            why = f"{name} was answered by {type(answer).__name__}"
            raise UnreachableError(f"server {self.name} makes no sense", why=why)
        return cast(A, answer)

    async def watch(self) -> None:
        """Close the connection when the server has been silent for 4 s in spite of a ping.

        This finds a cut network and a frozen server process sooner than the kernel's keep-alive,
        and in any state of the data connections. It counts checks, not seconds: a client that was
        itself stopped, by Ctrl-Z or a debugger, first reads the messages that came meanwhile.
        """
        silent, heard = 0, self._stream.reads
        async with trio.open_nursery() as nursery:
            while not self.closed.is_set():
                await trio.sleep(LOOK_EVERY_S)
                if self._stream.reads != heard:
                    silent, heard = 0, self._stream.reads
                    continue
                silent += 1
                if silent == ASK_LOOKS:
                    nursery.start_soon(self._ping)
                elif silent >= SILENT_LOOKS_MAX and not self.closed.is_set():
                    self._given_up = f"no answer for {SILENT_LOOKS_MAX * LOOK_EVERY_S:.0f} s"
                    await self.aclose()
                    return

    async def _ping(self) -> None:
        # The answer is not awaited: any message shows that the server is alive.
        with suppress(*GONE), self._calls.opened() as call:
            await self._send(call.number, m.Ping())

    async def _send(self, number: int, message: m.Call) -> None:
        """Write a whole message, even if the caller gives up meanwhile.

        Half a message would make the connection useless, and leases live on it. A server that takes
        nothing for so long is lost in any case.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.move_on_after(SILENT_LOOKS_MAX * LOOK_EVERY_S, shield=True):
            await self._stream.send(number, message)

    async def aclose(self) -> None:
        """Hang up."""
        await self._stream.aclose()


def gist(message: m.Message) -> str:
    """Return a message for the log: its name and its outcome, never a secret."""
    name = type(message).__name__
    match message:
        case m.Offered(None, refusal) if refusal is not None:
            return f"{name}: {refusal.kind}, {refusal.why}"
        case m.Claimed():
            return f"{name}: {message.outcome} {message.why}".rstrip()
        case m.Refused():
            return f"{name}: {message.what}: {message.why}"
        case m.LeaseEnded(_, reason):
            return f"{name}: {reason}"
        case m.LeaseNotice(_, text):
            return f"{name}: {text}"
        case _:
            return name


class Listener(Protocol):
    """Receives connections and pushes. It is called on the trio thread and never blocks."""

    def arrived(self, connection: ServerConnection) -> None:
        """Take note that a connection is up."""
        ...

    def left(self, connection: ServerConnection) -> None:
        """Take note that a connection is gone."""
        ...

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        """Take a push."""
        ...


@dataclass(eq=False, slots=True)
class _Target:
    """An address to stay connected to."""

    address: Address
    scope: trio.CancelScope
    given: bool  # by the user, as opposed to learned from the membership
    tried: bool = False
    failure: GpupoolError | None = None


class Connections:
    """All connections of one client."""

    def __init__(
        self,
        credentials: Credentials,
        greeting: Greeting,
        *,
        dial: Dial,
        rng: Randomness,
        log: logging.Logger,
    ) -> None:
        self._credentials = credentials
        self._greeting = greeting
        self._dial, self._rng, self._log = dial, rng, log
        self.ca_pem = credentials.ca_pem.encode()
        self._context = client_context(self.ca_pem)
        self._nursery: trio.Nursery | None = None
        self._targets: dict[Address, _Target] = {}
        self._width = WIDTH_FIRST
        self._changed = trio.Event()
        self._listeners: list[Listener] = []
        self.by_server: dict[ServerId, ServerConnection] = {}
        self.members: dict[ServerId, m.Member] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections up until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for address in self._credentials.likely:
                self._add(address, given=True)
            task_status.started()
            await trio.sleep_forever()

    def listen(self, listener: Listener) -> None:
        """Add ``listener``, to be called from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    def widen(self, count: int) -> None:
        """Raise the limit of connections to ``count``."""
        if count > self._width:
            self._width = count
            self._follow_members()

    def seek(self, names: tuple[str, ...]) -> None:
        """Connect to the servers with these names or ids, however many others there are."""
        for member in self.members.values():
            wanted = member.name in names or member.server in names
            if wanted and member.server not in self.by_server:
                self._add_member(member)

    def name_of(self, server: ServerId) -> str:
        """Return the name of a server; its id where the pool has not told it."""
        return self.members[server].name if server in self.members else server

    def failure(self) -> GpupoolError:
        """Return why there is no connection."""
        failures = [t.failure for t in self._targets.values() if t.failure is not None]
        return worst(failures, tuple(self._targets))

    async def first(
        self, timeout_s: float, patience_s: float, on_wait: Callable[[str], None]
    ) -> None:
        """Wait for one connection, and a moment for the others.

        Where servers may be starting it tries again for ``patience_s``, and says so by ``on_wait``.

        Raises:
            GpupoolError: when no address leads to one.
        """
        for more in ((), self._credentials.addresses):
            for address in () if self.by_server else more:
                self._add(address, given=True)
            with trio.move_on_after(timeout_s):
                while not self.by_server and not all(t.tried for t in self._targets.values()):
                    await self._changed.wait()
        if not self.by_server and patience_s > 0 and self._may_come():
            why = self.failure()
            on_wait(f"waiting for a server of the pool to answer: {why.why or why.what}")
            with trio.move_on_after(patience_s):
                while not self.by_server and self._may_come():
                    await self._changed.wait()
        if not self.by_server:
            raise self.failure()
        with trio.move_on_after(SETTLE_S):
            while not all(t.tried for t in self._targets.values()):
                await self._changed.wait()

    async def reach(
        self, server: ServerId, timeout_s: float, *, patience_s: float | None = None
    ) -> ServerConnection:
        """Return the connection to ``server``, waiting for it.

        Args:
            server: its id.
            timeout_s: how long to wait.
            patience_s: how long to go on after a try has failed, as where nobody listens.

        Raises:
            UnreachableError: when there is none in time.
        """
        member = self.members.get(server)
        if member is not None and server not in self.by_server:
            self._add_member(member)
        with trio.move_on_after(timeout_s) as scope:
            while server not in self.by_server:
                if patience_s is not None and member is not None and self._failed(member):
                    scope.deadline = min(scope.deadline, trio.current_time() + patience_s)
                    patience_s = None
                await self._changed.wait()
        connection = self.by_server.get(server)
        if connection is None:
            name = member.name if member else server
            raise UnreachableError(f"cannot reach server {name}")
        return connection

    # --- inside ----------------------------------------------------------------------------------

    def _may_come(self) -> bool:
        """Return whether the servers that cannot be used now may be starting."""
        return isinstance(self.failure(), UnreachableError | NoQuorumError)

    def _add(self, address: Address, *, given: bool) -> None:
        if address in self._targets or self._nursery is None:
            return
        target = _Target(address, trio.CancelScope(), given)
        self._targets[address] = target
        self._nursery.start_soon(self._keep, target)

    def _failed(self, member: m.Member) -> bool:
        """Return whether the latest try to connect to a member has failed."""
        return any(
            target.failure is not None
            for address, target in self._targets.items()
            if str(address) == member.address
        )

    def _add_member(self, member: m.Member) -> None:
        try:
            self._add(parse_address(member.address), given=False)
        except UsageError:
            self._log.warning("server %s has the address %r", member.name, member.address)

    def _follow_members(self) -> None:
        """Connect to members up to the width, and leave servers that have left the pool."""
        addresses = {member.address for member in self.members.values()}
        for address, target in list(self._targets.items()):
            if not target.given and str(address) not in addresses:
                target.scope.cancel()
                del self._targets[address]
        for member in self.members.values():
            if len(self._targets) >= self._width:
                break
            if member.server not in self.by_server:
                self._add_member(member)

    async def _keep(self, target: _Target) -> None:
        failures = 0
        with target.scope:
            while True:
                refused = False
                try:
                    stream, welcome = await connect(
                        target.address,
                        self._context,
                        self._greeting,
                        cluster_id=self._credentials.cluster_id,
                        dial=self._dial,
                    )
                except GpupoolError as error:
                    failures += 1
                    refused = isinstance(error, AuthenticationError)
                    # A server that has just started may have a majority in a moment.
                    starting = isinstance(error, NoQuorumError) and failures < START_TRIES
                    self._note(target, error, tried=not starting)
                else:
                    failures = 0
                    await self._use(target, stream, welcome)
                limit_s = min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2 ** min(failures, 10))
                if refused:
                    limit_s = max(limit_s, REFUSED_BACKOFF_S)
                await trio.sleep(limit_s * (0.5 + 0.5 * self._rng.random()))

    def _note(self, target: _Target, error: GpupoolError, *, tried: bool) -> None:
        if str(target.failure) != str(error):
            self._log.debug("%s: %s", target.address, error)
        target.failure = error
        target.tried = target.tried or tried
        self._tell_change()

    async def _use(self, target: _Target, stream: MessageStream, welcome: m.Welcome) -> None:
        """Use a connection until it is lost; a second one to the same server is not kept."""
        target.tried = True
        target.failure = None
        known = self.by_server.get(welcome.server)
        if known is not None:
            await stream.aclose()
            self._tell_change()
            await known.closed.wait()
            return
        connection = ServerConnection(stream, welcome, target.address)
        self.by_server[welcome.server] = connection
        self._log.debug("connected to server %s at %s", connection.name, target.address)
        self._take_authorities(connection, welcome.ca_pem)
        self._take_members(welcome.members)
        self._tell_change()
        for listener in list(self._listeners):
            listener.arrived(connection)
        try:
            await connection.run(self.pushed)
        finally:
            del self.by_server[welcome.server]
            self._log.debug("lost server %s: %s", connection.name, connection.reason)
            self._tell_change()
            for listener in list(self._listeners):
                listener.left(connection)

    def _take_authorities(self, connection: ServerConnection, ca_pem: bytes) -> None:
        """Trust the CAs that a server names, which one that is trusted already has verified.

        One is dropped only on the word of a server that those that stay verify: whoever has stolen
        the older key could otherwise have a client forget the newer CA.
        """
        if ca_pem == self.ca_pem:
            return
        from gpupool.remoting.transport.authority.ca_bundle import ders_of, shows_one_of

        try:
            now, named = set(ders_of(self.ca_pem)), set(ders_of(ca_pem))
        except AuthenticationError as error:
            self._log.warning("server %s names a CA that is none: %s", connection.name, error)
            return
        if not named or named == now:
            return
        if now - named and not shows_one_of(connection.transport, ca_pem):
            return
        self.ca_pem = ca_pem
        self._context = client_context(ca_pem)
        self._log.debug("server %s names %d CAs to trust", connection.name, len(named))

    def _take_members(self, members: tuple[m.Member, ...]) -> None:
        self.members = {member.server: member for member in members}
        self._follow_members()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # Pushes pass through here, because the membership decides about all connections.

    def pushed(self, connection: ServerConnection, message: m.Message) -> None:
        """Take note of the membership, and pass every push to the listeners."""
        if isinstance(message, m.Members):
            self._take_authorities(connection, message.ca_pem)
            self._take_members(message.members)
        for listener in list(self._listeners):
            listener.pushed(connection, message)


FIRST_TIMEOUT_S = DIAL_TIMEOUT_S + 1.0
