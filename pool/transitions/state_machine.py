"""``apply(state, index, envelope)``: the one function that changes the table.

Total and deterministic: it reads no clock, draws no chance, does no I/O, and turns whatever it is
given into a new state and a result. A refusal is a result, never an exception. Servers and tokens
are handled here, leases in ``leases``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.commands import (
    ApplyPolicy,
    CancelRequest,
    Command,
    CreatePool,
    CreateToken,
    DrainServer,
    EndLease,
    Envelope,
    FreeLease,
    GiveNotice,
    Grant,
    JoinServer,
    LabelServer,
    NoteIdle,
    RemoveServer,
    ReportGpus,
    RestoreBackup,
    RevokeToken,
    ServerContact,
    ServerUp,
    StagePart,
    Tick,
    Wait,
    unwrap,
)
from gpupool.pool.model.copies import with_changes
from gpupool.pool.model.ids import GpuId, Milliseconds, Plain, ServerId, lease_name
from gpupool.pool.model.results import Result, refuse
from gpupool.pool.model.state import (
    SERVER_COUNT_MAX,
    TOKEN_COUNT_MAX,
    VOTER_COUNT_MAX,
    Act,
    Gpu,
    PoolState,
    Server,
    ServerStatus,
    Token,
    TokenKind,
)
from gpupool.pool.policy import notices
from gpupool.pool.transitions import leases, operator_orders, policy_versions, uploads
from gpupool.pool.transitions.audit import acts_since, record
from gpupool.pool.transitions.backup import restore_backup
from gpupool.pool.transitions.duplicate_gpus import UNSETTLED, settle_clashes
from gpupool.pool.transitions.labels import label_server, labels_at_start

NAME_LENGTH_MAX = 64
GPU_COUNT_MAX = 64
"""Per server: eight cards of seven MIG instances, and some; more would not fit into a command."""

Step = tuple[PoolState, Result]


def apply(state: PoolState, index: int, envelope: Envelope) -> Step:
    """Return the state after ``envelope``, committed at ``index``, and its result."""
    # Time never goes back along the log, whatever a proposer's clock said.
    now = Milliseconds(max(state.now, envelope.at))
    state = with_changes(state, index=index, now=now)
    state = uploads.lapse_staged(leases.lapse_waiting(state))
    if envelope.expires and now > envelope.expires:
        return state, refuse("expired", "the command arrived after its deadline")
    command = envelope.command
    return HANDLERS[type(command)](state, command)


def create_pool(state: PoolState, command: CreatePool) -> Step:
    """Name the pool; once."""
    if state.cluster_id:
        return state, refuse("conflict", "the pool exists already")
    state = with_changes(
        state,
        cluster_id=command.cluster_id,
        name=command.name,
        data_encryption=command.data_encryption,
    )
    state = record(state, "pool-created", by="", subject=command.name)
    return leases.note(state, "pool-created", command.name, "pool created"), Result(ok=True)


def join_server(state: PoolState, command: JoinServer) -> Step:
    """Admit a server, spending its token."""
    known = state.servers.get(command.server)
    if known is not None:
        # The answer to the first one was lost. Only the token that let it in names it again.
        token = state.tokens.get(command.token) if command.token else None
        is_same = token is not None and token.used_by == known.id
        # Once it has come up it had the answer, and the token is good for no other certificate.
        if is_same and known.status is ServerStatus.JOINED:
            return state, Result(ok=True)
        return state, refuse("conflict", f"the pool has server {known.id} already")
    if command.server in state.removed:
        return state, refuse("denied", "this server was removed from the pool for good")
    if why := _join_refusal(state, command):
        return state, why
    voter = len(state.voters()) < VOTER_COUNT_MAX
    server = Server(
        id=command.server,
        name=command.name,
        address=command.address,
        voter=voter,
        witness=command.witness,
        labels=state.labels_awaited.get(command.name, {}),
        joined_at=state.now,
        changed_at=state.now,
    )
    awaited = {k: v for k, v in state.labels_awaited.items() if k != command.name}
    tokens, by, how = state.tokens, "", f"{server.id} at {server.address}"
    if command.token is not None:
        token = replace(tokens[command.token], used_by=command.server)
        tokens = tokens | {token.id: token}
        by, how = token.created_by, f"{how}, with token {token.id}"
    servers = state.servers | {server.id: server}
    state = with_changes(state, servers=servers, tokens=tokens, labels_awaited=awaited)
    state = record(state, "server-joined", by=by, subject=server.name, text=how)
    return leases.note(state, "joined", server.name, f"joined from {server.address}"), Result(
        ok=True
    )


def _join_refusal(state: PoolState, command: JoinServer) -> Result | None:
    if not 0 < len(command.name) <= NAME_LENGTH_MAX:
        return refuse("denied", f"a server's name has 1 to {NAME_LENGTH_MAX} characters")
    if state.server_named(command.name) is not None:
        return refuse("conflict", f"the pool has a server named {command.name} already")
    if len(state.servers) >= SERVER_COUNT_MAX:
        return refuse("denied", f"the pool has {SERVER_COUNT_MAX} servers, the most it can have")
    if command.token is None:
        return refuse("denied", "a server token is needed") if state.servers else None
    token = state.tokens.get(command.token)
    if token is None or token.kind is not TokenKind.SERVER:
        return refuse("denied", "this is no server token of this pool")
    if token.used_by is not None:
        return refuse("denied", f"token {token.id} has been used; each lets one server in")
    why = token.refusal(state.now)
    return refuse("denied", why) if why else None


def server_up(state: PoolState, command: ServerUp) -> Step:
    """Take a server's inventory; a new incarnation has killed all workers of the former ones."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse("denied", "this server is not a member of the pool")
    if command.incarnation < server.incarnation:
        return state, refuse("conflict", "a later incarnation of this server is known")
    if len(command.gpus) > GPU_COUNT_MAX:
        return state, refuse("denied", f"a server has at most {GPU_COUNT_MAX} GPUs")
    restarted = command.incarnation > server.incarnation
    if restarted:
        state = leases.free_all_of(state, server.id, f"server {server.name} restarted")
        server = state.servers[server.id]
    gpus: dict[GpuId, Gpu] = {}
    for gpu in command.gpus:
        known = server.gpus.get(gpu.id)
        granted = known.memory_granted if known else 0
        if known is not None and granted > gpu.capacity:
            # A device that shrinks below what is granted of it keeps its size until that is over.
            sizes = known.memory_total, known.memory_reserved
            gpu = with_changes(gpu, memory_total=sizes[0], memory_reserved=sizes[1])
        # Whose a GPU is that several servers offer is settled below: who had it keeps it.
        clash = known.clash if known else UNSETTLED
        gpus[gpu.id] = with_changes(gpu, memory_granted=granted, clash=clash)
    for gpu in server.gpus.values():
        # A device that fell off the bus stays in the table until its leases are over.
        if gpu.id not in gpus and gpu.memory_granted:
            gpus[gpu.id] = with_changes(gpu, fault="no longer present")
    server = with_changes(
        server,
        incarnation=command.incarnation,
        status=ServerStatus.UP,
        address=command.address,
        version=command.version,
        driver_version=command.driver_version,
        cuda_version=command.cuda_version,
        gpus=gpus,
        labels=labels_at_start(server, command.labels),
        labels_said=command.labels,
        link_speed=max(0, command.link_speed),
        rdma=command.rdma,
        changed_at=state.now,
    )
    state = settle_clashes(with_changes(state, servers=state.servers | {server.id: server}))
    if restarted:
        state = leases.note(state, "up", server.name, f"up with {len(gpus)} GPUs")
    return state, Result(ok=True)


