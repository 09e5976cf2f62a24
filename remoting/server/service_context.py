"""The context that the controller gives to every service, and one welcomed client.

A service reads the table, the clock and the health of consensus here, answers its calls and
proposes commands. Services share nothing else: none holds a reference to another.

**The checks of a client** are of its token, its version, the rights of its calls, and the form of a
request. Handlers run after them, so that no handler needs a check that another one has as well. The
table of all rights stands in docs/results/security.md.
"""

import hmac
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    NoQuorumError,
    UsageError,
)
from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.sizes import SHARE_MIN
from gpupool.pool.model.state import PoolState, Request, Token, TokenKind, with_changes
from gpupool.pool.ports import Clock, ConsensusHealth
from gpupool.pool.scheduling.filters import well_formed
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.leases import VIEWER_LOOKS
from gpupool.pool.values import IDLE_TIMEOUT_MIN_S
from gpupool.pool.view import LONG_AGO_S, MAJORITY_FRESH_S, has_quorum, visible
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.sessions import SessionHost
from gpupool.remoting.protocol.token_text import hash_secret, parse_token
from gpupool.remoting.server.actions import Action, Hangup, KillLease, Send
from gpupool.remoting.server.proposer import Decision, Proposer
from gpupool.remoting.server.server_settings import ControllerSettings, ServerInstance
from gpupool.remoting.server.wait_queue import WaitQueue

LOG = logging.getLogger("gpupool.leases")

NO_QUORUM_HINT = (
    "it refuses until it is; ask another server, or start the missing ones; if servers have moved, "
    'start each with the address of another: "gpupool join HOST:PORT"'
)


class Signer(Protocol):
    """Signs certificates for servers; there is one wherever the CA's key is."""

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate.

        Raises:
            AuthenticationError: when the request is malformed.
        """
        ...

    def ca_pem(self) -> bytes:
        """Return the CA's certificate."""
        ...

    def ca_sha256(self) -> bytes:
        """Return the SHA-256 of the CA's certificate in DER."""
        ...


class Authorities(Protocol):
    """The CAs that this server trusts, and its own certificate."""

    signer_has_own_user: bool
    """Whether the signer's secret, if there is a signer, is closed to the server."""

    def ca_pem(self) -> bytes:
        """Return the certificates of every CA that is trusted."""
        ...

    def signer(self) -> Signer | None:
        """Return the signer, or None while this server does not hold the CA's key."""
        ...

    def has_keys(self) -> bool:
        """Return whether this server has the key of every CA that is trusted."""
        ...

    def issuer(self) -> bytes:
        """Return the SHA-256 of the CA that has signed this server's certificate."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Return the problems of this server's certificate, as sentences."""
        ...


REFUSAL_LINES_MAX, REFUSAL_LINES_S = 20, 60.0
"""Lines of one user, and the seconds after which there may be as many again."""


@dataclass(eq=False, slots=True)
class Client:
    """One open connection, after ``Welcome``."""

    connection: int
    token: TokenId
    user: str
    kind: TokenKind
    name: str
    protocol: int = m.PROTOCOL  # that it speaks
    attached: set[LeaseId] = field(default_factory=set[LeaseId])
    noticed: dict[LeaseId, int] = field(default_factory=dict[LeaseId, int])
    """The ends of its leases that were announced to it, in table time."""
    pending_calls: int = 0
    update_every_s: float = 0.0
    update_at: float = float("inf")
    wants_view: bool = True  # with its updates
    members: tuple[m.Member, ...] = ()
    ca_pem: bytes = b""
    ends_itself: int = 0  # the call under way that revokes its own token: its last word is "done"

    @property
    def holder(self) -> Holder:
        """The user and the token that this client's resources count for."""
        return Holder(self.user, self.token)

    def __str__(self) -> str:
        """Return the user, client and token, for logs."""
        return f"{self.user} ({self.name or 'unnamed client'}, token {self.token})"


