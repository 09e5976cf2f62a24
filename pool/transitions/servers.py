"""Servers in the table: joining, coming up, losing contact, leaving, and operators' orders.

A server that joins is known; one that came up with its inventory grants GPUs; one that the leader
lost contact with keeps its leases charged until it is back, restarts or is removed for good.

One physical GPU is offered by one server only, even when several servers show it.

An operator's order is repeated, by its client and by servers, until somebody has an answer. A
repetition may be committed seconds later, behind an order that undid the first. So a server's entry
remembers the numbers of the latest orders, and each order is carried out once.
"""

from dataclasses import replace

from gpupool.pool.model.commands import (
    DrainServer,
    JoinServer,
    LabelServer,
    RemoveServer,
    ReportGpus,
    ServerContact,
    ServerUp,
    wrap,
)
from gpupool.pool.model.ids import GpuId, Plain, ServerId
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    NAME_LENGTH_MAX,
    SERVER_COUNT_MAX,
    VOTER_COUNT_MAX,
    Gpu,
    PoolState,
    Server,
    ServerStatus,
    TokenKind,
    with_changes,
)
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.scheduling.filters import LABEL_COUNT_MAX, label_refusal
from gpupool.pool.transitions import leases
from gpupool.pool.transitions.kept_records import begin_accounts, emit_event, record

GPU_COUNT_MAX = 64
"""Per server: eight cards of seven MIG instances, and some; more would not fit into a command."""

ORDER_SIZE = 16
ORDER_COUNT_MAX = 16
"""Orders that a server's entry remembers. A repetition comes within seconds."""

RECOVERY = "gpupool recover"
"""The author of the removals of servers that are lost for good."""

UNSETTLED = "not settled yet"
"""The clash of a GPU that its server has not shown before; ``settle_clashes`` decides."""


# --- membership -----------------------------------------------------------------------------------


def join_server(state: PoolState, command: JoinServer) -> Step:
    """Admit a server, spending its token."""
    known = state.servers.get(command.server)
    if known is not None:
        # The answer to the first command was lost. Only the token that it used names it again.
        token = state.tokens.get(command.token) if command.token else None
        is_same = token is not None and token.has_admitted(known.id)
        # A server that has come up had the answer, and the token buys no second certificate.
        if is_same and known.status is ServerStatus.JOINED:
            return state, Result(ok=True)
        return state, refuse(RefusalKind.CONFLICT, f"the pool has server {known.id} already")
    if command.server in state.removed:
        return state, refuse(RefusalKind.DENIED, "this server was removed from the pool for good")
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
        token = tokens[command.token].spent_on(command.server)
        tokens = tokens | {token.id: token}
        by, how = token.created_by, f"{how}, with token {token.id}"
    servers = state.servers.set(server.id, server)
    state = with_changes(state, servers=servers, tokens=tokens, labels_awaited=awaited)
    state = record(state, "server-joined", by=by, subject=server.name, text=how)
    state = emit_event(state, "joined", server.name, f"joined from {server.address}")
    return state, Result(ok=True)


def _join_refusal(state: PoolState, command: JoinServer) -> Result | None:
    if not 0 < len(command.name) <= NAME_LENGTH_MAX:
        return refuse(RefusalKind.DENIED, f"a server's name has 1 to {NAME_LENGTH_MAX} characters")
    if state.server_named(command.name) is not None:
        return refuse(RefusalKind.CONFLICT, f"the pool has a server named {command.name} already")
    if len(state.servers) >= SERVER_COUNT_MAX:
        return refuse(
            RefusalKind.DENIED, f"the pool has {SERVER_COUNT_MAX} servers, the most it can have"
        )
    if command.token is None:
        return refuse(RefusalKind.DENIED, "a server token is needed") if state.servers else None
    token = state.tokens.get(command.token)
    if token is None or token.kind is not TokenKind.SERVER:
        return refuse(RefusalKind.DENIED, "this is no server token of this pool")
    if token.is_spent:
        lets = "each lets one server in" if token.uses == 1 else f"it let {token.uses} servers in"
        text = f"token {token.id} has been used; {lets}"
        return refuse(RefusalKind.DENIED, f"{text}; `gpupool token create --server` makes another")
    why = token.refusal(state.now)
    return refuse(RefusalKind.DENIED, why) if why else None