def server_contact(state: PoolState, command: ServerContact) -> Step:
    """Note that the leader lost or regained a server; the same incarnation resumes."""
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse("conflict", "not the current incarnation")
    before = ServerStatus.UNREACHABLE if command.reachable else ServerStatus.UP
    after = ServerStatus.UP if command.reachable else ServerStatus.UNREACHABLE
    if server.status is not before:
        return state, Result(ok=True)
    server = with_changes(server, status=after, changed_at=state.now)
    servers = state.servers | {server.id: server}
    if command.reachable:
        state = with_changes(state, servers=servers)
        return leases.note(state, "reachable", server.name, "in contact again"), Result(ok=True)
    text = "no contact; its leases stay charged"
    heir = _heir(servers) if server.voter else None
    if heir is not None and heir.status is ServerStatus.UP:
        # Whoever is away counts for the majority, and cannot answer. It comes back as a follower.
        servers[server.id] = with_changes(server, voter=False)
        servers[heir.id] = with_changes(heir, voter=True)
        text += f"; {heir.name} votes in its place"
    state = with_changes(state, servers=servers)
    return leases.note(state, "unreachable", server.name, text), Result(ok=True)


def _heir(servers: dict[ServerId, Server]) -> Server | None:
    """Return the server that gets the next vote: the first follower, one that is up if any is."""
    followers = [server for server in servers.values() if not server.voter]
    up = [server for server in followers if server.status is ServerStatus.UP]
    return next(iter(up or followers), None)


