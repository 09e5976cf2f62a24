"""The client of a pool: connections to its servers, and all calls that a user can make.

::

    async with connect_pool(credentials, version="0.1.0", client="ada@laptop") as pool:
        view = await pool.view()
        async with await pool.allocate(request, wait_s=600, on_status=print) as hold:
            sessions = await hold.open_session("arrays", "train.py")
            reason = await hold.wait_lost()     # returns only when the lease ends early

``connect_pool`` returns once one server has welcomed the client. Connections to all other servers
that it learns of are made meanwhile, and made again when they fail. A ``LeaseHandle`` lives on
them: when the connection to a server of its lease is lost, so is the lease. All errors are those of
``pool.errors``. The module ``enrolment`` gets the credentials.
"""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import trio

from gpupool.pool.errors import GpupoolError, NoQuorumError, UnreachableError, UsageError
from gpupool.pool.model.ids import RequestId, ServerId
from gpupool.pool.model.state import Request, TokenKind
from gpupool.pool.ports import Clock, Randomness
from gpupool.remoting.client.all_servers import ALL_SERVERS
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.server_connections import (
    CALL_TIMEOUT_S,
    FIRST_TIMEOUT_S,
    Connections,
    ServerConnection,
)
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.token_text import SHORT_SIZE, format_token, hash_secret, new_token
from gpupool.remoting.transport.dial import Dial, Greeting, dial_tls
from gpupool.remoting.transport.system_clock import SystemClock, SystemRng

# What only some calls need is imported by these: a program's start waits for this module.
if TYPE_CHECKING:
    from gpupool.pool.history_query import HistoryQuery
    from gpupool.pool.record_query import RecordQuery
    from gpupool.pool.telemetry import Telemetry
    from gpupool.pool.view import PoolView
    from gpupool.remoting.client.check_answers import BandwidthAnswer, CheckAnswer
    from gpupool.remoting.client.history_answers import HistoryAnswer
    from gpupool.remoting.client.lease_handle import LeaseHandle
    from gpupool.remoting.client.negotiation_actions import NegotiationSettings
    from gpupool.remoting.client.subscription import PoolUpdate
    from gpupool.remoting.client.usage_query import UsageAnswer

BACKUP_TIMEOUT_S = 30.0  # the largest backup is tens of megabytes
LEADER_TIMEOUT_S = 1.0
ROTATE_TIMEOUT_S = 8.0  # the voters have some seconds to keep the next CA's key
POLICY_TIMEOUT_S = 6.0  # a large policy takes some commands
LOG = logging.getLogger("gpupool.client")

A = TypeVar("A", bound=m.Answer)


