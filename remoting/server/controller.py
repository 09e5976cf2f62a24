"""What a control server answers and does, as a state machine without I/O.

``server.py`` drives it with sockets and a real replicated log, the simulator with fakes. Inputs are
method calls, each of which returns the actions to carry out, in order:

    opened(connection)                          a connection is up, nobody is known yet
    received(connection, call, message)         it sent a message
    closed(connection)                          it is gone
    decided(number, outcome)                    an attempt of a ``Propose`` has ended
    session_opened(number, info or error)       a ``StartSession`` has ended
    applied()                                   the table has changed
    poll()                                      time has passed; call again at ``wake_at()``

Actions: ``Send``, ``Hangup``, ``Propose``, ``StartSession``, ``KillLease``, ``AskKey``. The clock,
chance, consensus' health and the host's books are read through the ports given at the start.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    LeaseLostError,
    NoQuorumError,
    NotNowError,
    UsageError,
)
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.ids import (
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    lease_name,
)
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, Partition, PartStatus, PoolState, TokenKind
from gpupool.pool.policy.notices import notice_text
from gpupool.pool.ports import Clock, Outcome, RaftHealth, Randomness, Role
from gpupool.pool.scheduling.placement import NoOffer, make_offer
from gpupool.pool.transitions.leases import encryption_of
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.pool.view import LONG_AGO_S, MAJORITY_FRESH_S
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.driver_variables import allowed_environment
from gpupool.remoting.protocol.sessions import SessionHost, SessionInfo
from gpupool.remoting.protocol.token_text import hash_secret
from gpupool.remoting.server.admin_service import AdminService
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.remoting.server.reconciler import GONE_REASON, Reconciler, Software
from gpupool.remoting.server.service_context import Client, Signer
from gpupool.remoting.server.validation import check_protocol, check_request
from gpupool.remoting.server.wait_queue import WaitQueue

# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` as the answer to ``call``, or as a push when that is 0."""

    connection: int
    call: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection once everything before has been sent, and log why."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StartSession:
    """Have the host start a worker; report with ``session_opened``."""

    number: int
    lease: Lease
    partitions: tuple[Partition, ...]
    door: str
    program: str
    settings: dict[str, str] = field(default_factory=dict[str, str])  # for the worker's driver


@dataclass(frozen=True, slots=True)
class KillLease:
    """Have the host kill all workers of a lease, now."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True)
class AskKey:
    """Ask this voter for the CA's key."""

    peer: ServerId


Action = Send | Hangup | Propose | StartSession | KillLease | AskKey


# --- settings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Durations in seconds of the server's monotonic clock."""

    call_timeout_s: float = 1.6
    """A claim or other command is answered within this, so that a minority refuses within 2 s."""

    cleanup_timeout_s: float = 60.0
    """How long a cancel that nobody waits for is tried; the lease itself ends by other means."""

    lease_wait_s: float = 2.0
    """How long a client that knows of a lease waits until this server knows of it too."""

    sync_interval_s: float = 0.25
    """The beat of the duties; the table's changes do not wait for it."""

    key_every_s: float = 5.0
    """How often a voter without the CA's key asks for it."""


@dataclass(slots=True)
class _Awaited:
    """An ``Attach`` for a lease that this server's table does not have yet."""

    client: Client
    call: int
    message: m.Attach
    deadline: float


@dataclass(slots=True)
class _Starting:
    """A session that the host is starting."""

    client: Client
    call: int
    lease: LeaseId


CALL_COUNT_MAX = 64
"""Calls of one connection that may be under way; further ones are refused."""

ATTACHED_COUNT_MAX = 64
TEXT_LENGTH_MAX = 200

NO_QUORUM_HINT = "it refuses until it is; ask another server, or start the missing ones"