def remove_server(state: PoolState, command: RemoveServer) -> Step:
    """Take a server out for good; the next follower becomes a voter in its place."""
    server = state.servers.get(command.server)
    if server is None:
        return state, Result(ok=True)
    if len(state.servers) == 1:
        return state, refuse("denied", "it is the last server of the pool")
    state = leases.free_all_of(state, server.id, f"server {server.name} left the pool")
    servers = {key: each for key, each in state.servers.items() if key != server.id}
    if server.voter:
        heir = _heir(servers)
        if heir is not None:
            servers[heir.id] = with_changes(heir, voter=True)
    state = with_changes(state, servers=servers, removed=state.removed | {server.id: state.now})
    state = settle_clashes(state)
    by = f" (by {command.by})" if command.by else ""
    state = record(state, "server-removed", by=command.by, subject=server.name, text=server.id)
    return leases.note(state, "left", server.name, f"left the pool{by}"), Result(ok=True)


def report_gpus(state: PoolState, command: ReportGpus) -> Step:
    """Take a server's readings of foreign memory and faults."""
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse("conflict", "not the current incarnation")
    gpus = dict(server.gpus)
    for gpu_id, reading in command.readings.items():
        gpu = gpus.get(gpu_id)
        if gpu is None:
            continue
        if reading.fault and not gpu.fault:
            state = leases.note(
                state, "gpu-fault", f"{server.name}/{gpu.index}", reading.fault[:200]
            )
        gpus[gpu_id] = replace(
            gpu, memory_foreign=max(0, reading.memory_foreign), fault=reading.fault[:200]
        )
    server = with_changes(server, gpus=gpus)
    return with_changes(state, servers=state.servers | {server.id: server}), Result(ok=True)