class Pool:
    """A connected client; made by ``connect_pool``."""

    def __init__(
        self,
        credentials: Credentials,
        connections: Connections,
        *,
        clock: Clock,
        rng: Randomness,
        settings: "NegotiationSettings | None",
    ) -> None:
        self.credentials = credentials
        self.connections = connections
        self._clock = clock
        self._rng = rng
        self._settings = settings

    # --- leases ----------------------------------------------------------------------------------

    def new_request_id(self) -> RequestId:
        """Return an id for a request."""
        return RequestId(self._rng.randbytes(16))

    def unknown_servers(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the ``names`` that no known server of the pool has."""
        members = self.connections.members.values()
        known = {name for member in members for name in (member.name, member.server)}
        return tuple(name for name in names if name not in known)

    async def allocate(
        self,
        request: Request,
        *,
        wait_s: float | None = None,
        on_status: Callable[[str], None] = lambda _text: None,
        on_choice: Callable[[tuple[str, ...]], None] = lambda _lines: None,
    ) -> "LeaseHandle":
        """Get a lease for ``request``.

        Args:
            request: the wanted GPUs.
            wait_s: how long to wait for free GPUs; 0 for one try, None for ever.
            on_status: called with the reason for waiting, whenever it changes.
            on_choice: called with a line for each server: why it was chosen, or was not.

        Raises:
            NotNowError: no GPU became free in time.
            NeverFitsError: nothing in the pool could ever satisfy it.
            DeniedError, AuthenticationError: the pool refuses it.
            NoQuorumError, UnreachableError: the pool cannot answer.
        """
        from gpupool.remoting.client.lease_handle import Allocator

        allocator = Allocator(
            self.connections,
            request,
            wait_s=wait_s,
            clock=self._clock,
            rng=self._rng,
            on_status=on_status,
            on_choice=on_choice,
            settings=self._settings,
        )
        return await allocator.run()

    # --- looking ---------------------------------------------------------------------------------

    async def view(self) -> "PoolView":
        """Return the view of a server in touch with a majority; if there is none, of another."""
        views: list[PoolView] = []
        failures: list[GpupoolError] = []
        for connection in self._some(3):
            try:
                answer = await connection.call(m.GetView(), timeout_s=CALL_TIMEOUT_S)
            except GpupoolError as error:
                failures.append(error)
                continue
            views.append(answer.view)
            if answer.view.raft.quorum:
                return await self._leaders(answer.view)
        if not views:
            raise failures[0] if failures else self.connections.failure()
        return max(views, key=lambda view: view.raft.applied_index)

    async def _leaders(self, view: "PoolView") -> "PoolView":
        """Return the leader's view, as the leader alone hears each voter; else ``view``."""
        for connection in list(self.connections.by_server.values()):
            if connection.name == view.raft.leader and connection.server != view.answered_by:
                with suppress(GpupoolError):
                    answer = await connection.call(m.GetView(), timeout_s=LEADER_TIMEOUT_S)
                    return answer.view if answer.view.raft.quorum else view
        return view

    async def telemetry(self) -> "dict[ServerId, Telemetry]":
        """Return the measurements of every server that answers."""
        self.connections.widen(ALL_SERVERS)
        found: dict[ServerId, Telemetry] = {}

        async def ask(connection: ServerConnection) -> None:
            try:
                answer = await connection.call(m.GetTelemetry(), timeout_s=CALL_TIMEOUT_S)
            except GpupoolError as error:
                LOG.debug("no telemetry of server %s: %s", connection.name, error)
            else:
                found[connection.server] = answer.telemetry

        async with trio.open_nursery() as nursery:
            for connection in list(self.connections.by_server.values()):
                nursery.start_soon(ask, connection)
        return found

    @asynccontextmanager
    async def subscribe(
        self, interval_s: float
    ) -> AsyncGenerator["trio.MemoryReceiveChannel[PoolUpdate]", None]:
        """Receive a ``PoolUpdate`` about every ``interval_s``, for as long as the block lasts.

        A reader that is late gets the latest one, never a backlog. Updates go on when no server
        answers any more: their age grows, and ``connected`` is empty.
        """
        self.connections.widen(ALL_SERVERS)
        from gpupool.remoting.client.subscription import PoolUpdate, Subscription

        subscription = Subscription(self.connections, interval_s, self._clock)
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[PoolUpdate](1)
            nursery.start_soon(subscription.run, send)
            try:
                yield receive
            finally:
                nursery.cancel_scope.cancel()

    # --- operating -------------------------------------------------------------------------------

    async def operate(self, order: "m.Order") -> str:
        """Give an order, and return its outcome as a sentence.

        Raises:
            DeniedError: when this user may not give it.
            UsageError: when it makes no sense.
        """
        order = order.numbered(os.urandom(m.ORDER_SIZE))
        answer = await self._call(order)
        return order.outcome(answer.note)

    async def create_token(
        self, kind: TokenKind, user: str, valid_s: float, *, uses: int = 1
    ) -> str:
        """Make a token, and return the text to paste. Its secret never leaves this client."""
        from gpupool.remoting.transport.authority.ca_bundle import newest_of
        from gpupool.remoting.transport.pki import fingerprint

        secret = self._rng.randbytes(SHORT_SIZE)
        ca_sha256 = fingerprint(newest_of(self.connections.ca_pem))
        text = new_token(kind, secret, ca_sha256, self._addresses_for_tokens())
        await self.operate(
            m.CreateToken(text.token, kind, user, hash_secret(secret), valid_s, uses)
        )
        return format_token(text)

    def welcome(self) -> m.Welcome:
        """Return how a server greeted this client.

        Raises:
            UnreachableError: no server is connected now.
        """
        for each in self.connections.by_server.values():
            return each.welcome
        raise UnreachableError("no server is connected")

    def expires_at(self) -> int:
        """Return when the token expires, in table time; 0 if that is not soon."""
        welcomes = [each.welcome for each in self.connections.by_server.values()]
        return max((each.expires_at for each in welcomes), default=0)

    async def rotate_ca(self, ca: bytes) -> str:
        """Exchange the CA with this SHA-256 for a new one, and return the outcome as a sentence.

        Raises:
            DeniedError: when two are trusted already, or this one does not sign.
        """
        return (await self._call(m.RotateCa(ca), timeout_s=ROTATE_TIMEOUT_S)).note

    async def list_tokens(self) -> "tuple[m.TokenView, ...]":
        """Return all tokens of the pool, without secrets."""
        return (await self._call(m.ListTokens())).tokens

    async def audit(self) -> "m.AuditNow":
        """Return the latest administrative acts, oldest first, everything done before included."""
        return await self._call(m.GetAudit())

    async def usage(self, query: "RecordQuery") -> "UsageAnswer":
        """Return the records of ended leases, of all servers together that answer in time."""
        from gpupool.remoting.client.usage_query import ask_usage

        return await ask_usage(self.connections, query)

    async def history(
        self, query: "HistoryQuery", servers: Sequence[ServerId] = ()
    ) -> "HistoryAnswer":
        """Return the history of these servers, or of all that answer in time, each separately."""
        from gpupool.remoting.client.history_answers import ask_history

        return await ask_history(self.connections, query, servers)

    async def run_checks(self) -> "CheckAnswer":
        """Test the links and idle GPUs of all servers that answer, now."""
        from gpupool.remoting.client.check_answers import ask_checks

        return await ask_checks(self.connections)

    async def measure_bandwidth(self) -> "BandwidthAnswer":
        """Measure the bandwidth between all servers that answer; operators only."""
        from gpupool.remoting.client.check_answers import ask_bandwidth

        return await ask_bandwidth(self.connections)

    def user(self) -> str:
        """Return the user of this client's token."""
        return next(iter(each.welcome.user for each in self.connections.by_server.values()), "")

    def is_operator(self) -> bool:
        """Return whether this client's token is an operator's."""
        return any(
            each.welcome.kind is TokenKind.OPERATOR for each in self.connections.by_server.values()
        )

    async def backup(self) -> bytes:
        """Return the content of a backup file: policy, tokens' hashes, labels, history, audit."""
        return (await self._call(m.GetBackup(), timeout_s=BACKUP_TIMEOUT_S)).data

    async def restore(self, file: bytes) -> str:
        """Restore a backup file into this pool, and return a user-readable summary of it.

        Raises:
            UsageError, DeniedError: it is damaged, or this pool is not one to restore into.
        """
        from gpupool.pool.transitions.backup import BackupError, from_file, pack

        try:
            from_file(file)
            parts = pack(file)
        except BackupError as error:
            raise UsageError("the backup cannot be restored", why=str(error)) from error
        upload = self._rng.randbytes(16)
        for number, part in enumerate(parts):
            await self._call(m.PutPart(upload, number, part))
        digest = sha256(b"".join(parts)).digest()
        message = m.RestoreBackup(upload, len(parts), digest)
        return (await self._call(message, timeout_s=BACKUP_TIMEOUT_S)).note

    async def policy(self, version: int = 0) -> "m.PolicyIs":
        """Return a version of the pool's policy; 0 stands for the one in force."""
        return await self._call(m.GetPolicy(version))

    async def policy_history(self) -> "tuple[m.PolicyIs, ...]":
        """Return the versions of the policy that are kept, without their texts."""
        return (await self._call(m.GetPolicyHistory())).versions

    async def put_policy(self, packed: bytes, base: int) -> int:
        """Put a policy in force in the place of version ``base``, and return its version.

        Raises:
            ConflictError: when another version has been put in force meanwhile.
            UsageError: when the document has mistakes.
        """
        answer = await self._call(m.PutPolicy(packed, base), timeout_s=POLICY_TIMEOUT_S)
        return int(answer.note)

    async def check_policy(
        self, user: str, request: Request | None, packed: bytes = b""
    ) -> "m.PolicyVerdict":
        """Return how the policy in force, or a draft, treats a user's request."""
        return await self._call(m.CheckPolicy(user, request, packed))

    # --- inside ----------------------------------------------------------------------------------

    def ca_pem(self) -> str:
        """Return the CAs for the credentials."""
        return self.connections.ca_pem.decode()

    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses of the pool for the credentials, voters first."""
        members = sorted(self.connections.members.values(), key=lambda each: not each.voter)
        known = [parse_address(member.address) for member in members]
        named = [parse_address(name) for member in members for name in member.names]
        return tuple(dict.fromkeys((*known, *named, *self.credentials.addresses)))[:64]

    def _addresses_for_tokens(self) -> tuple[Address, ...]:
        """Return the addresses of the pool, those first of which a token should name a few."""
        servers = self.connections.by_server
        members = self.connections.members.values()
        used = (each for each in members if each.voter and each.server in servers)
        first = [parse_address(member.address) for member in used]
        return tuple(dict.fromkeys((*first, *self.addresses())))

    def _some(self, count: int) -> list[ServerConnection]:
        connections = list(self.connections.by_server.values())
        if not connections:
            raise self.connections.failure()
        return connections[:count]

    async def _call(self, message: m.CallFor[A], timeout_s: float = CALL_TIMEOUT_S) -> A:
        """Make one call; try another server when one has no majority or is lost meanwhile.

        All these calls do the same thing when done twice, or carry the number of an order.
        """
        failures: list[GpupoolError] = []
        for connection in self._some(8):
            try:
                return await connection.call(message, timeout_s=timeout_s)
            except (NoQuorumError, UnreachableError) as error:
                failures.append(error)
        raise failures[0]


@asynccontextmanager
async def connect_pool(
    credentials: Credentials,
    servers: Sequence[Address] | None = None,
    *,
    version: str = "",
    client: str = "",
    dial: Dial = dial_tls,
    clock: Clock | None = None,
    rng: Randomness | None = None,
    settings: "NegotiationSettings | None" = None,
    timeout_s: float = FIRST_TIMEOUT_S,
    patience_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> AsyncGenerator[Pool, None]:
    """Connect to the pool of ``credentials``, at ``servers`` instead of its addresses if given.

    Where no server answers, it tries again for ``patience_s``, and says so by ``on_wait``.

    Raises:
        UnreachableError: no server answers.
        AuthenticationError: either side refuses the other.
    """
    rng = rng or SystemRng()
    if servers:
        credentials = credentials.at(tuple(servers))
    greeting = Greeting(credentials.token, credentials.secret, version, client)
    connections = Connections(credentials, greeting, dial=dial, rng=rng, log=LOG)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(connections.run)
        try:
            await connections.first(timeout_s, patience_s, on_wait)
            yield Pool(
                credentials,
                connections,
                clock=clock or SystemClock(),
                rng=rng,
                settings=settings,
            )
        except BaseException as error:  # noqa: BLE001 - raised again below
            # Outside the nursery, so that callers see what was raised and not a group of it.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