class ClientTable:
    """The open connections by number, with their clients once they are welcomed."""

    def __init__(self) -> None:
        self._clients: dict[int, Client | None] = {}
        self._count: Counter[str | Holder] = Counter()  # by user, and by holder
        self._calls: Counter[str | Holder] = Counter()  # under way, by both

    def opened(self, connection: int) -> None:
        """Add a connection with no known client yet."""
        self._clients[connection] = None

    def welcome(self, client: Client) -> None:
        """Note the client of an open connection."""
        self._clients[client.connection] = client
        self._count.update((client.user, client.holder))

    def closed(self, connection: int) -> Client | None:
        """Remove a connection, and return its client if it had been welcomed."""
        client = self._clients.pop(connection, None)
        if client is not None:
            _count_down(self._count, client)
        return client

    def begin_call(self, client: Client) -> None:
        """Count a call until ``end_call``, whether its client is still there by then or not."""
        client.pending_calls += 1
        self._calls.update((client.user, client.holder))

    def end_call(self, client: Client) -> None:
        """Count a call no more: it was answered, or nobody is there to be answered."""
        client.pending_calls -= 1
        _count_down(self._calls, client)

    def reached(self, bound: UserBound, holder: Holder) -> str:
        """Return the user or token of ``holder`` at the connection limit, or an empty text."""
        return bound.reached_by(holder, self._count[holder.user], self._count[holder])

    def calls_under_way(self) -> int:
        """Return how many calls are counted, those of clients that have gone among them."""
        return sum(count for key, count in self._calls.items() if isinstance(key, Holder))

    def calls_reached(self, bound: UserBound, holder: Holder) -> str:
        """Return the same for a bound of calls under way."""
        return bound.reached_by(holder, self._calls[holder.user], self._calls[holder])

    def has(self, connection: int) -> bool:
        """Return whether the connection is open, welcomed or not."""
        return connection in self._clients

    def get(self, connection: int) -> Client | None:
        """Return the welcomed client of a connection."""
        return self._clients.get(connection)

    def is_open(self, client: Client) -> bool:
        """Return whether the connection of ``client`` still stands."""
        return self._clients.get(client.connection) is client

    def welcomed(self) -> list[Client]:
        """Return every welcomed client, in the order of their connections."""
        return list(self)

    def __iter__(self) -> Iterator[Client]:
        return (client for client in self._clients.values() if client is not None)


def _count_down(count: Counter[str | Holder], client: Client) -> None:
    for key in (client.user, client.holder):
        count[key] -= 1
        if not count[key]:
            del count[key]


