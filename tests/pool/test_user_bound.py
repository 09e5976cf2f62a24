"""The bounds of a user count all tokens; those of a token are lower."""

import pytest
from tests.pool.policy_kit import Pool

from gpupool.pool.fair_access import Holder, UserBound
from gpupool.pool.model import commands
from gpupool.pool.model.ids import TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Request
from gpupool.pool.transitions import leases

BOUND = UserBound(user=4, token=3)
ADA, ADAS_OTHER, BOB = (
    Holder(user, TokenId(token)) for user, token in (("ada", "a1"), ("ada", "a2"), ("bob", "b1"))
)


def test_a_bound_is_of_a_user_and_of_each_token() -> None:
    assert BOUND.reached(ADA, [ADA, ADA, BOB, BOB]) == ""
    assert BOUND.reached(ADA, [ADA, ADA, ADA]) == "token a1 of ada has 3"
    assert BOUND.reached(ADAS_OTHER, [ADA, ADA, ADA]) == ""
    assert BOUND.reached(ADAS_OTHER, [ADA, ADA, ADA, ADAS_OTHER]) == "ada has 4"
    assert BOUND.reached(BOB, [ADA, ADA, ADA, ADAS_OTHER]) == ""


def test_one_user_cannot_take_the_whole_waiting_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "USER_WAITING_COUNT_MAX", 2)
    pool = Pool()

    def waits(user: str, request: Request) -> Result:
        return pool.do(commands.Wait(request, user, TokenId(user), "busy"))

    first, second, third = (pool.request() for _ in range(3))
    assert waits("ada", first).ok
    assert waits("ada", second).ok
    refused = waits("ada", third)
    assert (refused.kind, refused.why) == ("busy", "2 requests of ada wait already")
    assert waits("ada", first).ok  # it is renewed
    assert waits("bob", third).ok


def test_a_full_waiting_line_takes_nobody_else_and_renews_who_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "WAITING_COUNT_MAX", 2)
    pool = Pool()

    def waits(user: str, request: Request) -> Result:
        return pool.do(commands.Wait(request, user, TokenId(user), "busy"))

    first, second, third = (pool.request() for _ in range(3))
    assert waits("ada", first).ok
    assert waits("bob", second).ok
    refused = waits("cy", third)
    assert (refused.kind, refused.why) == ("busy", "too many requests wait already")
    assert waits("ada", first).ok
    foreign = waits("ada", second)
    assert (foreign.kind, foreign.why) == ("denied", "this request is another user's")
    assert [entry.user for entry in pool.state.waiting.values()] == ["ada", "bob"]
