"""The control server of one machine: one port for clients, peers and data connections.

The logic is ``controller.Controller``; this gives it sockets, a log and a host. How to use it::

    server = ControlServer(machine=machine, replicated_log=log, host=host, identity=identity,
                           authority=authority_or_none, links=links, incarnation=incarnation,
                           software=Software(address="10.0.0.4:7470", version="0.1.0"),
                           clock=clock, chance=chance, log=log)
    await nursery.start(server.serve, listeners)

What it promises to the rest: it calls ``follow(servers, voters)`` whenever the table's membership
may have changed (for ``RaftDriver.set_servers`` and ``reconcile_voters``), and ``save_key(pem)``
when, as a new voter, it was given the CA's key. Before ``serve``, the host must have killed every
worker of an earlier incarnation.
"""

import errno
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import trio

from gpupool.pool.errors import AuthenticationError, GpupoolError, RemoteProtocolError
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Incarnation, LeaseId, ServerId
from gpupool.pool.ports import Clock, Randomness, ReplicatedLog
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.sessions import SessionHost
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.server.controller import (
    Action,
    AskKey,
    Controller,
    ControllerSettings,
    Hangup,
    KillLease,
    Send,
    StartSession,
)
from gpupool.remoting.server.proposer import Propose
from gpupool.remoting.server.reconciler import Software
from gpupool.remoting.server.router import ToControl, ToServer, ToSession, peek_route
from gpupool.remoting.transport.failures import GONE, RateLimitedLog, explain
from gpupool.remoting.transport.message_stream import MessageStream
from gpupool.remoting.transport.peer_transport import PEER_TIMEOUT_S, PeerTransport, proven_peer
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    check_authority,
    control_context,
    peer_server_context,
    sign_server,
)
from gpupool.remoting.transport.socket_options import tune

ACCEPT_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
ACCEPT_PAUSE_S = 0.1
"""What trio's own server does when the process is out of descriptors: wait, and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits on connections. Durations in seconds."""

    client_timeout_s: float = 10.0
    """A client whose network is silently lost is noticed by the kernel within this."""

    unauthenticated_timeout_s: float = 2.0
    """From the first byte to a valid token, or certificate, or session."""

    unauthenticated_count_max: int = 256
    """Connections that have not proven anything yet; more are closed at once."""

    client_count_max: int = 10_000

    outbox_count_max: int = 256
    """Messages that wait for one client to read; beyond it, it is hung up on."""

    flush_timeout_s: float = 1.0
    """How long a farewell may take to be read."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)


class AuthoritySigner:
    """Signs server certificates with the CA's key."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        check_authority(authority)
        self._authority = authority
        self._clock = clock

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate for ``server``."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        return sign_server(self._authority, csr_pem, server, now)

    def key_pem(self) -> bytes:
        """Return the CA's key."""
        return self._authority.key_pem


@dataclass(eq=False, slots=True)
class _Served:
    """One client connection."""

    number: int
    who: str
    outbox: trio.MemorySendChannel[Send | None]
    scope: trio.CancelScope


