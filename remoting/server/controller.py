"""The control plane of one server as a state machine without I/O: connections and their calls.

``control_server`` drives it with sockets and a replicated log, the simulator with fakes. Inputs are
method calls, each of which returns the actions to carry out, in order (see ``actions``):

    opened(connection)                          a connection is up, its client is not known yet
    received(connection, call, message)         it sent a message
    closed(connection)                          it is gone
    decided(number, outcome)                    an attempt of a ``Propose`` has ended
    session_opened(number, info or error)       a ``StartSession`` has ended
    policy_compiled(number, draft or error)     a ``CompilePolicy`` has ended
    usage_answered(number, page or error)       an ``AskUsage`` has ended
    ca_made(number, CA or error)                a ``MakeCa`` has ended
    ca_changed()                                this server trusts other CAs
    applied()                                   the table has changed
    poll()                                      time has passed; call again at ``wake_at()``
    reconcile_now()                             the host has changed: workers have ended

Theory of operation
===================

Three things have a state here. Everything else is in the replicated table, which only commands
change. "-" means that the event cannot come in that state, or changes nothing.

    connection | Hello, known token | Hello, else      | FetchCa      | call    | gone
    -----------+--------------------+------------------+--------------+---------+------------------
    opened     | Welcome: welcomed  | Refused, hang up | CA, hang up  | -       | closed
    welcomed   | -                  | -                | -            | (below) | closed, its
               |                    |                  |              |         | leases detached
    closed     | -                  | -                | -            | -       | -

    A welcomed connection is also closed, after ``Dismissed``, when its token is revoked or this
    server has left the pool. An expired token closes nothing: it gets no new lease.

    lease here  | granted, Attach    | Release          | last connection   | ended in the table
    ------------+--------------------+------------------+-------------------+---------------------
    detached    | attached           | kill, EndLease   | -                 | -
    attached    | one more           | detached; kill,  | lost: kill        | LeaseEnded, detached
                | connection         | EndLease         |                   |
    lost        | attached, still    | kill, EndLease   | -                 | detached
                | lost               |                  |                   |

    A release that cannot be committed makes its lease lost as well. What is lost, or held here
    and attached to no connection for long, is ended by the reconciler.

    call        | handler answers    | handler proposes | decided, timeout  | connection gone
    ------------+--------------------+------------------+-------------------+---------------------
    pending     | answered           | pending          | answered          | answered, unsent

    A call is also pending while ``Attach`` waits for its lease to reach this table, and while the
    host starts a session.

Who calls whom: the driver calls the controller. The controller greets, checks the rights that a
call's class declares, and hands the call to the one service that handles its class. Services get a
``ServiceContext`` and never each other: they read the table, answer, and propose by it. After each
change, and after ``sync_interval_s``, the controller calls the reconciler, which compares the table
with the host and proposes what is missing.

What is never true:

* A call has two answers, or none after its deadline; ``pending_calls`` counts those without.
* A session starts for a lease that this server's table does not hold, or without a majority.
* A lease is answered as granted before its grant is committed, or to a client that has gone: such
  a grant is undone.
* A refusal is definite while the command may still be committed: ``Claimed`` says "uncertain".
* Somebody without a valid token learns more than that, or than the CA's certificate.
* Anything but its end is said or done for a client by a table in which its token is revoked:
  each input looks at the tokens first, because the table may have changed before ``applied``.
"""

from operator import is_not

from gpupool.pool.errors import AuthenticationError, DeniedError, GpupoolError, NotNowError
from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, Server, Token, TokenKind
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.ports import ConsensusHealth, Outcome, Randomness, Role
from gpupool.pool.record_query import ExporterPage
from gpupool.pool.table_clock import TableClock
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.policy_versions import Draft
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.sessions import SessionHost, SessionInfo
from gpupool.remoting.protocol.view_encoding import MadeView
from gpupool.remoting.server.actions import Action
from gpupool.remoting.server.admin_service import AdminService
from gpupool.remoting.server.backup_service import BackupService
from gpupool.remoting.server.ca_service import CaService
from gpupool.remoting.server.lease_service import LeaseService
from gpupool.remoting.server.policy_service import PolicyService
from gpupool.remoting.server.proposer import Proposer
from gpupool.remoting.server.reconciler import Reconciler
from gpupool.remoting.server.relocating.relocation_service import RelocationService
from gpupool.remoting.server.server_settings import ControllerSettings, ServerInstance
from gpupool.remoting.server.service_context import (
    Authorities,
    Client,
    ClientTable,
    Handler,
    ServiceContext,
    authenticate,
    check_rights,
    check_text,
    welcome,
)
from gpupool.remoting.server.view_service import ViewService
from gpupool.remoting.server.wait_queue import WaitQueue
from gpupool.remoting.transport.authority.ca_store import NextCa

