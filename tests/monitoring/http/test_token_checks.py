"""The server's word on a token holds for as long as the server says that tokens are the same."""

from itertools import count, pairwise

import pytest
import trio
import trio.testing

from gpupool.monitoring.http.http_frames import TokenAnswered, TokenAsked, TokensSeen
from gpupool.monitoring.http.token_checks import (
    ASKED_PER_S,
    BURST,
    CONNECTIONS_MAX,
    GOOD_FOR_S,
    KEPT_S,
    SEEN_FOR_S,
    WAIT_S,
    WAITING_OF_NETWORK_MAX,
    TokenChecks,
)
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import TokenText, format_token


def token(number: int) -> str:
    ident = TokenId(f"{number:012x}")
    return format_token(
        TokenText("c", TokenKind.VIEWER, ident, bytes(32), bytes(32), (Address("a"),))
    )


TEXT = token(0)
NOON_MS = 1_790_000_000_000
HOUR_MS = 3_600_000


class Asking:
    """A server that answers at once, or never, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.table = 1  # the number of the server's tokens
        self.is_good = self.answers = True
        self.expires_at = Milliseconds(NOON_MS + HOUR_MS)
        self.asked: list[int] = []
        self.checks = TokenChecks(self._ask, lambda: self.now)

    def _ask(self, asked: TokenAsked) -> None:
        self.asked.append(asked.connection)
        if not self.answers:
            return
        kind = "viewer" if self.is_good else ""
        self.checks.answered(
            TokenAnswered(
                asked.number, "prom", kind, "revoked", tokens=self.table, expires_at=self.expires_at
            )
        )

    def tell(self, *, late_s: float = 0.0) -> None:
        at = Milliseconds(NOON_MS + int(1000 * (self.now - 100)))
        self.checks.seen(TokensSeen(self.table, at, self.now - late_s))

    def pass_s(self, seconds: float, *, telling: bool = True) -> None:
        """Let time pass, in steps in which the server tells that nothing has changed."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            if telling:
                self.tell()

    async def judge(self, connection: int = 7) -> str:
        return (await self.checks.judge(TEXT, connection, "")).kind


async def test_a_known_token_is_not_asked_for_while_tokens_stay_the_same() -> None:
    server = Asking()
    assert await server.judge() == "viewer"
    server.answers = False  # its loop is busy
    for _ in range(40):
        server.pass_s(15)
        assert await server.judge() == "viewer"
    assert server.asked == [7]


async def test_when_tokens_have_changed_the_server_is_asked() -> None:
    server = Asking()
    assert await server.judge() == "viewer"
    server.pass_s(15)
    server.table, server.is_good = 2, False
    server.tell()
    assert await server.judge() == ""
    assert server.asked == [7, 7]


async def test_a_server_that_says_nothing_is_asked_within_two_seconds() -> None:
    server = Asking()
    assert await server.judge() == "viewer"
    server.pass_s(15)
    server.table, server.is_good = 2, False
    server.pass_s(SEEN_FOR_S, telling=False)
    assert await server.judge() == ""
    assert max(SEEN_FOR_S, KEPT_S) < 2


async def test_a_word_that_was_long_on_its_way_is_as_old_as_it_is() -> None:
    server = Asking()
    assert await server.judge() == "viewer"
    server.pass_s(15, telling=False)
    server.tell(late_s=SEEN_FOR_S)
    await server.judge()
    assert server.asked == [7, 7]


async def test_a_token_is_not_good_beyond_its_end() -> None:
    server = Asking()
    server.expires_at = Milliseconds(NOON_MS + 20_000)
    assert await server.judge() == "viewer"
    server.pass_s(19)
    assert await server.judge() == "viewer"
    assert server.asked == [7]
    server.is_good = False
    server.pass_s(1)
    assert await server.judge() == ""


async def test_a_word_is_asked_for_again_after_an_hour() -> None:
    server = Asking()
    server.expires_at = Milliseconds(NOON_MS + 100 * HOUR_MS)
    assert await server.judge() == "viewer"
    server.pass_s(GOOD_FOR_S - 1)
    assert await server.judge() == "viewer"
    server.pass_s(1)
    assert await server.judge() == "viewer"
    assert server.asked == [7, 7]