class ControlServer:
    """See the module."""

    def __init__(
        self,
        *,
        machine: PoolMachine,
        replicated_log: ReplicatedLog,
        host: SessionHost,
        identity: Identity,
        authority: Authority | None,
        links: PeerTransport,
        incarnation: Incarnation,
        software: Software,
        clock: Clock,
        rng: Randomness,
        log: logging.Logger,
        settings: ServerSettings | None = None,
        follow: Callable[[Sequence[ServerId], Sequence[ServerId]], None] = lambda _s, _v: None,
        save_key: Callable[[bytes], None] = lambda _pem: None,
    ) -> None:
        """Make a server that does not serve yet; see the module for the arguments."""
        self._machine = machine
        self._replicated_log = replicated_log
        self._host = host
        self._identity = identity
        self._links = links
        self._clock = clock
        self._log = log
        self._settings = settings or ServerSettings()
        self._follow = follow
        self._save_key = save_key
        self._loop_lag_s = 0.0
        self._numbers = itertools.count(1)
        self._served: dict[int, _Served] = {}
        self._unauthenticated_count = 0
        self._killing: set[LeaseId] = set()
        self._wake = trio.Event()
        self._asleep_until = float("-inf")
        self._nursery: trio.Nursery | None = None
        self._rate_limited_log = RateLimitedLog(log, clock)
        self._committer = Committer(replicated_log, machine, clock=clock, rng=rng)
        self.controller = Controller(
            machine,
            self_id=identity.server,
            incarnation=incarnation,
            software=software,
            ca_pem=identity.ca_pem,
            signer=AuthoritySigner(authority, clock) if authority else None,
            host=host,
            clock=clock,
            rng=rng,
            health=replicated_log.health,
            majority_age_s=replicated_log.majority_age_s,
            role=replicated_log.role,
            clock_offset_s=self._clock_offset_s,
            loop_lag_s=lambda: self._loop_lag_s,
            settings=self._settings.controller,
        )

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled, and close the listeners then, as trio's own servers do.

        With no listeners, streams come through ``serve_stream``.
        """
        control = control_context(self._identity) if listeners else None
        peers = peer_server_context(self._identity) if listeners else None
        self._links.give_key = self._give_key
        self._links.take_key = self._take_key
        self._machine.on_apply = self._wake_up
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for listener in listeners:
                    assert control is not None and peers is not None
                    router = _Router(self, control, peers)
                    nursery.start_soon(self._accept, listener, router, nursery)
                task_status.started()
                await self._tick()
            finally:
                # From here on nothing is proposed or started any more; tasks wind down.
                self._nursery = None
                self._machine.on_apply = None

    async def leave(self, *, timeout_s: float = 10.0) -> bool:
        """Take this server out of the pool for good; True once that is committed."""
        command = commands.RemoveServer(self._identity.server, "the server itself")
        decision = await self._committer.commit(command, timeout_s=timeout_s)
        return decision.result is not None

    # --- the beat --------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        self._wake.set()

    async def _tick(self) -> None:
        """Run the controller's timers, and whatever follows a change of the table."""
        followed: object = None
        while True:
            self._wake = trio.Event()
            state = self._machine.state
            if followed is not state.servers:
                followed = state.servers
                self._follow(tuple(state.servers), state.voters())
            self._do(self.controller.poll())
            self._asleep_until = self.controller.wake_at()
            wait_s = max(0.0, self._asleep_until - self._clock.monotonic())
            before = trio.current_time()
            with trio.move_on_after(wait_s) as scope:
                await self._wake.wait()
            if scope.cancelled_caught:
                self._loop_lag_s = max(0.0, trio.current_time() - before - wait_s)
            await trio.lowlevel.checkpoint()

    def _do(self, actions: list[Action]) -> None:
        """Carry out the controller's actions, without waiting; at the end, do nothing."""
        if self._nursery is None:
            return
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Hangup():
                    self._hang_up(action)
                case Propose():
                    self._nursery.start_soon(self._propose, action)
                case StartSession():
                    self._nursery.start_soon(self._start_session, action)
                case KillLease():
                    if action.lease not in self._killing:
                        self._killing.add(action.lease)
                        self._nursery.start_soon(self._kill, action)
                case AskKey():
                    self._links.ask_key(action.peer)
        if self.controller.wake_at() < self._asleep_until:
            self._wake.set()

    def _send(self, action: Send) -> None:
        served = self._served.get(action.connection)
        if served is None:
            return
        # A client that reads slowly gets the next update instead of this one.
        is_update = isinstance(action.message, m.Update)
        if is_update and served.outbox.statistics().current_buffer_used:
            return
        try:
            served.outbox.send_nowait(action)
        except trio.WouldBlock:
            self._log.info("hung up on %s: it reads nothing", served.who)
            served.scope.cancel()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # on its way out; ``closed`` follows

    def _hang_up(self, action: Hangup) -> None:
        served = self._served.get(action.connection)
        if served is None:
            return
        if action.reason:
            self._rate_limited_log.say(f"hung up on {served.who}: {action.reason}")
        try:
            served.outbox.send_nowait(None)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            served.scope.cancel()

    async def _propose(self, action: Propose) -> None:
        outcome = await self._replicated_log.propose(action.command, timeout_s=action.timeout_s)
        self._do(self.controller.decided(action.number, outcome))

    async def _start_session(self, action: StartSession) -> None:
        try:
            result = await self._host.open_session(
                action.lease,
                action.partitions,
                door=action.door,
                program=action.program,
                settings=action.settings,
            )
        except GpupoolError as error:
            result = error
        except OSError as error:
            result = GpupoolError("no worker could be started", why=explain(error))
        if isinstance(result, GpupoolError):
            self._log.warning("no session for lease %x: %s", action.lease.id, result)
        self._do(self.controller.session_opened(action.number, result))

    async def _kill(self, action: KillLease) -> None:
        try:
            await self._host.kill_lease(action.lease, action.reason)
        finally:
            self._killing.discard(action.lease)
        # The workers are gone, so the lease can be freed at once.
        self._do(self.controller.reconcile_now())

    def _clock_offset_s(self) -> float:
        leader = self._replicated_log.health().leader
        if leader is None or leader == self._identity.server:
            return 0.0
        return self._links.clock_offset_s(leader) or 0.0

    # --- the CA's key ----------------------------------------------------------------------------

    def _give_key(self, peer: ServerId) -> bytes:
        server = self._machine.state.servers.get(peer)
        signer = self.controller.signer
        if server is None or not server.voter or signer is None:
            return b""
        self._log.info("gave the CA's key to server %s, a voter now", server.name)
        return signer.key_pem()

    def _take_key(self, peer: ServerId, key_pem: bytes) -> None:
        if self.controller.signer is not None:
            return
        try:
            signer = AuthoritySigner(Authority(self._identity.ca_pem, key_pem), self._clock)
        except AuthenticationError as error:
            self._log.warning("server %s sent a CA key that is none: %s", peer, error)
            return
        self._save_key(key_pem)
        self.controller.signer = signer

    # --- connections -----------------------------------------------------------------------------

    async def _accept(
        self, listener: trio.SocketListener, router: "_Router", nursery: trio.Nursery
    ) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in ACCEPT_ERRORS:
                        raise
                    self._log.error("cannot accept a connection: %s", error)
                    await trio.sleep(ACCEPT_PAUSE_S)
                else:
                    nursery.start_soon(router.route, stream)

    async def serve_stream(self, stream: trio.abc.Stream, who: str) -> None:
        """Serve one client over a stream that needs no more authentication of this server.

        The stream's first message must come within ``unauthenticated_timeout_s``; returns, and
        closes the stream, when either side is done with it.
        """
        number = next(self._numbers)
        outbox, queue = trio.open_memory_channel[Send | None](self._settings.outbox_count_max)
        served = _Served(number, who, outbox, trio.CancelScope())
        connection = MessageStream(stream, Connection(End.SERVER))
        reason = ""
        try:
            async with connection:
                with served.scope:
                    self._served[number] = served
                    self._do(self.controller.opened(number))
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._write, connection, queue, nursery.cancel_scope)
                        await self._read(number, connection)
                        nursery.cancel_scope.cancel()
        except* GONE as group:
            reason = explain(group)
        finally:
            del self._served[number]
            self._do(self.controller.closed(number))
        if reason:
            self._rate_limited_log.say(f"lost {who}: {reason}")

    async def _read(self, number: int, connection: MessageStream) -> None:
        with trio.fail_after(self._settings.unauthenticated_timeout_s):
            received = await connection.receive()
        while received is not None:
            call, message = received
            self._do(self.controller.received(number, call, message))
            received = await connection.receive()

    async def _write(
        self,
        connection: MessageStream,
        queue: trio.MemoryReceiveChannel[Send | None],
        scope: trio.CancelScope,
    ) -> None:
        async for action in queue:
            if action is None:
                break
            await connection.send(action.call, action.message)
        scope.cancel()

    # --- used by the router ----------------------------------------------------------------------

    @property
    def self_id(self) -> ServerId:
        """Return which server this is."""
        return self._identity.server

    @property
    def settings(self) -> ServerSettings:
        """Return the limits."""
        return self._settings

    def log(self, text: str) -> None:
        """Log one line about a connection that was refused, unless there are too many."""
        self._rate_limited_log.say(text)

    def admit_stranger(self) -> bool:
        """Count one more connection that has proven nothing; False when there are too many."""
        full = self._unauthenticated_count >= self._settings.unauthenticated_count_max
        if full or len(self._served) >= self._settings.client_count_max:
            return False
        self._unauthenticated_count += 1
        return True

    def dismiss_unauthenticated(self) -> None:
        """Count one less."""
        self._unauthenticated_count -= 1

    async def serve_peer(self, stream: "trio.SSLStream[trio.SocketStream]", who: str) -> None:
        """Serve a peer on a handshaken, mutual TLS connection."""
        peer = proven_peer(stream)
        if peer is None:
            self.log(f"refused {who}: its certificate names no server")
            await trio.aclose_forcefully(stream)
        elif peer in self._machine.state.removed and not self._links.wants(peer):
            await self._links.reject(stream, peer)
        else:
            await self._links.accept(stream, peer)

    async def hand_over(self, session: bytes, stream: trio.SocketStream, who: str) -> None:
        """Give the untouched descriptor to the worker that waits for it."""
        if not self._host.knows_session(session):
            self.log(f"refused {who}: no session waits for it")
            await trio.aclose_forcefully(stream)
            return
        trio.lowlevel.notify_closing(stream.socket)
        descriptor = socket.socket(fileno=stream.socket.detach())
        try:
            await self._host.hand_over(session, descriptor)
        except (GpupoolError, OSError) as error:
            descriptor.close()
            self.log(f"refused {who}: {error}")