def remove_server(state: PoolState, command: RemoveServer) -> Step:
    """Take a server out for good; the next follower becomes a voter in its place.

    It is in ``removed`` at once, and in ``servers`` until its last part is freed.
    """
    server = state.servers.get(command.server)
    if server is None:
        return state, Result(ok=True)
    is_first = server.id not in state.removed
    if is_first and (refusal := _removal_refusal(state, server, command.by)):
        return state, refusal
    reason = f"server {server.name} left the pool"
    state, is_left = leases.free_parts_at(state, server.id, reason)
    if is_first:
        state = with_changes(state, removed=state.removed | {server.id: state.now})
        state = with_changes(state, servers=_without_vote(state, server.id))
    if not is_left:
        state = settle_clashes(_without(state, server.id))
    if not is_first:
        return state, Result(ok=True)
    by = f" (by {command.by})" if command.by else ""
    state = record(state, "server-removed", by=command.by, subject=server.name, text=server.id)
    return emit_event(state, "left", server.name, f"left the pool{by}"), Result(ok=True)


def _removal_refusal(state: PoolState, server: Server, by: str) -> Result | None:
    """Return why a server may not leave: nobody else has the pool's secrets yet."""
    others = [s for s in state.servers.values() if s is not server and s.id not in state.removed]
    if not others:
        return refuse(RefusalKind.DENIED, "it is the last server of the pool")
    was_up = server.status is not ServerStatus.JOINED
    if was_up and by != RECOVERY and all(s.status is ServerStatus.JOINED for s in others):
        why = "no other server of the pool has come up yet; remove this one when one has"
        return refuse(RefusalKind.BUSY, why)
    if server.has_keys and by != RECOVERY and not any(s.has_keys for s in others):
        why = "no other server has the key of the pool's CA yet; remove this one when one has"
        return refuse(RefusalKind.BUSY, why)
    return None


def _without_vote(state: PoolState, leaving: ServerId) -> PersistentMap[ServerId, Server]:
    """Return the servers with the vote of one that leaves given to the next follower."""
    server = state.servers[leaving]
    servers = state.servers.set(leaving, with_changes(server, voter=False, freeing=True))
    successor = _successor(state) if server.voter else None
    if successor is None:
        return servers
    return servers.set(successor.id, with_changes(successor, voter=True))


def _without(state: PoolState, leaving: ServerId) -> PoolState:
    """Return the table without a server; the version that it agreed on stays in any case."""
    agreed, servers = state.formats(), state.servers.without(leaving)
    state = with_changes(state, servers=servers)
    if state.formats() < agreed and all(s.status is ServerStatus.JOINED for s in servers.values()):
        for each in servers.values():
            servers = servers.set(each.id, with_changes(each, formats=agreed))
        state = with_changes(state, servers=servers)
    return state


