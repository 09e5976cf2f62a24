"""Lists, the live view and the page say the same of a pool: each test is of a former difference."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.cli.conftest import gpu, pool, server, telemetry

from gpupool.cli.commands.view import leases_body
from gpupool.cli.lib.columns import GPU_COLUMNS, LEASE_COLUMNS, SERVER_COLUMNS, Column, Glyphs
from gpupool.cli.tui.panels import health_of
from gpupool.monitoring.web.live_documents import Memory, summary, work
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.model.state import Partition
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate, PoolWatch
from gpupool.pool.telemetry import Finding, Health, SessionTelemetry
from gpupool.pool.view import PoolView

GIB = 1 << 30
VIEW = pool(
    server(0, (gpu(0, 0, 70 * GIB), gpu(0, 1, 70 * GIB))),
    server(1, (gpu(1, 0), gpu(1, 1))),
    server(2, (), witness=True),
)
FIRST, SECOND, THIRD = (each.id for each in VIEW.servers)
[LEASE] = VIEW.leases
TOLD = telemetry(VIEW)


def known(view: PoolView = VIEW, **changes: Any) -> PoolSnapshot:
    made = PoolSnapshot(view, telemetry=TOLD, telemetry_age_s=dict.fromkeys(TOLD, 0.2))
    return replace(made, **changes)


def listed(columns: Iterable[Column[Any]], title: str, rows: Iterable[Any]) -> list[str]:
    """Return the cells of one column of a list."""
    [column] = [each for each in columns if each.title == title]
    return [column.cell(row, Glyphs()).text for row in rows]


def on_page(snapshot: PoolSnapshot, table: str) -> dict[str, list[Any]]:
    """Return one table of the page's documents."""
    tables = {**summary(snapshot, 0.0, Memory(), {}).tables, **work(snapshot).tables}
    return tables[table]


def in_pool(snapshot: PoolSnapshot) -> dict[str, Any]:
    """Return the page's sums."""
    found: Any = summary(snapshot, 0.0, Memory(), {}).values["pool"]
    return found


def leases_json(snapshot: PoolSnapshot) -> list[dict[str, Any]]:
    """Return the leases of ``leases --json``."""
    found: Any = leases_body(snapshot)["leases"]
    return found


def told_by(session: SessionTelemetry, *, at: int = 0) -> dict[Any, Any]:
    return {**TOLD, FIRST: replace(TOLD[FIRST], at=Milliseconds(at), sessions=(session,))}


@pytest.mark.parametrize("lost", [FIRST, SECOND])
def test_gpus_of_a_server_that_does_not_answer_are_away(lost: Any) -> None:
    snapshot = known(silent=frozenset({lost}))
    states = on_page(snapshot, "gpus")["state"]
    assert listed(GPU_COLUMNS, "STATE", snapshot.gpus) == states
    assert states.count("away") == 2 == listed(GPU_COLUMNS, "FREE", snapshot.gpus).count("-")
    assert (
        listed(SERVER_COLUMNS, "STATE", snapshot.servers) == on_page(snapshot, "servers")["state"]
    )


def test_gpus_are_counted_by_the_states_that_lists_show() -> None:
    drained = replace(VIEW.servers[0], state="drain")
    for snapshot, expected in (
        (known(), "2 used, 2 idle, 4 in all"),
        (known(silent=frozenset({FIRST})), "0 used, 2 idle, 2 unreachable, 4 in all"),
        (
            known(replace(VIEW, servers=(drained, *VIEW.servers[1:]))),
            "0 used, 2 idle, 2 not offered, 4 in all",
        ),
    ):
        sums, page = snapshot.sums, in_pool(snapshot)
        assert sums.counts_text() == expected
        assert (page["used"], page["idle"]) == (sums.used, sums.idle)
        assert page["other"] == sums.unreachable + sums.other


