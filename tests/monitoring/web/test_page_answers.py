"""The page's API on one GPU's past, on limits, and on servers' stored data, in memory."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fake_web_pool import HOSTILE, START_MS, FakePool
from tests.web_visitor import Page

from gpupool.pool.history_query import HistoryPage, HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client.history_answers import HistoryAnswer
from gpupool.remoting.protocol import messages as m

WITHIN = f"since={START_MS - 86_400_000}&until={START_MS}"


@pytest.fixture
def pool() -> FakePool:
    return FakePool(servers=4, gpus=2, leases=5, waiting=3, time_s=100.0)


@pytest.fixture
async def page(pool: FakePool) -> Page:
    made = Page(pool)
    await made.enter()
    return made


async def test_strangers_are_told_nothing_of_it(pool: FakePool) -> None:
    for path in (f"gpu-history?of=node-1:0&{WITHIN}", "limits", "storage"):
        assert (await Page(pool).client.get(f"/api/v1/{path}")).status_code == 401, path


# --- one GPU --------------------------------------------------------------------------------------


async def test_a_gpu_has_its_leases_memory_on_one_axis_of_time(page: Page) -> None:
    told = await page.get(f"gpu-history?of=node-1:1&{WITHIN}")
    assert told["step"] == told["t"][1] - told["t"][0]
    assert [each["lease"] for each in told["leases"]] == ["1025", "1000", ""]
    assert [each["user"] for each in told["leases"]] == ["barbara", "ada", ""]
    assert all(len(each["values"]) == len(told["t"]) for each in told["leases"])
    assert {0.0, 7.0} == set(told["leases"][1]["values"]), "where it was not there it has nothing"
    assert len(told["used"]) == len(told["t"]) and told["problems"] == []


async def test_a_gpu_has_the_shares_of_time_for_which_it_was_held_down(page: Page) -> None:
    told = await page.get(f"gpu-history?of=node-1:1&{WITHIN}")
    shares = {each["reason"]: each["shares"] for each in told["throttled"]}
    assert (set(shares["hw_thermal"]), set(shares["power"])) == ({0.4}, {0.08})
    [error] = told["xids"]
    assert (error["xid"], error["counts"]) == ("31", [2])
    assert told["mark_step"] == told["step"]


class ManyLeases(FakePool):
    """A pool with more leases of a GPU than there are colours, and an older server."""

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Multiply the leases; marks are not known."""
        answer = await super().history(query, servers)
        if query.of == "gpu-marks":
            unknown = HistoryPage(problem="it knows no marks")
            return HistoryAnswer(dict.fromkeys(servers, unknown))
        if query.of != "gpu-leases":
            return answer
        [(server, page)] = answer.pages.items()
        first, *_ = [each for each in page.series if each.key]
        many = tuple(replace(first, key=f"{0x2000 + n:x}") for n in range(20))
        return HistoryAnswer({server: replace(page, series=many)})


async def test_leases_for_which_there_is_no_colour_are_one() -> None:
    page = Page(ManyLeases(servers=2, gpus=1, leases=1, time_s=10.0))
    await page.enter()
    told = await page.get(f"gpu-history?of=node-1:0&{WITHIN}")
    assert [bool(each["lease"]) for each in told["leases"]] == [True] * 6 + [False]
    assert max(told["leases"][6]["values"]) == 14 * max(told["leases"][0]["values"])
    assert (told["throttled"], told["xids"], told["problems"]) == ([], [], ["it knows no marks"])


@pytest.mark.parametrize("of", ["", "node-9:0", "node-1", "pool", "lease:7", "x" * 900])
async def test_what_is_no_gpu_has_no_past(page: Page, of: str) -> None:
    answer = await page.client.get(f"/api/v1/gpu-history?of={of}&{WITHIN}")
    assert answer.status_code == 400
    answer = await page.client.get("/api/v1/gpu-history?of=node-1:0&since=2&until=1")
    assert answer.status_code == 400


# --- limits ---------------------------------------------------------------------------------------

