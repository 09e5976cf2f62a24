"""A client's connections with the servers, and its calls over them.

It dials every server again and again, gives each call exactly one answer or error, and puts into
the history what a client can know of a claim or a cancel.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Protocol

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.results import RefusalKind
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.cluster.caller import CONTROL, Packet
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.quiescence import between
from gpupool.simulations.kernel.simulated_network import End

DIAL_TIMEOUT_S = 3.0
RECONNECT_S = 0.3


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token with its secret that a client authenticates with."""

    token: TokenId
    secret: bytes
    user: str

    def hello(self, client: str) -> m.Hello:
        """Return the first message of a connection."""
        return m.Hello(m.PROTOCOL, "simulated", self.token, self.secret, client)


@dataclass(slots=True)
class _Pending:
    """A call that was sent, until its answer, its connection's end, or its time is over."""

    server: ServerId
    message: m.Call
    token: TokenId
    called_at: float
    done: Callable[[m.Message | GpupoolError], None]


class ConnectionUser(Protocol):
    """The part of a client that the connections call back."""

    def arrived(self, server: ServerId) -> None:
        """Take notice that the connection with a server is up."""
        ...

    def pushed(self, message: m.Message) -> None:
        """Take a message that answers no call."""
        ...

    def left(self, server: ServerId, reason: str) -> None:
        """Take notice that the connection with a server is gone."""
        ...


