"""Clients: the real negotiation over simulated connections, and a program that holds GPUs.

It stands for ``remoting.client`` and a user: it asks for GPUs, opens a session on every server of
its lease, holds the lease for a while, gives it back, and does so again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import inf
from random import Random

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.model.ids import GpuId, LeaseId, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Request
from gpupool.remoting.client.negotiation import Negotiation
from gpupool.remoting.client.negotiation_actions import (
    Action,
    Call,
    Explain,
    Failed,
    Granted,
    Tell,
    Widen,
)
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.cluster.servers import CONTROL, Packet
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.quiescence import between
from gpupool.simulations.kernel.simulated_network import End
from gpupool.simulations.workload.drawn_requests import draw_request

DIAL_TIMEOUT_S = 3.0
RECONNECT_S = 0.3
SESSION_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 3.0


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
class _Lease:
    """The lease that the client holds, and who has not confirmed its part of it yet."""

    id: LeaseId
    request: RequestId
    ticket: bytes
    gpus: tuple[GpuId, ...]
    waiting: set[ServerId]
    servers: tuple[ServerId, ...]
    ready: bool = False


@dataclass(slots=True)
class _Pending:
    """A call that was sent, until its answer, its connection's end, or its time is over."""

    server: ServerId
    message: m.Call
    token: TokenId
    called_at: float
    done: Callable[[m.Message | GpupoolError], None]


@dataclass(slots=True)
class Counters:
    """What a client achieved."""

    granted: int = 0
    released: int = 0
    lost: int = 0
    failed: int = 0
    waits_s: list[float] = field(default_factory=list[float])