def drain_server(state: PoolState, command: DrainServer) -> Step:
    """Stop or resume granting on a server; running leases go on."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse("never", "no such server")
    if (settled := operator_orders.check_order(server, command.order)) is not None:
        return state, settled
    was = server.drain_reason
    if was != command.reason:
        kind = "undrained" if command.reason is None else "drained"
        text = command.reason or ""
        state = record(state, kind, by=command.by, subject=server.name, text=text)
    server = with_changes(
        server,
        drain_reason=command.reason,
        changed_at=state.now,
        orders=operator_orders.remembered(server, command.order),
    )
    state = with_changes(state, servers=state.servers | {server.id: server})
    if was == command.reason:
        return state, Result(ok=True, why=f"it was {'not ' if was is None else ''}drained")
    if command.reason is None:
        return leases.note(state, "undrained", server.name, f"by {command.by}"), Result(ok=True)
    text = f"{command.reason[:200]} (by {command.by})"
    return leases.note(state, "drained", server.name, text), Result(ok=True)


def create_token(state: PoolState, command: CreateToken) -> Step:
    """Register a token."""
    if command.token in state.tokens:
        same = state.tokens[command.token].secret_hash == command.secret_hash
        return state, Result(ok=True) if same else refuse("conflict", "this token id is taken")
    if len(state.tokens) >= TOKEN_COUNT_MAX:
        return state, refuse("denied", f"the pool has {TOKEN_COUNT_MAX} tokens, the most it can")
    if not 0 < len(command.user) <= NAME_LENGTH_MAX or len(command.secret_hash) != 32:
        return state, refuse("denied", "a token needs a user name and a SHA-256 of its secret")
    token = Token(
        id=command.token,
        kind=command.kind,
        user=command.user,
        secret_hash=command.secret_hash,
        created_at=state.now,
        expires_at=command.expires_at,
        created_by=command.by,
    )
    state = with_changes(state, tokens=state.tokens | {token.id: token})
    text = f"{token.kind.value} token {token.id} created by {command.by or 'the pool'}"
    hours = max(0, token.expires_at - state.now) // 3_600_000
    what = f"{token.kind.value} token for {token.user}, good for {hours} h"
    state = record(state, "token-created", by=command.by, subject=token.id, text=what)
    return leases.note(state, "token-created", token.user, text), Result(ok=True)


def revoke_token(state: PoolState, command: RevokeToken) -> Step:
    """Refuse a token from now on, and end what it holds."""
    token = state.tokens.get(command.token)
    if token is None:
        return state, refuse("never", f"the pool has no token {command.token}")
    if token.revoked_at:
        return state, Result(ok=True)
    token = replace(token, revoked_at=state.now)
    state = with_changes(state, tokens=state.tokens | {token.id: token})
    for lease in list(state.leases.values()):
        if lease.token == token.id and lease.held:
            state = leases.end(state, lease.id, f"token {token.id} was revoked")
    text = f"token {token.id} revoked by {command.by}"
    what = f"{token.kind.value} token of {token.user}"
    state = record(state, "token-revoked", by=command.by, subject=token.id, text=what)
    return leases.note(state, "token-revoked", token.user, text), Result(ok=True)


def apply_policy(state: PoolState, command: ApplyPolicy) -> Step:
    """Put a policy in force, for everything that is granted from now on."""
    before = state.policy.version
    state, result = policy_versions.apply_policy(state, command)
    if state.policy.version != before:
        text = f"version {state.policy.version} applied by {command.by}"
        version = f"version {state.policy.version}"
        state = record(state, "policy-applied", by=command.by, subject=version)
        state = leases.note(state, "policy-applied", state.name, text)
    return state, result


def give_notice(state: PoolState, command: GiveNotice) -> Step:
    """Set an end to a lease that the policy allows no more."""
    state, result = notices.give_notice(state, command)
    if result.ok:
        name = lease_name(command.lease)
        text = notices.notice_text(state.leases[command.lease])
        state = leases.note(state, "notice", name, text)
    return state, result


def tick(state: PoolState, command: Tick) -> Step:
    """Do nothing: ``apply`` itself has advanced the time."""
    return state, Result(ok=True)


HANDLERS: dict[type[Command], Callable[[PoolState, Any], Step]] = {
    CreatePool: create_pool,
    JoinServer: join_server,
    ServerUp: server_up,
    ServerContact: server_contact,
    RemoveServer: remove_server,
    ReportGpus: report_gpus,
    DrainServer: drain_server,
    LabelServer: label_server,
    Grant: leases.grant,
    CancelRequest: leases.cancel_request,
    EndLease: leases.end_lease,
    NoteIdle: leases.note_idle,
    FreeLease: leases.free_lease,
    Wait: leases.wait,
    CreateToken: create_token,
    RevokeToken: revoke_token,
    StagePart: uploads.stage_part,
    ApplyPolicy: apply_policy,
    RestoreBackup: restore_backup,
    GiveNotice: give_notice,
    Tick: tick,
}


@dataclass(slots=True)
class PoolMachine:
    """The state machine that consensus replicates: ``ports.StateMachine`` over ``apply``.

    ``on_apply`` is called after each change of ``state``, on the thread that changed it. A reader
    on any thread takes ``state`` once and holds one consistent picture. ``on_acts`` is told of
    every administrative act that it has not been told of, on that thread too, in order.
    """

    state: PoolState
    on_apply: Callable[[], None] | None = None
    on_acts: Callable[[tuple[Act, ...]], None] | None = None
    _told: int = 0

    def apply(self, index: int, command: Plain) -> Plain:
        """Apply one committed envelope; an undecodable one is a refusal on every server alike."""
        try:
            envelope = unwrap(command)
        except CodecError as error:
            self.state = with_changes(self.state, index=index)
            result = refuse("invalid", str(error))
        else:
            self.state, result = apply(self.state, index, envelope)
        self._tell()
        return encode(result)

    def snapshot(self) -> Plain:
        """Return the whole table as plain values."""
        return encode(self.state)

    def restore(self, snapshot: Plain) -> None:
        """Replace the table. Raises ``CodecError`` when the snapshot is not one of ours."""
        self.state = decode(PoolState, snapshot)
        self._tell()

    def _tell(self) -> None:
        if self.state.act_count != self._told:
            if self.on_acts is not None:
                self.on_acts(acts_since(self.state, self._told))
            self._told = self.state.act_count
        if self.on_apply is not None:
            self.on_apply()
