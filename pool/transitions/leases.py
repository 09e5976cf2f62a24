"""Leases and waiting requests in the table: granting, waiting, and ending in two steps.

Each server of a lease has a part of it, which goes held -> ending -> freed. Memory is granted again
only once the server that owns it has proposed ``FreeLease``. The lease's id, the Raft index of its
grant, is its fencing token.

**Commands that end many leases** end some each, and are proposed again until none is left. To
revoke a token, to remove a server, or to take a new start of one ends all of its leases. No step of
a server's loop may grow with their number, so each such command ends ``ENDED_AT_ONCE_MAX`` at most,
and the table itself says what is left:

- A token whose leases are not all ended is in ``PoolState.revoking``. Nothing is served to those
  that are left (``why_over``), and nothing is granted to the token.
- A server that is removed is in ``PoolState.removed`` at once, without a vote. It stays in
  ``PoolState.servers`` until all of its parts are freed.
- A new start of a server is taken at once, but serves nothing before the parts of the former one
  are freed.
- Both have ``Server.freeing`` until then, and nothing is granted on such a server.

A time that is set back moves leases in batches likewise (``clock_setting``).

The leader proposes again what is left of all but starts (``reconcile.plan_leader``), and a server
its own start. Whose proposal goes on proposes it again at once (``goes_on``). Pure.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from gpupool.pool.model.commands import (
    CancelRequest,
    Command,
    EndLease,
    FreeLease,
    Grant,
    NoteIdle,
    RemoveServer,
    RevokeToken,
    ServerUp,
    SetClock,
    Wait,
)
from gpupool.pool.model.ids import (
    GpuId,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
    lease_name,
)
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.relocation import BEGIN_MS, RELOCATION_MS, RelocationState
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    CLOSED_REQUEST_COUNT_MAX,
    PARTITION_SIZE_MIN,
    USER_WAITING_COUNT_MAX,
    WAITING_COUNT_MAX,
    WAITING_LAPSE_MS,
    Lease,
    Partition,
    PartStatus,
    PoolState,
    ServerStatus,
    TokenKind,
    Waiting,
    why_over,
    with_changes,
)
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.lease_ends import with_terms
from gpupool.pool.policy.rulebook import NOTHING, plus, units_of, usage_of
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.filters import (
    filter_text,
    first_mismatch,
    names_server,
    well_formed,
)
from gpupool.pool.transitions import clock_setting
from gpupool.pool.transitions.kept_records import emit_event, record, record_part, with_request

TEXT_LENGTH_MAX = 200
PARTITION_COUNT_MAX = 256
VIEWER_LOOKS = "a viewer's token is good for looking only"


# --- granting -------------------------------------------------------------------------------------


def grant(state: PoolState, command: Grant) -> Step:
    """Grant a lease after checking everything again; one live lease per request id."""
    request = command.request
    if not owned_by(state, request.id, command.user):
        return state, refuse(RefusalKind.DENIED, "this request is another user's")
    if request.id in state.closed:
        return state, refuse(RefusalKind.CLOSED, state.closed[request.id])
    if request.id in state.by_request:
        lease = state.leases[state.by_request[request.id]]
        if why := why_over(state, lease):
            return state, refuse(RefusalKind.CLOSED, f"its lease has ended: {why}")
        return state, Result(ok=True, lease=lease.id)
    refusal = (
        _token_refusal(state, command)
        or _shape_refusal(state, command)
        or policy_refusal(state, command.user, command.partitions)
        or space_refusal(state, command.partitions)
        or fairness_refusal(state, request.id, command.user, command.partitions)
    )
    if refusal is not None:
        return state, refusal
    lease = Lease(
        id=LeaseId(state.index),
        request=request.id,
        user=command.user,
        token=command.token,
        partitions=command.partitions,
        parts={p.server: PartStatus.HELD for p in command.partitions},
        ticket_hash=command.ticket_hash,
        granted_at=state.now,
        client=request.client[:TEXT_LENGTH_MAX],
        program=request.program[:TEXT_LENGTH_MAX],
        idle_timeout_s=request.idle_timeout_s,
        preemptible=request.preemptible,
        share=request.share,
        units=units_by_server(state, command.partitions),
    )
    lease = with_request(state, with_terms(state, lease))
    state = count(charge(state, lease.partitions, sign=1), lease.user, usage_of(lease), sign=1)
    state = with_changes(
        state,
        leases=state.leases.set(lease.id, lease),
        by_request=state.by_request.set(request.id, lease.id),
        waiting=state.waiting.without(request.id),
    )
    names = ", ".join(sorted({state.servers[p.server].name for p in lease.partitions}))
    text = f"{len(lease.partitions)} GPU(s) on {names} to {lease.user}"
    return emit_event(state, "granted", lease_name(lease.id), text), Result(ok=True, lease=lease.id)


def owned_by(state: PoolState, request: RequestId, user: str) -> bool:
    """Return whether nobody but ``user`` has a lease or a place in line under this request id."""
    lease_id = state.by_request.get(request)
    if lease_id is not None and state.leases[lease_id].user != user:
        return False
    entry = state.waiting.get(request)
    return entry is None or entry.user == user


def _token_refusal(state: PoolState, command: Grant) -> Result | None:
    token = state.tokens.get(command.token)
    if token is None or token.user != command.user:
        return refuse(RefusalKind.DENIED, "unknown token")
    if token.kind is TokenKind.VIEWER:
        return refuse(RefusalKind.DENIED, VIEWER_LOOKS)
    why = token.refusal(state.now)
    return refuse(RefusalKind.DENIED, why) if why else None


def _shape_refusal(state: PoolState, command: Grant) -> Result | None:
    """Check the parts of a grant that do not depend on how full the pool is."""
    partitions, request = command.partitions, command.request
    if not well_formed(request.filters):
        return refuse(RefusalKind.INVALID, "malformed filters")
    if not 0 < len(partitions) <= PARTITION_COUNT_MAX or len(partitions) != request.count:
        return refuse(RefusalKind.INVALID, "not as many partitions as requested GPUs")
    physical: set[tuple[ServerId, GpuId]] = set()
    for partition in partitions:
        server = state.servers.get(partition.server)
        gpu = server.gpus.get(partition.gpu) if server else None
        if server is None or gpu is None:
            return refuse(RefusalKind.CONFLICT, "a chosen GPU is no longer in the pool")
        if command.incarnations.get(server.id) != server.incarnation:
            return refuse(
                RefusalKind.CONFLICT, f"server {server.name} has restarted since its offer"
            )
        if not names_server(request.servers, server):
            return refuse(RefusalKind.INVALID, f"server {server.name} is not among those asked for")
        if (unmet := first_mismatch(request.filters, server, gpu)) is not None:
            # Labels may have changed since the offer.
            why = f"GPU {gpu.index} of {server.name} does not match {filter_text(unmet)}"
            return refuse(RefusalKind.CONFLICT, why)
        # MIG instances of one card are one physical GPU, and a request gets separate ones.
        key = (server.id, gpu.parent or gpu.id)
        if key in physical:
            return refuse(RefusalKind.INVALID, "two partitions on one physical GPU")
        physical.add(key)
        if partition.memory < PARTITION_SIZE_MIN:
            return refuse(RefusalKind.INVALID, "a partition has at least 1 MiB")
    if len(command.ticket_hash) != 32 or len(command.request.id) != 16:
        return refuse(RefusalKind.INVALID, "malformed ticket or request id")
    return None


def policy_refusal(
    state: PoolState, user: str, partitions: tuple[Partition, ...], lease_count: int = 1
) -> Result | None:
    """Check the pool's policy: the GPUs that this user may use, and the user's limits."""
    if not state.policy.version:
        return None
    admission = Admission(state)
    servers = [state.servers[p.server] for p in partitions]
    places = [(s, s.gpus[p.gpu]) for s, p in zip(servers, partitions, strict=True)]
    refusal = admission.place_refusal(user, places)
    if refusal is not None:
        return refusal
    units = sum(units_by_server(state, partitions).values())
    need = Usage(units, sum(p.memory for p in partitions), lease_count)
    return admission.limit_refusal(user, need)


def units_by_server(state: PoolState, partitions: tuple[Partition, ...]) -> dict[ServerId, int]:
    """Return the units that partitions count against limits of GPUs, by server."""
    units: dict[ServerId, int] = {}
    for part in partitions:
        gpu = state.servers[part.server].gpus[part.gpu]
        units[part.server] = units.get(part.server, 0) + units_of(part, gpu)
    return units


def space_refusal(
    state: PoolState, partitions: tuple[Partition, ...], *, goes_on: bool = False
) -> Result | None:
    """Check that there is room for ``partitions``, on GPUs that the pool has.

    A drain of a server does not keep away what ``goes_on`` there.
    """
    for partition in partitions:
        server = state.servers[partition.server]
        gpu = server.gpus[partition.gpu]
        is_drained_only = server.status is ServerStatus.UP and not server.freeing
        if not server.grantable and not (goes_on and is_drained_only):
            ending = "leases of before are being ended" if server.freeing else ""
            why = server.drain_reason or ending or server.status.value
            return refuse(RefusalKind.BUSY, f"server {server.name} grants nothing now: {why}")
        if gpu.drain_reason:
            what = f"GPU {gpu.index} of {server.name}"
            return refuse(RefusalKind.BUSY, f"{what} grants nothing now: {gpu.drain_reason}")
        if gpu.memory_free < partition.memory:
            return refuse(RefusalKind.BUSY, f"GPU {gpu.index} of {server.name} is taken by now")
    return None


def fairness_refusal(
    state: PoolState, request: RequestId, user: str, partitions: tuple[Partition, ...]
) -> Result | None:
    """Refuse GPUs that the oldest starved request of at least this priority needs."""
    reserved = fairness.reserved_for_others(state, request, user)
    if reserved is None or not any((p.server, p.gpu) in reserved.gpus for p in partitions):
        return None
    places = {(p.server, p.gpu) for p in partitions}
    kept = fairness.kept_from(state, request, user)
    entry = next((each.entry for each in kept if places & each.gpus), reserved.entry)
    waited_s = max(0, state.now - entry.since) // 1000
    what = f"{entry.user} has waited {waited_s} s for these GPUs and goes first"
    return refuse(RefusalKind.BUSY, what)


# --- waiting --------------------------------------------------------------------------------------


def wait(state: PoolState, command: Wait) -> Step:
    """Record or renew a waiting entry; the time since the first one counts."""
    request = command.request
    if request.id in state.closed or request.id in state.by_request:
        return state, refuse(RefusalKind.CLOSED, "the request waits no more")
    if not owned_by(state, request.id, command.user):
        return state, refuse(RefusalKind.DENIED, "this request is another user's")
    if len(request.id) != 16 or not well_formed(request.filters):
        return state, refuse(RefusalKind.INVALID, "malformed request")
    token = state.tokens.get(command.token)
    if token is None or token.user != command.user or token.refusal(state.now):
        return state, refuse(RefusalKind.DENIED, "unknown, expired or revoked token")
    if token.kind is TokenKind.VIEWER:
        return state, refuse(RefusalKind.DENIED, VIEWER_LOOKS)
    known = state.waiting.get(request.id)
    if known is None and len(state.waiting) >= WAITING_COUNT_MAX:
        return state, refuse(RefusalKind.BUSY, "too many requests wait already")
    if known is None and _waiting_of(state, command.user) >= USER_WAITING_COUNT_MAX:
        why = f"{USER_WAITING_COUNT_MAX} requests of {command.user} wait already"
        return state, refuse(RefusalKind.BUSY, why)
    entry = Waiting(
        request=replace(
            request,
            client=request.client[:TEXT_LENGTH_MAX],
            program=request.program[:TEXT_LENGTH_MAX],
        ),
        user=command.user,
        priority=Admission(state).terms(command.user).priority,
        since=known.since if known else state.now,
        renewed=state.now,
        reason=command.reason[:TEXT_LENGTH_MAX],
    )
    return with_changes(state, waiting=state.waiting.set(request.id, entry)), Result(ok=True)


def _waiting_of(state: PoolState, user: str) -> int:
    return sum(entry.user == user for entry in state.waiting.values())


def lapse_waiting(state: PoolState) -> PoolState:
    """Return ``state`` without the waiting entries that nobody renewed."""
    lapsed = state.waiting.renewed_before(state.now - WAITING_LAPSE_MS)
    if not lapsed:
        return state
    waiting = state.waiting
    for entry in lapsed:
        waiting = waiting.without(entry.request.id)
    return with_changes(state, waiting=waiting)


# --- ending ---------------------------------------------------------------------------------------


def cancel_request(state: PoolState, command: CancelRequest) -> Step:
    """Refuse any later grant of this request, and end the lease if it has one."""
    if command.user and not owned_by(state, command.request, command.user):
        return state, refuse(RefusalKind.DENIED, "this request is another user's")
    if len(command.request) != 16:
        return state, refuse(RefusalKind.INVALID, "malformed request id")
    lease_id = state.by_request.get(command.request)
    if lease_id is not None:
        return end(state, lease_id, command.reason), Result(ok=True, lease=lease_id)
    waiting = state.waiting.without(command.request)
    entry = state.waiting.get(command.request)
    successor = command.successor
    if entry and successor and len(successor) == 16 and not _is_known(state, successor):
        request = replace(entry.request, id=successor)
        waiting = waiting.set(successor, replace(entry, request=request, renewed=state.now))
    state = with_changes(state, waiting=waiting)
    return _close(state, command.request, "the request was cancelled"), Result(ok=True)


def _is_known(state: PoolState, request: RequestId) -> bool:
    return request in state.waiting or request in state.by_request or request in state.closed


def end_lease(state: PoolState, command: EndLease) -> Step:
    """First step of ending."""
    if command.lease not in state.leases:
        return state, Result(ok=True)  # freed already: as ended as can be
    lease = state.leases[command.lease]
    if command.away and not lease.is_away:
        return state, Result(ok=True)  # resumed by an entry that came before (seed 10194823)
    foreign = bool(command.by) and command.by != lease.user
    if foreign and not command.operator:
        # The server that was asked may not have known the lease, and so not whose it is.
        return state, refuse(
            RefusalKind.DENIED, f"lease {lease_name(lease.id)} belongs to {lease.user}"
        )
    if lease.held and foreign:
        what = f"lease of {lease.user}: {command.reason}"
        name = lease_name(lease.id)
        state = record(state, "lease-ended", by=command.by, subject=name, text=what)
    return end(state, command.lease, command.reason), Result(ok=True, lease=command.lease)


def end(state: PoolState, lease_id: LeaseId, reason: str) -> PoolState:
    """Return ``state`` with the lease ending on every server of it that still holds it."""
    lease = state.leases[lease_id]
    if not lease.held:
        return state
    parts = {
        server: PartStatus.ENDING if part is PartStatus.HELD else part
        for server, part in lease.parts.items()
    }
    reason = reason[:TEXT_LENGTH_MAX] or "ended"
    lease = with_changes(lease, parts=parts, end_reason=reason, ended_at=state.now)
    state = with_changes(state, leases=state.leases.set(lease_id, lease))
    return emit_event(state, "ended", lease_name(lease_id), reason)


def note_idle(state: PoolState, command: NoteIdle) -> Step:
    """Take note of whether one server of a lease finds its part unused."""
    lease = state.leases.get(command.lease)
    if lease is None or command.server not in lease.parts:
        return state, Result(ok=True)
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation")
    idle_on = tuple(each for each in lease.idle_on if each != command.server)
    if command.idle:
        idle_on = (*idle_on, command.server)
    changed = with_changes(lease, idle_on=idle_on)
    return with_changes(state, leases=state.leases.set(lease.id, changed)), Result(ok=True)


def free_lease(state: PoolState, command: FreeLease) -> Step:
    """Second step of ending, for one server: give its memory back."""
    lease = state.leases.get(command.lease)
    if lease is None or command.server not in lease.parts:
        return state, Result(ok=True)
    server = state.servers.get(command.server)
    if server is None or server.incarnation != command.incarnation:
        return state, refuse(RefusalKind.CONFLICT, "not the current incarnation")
    if lease.held and not _lets_go_of(lease, command.server):
        return state, refuse(RefusalKind.CONFLICT, "the lease is held; end it first")
    if command.number != (lease.relocation.number if lease.relocation is not None else 0):
        # It was said of an earlier stay on that server, where workers may live again.
        return state, refuse(RefusalKind.CONFLICT, "it is of another relocation")
    return free_part(state, lease, command.server), Result(ok=True)


def free_part(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
    """Return ``state`` with the memory of one server's part given back."""
    if lease.parts[server] is PartStatus.FREED:
        return state
    state = record_part(state, lease, server)
    if lease.is_charged(server):
        mine = tuple(p for p in lease.partitions if p.server == server)
        state = charge(state, mine, sign=-1)
    parts = lease.parts | {server: PartStatus.FREED}
    if lease.held and _lets_go_of(lease, server):
        return _without_part(state, lease, server)
    given_back = plus(usage_of(lease), usage_of(with_changes(lease, parts=parts)), -1)
    state = count(state, lease.user, given_back, sign=-1)
    if any(part is not PartStatus.FREED for part in parts.values()):
        lease = with_changes(lease, parts=parts)
        return with_changes(state, leases=state.leases.set(lease.id, lease))
    leases, by_request = state.leases.without(lease.id), state.by_request.without(lease.request)
    state = with_changes(state, leases=leases, by_request=by_request)
    return _close(state, lease.request, f"its lease has ended: {lease.end_reason}")


