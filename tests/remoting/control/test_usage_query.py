"""A client merges records of several servers: exactly, and knows missing ones by number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from tests.monitoring.records import record

from gpupool.monitoring import exporter_link
from gpupool.monitoring.exporter_link import AWAY
from gpupool.monitoring.pages import matches, told
from gpupool.pool.errors import UnreachableError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import GroupSum, RecordPage, RecordQuery, common
from gpupool.remoting.client.usage_query import UsageAnswer, ask_usage
from gpupool.remoting.protocol import messages as m

RECORDS = [record(number) for number in range(1, 101)]


class FakeServer:
    """Answers ``GetUsage`` from the records that it has, a few at a time."""

    def __init__(self, has: Sequence[int], *, pages: int = 10**6, tries: int = 0) -> None:
        self.records = [each for each in RECORDS if each.number in has]
        self.pages = pages  # so many pages of records, and then it is gone
        self.failures = tries  # of the first calls
        self.name = "fake"
        self.group: GroupSum | None = None

    async def call(self, message: m.Call, *, timeout_s: float) -> m.Message:
        assert isinstance(message, m.GetUsage)
        assert timeout_s > 0
        if self.failures:
            self.failures -= 1
            raise UnreachableError("lost server")
        return m.UsageIs(self.page(message.query))

    def page(self, query: RecordQuery) -> RecordPage:
        if self.group is not None:
            return RecordPage(groups=(self.group,), newest=100, upto=100)
        numbers = [each.number for each in self.records]
        newest = max(numbers, default=0)
        gaps = tuple((n, n) for n in range(1, newest) if n not in numbers)
        if not query.count:
            return RecordPage(newest=newest, upto=newest, missing=gaps)
        if not self.pages:
            raise UnreachableError("lost server")
        self.pages -= 1
        found = [each for each in self.records if matches(each, query)]
        chosen, more = found[:7], len(found) > 7
        page = told(chosen, query)
        upto = chosen[-1].number if more else newest
        return replace(page, upto=upto, more=more, newest=newest, missing=gaps)


class FakeConnections:
    """Servers that can be reached, or not."""

    def __init__(self, **servers: Any) -> None:
        self.servers = servers
        self.members = {ServerId(name): name for name in servers}
        self.by_server: dict[ServerId, object] = {}

    def widen(self, count: int) -> None:
        assert count > 64

    async def reach(
        self, server: ServerId, timeout_s: float, *, patience_s: float | None = None
    ) -> Any:
        found = self.servers[server]
        if found is None:
            await trio.sleep(min(timeout_s, patience_s or timeout_s))
            raise UnreachableError(f"cannot reach server {server}")
        return found

    def failure(self) -> UnreachableError:
        return UnreachableError("nobody answers")


async def asked(query: RecordQuery | None = None, **servers: FakeServer | None) -> UsageAnswer:
    return await ask_usage(FakeConnections(**servers), query or RecordQuery())  # type: ignore[arg-type]


def numbers(answer: UsageAnswer) -> list[int]:
    return [each.number for each in answer.records]


ALL = range(1, 101)


async def test_one_server_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    answer = await asked(a=FakeServer(ALL), b=None, c=None)
    assert answer.records == RECORDS
    assert (set(answer.answered), set(answer.silent), answer.missing) == ({"a"}, {"b", "c"}, ())
    assert trio.current_time() < 2.5


async def test_what_one_lacks_another_has(autojump_clock: trio.testing.MockClock) -> None:
    answer = await asked(
        a=FakeServer([n for n in ALL if n not in (3, 4, 50)]),
        b=FakeServer([n for n in ALL if n % 2]),
        c=FakeServer(range(1, 5)),
    )
    assert numbers(answer) == [n for n in ALL if n != 50]
    assert answer.missing == ((50, 50),)


async def test_each_stay_of_a_lease_on_a_server_comes_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a, b = FakeServer([1, 2, 3]), FakeServer([2, 3, 4])
    of_one = {"lease": RECORDS[0].lease, "server": RECORDS[0].server}
    for server in (a, b):
        server.records = [replace(each, **of_one) for each in server.records]
    assert numbers(await asked(a=a, b=b)) == [1, 2, 3, 4]


async def test_sums_of_others_count_each_record_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    query = RecordQuery(user="ada")
    whole = await asked(query, a=FakeServer(ALL))
    pieces = await asked(
        query, a=FakeServer([n for n in ALL if n % 10]), b=FakeServer(range(5, 95)),
        c=FakeServer([100]),
    )  # fmt: skip
    assert pieces.records == whole.records
    assert [(o.user_class, o.parts) for o in pieces.others] == [
        (o.user_class, o.parts) for o in whole.others
    ]
    assert len(whole.records) + sum(each.parts for each in whole.others) == 100


async def test_a_server_that_is_lost_half_way_is_gone_on_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answer = await asked(a=FakeServer(ALL, pages=3), b=FakeServer(range(1, 100)))
    assert numbers(answer) == list(range(1, 100))
    assert answer.missing == ((100, 100),)
    assert set(answer.silent) == {"a"}


async def test_a_server_is_asked_twice(autojump_clock: trio.testing.MockClock) -> None:
    answer = await asked(a=FakeServer(ALL, tries=1))
    assert (answer.records, answer.silent) == (RECORDS, {})
    answer = await asked(a=FakeServer(ALL, tries=2), b=FakeServer([1]))
    assert set(answer.silent) == {"a"}


@pytest.mark.parametrize("digits", ["", "-1", "1" * 5000, "1e9", "\u0661"])
async def test_a_sum_that_is_none_is_a_server_that_makes_no_sense(
    autojump_clock: trio.testing.MockClock, digits: str
) -> None:
    lying = FakeServer(ALL)
    lying.group = GroupSum("ada", 1, digits)
    answer = await asked(RecordQuery(by="user"), a=lying, b=FakeServer([1]))
    assert "malformed sum" in answer.silent[ServerId("a")]
    assert answer.whole.leases == 1  # the other server was read


async def test_nobody_answers(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(UnreachableError):
        await asked(a=None)


async def test_a_pool_without_records_has_none(autojump_clock: trio.testing.MockClock) -> None:
    answer = await asked(a=FakeServer([]))
    empty: list[LeaseRecord] = []
    assert (answer.records, answer.missing) == (empty, ())


def test_runs_have_numbers_in_common() -> None:
    assert common(((1, 5), (9, 9)), ((4, 9),)) == ((4, 5), (9, 9))
    assert common((), ((1, 2),)) == ()
    assert common(((1, 2),), ((3, 4),)) == ()


class SilentExporter(FakeServer):
    """Answers once its exporter has not, as a server does."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(ALL)
        self.wait_s = wait_s

    async def call(self, message: m.Call, *, timeout_s: float) -> m.Message:
        assert isinstance(message, m.GetUsage)
        with trio.move_on_after(timeout_s):
            await trio.sleep(self.wait_s)
            return m.UsageIs(replace(self.page(message.query), problem=AWAY))
        raise UnreachableError("server fake does not answer", why="no answer in time")


async def test_the_only_server_says_that_its_exporter_does_not_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The client did not wait for its word, and said that no address is known."""
    answer = await asked(a=SilentExporter(exporter_link.ANSWER_TIMEOUT_S))
    assert answer.answered[ServerId("a")].problem == AWAY
    assert answer.records == RECORDS
    assert not answer.silent


async def test_a_server_that_is_connected_and_silent_is_no_address_that_is_not_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections = FakeConnections(a=SilentExporter(1e9))
    connections.by_server = {ServerId("a"): object()}
    with pytest.raises(UnreachableError, match="no server answers this") as error:
        await ask_usage(connections, RecordQuery())  # type: ignore[arg-type]
    assert error.value.why == "server fake does not answer: no answer in time"
    assert "exporter" in error.value.hint
