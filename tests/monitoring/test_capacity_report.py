"""Capacity lines: the use of all GPUs, from the table to the report; their sums close."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitoring.samples import H200, ME, START_MS, gpu_id, sample, table
from tests.monitoring.test_history_store import rows_of, writer

from gpupool.monitoring.accounting import Range
from gpupool.monitoring.history import capacity_report as report
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.sample import CapacityBooks, pool_books
from gpupool.pool.history_query import CapacitySum, HistoryPage, HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import Gpu, PoolState, ServerStatus, with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.policy.prices import prices_of

DAY_S = 86_400
T0 = START_MS // 1000 // DAY_S * DAY_S
A, B = ServerId("a" * 12), ServerId("b" * 12)
STATUSES = (ServerStatus.UP, ServerStatus.JOINED, ServerStatus.UNREACHABLE)


def with_gpus(state: PoolState, *gpus: Gpu, status: ServerStatus = ServerStatus.UP) -> PoolState:
    found = {gpu.id: gpu for gpu in gpus}
    server = replace(state.servers[ME], gpus=found, status=status)
    return with_changes(state, servers=PersistentMap({ME: server}))


def gpu(number: int, granted: int = 0, **more: object) -> Gpu:
    made = Gpu(gpu_id(number), number, "NVIDIA H200", H200, memory_granted=granted)
    return replace(made, **more)  # type: ignore[arg-type]


def books(state: PoolState) -> CapacityBooks:
    return pool_books(state, START_MS).models["NVIDIA H200"]


def test_what_is_left_of_a_gpu_is_what_keeps_it_from_being_granted() -> None:
    state, half = table(gpus=0, leases=0), H200 // 2
    assert books(with_gpus(state, gpu(0, half), gpu(1))) == CapacityBooks(2_000_000, 500_000)
    quarter = gpu(0, half, memory_foreign=H200 // 4)
    assert books(with_gpus(state, quarter)) == CapacityBooks(1_000_000, 500_000, 250_000)
    drained = replace(quarter, drain_reason="fans")
    assert books(with_gpus(state, drained)).drained == 250_000
    assert books(with_gpus(state, replace(quarter, fault="lost"))).fault == 250_000
    for status in STATUSES[1:]:
        assert books(with_gpus(state, quarter, status=status)).down == 250_000


@given(
    st.lists(
        st.builds(
            gpu,
            st.integers(0, 7),
            st.integers(0, 2 * H200),
            memory_foreign=st.integers(0, 2 * H200),
            memory_reserved=st.integers(0, 2 * H200),
            drain_reason=st.sampled_from(["", "fans"]),
            fault=st.sampled_from(["", "lost"]),
        ),
        min_size=1,
    ),
    st.sampled_from(STATUSES),
)
def test_the_parts_are_never_more_than_all(gpus: list[Gpu], status: ServerStatus) -> None:
    found = books(with_gpus(table(gpus=0, leases=0), *gpus, status=status))
    parts = [found.granted, found.outside, found.drained, found.down, found.fault]
    assert min(parts) >= 0
    assert sum(parts) <= found.gpus == 1_000_000 * len({each.id for each in gpus})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hours before midnight and one after; a quarter is granted, then a GPU is drained."""
    path = tmp_path_factory.mktemp("history")
    helper = writer(path)
    free, drained = gpu(1), gpu(1, drain_reason="fans")
    for second in range(DAY_S - 7200, DAY_S + 3610, 10):
        other = free if second < DAY_S else drained
        state = with_gpus(table(gpus=0, leases=0), gpu(0, H200 // 2), other)
        helper.take(sample(state, 1000 * (T0 + second + part)) for part in range(10))
    helper.close()
    return path


def ask(folder: Path, since: int, until: int, **more: object) -> HistoryPage:
    begin, end = Milliseconds(1000 * (T0 + since)), Milliseconds(1000 * (T0 + until))
    query = HistoryQuery("capacity", "model", since=begin, until=end)
    return read_history(folder, replace(query, **more))  # type: ignore[arg-type]


@pytest.mark.long
def test_a_days_sums_are_exact_within_any_range(folder: Path) -> None:
    until = DAY_S + 3600
    first, second = ask(folder, 0, until, user="ada").capacity
    hour = 3600 * 1_000_000
    assert first == CapacitySum(T0, "NVIDIA H200", 7200, 4 * hour, hour, 0, 0, 0, 0)
    assert second == CapacitySum(
        T0 + DAY_S, "NVIDIA H200", 3600, 2 * hour, hour // 2, 0, hour, 0, 0
    )
    [part] = ask(folder, DAY_S - 3670, DAY_S - 20).capacity
    assert (part.seconds, part.gpus) == (3650, 2 * 3650 * 1_000_000)
    assert ask(folder, 0, until, after=1).capacity == (second,)


def test_coarser_rows_are_the_finer_ones_added_up(folder: Path) -> None:
    sums = "sum(n), sum(gpus), sum(granted), sum(drained)"
    [slots] = rows_of(folder, f"SELECT {sums} FROM capacity_sample_10s WHERE t < {T0 + DAY_S}")
    for tier in ("1m", "1h"):
        rows = rows_of(folder, f"SELECT {sums} FROM capacity_sample_{tier} WHERE t < {T0 + DAY_S}")
        assert rows == [slots], tier


def test_parts_of_a_line_are_all_of_it(folder: Path) -> None:
    until = DAY_S + 3600
    within = Range(1000 * T0, 1000 * (T0 + until))
    found = report.capacity_report({A: ask(folder, 0, until)}, "day", within)
    assert list(found.rows) == ["2026-09-21", "2026-09-22"]
    shown = report.plain_row(found.whole)
    total = shown.pop("gpu_hours")
    assert total == 6.0 == sum(shown.values())
    assert shown == {
        "granted_gpu_hours": 1.5,
        "free_gpu_hours": 3.5,
        "drained_gpu_hours": 1.0,
        "down_gpu_hours": 0.0,
        "fault_gpu_hours": 0.0,
        "outside_gpu_hours": 0.0,
    }
    assert found.seen == 1.0, "from the first moment on of which anything is known"
    assert report.table(found)[-1] == (
        *("all", "6.00", "25.0%", "58.3%", "16.7%", "0.0%", "0.0%", "0.0%"),
    )
    header, *lines = report.as_csv(found).splitlines()
    assert header.startswith("day,all [GPU h],granted [GPU h],free [GPU h],drained [GPU h]")
    assert lines[1] == "2026-09-22,2.0,0.5,0.5,1.0,0.0,0.0,0.0"


def row(day: int, seconds: int, granted: int = 0, model: str = "H200") -> CapacitySum:
    return CapacitySum(DAY_S * day, model, seconds, seconds * 10**6, granted, 0, 0, 0, 0)


def test_of_each_day_the_server_tells_that_knows_most_of_it() -> None:
    pages = {
        A: HistoryPage(capacity=(row(0, 100), row(1, 50)), oldest=Milliseconds(1)),
        B: HistoryPage(capacity=(row(0, 40, 7), row(1, 60, 9), row(1, 20, 5, "A100"))),
    }
    found = report.capacity_report(pages, "model", Range(0, 2 * DAY_S * 1000))
    assert {name: each.seconds for name, each in found.rows.items()} == {"A100": 20, "H200": 160}
    assert found.whole.granted == 14
    assert found.seen == pytest.approx(160 / (2 * DAY_S), rel=1e-6)


PRICED = ((0, prices_of('[prices]\n"H200" = 2.4\n')),)


def test_what_was_free_is_shown_in_money_at_the_price_of_its_time() -> None:
    pages = {
        A: HistoryPage(capacity=(row(0, 7200, 3600 * 10**6), row(1, 3600), row(1, 60, 0, "P4")))
    }
    change = 1000 * (DAY_S + DAY_S // 4)  # after a quarter of the second day
    timeline = (*PRICED, (change, prices_of('[prices]\ncurrency = "EUR"\n"H200" = 4\n')))
    found = report.capacity_report(pages, "day", Range(0, 2 * DAY_S * 1000), timeline)
    first, second = (plain for plain in report.as_plain(found)["rows"])  # type: ignore[attr-defined]
    assert (first["granted_cost"], first["free_cost"]) == (2.4, 2.4)
    assert second["free_cost"] == pytest.approx(0.25 * 2.4 + 0.75 * 4)
    assert second["unpriced_gpu_hours"] == pytest.approx(60 / 3600)
    title, *_, last = report.table(found)
    assert title[-3:] == ("GRANTED EUR", "FREE EUR", "UNPRICED")
    assert last[-3:] == ("2.40", "6.00", "0.02")
    header, line, *_ = report.as_csv(found).splitlines()
    assert header.endswith("outside cost [EUR],unpriced [GPU h]")
    assert len(line.split(",")) == len(header.split(","))


def test_time_before_the_first_price_has_none() -> None:
    timeline = ((1000 * DAY_S // 2, PRICED[0][1]),)
    found = report.capacity_report(
        {A: HistoryPage(capacity=(row(0, 3600),))}, "model", Range(0, 1000 * DAY_S), timeline
    )
    assert found.costs is not None
    assert found.costs.whole.parts["free"] == pytest.approx(1.2)
    assert found.costs.whole.unpriced_gpu_hours == pytest.approx(0.5)
    assert report.table(found)[0][-2:] == ("FREE COST", "UNPRICED")


def test_of_a_pool_that_nobody_knows_nothing_is_said() -> None:
    empty = report.capacity_report({A: HistoryPage()}, "model", Range(0, 1000))
    assert (empty.rows, empty.seen, empty.whole.gpus) == ({}, None, 0)
    assert report.table(empty)[-1][1:3] == ("0.00", "-")


def test_a_gpu_without_memory_for_leases_is_at_fault() -> None:
    none = gpu(0, memory_reserved=H200)
    assert none.capacity == 0
    assert books(with_gpus(table(gpus=0, leases=0), none)).fault == 1_000_000