#: Calls of one connection that may be under way; further ones are refused.
CALL_COUNT_MAX = 64

#: Connections; those of a user are a tenth of what a server serves.
CONNECTION_BOUND = UserBound(user=1024, token=768)

#: Calls under way, each with one proposal at most: consensus takes 10,000 of all.
CALL_BOUND = UserBound(user=512, token=384)
ALWAYS_TAKEN = m.Ping, m.Attach, m.Release, m.Cancel
"""Messages that are never refused: a client would take a refusal for the end of its lease."""

CLIENT_NAME_LENGTH_MAX = 100


class Controller:
    """The logic of one control server; see the module."""

    _seen: PoolState | None = None
    _reconcile_at = float("-inf")
    _followed: tuple[object, ...] = (None, None, None, b"")
    _reconciled: tuple[object, ...] = (None,) * 7
    _tokens: object = None

    def __init__(
        self,
        machine: PoolMachine,
        *,
        me: ServerInstance,
        consensus: ConsensusHealth,
        authorities: Authorities,
        host: SessionHost,
        table_clock: TableClock,
        rng: Randomness,
        settings: ControllerSettings | None = None,
    ) -> None:
        actions = list[Action]()
        self.context = context = ServiceContext(
            machine=machine,
            me=me,
            consensus=consensus,
            authorities=authorities,
            host=host,
            table_clock=table_clock,
            settings=settings or ControllerSettings(),
            clients=ClientTable(),
            wait_queue=WaitQueue(),
            proposer=Proposer(table_clock, rng, emit=actions.append, formats=machine.formats),
            actions=actions,
        )
        self._clients, self._known_members = context.clients, _KnownMembers(context)
        self._reconciler, self._policies = Reconciler(context), PolicyService(context)
        self._leases, self._admin = LeaseService(context), AdminService(context)
        self._views, self._authorities = ViewService(context), CaService(context)
        self._relocations = RelocationService(context)
        self._handlers: dict[type[m.Call], Handler] = {m.Ping: self._ping}
        services = self._leases, self._admin, self._views, self._policies, self._authorities
        for service in (*services, self._relocations, BackupService(context)):
            self._handlers |= service.handlers()
        assert self._handlers.keys() == set(m.all_of(m.Call).values()), "every call has one handler"

    # --- inputs ----------------------------------------------------------------------------------

    def opened(self, connection: int) -> list[Action]:
        """Take note of a new connection."""
        self._clients.opened(connection)
        return self._take()

    def received(self, connection: int, call: int, message: m.Message) -> list[Action]:
        """Act on one message; ``connection.Connection`` has checked that it may come now."""
        self._follow_tokens()
        if not self._clients.has(connection):
            return self._take()
        context, client = self.context, self._clients.get(connection)
        try:
            if client is not None:
                assert isinstance(message, m.Call)
                self._handle(client, call, message)
            elif isinstance(message, m.FetchCa):
                context.send(connection, call, m.CaCertificate(context.authorities.ca_pem()))
                context.hang_up(connection, "")
            elif isinstance(message, m.Hello):
                self._greet(connection, call, message)
        except GpupoolError as error:
            context.send(connection, call, m.refused(error))
            if client is None:
                context.hang_up(connection, f"refused: {error}")
        return self._take()

    def closed(self, connection: int) -> list[Action]:
        """Act on a connection that is gone: a lease that only it held has lost its client."""
        self._follow_tokens()
        self._forget(connection)
        return self._take()

    def decided(self, number: int, outcome: Outcome) -> list[Action]:
        """Take the outcome of one attempt of a ``Propose``."""
        self._follow_tokens()
        self.context.proposer.outcome(number, outcome)
        return self._take()

    def session_opened(self, number: int, result: SessionInfo | GpupoolError) -> list[Action]:
        """Take the result of a ``StartSession``."""
        self._follow_tokens()
        self._leases.session_opened(number, result)
        # If the lease has ended meanwhile, this pass kills the new worker.
        self._reconcile()
        return self._take()

    def ca_made(self, number: int, result: NextCa | GpupoolError) -> list[Action]:
        """Take the result of a ``MakeCa``."""
        self._follow_tokens()
        self._authorities.made(number, result)
        return self._take()

    def ca_changed(self) -> list[Action]:
        """Tell clients and the table the CAs that this server trusts now."""
        self._seen = None
        self._follow_table()
        return self._take()

    def policy_compiled(self, number: int, result: Draft | GpupoolError) -> list[Action]:
        """Take the result of a ``CompilePolicy``."""
        self._follow_tokens()
        self._policies.compiled(number, result)
        return self._take()

    def usage_answered(self, number: int, result: ExporterPage | GpupoolError) -> list[Action]:
        """Take the result of an ``AskUsage``."""
        self._follow_tokens()
        self._admin.usage_answered(number, result)
        return self._take()

    def view_made(self, made: MadeView) -> list[Action]:
        """Take the result of the ``MakeView``."""
        self._follow_tokens()
        self._views.made(made)
        return self._take()

    def applied(self) -> list[Action]:
        """Act on a change of the table."""
        self._follow_table()
        return self._take()

    def poll(self) -> list[Action]:
        """Act on the passing of time."""
        now = self.context.clock.monotonic()
        self._follow_tokens()
        self.context.proposer.poll()
        self._follow_table()
        self._leases.poll(now)
        if self._reconcile_at <= now:
            self._reconcile()
        self._leases.push_capacity(now)
        self._views.poll(now)
        return self._take()

    def reconcile_now(self) -> list[Action]:
        """Compare the table with the host again: a worker has gone, which the table cannot show."""
        self._follow_tokens()
        self._reconcile()
        return self._take()

    def wake_at(self) -> float:
        """Return the monotonic time of the next ``poll``."""
        return min(
            self._reconcile_at,
            self.context.proposer.wake_at(),
            self.context.wait_queue.wake_at(),
            self._leases.wake_at(),
            self._views.wake_at(),
        )

    def telemetry(self) -> Telemetry:
        """Return this server's telemetry of itself."""
        return self._views.telemetry()

    def check_token(self, text: str) -> Token:
        """Return the token that was pasted as ``text``; raises as ``check_text``."""
        return check_text(self.context, text)

    def user_of(self, connection: int) -> str | None:
        """Return the user of a connection's good token; None without one."""
        client = self._clients.get(connection)
        return client.user if client is not None else None

    # --- connections -----------------------------------------------------------------------------

    def _greet(self, connection: int, call: int, hello: m.Hello) -> None:
        context = self.context
        token = authenticate(context, hello)
        if has := self._clients.reached(CONNECTION_BOUND, Holder(token.user, token.id)):
            why = f"{has} connections to this server"
            raise NotNowError("too many connections", why=why, hint="end some of them")
        name = hello.client[:CLIENT_NAME_LENGTH_MAX]
        client = Client(connection, token.id, token.user, token.kind, name, hello.protocol)
        client.members, client.ca_pem = self._known_members.current(), context.exchanged_ca()
        self._clients.welcome(client)
        context.send(connection, call, welcome(context, token, client.members))

    def _forget(self, connection: int) -> None:
        client = self._clients.closed(connection)
        if client is not None:
            self.context.wait_queue.closed(connection)
            self._views.closed(client)
            self._leases.closed(client)
            self._reconcile()

    # --- calls -----------------------------------------------------------------------------------

    def _handle(self, client: Client, call: int, message: m.Call) -> None:
        has = self._clients.calls_reached(CALL_BOUND, client.holder)
        self._clients.begin_call(client)
        try:
            if client.pending_calls > CALL_COUNT_MAX:
                raise DeniedError(f"more than {CALL_COUNT_MAX} calls of one client under way")
            if has and not isinstance(message, ALWAYS_TAKEN):
                raise NotNowError(f"{has} calls under way", hint="ask again soon")
            check_rights(self.context, client, type(message))
            self._handlers[type(message)](client, call, message)
        except GpupoolError:
            self._clients.end_call(client)
            raise

    def _ping(self, client: Client, call: int, _message: m.Ping) -> None:
        self.context.answer(client, call, m.Done())

    # --- following the table and the time --------------------------------------------------------

    def _follow_table(self) -> None:
        state = self.context.state
        if self._seen is state:
            return
        self._seen = state
        self._follow_tokens()
        self._leases.table_changed()
        members, belongs = self._known_members.current(), self.context.me.id in state.servers
        ca_pem, followed = self.context.exchanged_ca(), self._followed
        if (
            followed[0] is not members
            or followed[1] is not state.tokens
            or followed[2] is not belongs
            or followed[3] != ca_pem
        ):
            self._followed = (members, state.tokens, belongs, ca_pem)
            for client in self._clients.welcomed():
                self._follow_client(client, members)
        else:
            # The usual case: leases have changed, and nothing else that concerns clients.
            for connection in self._leases.attachments.connections_of_ended():
                client = self._clients.get(connection)
                if client is not None:
                    self._follow_client(client, members)
        # Most changes in a large pool concern others, and the next pass by time is enough for them.
        own = state.leases.at(self.context.me.id), state.servers.get(self.context.me.id)
        rules = state.policy, state.authorities, state.tokens, state.revoking
        before, self._reconciled = self._reconciled, (*own, state.leases.relocating(), *rules)
        leads = self.context.consensus.role() is Role.LEADER
        if leads or any(map(is_not, before, self._reconciled)):
            self._reconcile()
        self._leases.push_capacity(self.context.clock.monotonic())

    def _follow_tokens(self) -> None:
        """Dismiss the clients with revoked tokens, before any other work.

        A server that was cut off learns of a revocation together with much that it was asked for.
        """
        tokens = self.context.state.tokens
        if self._tokens is tokens:
            return
        self._tokens = tokens
        for client in self._clients.welcomed():
            token = tokens.get(client.token)
            if token is None or token.revoked_at:
                self._follow_client(client, self._known_members.current())

    def _follow_client(self, client: Client, members: tuple[m.Member, ...]) -> None:
        """Tell a client the consequences of the table's change, and dismiss it if necessary."""
        context, state = self.context, self.context.state
        self._leases.push_ended(client)
        token = state.tokens.get(client.token)
        reason = ""
        if token is None or token.revoked_at:
            reason = f"token {client.token} was revoked"
            if client.ends_itself:
                context.send(client.connection, client.ends_itself, m.Done())
        elif context.me.id not in state.servers:
            reason = "this server has left the pool"
        if reason:
            error = AuthenticationError("the connection is closed", why=reason)
            context.send(client.connection, 0, m.Dismissed(m.refused(error)))
            context.hang_up(client.connection, reason)
            self._forget(client.connection)
            return
        ca_pem = context.exchanged_ca()
        said = client.members == members and client.ca_pem == ca_pem
        if client.kind is not TokenKind.SERVER and not said:
            client.members, client.ca_pem = members, ca_pem
            context.send(client.connection, 0, m.Members(members, ca_pem))

    def _reconcile(self) -> None:
        context, now = self.context, self.context.clock.monotonic()
        attachments = self._leases.attachments
        attachments.forget_ended()
        health = context.consensus.health() if context.consensus.role() is Role.LEADER else None
        lost = self._relocations.without_undecided(attachments.lost)
        self._reconciler.reconcile(health, attachments.connections, lost, self._leases.starting)
        settings, waits = context.settings, self._reconciler.under_way
        self._reconcile_at = now + (settings.sync_interval_s if waits else settings.rest_interval_s)
        self._leases.push_notices()
        self._leases.push_suspensions()
        self._relocations.follow(attachments.connections, self._leases.starting)
        self._authorities.ask_for_keys(now)

    def _take(self) -> list[Action]:
        actions = list(self.context.actions)
        self.context.actions.clear()
        return actions


class _KnownMembers:
    """The members of the pool, as clients are told of them."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._members, self._members_of = tuple[m.Member, ...](), PersistentMap[ServerId, Server]()

    def current(self) -> tuple[m.Member, ...]:
        """Return the members: the same tuple for as long as they are the same."""
        servers = self._context.state.servers
        before = self._members_of
        if before is not servers:
            self._members_of = servers
            if not _say_alike(before, servers):
                self._members = self._context.members()
        return self._members


def _say_alike(
    before: PersistentMap[ServerId, Server], after: PersistentMap[ServerId, Server]
) -> bool:
    """Return whether the members are the same: most changes of a server are its GPUs'."""
    changed = after.changed_since(before)
    return changed is not None and all(
        (was.name, was.address, was.voter) == (server.name, server.address, server.voter)
        for server_id, server in changed
        if (was := before[server_id])
    )