def _lets_go_of(lease: Lease, server: ServerId) -> bool:
    """Return whether a lease ends on one server alone, because it is another one's."""
    return lease.relocation is not None and lease.relocation.ending == server


def _without_part(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
    """Return ``state`` with a lease that is one server's again."""
    changed = with_changes(
        lease,
        partitions=tuple(part for part in lease.partitions if part.server != server),
        parts={each: part for each, part in lease.parts.items() if each != server},
        units={each: units for each, units in lease.units.items() if each != server},
        idle_on=tuple(each for each in lease.idle_on if each != server),
        relocation=None,
    )
    state = count(state, lease.user, plus(usage_of(changed), usage_of(lease), -1), sign=1)
    return with_changes(state, leases=state.leases.set(lease.id, changed))


def stay(state: PoolState, lease: Lease, reason: str) -> PoolState:
    """Return ``state`` with a lease that was to leave its server and stays on it."""
    found = lease.relocation
    assert found is not None, "it is leaving"
    took_long = found.billed and state.now >= found.since + BEGIN_MS
    changed = with_changes(
        lease,
        parts=lease.parts | {found.target: PartStatus.ENDING},
        relocation=replace(found, state=RelocationState.STAYS, reason=reason),
        moves_from=Milliseconds(state.now + RELOCATION_MS) if took_long else lease.moves_from,
    )
    state = with_changes(state, leases=state.leases.set(lease.id, changed))
    return emit_event(state, "not-moved", lease_name(lease.id), reason)


def lose_part(state: PoolState, lease_id: LeaseId, server: ServerId, reason: str) -> PoolState:
    """Return ``state`` without one server's part, of which no worker lives any more.

    It ends the lease, but for one that is another server's, or can stay on it.
    """
    lease = state.leases[lease_id]
    found = lease.relocation
    if lease.held and found is not None:
        if found.state is RelocationState.LEAVING and server == found.target:
            state = stay(state, lease, reason)
        if _lets_go_of(state.leases[lease_id], server):
            return free_part(state, state.leases[lease_id], server)
    state = end(state, lease_id, reason)
    return free_part(state, state.leases[lease_id], server)


def _close(state: PoolState, request: RequestId, why: str) -> PoolState:
    closed = state.closed.without(request)  # closed anew, it is the latest
    if len(closed) >= CLOSED_REQUEST_COUNT_MAX:
        closed = closed.without(next(iter(closed)))
    return with_changes(state, closed=closed.set(request, why))


def charge(state: PoolState, partitions: tuple[Partition, ...], *, sign: int) -> PoolState:
    """Return ``state`` with these partitions granted, or with ``sign`` -1 given back."""
    servers = state.servers
    for partition in partitions:
        server = servers.get(partition.server)
        gpu = server.gpus.get(partition.gpu) if server else None
        if server is None or gpu is None:
            continue  # the server left, and its books with it
        charged = with_changes(gpu, memory_granted=gpu.memory_granted + sign * partition.memory)
        server = with_changes(server, gpus=server.gpus | {gpu.id: charged})
        servers = servers.set(server.id, server)
    return with_changes(state, servers=servers)


def count(state: PoolState, user: str, change: Usage, *, sign: int) -> PoolState:
    """Return ``state`` with a user's usage changed in the books of the policy."""
    usage = plus(state.usage.get(user, NOTHING), change, sign)
    if usage == NOTHING:
        return with_changes(state, usage={k: u for k, u in state.usage.items() if k != user})
    return with_changes(state, usage=state.usage | {user: usage})


def encryption_of(state: PoolState, lease: LeaseId) -> str:
    """Return the ``DataEncryption`` of a lease."""
    known = state.leases.get(lease)
    return (known.data_encryption if known is not None else "") or state.data_encryption


ENDED_AT_ONCE_MAX = 32
"""Leases that one command ends. Each makes an event and a record, and the table keeps more of both,
``EVENT_COUNT_MAX`` and ``RECORD_COUNT_MAX``: so each server reads all of them."""


def end_leases_of(state: PoolState, token: TokenId, reason: str) -> tuple[PoolState, bool]:
    """End leases of a token; return whether some are left."""
    leases_now, is_left = _some(
        each.id for each in state.leases.values() if each.token == token and each.held
    )
    for lease in leases_now:
        state = end(clock_setting.moved_ahead(state, lease), lease, reason)
    return state, is_left


def free_parts_at(state: PoolState, server: ServerId, reason: str) -> tuple[PoolState, bool]:
    """Free parts of a server, since no worker of theirs can live; return whether some are left."""
    parts = state.leases.at(server).values()
    leases_now, is_left = _some(
        each.id for each in parts if each.parts[server] is not PartStatus.FREED
    )
    for lease in leases_now:
        state = lose_part(clock_setting.moved_ahead(state, lease), lease, server, reason)
    return state, is_left


def _some(found: Iterator[LeaseId]) -> tuple[list[LeaseId], bool]:
    """Return those that one command ends, and whether there are more."""
    return list(islice(found, ENDED_AT_ONCE_MAX)), any(True for _ in found)


def unfinished(state: PoolState) -> tuple[Command, ...]:
    """Return the unfinished commands, which the leader proposes again."""
    settings = [SetClock(state.moving.to, state.era - 1, "")] if state.moving else []
    removals = [RemoveServer(each, "") for each in state.removed if each in state.servers]
    return (*settings, *(RevokeToken(token, "") for token in state.revoking), *removals)


def goes_on(state: PoolState, command: Command, result: Result) -> bool:
    """Return whether a command that was applied has more to do, by the table after it."""
    match command:
        case RevokeToken(token=token):
            return result.ok and token in state.revoking
        case RemoveServer(server=server):
            return result.ok and server in state.servers
        case ServerUp(server=server):
            return result.ok and server in state.servers and state.servers[server].freeing
        case SetClock(era=era):
            return result.ok and state.moving is not None and era == state.era - 1
        case _:
            return False
