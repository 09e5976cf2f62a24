"""Makes a ``PoolView`` of the table, on the server that is asked, row by row if it is large.

It stands apart from ``view``: a client reads views, and its start need not wait for the rules by
which servers make them. Its warnings are problems of a pool as a whole, as the
table and consensus show them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpupool.pool.clock_view import ClockView
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId, lease_name
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.state import (
    Event,
    Lease,
    Partition,
    PartStatus,
    PoolState,
    Server,
    ServerStatus,
)
from gpupool.pool.model.suspension import suspension_reason
from gpupool.pool.policy.giving_way import never_suspendable
from gpupool.pool.policy.rulebook import Rulebook, rulebook
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import UNREACHABLE_AFTER_S
from gpupool.pool.scheduling.fairness import awaited_servers
from gpupool.pool.scheduling.filters import filter_text
from gpupool.pool.transitions.authorities import NAME_COUNT_MAX, fingerprint_of, not_moved
from gpupool.pool.transitions.kept_records import stay_since
from gpupool.pool.transitions.silencing import silences_now
from gpupool.pool.view import (
    ALARM,
    FULL_SHARE,
    LONG_AGO_S,
    MAJORITY_FRESH_S,
    NO_KEY,
    ONE_KEY,
    SCHEMA,
    AuthorityView,
    GpuView,
    LeaseView,
    PoolView,
    RaftView,
    ServerView,
    SilenceView,
    Stay,
    WaitingView,
    has_quorum,
    readable,
    visible,
)


@dataclass(frozen=True, slots=True)
class ViewSource:
    """The source of a view. Nothing of it is changed any more, so any thread may read it."""

    state: PoolState
    health: RaftHealth
    answered_by: ServerId
    now_ms: int  # the pool's time
    violations: Sequence[str] = ()  # invariants that the server has found broken
    clock: ClockView | None = None  # what it knows of the time
    warnings: tuple[str, ...] = ()  # more of them, which stand last

    @property
    def row_count(self) -> int:
        """Return how many rows the view has, GPUs among them: about 8 us each, to the wire."""
        state = self.state
        gpus = sum(len(server.gpus) for server in state.servers.values())
        rows = len(state.servers) + len(state.leases) + len(state.waiting) + len(state.events)
        return gpus + rows


@dataclass(frozen=True, slots=True)
class ViewRows:
    """One of the long fields of a view, of which no row is made before it is taken."""

    count: int
    rows: Iterator[Any]


def build_view(
    state: PoolState,
    health: RaftHealth,
    answered_by: ServerId,
    now_ms: int,
    violations: Sequence[str] = (),
    clock: ClockView | None = None,
) -> PoolView:
    """Return the view of ``state`` that the server ``answered_by`` gives; see ``ViewSource``."""
    view, long = view_in_rows(ViewSource(state, health, answered_by, now_ms, violations, clock))
    return replace(view, **{name: tuple(field.rows) for name, field in long.items()})


def view_in_rows(source: ViewSource) -> tuple[PoolView, dict[str, ViewRows]]:
    """Return a view with empty long fields, and these fields by name."""
    state, health, now_ms, clock = source.state, source.health, source.now_ms, source.clock
    warnings = pool_warnings(state, health, source.violations)
    view = PoolView(
        schema=SCHEMA,
        name=state.name,
        cluster_id=state.cluster_id,
        answered_by=source.answered_by,
        now=Milliseconds(now_ms),
        data_encryption=state.data_encryption,
        raft=raft_view(state, health),
        servers=(),
        leases=(),
        waiting=(),
        events=(),
        warnings=(*warnings, *(clock.problems if clock else ()), *source.warnings),
        policy_version=state.policy.version,
        clock=clock,
        record_count=state.record_count,
        authorities=_authority_views(state),
        silences=_silence_views(state, now_ms),
    )
    servers = (_server_view(each, state, health) for each in state.servers.values())
    return view, {
        "servers": ViewRows(len(state.servers), servers),
        "leases": ViewRows(len(state.leases), _lease_views(state, now_ms)),
        "waiting": ViewRows(len(state.waiting), _waiting_views(state, now_ms)),
        "events": ViewRows(len(state.events), _event_views(state.events)),
    }


def raft_view(state: PoolState, health: RaftHealth) -> RaftView:
    """Return the state of consensus as the server with this ``health`` sees it."""
    leader = state.servers.get(health.leader) if health.leader else None
    return RaftView(
        role=health.role.value,
        leader=leader.name if leader else "",
        term=health.term,
        commit_index=health.commit_index,
        applied_index=health.applied_index,
        voters=health.voters,
        connected=tuple(peer for peer in health.connected if _in_touch(state, health, peer)),
        quorum=has_quorum(health),
        majority_age_s=health.majority_age_s,
        elections=health.elections,
    )


def _in_touch(state: PoolState, health: RaftHealth, peer: ServerId) -> bool:
    """Return whether a connected server is part of a quorum: it answers, and is counted on."""
    known, age_s = state.servers.get(peer), health.contact_age_s.get(peer, 0.0)
    if known is not None and known.status is ServerStatus.UNREACHABLE:
        return False
    return peer not in health.unfit and (health.role is not Role.LEADER or age_s < MAJORITY_FRESH_S)


def _silence_views(state: PoolState, now_ms: int) -> tuple[SilenceView, ...]:
    return tuple(
        SilenceView(
            each.check,
            each.server,
            visible(each.subject),
            each.until,
            visible(each.reason),
            each.by,
            each.at,
        )
        for each in silences_now(state, now_ms)
    )


def _authority_views(state: PoolState) -> tuple[AuthorityView, ...]:
    behind = not_moved(state)
    moved = tuple(server for server in state.servers.values() if server not in behind)
    held = [moved] if len(state.authorities) == 1 else [behind, moved]
    return tuple(
        AuthorityView(
            sha256=fingerprint_of(certificate).hex(),
            signs=certificate is state.authorities[-1],
            servers=tuple(visible(server.name) for server in servers),
        )
        for certificate, servers in zip(state.authorities, held, strict=False)
    )


def server_state(server: Server) -> str:
    """Return sinfo's word for a server: down, drain, new, idle, mix or full."""
    if server.status is ServerStatus.UNREACHABLE:
        return "down"
    if server.drain_reason is not None:
        return "drain"
    if server.status is ServerStatus.JOINED:
        return "new"
    if server.gpus and all(gpu.drain_reason for gpu in server.gpus.values()):
        return "drain"
    if all(gpu.memory_granted == 0 for gpu in server.gpus.values()):
        return "idle"
    full = all(gpu.memory_free < gpu.capacity // FULL_SHARE for gpu in server.gpus.values())
    return "full" if full else "mix"


def leases_on(state: PoolState, server: ServerId) -> list[Lease]:
    """Return the leases with a part on a server that is not freed."""
    leases = state.leases.at(server).values()
    return [lease for lease in leases if lease.parts[server] is not PartStatus.FREED]


def leases_by_gpu(state: PoolState, server: ServerId) -> dict[GpuId, list[LeaseId]]:
    """Return the leases on each GPU of a server."""
    found: dict[GpuId, list[LeaseId]] = {}
    for lease in leases_on(state, server):
        for gpu in dict.fromkeys(p.gpu for p in lease.partitions if p.server == server):
            found.setdefault(gpu, []).append(lease.id)
    return found


def _server_view(server: Server, state: PoolState, health: RaftHealth) -> ServerView:
    unreachable = server.status is ServerStatus.UNREACHABLE
    by_gpu = leases_by_gpu(state, server.id)
    gpus = tuple(
        GpuView(
            id=gpu.id,
            index=gpu.index,
            name=gpu.name,
            memory_total=gpu.memory_total,
            capacity=gpu.capacity,
            memory_granted=gpu.memory_granted,
            memory_foreign=gpu.memory_foreign,
            memory_free=0 if unreachable else gpu.memory_free,  # nothing of it can be had
            compute_capability=gpu.compute_capability,
            pci_bus_id=gpu.pci_bus_id,
            emulated=gpu.emulated,
            mig=gpu.parent is not None,
            fault=gpu.fault or gpu.clash,
            leases=tuple(by_gpu.get(gpu.id, ())),
            drain=visible(gpu.drain_reason),
        )
        for gpu in sorted(server.gpus.values(), key=lambda g: g.index)
    )
    reason = server.drain_reason or ""
    if unreachable:
        reason = f"no contact for more than {UNREACHABLE_AFTER_S:.0f} s"
    return ServerView(
        id=server.id,
        name=server.name,
        address=server.address,
        state=server_state(server),
        reason=visible(reason),
        voter=server.voter,
        witness=server.witness,
        leader=server.id == health.leader,
        incarnation=server.incarnation,
        version=server.version,
        driver_version=server.driver_version,
        cuda_version=server.cuda_version,
        labels=server.labels,
        gpus=gpus,
        lease_count=len({lease for gpu in gpus for lease in gpu.leases}),
        joined_at=server.joined_at,
        link_speed=server.link_speed,
        rdma=server.rdma,
        silent_since=_silent_since(server),
        formats=server.formats if server.status is not ServerStatus.JOINED else 0,
        has_keys=server.has_keys,
    )


def _silent_since(server: Server) -> Milliseconds:
    return server.changed_at if server.status is ServerStatus.UNREACHABLE else Milliseconds(0)


def moved_last(events: Sequence[Event]) -> frozenset[str]:
    """Return the names of leases of which the latest attempt to suspend them was to move them.

    The table keeps why an attempt failed, and not what it was for. Its events say that, as long as
    they are kept.
    """
    names: set[str] = set()
    for event in events:
        if event.kind in ("moving", "moved", "not-moved"):
            names.add(event.subject)
        elif event.kind == "suspending":
            names.discard(event.subject)
    return frozenset(names)


def _event_views(events: Sequence[Event]) -> Iterator[Event]:
    """Yield events as people read them: a server that cannot suspend a lease ends its move."""
    moving: set[str] = set()
    for event in events:
        if event.kind == "moving":
            moving.add(event.subject)
        elif event.kind == "suspending":
            moving.discard(event.subject)
        fails = event.kind == "not-suspended" and event.subject in moving
        yield _visible_event(replace(event, kind="not-moved") if fails else event)


def _visible_event(event: Event) -> Event:
    return replace(event, subject=visible(event.subject), text=visible(readable(event.text)))


def _lease_views(state: PoolState, now_ms: int) -> Iterator[LeaseView]:
    book, moves, over = rulebook(state.policy), moved_last(state.events), _stays_over(state)
    for lease in state.leases.values():
        view = _lease_view(lease, state, book, moves, now_ms)
        stays = (*over.get(lease.id, ()), *_stays(lease))
        yield replace(view, stays=stays) if stays else view


def _stays_over(state: PoolState) -> dict[LeaseId, list[Stay]]:
    """Return the recorded stays of the leases that were moved to the server where they are."""
    found: dict[LeaseId, list[Stay]] = {}
    for each in state.records:
        lease = state.leases.get(each.lease)
        if lease is not None and lease.here_since:
            stay = Stay(each.server, each.granted_at, each.freed_at)
            found.setdefault(each.lease, []).append(stay)
    return found


def _lease_view(
    lease: Lease, state: PoolState, book: Rulebook, moves: frozenset[str], now_ms: int
) -> LeaseView:
    found = lease.relocation
    ending = found.ending if found is not None else None  # where it is not any more
    servers = [state.servers.get(each) for each in lease.parts if each != ending]
    lost = any(s is None or s.status is ServerStatus.UNREACHABLE for s in servers)
    suspension, history = lease.suspension, lease.history
    word = "held" if suspension is None else suspension.state.value
    word = "moving" if found is not None and ending is None else word
    word = "unreachable" if lost else word if lease.held else "ending"
    refusal = history.refusal if history is not None else None
    failed = visible(refusal.reason) if refusal is not None else ""
    stays = visible(found.reason) if found is not None else ""
    return LeaseView(
        id=lease.id,
        name=lease_name(lease.id),
        user=lease.user,
        client=visible(lease.client),
        program=visible(lease.program),
        state=word,
        reason=visible(lease.end_reason or _suspended(state, lease) or _way(state, lease)),
        partitions=tuple(part for part in lease.partitions if part.server != ending),
        granted_at=lease.granted_at,
        age_s=max(0.0, (now_ms - lease.granted_at) / 1000),
        user_class=book.group_of(lease.user),
        requested_at=lease.requested_at,
        granted_class=lease.user_class,
        department=lease.department,
        freed=_recorded(lease),
        ends_at=lease.ends_at,
        kept_bytes=suspension.bytes if suspension is not None else 0,
        waits_to_resume=suspension is not None and bool(suspension.resume_since),
        not_suspended=failed,
        not_moved=stays or (failed if lease_name(lease.id) in moves else ""),
        not_suspendable=never_suspendable(state, lease) if lease.held else "",
        is_away=lease.is_away,
        away=lease.times_away(Milliseconds(now_ms)),
        left=_left(lease),
    )


def _suspended(state: PoolState, lease: Lease) -> str:
    """Return a lease's suspender and reason, and the servers that have not confirmed it."""
    text, awaited = suspension_reason(lease.suspension), awaited_servers(state, lease)
    names = ", ".join(state.servers[s].name if s in state.servers else s for s in awaited)
    return f"{text}; waits for {names}, which is out of contact" if names else text


def _recorded(lease: Lease) -> tuple[ServerId, ...]:
    freed = [server for server, part in lease.parts.items() if part is PartStatus.FREED]
    return tuple(server for server in freed if stay_since(lease, server) is not None)


def _stays(lease: Lease) -> tuple[Stay, ...]:
    """Return where a lease is that goes, or has gone, to another server; also where it was freed.

    A server that it never reached may still keep memory for it. That is no stay.
    """
    if lease.relocation is None and not lease.here_since:
        return ()
    found = [(server, stay_since(lease, server)) for server in lease.parts]
    return tuple(Stay(server, since) for server, since in found if since is not None)


def _left(lease: Lease) -> tuple[Partition, ...]:
    found = lease.relocation
    if found is None or found.state is not RelocationState.GONE:
        return ()
    parts = [part for part in lease.partitions if part.server == found.source]
    return tuple(part for part in parts if lease.parts[part.server] is not PartStatus.FREED)


def _way(state: PoolState, lease: Lease) -> str:
    """Return the target server of a lease's relocation, and the author of the order."""
    found = lease.relocation
    if found is None or found.ending is not None:
        return ""
    target = state.servers.get(found.target)
    return f"to {target.name if target is not None else found.target}, by {found.by}"


def _waiting_views(state: PoolState, now_ms: int) -> Iterator[WaitingView]:
    ordered = sorted(state.waiting.values(), key=lambda w: (-w.priority, w.since))
    book = rulebook(state.policy)
    return (
        WaitingView(
            request=w.request.id.hex(),
            user=w.user,
            client=visible(w.request.client),
            program=visible(w.request.program),
            count=w.request.count,
            fraction=w.request.fraction,
            memory=w.request.memory,
            waited_s=max(0.0, (now_ms - w.since) / 1000),
            reason=visible(w.reason),
            filters=tuple(filter_text(each) for each in w.request.filters),
            across=w.request.across,
            servers=w.request.servers,
            priority=w.priority,
            user_class=book.group_of(w.user),
        )
        for w in ordered
    )


def pool_warnings(
    state: PoolState, health: RaftHealth, violations: Sequence[str]
) -> tuple[str, ...]:
    """Return the problems of the pool, also the invariants that were found violated."""
    warnings = [f"the pool's table is wrong, which is a bug of gpupool: {v}" for v in violations]
    for server in health.diverged:
        name = state.servers[server].name if server in state.servers else server
        warnings.append(
            f"the table of server {name} differs from that of the others: stop it, check its "
            "memory and disk, and let it join anew (gpupool rejoin)"
        )
    if not has_quorum(health):
        age_s = health.majority_age_s
        contact = f" (last contact {age_s:.0f} s ago)" if age_s < LONG_AGO_S else ""
        warnings.append(
            "this server is not in touch with a majority of the voters: nothing is granted here, "
            f"and what it shows may be old{contact}"
        )
    for server, why in sorted(health.unfit.items()):
        if (known := state.servers.get(server)) is not None:
            text = f"{visible(known.name)} does not count as a voter: {visible(why)}"
            warnings.append(ALARM + text)
    for server, (teller, why) in sorted(health.refused_by.items()):
        if server in state.servers and server not in health.unfit:
            says = state.servers[teller].name if teller in state.servers else teller
            text = f"{visible(state.servers[server].name)} does not count as a voter: "
            warnings.append(f"{ALARM}{text}server {visible(says)} says: {visible(why)}")
    if health.alarm:
        warnings.append(f"{ALARM}{health.alarm}")
    warnings += _exchange_warnings(state)
    warnings += _key_warnings(state)
    warnings += _upgrade_warnings(state)
    if len(state.voters()) == 2:
        warnings.append(
            "with two servers the failure of either stops all grants; a third one cures that, "
            "and needs no GPU: gpupool join --witness"
        )
    if health.role is Role.REMOVED:
        warnings.append("this server was removed from the pool")
    return tuple(warnings)


def _exchange_warnings(state: PoolState) -> list[str]:
    """Return how far the exchange of the CA is, while two are trusted."""
    if len(state.authorities) < 2:
        return []
    behind = [visible(server.name) for server in not_moved(state)]
    if not behind:
        return [
            "two CAs are trusted, and every server has a certificate of the new one: "
            "gpupool ca retire ends the exchange"
        ]
    more = f" and {len(behind) - NAME_COUNT_MAX} more" if len(behind) > NAME_COUNT_MAX else ""
    names = ", ".join(behind[:NAME_COUNT_MAX]) + more
    return [f"two CAs are trusted, and these have no certificate of the new one yet: {names}"]


def _members_once_up(state: PoolState) -> list[Server]:
    """Return the servers of the pool that have ever been up: the others have said nothing."""
    return [
        server
        for server in state.servers.values()
        if server.status is not ServerStatus.JOINED and server.id not in state.removed
    ]


def _key_warnings(state: PoolState) -> list[str]:
    """Return a warning where nobody has the CA's key, or one of several servers alone."""
    servers = _members_once_up(state)
    holders = [visible(server.name) for server in servers if server.has_keys]
    if not servers or len(holders) > 1:
        return []
    exchanges = len(state.authorities) > 1
    what = "s of both CAs" if exchanges else " of the pool's CA"
    rotates = "" if exchanges else ". If it is lost for good, gpupool ca rotate makes another CA"
    if holders:
        gets = "the other voters ask for it as soon as they reach that server"
        text = f"{ONE_KEY}{what}, {holders[0]}: {gets}{rotates}"
        return [text] if sum(server.voter for server in servers) > 1 else []
    first = "" if exchanges else " gpupool ca rotate and"
    return [f"{NO_KEY}{what}: no server can join before{first} gpupool ca retire"]


def _upgrade_warnings(state: PoolState) -> list[str]:
    """Return warnings of servers not upgraded yet: gpupool's version numbers need not differ."""
    servers = _members_once_up(state)
    newest = max((server.formats for server in servers), default=0)
    old = [f"{visible(s.name)} (formats {s.formats})" for s in servers if s.formats < newest]
    if not old:
        return []
    more = f" and {len(old) - NAME_COUNT_MAX} more" if len(old) > NAME_COUNT_MAX else ""
    names = ", ".join(old[:NAME_COUNT_MAX]) + more
    return [f"these servers are not upgraded yet: {names}; the newest have formats {newest}"]
