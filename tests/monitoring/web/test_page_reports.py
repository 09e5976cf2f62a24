"""The page's API on usage, on the pool's day, and on orders for one GPU, in memory."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
import trio.testing
from tests.fake_web_pool import START_MS, FakePool
from tests.web_visitor import Page

from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import ServerId
from gpupool.pool.record_query import RecordQuery
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.usage_query import UsageAnswer
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.admin_service import USAGE_COUNT_MAX


class SlowPool(FakePool):
    """A pool that counts the questions that are under way; each takes a second."""

    asked = most = 0

    async def usage(self, query: RecordQuery) -> UsageAnswer:
        """Answer a second later."""
        async with self._asked():
            return await super().usage(query)

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Answer a second later."""
        async with self._asked():
            return await super().history(query, servers)

    @asynccontextmanager
    async def _asked(self) -> AsyncGenerator[None]:
        self.asked += 1
        self.most = max(self.most, self.asked)
        await trio.sleep(1)
        yield
        self.asked -= 1


async def test_a_page_asks_no_more_at_a_time_than_a_server_answers_of_one_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow = SlowPool(servers=2, gpus=1, leases=1)
    source = PoolSource(cast("Pool", slow))
    records, samples = RecordQuery(by="user"), HistoryQuery("sums", "user")
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(source.usage, records)
            nursery.start_soon(source.history, samples)
    assert slow.most == USAGE_COUNT_MAX, "more are refused, fewer take longer"
    assert trio.current_time() == 8 / USAGE_COUNT_MAX


@pytest.fixture
def pool() -> FakePool:
    return FakePool(servers=4, gpus=2, leases=5, waiting=3, time_s=100.0)


@pytest.fixture
async def page(pool: FakePool) -> Page:
    made = Page(pool)
    await made.enter()
    return made


async def test_one_gpu_is_drained_and_undrained_with_a_reason(page: Page) -> None:
    assert (await page.order("drain", server="node-1", gpu=1)).status_code == 400, "no reason"
    answer = await page.order("drain", server="node-1", gpu=1, reason="hot")
    assert answer.json() == {"done": "GPU 1 of node-1 is drained; what runs there goes on"}
    told = (await page.get("live"))["tables"]["gpus"]["cols"]
    assert [each for each in told["drain"] if each] == ["hot (web)"]
    assert told["state"].count("drain") == 1
    answer = await page.order("undrain", server="node-1", gpu=1)
    assert answer.json() == {"done": "GPU 1 of node-1 takes leases again"}
    assert page.pool.orders == [
        m.DrainGpu("node-1", "1", "hot (web)"),
        m.DrainGpu("node-1", "1", None),
    ]


@pytest.mark.parametrize("gpu", [-1, "", "x", None, [1], "12345", 1.5])
async def test_what_is_no_number_of_a_gpu_drains_nothing(page: Page, gpu: object) -> None:
    for path in ("drain", "undrain"):
        answer = await page.order(path, server="node-1", gpu=gpu, reason="hot")
        assert answer.status_code == 400
    assert not page.pool.orders


async def test_usage_says_what_was_busy_idle_and_wasted(page: Page) -> None:
    report = await page.get("usage?by=user&since=0")
    by_user = {row["key"]: row for row in report["rows"]}
    assert by_user["ada"]["wasted_gpu_hours"] == 0
    assert by_user["grace"]["idle_share"] == pytest.approx(0.1)
    assert by_user["grace"]["wasted_gpu_hours"] > 0 and by_user["grace"]["coverage"] > 0
    assert by_user["radia"]["wasted_gpu_hours"] is None, "no sample has seen it"
    assert report["total"]["wasted_gpu_hours"] > by_user["grace"]["wasted_gpu_hours"]
    text = (await page.client.get("/api/v1/usage?by=user&since=0&format=csv")).text
    grace = next(line for line in text.splitlines() if line.startswith("grace,"))
    assert grace.split(",")[7] == "0.1"


