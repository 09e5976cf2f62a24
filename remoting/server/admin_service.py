"""Calls that query the past or operate the pool: records, tokens, servers, joining.

Every user sees the whole pool and ends their own leases; operators do everything else. A server
token lets one server join. ``rights`` checks the kind of token before a call comes here.
"""

import itertools
from dataclasses import replace
from functools import partial

from gpupool.pool.errors import (
    AuthenticationError,
    DeniedError,
    GpupoolError,
    NotNowError,
    UnknownNameError,
    UsageError,
)
from gpupool.pool.fair_access import UserBound
from gpupool.pool.history_query import EVERYBODY, HistoryPage, HistoryQuery
from gpupool.pool.model import commands
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, lease_name
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.state import Token, TokenKind
from gpupool.pool.record_query import (
    KEYS,
    BandwidthPage,
    BandwidthQuery,
    CheckPage,
    CheckQuery,
    ExporterPage,
    ExporterQuery,
    RecordPage,
)
from gpupool.pool.refused_orders import check_known_to_all, refusal_of
from gpupool.pool.transitions.authorities import fingerprint_of
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.server.actions import AskUsage
from gpupool.remoting.server.service_context import Client, Handler, ServiceContext, check_unexpired

VIEWERS_SINCE = 6
"""The version of the protocol from which clients know a viewer's token in a list."""
USAGE_COUNT_MAX, USAGE_BOUND, USAGE_TOTAL_MAX = 2, UserBound(user=8, token=6), 64
"""Questions that the exporter is asked at a time: of a connection, of a user or token, of all."""
SERVER_ID_LENGTH = 12
REPEATED_WITHIN_MS = 60_000
"""A client that lost its connection repeats an order at another server within less time."""


def as_seen_by(user: str, query: HistoryQuery) -> HistoryQuery:
    """Return a query restricted to a user's own records, and sums of classes."""
    of_classes = (query.of, query.metric, query.name) == ("sums", "class", EVERYBODY)
    return replace(query, user="" if of_classes else user)


