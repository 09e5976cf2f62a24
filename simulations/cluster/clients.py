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

from gpupool.pool.errors import GpupoolError
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
from gpupool.simulations.cluster.client_connections import ClientConnections, Credentials
from gpupool.simulations.cluster.moving_programs import ProgramMove
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.workload.drawn_requests import draw_request
from gpupool.simulations.workload.long_lines import NEVER_ENDING, draw_in_line, part_in_line

SESSION_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 3.0


@dataclass(slots=True)
class _Lease:
    """The lease that the client holds, and the servers that have not confirmed their part yet."""

    id: LeaseId
    request: RequestId
    ticket: bytes
    gpus: tuple[GpuId, ...]
    waiting: set[ServerId]
    servers: tuple[ServerId, ...]
    ready: bool = False


@dataclass(slots=True)
class Counters:
    """The results of a client."""

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
        self._counters = counters
        _, self._part = part_in_line(environment.options, name) or ("", "")
        self._connections = ClientConnections(
            environment,
            self,
            clock=clock,
            random=random,
            credentials=credentials,
            targets=targets,
            user=self,
        )
        self._allocation: Negotiation | None = None
        self._wake_at = inf
        self._began_at = 0.0
        self._ticket = b""
        self._letting_go: dict[LeaseId, tuple[_Lease, float]] = {}
        self.lease: _Lease | None = None
        self._move: ProgramMove | None = None
        self.retired = False
        """Set when no new lease is to be asked for."""

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to every server, then ask for GPUs again and again."""
        self._connections.start()
        self.after(0.05 + self._random.random() * self._environment.options.think_s, self._begin)

    def kill(self) -> None:
        """End; the pool takes its leases back from now on."""
        if self.alive:
            self._give_up_history(at=self.scheduler.now)
            history = self._environment.history
            for lease, called_at in self._letting_go.values():
                history.over(lease.id, lease.gpus, called_at, inf)
            self._connections.abandon()
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
        """Return the user of this client."""
        return self._credentials().user

    @property
    def token(self) -> TokenId:
        """The token that it says to servers."""
        return self._credentials().token

    @property
    def waits_for(self) -> Request | None:
        """Return the request that is waiting for GPUs."""
        if not self.alive or self.paused or self._allocation is None or self.lease is not None:
            return None
        return self._allocation.request

    # --- asking -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.retired:
            return
        random = self._random
        options = self._environment.options
        request = draw_request(random, options, self.machine)
        if self._part:
            drained = self._environment.last_server
            request = draw_in_line(random, options, self.machine, self._part, drained)
        self._ticket = random.randbytes(32)
        self._began_at = self.scheduler.now
        self._allocation = Negotiation(
            request,
            ticket_hash=sha256(self._ticket).digest(),
            wait_s=None if self._part else random.choice((None, None, 5.0, 15.0)),
            clock=self._clock,
            rng=random,
        )
        self._do(self._allocation.start(self._connections.servers()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Call():
                    done = partial(self._answered, self._allocation, action.number)
                    self._connections.call(action.server, action.message, action.timeout_s, done)
                case Granted():
                    self._granted(action)
                case Failed():
                    self._counters.failed += 1
                    self._environment.trace.note(self.machine, "gave-up", str(action.error))
                    self._allocation = None
                    unsettled = action.unsettled
                    if unsettled is not None:
                        self._connections.drop_server(unsettled)
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
                self._connections.call(server, attach, SESSION_TIMEOUT_S, done)

    def _attached(self, lease: _Lease, server: ServerId, answer: m.Message | GpupoolError) -> None:
        if self.lease is not lease:
            return
        if isinstance(answer, m.Done):
            self._open(lease, server)
        else:
            self._release(lease, f"{answer}")

    def _open(self, lease: _Lease, server: ServerId) -> None:
        opening = m.OpenSession(lease.id, "arrays", "simulated")
        self._connections.call(
            server, opening, SESSION_TIMEOUT_S, partial(self._opened, lease, server)
        )

    def _opened(self, lease: _Lease, server: ServerId, answer: m.Message | GpupoolError) -> None:
        if self.lease is not lease:
            return
        if not isinstance(answer, m.SessionOpened):
            self._release(lease, f"{answer}")
            return
        lease.waiting.discard(server)
        if not lease.waiting and not lease.ready:
            lease.ready = True
            if self._part in NEVER_ENDING:
                return
            hold_s = self._random.expovariate(1.0) * self._environment.options.hold_s
            if self._part:
                hold_s = min(hold_s, 2 * self._environment.options.hold_s)
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
                self._connections.drop()
                self._later()

        self._connections.call(server, m.Release(lease.id, "done"), RELEASE_TIMEOUT_S, done)

    def _lost_lease(self, reason: str) -> None:
        lease = self.lease
        if lease is None:
            return
        self._counters.lost += 1
        self._environment.trace.note(self.machine, "lost", f"lease {lease.id}: {reason}")
        self._give_up_history(at=self.scheduler.now)
        self.lease = None
        self._connections.drop(lease.servers)
        self._later()

    def _give_up_history(self, at: float) -> None:
        """Record that the lease ends, or has ended, at ``at`` or at any time after."""
        if self.lease is not None:
            self._environment.history.over(self.lease.id, self.lease.gpus, at, inf)

    # --- connections ------------------------------------------------------------------------------

    def arrived(self, server: ServerId) -> None:
        """Ask a server after its connection has come up."""
        if self._allocation is not None:
            self._do(self._allocation.arrived(server))

    def pushed(self, message: m.Message) -> None:
        """Take a message that answers no call."""
        match message:
            case m.CapacityAvailable(requests):
                if self._allocation is not None and self._allocation.request.id in requests:
                    self._do(self._allocation.hinted())
            case m.LeaseEnded(lease, reason):
                if self.lease is not None and self.lease.id == lease:
                    self._lost_lease(reason)
            case m.LeaseLeaving():
                self._leave(message)
            case _:
                pass

    def _leave(self, order: m.LeaseLeaving) -> None:
        """Begin to go to another server; a program that has not begun yet stays."""
        lease = self.lease
        if lease is None or lease.id != order.lease or not lease.ready or self._move is not None:
            return
        (source,) = lease.servers
        self._move = ProgramMove(
            self._environment,
            self,
            self._connections,
            order,
            source,
            lease.ticket,
            self._random,
            self._moved,
        )
        self._move.start()

    def _moved(self, move: ProgramMove) -> None:
        """Go on where the lease is now."""
        self._move, lease = None, self.lease
        if lease is None or lease.id != move.order.lease:
            return
        if move.gone:
            lease.servers = (move.order.server,)
            self._environment.trace.note(self.machine, "moved", f"lease {lease.id}")
        (server,) = lease.servers
        if not self._connections.has(server):
            self._lost_lease("its server was lost while it was being moved")

    def left(self, server: ServerId, reason: str) -> None:
        """Go on without a server after its connection is gone."""
        if self._allocation is not None:
            self._do(self._allocation.left(server))
        move = self._move
        if move is not None and server == move.source and not move.decided:
            return  # the lease may be another server's by now, which is being asked
        if self.lease is not None and server in self.lease.servers:
            self._lost_lease(reason)
