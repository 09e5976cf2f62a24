"""A snapshot of the pool as the columns that the pages show. Pure: values and times in, data out.

Two documents: the summary has servers, GPUs, findings and events, and is what every page asks for;
the work has leases and waiting requests, and only pages that show them ask. Long identifiers of
GPUs are in neither, because random text does not compress; a server's own page has them. None is
unknown, which is never shown as 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool.monitoring.web.health_words import Problem, problems_of, sentence
from gpupool.monitoring.web.live_book import Document, Table
from gpupool.monitoring.web.pool_source import Snapshot
from gpupool.monitoring.web.traffic import Flow, Flows
from gpupool.pool.expected_start import starts_by_s
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry
from gpupool.pool.view import GpuView, LeaseView, PoolView, ServerView, WaitingView, visible

STALE_AFTER_S = 4.0
"""A server's measurements that are older look old: with its silence told, within 6 s."""

MIB = 1 << 20

EVENTS_SHOWN = 200
WAITING_SHOWN = 8
COARSE_FROM = 1000
"""With more GPUs than that, memory is told in hundredths, power in steps, and both less often."""

COARSE_W = 10
SLOW_S = 10.0


@dataclass(slots=True)
class Memory:
    """What has to stay the same from one document to the next."""

    flows: Flows = field(default_factory=Flows)
    since: dict[str, int] = field(default_factory=dict[str, int])  # of waiting requests
    slow: Table = field(default_factory=dict[str, list[object]])
    slow_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot with the time at which it is looked at."""

    snapshot: Snapshot
    now: float

    @property
    def view(self) -> PoolView:
        """Return the pool's view."""
        return self.snapshot.view

    @property
    def age_s(self) -> float:
        """Return how old the view is."""
        return max(0.0, self.now - self.snapshot.view_at)

    @property
    def pool_now(self) -> int:
        """Return the pool's time now."""
        return int(self.view.now + self.age_s * 1000)

    def stale_since(self, server: ServerView) -> int:
        """Return since when nothing is heard of a server, by the pool's time; 0 when it is."""
        heard = self.snapshot.heard_at.get(server.id)
        silent = heard is None or self.now - heard > STALE_AFTER_S
        if server.id in self.snapshot.connected and not silent:
            return 0
        measured = self.snapshot.telemetry.get(server.id)
        if heard is not None and measured is not None:
            return int(measured.at)
        return int(server.silent_since) or 1  # 1: nobody knows since when


def summary(moment: Moment, memory: Memory, viewer: Mapping[str, object]) -> Document:
    """Return what every page shows; ``viewer`` is who looks, and what they may do."""
    for server in moment.view.servers:
        measured = moment.snapshot.telemetry.get(server.id)
        if moment.stale_since(server):
            memory.flows.forget(server.id)
        elif measured is not None:
            memory.flows.take(measured)
    found = problems_of(moment)
    return Document(
        values={"pool": _pool(moment, found), "viewer": dict(viewer)},
        tables={
            "servers": _servers(moment, memory),
            "gpus": _gpus(moment, memory),
            "findings": _findings(found),
            "next": _waiting(moment.view.waiting[:WAITING_SHOWN], moment, memory),
            "events": _events(moment.view),
        },
    )


def work(moment: Moment, memory: Memory) -> Document:
    """Return leases and waiting requests."""
    return Document(
        tables={
            "leases": _leases(moment, memory),
            "waiting": _waiting(moment.view.waiting, moment, memory),
        }
    )


def _pool(moment: Moment, found: list[Problem]) -> dict[str, object]:
    view, raft = moment.view, moment.view.raft
    level, text = sentence(moment, found)
    return {
        "name": view.name,
        "level": level,
        "sentence": text,
        "quorum": raft.quorum,
        "leader": raft.leader,
        "term": raft.term,
        "elections": raft.elections,
        "voters": len(raft.voters),
        "leases": len(view.leases),
        "waiting": len(view.waiting),
        "policy": view.policy_version,
        "encryption": view.data_encryption,
        "cluster": view.cluster_id,
        "answered_by": view.answered_by,
        "records": view.record_count,
        "connected": len(moment.snapshot.connected),
    }