class ClientConnections:
    """The connections of one client process, with the calls that wait for an answer."""

    def __init__(
        self,
        environment: Environment,
        process: Process,
        *,
        clock: DriftingClock,
        random: Random,
        credentials: Callable[[], Credentials],
        targets: Callable[[], list[str]],
        user: ConnectionUser,
    ) -> None:
        """Make the connections of a client, none of which is dialled yet.

        Args:
            environment: of the run.
            process: of the client.
            clock: of the client's machine.
            random: the client's random source.
            credentials: of the client's user, as they are now.
            targets: the machines of all servers.
            user: called back.
        """
        self._environment = environment
        self._process = process
        self._clock = clock
        self._random = random
        self._credentials = credentials
        self._targets = targets
        self._user = user
        self._connections: dict[str, _Connection] = {}
        self._by_server: dict[ServerId, _Connection] = {}
        self._pending: dict[int, _Pending] = {}
        self._late = UnreachableError("no answer in time")
        self._number = 0

    def start(self) -> None:
        """Dial every server without a connection, now and again and again."""
        targets = self._targets()
        for machine in targets:
            if machine not in self._connections:
                connection = self._connections[machine] = _Connection(self, machine)
                self._environment.network.dial(
                    self._process, machine, CONTROL, connection, timeout_s=DIAL_TIMEOUT_S
                )
        self._process.after(RECONNECT_S * (1 + self._random.random()), self.start)

    def servers(self) -> tuple[ServerId, ...]:
        """Return the servers with a connection, in the order in which they came."""
        return tuple(self._by_server)

    def has(self, server: ServerId) -> bool:
        """Return whether there is a connection with a server."""
        return server in self._by_server

    def abandon(self) -> None:
        """Record that the calls under way get no answer: the client is gone."""
        for pending in self._pending.values():
            self._record(pending, UnreachableError("the client is gone"))

    # --- calls ------------------------------------------------------------------------------------

    def call(
        self,
        server: ServerId,
        message: m.Call,
        timeout_s: float,
        done: Callable[[m.Message | GpupoolError], None],
    ) -> None:
        """Send a call; ``done`` gets the answer, or the error in its place, exactly once."""
        if isinstance(message, m.Claim):
            self._environment.requests[message.request.id] = message.request
            now = self._process.scheduler.now
            self._environment.checkers.causes.claimed(message.request.id, now)
        elif isinstance(message, m.Release):
            self._environment.checkers.causes.released.add(message.lease)
        elif isinstance(message, m.Cancel):
            self._environment.checkers.causes.cancelled.add(message.request)
        self._number += 1
        number, now = self._number, self._process.scheduler.now
        connection = self._by_server.get(server)
        token = connection.token if connection is not None else TokenId("")
        self._pending[number] = _Pending(server, message, token, now, done)
        if connection is None or connection.end is None:
            self._process.after(
                0.0, partial(self._finish, number, UnreachableError("no connection"))
            )
            return
        connection.calls.add(number)
        connection.end.send(Packet(number, message))
        delay_s = self._clock.world_time(self._clock.monotonic() + timeout_s) - now
        self._process.after(delay_s, partial(self._finish, number, self._late))

    def _finish(self, number: int, answer: m.Message | GpupoolError) -> None:
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        connection = self._by_server.get(pending.server)
        if connection is not None:
            connection.calls.discard(number)
        self._record(pending, answer)
        if isinstance(answer, m.Refused):
            answer = m.to_error(answer)
        pending.done(answer)

    def _record(self, pending: _Pending, answer: m.Message | GpupoolError) -> None:
        """Record a claim or a cancel in the history, as far as a client can know it."""
        history, now = self._environment.history, self._process.scheduler.now
        match pending.message:
            case m.Claim(request=request, partitions=partitions):
                self._judge_time(pending, answer)
                if not isinstance(answer, m.Claimed):
                    if not isinstance(answer, m.Refused):
                        history.unanswered(request.id, pending.called_at)
                elif answer.outcome == m.ClaimOutcome.GRANTED and answer.lease is not None:
                    sizes = {p.gpu: p.memory for p in partitions}
                    history.granted(request.id, answer.lease, sizes, pending.called_at, now)
                    checkers = self._environment.checkers
                    lease = checkers.logs.state.leases.get(answer.lease)
                    checkers.wanted.answered(lease, partitions)
                    checkers.policy.granted(
                        pending.token,
                        answer.lease,
                        partitions,
                        pending.called_at,
                    )
                elif answer.outcome == m.ClaimOutcome.UNCERTAIN:
                    history.unanswered(request.id, pending.called_at)
                elif answer.kind == RefusalKind.CLOSED:
                    history.refused_for_good(request.id, pending.called_at, now)
            case m.Cancel(request=request_id):
                confirmed = isinstance(answer, m.Done)
                history.cancelled(request_id, pending.called_at, now if confirmed else inf)
            case _:
                pass

    def _judge_time(self, pending: _Pending, answer: m.Message | GpupoolError) -> None:
        connection = self._by_server.get(pending.server)
        lost = isinstance(answer, GpupoolError) and answer is not self._late
        if connection is None or lost or not self._process.alive:
            return
        environment, server = self._environment, connection.machine
        keys = (server, self._process.machine, between(server, self._process.machine))
        took_s = self._process.scheduler.now - pending.called_at
        quiescent_s = environment.quiescence.for_s(*keys)
        environment.checkers.answers.answered(self._process.machine, server, took_s, quiescent_s)

    # --- connections ------------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        """Return how this client introduces itself."""
        return self._credentials().hello(self._process.machine)

    def welcomed(self, connection: "_Connection", server: ServerId) -> None:
        """Use a connection from now on."""
        self._by_server[server] = connection
        self._user.arrived(server)

    def received(self, connection: "_Connection", packet: Packet) -> None:
        """Take an answer or a push."""
        if not packet.call:
            self._user.pushed(packet.message)
        elif packet.call in connection.calls:
            self._finish(packet.call, packet.message)

    def left(self, connection: "_Connection", reason: str) -> None:
        """Go on without a connection that is gone."""
        if self._connections.get(connection.machine) is connection:
            del self._connections[connection.machine]
        server = connection.server
        if server is None or self._by_server.get(server) is not connection:
            return
        del self._by_server[server]
        calls, connection.calls = sorted(connection.calls), set()
        for number in calls:
            self._finish(number, UnreachableError("the connection is gone", why=reason))
        self._user.left(server, f"connection with {connection.machine}: {reason}")

    def drop(self, servers: Collection[ServerId] | None = None) -> None:
        """Close the connections with some servers, or all connections."""
        for machine in list(self._connections):
            if servers is None or self._connections[machine].server in servers:
                self._drop(machine)

    def drop_server(self, server: ServerId) -> None:
        """Close the connection with a server, if there is one."""
        if server in self._by_server:
            self._drop(self._by_server[server].machine)

    def _drop(self, machine: str) -> None:
        connection = self._connections.get(machine)
        if connection is not None and connection.end is not None:
            connection.end.close()
            self.left(connection, "closed by us")


class _Connection:
    """A client's end of its connection with one server."""

    def __init__(self, connections: ClientConnections, machine: str) -> None:
        self._connections = connections
        self.machine = machine
        self.end: End | None = None
        self.server: ServerId | None = None
        self.token = TokenId("")
        self.calls: set[int] = set()

    def opened(self, end: End) -> None:
        self.end = end
        hello = self._connections.hello()
        self.token = hello.token
        end.send(Packet(0, hello))

    def failed(self, reason: str) -> None:
        self._connections.left(self, reason)

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, Packet)
        message = payload.message
        if self.server is not None:
            self._connections.received(self, payload)
        elif isinstance(message, m.Welcome):
            self.server = message.server
            self._connections.welcomed(self, message.server)
        else:
            end.close()
            self._connections.left(self, "not welcome")

    def closed(self, end: End, reason: str) -> None:
        self._connections.left(self, reason)