class Controller:
    """The logic of one control server; see the module."""

    def __init__(
        self,
        machine: PoolMachine,
        *,
        self_id: ServerId,
        incarnation: Incarnation,
        software: Software,
        ca_pem: bytes,
        signer: Signer | None,
        host: SessionHost,
        clock: Clock,
        rng: Randomness,
        health: Callable[[], RaftHealth],
        majority_age_s: Callable[[], float],
        role: Callable[[], Role],
        clock_offset_s: Callable[[], float] = lambda: 0.0,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
        settings: ControllerSettings | None = None,
    ) -> None:
        self.machine = machine
        self.self_id = self_id
        self._incarnation = incarnation
        self.software = software
        self.ca_pem = ca_pem
        self.signer = signer
        self.settings = settings or ControllerSettings()
        self.clock = clock
        self.health = health
        self._majority_age_s = majority_age_s
        self._role = role
        self._actions: list[Action] = []
        self._clients: dict[int, Client | None] = {}
        self._attached: dict[LeaseId, set[int]] = {}
        self._requests: dict[LeaseId, RequestId] = {}
        self._awaited: list[_Awaited] = []
        self._starting: dict[int, _Starting] = {}
        self._number = 0
        self._seen: PoolState | None = None
        self._members: tuple[m.Member, ...] = ()
        self._members_of: object = None
        self._followed: tuple[object, ...] = (None, None, None)
        self._reconcile_at = float("-inf")
        self._key_at = float("-inf")
        self.wait_queue = WaitQueue()
        self.proposals = Proposer(
            machine,
            clock=clock,
            rng=rng,
            clock_offset_s=clock_offset_s,
            emit=self._actions.append,
        )
        self.reconciler = Reconciler(
            self_id=self_id,
            incarnation=incarnation,
            software=software,
            host=host,
            clock=clock,
            proposals=self.proposals,
            kill=self._kill,
            notify=self._notify,
        )
        self._admin_service = AdminService(
            self,
            host=host,
            clock_offset_s=clock_offset_s,
            loop_lag_s=loop_lag_s,
            violations=lambda: machine.violations,
        )

    @property
    def state(self) -> PoolState:
        """Return the table as applied here."""
        return self.machine.state

    # --- inputs ----------------------------------------------------------------------------------

    def opened(self, connection: int) -> list[Action]:
        """Take note of a new connection."""
        self._clients[connection] = None
        return self._take()

    def received(self, connection: int, call: int, message: m.Message) -> list[Action]:
        """Act on one message; ``connection.Connection`` has checked that it may come now."""
        if connection not in self._clients:
            return []
        client = self._clients[connection]
        try:
            if client is not None:
                self._handle(client, call, message)
            elif isinstance(message, m.FetchCa):
                self.send(connection, call, m.CaCertificate(self.ca_pem))
                self._actions.append(Hangup(connection, ""))
            elif isinstance(message, m.Hello):
                self._greet(connection, call, message)
        except GpupoolError as error:
            self.send(connection, call, m.refused(error))
            if client is None:
                self._actions.append(Hangup(connection, f"refused: {error}"))
        return self._take()

    def closed(self, connection: int) -> list[Action]:
        """Act on a connection that is gone: what only it held has lost its client."""
        self._forget(connection)
        return self._take()

    def _forget(self, connection: int) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            self.wait_queue.closed(connection)
            self._admin_service.closed(client)
            self._awaited = [each for each in self._awaited if each.client is not client]
            for lease in sorted(client.attached):
                self._detach(client, lease)
                if lease not in self._attached:
                    self._lose(lease, GONE_REASON)
            self._reconcile()

    def decided(self, number: int, outcome: Outcome) -> list[Action]:
        """Take the outcome of one attempt of a ``Propose``."""
        self.proposals.outcome(number, outcome)
        return self._take()

    def session_opened(self, number: int, result: SessionInfo | GpupoolError) -> list[Action]:
        """Take the result of a ``StartSession``."""
        starting = self._starting.pop(number)
        left = self.reconciler.busy[starting.lease] - 1
        if left:
            self.reconciler.busy[starting.lease] = left
        else:
            del self.reconciler.busy[starting.lease]
        if isinstance(result, GpupoolError):
            self.answer(starting.client, starting.call, m.refused(result))
        else:
            encryption = encryption_of(self.state, starting.lease)
            opened = m.SessionOpened(result, self.software.address, encryption)
            self.answer(starting.client, starting.call, opened)
        # If the lease has ended meanwhile, this look kills the new worker.
        self._reconcile()
        return self._take()

    def applied(self) -> list[Action]:
        """Act on a change of the table."""
        self._follow_table()
        return self._take()

    def poll(self) -> list[Action]:
        """Act on the passing of time."""
        now = self.clock.monotonic()
        self.proposals.poll()
        self._follow_table()
        for each in [each for each in self._awaited if each.deadline <= now]:
            self._awaited.remove(each)
            name = lease_name(each.message.lease)
            error = LeaseLostError(f"this server does not know lease {name}")
            self.answer(each.client, each.call, m.refused(error))
        if self._reconcile_at <= now:
            self._reconcile()
        self._hint(now)
        self._admin_service.push_updates(now)
        return self._take()

    def reconcile_now(self) -> list[Action]:
        """Look at the table again: something that it does not show, such as a worker, has gone."""
        self._reconcile()
        return self._take()

    def wake_at(self) -> float:
        """Return the monotonic time of the next ``poll``."""
        wake_at = min(
            self._reconcile_at,
            self.proposals.wake_at(),
            self.wait_queue.wake_at(),
            self._admin_service.wake_at(),
        )
        for each in self._awaited:
            wake_at = min(wake_at, each.deadline)
        return wake_at

    def clients(self) -> list[Client]:
        """Return everybody who has been welcomed."""
        return [client for client in self._clients.values() if client is not None]

    # --- what the admin service uses as well ------------------------------------------------------

    def send(self, connection: int, call: int, message: m.Message) -> None:
        """Send something to a connection that may not have been welcomed yet."""
        self._actions.append(Send(connection, call, message))

    def answer(self, client: Client, call: int, message: m.Message) -> None:
        """Answer a call that was counted when it came; silently, when its client is gone."""
        client.pending_calls -= 1
        if self._clients.get(client.connection) is client:
            self.send(client.connection, call, message)

    def require_majority(self) -> None:
        """Raise unless this server may act for the pool.

        Raises:
            NoQuorumError: when it was last in touch with a majority too long ago.
        """
        age_s = self._majority_age_s()
        if age_s >= MAJORITY_FRESH_S:
            since = f"last contact {age_s:.0f} s ago" if age_s < LONG_AGO_S else ""
            raise self.no_quorum(since)

    def no_quorum(self, why: str) -> NoQuorumError:
        """Return the error of a server that cannot act."""
        server = self.state.servers.get(self.self_id)
        name = server.name if server else self.self_id
        return NoQuorumError(
            f"server {name} is not in touch with a majority of the pool's servers",
            why=why,
            hint=NO_QUORUM_HINT,
        )

    def propose_for(
        self,
        client: Client,
        call: int,
        command: Command,
        then: Callable[[Result], m.Message],
    ) -> None:
        """Propose on behalf of a call, and answer it: ``then`` turns a result into the answer."""
        self.require_majority()

        def decided(decision: Decision) -> None:
            if decision.result is None:
                self.answer(client, call, m.refused(self.no_quorum(decision.why)))
                return
            try:
                self.answer(client, call, then(decision.result))
            except GpupoolError as error:
                self.answer(client, call, m.refused(error))

        self.proposals.propose(command, decided, timeout_s=self.settings.call_timeout_s)

    def when_current(self, client: Client, call: int, act: Callable[[], None]) -> None:
        """Act for a call once the table here has all that was committed before it.

        A server that has only just come back into touch may not know yet what others do.

        Raises:
            NoQuorumError: when it is not in touch.
        """
        self.require_majority()

        def decided(decision: Decision) -> None:
            if self._clients.get(client.connection) is not client:
                return  # nobody waits for it any more
            try:
                if decision.result is None:
                    raise self.no_quorum(decision.why)
                act()
            except GpupoolError as error:
                self.answer(client, call, m.refused(error))

        timeout_s = self.settings.call_timeout_s
        self.proposals.propose(commands.Tick(), decided, timeout_s=timeout_s)

    def members(self) -> tuple[m.Member, ...]:
        """Return where every server is reached."""
        return tuple(
            m.Member(server.id, server.name, server.address, server.voter)
            for server in self.state.servers.values()
        )

    def _known_members(self) -> tuple[m.Member, ...]:
        """Return ``members``: the same tuple for as long as they are the same."""
        servers = self.state.servers
        if self._members_of is not servers:
            self._members_of = servers
            known = self._members
            same = len(known) == len(servers) and all(
                (member.server, member.name, member.address, member.voter)
                == (server.id, server.name, server.address, server.voter)
                for member, server in zip(known, servers.values(), strict=True)
            )
            if not same:
                self._members = self.members()
        return self._members

    # --- calls -----------------------------------------------------------------------------------

    def _greet(self, connection: int, call: int, hello: m.Hello) -> None:
        state = self.state
        server = state.servers.get(self.self_id)
        name = server.name if server is not None else self.self_id
        check_protocol(hello, name, self.software.version)
        if self.self_id in state.removed:
            raise AuthenticationError("this server is not a member of its pool any more")
        token = state.tokens.get(hello.token)
        known = token is not None and hmac.compare_digest(
            token.secret_hash, hash_secret(hello.secret)
        )
        if server is None or (not known and server.incarnation != self._incarnation):
            # What it knows of the table may be old: whom it does not know may be there by now.
            raise NoQuorumError(
                "this server has just started and does not know the pool's table yet",
                why="it has not been in touch with a majority since",
                hint=NO_QUORUM_HINT,
            )
        # Whether the id or the secret is wrong is nobody's business.
        if token is None or not known:
            raise AuthenticationError(
                "the pool does not know this token", hint="log in again with a new token"
            )
        if why := token.refusal(self.clock.wall_ms()):
            raise AuthenticationError("the token is refused", why=why, hint="ask for a new one")
        client = Client(connection, token.id, token.user, token.kind, hello.client[:100])
        client.members = self._known_members()
        self._clients[connection] = client
        self.send(
            connection,
            call,
            m.Welcome(
                protocol=m.PROTOCOL,
                version=self.software.version,
                server=self.self_id,
                server_name=server.name,
                cluster_id=state.cluster_id,
                pool=state.name,
                user=token.user,
                kind=token.kind,
                members=client.members,
            ),
        )

    def _handle(self, client: Client, call: int, message: m.Message) -> None:
        client.pending_calls += 1
        try:
            if client.pending_calls > CALL_COUNT_MAX:
                raise DeniedError(f"more than {CALL_COUNT_MAX} calls of one client under way")
            if client.kind is TokenKind.SERVER and not isinstance(message, m.JoinPool):
                raise DeniedError("a server token is good for `gpupool join` only")
            match message:
                case m.Ask():
                    self._ask(client, call, message)
                case m.AwaitGpus():
                    self._await_gpus(client, call, message)
                case m.Claim():
                    self._claim(client, call, message)
                case m.Cancel():
                    self._cancel(client, call, message)
                case m.Attach():
                    self._attach_call(client, call, message)
                case m.Release():
                    self._release(client, call, message)
                case m.OpenSession():
                    self._open_session(client, call, message)
                case m.Ping():
                    self.answer(client, call, m.Done())
                case _:
                    self._admin_service.handle(client, call, message)
        except GpupoolError:
            client.pending_calls -= 1
            raise

    def _ask(self, client: Client, call: int, message: m.Ask) -> None:
        request = message.request
        check_request(request)
        state, now = self.state, self.clock.monotonic()
        server = state.servers.get(self.self_id)
        age_s = self._majority_age_s()
        if server is None:
            answer = NoOffer(self.self_id, self.self_id, "busy", "is not a member any more")
        elif age_s >= MAJORITY_FRESH_S:
            since = f" for {age_s:.0f} s" if age_s < LONG_AGO_S else ""
            why = f"not in touch with a majority of the servers{since}"
            answer = NoOffer(server.id, server.name, "no-quorum", why)
        elif server.incarnation != self._incarnation:
            answer = NoOffer(server.id, server.name, "busy", "is starting")
        else:
            shown = self.wait_queue.without_reserved(server, request.id, now)
            answer = make_offer(self._state_now(), shown, request, client.user)
        if isinstance(answer, NoOffer):
            if answer.kind == "busy" and message.waits:
                self.wait_queue.add(client.connection, request, now, client.user)
            self.answer(client, call, m.Offered(None, answer))
        else:
            self.answer(client, call, m.Offered(answer, None))

    def _await_gpus(self, client: Client, call: int, message: m.AwaitGpus) -> None:
        check_request(message.request)
        now = self.clock.monotonic()
        self.wait_queue.add(client.connection, message.request, now, client.user)
        command = commands.Wait(message.request, client.user, client.token, message.reason)

        def kept(result: Result) -> m.Message:
            if result.ok:
                return m.Done()
            if result.kind != "busy":
                self.wait_queue.discard(client.connection, message.request.id)
            kind = NotNowError if result.kind == "busy" else DeniedError
            raise kind("the request has no place in the waiting line", why=result.why)

        self.propose_for(client, call, command, kept)

    def _claim(self, client: Client, call: int, message: m.Claim) -> None:
        check_request(message.request)
        _check_room(client)
        self.require_majority()
        command = commands.Grant(
            request=message.request,
            user=client.user,
            token=client.token,
            ticket_hash=message.ticket_hash,
            partitions=message.partitions,
            incarnations=message.incarnations,
        )
        request = message.request.id

        def decided(decision: Decision) -> None:
            here = self._clients.get(client.connection) is client
            result = decision.result
            if result is not None and result.ok and result.lease is not None:
                if not here:
                    self._abandon(commands.EndLease(result.lease, "nobody waits for it any more"))
                    return
                self.wait_queue.discard(client.connection, request)
                lease = self.state.leases.get(result.lease)
                if lease is None or not lease.held:
                    why = lease.end_reason if lease else "it is over"
                    self.answer(client, call, m.Claimed("refused", kind="closed", why=why))
                    return
                self._attach(client, lease)
                self.answer(client, call, self._granted(lease))
            elif result is not None:
                claimed = m.Claimed("refused", kind=result.kind, why=result.why)
                self.answer(client, call, claimed)
            elif decision.uncertain:
                if not here:
                    self._abandon(commands.CancelRequest(request, "its client disconnected"))
                self.answer(client, call, m.Claimed("uncertain", why=decision.why))
            else:
                claimed = m.Claimed("refused", kind="no-quorum", why=decision.why)
                self.answer(client, call, claimed)

        self.proposals.propose(command, decided, timeout_s=self.settings.call_timeout_s)

    def _granted(self, lease: Lease) -> m.Claimed:
        left_ms = lease.ends_at - self.proposals.at_ms() if lease.ends_at else 0
        return m.Claimed(
            "granted",
            lease=lease.id,
            idle_timeout_s=lease.idle_timeout_s,
            time_left_s=max(0.0, left_ms / 1000),
        )

    def _cancel(self, client: Client, call: int, message: m.Cancel) -> None:
        command = commands.CancelRequest(
            message.request, message.reason[:TEXT_LENGTH_MAX], client.user, message.successor
        )

        def then(result: Result) -> m.Message:
            if not result.ok:
                raise DeniedError("the cancel is refused", why=result.why)
            self.wait_queue.discard(client.connection, message.request)
            return m.Done()

        self.propose_for(client, call, command, then)

    def _attach_call(self, client: Client, call: int, message: m.Attach) -> None:
        if len(message.ticket) > 64:
            raise UsageError("malformed ticket")
        _check_room(client)
        if not self._try_attach(client, call, message):
            deadline = self.clock.monotonic() + self.settings.lease_wait_s
            self._awaited.append(_Awaited(client, call, message, deadline))

    def _try_attach(self, client: Client, call: int, message: m.Attach) -> bool:
        """Answer an ``Attach``, unless the lease may still reach this server's table."""
        lease = self.state.leases.get(message.lease)
        if lease is None and self.state.index < message.lease:
            return False
        if lease is None or not lease.held:
            why = lease.end_reason if lease else "it is over"
            error: GpupoolError = LeaseLostError(
                f"lease {lease_name(message.lease)} has ended", why=why
            )
            self.answer(client, call, m.refused(error))
        elif lease.user != client.user or not hmac.compare_digest(
            lease.ticket_hash, hash_secret(message.ticket)
        ):
            error = DeniedError(f"lease {lease_name(lease.id)} is not yours")
            self.answer(client, call, m.refused(error))
        else:
            self._attach(client, lease)
            self.answer(client, call, m.Done())
        return True

    def _release(self, client: Client, call: int, message: m.Release) -> None:
        lease = self.state.leases.get(message.lease)
        if lease is not None and lease.user != client.user:
            raise DeniedError(f"lease {lease_name(lease.id)} is not yours")
        reason = message.reason[:TEXT_LENGTH_MAX] or "released"
        self._detach(client, message.lease)
        self._kill(message.lease, reason)

        def decided(decision: Decision) -> None:
            if decision.result is None:
                # Whatever becomes of this call, the client has let go: the duties end the lease.
                self._lose(message.lease, reason)
                self.answer(client, call, m.refused(self.no_quorum(decision.why)))
            elif not decision.result.ok:
                error = DeniedError("the release is refused", why=decision.result.why)
                self.answer(client, call, m.refused(error))
            else:
                self.answer(client, call, m.Done())

        command = commands.EndLease(message.lease, reason, client.user)
        self.proposals.propose(command, decided, timeout_s=self.settings.call_timeout_s)

    def _open_session(self, client: Client, call: int, message: m.OpenSession) -> None:
        self.require_majority()
        name = lease_name(message.lease)
        lease = self.state.leases.get(message.lease)
        if lease is None or not lease.held:
            raise LeaseLostError(f"lease {name} has ended", why=lease.end_reason if lease else "")
        if message.lease not in client.attached:
            raise DeniedError(f"lease {name} is not attached to this connection")
        if lease.parts.get(self.self_id) is not PartStatus.HELD:
            raise UsageError(f"lease {name} has no GPU of this server")
        if self.state.servers[self.self_id].incarnation != self._incarnation:
            # Our own ``ServerUp``, once committed, frees what the table grants here today, in the
            # belief that nothing runs for it.
            raise LeaseLostError(f"lease {name} has ended", why="this server has restarted")
        partitions = tuple(p for p in lease.partitions if p.server == self.self_id)
        self._number += 1
        self._starting[self._number] = _Starting(client, call, lease.id)
        self.reconciler.busy[lease.id] = self.reconciler.busy.get(lease.id, 0) + 1
        self._actions.append(
            StartSession(
                self._number,
                lease,
                partitions,
                message.door[:32],
                message.program[:TEXT_LENGTH_MAX],
                allowed_environment(message.settings),
            )
        )

    # --- leases and their connections ------------------------------------------------------------

    def _attach(self, client: Client, lease: Lease) -> None:
        client.attached.add(lease.id)
        self._requests[lease.id] = lease.request
        self._attached.setdefault(lease.id, set()).add(client.connection)

    def _detach(self, client: Client, lease: LeaseId) -> None:
        client.attached.discard(lease)
        client.noticed.pop(lease, None)
        connections = self._attached.get(lease)
        if connections is not None:
            connections.discard(client.connection)
            if not connections:
                del self._attached[lease]
                del self._requests[lease]

    def _ended(self, lease: LeaseId) -> str:
        """Return why a lease has ended that is not in the table any more."""
        why = self.state.closed.get(self._requests[lease], "it is over")
        return why.removeprefix("its lease has ended: ")

    def _lose(self, lease: LeaseId, reason: str) -> None:
        """Note that a lease has lost its client; its workers die now, with or without a quorum."""
        known = self.state.leases.get(lease)
        if known is not None and known.held and self.self_id in known.parts:
            self.reconciler.gone.setdefault(lease, reason)
            self._kill(lease, reason)

    def _kill(self, lease: LeaseId, reason: str) -> None:
        action = KillLease(lease, reason)
        if action not in self._actions:
            self._actions.append(action)

    def _notify(self, lease: LeaseId, text: str) -> None:
        """Tell the clients of a lease something that they should know."""
        for connection in sorted(self._attached.get(lease, ())):
            self.send(connection, 0, m.LeaseNotice(lease, text))

    def _abandon(self, command: Command) -> None:
        """Get a command committed that nobody waits for."""
        timeout_s = self.settings.cleanup_timeout_s
        self.proposals.propose(command, lambda _decision: None, timeout_s=timeout_s)

    # --- following the table and the time --------------------------------------------------------

    def _follow_table(self) -> None:
        state = self.state
        if self._seen is state:
            return
        self._seen = state
        for each in list(self._awaited):
            if self._try_attach(each.client, each.call, each.message):
                self._awaited.remove(each)
        members, belongs = self._known_members(), self.self_id in state.servers
        followed = self._followed
        if (
            followed[0] is not members
            or followed[1] is not state.tokens
            or followed[2] is not belongs
        ):
            self._followed = (members, state.tokens, belongs)
            for client in self.clients():
                self._follow_client(client, members)
        elif self._attached:
            # As mostly: leases have changed, and nothing else that concerns clients.
            ended = [lease for lease in self._attached if not _is_held(state, lease)]
            for connection in sorted({each for lease in ended for each in self._attached[lease]}):
                client = self._clients[connection]
                if client is not None:
                    self._follow_client(client, members)
        self._reconcile()
        self._hint(self.clock.monotonic())

    def _state_now(self) -> PoolState:
        """Return the table as of now: windows of the policy open though nothing is committed."""
        state, now = self.state, Milliseconds(self.proposals.at_ms())
        return state if now == state.now else with_changes(state, now=now)

    def _give_notices(self) -> None:
        """Tell clients of the ends that the policy has set to their leases, once each."""
        now_ms: int | None = None
        leases = self.state.leases
        for lease_id, connections in self._attached.items():
            lease = leases.get(lease_id)
            if lease is None or not lease.ends_at or not lease.held:
                continue
            if now_ms is None:
                now_ms = self.proposals.at_ms()
            if lease.notice_at > now_ms:
                continue
            for connection in sorted(connections):
                client = self._clients.get(connection)
                if client is not None and client.noticed.get(lease_id) != lease.ends_at:
                    client.noticed[lease_id] = lease.ends_at
                    self.send(connection, 0, m.LeaseNotice(lease_id, notice_text(lease)))

    def _follow_client(self, client: Client, members: tuple[m.Member, ...]) -> None:
        state = self.state
        for lease_id in sorted(client.attached):
            lease = state.leases.get(lease_id)
            if lease is None or not lease.held:
                reason = lease.end_reason if lease else self._ended(lease_id)
                self._detach(client, lease_id)
                self.send(client.connection, 0, m.LeaseEnded(lease_id, reason))
        token = state.tokens.get(client.token)
        reason = ""
        if token is None or token.revoked_at:
            reason = f"token {client.token} was revoked"
        elif self.self_id not in state.servers:
            reason = "this server has left the pool"
        if reason:
            error = AuthenticationError("the connection is closed", why=reason)
            self.send(client.connection, 0, m.Dismissed(m.refused(error)))
            self._actions.append(Hangup(client.connection, reason))
            self._forget(client.connection)
            return
        if client.kind is not TokenKind.SERVER and client.members != members:
            client.members = members
            self.send(client.connection, 0, m.Members(members))

    def _reconcile(self) -> None:
        now = self.clock.monotonic()
        self._reconcile_at = now + self.settings.sync_interval_s
        state = self.state
        health = self.health() if self._role() is Role.LEADER else None
        self.reconciler.reconcile(state, health, self._attached)
        self._give_notices()
        me = state.servers.get(self.self_id)
        if me is not None and me.voter and self.signer is None and self._key_at <= now:
            self._key_at = now + self.settings.key_every_s
            self._actions += [AskKey(voter) for voter in state.voters() if voter != self.self_id]

    def _hint(self, now: float) -> None:
        for connection, request in self.wait_queue.due(
            self.state, self.self_id, now, self._state_now
        ):
            self.send(connection, 0, m.CapacityAvailable((request,)))

    def _take(self) -> list[Action]:
        actions = list(self._actions)
        self._actions.clear()
        return actions


def _check_room(client: Client) -> None:
    """Refuse more leases than one connection may have, counting claims under way."""
    if len(client.attached) + client.pending_calls > ATTACHED_COUNT_MAX:
        raise DeniedError(f"more than {ATTACHED_COUNT_MAX} leases on one connection")


def _is_held(state: PoolState, lease: LeaseId) -> bool:
    known = state.leases.get(lease)
    return known is not None and known.held
