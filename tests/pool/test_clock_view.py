"""The pool's time for people: figures, sentences, and the bounds from which they are shown."""

import pytest

from gpupool.pool.clock_view import clock_problems, clock_view
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.table_clock import BOUND_S, ClockReading, KnownClock, Source
from gpupool.pool.view import ClockView, ServerClock

A, B, C = (ServerId(name) for name in "abc")
TOO_FEW = "too few of the voters' clocks are known here: the pool's time runs on by itself"


def state_of(*voters: ServerId) -> PoolState:
    servers = {each: Server(each, f"gpu-{each}", f"{each}:1", True) for each in voters}
    return PoolState(cluster_id="x", now=Milliseconds(5000), servers=PersistentMap(servers))


def reading(
    source: Source = Source.VOTERS,
    *,
    ahead_s: float = 0.0,
    held_s: float = 0.0,
    **clocks: KnownClock,
) -> ClockReading:
    known = {ServerId(server): clock for server, clock in clocks.items()}
    return ClockReading(source, 4000, 3000, ahead_s, held_s, known)


def said(found: ClockReading, *voters: ServerId) -> list[str]:
    return list(clock_problems(state_of(*(voters or (A, B, C))), found).values())


def test_a_view_has_all_figures_of_a_reading() -> None:
    found = reading(Source.HELD, ahead_s=1.0, held_s=60.0, a=KnownClock(-2.0, 0.25))
    assert clock_view(state_of(A, B, C), found) == ClockView(
        table=Milliseconds(5000),
        pool=Milliseconds(4000),
        wall=Milliseconds(3000),
        source="held",
        table_ahead_s=1.0,
        servers=(ServerClock(A, -2.0, 0.25),),
        problems=(TOO_FEW,),
    )


@pytest.mark.parametrize(("held_s", "told"), [(0.0, []), (10.0, []), (10.5, [TOO_FEW])])
def test_a_time_that_is_held_is_told_of_after_ten_seconds(held_s: float, told: list[str]) -> None:
    assert said(reading(Source.HELD, held_s=held_s)) == told
    assert said(reading(Source.VOTERS, held_s=held_s)) == []
    assert said(reading(Source.HELD, held_s=held_s), A, B) == told


def test_the_only_voters_clock_that_is_not_followed_is_told_of_at_once() -> None:
    [problem] = said(reading(Source.HELD), A)
    assert problem.startswith("the pool's time does not follow the only voter's clock")
    assert said(reading(Source.VOTERS), A) == []


def test_a_table_that_is_ahead_says_how_far() -> None:
    assert said(reading(ahead_s=BOUND_S)) == []
    [problem] = said(reading(ahead_s=1000.9))
    assert problem.startswith("the pool's time is 16m40s ahead of the voters' clocks, and runs at")


@pytest.mark.parametrize("error_s", [0.0, 0.5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_is_wrong_beyond_the_bound_and_what_its_measurement_may_be_off(
    error_s: float, sign: int
) -> None:
    bound_s = BOUND_S + error_s
    assert said(reading(b=KnownClock(sign * bound_s, error_s))) == []
    [problem] = said(reading(b=KnownClock(sign * (bound_s + 0.25), error_s)))
    where = "ahead of" if sign > 0 else "behind"
    assert problem == (
        f"the clock of server gpu-b is 5s {where} the pool's time: set it with chrony or "
        "systemd-timesyncd"
    )


def test_a_wrong_clock_says_how_far_it_is_off() -> None:
    wrong = reading(a=KnownClock(1000.9, 0.0), c=KnownClock(-90.0, 0.0))
    found = clock_problems(state_of(A, B, C), wrong)
    assert list(found) == ["clock of a", "clock of c"]
    assert "gpu-a is 16m40s ahead of the pool's time" in found["clock of a"]
    assert "gpu-c is 1m30s behind the pool's time" in found["clock of c"]


def test_no_clock_is_called_wrong_without_a_majority_or_of_a_server_that_is_gone() -> None:
    wrong = KnownClock(1000.0, 0.0)
    assert said(reading(Source.HELD, b=wrong)) == []
    assert said(reading(Source.OWN, b=wrong)) != []
    assert said(reading(x=wrong)) == []