class ClientProcess(Process):
    """One client process."""

    def __init__(
        self,
        environment: Environment,
        name: str,
        *,
        clock: DriftingClock,
        random: Random,
        credentials: Callable[[], Credentials],
        targets: Callable[[], list[str]],
        counters: Counters,
    ) -> None:
        """Make a client that does nothing yet.

        Args:
            environment: of the run.
            name: of its machine.
            clock: of its machine.
            random: its own random source.
            credentials: of its user, as they are now.
            targets: the machines of all servers.
            counters: shared with other clients.
        """
        super().__init__(environment.scheduler, name)
        self._environment = environment
        self._clock = clock
        self._random = random
        self._credentials = credentials
        self._targets = targets
        self._counters = counters
        self._connections: dict[str, _Connection] = {}
        self._by_server: dict[ServerId, _Connection] = {}
        self._pending: dict[int, _Pending] = {}
        self._late = UnreachableError("no answer in time")
        self._number = 0
        self._allocation: Negotiation | None = None
        self._numbers: dict[int, int] = {}
        self._wake_at = inf
        self._began_at = 0.0
        self._ticket = b""
        self._letting_go: dict[LeaseId, tuple[_Lease, float]] = {}
        self.lease: _Lease | None = None
        self.retired = False
        """Set when no new lease is to be asked for."""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to every server, then ask for GPUs again and again."""
        self._connect()
        self.after(0.05 + self._random.random() * self._environment.options.think_s, self._begin)

    def kill(self) -> None:
        """End; the pool takes its leases back from now on."""
        if self.alive:
            self._give_up_history(at=self.scheduler.now)
            history = self._environment.history
            for lease, called_at in self._letting_go.values():
                history.over(lease.id, lease.gpus, called_at, inf)
            for pending in self._pending.values():
                self._record(pending, UnreachableError("the client is gone"))
        super().kill()

    @property
    def wanted(self) -> set[RequestId]:
        """Return the requests that this client still wants something of."""
        found: set[RequestId] = set()
        if self.alive and self._allocation is not None:
            found.add(self._allocation.request.id)
        if self.alive and self.lease is not None:
            found.add(self.lease.request)
        return found

    @property
    def user(self) -> str:
        """Return whose client this is."""
        return self._credentials().user

    @property
    def waits_for(self) -> Request | None:
        """Return the request that is waiting for GPUs."""
        if not self.alive or self.paused or self._allocation is None or self.lease is not None:
            return None
        return self._allocation.request

    def _connect(self) -> None:
        targets = self._targets()
        for machine in targets:
            if machine not in self._connections:
                connection = self._connections[machine] = _Connection(self, machine)
                self._environment.network.dial(
                    self, machine, CONTROL, connection, timeout_s=DIAL_TIMEOUT_S
                )
        self.after(RECONNECT_S * (1 + self._random.random()), self._connect)

    # --- asking -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.retired:
            return
        random = self._random
        request = draw_request(random, self._environment.options, self.machine)
        self._ticket = random.randbytes(32)
        self._began_at = self.scheduler.now
        self._allocation = Negotiation(
            request,
            ticket_hash=sha256(self._ticket).digest(),
            wait_s=random.choice((None, None, 5.0, 15.0)),
            clock=self._clock,
            rng=random,
        )
        self._do(self._allocation.start(tuple(self._by_server)))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Call():
                    done = partial(self._answered, self._allocation, action.number)
                    self.call(action.server, action.message, action.timeout_s, done)
                case Granted():
                    self._granted(action)
                case Failed():
                    self._counters.failed += 1
                    self._environment.trace.note(self.machine, "gave-up", str(action.error))
                    self._allocation = None
                    unsettled = action.unsettled
                    if unsettled is not None and unsettled in self._by_server:
                        self._drop(self._by_server[unsettled].machine)
                    self._later()
                case Tell() | Widen() | Explain():
                    pass
        self._set_timer()

    def _set_timer(self) -> None:
        if self._allocation is None or (due := self._allocation.wake_at()) == inf:
            return
        when = self._clock.world_time(due) + 1e-6
        if when < self._wake_at - 1e-6 or self._wake_at <= self.scheduler.now:
            self._wake_at = when
            self.scheduler.at(when, partial(self.run, partial(self._timer, when)))

    def _timer(self, when: float) -> None:
        if when == self._wake_at:
            self._wake_at = inf
            if self._allocation is not None:
                self._do(self._allocation.poll())
                self._set_timer()

    def _answered(
        self, allocation: Negotiation | None, number: int, answer: m.Message | GpupoolError
    ) -> None:
        # What a former allocation left under way concerns nobody any more.
        if allocation is not None and self._allocation is allocation:
            before = allocation.request.id
            self._do(allocation.answered(number, answer))
            if allocation.request.id != before:
                self._environment.abandoned_requests[before] = self.machine

    def _later(self) -> None:
        delay_s = self._random.expovariate(1.0) * self._environment.options.think_s
        self.after(delay_s, self._begin)

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
        self._number += 1
        number, now = self._number, self.scheduler.now
        connection = self._by_server.get(server)
        token = connection.token if connection is not None else TokenId("")
        self._pending[number] = _Pending(server, message, token, now, done)
        if connection is None or connection.end is None:
            self.after(0.0, partial(self._finish, number, UnreachableError("no connection")))
            return
        connection.calls.add(number)
        connection.end.send(Packet(number, message))
        delay_s = self._clock.world_time(self._clock.monotonic() + timeout_s) - now
        self.after(delay_s, partial(self._finish, number, self._late))

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
        """Put into the history what a client can know of a claim or a cancel."""
        history, now = self._environment.history, self.scheduler.now
        match pending.message:
            case m.Claim(request=request, partitions=partitions):
                self._judge_time(pending, answer)
                if not isinstance(answer, m.Claimed):
                    if not isinstance(answer, m.Refused):
                        history.unanswered(request.id, pending.called_at)
                elif answer.outcome == "granted" and answer.lease is not None:
                    sizes = {p.gpu: p.memory for p in partitions}
                    history.granted(request.id, answer.lease, sizes, pending.called_at, now)
                    checkers = self._environment.checkers
                    lease = checkers.logs.state.leases.get(answer.lease)
                    checkers.wanted.answered(lease, partitions)
                    checkers.policy.granted(
                        pending.token,
                        answer.lease, {p.server for p in partitions},
                        pending.called_at,
                    )  # fmt: skip
                elif answer.outcome == "uncertain":
                    history.unanswered(request.id, pending.called_at)
                elif answer.kind == "closed":
                    history.refused_for_good(request.id, pending.called_at, now)
            case m.Cancel(request=request_id):
                confirmed = isinstance(answer, m.Done)
                history.cancelled(request_id, pending.called_at, now if confirmed else inf)
            case _:
                pass

    def _judge_time(self, pending: _Pending, answer: m.Message | GpupoolError) -> None:
        connection = self._by_server.get(pending.server)
        lost = isinstance(answer, GpupoolError) and answer is not self._late
        if connection is None or lost or not self.alive:
            return
        environment, server = self._environment, connection.machine
        keys = (server, self.machine, between(server, self.machine))
        took_s = self.scheduler.now - pending.called_at
        quiescent_s = environment.quiescence.for_s(*keys)
        environment.checkers.answers.answered(self.machine, server, took_s, quiescent_s)

    # --- holding ----------------------------------------------------------------------------------

    def _granted(self, action: Granted) -> None:
        trace = self._environment.trace
        partitions = action.choice.partitions
        servers = tuple(dict.fromkeys(p.server for p in partitions))
        self._allocation = None
        self._counters.granted += 1
        self._counters.waits_s.append(self.scheduler.now - self._began_at)
        trace.note(self.machine, "granted", f"lease {action.lease}: {len(partitions)} GPU(s)")
        lease = self.lease = _Lease(
            id=action.lease,
            request=action.request.id,
            ticket=self._ticket,
            gpus=tuple(p.gpu for p in partitions),
            waiting=set(servers),
            servers=servers,
        )
        for server in servers:
            if server == action.choice.server:
                self._open(lease, server)
            else:
                attach = m.Attach(lease.id, lease.ticket)
                done = partial(self._attached, lease, server)
                self.call(server, attach, SESSION_TIMEOUT_S, done)

    def _attached(self, lease: _Lease, server: ServerId, answer: m.Message | GpupoolError) -> None:
        if self.lease is not lease:
            return
        if isinstance(answer, m.Done):
            self._open(lease, server)
        else:
            self._release(lease, f"{answer}")

    def _open(self, lease: _Lease, server: ServerId) -> None:
        opening = m.OpenSession(lease.id, "arrays", "simulated")
        self.call(server, opening, SESSION_TIMEOUT_S, partial(self._opened, lease, server))

    def _opened(self, lease: _Lease, server: ServerId, answer: m.Message | GpupoolError) -> None:
        if self.lease is not lease:
            return
        if not isinstance(answer, m.SessionOpened):
            self._release(lease, f"{answer}")
            return
        lease.waiting.discard(server)
        if not lease.waiting and not lease.ready:
            lease.ready = True
            hold_s = self._random.expovariate(1.0) * self._environment.options.hold_s
            self.after(hold_s, partial(self._release, lease, "done"))

    def _release(self, lease: _Lease, reason: str) -> None:
        """Give the lease back, to any of its servers that answers."""
        if self.lease is not lease:
            return
        self.lease = None
        self._environment.trace.note(self.machine, "release", f"lease {lease.id}: {reason}")
        self._try_release(lease, self.scheduler.now, list(lease.servers))

    def _try_release(self, lease: _Lease, called_at: float, servers: list[ServerId]) -> None:
        server = servers.pop(0)
        self._letting_go[lease.id] = (lease, called_at)

        def done(answer: m.Message | GpupoolError) -> None:
            if isinstance(answer, m.Done):
                self._counters.released += 1
                del self._letting_go[lease.id]
                now = self.scheduler.now
                self._environment.history.over(lease.id, lease.gpus, called_at, now)
                self._later()
            elif servers:
                self._try_release(lease, called_at, servers)
            else:
                # Nobody confirms it: letting go of the connections ends it as well.
                del self._letting_go[lease.id]
                self._environment.history.over(lease.id, lease.gpus, called_at, inf)
                for machine in list(self._connections):
                    self._drop(machine)
                self._later()

        self.call(server, m.Release(lease.id, "done"), RELEASE_TIMEOUT_S, done)

    def _lost_lease(self, reason: str) -> None:
        lease = self.lease
        if lease is None:
            return
        self._counters.lost += 1
        self._environment.trace.note(self.machine, "lost", f"lease {lease.id}: {reason}")
        self._give_up_history(at=self.scheduler.now)
        self.lease = None
        for machine in list(self._connections):
            connection = self._connections[machine]
            if connection.server in lease.servers:
                self._drop(machine)
        self._later()

    def _give_up_history(self, at: float) -> None:
        """Record that the lease ends, or has ended, at ``at`` or at any time after."""
        if self.lease is not None:
            self._environment.history.over(self.lease.id, self.lease.gpus, at, inf)

    # --- connections ------------------------------------------------------------------------------

    def hello(self) -> m.Hello:
        """Return how this client introduces itself."""
        return self._credentials().hello(self.machine)

    def welcomed(self, connection: "_Connection", server: ServerId) -> None:
        """Use a connection from now on."""
        self._by_server[server] = connection
        if self._allocation is not None:
            self._do(self._allocation.arrived(server))

    def took(self, connection: "_Connection", packet: Packet) -> None:
        """Take an answer or a push."""
        message = packet.message
        if packet.call:
            if packet.call in connection.calls:
                self._finish(packet.call, message)
            return
        match message:
            case m.CapacityAvailable(requests):
                if self._allocation is not None and self._allocation.request.id in requests:
                    self._do(self._allocation.hinted())
            case m.LeaseEnded(lease, reason):
                if self.lease is not None and self.lease.id == lease:
                    self._lost_lease(reason)
            case _:
                pass

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
        if self._allocation is not None:
            self._do(self._allocation.left(server))
        if self.lease is not None and server in self.lease.servers:
            self._lost_lease(f"connection with {connection.machine}: {reason}")

    def _drop(self, machine: str) -> None:
        connection = self._connections.get(machine)
        if connection is not None and connection.end is not None:
            connection.end.close()
            self.left(connection, "closed by us")


class _Connection:
    """A client's end of its connection with one server."""

    def __init__(self, client: ClientProcess, machine: str) -> None:
        self._client = client
        self.machine = machine
        self.end: End | None = None
        self.server: ServerId | None = None
        self.token = TokenId("")
        self.calls: set[int] = set()

    def opened(self, end: End) -> None:
        self.end = end
        hello = self._client.hello()
        self.token = hello.token
        end.send(Packet(0, hello))

    def failed(self, reason: str) -> None:
        self._client.left(self, reason)

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, Packet)
        message = payload.message
        if self.server is not None:
            self._client.took(self, payload)
        elif isinstance(message, m.Welcome):
            self.server = message.server
            self._client.welcomed(self, message.server)
        else:
            end.close()
            self._client.left(self, "not welcome")

    def closed(self, end: End, reason: str) -> None:
        del end
        self._client.left(self, reason)