def removals_of_others(state: PoolState, survivor: ServerId, *, at_ms: int) -> list[Plain]:
    """Return the log entries with which a pool goes on with one server alone."""
    return [
        wrap(RemoveServer(server, RECOVERY), at_ms=at_ms, ttl_ms=0, era=state.era)
        for server in state.servers
        if server != survivor
        for _ in range(1 + len(state.leases.at(server)) // leases.ENDED_AT_ONCE_MAX)
    ]


# --- inventory and contact ------------------------------------------------------------------------


def _too_old(state: PoolState, command: ServerUp) -> str:
    agreed = state.formats()
    if command.formats >= agreed:
        return ""
    why = f"the servers of this pool have agreed on version {agreed} of the formats"
    return f"{why}, and this one has {command.formats}: upgrade its gpupool"


def server_up(state: PoolState, command: ServerUp) -> Step:
    """Take a server's inventory; a new incarnation has killed all workers of the former ones."""
    server = state.servers.get(command.server)
    if server is None or server.id in state.removed:
        return state, refuse(RefusalKind.DENIED, "this server is not a member of the pool")
    if command.incarnation < server.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "a later incarnation of this server is known")
    if why := _too_old(state, command):
        return state, refuse(RefusalKind.DENIED, why)
    if len(command.gpus) > GPU_COUNT_MAX:
        return state, refuse(RefusalKind.DENIED, f"a server has at most {GPU_COUNT_MAX} GPUs")
    if command.accounts:
        state = begin_accounts(state)
    restarted = command.incarnation > server.incarnation
    is_left = False
    if restarted or server.freeing:
        reason = f"server {server.name} restarted"
        state, is_left = leases.free_parts_at(state, server.id, reason)
        server = state.servers[server.id]
    gpus: dict[GpuId, Gpu] = {}
    for gpu in command.gpus:
        known = server.gpus.get(gpu.id)
        granted = known.memory_granted if known else 0
        if known is not None and granted > gpu.capacity:
            # A device that shrinks below its granted memory keeps its size until the leases end.
            sizes = known.memory_total, known.memory_reserved
            gpu = with_changes(gpu, memory_total=sizes[0], memory_reserved=sizes[1])
        # ``settle_clashes`` below decides which server offers a GPU that several servers show.
        clash = known.clash if known else UNSETTLED
        order = server.gpu_orders.get(gpu.id)
        drain = order.drain_reason if order else ""
        gpus[gpu.id] = with_changes(gpu, memory_granted=granted, clash=clash, drain_reason=drain)
    for gpu in server.gpus.values():
        # A device that fell off the bus stays in the table until its leases are over.
        if gpu.id not in gpus and gpu.memory_granted:
            gpus[gpu.id] = with_changes(gpu, fault="no longer present")
    settled = gpus.keys() == server.gpus.keys()
    server = with_changes(
        server,
        incarnation=command.incarnation,
        status=ServerStatus.UP,
        address=command.address,
        version=command.version,
        driver_version=command.driver_version,
        cuda_version=command.cuda_version,
        gpus=gpus,
        gpu_orders={k: v for k, v in server.gpu_orders.items() if v.drain_reason or k in gpus},
        labels=_labels_at_start(server, command.labels),
        labels_said=command.labels,
        link_speed=max(0, command.link_speed),
        rdma=command.rdma,
        alerts=command.alerts,
        formats=command.formats,
        has_keys=command.has_keys,
        names=command.names,
        freeing=is_left,
        changed_at=state.now,
    )
    state = with_changes(state, servers=state.servers.set(server.id, server))
    state = state if settled else settle_clashes(state)
    if restarted:
        state = emit_event(state, "up", server.name, f"up with {len(gpus)} GPUs")
    return state, Result(ok=True)


def server_contact(state: PoolState, command: ServerContact) -> Step:
    """Note that the leader lost or regained a server; the same incarnation resumes."""
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation")
    before = ServerStatus.UNREACHABLE if command.reachable else ServerStatus.UP
    after = ServerStatus.UP if command.reachable else ServerStatus.UNREACHABLE
    if server.status is not before:
        return state, Result(ok=True)
    server = with_changes(server, status=after, changed_at=state.now)
    servers = state.servers.set(server.id, server)
    if command.reachable:
        state = with_changes(state, servers=servers)
        return emit_event(state, "reachable", server.name, "in contact again"), Result(ok=True)
    text = "no contact; its leases stay charged"
    successor = _successor(state) if server.voter else None
    if successor is not None and successor.status is ServerStatus.UP:
        # An unreachable voter counts for the majority and cannot answer. It returns as a follower.
        servers = servers.set(server.id, with_changes(server, voter=False))
        servers = servers.set(successor.id, with_changes(successor, voter=True))
        text += f"; {successor.name} votes in its place"
    state = with_changes(state, servers=servers)
    return emit_event(state, "unreachable", server.name, text), Result(ok=True)


def _successor(state: PoolState) -> Server | None:
    """Return the server that gets the next vote: the first follower, one that is up if any is."""
    servers = (server for server in state.servers.values() if server.id not in state.removed)
    followers = [server for server in servers if not server.voter]
    up = [server for server in followers if server.status is ServerStatus.UP]
    return next(iter(up or followers), None)


def report_gpus(state: PoolState, command: ReportGpus) -> Step:
    """Take a server's readings of foreign memory and faults."""
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation")
    gpus = dict(server.gpus)
    for gpu_id, reading in command.readings.items():
        gpu = gpus.get(gpu_id)
        if gpu is None:
            continue
        if reading.fault and not gpu.fault:
            what = f"{server.name}/{gpu.index}"
            state = emit_event(state, "gpu-fault", what, reading.fault[:200])
        gpus[gpu_id] = replace(
            gpu, memory_foreign=max(0, reading.memory_foreign), fault=reading.fault[:200]
        )
    server = with_changes(server, gpus=gpus)
    return with_changes(state, servers=state.servers.set(server.id, server)), Result(ok=True)