class RefusalLog:
    """Logs refused lease requests with reasons: a bounded number of lines for each user."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count: Counter[str] = Counter()  # by user, since ``_began``
        self._began = clock.monotonic()

    def say(self, client: Client, kind: str, why: str) -> None:
        """Log one refusal; that GPUs are busy is nothing special."""
        if kind == RefusalKind.BUSY:
            level = logging.DEBUG
        else:
            level = logging.INFO
            if self._clock.monotonic() - self._began >= REFUSAL_LINES_S:
                self._count.clear()
                self._began = self._clock.monotonic()
            self._count[client.user] += 1
            if self._count[client.user] > REFUSAL_LINES_MAX:
                return
            if self._count[client.user] == REFUSAL_LINES_MAX:
                why += f"; more of {client.user} are left out for {REFUSAL_LINES_S:.0f} s at most"
        fields = {"event": "refused", "user": client.user, "client": client.name, "reason": why}
        who = f"{client.user} ({visible(client.name)})"
        LOG.log(level, "refused %s a lease: %s", who, visible(why), extra={"fields": fields})


Handler = Callable[[Client, int, Any], None]
"""Acts on one call: takes the client, the number of the call, and a message of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """State and operations open to a service; see the module."""

    machine: PoolMachine
    me: ServerInstance
    consensus: ConsensusHealth
    authorities: Authorities
    host: SessionHost
    table_clock: TableClock
    settings: ControllerSettings
    clients: ClientTable
    wait_queue: WaitQueue
    proposer: Proposer
    actions: list[Action]  # the answer of the controller to the present input

    @property
    def clock(self) -> Clock:
        """Return this machine's clock, by which waits are measured."""
        return self.table_clock.clock

    @property
    def state(self) -> PoolState:
        """Return the table as applied here."""
        return self.machine.state

    def state_now(self) -> PoolState:
        """Return the table as of now: windows of the policy open though nothing is committed."""
        state, now = self.state, self.now_ms()
        return state if now == state.now else with_changes(state, now=now)

    def now_ms(self) -> Milliseconds:
        """Return the pool's time: the one by which everything here is stamped and judged."""
        return Milliseconds(self.table_clock.now_ms())

    def members(self) -> tuple[m.Member, ...]:
        """Return the address of every server."""
        return tuple(
            m.Member(server.id, server.name, server.address, server.voter, server.names)
            for server in self.state.servers.values()
        )

    def exchanged_ca(self) -> bytes:
        """Return the CAs that are trusted, for clients; nothing before the first exchange."""
        return self.authorities.ca_pem() if self.state.authorities else b""

    # --- actions ---------------------------------------------------------------------------------

    def send(self, connection: int, call: int, message: m.Outgoing) -> None:
        """Send an answer, or a push with call 0, also before the client is welcomed."""
        self.actions.append(Send(connection, call, message))

    def answer(self, client: Client, call: int, message: m.Outgoing) -> None:
        """Answer a call that was counted when it came; silently, when its client is gone."""
        self.clients.end_call(client)
        if call == client.ends_itself:
            client.ends_itself = 0
        if self.clients.is_open(client):
            self.send(client.connection, call, message)

    def hang_up(self, connection: int, reason: str) -> None:
        """Close a connection after its last message; an empty reason is not logged."""
        self.actions.append(Hangup(connection, reason))

    def kill(self, lease: LeaseId, reason: str) -> None:
        """Kill the workers of a lease; once, when several find out at the same moment."""
        action = KillLease(lease, reason)
        if action not in self.actions:
            self.actions.append(action)

    # --- a majority, and commands ----------------------------------------------------------------

    def require_majority(self) -> None:
        """Raise unless this server may act for the pool.

        Raises:
            NoQuorumError: when it was last in touch with a majority too long ago.
        """
        age_s = self.consensus.majority_age_s()
        if age_s >= MAJORITY_FRESH_S:
            since = f"last contact {age_s:.0f} s ago" if age_s < LONG_AGO_S else ""
            raise self.no_quorum(since or self.consensus.health().alarm)

    def silent_voters(self) -> tuple[str, ...]:
        """Return the voters that do not answer, and their last places, if a majority is missing."""
        health, found = self.consensus.health(), list[str]()
        for voter in () if has_quorum(health) else health.voters:
            if voter not in (self.me.id, *health.connected):
                known, places = self.state.servers.get(voter), self.me.checks.places_of(voter)
                where = f" at {places[0]}, its last known address" if places else ""
                name = visible(known.name) if known is not None else f"server {voter}"
                found.append(f"{name} does not answer{where}")
        return tuple(found)

    def no_quorum(self, why: str) -> NoQuorumError:
        """Return the error of a server that cannot act."""
        server = self.state.servers.get(self.me.id)
        name = server.name if server else self.me.id
        return NoQuorumError(
            f"server {name} is not in touch with a majority of the pool's servers",
            why="; ".join((*filter(None, (why,)), *self.silent_voters()[:3])),
            hint=NO_QUORUM_HINT,
        )

    def propose(self, client: Client, command: Command, then: Callable[[Decision], None]) -> None:
        """Propose for a call, within the time that its client waits."""
        timeout_s = self.settings.call_timeout_s
        self.proposer.propose(command, then, timeout_s=timeout_s, user=client.user)

    def propose_for(
        self, client: Client, call: int, command: Command, then: Callable[[Result], m.Message]
    ) -> None:
        """Propose on behalf of a call, and answer it: ``then`` turns a result into the answer.

        Raises:
            NoQuorumError: when this server is not in touch with a majority.
        """
        self.require_majority()

        def decided(decision: Decision) -> None:
            if decision.result is None:
                self.answer(client, call, m.refused(self.no_quorum(decision.why)))
                return
            try:
                self.answer(client, call, then(decision.result))
            except GpupoolError as error:
                self.answer(client, call, m.refused(error))

        self.propose(client, command, decided)

    def when_current(self, client: Client, call: int, act: Callable[[], None]) -> None:
        """Act for a call once the table here has all that was committed before it.

        A server that has just regained contact may not have the latest table yet.

        Raises:
            NoQuorumError: when it is not in touch.
        """
        self.require_majority()

        def decided(decision: Decision) -> None:
            if not self.clients.is_open(client):
                self.clients.end_call(client)
                return
            try:
                if decision.result is None:
                    raise self.no_quorum(decision.why)
                act()
            except GpupoolError as error:
                self.answer(client, call, m.refused(error))

        self.propose(client, commands.Tick(), decided)