@pytest.mark.parametrize(("age_s", "silent"), [(3.9, False), (4.1, True)])
def test_measurements_are_old_after_the_same_time(age_s: float, silent: bool) -> None:
    snapshot = known(telemetry_age_s=dict.fromkeys(TOLD, age_s))
    assert [row.unreachable for row in snapshot.servers] == [silent] * 3
    assert [bool(each) for each in on_page(snapshot, "servers")["stale"]] == [silent] * 3
    assert in_pool(snapshot)["answer"] == (0 if silent else 3)


def test_a_figure_that_lacks_a_server_is_not_known() -> None:
    parts = (LEASE.partitions[0], Partition(SECOND, GpuId("GPU-1-0"), GIB))
    half = SessionTelemetry(LEASE.id, 1, 0, 0, 0, 0, memory_used=GIB, rtt_us=90, idle_s=5.0)
    nothing = SessionTelemetry(LEASE.id, 1, 0, 0, 0, 0)
    told = {**told_by(half), SECOND: replace(TOLD[SECOND], sessions=(nothing,))}
    view = replace(VIEW, leases=(replace(LEASE, partitions=parts),))
    snapshot = known(view, telemetry=told)
    page = on_page(snapshot, "leases")
    for title, name in (("USED", "used"), ("RTT", "rtt"), ("IDLE", "idle"), ("BUSY", "busy")):
        assert listed(LEASE_COLUMNS, title, snapshot.leases) == ["-"]
        assert page[name] == [None], name


def test_what_a_silent_server_said_is_in_no_sum() -> None:
    busy = {GpuId("GPU-0-0"): 0.5}
    session = SessionTelemetry(LEASE.id, 1, 0, 0, 0, 0, memory_used=GIB, rtt_us=90, busy=busy)
    snapshot = known(telemetry=told_by(session), silent=frozenset({FIRST}))
    page = on_page(snapshot, "leases")
    assert listed(LEASE_COLUMNS, "RTT", snapshot.leases) == ["-"]
    assert (page["rtt"], page["used"], page["busy"]) == ([None], [None], [None])
    assert (snapshot.sums.power_w, in_pool(snapshot)["power"]) == (700.0, 700)


def test_rates_end_with_the_connection_and_begin_anew() -> None:
    watch = PoolWatch(1.0)

    def take(at_s: int, *, connected: bool = True) -> PoolSnapshot:
        session = SessionTelemetry(LEASE.id, 1, 100 * at_s, 100 * at_s, 0, 0)
        told = told_by(session, at=1000 * at_s) if connected else {}
        servers = (FIRST, SECOND, THIRD) if connected else (SECOND, THIRD)
        watch.take(PoolUpdate(VIEW, told, 0.0, servers), float(at_s))
        snapshot = watch.snapshot(float(at_s))
        assert snapshot is not None
        return snapshot

    for at_s in range(3):
        take(at_s)
    assert listed(LEASE_COLUMNS, "CALLS/S", take(3).leases) == ["100"]
    lost = take(60, connected=False)
    assert listed(LEASE_COLUMNS, "CALLS/S", lost.leases) == ["-"]
    assert on_page(lost, "leases")["calls"] == [None]
    assert on_page(lost, "servers")["in"] == [0, 0, 0]
    assert listed(LEASE_COLUMNS, "CALLS/S", take(100).leases) == ["-"], "no mean over a silence"
    assert listed(LEASE_COLUMNS, "CALLS/S", take(101).leases) == ["100"]


def test_a_view_that_is_asked_for_seldom_is_not_old_in_between() -> None:
    """Of "gpupool top --interval 10s" every other frame had all servers away."""
    watch = PoolWatch(10.0)
    watch.take(PoolUpdate(VIEW, TOLD, 0.0, (FIRST, SECOND, THIRD)), 0.0)
    for now, old in ((9.0, False), (14.0, True)):
        snapshot = watch.snapshot(now)
        assert snapshot is not None
        assert snapshot.is_old is old
        assert all(row.unreachable is old for row in snapshot.servers)