# --- GPUs that several servers show ---------------------------------------------------------------


def settle_clashes(state: PoolState) -> PoolState:
    """Return ``state`` with every physical GPU offered by one server only.

    Two servers show the same GPU when two run on one host, or when a host came back under a new
    identity. The server that offered it first keeps it until it is removed or lacks the GPU.
    """
    owners: dict[GpuId, Server] = {}
    for server in state.servers.values():
        for gpu in server.gpus.values():
            if not gpu.clash:
                owners[gpu.id] = server
    servers = state.servers
    for server in state.servers.values():
        changed: dict[GpuId, Gpu] = {}
        for gpu in server.gpus.values():
            owner = owners.setdefault(gpu.id, server)
            clash = "" if owner.id == server.id else f"already offered by server {owner.name}"
            if clash != gpu.clash:
                changed[gpu.id] = replace(gpu, clash=clash)
                if clash:
                    what = f"{server.name}/{gpu.index}"
                    state = emit_event(state, "gpu-clash", what, clash)
        if changed:
            servers = servers.set(server.id, with_changes(server, gpus=server.gpus | changed))
    return with_changes(state, servers=servers)


# --- orders of operators --------------------------------------------------------------------------


def order_result(server: Server, order: bytes) -> Result | None:
    """Return the result of an order that was carried out already or is malformed, else None."""
    if order in server.orders:
        return Result(ok=True)
    if len(order) not in (0, ORDER_SIZE):
        return refuse(RefusalKind.INVALID, "malformed number of an order")
    return None


def with_order(server: Server, order: bytes) -> tuple[bytes, ...]:
    """Return the numbers of orders that a server's entry has with ``order`` carried out."""
    if not order:
        return server.orders
    return (*server.orders, order)[-ORDER_COUNT_MAX:]


def drain_server(state: PoolState, command: DrainServer) -> Step:
    """Stop or resume granting on a server; running leases go on."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse(RefusalKind.NEVER, "no such server")
    if (settled := order_result(server, command.order)) is not None:
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
        orders=with_order(server, command.order),
    )
    state = with_changes(state, servers=state.servers.set(server.id, server))
    if was == command.reason:
        return state, Result(ok=True, why=f"it was {'not ' if was is None else ''}drained")
    if command.reason is None:
        return emit_event(state, "undrained", server.name, f"by {command.by}"), Result(ok=True)
    text = f"{command.reason[:200]} (by {command.by})"
    return emit_event(state, "drained", server.name, text), Result(ok=True)


def label_server(state: PoolState, command: LabelServer) -> Step:
    """Set some labels of a server, and take some away; as a whole or not at all."""
    server = state.servers.get(command.server)
    if server is None:
        return state, refuse(RefusalKind.NEVER, "no such server")
    if (settled := order_result(server, command.order)) is not None:
        return state, settled
    if why := label_refusal(command.labels):
        return state, refuse(RefusalKind.INVALID, why)
    labels = {k: v for k, v in server.labels.items() if k not in command.without}
    labels |= command.labels
    if len(labels) > LABEL_COUNT_MAX:
        return state, refuse(RefusalKind.DENIED, f"a server has at most {LABEL_COUNT_MAX} labels")
    changed = labels != server.labels
    server = with_changes(
        server,
        labels=labels,
        changed_at=state.now if changed else server.changed_at,
        orders=with_order(server, command.order),
    )
    state = with_changes(state, servers=state.servers.set(server.id, server))
    if not changed:
        return state, Result(ok=True)
    changes = [f"{k}={v}" for k, v in command.labels.items()] + [f"{k}-" for k in command.without]
    state = record(state, "labelled", by=command.by, subject=server.name, text=" ".join(changes))
    text = f"{' '.join(changes)} (by {command.by})"
    return emit_event(state, "labelled", server.name, text), Result(ok=True)


def _labels_at_start(server: Server, said: dict[str, str]) -> dict[str, str]:
    """Return the labels of a server that has started with the labels ``said``.

    Only labels count that differ from those of its last start, so that an operator's later change
    outlives a restart with the same command line. Leaving a label out takes none away.
    """
    new = {
        name: value
        for name, value in said.items()
        if server.labels_said.get(name) != value and not label_refusal({name: value})
    }
    labels = server.labels | new
    return labels if len(labels) <= LABEL_COUNT_MAX else server.labels