# --- the checks of a client -----------------------------------------------------------------------

TEXT_LENGTH_MAX = 200
ASK_ANEW = 'an operator makes one with "gpupool token create"; give it to "gpupool login"'
SINCE_START = "it has not been in touch with a majority since"
SERVER_NAME_COUNT_MAX = 64
EXPIRY_SOON_MS = 14 * 86_400_000
"""A client is told of its token's end from so long before it on."""

SERVER_NAME_LENGTH_MAX = 64


def authenticate(context: ServiceContext, hello: m.Hello) -> Token:
    """Return the token that ``hello`` presents.

    Raises:
        AuthenticationError: when the token, or the client's version, is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    server = context.state.servers.get(context.me.id)
    name = server.name if server is not None else context.me.id
    check_protocol(hello, name, context.me.software.version)
    return check_token(context, hello.token, hello.secret)


def check_text(context: ServiceContext, text: str) -> Token:
    """Return the token that is pasted as ``text``, if it is one of a person or a program.

    Raises:
        AuthenticationError: when it is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    said = parse_token(text)
    token = check_token(context, said.token, said.secret)
    if token.kind is TokenKind.SERVER:
        raise AuthenticationError('a server token is good for "gpupool join" only')
    return token


def check_token(context: ServiceContext, token_id: TokenId, secret: bytes) -> Token:
    """Return the token that a stranger names, if he knows its secret.

    Raises:
        AuthenticationError: when it is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    state = context.state
    if context.me.id in state.removed:
        raise AuthenticationError("this server is not a member of its pool any more")
    server = state.servers.get(context.me.id)
    token = state.tokens.get(token_id)
    known = token is not None and hmac.compare_digest(token.secret_hash, hash_secret(secret))
    if server is None or (not known and server.incarnation != context.me.incarnation):
        # This table may be old: a token that is not in it may have been created since.
        raise NoQuorumError(
            "this server has just started and does not know the pool's table yet",
            why="; ".join((SINCE_START, *context.silent_voters()[:3])),
            hint=NO_QUORUM_HINT,
        )
    # The refusal does not say whether the id or the secret is wrong.
    if token is None or not known:
        raise AuthenticationError(
            "the pool does not know this token", hint="log in again with a new token"
        )
    if why := token.refusal(context.now_ms()):
        raise AuthenticationError("the token is refused", why=why, hint=ASK_ANEW)
    return token


def welcome(context: ServiceContext, token: Token, members: tuple[m.Member, ...]) -> m.Welcome:
    """Return the answer to a client with a good token."""
    state = context.state
    soon = token.kind is not TokenKind.SERVER and (
        token.expires_at - context.now_ms() < EXPIRY_SOON_MS
    )
    return m.Welcome(
        protocol=m.PROTOCOL,
        version=context.me.software.version,
        server=context.me.id,
        server_name=state.servers[context.me.id].name,
        cluster_id=state.cluster_id,
        pool=state.name,
        user=token.user,
        kind=token.kind,
        members=members,
        ca_pem=context.exchanged_ca(),
        expires_at=token.expires_at if soon else Milliseconds(0),
    )


def check_protocol(hello: m.Hello, server: str, version: str) -> None:
    """Check that a client, or a server that wants to join, can be understood here.

    Args:
        hello: its first message.
        server: the name of this server.
        version: of gpupool on this server.

    Raises:
        AuthenticationError: when it speaks another version of the protocol.
    """
    if m.PROTOCOL_OLDEST <= hello.protocol <= m.PROTOCOL:
        return
    other = "; or update the servers first" if hello.protocol > m.PROTOCOL else ""
    raise AuthenticationError(
        f"gpupool {visible(hello.version[:20])} cannot talk to server {server}, "
        f"which has gpupool {version}",
        why=f"this server speaks version {m.PROTOCOL} of the protocol, not {hello.protocol}",
        hint=f"install gpupool {version} on this machine{other}",
    )


def check_rights(context: ServiceContext, client: Client, kind: type[m.Call]) -> None:
    """Refuse a call that the client's token is not good for.

    Rights that depend on the owner of a lease or request are checked by the call's handler, and by
    the table again.

    Raises:
        DeniedError: it takes a token of another kind.
        AuthenticationError: an operator's token has expired since the connection was opened.
    """
    rights = kind.declared.rights
    if client.kind is TokenKind.SERVER and rights is not m.Rights.SERVER:
        raise DeniedError('a server token is good for "gpupool join" only')
    if client.kind is not TokenKind.SERVER and rights is m.Rights.SERVER:
        raise DeniedError("joining takes a server token, not a user's")
    if client.kind is TokenKind.VIEWER and rights is not m.Rights.VIEWER:
        raise DeniedError(VIEWER_LOOKS)
    if rights is m.Rights.OPERATOR:
        if client.kind is not TokenKind.OPERATOR:
            raise DeniedError(
                f"{client.user} may not do this",
                why="it takes an operator's token",
                hint="ask an operator to do it",
            )
        check_unexpired(context, client)


def check_unexpired(context: ServiceContext, client: Client) -> None:
    """Refuse an operator if the token has expired since the connection was opened.

    The table itself refuses grants for such a token, and connections of a revoked one are
    closed; neither is so for an operator's commands.

    Raises:
        AuthenticationError: when it has.
    """
    token = context.state.tokens.get(client.token)
    why = token.refusal(context.now_ms()) if token else "it is not known any more"
    if why:
        raise AuthenticationError("the token is refused", why=why, hint=ASK_ANEW)


def check_request(request: Request) -> None:
    """Check a client's request.

    Raises:
        UsageError: when it makes no sense, or is larger than it may be.
    """
    if len(request.id) != 16:
        raise UsageError("a request id has 16 bytes")
    if not 0 < request.count <= 256:
        raise UsageError("between 1 and 256 GPUs can be asked for")
    by_fraction = 0.0 < request.fraction <= 1.0 and request.memory == 0
    by_memory = request.fraction == 0.0 and 0 < request.memory <= 2**50
    if not by_fraction and not by_memory:
        raise UsageError("ask for a fraction above 0 and up to 1 of each GPU, or for memory")
    if request.idle_timeout_s and not IDLE_TIMEOUT_MIN_S <= request.idle_timeout_s <= 2**31:
        raise UsageError(f"an idle timeout is at least {IDLE_TIMEOUT_MIN_S:g} s")
    if request.share != 0.0 and not SHARE_MIN <= request.share <= 1.0:
        raise UsageError(f"a share of a GPU's time is {SHARE_MIN:g} to 1")
    if len(request.servers) > SERVER_NAME_COUNT_MAX:
        hint = "--filter takes patterns, as 'server.name = gpu-*'"
        raise UsageError(f"a request names at most {SERVER_NAME_COUNT_MAX} servers", hint=hint)
    if max(map(len, request.servers), default=0) > SERVER_NAME_LENGTH_MAX:
        what = f"a server's name has at most {SERVER_NAME_LENGTH_MAX} characters"
        raise UsageError(what, hint='"gpupool status" lists them')
    if len(request.client) > TEXT_LENGTH_MAX or len(request.program) > TEXT_LENGTH_MAX:
        raise UsageError("the request's texts are too long")
    if not well_formed(request.filters):
        raise UsageError("the request's filters are malformed")