async def test_capacity_says_what_became_of_all_gpus(page: Page) -> None:
    days = await page.get("capacity?by=day&since=1795000000000")
    assert [each["key"] for each in days["rows"]] == ["2026-11-20", "2026-11-21", "2026-11-22"]
    told = await page.get("capacity?by=user&since=1795000000000")
    [row] = told["rows"]
    assert row["key"] == "NVIDIA H200"
    total = row["gpu_hours"]
    assert (row["granted_gpu_hours"], row["drained_gpu_hours"]) == (total / 2, total / 8)
    assert sum(value for name, value in row.items() if name.endswith("_gpu_hours")) == total
    assert 0 < told["seen"] <= 1 and told["silent"] == {}
    assert "free_cost" not in row and "currency" not in told
    priced = await page.get("capacity?by=model&since=1795000000000&cost=1")
    [row] = priced["rows"]
    assert priced["currency"] == "EUR"
    assert row["unpriced_gpu_hours"] == pytest.approx(0)
    hours = row["free_gpu_hours"]
    assert hours < row["free_cost"] < 2.5 * hours, "1 until two hours ago, and 2.50 since"
    assert (await page.client.get("/api/v1/capacity?since=9&until=8")).status_code == 400


async def test_usage_says_what_it_cost_where_that_is_asked(page: Page) -> None:
    assert "cost" not in (await page.get("usage?by=user&since=0"))["total"]
    report = await page.get("usage?by=user&since=0&cost=1")
    assert report["currency"] == "EUR", "that of the newest policy"
    # Half a GPU each, at 1 and, for the last 2.4 hours, at 2.50; leases that run cost more.
    changed, hour = START_MS - 8_640_000, 3_600_000
    ended = 0.0
    for each in (await page.get("records?since=0"))["records"]:
        if each["user"] == "ada" and each["freed"]:
            begin, end = each["granted"], each["freed"]
            ended += 0.5 * max(0, min(changed, end) - begin) / hour
            ended += 0.5 * max(0, end - max(changed, begin)) / hour * 2.5
    ada = next(row for row in report["rows"] if row["key"] == "ada")
    assert ada["cost"] >= ended > 0 and ada["wasted_cost"] == 0
    assert ada["unpriced_gpu_hours"] == 0
    assert report["total"]["cost"] >= ada["cost"]
    text = (await page.client.get("/api/v1/usage?by=user&since=0&cost=1&format=csv")).text
    assert text.splitlines()[0].endswith(",cost [EUR],wasted [EUR],without a price [GPU h]")


async def test_a_lease_is_told_with_what_samples_say_of_it(page: Page) -> None:
    told = await page.get("lease/100")
    assert told["total"]["coverage"] > 0
    assert any("busy" in line for line in told["lines"])


async def test_a_clients_charts_are_the_sums_of_its_leases(page: Page) -> None:
    times = "since=1795360000000&until=1795370400000"
    told = await page.get(f"history?of=client:ada@desk&metric=bytes-in&{times}")
    assert (told["title"], told["unit"]) == ("client ada@desk", "MiB/s")
    assert {"busy", "memory", "bytes-out", "waits", "rtt", "wire"} <= set(told["metrics"])
    assert told["lines"][0]["title"] == "client ada@desk on node-0" and told["lines"][0]["t"]


async def test_the_pools_day_comes_from_the_history_and_is_asked_once_a_minute(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[HistoryQuery] = []
    known = page.pool.history

    async def history(query: HistoryQuery, servers: tuple[str, ...] = ()) -> object:
        asked.append(query)
        return await known(query, servers)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(page.pool, "history", history)
    day = await page.get("day")
    assert day["t"][-1] - day["t"][0] == 24 * 3_600_000
    assert len(day["t"]) == len(day["granted"]) == len(day["busy"]) == 145
    assert 0 < max(each for each in day["busy"] if each is not None) <= 100
    assert len(asked) == 2 + 4, "granted and capacity of the pool, busy of each server"
    assert all(each.until - each.since >= 24 * 3_600_000 for each in asked)
    page.pool.time_s += 30
    assert await page.get("day") == day and len(asked) == 6
    page.pool.time_s += 60
    await page.get("day")
    assert len(asked) == 12


async def test_a_large_pools_servers_are_not_all_asked_how_busy_they_were() -> None:
    page = Page(FakePool(servers=17, gpus=1, leases=2, time_s=100.0))
    await page.enter()
    day = await page.get("day")
    assert day["busy"] == [] and len(day["granted"]) == 145