def _findings(found: list[Problem]) -> Table:
    return {
        "level": [each.level for each in found],
        "check": [each.check for each in found],
        "server": [each.server for each in found],
        "subject": [visible(each.subject) for each in found],
        "since": [each.since for each in found],
        "text": [visible(each.text) for each in found],
        "hint": [visible(each.hint) for each in found],
        "silence": [each.silence for each in found],
        # What a silence of it is of, or is of now.
        "key": [list(each.key) if each.key is not None else None for each in found],
    }


def _events(view: PoolView) -> Table:
    events = view.events[-EVENTS_SHOWN:][::-1]
    return {
        "at": [each.at for each in events],
        "kind": [each.kind for each in events],
        "subject": [each.subject for each in events],
        "text": [each.text for each in events],
    }


def _servers(moment: Moment, memory: Memory) -> Table:
    view = moment.view
    measured = [moment.snapshot.telemetry.get(each.id) for each in view.servers]
    moved = {each.id: [0.0, 0.0] for each in view.servers}
    for (server, _), flow in memory.flows.by_part.items():
        if server in moved:
            moved[server][0] += flow.bytes_in
            moved[server][1] += flow.bytes_out
    hosts = [each.host if each is not None else None for each in measured]
    return {
        "name": [visible(each.name) for each in view.servers],
        "state": [each.state for each in view.servers],
        "reason": [each.reason for each in view.servers],
        "role": [_role(each) for each in view.servers],
        "version": [each.version for each in view.servers],
        "driver": [each.driver_version for each in view.servers],
        "cuda": [each.cuda_version for each in view.servers],
        "labels": [
            {visible(name): visible(text) for name, text in each.labels.items()}
            for each in view.servers
        ],
        "leases": [each.lease_count for each in view.servers],
        "stale": [moment.stale_since(each) for each in view.servers],
        "speed": [each.link_speed or None for each in view.servers],
        "rdma": [each.rdma for each in view.servers],
        "in": [round(moved[each.id][0]) for each in view.servers],
        "out": [round(moved[each.id][1]) for each in view.servers],
        "cpu": [_percent(each.cpu_busy) if each else None for each in hosts],
        "lag": [round(each.loop_lag_s * 1000) if each else None for each in measured],
    }


def _role(server: ServerView) -> str:
    if server.witness:
        return "witness"
    return "leader" if server.leader else "voter" if server.voter else "member"