class AdminService:
    """See the module."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._usage_numbers = itertools.count(1)
        self._usage: dict[int, tuple[Client, int]] = {}  # calls that the exporter is asked for

    def handlers(self) -> dict[type[m.Call], Handler]:
        """Return the handler of each call that is served here."""
        return {
            m.GetAudit: self._get_audit,
            m.GetUsage: self._get_usage,
            m.GetHistory: self._get_history,
            m.RunChecks: self._run_checks,
            m.MeasureBandwidth: self._measure_bandwidth,
            m.ListTokens: self._list_tokens,
            m.JoinPool: self._join,
            **dict.fromkeys(m.all_of(m.Order).values(), self._operate),
            **dict.fromkeys(m.all_of(m.LeaseOrder).values(), self._order_of_lease),
        }

    # --- looking ---------------------------------------------------------------------------------

    def _get_audit(self, client: Client, call: int, _message: m.GetAudit) -> None:
        """Answer once a command of ours is committed: every earlier act is in the table then."""
        context = self._context

        def then(_result: Result) -> m.Message:
            former = context.state.former
            acts = former.acts if former is not None else ()
            return m.AuditNow(context.state.acts, context.state.act_count, acts)

        context.propose_for(client, call, commands.Tick(), then)

    def _get_usage(self, client: Client, call: int, message: m.GetUsage) -> None:
        """Answer from the exporter; no majority is needed, and every server keeps the records."""
        query = message.query
        if query.by not in ("", *KEYS):
            raise UsageError(f"usage is not summed by {query.by[:64]}")
        if client.kind is not TokenKind.OPERATOR:
            query = replace(query, user=client.user)
        else:
            check_unexpired(self._context, client)
        self._ask_exporter(client, call, query)

    def _get_history(self, client: Client, call: int, message: m.GetHistory) -> None:
        """Answer from this server's measurements, through the exporter."""
        query = message.query
        if client.kind is not TokenKind.OPERATOR:
            query = as_seen_by(client.user, query)
        else:
            check_unexpired(self._context, client)
        self._ask_exporter(client, call, query)

    def _run_checks(self, client: Client, call: int, _message: m.RunChecks) -> None:
        check_unexpired(self._context, client)
        self._ask_exporter(client, call, CheckQuery())

    def _measure_bandwidth(self, client: Client, call: int, message: m.MeasureBandwidth) -> None:
        check_unexpired(self._context, client)
        others = self._context.state.servers.keys() - {self._context.me.id}
        if message.peer not in others:
            raise UsageError("the way to this server cannot be measured from here")
        self._ask_exporter(client, call, BandwidthQuery(message.peer))

    def _ask_exporter(self, client: Client, call: int, query: ExporterQuery) -> None:
        asking = [each for each, _ in self._usage.values()]
        has = USAGE_BOUND.reached(client.holder, (each.holder for each in asking))
        if not has and (of_connection := asking.count(client)) >= USAGE_COUNT_MAX:
            has = f"this connection of {client.user} has {of_connection}"
        if has:
            raise NotNowError(f"{has} questions about usage under way")
        if len(asking) >= USAGE_TOTAL_MAX:
            raise NotNowError("too many questions about usage are under way", hint="ask again soon")
        number = next(self._usage_numbers)
        self._usage[number] = client, call
        self._context.actions.append(AskUsage(number, query))

    def usage_answered(self, number: int, result: ExporterPage | GpupoolError) -> None:
        """Answer the call for which the exporter was asked."""
        client, call = self._usage.pop(number)
        match result:
            case RecordPage():
                self._context.answer(client, call, m.UsageIs(result))
            case CheckPage():
                self._context.answer(client, call, m.ChecksDone(result.findings))
            case BandwidthPage():
                self._context.answer(client, call, m.BandwidthIs(result.there, result.back))
            case HistoryPage():
                self._context.answer(client, call, m.HistoryIs(result))
            case GpupoolError():
                self._context.answer(client, call, m.refused(result))

    # --- operating -------------------------------------------------------------------------------

    def _list_tokens(self, client: Client, call: int, _message: m.ListTokens) -> None:
        now_ms, state = self._context.now_ms(), self._context.state
        if client.protocol < VIEWERS_SINCE and any(
            each.kind is TokenKind.VIEWER for each in state.tokens.values()
        ):
            what = "the pool has tokens for viewers, which this machine's gpupool does not know"
            raise UsageError(what, hint="update gpupool on this machine")
        tokens = tuple(_token_view(each, now_ms) for each in state.tokens.values())
        self._context.answer(client, call, m.Tokens(tokens))

    def _operate(self, client: Client, call: int, order: m.Order) -> None:
        """Propose the command of an order, on the server that it names."""
        order.check()
        name = order.named_server()
        if name is None:
            self._propose_order(client, call, order, None)
            return
        state = self._context.state
        if ServerId(name) in state.servers:
            self._propose_order(client, call, order, ServerId(name))
            return

        def propose() -> None:
            server = self._context.state.server_named(name)
            if server is None and isinstance(order, m.RemoveServer) and self._removed(name):
                self._context.answer(client, call, m.Done())
                return
            if server is None:
                names = ", ".join(
                    sorted(each.name for each in self._context.state.servers.values())
                )
                hint = f"it has {names}"[:300]
                raise UnknownNameError(f"the pool has no server named {name[:64]}", hint=hint)
            self._propose_order(client, call, order, server.id)

        # Another server may have come, or have taken this name, that the table here lacks.
        self._context.when_current(client, call, propose)

    def _removed(self, name: str) -> bool:
        """Tell whether a server of this name was removed just now: by an earlier attempt, often."""
        state = self._context.state
        since = self._context.now_ms() - REPEATED_WITHIN_MS
        return any(
            act.kind == "server-removed" and name in (act.subject, act.text) and act.at >= since
            for act in reversed(state.acts)
        )

    def _propose_order(
        self, client: Client, call: int, order: m.Order, server: ServerId | None
    ) -> None:
        named = order.named_gpu()
        gpu = self._gpu_named(server, named) if named is not None else None
        issue = self._issue(client, server, gpu)
        self._context.propose_for(client, call, order.command(issue), _done)
        if isinstance(order, m.RevokeToken) and order.token == client.token:
            client.ends_itself = call

    def _issue(self, client: Client, server: ServerId | None, gpu: GpuId | None) -> m.Issue:
        return m.Issue(
            by=client.user,
            operator=client.kind is TokenKind.OPERATOR,
            at=self._context.now_ms(),
            server=server,
            gpu=gpu,
            era=self._context.state.era,
            target=self._context.table_clock.target_ms(),
            clocks_missing=self._context.table_clock.clocks_missing(),
        )

    def _gpu_named(self, server: ServerId | None, name: str) -> GpuId:
        """Return the GPU of a server with this id or index; one that is there before one that was.

        Raises:
            UsageError: when it has none such.
        """
        known = self._context.state.servers.get(server) if server is not None else None
        if known is not None:
            if GpuId(name) in known.gpus or GpuId(name) in known.gpu_orders:
                return GpuId(name)
            named = [gpu for gpu in known.gpus.values() if str(gpu.index) == name]
            if named:
                return min(named, key=lambda gpu: bool(gpu.fault)).id
        where = known.name if known is not None else "the pool"
        raise UsageError(
            f"{where} has no GPU {name[:64]}", hint='"gpupool gpus" shows the GPUs by number and id'
        )

    def _order_of_lease(self, client: Client, call: int, order: m.Order) -> None:
        state, named = self._context.state, order.named_lease()
        assert named is not None, "such orders name a lease"
        if named not in state.leases and state.index < named:
            # A lease's number is its place in the log, and this table has not got so far.
            act = partial(self._order_of_known_lease, client, call, order, named)
            self._context.when_current(client, call, act)
        else:
            self._order_of_known_lease(client, call, order, named)

    def _order_of_known_lease(
        self, client: Client, call: int, message: m.Order, named: LeaseId
    ) -> None:
        lease = self._context.state.leases.get(named)
        if lease is None:
            what = f"the pool has no lease {lease_name(named)}"
            raise UnknownNameError(what, hint='"gpupool leases" shows those that it has')
        operator = client.kind is TokenKind.OPERATOR
        if not operator and lease.user != client.user:
            raise DeniedError(f"lease {lease_name(lease.id)} belongs to {lease.user}")
        if operator:
            check_unexpired(self._context, client)
        message.check()
        context, before = self._context, lease
        command = message.command(self._issue(client, None, None))

        def done(result: Result) -> m.Message:
            if result.ok:
                return m.Done(result.why)
            now = context.state.leases.get(named, before)
            raise refusal_of(command, now, result, context.state)

        check_known_to_all(context.state, command)
        context.propose_for(client, call, command, done)

    # --- joining ---------------------------------------------------------------------------------

    def _join(self, client: Client, call: int, message: m.JoinPool) -> None:
        context = self._context
        signer = context.authorities.signer()
        if signer is None:
            raise GpupoolError(
                "this server cannot admit others",
                why="it does not hold the CA's key",
                hint='"gpupool ca status" lists the servers that have it: join at one; if no '
                'server has it, "gpupool ca rotate" and then "gpupool ca retire" make another one',
            )
        server_id = message.server
        if len(server_id) != SERVER_ID_LENGTH or not set(server_id) <= set("0123456789abcdef"):
            raise UsageError("a server id is 12 lowercase hex digits")
        parse_address(message.address)
        # Signed before it is proposed, so that a malformed request spends no token.
        certificate = signer.sign(server_id, message.csr_pem)
        command = commands.JoinServer(
            server=server_id,
            name=message.name,
            address=message.address,
            witness=message.witness,
            token=client.token,
        )

        def then(result: Result) -> m.Message:
            known = context.state.server_named(message.name)
            if result.kind == RefusalKind.CONFLICT and known is not None and known.id != server_id:
                hint = 'choose another --name, or first "gpupool leave NAME" if that one is gone'
                raise UsageError("the pool refuses this server", why=result.why, hint=hint)
            if not result.ok:
                raise AuthenticationError("the pool refuses this server", why=result.why)
            server = context.state.servers.get(server_id)
            if server is None:
                raise AuthenticationError("this server was removed from the pool")
            trusted = [fingerprint_of(each) for each in context.state.authorities]
            if trusted and signer.ca_sha256() not in trusted:
                # Its certificate would be refused by all. The token is good for the next attempt.
                raise NotNowError("the pool's CA was exchanged meanwhile", hint="try again")
            return m.Joined(
                certificate_pem=certificate,
                ca_pem=signer.ca_pem(),
                ca_key_pem=b"",  # a voter asks for it over a link, for its vault alone
                voter=server.voter,
                members=context.members(),
            )

        context.propose_for(client, call, command, then)


def _done(result: Result) -> m.Message:
    if result.ok:
        return m.Done(result.why)
    if result.kind in (RefusalKind.NEVER, RefusalKind.INVALID):
        raise UsageError(result.why)
    raise DeniedError("the pool refuses this", why=result.why)


def _token_view(token: Token, now_ms: int) -> m.TokenView:
    state = m.TokenState.VALID
    if token.revoked_at:
        state = m.TokenState.REVOKED
    elif token.is_spent:
        state = m.TokenState.USED
    elif now_ms >= token.expires_at:
        state = m.TokenState.EXPIRED
    return m.TokenView(
        token=token.id,
        kind=token.kind,
        user=token.user,
        created_at=token.created_at,
        expires_at=token.expires_at,
        created_by=token.created_by,
        state=state.value,
        uses=token.uses,
        used=len(token.admitted),
    )
