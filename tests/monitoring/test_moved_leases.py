"""Usage of leases that go to other servers and come back: each stay counts, and each lease once."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, MONDAY_MS
from tests.pool.test_lease_relocations import C, D, Going, gpu

from gpupool.monitoring.accounting import KEYS, Range, total
from gpupool.monitoring.pages import told
from gpupool.monitoring.usage_report import Report, lease_report, live_records, pool_report
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.commands import EndLease
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.model.units import DAY_MS
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.record_query import RecordQuery
from gpupool.pool.view import PoolView, Stay
from gpupool.pool.view_building import build_view
from gpupool.remoting.client.usage_query import UsageAnswer

HEALTH = RaftHealth(Role.LEADER, C, 3, 70, 70, (C,), (), 0.1, {}, 1)
HALF = UNIT // 2


def at(ms: int) -> Milliseconds:
    return Milliseconds(MONDAY_MS + ms)


def view_of(pool: Going) -> PoolView:
    return decode(PoolView, encode(build_view(pool.state, HEALTH, C, pool.now_ms)))


def report(pool: Going, query: RecordQuery) -> Report:
    page = told(pool.state.records, query)
    answer = UsageAnswer(groups={each.key: each for each in page.groups}, whole=page.whole)
    return pool_report(view_of(pool), answer, query, None)


def parts_of(pool: Going) -> list[LeaseRecord]:
    return [*pool.state.records, *live_records(view_of(pool))[0]]


def leaves(pool: Going, lease: LeaseId, target: ServerId) -> None:
    assert pool.go(lease, target).ok


def goes(pool: Going, lease: LeaseId) -> None:
    assert pool.confirm(lease).ok


def frees(pool: Going, lease: LeaseId, server: ServerId) -> None:
    assert pool.do(pool.freed(lease, server)).ok


def moved(pool: Going, lease: LeaseId, target: ServerId, wait_ms: int = 1000) -> None:
    """Move a lease; the old server frees its part ``wait_ms`` later."""
    (source,) = pool.lease(lease).parts
    leaves(pool, lease, target)
    goes(pool, lease)
    pool.now_ms += wait_ms
    frees(pool, lease, source)


def counts_once(pool: Going, by: str, half_gpu_ms: int) -> None:
    found = report(pool, RecordQuery(by=by))
    assert found.whole.unit_ms == half_gpu_ms * HALF
    assert sum(row.unit_ms for row in found.rows.values()) == half_gpu_ms * HALF
    assert found.whole.leases == 1
    assert {row.leases for row in found.rows.values() if row.unit_ms} == {1}, found.rows


@pytest.mark.parametrize("by", KEYS)
def test_a_lease_on_its_way_counts_once_and_for_as_long_as_it_is_anywhere(by: str) -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    steps = (
        (1, lambda: leaves(pool, lease, D)),
        (1, lambda: goes(pool, lease)),
        (2, lambda: frees(pool, lease, C)),  # until then it counts on both
        (1, lambda: leaves(pool, lease, C)),
        (1, lambda: goes(pool, lease)),
        (2, lambda: frees(pool, lease, D)),
        (1, lambda: leaves(pool, lease, D)),
        (1, lambda: pool.refuse(lease)),
        (1, lambda: frees(pool, lease, D)),
        (1, lambda: pool.end(lease)),
    )
    counted = 0
    for places, step in steps:
        pool.now_ms += 1000
        counted += places * 1000
        counts_once(pool, by, counted)
        step()
        counts_once(pool, by, counted)
    assert [each.server for each in pool.state.records] == [C, D, C]
    assert pool.state.records[-1].reason == "over"


def test_memory_where_a_lease_never_came_counts_as_nothing_while_it_ends() -> None:
    """Seed 103 of a search: the server of the lease had freed its part before the other one."""
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    pool.now_ms += 1000
    leaves(pool, lease, D)
    assert pool.do(EndLease(lease, "over")).ok
    frees(pool, lease, C)
    pool.now_ms += 1000
    counts_once(pool, "user", 1000)


@pytest.mark.parametrize("day", range(4))
def test_a_lease_counts_on_each_day_and_server_of_a_range(day: int) -> None:
    """It is on C for two days, on D for one, and on C since."""
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    pool.now_ms += 2 * DAY_MS
    moved(pool, lease, D)
    pool.now_ms += DAY_MS
    moved(pool, lease, C)
    pool.now_ms += DAY_MS
    since = at(day * DAY_MS)
    rows = report(pool, RecordQuery(by="server", since=since)).rows
    assert {name: row.leases for name, row in rows.items()} == {"c": 1, "d": 1}
    rows = report(pool, RecordQuery(by="day", since=since)).rows
    assert len(rows) == 5 - day
    assert {row.leases for row in rows.values()} == {1}


def test_a_stay_that_the_table_has_dropped_counts_the_lease_no_second_time() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    pool.now_ms += 1000
    moved(pool, lease, D)
    view, page = view_of(pool), told(pool.state.records, RecordQuery(by="user"))
    (row,) = view.leases
    over, here = row.stays
    assert (over, here) == (Stay(C, at(0), at(2000)), Stay(D, at(1000)))
    view = replace(view, leases=(replace(row, stays=(here,)),))
    answer = UsageAnswer(groups={each.key: each for each in page.groups}, whole=page.whole)
    assert pool_report(view, answer, RecordQuery(by="user"), None).rows["ada"].leases == 1


def test_one_lease_is_told_with_its_first_grant_its_end_and_each_gpu_once() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    pool.now_ms += 1000
    moved(pool, lease, D)
    moved(pool, lease, C)
    live = lease_report(lease, parts_of(pool))
    assert [line for line in live if line.startswith("GPU")] == [
        "GPU         c: GPU, 40.0 GiB, 0.500 of it",
        "GPU         d: GPU, 40.0 GiB, 0.500 of it",
    ]
    granted = next(line for line in live if line.startswith("granted"))
    assert "ended       not over" in live
    pool.now_ms += 5000
    pool.end(lease)
    over = lease_report(lease, parts_of(pool))
    assert granted in over
    assert next(line for line in over if line.startswith("ended")).endswith("UTC: over")
    assert [line for line in over if line.startswith("GPU")] == [
        line for line in live if line.startswith("GPU")
    ]
    assert total(parts_of(pool), Range()).byte_ms == 40 * GIB * (2000 + 2000 + 6000)
