"""The pool's time to the millisecond: its bounds, how it runs on, and where it begins anew."""

from dataclasses import replace

import pytest
from tests.pool.test_table_clock import DAY_MS, START_MS, A, B, C, D, E, World

from gpupool.pool.model.commands import SetClock, Tick, wrap
from gpupool.pool.model.ids import Milliseconds, Plain, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.table_clock import Source, agreed_time, majority_time


def source(world: World) -> Source:
    return world.clock.reading().source


def all_errors(world: World, seconds: float) -> None:
    """Let all clocks be off."""
    world.errors_s = dict.fromkeys(world.voters, seconds)


# --- which clocks count ---------------------------------------------------------------------------


def test_a_majority_is_more_than_half() -> None:
    assert majority_time([], 1) is None
    assert majority_time([7], 1) == 7
    assert majority_time([7], 2) is None
    assert majority_time([7, 9], 2) == 7
    assert majority_time([7, 9], 4) is None
    assert majority_time([7, 8, 9], 5) == 7
    assert majority_time([5, 7, 8, 9], 5) == 7


def test_clocks_agree_within_five_seconds() -> None:
    assert agreed_time([0, 5000], 3) == 0
    assert agreed_time([0, 5001], 3) is None
    assert agreed_time([10, 11], 5) is None
    assert agreed_time([3000, 1000, 0], 5) == 1000
    assert agreed_time([0, 1000, 3000, 4000], 6) == 1000
    assert agreed_time([], 1) is None
    assert agreed_time([7], 1) == 7


@pytest.mark.parametrize(("after_s", "found"), [(16.0, Source.VOTERS), (16.125, Source.HELD)])
def test_a_measurement_counts_for_sixteen_seconds(after_s: float, found: Source) -> None:
    world = World()
    world.clock.reading()
    world.silent = {B, C}
    world.now += after_s
    assert source(world) is found


@pytest.mark.parametrize(("error_s", "found"), [(1.0, Source.VOTERS), (1.125, Source.HELD)])
def test_a_measurement_may_be_a_second_off(error_s: float, found: Source) -> None:
    assert source(World(error_s=error_s)) is found


def test_a_servers_own_clock_needs_no_measurement() -> None:
    assert source(World(silent={A, C})) is Source.VOTERS
    assert source(World(silent={B, C})) is Source.HELD


def test_without_voters_the_time_is_held() -> None:
    world = World(voters=())
    reading = world.clock.reading()
    assert (reading.source, reading.pool_ms) == (Source.HELD, START_MS)


@pytest.mark.parametrize(("more_ms", "found"), [(0, Source.VOTERS), (1, Source.HELD)])
def test_the_only_voters_clock_counts_up_to_27_days(more_ms: int, found: Source) -> None:
    world = World(voters=(A,), errors_s={A: 27 * 86_400 + more_ms / 1000})
    assert source(world) is found
    world = World(voters=(A, B, C))
    all_errors(world, 400 * 86_400.0)
    assert source(world) is Source.VOTERS, "of one voter alone"


@pytest.mark.parametrize(("silent", "missing"), [("", 0), ("DE", 0), ("CDE", 1), ("BCDE", 2)])
def test_how_many_of_five_clocks_are_missing(silent: str, missing: int) -> None:
    world = World(voters=(A, B, C, D, E))
    world.silent = {each for each in world.voters if each.upper() in silent}
    assert world.clock.clocks_missing() == missing


# --- how it runs ----------------------------------------------------------------------------------


def test_a_held_time_runs_on_by_the_monotonic_clock() -> None:
    world = World(silent={B, C})
    all_errors(world, 400.0)
    assert world.clock.now_ms() == START_MS
    world.now += 1000.0
    assert world.clock.now_ms() == START_MS + 1_000_000
    assert world.clock.reading().pool_ms == START_MS + 1_000_000


def test_a_table_that_is_ahead_runs_at_half_speed_to_the_millisecond() -> None:
    world = World()
    world.stamp(START_MS + 20_000)
    assert world.clock.now_ms() == START_MS + 20_000
    world.now += 10.0
    assert world.clock.now_ms() == START_MS + 25_000
    world.now += 30.0
    assert world.clock.now_ms() == START_MS + 40_000, "they have caught up"
    world.now += 1.0
    assert world.clock.now_ms() == START_MS + 41_000


@pytest.mark.parametrize("ahead_ms", [0, 1000])
def test_a_table_that_is_ahead_once_more_runs_on_from_where_it_is(ahead_ms: int) -> None:
    world = World()
    world.stamp(START_MS + ahead_ms)
    known = START_MS + ahead_ms
    assert world.clock.now_ms() == known
    world.now += 10.0
    if ahead_ms:
        assert world.clock.now_ms() == START_MS + 10_000
    all_errors(world, -20.0)
    assert world.clock.now_ms() == known
    world.now += 2.0
    assert world.clock.now_ms() == known + 1000


