"""The context that the controller gives to every service, and one welcomed client.

A service reads the table, the clock and the health of consensus here, answers its calls and
proposes commands. Services share nothing else: none holds a reference to another.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpupool.pool.errors import GpupoolError, NoQuorumError
from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import PoolState, TokenKind, with_changes
from gpupool.pool.ports import Clock, ConsensusHealth
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.view import LONG_AGO_S, MAJORITY_FRESH_S, has_quorum, visible
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.sessions import SessionHost
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
