"""The read model as the columns that the pages show. Pure: a snapshot in, data out.

Two documents: the summary has servers, GPUs, findings and events, and is what every page asks for;
the work has leases and waiting requests, and only pages that show them ask. Long identifiers of
GPUs are in neither, because random text does not compress; a server's own page has them. None is
unknown, which is never shown as 0.

A column is one row of a table below: its name, and how it is read from a row of the read model
(``pool/read_model/pool_snapshot.py``), which derives all that is more than a unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpupool.monitoring.web.health_words import findings_of, findings_table, sentence
from gpupool.monitoring.web.live_book import Document, Table
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.read_model.pool_snapshot import (
    GpuRow,
    LeaseRow,
    PoolSnapshot,
    RequestRow,
    ServerRow,
)
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.view import PoolView, ServerView, visible

MIB = 1 << 20

EVENTS_SHOWN = 200
WAITING_SHOWN = 8
COARSE_FROM = 1000
"""With more GPUs than that, memory is told in hundredths, power in steps, and both less often."""

COARSE_W = 10
SLOW_S = 10.0

R = TypeVar("R")
Columns = Mapping[str, Callable[[R], object]]


@dataclass(slots=True)
class Memory:
    """State kept from one document to the next."""

    slow: Table = field(default_factory=dict[str, list[object]])
    slow_until: float = 0.0


def summary(
    snapshot: PoolSnapshot, now: float, memory: Memory, viewer: Mapping[str, object]
) -> Document:
    """Return the document of every page; ``viewer`` is the user, and their permissions."""
    found = findings_of(snapshot)
    level, text = sentence(snapshot, found)
    return Document(
        values={
            "pool": {**_pool(snapshot), "level": level, "sentence": text},
            "viewer": dict(viewer),
        },
        tables={
            "servers": _table(SERVERS, snapshot.servers),
            "gpus": _gpus(snapshot, now, memory),
            "findings": findings_table(snapshot, found),
            "next": _table(REQUESTS, snapshot.requests[:WAITING_SHOWN]),
            "events": _events(snapshot),
        },
    )


def work(snapshot: PoolSnapshot) -> Document:
    """Return leases and waiting requests."""
    return Document(
        tables={
            "leases": {**_table(LEASES, snapshot.leases), "parts": _parts(snapshot.view)},
            "waiting": _table(REQUESTS, snapshot.requests),
        }
    )


def _table(columns: Columns[R], rows: Sequence[R]) -> Table:
    return {name: [read(row) for row in rows] for name, read in columns.items()}


def _pool(snapshot: PoolSnapshot) -> dict[str, object]:
    view, raft, sums = snapshot.view, snapshot.view.raft, snapshot.sums
    return {
        "name": view.name,
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
        "answer": len(view.servers) - len(snapshot.unreachable),
        "used": sums.used,
        "idle": sums.idle,
        "other": sums.unreachable + sums.other,
        "granted": sums.granted // MIB,
        "capacity": sums.capacity // MIB,
        "busy": _percent(sums.busy),
        "power": _whole(sums.power_w),
        "power_count": sums.power_count,
    }


def _events(snapshot: PoolSnapshot) -> Table:
    events = snapshot.view.events[-EVENTS_SHOWN:][::-1]
    return {
        "at": [each.at for each in events],
        "kind": [each.kind for each in events],
        "subject": [each.subject for each in events],
        "text": [each.text for each in events],
    }


def _role(server: ServerView) -> str:
    if server.witness:
        return "witness"
    return "leader" if server.leader else "voter" if server.voter else "member"


def _percent(share: float | None) -> int | None:
    return None if share is None else round(100 * share)


def _whole(value: float | None, step: int = 1) -> int | None:
    return None if value is None else round(value / step) * step


SERVERS: Columns[ServerRow] = {
    "name": lambda row: visible(row.server.name),
    "state": lambda row: row.state,
    "reason": lambda row: row.reason,
    "role": lambda row: _role(row.server),
    "version": lambda row: row.server.version,
    "driver": lambda row: row.server.driver_version,
    "cuda": lambda row: row.server.cuda_version,
    "labels": lambda row: {visible(k): visible(v) for k, v in row.server.labels.items()},
    "leases": lambda row: row.server.lease_count,
    "stale": lambda row: row.silent_since,
    "speed": lambda row: row.server.link_speed or None,
    "rdma": lambda row: row.server.rdma,
    "in": lambda row: round(row.rate.up_per_s) if row.rate else 0,
    "out": lambda row: round(row.rate.down_per_s) if row.rate else 0,
    "cpu": lambda row: (
        _percent(row.telemetry.host.cpu_busy) if row.telemetry and row.telemetry.host else None
    ),
    "lag": lambda row: round(row.telemetry.loop_lag_s * 1000) if row.telemetry else None,
}

GPUS: Columns[GpuRow] = {
    "index": lambda row: row.gpu.index,
    "model": lambda row: short_model(visible(row.gpu.name)),
    "state": lambda row: row.state,
    "total": lambda row: row.gpu.memory_total // MIB,
    "capacity": lambda row: row.gpu.capacity // MIB,
    "granted": lambda row: row.gpu.memory_granted // MIB,
    "foreign": lambda row: row.gpu.memory_foreign // MIB,
    "leases": lambda row: len(row.gpu.leases),
    "fault": lambda row: visible(row.gpu.fault),
    "drain": lambda row: visible(row.gpu.drain),
    "kind": lambda row: "emulated" if row.gpu.emulated else "MIG" if row.gpu.mig else "",
    "busy": lambda row: _percent(row.telemetry.utilization) if row.telemetry else None,
}

LEASES: Columns[LeaseRow] = {
    "id": lambda row: row.id,
    "user": lambda row: visible(row.source.user),
    "client": lambda row: row.source.client,
    "program": lambda row: row.source.program,
    "class": lambda row: row.source.user_class,
    "department": lambda row: visible(row.source.department),
    "state": lambda row: row.state,
    "reason": lambda row: row.reason,
    "granted": lambda row: row.source.granted_at,
    "waited": lambda row: row.waited_ms,
    "in": lambda row: round(row.rate.up_per_s) if row.rate else None,
    "out": lambda row: round(row.rate.down_per_s) if row.rate else None,
    "calls": lambda row: round(row.rate.calls_per_s) if row.rate else None,
    "waits": lambda row: _whole(row.rate.waits_per_s) if row.rate else None,
    "exec": lambda row: _whole(row.rate.exec_us) if row.rate else None,
    "rtt": lambda row: row.figures.rtt_us,
    "wire": lambda row: row.rate.wire_s and round(row.rate.wire_s, 2) if row.rate else None,
    "used": lambda row: (
        _whole(row.figures.memory_used // MIB) if row.figures.memory_used is not None else None
    ),
    "busy": lambda row: _percent(row.figures.busy),
    "idle": lambda row: _whole(row.figures.idle_s),
    "transport": lambda row: row.figures.transport,
}

REQUESTS: Columns[RequestRow] = {
    "id": lambda row: row.source.request[:8],
    "user": lambda row: visible(row.source.user),
    "client": lambda row: row.source.client,
    "program": lambda row: row.source.program,
    "class": lambda row: row.source.user_class,
    "count": lambda row: row.source.count,
    "fraction": lambda row: row.source.fraction,
    "memory": lambda row: row.source.memory // MIB,
    "across": lambda row: row.source.across,
    "filters": lambda row: " and ".join(visible(each) for each in row.source.filters),
    "on": lambda row: ", ".join(visible(each) for each in row.source.servers),
    "priority": lambda row: row.source.priority,
    "since": lambda row: row.since,
    "reason": lambda row: row.reason,
    "free": lambda row: row.free_at,
}


def _gpus(snapshot: PoolSnapshot, now: float, memory: Memory) -> Table:
    rows = snapshot.gpus
    places = [at for at, server in enumerate(snapshot.view.servers) for _ in server.gpus]
    wires = _wires(snapshot)
    sm = [_percent(row.telemetry.sm_activity) if row.telemetry else None for row in rows]
    return {
        "server": [*places],
        **_table(GPUS, rows),
        "wire": [wires.get((row.server.server.id, row.gpu.id)) for row in rows],
        **_slow(rows, now, memory),
        **({"sm": [*sm]} if any(each is not None for each in sm) else {}),
    }


def _slow(rows: list[GpuRow], now: float, memory: Memory) -> Table:
    """Return the slow columns; of very many GPUs coarser, and anew every ten seconds only."""
    coarse = len(rows) > COARSE_FROM
    if coarse and len(memory.slow.get("used", ())) == len(rows) and now < memory.slow_until:
        return memory.slow
    told = [row.telemetry for row in rows]
    watts = COARSE_W if coarse else 1
    memory.slow_until = now + SLOW_S
    memory.slow = {
        "used": [_used(row, coarse=coarse) for row in rows],
        "temperature": [_whole(each.temperature_c) if each else None for each in told],
        "power": [_whole(each.power_w, watts) if each else None for each in told],
    }
    return memory.slow


def _used(row: GpuRow, *, coarse: bool) -> int | None:
    step = max(1, row.gpu.memory_total // 100) if coarse else MIB
    used = _whole(row.telemetry.memory_used, step) if row.telemetry else None
    return None if used is None else used // MIB


def _wires(snapshot: PoolSnapshot) -> dict[tuple[ServerId, GpuId], float]:
    """Return by GPU how much of each second its leases wait for the wire."""
    found: dict[tuple[ServerId, GpuId], float] = {}
    for lease in snapshot.view.leases:
        for server, gpu in {(part.server, part.gpu) for part in lease.partitions}:
            rate = snapshot.rates_now.get((server, lease.id))
            if rate is not None and rate.wire_s is not None:
                found[server, gpu] = round(found.get((server, gpu), 0.0) + rate.wire_s, 3)
    return found


def _parts(view: PoolView) -> list[object]:
    """Return of each lease its partitions: server's row, GPU's index, MiB that it holds."""
    at_server = {server.id: at for at, server in enumerate(view.servers)}
    index = {(server.id, gpu.id): gpu.index for server in view.servers for gpu in server.gpus}
    return [
        [
            [
                at_server.get(part.server, -1),
                index.get((part.server, part.gpu), -1),
                0 if lease.is_away else part.memory // MIB,
            ]
            for part in lease.partitions
        ]
        for lease in view.leases
    ]