async def test_the_server_hears_of_each_connections_first_good_token() -> None:
    server = Asking()
    for connection in (7, 8, 7, 8):
        assert await server.judge(connection) == "viewer"
        server.pass_s(2)
    assert server.asked == [7, 8]
    for connection in range(100, 100 + 4 * CONNECTIONS_MAX):
        assert await server.judge(connection) == "viewer"
    assert len(server.asked) == 2 + 4 * CONNECTIONS_MAX
    before = len(server.asked)
    assert await server.judge(7) == "viewer"
    assert len(server.asked) == before + 1  # it was forgotten for the later ones


@pytest.mark.parametrize("telling", [True, False])
async def test_a_refused_token_is_tried_again_after_a_second(telling: bool) -> None:
    server = Asking()
    server.is_good = False
    times: list[float] = []
    for _ in range(60):
        count = len(server.asked)
        assert await server.judge() == ""
        if len(server.asked) > count:
            times.append(server.now)
        server.now += 0.1
        if telling:
            server.tell()
    assert 5 <= len(times) <= 7
    assert all(later - sooner >= KEPT_S - 0.01 for sooner, later in pairwise(times))


async def test_a_server_that_does_not_answer_is_no_refusal_for_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Asking()
    server.answers = False
    assert (await server.checks.judge(TEXT, 7, "")).status == 503
    server.answers = True
    assert await server.judge() == "viewer"


class Flood:
    """A server that knows one token, and floods of others in virtual time."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.checks = TokenChecks(self._ask, trio.current_time)
        self.asked = 0
        self.statuses: list[int] = []
        self._numbers = count(1)

    def _ask(self, asked: TokenAsked) -> None:
        self.asked += 1
        kind = "viewer" if asked.text == TEXT else ""
        self.checks.answered(TokenAnswered(asked.number, "prom", kind, "unknown"))

    async def try_wrong_one(self, network: str, connection: int) -> None:
        text = token(next(self._numbers))
        self.statuses.append((await self.checks.judge(text, connection, network)).status)

    async def try_wrong_ones(self, network: str, connection: int) -> None:
        while True:
            await self.try_wrong_one(network, connection)
            await trio.sleep(0.01)

    def start(self, network: str, connections: int) -> None:
        for number in range(connections):
            self.nursery.start_soon(self.try_wrong_ones, network, number)

    async def good_after_s(self, network: str) -> float:
        """Return how long a good token waited for the server's word."""
        before = trio.current_time()
        assert (await self.checks.judge(TEXT, 1000, network)).kind == "viewer"
        return trio.current_time() - before


@pytest.mark.parametrize("networks", [1, 12, 200])
async def test_a_flood_of_wrong_tokens_keeps_no_good_one_from_being_checked(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, networks: int
) -> None:
    """Also by an exporter that has just begun, for which no token was good yet."""
    flood = Flood(nursery)
    nursery.start_soon(flood.checks.pace)
    for number in range(networks):
        flood.start(f"10.0.0.{number}", 5)
    await trio.sleep(6.0)
    assert flood.asked <= BURST + 6.0 * ASKED_PER_S + 1
    assert await flood.good_after_s("192.0.2.1") < 0.1


async def test_a_good_token_of_an_address_that_floods_waits_and_passes(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A stranger behind the same address has as many connections as there are places."""
    flood = Flood(nursery)
    nursery.start_soon(flood.checks.pace)
    flood.start("10.0.0.1", WAITING_OF_NETWORK_MAX - 1)
    await trio.sleep(6.0)
    assert await flood.good_after_s("10.0.0.1") < WAIT_S
    assert set(flood.statuses) == {401}


async def test_tokens_that_wait_are_bounded(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    flood = Flood(nursery)  # nobody gets a turn
    for number in range(int(BURST) + WAITING_OF_NETWORK_MAX):
        nursery.start_soon(flood.try_wrong_one, "10.0.0.1", number)
    await trio.testing.wait_all_tasks_blocked()
    assert flood.statuses == [401] * int(BURST)
    assert (await flood.checks.judge(TEXT, 1000, "10.0.0.1")).status == 429
    await trio.sleep(WAIT_S + 1)
    assert flood.statuses[int(BURST) :] == [429] * WAITING_OF_NETWORK_MAX
    assert await flood.good_after_s("10.0.0.1") == 0.0
