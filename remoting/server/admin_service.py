"""The controller's calls that look at the pool or operate it: views, tokens, servers, joining.

Who may do what: everybody with a user's token sees the whole pool and ends their own leases;
operators do everything else. A server token lets one server join.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpupool.pool.errors import AuthenticationError, DeniedError, GpupoolError, UsageError
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import Milliseconds, ServerId, lease_name
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Token, TokenKind
from gpupool.pool.view import PoolView, Telemetry, build_view, visible
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.sessions import SessionHost
from gpupool.remoting.server import backup_service, policy_service
from gpupool.remoting.server.proposer import CLOCK_OFFSET_MAX_S
from gpupool.remoting.server.service_context import Client, ServiceContext
from gpupool.remoting.server.validation import check_request

UPDATE_EVERY_MIN_S = 0.2
UPDATE_EVERY_MAX_S = 60.0
TOKEN_VALID_MAX_S = 10 * 365 * 86400.0
SERVER_ID_LENGTH = 12
REASON_LENGTH_MAX = 200


class AdminService:
    """The counter at which people look and operate; ``controller`` keeps the connections."""

    def __init__(
        self,
        controller: ServiceContext,
        *,
        host: SessionHost,
        clock_offset_s: Callable[[], float],
        loop_lag_s: Callable[[], float],
        violations: Callable[[], tuple[str, ...]],
    ) -> None:
        self._controller = controller
        self._host = host
        self._clock_offset_s = clock_offset_s
        self._loop_lag_s = loop_lag_s
        self._violations = violations
        self._subscribers: dict[int, Client] = {}

    def closed(self, client: Client) -> None:
        """Forget a client that is gone."""
        self._subscribers.pop(client.connection, None)

    def wake_at(self) -> float:
        """Return when ``push_updates`` has to be called next."""
        if not self._subscribers:
            return float("inf")
        return min(client.update_at for client in self._subscribers.values())

    def handle(self, client: Client, call: int, message: m.Message) -> None:
        """Act on one call.

        Raises:
            GpupoolError: when it is refused.
        """
        controller = self._controller
        match message:
            case m.GetView():
                controller.answer(client, call, m.ViewNow(self.view()))
            case m.GetTelemetry():
                controller.answer(client, call, m.TelemetryNow(self.telemetry()))
            case m.Subscribe():
                self._subscribe(client, message.interval_s)
                controller.answer(client, call, m.Done())
            case m.GetAudit():
                self._audit(client, call)
            case m.GetPolicy():
                answer = policy_service.policy_is(controller.state, message.version)
                controller.answer(client, call, answer)
            case m.GetPolicyHistory():
                controller.answer(client, call, policy_service.history(controller.state))
            case m.CheckPolicy():
                if message.request is not None:
                    check_request(message.request)
                answer = policy_service.check_policy(controller, client, message)
                controller.answer(client, call, answer)
            case m.JoinPool():
                self._join(client, call, message)
            case m.EndLease():
                self._end_lease(client, call, message)
            case _:
                self._operate(client, call, message)

    # --- looking ---------------------------------------------------------------------------------

    def view(self) -> PoolView:
        """Return the pool as this server sees it."""
        controller = self._controller
        view = build_view(
            controller.state,
            controller.health(),
            controller.self_id,
            controller.clock.wall_ms(),
            self._violations(),
        )
        offset_s = self._clock_offset_s()
        if abs(offset_s) <= CLOCK_OFFSET_MAX_S:
            return view
        ahead = "behind" if offset_s > 0 else "ahead of"
        warning = (
            f"the clock of this server is {abs(offset_s):.0f} s {ahead} the leader's; "
            "set it with chrony or systemd-timesyncd"
        )
        return replace(view, warnings=(*view.warnings, warning))

    def telemetry(self) -> Telemetry:
        """Return what this server measures of itself."""
        gpus, sessions = self._host.telemetry()
        return Telemetry(
            server=self._controller.self_id,
            at=Milliseconds(self._controller.clock.wall_ms()),
            gpus=gpus,
            sessions=sessions,
            loop_lag_s=self._loop_lag_s(),
            counters={
                "connections": len(self._controller.clients()),
                "waiting": len(self._controller.wait_queue),
                "proposals": len(self._controller.proposals),
            },
        )

    def _audit(self, client: Client, call: int) -> None:
        """Answer once a command of ours is committed: whatever was done before is in then."""
        controller = self._controller

        def then(_result: Result) -> m.Message:
            former = controller.state.former
            acts = former.acts if former is not None else ()
            return m.AuditNow(controller.state.acts, controller.state.act_count, acts)

        controller.propose_for(client, call, commands.Tick(), then)

    def _subscribe(self, client: Client, interval_s: float) -> None:
        if interval_s == 0:
            self._subscribers.pop(client.connection, None)
            return
        if not interval_s > 0:
            raise UsageError("an interval is a positive number of seconds")
        client.update_every_s = min(max(interval_s, UPDATE_EVERY_MIN_S), UPDATE_EVERY_MAX_S)
        client.update_at = self._controller.clock.monotonic()
        self._subscribers[client.connection] = client

    def push_updates(self, now: float) -> None:
        """Send the updates that are due; all of one moment show the same."""
        due = [client for client in self._subscribers.values() if client.update_at <= now]
        if not due:
            return
        update = m.Update(self.view(), self.telemetry())
        for client in due:
            # A beat that was missed is not made up for.
            client.update_at = now + client.update_every_s
            self._controller.send(client.connection, 0, update)

    # --- operating -------------------------------------------------------------------------------

    def _operate(self, client: Client, call: int, message: m.Message) -> None:
        if client.kind is not TokenKind.OPERATOR:
            raise DeniedError(f"{client.user} may not do this", why="it takes an operator's token")
        self._check_token(client)
        controller = self._controller
        by = client.user
        match message:
            case m.ListTokens():
                now_ms = controller.clock.wall_ms()
                tokens = tuple(_token_view(t, now_ms) for t in controller.state.tokens.values())
                controller.answer(client, call, m.Tokens(tokens))
            case m.CreateToken():
                if not 0 < message.valid_s <= TOKEN_VALID_MAX_S:
                    raise UsageError("a token is valid for more than 0 s and at most 10 years")
                expires_at = controller.clock.wall_ms() + int(message.valid_s * 1000)
                command = commands.CreateToken(
                    token=message.token,
                    kind=message.kind,
                    user=message.user,
                    secret_hash=message.secret_hash,
                    expires_at=Milliseconds(expires_at),
                    by=by,
                )
                controller.propose_for(client, call, command, _done)
            case m.RevokeToken():
                command = commands.RevokeToken(message.token, by)
                controller.propose_for(client, call, command, _done)
            case m.PutPolicy():
                policy_service.put_policy(controller, client, call, message)
            case m.GetBackup():
                backup_service.get_backup(controller, client, call)
            case m.PutPart():
                backup_service.put_part(controller, client, call, message)
            case m.RestoreBackup():
                backup_service.restore(controller, client, call, message)
            case m.RemoveServer():
                self._do_to_server(
                    client, call, message.server, lambda s: commands.RemoveServer(s, by)
                )
            case m.DrainServer():
                reason = message.reason
                if reason and (len(reason) > REASON_LENGTH_MAX or not reason.isprintable()):
                    what = f"a reason is one line of at most {REASON_LENGTH_MAX} characters"
                    raise UsageError(what)
                order = message.order
                self._do_to_server(
                    client,
                    call,
                    message.server,
                    lambda s: commands.DrainServer(s, reason, by, order),
                )
            case m.LabelServer():
                labels, without, order = message.labels, message.without, message.order
                self._do_to_server(
                    client,
                    call,
                    message.server,
                    lambda s: commands.LabelServer(s, labels, without, by, order),
                )
            case _:
                raise UsageError(f"{type(message).__name__} is not for this server")

    def _check_token(self, client: Client) -> None:
        """Refuse an operator whose token has expired since the connection was opened.

        The table itself refuses grants for such a token, and connections of a revoked one are
        closed; neither is so for what operators do.
        """
        token = self._controller.state.tokens.get(client.token)
        why = (
            token.refusal(self._controller.clock.wall_ms()) if token else "it is not known any more"
        )
        if why:
            raise AuthenticationError("the token is refused", why=why, hint="ask for a new one")

    def _do_to_server(
        self, client: Client, call: int, name: str, command: Callable[[ServerId], Command]
    ) -> None:
        """Propose what is to be done to the server that has this name or id."""
        controller = self._controller

        def propose() -> None:
            server = controller.state.server_named(name)
            if server is None:
                raise UsageError(f"the pool has no server named {name[:64]}")
            controller.propose_for(client, call, command(server.id), _done)

        if ServerId(name) in controller.state.servers:
            propose()
        else:
            # Another server may have come, or have taken this name, that the table here lacks.
            controller.when_current(client, call, propose)

    def _end_lease(self, client: Client, call: int, message: m.EndLease) -> None:
        state = self._controller.state
        if message.lease not in state.leases and state.index < message.lease:
            # A lease's number is its place in the log, and this table has not got so far.
            act = partial(self._end_known_lease, client, call, message)
            self._controller.when_current(client, call, act)
        else:
            self._end_known_lease(client, call, message)

    def _end_known_lease(self, client: Client, call: int, message: m.EndLease) -> None:
        lease = self._controller.state.leases.get(message.lease)
        if lease is None:
            raise UsageError(f"the pool has no lease {lease_name(message.lease)}")
        operator = client.kind is TokenKind.OPERATOR
        if not operator and lease.user != client.user:
            raise DeniedError(f"lease {lease_name(lease.id)} belongs to {lease.user}")
        if operator:
            self._check_token(client)
        reason = visible(message.reason[:150]) or "ended by order"
        reason = f"{reason} (by {client.user})"
        command = commands.EndLease(message.lease, reason, client.user, operator)
        self._controller.propose_for(client, call, command, _done)

    # --- joining ---------------------------------------------------------------------------------

    def _join(self, client: Client, call: int, message: m.JoinPool) -> None:
        controller = self._controller
        if client.kind is not TokenKind.SERVER:
            raise DeniedError("joining takes a server token, not a user's")
        signer = controller.signer
        if signer is None:
            raise GpupoolError(
                "this server cannot admit others", why="it does not hold the CA's key"
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
            if not result.ok:
                raise AuthenticationError("the pool refuses this server", why=result.why)
            server = controller.state.servers.get(server_id)
            if server is None:
                raise AuthenticationError("this server was removed from the pool")
            return m.Joined(
                certificate_pem=certificate,
                ca_pem=controller.ca_pem,
                ca_key_pem=signer.key_pem() if server.voter else b"",
                voter=server.voter,
                members=controller.members(),
            )

        controller.propose_for(client, call, command, then)


def _done(result: Result) -> m.Message:
    if result.ok:
        return m.Done(result.why)
    if result.kind in ("never", "invalid"):
        raise UsageError(result.why)
    raise DeniedError("the pool refuses this", why=result.why)


def _token_view(token: Token, now_ms: int) -> m.TokenView:
    state = "valid"
    if token.revoked_at:
        state = "revoked"
    elif token.used_by is not None:
        state = "used"
    elif now_ms >= token.expires_at:
        state = "expired"
    return m.TokenView(
        token=token.id,
        kind=token.kind,
        user=token.user,
        created_at=token.created_at,
        expires_at=token.expires_at,
        created_by=token.created_by,
        state=state,
    )