class _Router:
    """Sends each new connection of a listener where it wants to go."""

    def __init__(
        self, server: ControlServer, control: ssl.SSLContext, peers: ssl.SSLContext
    ) -> None:
        self._server = server
        self._control = control
        self._peers = peers

    async def route(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        server = self._server
        who = _who(stream)
        if not server.admit_stranger():
            server.log(f"refused {who}: too many connections")
            await trio.aclose_forcefully(stream)
            return
        is_unauthenticated = True
        try:
            with trio.fail_after(server.settings.unauthenticated_timeout_s):
                wanted = await peek_route(stream)
                tls = await self._secure(stream, wanted)
            server.dismiss_unauthenticated()
            is_unauthenticated = False
            match wanted:
                case ToSession():
                    await server.hand_over(wanted.session, stream, who)
                case ToControl() if tls is not None:
                    await server.serve_stream(tls, who)
                case ToServer() if tls is not None:
                    await server.serve_peer(tls, who)
                case _:
                    await trio.aclose_forcefully(stream)
        except GONE as error:
            server.log(f"refused {who}: {explain(error)}")
        finally:
            stream.socket.close()  # does nothing to a descriptor that was handed over
            if is_unauthenticated:
                server.dismiss_unauthenticated()

    async def _secure(
        self, stream: trio.SocketStream, wanted: "ToControl | ToServer | ToSession | None"
    ) -> "trio.SSLStream[trio.SocketStream] | None":
        if isinstance(wanted, ToControl):
            tune(stream.socket, timeout_s=self._server.settings.client_timeout_s)
            context = self._control
        elif isinstance(wanted, ToServer):
            if wanted.server != self._server.self_id:
                raise RemoteProtocolError("it looks for another server", why=wanted.server)
            tune(stream.socket, timeout_s=PEER_TIMEOUT_S)
            context = self._peers
        else:
            return None
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        await tls.do_handshake()
        return tls


def _who(stream: trio.SocketStream) -> str:
    """Return the other end's address, for logs."""
    try:
        name = stream.socket.getpeername()
    except OSError:
        return "a client that has gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a local client"
