"""A client asks each server for its measurements: in parts, and names the silent servers."""

from dataclasses import replace

import pytest
import trio
import trio.testing
from tests.remoting.control.test_usage_query import FakeConnections

from gpupool.pool.errors import GpupoolError, NotNowError, UnreachableError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, HistorySeries
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.client.history_answers import DEADLINE_S, HistoryAnswer, ask_history
from gpupool.remoting.protocol import messages as m

QUERY = HistoryQuery("server", "busy")
POINTS = tuple((10 * at, at, 1, -1) for at in range(50))


class FakeServer:
    """Answers ``GetHistory`` with twenty points at a time."""

    def __init__(
        self, *, failures: int = 0, endless: bool = False, error: type[GpupoolError] | None = None
    ) -> None:
        self.failures = failures  # of the first calls
        self.error = error or UnreachableError
        self.endless = endless
        self.calls = 0

    async def call(self, message: m.Call, *, timeout_s: float) -> m.Message:
        assert isinstance(message, m.GetHistory)
        assert timeout_s > 0
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise self.error("lost server")
        after = message.query.after
        if self.endless:
            return m.HistoryIs(HistoryPage(after=after, more=True))
        shown = POINTS[after : after + 20]
        series = HistorySeries("GPU-1", "GPU 0", shown)
        more = after + 20 < len(POINTS)
        return m.HistoryIs(HistoryPage(10, (series,), after=after + len(shown), more=more))


async def asked(*only: str, **servers: FakeServer | None) -> HistoryAnswer:
    connections = FakeConnections(**servers)
    chosen = [ServerId(each) for each in only]
    return await ask_history(connections, QUERY, chosen)  # type: ignore[arg-type]


async def test_parts_are_put_together(autojump_clock: trio.testing.MockClock) -> None:
    answer = await asked(a=FakeServer(), b=FakeServer(failures=1))
    for page in answer.pages.values():
        assert page.series == (HistorySeries("GPU-1", "GPU 0", POINTS),)
    assert (sorted(answer.pages), answer.silent) == (["a", "b"], {})


async def test_a_silent_server_is_named_in_time(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    answer = await asked(a=FakeServer(), b=None, c=FakeServer(failures=9))
    assert sorted(answer.pages) == ["a"]
    assert answer.silent == {"b": "cannot reach server b", "c": "lost server"}
    assert trio.current_time() - began <= DEADLINE_S


async def test_one_with_other_questions_of_this_client_is_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    busy, always = (
        FakeServer(failures=4, error=NotNowError),
        FakeServer(failures=99, error=NotNowError),
    )
    answer = await asked(a=busy, b=always)
    assert sorted(answer.pages) == ["a"]
    assert sorted(answer.silent) == ["b"]
    assert always.calls < 10


async def test_only_the_servers_that_are_named_are_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    other = FakeServer()
    assert sorted((await asked("a", a=FakeServer(), b=other)).pages) == ["a"]
    assert other.calls == 0
    assert (await asked("b", a=FakeServer(), b=None)).silent == {"b": "cannot reach server b"}
    with pytest.raises(UnreachableError, match="nobody answers"):
        await asked(a=None)


async def test_a_server_that_never_ends_is_left(autojump_clock: trio.testing.MockClock) -> None:
    server = FakeServer(endless=True)
    answer = await asked(a=server)
    assert server.calls == 1
    assert answer.pages[ServerId("a")] == replace(HistoryPage(), more=True)