def test_the_time_goes_on_from_the_last_word_of_a_majority_when_it_is_lost() -> None:
    world = World()
    world.now += 60.0
    assert world.clock.now_ms() == START_MS + 60_000
    world.silent, world.error_s = {B, C}, 2.0
    world.measured.clear()
    world.now += 5.0
    reading = world.clock.reading()
    assert (reading.source, reading.pool_ms) == (Source.HELD, START_MS + 65_000)


def test_a_time_that_was_set_back_is_followed_at_once() -> None:
    for silent in (set[ServerId](), {B, C}):
        world = World(silent={*silent})
        world.stamp(START_MS + 20_000)
        assert world.clock.now_ms() == START_MS + 20_000
        world.state = replace(world.state, now=Milliseconds(START_MS + 10_000), era=1)
        assert world.clock.now_ms() == START_MS + 10_000
        assert (world.clock.era, world.clock.known_ms()) == (1, START_MS + 10_000)


def test_a_table_that_is_empty_again_begins_with_its_own_time() -> None:
    world = World(silent={B, C})
    table = world.state
    assert source(world) is Source.HELD
    world.state = PoolState()
    assert source(world) is Source.OWN
    world.state = replace(table, now=Milliseconds(START_MS - DAY_MS))
    assert world.clock.now_ms() == START_MS - DAY_MS


# --- readings -------------------------------------------------------------------------------------


def test_a_reading_says_to_the_millisecond_how_far_the_table_is_ahead() -> None:
    world = World()
    world.now += 0.5
    assert world.clock.reading().table_ahead_s == 0.0, "the table is behind"
    world.stamp(world.right_ms() + 1_000_000)
    assert world.clock.reading().table_ahead_s == 1000.0


def test_a_reading_says_for_how_long_the_time_has_been_held() -> None:
    world = World()
    assert world.clock.reading().held_s == 0.0
    world.silent, world.error_s = {B, C}, 2.0
    world.measured.clear()
    world.now += 7.0
    assert world.clock.reading().held_s == 7.0
    world.now += 1.0
    assert world.clock.reading().held_s == 8.0
    world.silent, world.error_s = set(), 0.0
    assert world.clock.reading().held_s == 0.0
    world.state = PoolState()
    world.now += 7.0
    assert world.clock.reading().held_s == 0.0, "it is its own"


# --- what a leader refuses ------------------------------------------------------------------------


def refusal(world: World, at_ms: int) -> str | None:
    return world.clock.refusal(wrap(Tick(), at_ms=at_ms, ttl_ms=0))


def test_a_stamp_may_be_five_seconds_ahead_and_none_while_the_time_is_held() -> None:
    world = World()
    assert refusal(world, START_MS + 5000) is None
    assert refusal(world, START_MS + 6000) == (
        "its time is 1.0 s ahead of what the voters' clocks allow"
    )
    held = World(silent={B, C})
    assert refusal(held, START_MS) is None
    assert refusal(held, START_MS + 1) is not None
    held.now += 1.0
    assert refusal(held, START_MS + 1000) is None
    assert refusal(held, START_MS + 1001) is not None


@pytest.mark.parametrize("sign", [1, -1])
def test_an_order_sets_a_time_within_five_seconds_of_the_clocks(sign: int) -> None:
    world = World()

    def asked(off_ms: int, era: int = 0) -> str | None:
        order = SetClock(Milliseconds(START_MS + sign * off_ms), era, "root")
        return world.clock.refusal(wrap(order, at_ms=START_MS, ttl_ms=0))

    assert asked(5000) is None
    assert asked(5001) == (
        "it would set the pool's time to another one than the voters' clocks show"
    )
    assert asked(5001, era=1) is not None
    world.state = replace(world.state, era=1)
    assert asked(5001, era=0) is None, "it does nothing"


@pytest.mark.parametrize("at_ms", [START_MS, START_MS + 20_000])
def test_a_stamp_that_is_not_after_the_tables_time_moves_nothing(at_ms: int) -> None:
    """The time begins to run slowly when it is asked for, and not with such a stamp."""
    world = World()
    world.stamp(START_MS + 20_000)
    assert refusal(world, at_ms) is None
    world.now += 2.0
    assert world.clock.now_ms() == START_MS + 20_000


def test_what_is_no_command_is_the_tables_to_refuse() -> None:
    world = World()
    plains: list[Plain] = [None, [], "text", 7, {}, {"t": "late"}, {"k": "set-clock", "c": 7}]
    for plain in plains:
        assert world.clock.refusal(plain) is None