POLICY = """
zone = "ZONE"
[defaults]
max_gpus = 2.5
department = "physics"
[pool]
max_leases = 200
[class.students]
users = ["ada", "k*"]
max_gpus = 16
max_memory_per_user = "80GiB"
[[window]]
name = "night"
from = "00:00"
to = "00:00"
[window.defaults]
max_gpus = 9
"""


class Limited(FakePool):
    """A pool with a separate policy."""

    text = POLICY.replace("ZONE", "UTC").replace('to = "00:00"', 'to = "23:59"')
    asked = 0

    async def policy(self, version: int = 0) -> m.PolicyIs:
        """Return it, and count."""
        self.asked += 1
        return m.PolicyIs(4, "ada", Milliseconds(START_MS), pack_text(self.text))


async def limits(pool: FakePool, user: str = "") -> dict[str, object]:
    page = Page(pool)
    await page.enter()
    await page.get("limits")
    found = await page.get(f"limits?user={user}")
    assert isinstance(found, dict)
    return found  # pyright: ignore[reportUnknownVariableType]


async def test_each_user_has_the_limits_that_hold_now() -> None:
    pool = Limited(servers=4, gpus=2, leases=5, waiting=3, time_s=100.0)
    told = await limits(pool, "kate")
    users = told["users"]
    assert isinstance(users, dict) and told["problem"] == ""
    assert users["kate"] == {
        "class": "students",
        "department": "physics",
        "limits": [
            ["user", "max_gpus", 9.0],
            ["class", "max_gpus", 16.0],
            ["user", "max_memory", 80 * 1024.0],
            ["pool", "max_leases", 200.0],
        ],
    }
    assert {"ada", "linus"} <= users.keys()
    assert users["linus"]["class"] == ""
    assert pool.asked == 1, "a version is read once"


async def test_hours_of_an_unknown_zone_are_left_out_and_that_is_said() -> None:
    pool = Limited(servers=4, gpus=2, leases=5, time_s=100.0)
    pool.text = Limited.text.replace("UTC", "Nowhere/Else")
    told = await limits(pool, "kate")
    users = told["users"]
    assert isinstance(users, dict)
    assert users["kate"]["limits"][0] == ["user", "max_gpus", 2.5]
    assert "time zone" in str(told["problem"])


async def test_a_policy_that_cannot_be_read_limits_nothing_and_that_is_said() -> None:
    pool = Limited(servers=4, gpus=2, leases=5, time_s=100.0)
    pool.text = "max_everything = 1"
    told = await limits(pool)
    assert "cannot be read" in str(told["problem"])


# --- what servers keep ----------------------------------------------------------------------------


async def test_each_server_that_answers_tells_what_it_keeps(page: Page) -> None:
    page.pool.dead.add(2)
    told = await page.get("storage")
    assert [each["name"] for each in told["servers"]] == ["node-0", "node-1", "node-3"]
    first = told["servers"][0]
    assert first["files"]["history.db"] == 210 << 20 and first["max"] == 1 << 30
    assert first["tiers"][1][:2] == [60, 30 * 86_400]
    assert first["ends"]["server"] == START_MS + 20 * 86_400_000


class Before(FakePool):
    """Servers of an older gpupool, or without their exporters."""

    async def history(self, query: HistoryQuery, servers: Sequence[ServerId] = ()) -> HistoryAnswer:
        """Know nothing of it."""
        away = HistoryPage(problem=HOSTILE)
        pages = {self._server_id(0): HistoryPage(), self._server_id(1): away}
        return HistoryAnswer(pages, {self._server_id(2): "it does not answer"})


async def test_who_does_not_tell_is_named() -> None:
    page = Page(Before(servers=3, gpus=1, leases=1, time_s=1.0))
    await page.enter()
    told = await page.get("storage")
    assert told["servers"] == []
    assert told["silent"] == {"node-2": "it does not answer"}
    assert told["problems"][0] == "node-0: an older gpupool does not tell"
    assert told["problems"][1].startswith("node-1: ")