def _gpus(moment: Moment, memory: Memory) -> Table:
    view = moment.view
    wires = _wires(moment, memory)
    rows: list[tuple[int, ServerView, GpuView, GpuTelemetry | None]] = []
    for at, server in enumerate(view.servers):
        telemetry = moment.snapshot.telemetry.get(server.id)
        of_gpu = {each.gpu: each for each in telemetry.gpus} if telemetry is not None else {}
        rows += [(at, server, gpu, of_gpu.get(gpu.id)) for gpu in server.gpus]
    columns: Table = {
        "server": [at for at, *_ in rows],
        "index": [gpu.index for _, _, gpu, _ in rows],
        "model": [short_model(visible(gpu.name)) for _, _, gpu, _ in rows],
        "state": [gpu.state(server.state) for _, server, gpu, _ in rows],
        "total": [gpu.memory_total // MIB for *_, gpu, _ in rows],
        "capacity": [gpu.capacity // MIB for *_, gpu, _ in rows],
        "granted": [gpu.memory_granted // MIB for *_, gpu, _ in rows],
        "foreign": [gpu.memory_foreign // MIB for *_, gpu, _ in rows],
        "leases": [len(gpu.leases) for *_, gpu, _ in rows],
        "fault": [visible(gpu.fault) for *_, gpu, _ in rows],
        "drain": [visible(gpu.drain) for *_, gpu, _ in rows],
        "kind": ["emulated" if gpu.emulated else "MIG" if gpu.mig else "" for *_, gpu, _ in rows],
        "wire": [wires.get((server.id, gpu.id)) for _, server, gpu, _ in rows],
    }
    measured = [each for *_, each in rows]
    columns["busy"] = [_percent(each.utilization) if each else None for each in measured]
    columns |= _slow(moment, memory, rows)
    sm = [_percent(each.sm_activity) if each else None for each in measured]
    if any(each is not None for each in sm):
        columns["sm"] = [*sm]
    return columns


def _slow(
    moment: Moment,
    memory: Memory,
    rows: list[tuple[int, ServerView, GpuView, GpuTelemetry | None]],
) -> Table:
    """Return what changes slowly; of very many GPUs coarser, and anew every ten seconds only."""
    coarse = len(rows) > COARSE_FROM
    if coarse and len(memory.slow.get("used", ())) == len(rows) and moment.now < memory.slow_until:
        return memory.slow
    memory.slow_until = moment.now + SLOW_S
    memory.slow = {
        "used": [_used(gpu, each, coarse=coarse) if each else None for _, _, gpu, each in rows],
        "temperature": [_whole(each.temperature_c) if each else None for *_, each in rows],
        "power": [
            _whole(each.power_w, COARSE_W if coarse else 1) if each else None for *_, each in rows
        ],
    }
    return memory.slow


def _used(gpu: GpuView, measured: GpuTelemetry, *, coarse: bool) -> int:
    step = max(1, gpu.memory_total // 100) if coarse else MIB
    return round(measured.memory_used / step) * step // MIB


def _percent(share: float | None) -> int | None:
    return None if share is None else round(100 * share)


def _whole(value: float | None, step: int = 1) -> int | None:
    return None if value is None else round(value / step) * step


def _wires(moment: Moment, memory: Memory) -> dict[tuple[ServerId, GpuId], float]:
    """Return by GPU how much of each second its leases wait for the wire."""
    parts = {
        (part.server, lease.id, part.gpu)
        for lease in moment.view.leases
        for part in lease.partitions
    }
    by_part = {
        (server, lease): wire
        for (server, lease), session in _sessions(moment).items()
        if (flow := memory.flows.by_part.get((server, lease))) is not None
        and (wire := flow.wire(session.rtt_us)) is not None
    }
    found: dict[tuple[ServerId, GpuId], float] = {}
    for server, lease, gpu in parts:
        if (wire := by_part.get((server, lease))) is not None:
            found[server, gpu] = round(found.get((server, gpu), 0.0) + wire, 3)
    return found


def _sessions(moment: Moment) -> dict[tuple[ServerId, LeaseId], SessionTelemetry]:
    return {
        (server, session.lease): session
        for server, telemetry in moment.snapshot.telemetry.items()
        for session in telemetry.sessions
    }


def _leases(moment: Moment, memory: Memory) -> Table:
    view = moment.view
    at_server = {each.id: at for at, each in enumerate(view.servers)}
    index = {(s.id, gpu.id): gpu.index for s in view.servers for gpu in s.gpus}
    sessions = _sessions(moment)
    columns: Table = {
        "id": [each.name for each in view.leases],
        "user": [visible(each.user) for each in view.leases],
        "client": [each.client for each in view.leases],
        "program": [each.program for each in view.leases],
        "class": [each.user_class for each in view.leases],
        "department": [visible(each.department) for each in view.leases],
        "state": [each.state for each in view.leases],
        "reason": [each.reason for each in view.leases],
        "granted": [each.granted_at for each in view.leases],
        "waited": [
            max(0, each.granted_at - (each.requested_at or each.granted_at)) for each in view.leases
        ],
        # Of each partition: server's row, GPU's index, MiB that it holds.
        "parts": [
            [
                [
                    at_server.get(p.server, -1),
                    index.get((p.server, p.gpu), -1),
                    0 if each.is_away else p.memory // MIB,
                ]
                for p in each.partitions
            ]
            for each in view.leases
        ],
    }
    figures = [_figures(each, sessions, memory.flows) for each in view.leases]
    for at, name in enumerate(FIGURES):
        columns[name] = [row[at] for row in figures]
    return columns


FIGURES = (
    "in",
    "out",
    "calls",
    "waits",
    "exec",
    "rtt",
    "wire",
    "used",
    "busy",
    "idle",
    "transport",
)


def _figures(
    lease: LeaseView, sessions: Mapping[tuple[ServerId, LeaseId], SessionTelemetry], flows: Flows
) -> tuple[object, ...]:
    """Return what a lease does on all its servers together, in the order of ``FIGURES``."""
    servers = {part.server for part in lease.partitions}
    mine = {s: each for s in servers if (each := sessions.get((s, lease.id))) is not None}
    moved: dict[ServerId, Flow] = {
        server: flow
        for server in mine
        if (flow := flows.by_part.get((server, lease.id))) is not None
    }
    waits = [each.waits for each in moved.values() if each.waits is not None]
    wires = [w for s, each in moved.items() if (w := each.wire(mine[s].rtt_us)) is not None]
    rtts = [each.rtt_us for each in mine.values() if each.rtt_us is not None]
    execs = [each.exec_us for each in moved.values() if each.exec_us is not None]
    used = [each.memory_used for each in mine.values() if each.memory_used is not None]
    busy = [share for each in mine.values() for share in each.busy.values()]
    idle = [each.idle_s for each in mine.values() if each.idle_s is not None]
    return (
        round(sum(each.bytes_in for each in moved.values())) if moved else None,
        round(sum(each.bytes_out for each in moved.values())) if moved else None,
        round(sum(each.calls for each in moved.values())) if moved else None,
        round(sum(waits)) if waits else None,
        round(max(execs)) if execs else None,
        max(rtts) if rtts else None,
        round(sum(wires), 2) if wires else None,
        sum(used) // MIB if used else None,
        round(100 * sum(busy)) if busy else None,
        round(min(idle)) if idle else None,
        "+".join(sorted({each.transport for each in mine.values() if each.transport})),
    )


def _waiting(shown: tuple[WaitingView, ...], moment: Moment, memory: Memory) -> Table:
    starts = starts_by_s(moment.view)
    free_in = [starts.get(each.request) for each in shown]
    return {
        "id": [each.request[:8] for each in shown],
        "user": [visible(each.user) for each in shown],
        "client": [each.client for each in shown],
        "program": [each.program for each in shown],
        "class": [each.user_class for each in shown],
        "count": [each.count for each in shown],
        "fraction": [each.fraction for each in shown],
        "memory": [each.memory // MIB for each in shown],
        "across": [each.across for each in shown],
        "filters": [" and ".join(visible(one) for one in each.filters) for each in shown],
        "on": [", ".join(visible(one) for one in each.servers) for each in shown],
        "priority": [each.priority for each in shown],
        "since": [_waits_since(each, moment.view, memory) for each in shown],
        "reason": [each.reason for each in shown],
        # When enough GPUs are free at the latest, by the pool's time.
        "free": [in_s and moment.view.now + round(1000 * in_s) for in_s in free_in],
    }


def _waits_since(waiting: WaitingView, view: PoolView, memory: Memory) -> int:
    """Return the time that a request came, the same in every document although it is measured."""
    since = memory.since.get(waiting.request)
    if since is None:
        if len(memory.since) > 2 * len(view.waiting) + 100:
            memory.since.clear()
        since = memory.since[waiting.request] = int(view.now - waiting.waited_s * 1000)
    return since