def test_a_server_is_given_the_time_to_answer_first() -> None:
    watch = PoolWatch(1.0)
    watch.take(PoolUpdate(VIEW, {FIRST: TOLD[FIRST]}, 0.0, (FIRST,)), 0.0)
    for now, silent in ((1.0, set[Any]()), (5.0, {SECOND, THIRD})):
        watch.take(
            PoolUpdate(
                VIEW, {FIRST: replace(TOLD[FIRST], at=Milliseconds(int(now)))}, 0.0, (FIRST,)
            ),
            now,
        )
        snapshot = watch.snapshot(now)
        assert snapshot is not None
        assert {row.server.id for row in snapshot.servers if row.unreachable} == silent
        assert in_pool(snapshot)["level"] == ("fail" if silent else "ok")


def test_why_a_lease_is_as_it_is() -> None:
    says = SessionTelemetry(LEASE.id, 1, 0, 0, 0, 0, not_suspendable="it uses NCCL")
    for lease, reason in (
        (replace(LEASE, not_moved="full"), "not moved: full"),
        (LEASE, "cannot be suspended: it uses NCCL"),
    ):
        snapshot = known(replace(VIEW, leases=(lease,)), telemetry=told_by(says))
        assert listed(LEASE_COLUMNS, "REASON", snapshot.leases) == [reason]
        assert on_page(snapshot, "leases")["reason"] == [reason]
        (told,) = leases_json(snapshot)
        assert told["not_suspendable"] == "it uses NCCL"


def test_servers_of_another_version_are_named_on_the_page_too() -> None:
    newer = replace(VIEW.servers[1], version="0.2.0")
    snapshot = known(replace(VIEW, servers=(VIEW.servers[0], newer, VIEW.servers[2])))
    text = "other version: 0.2.0, most have 0.1.0"
    assert listed(SERVER_COLUMNS, "REASON", snapshot.servers)[1] == text
    assert on_page(snapshot, "servers")["reason"][1] == text


def test_all_ages_grow_with_that_of_the_view() -> None:
    snapshot = known(view_age_s=30.0)
    rows = [*snapshot.leases, *snapshot.requests]
    assert listed(LEASE_COLUMNS, "AGE", rows) == ["2m10s", "42s"]
    assert listed(GPU_COLUMNS, "AGE", snapshot.gpus)[0] == "2m10s"
    page = on_page(snapshot, "waiting")
    assert snapshot.now_ms - page["since"][0] == 42_000


def test_the_time_by_which_gpus_are_free_comes_nearer() -> None:
    ends_at = Milliseconds(VIEW.now + 90_000)
    view = replace(
        VIEW,
        leases=(replace(LEASE, ends_at=ends_at),),
        waiting=(replace(VIEW.waiting[0], count=4, across=True),),
    )
    for age_s, left in ((30.0, "1m00s"), (60.0, "30s")):
        snapshot = known(view, view_age_s=age_s)
        assert listed(LEASE_COLUMNS, "FREE IN", snapshot.requests) == [left]
        assert on_page(snapshot, "waiting")["free"] == [ends_at], "the same all the time"


def test_the_page_has_the_findings_of_gpupool_health_once() -> None:
    lost = Finding("gpu-fault", "GPU-0-0", Health.FAIL, Milliseconds(1), "GPU 0: lost")
    away = Finding("silent", "server-c", Health.FAIL, Milliseconds(1), "server-c does not answer")
    card = replace(VIEW.servers[0].gpus[0], fault="lost")
    broken = replace(VIEW.servers[0], gpus=(card, VIEW.servers[0].gpus[1]))
    view = replace(VIEW, servers=(broken, VIEW.servers[1], replace(VIEW.servers[2], state="down")))
    told = {
        FIRST: replace(TOLD[FIRST], findings=(lost, away)),
        SECOND: replace(TOLD[SECOND], findings=(away,)),
    }
    snapshot = known(view, telemetry=told, silent=frozenset({THIRD}))
    page = on_page(snapshot, "findings")
    rows = health_of(snapshot).findings
    assert page["check"] == [row.finding.check for row in rows] == ["silent", "gpu-fault"]
    assert page["subject"] == ["server-c", "GPU 0"]
    assert in_pool(snapshot)["sentence"] == (
        "server-c does not answer: 0 GPUs cannot be granted; 1 more check fails."
    )
