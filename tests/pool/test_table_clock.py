"""The pool's time: as reached by the clocks of a majority of voters, else held, or slewed."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pool.clock_view import HELD_MAX_S, clock_problems
from gpupool.pool.errors import DeniedError, NotNowError
from gpupool.pool.model.commands import EndLease, SetClock, Tick, wrap
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import PoolState, Server, with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.table_clock import (
    BOUND_S,
    ERROR_MAX_S,
    FRESH_S,
    SLEW,
    SOLE_AHEAD_MAX_S,
    ClockSample,
    Source,
    TableClock,
    agreed_time,
    majority_time,
)
from gpupool.remoting.protocol import messages as m

START_MS = 1_900_000_000_000
DAY_MS = 86_400_000
A, B, C, D, E = (ServerId(name) for name in "abcde")

offsets = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=7)


@given(offsets, st.data())
def test_a_minority_of_clocks_and_silence_move_it_nowhere(
    right: list[int], data: st.DataObject
) -> None:
    """With f of 2f + 1 clocks wrong in any way, it stays between clocks that are right."""
    count = len(right)
    wrong = data.draw(st.lists(st.integers(-(10**15), 10**15), max_size=(count - 1) // 2))
    clocks = [*right[len(wrong) :], *wrong]
    found = majority_time(clocks, count)
    assert found is not None
    assert found <= max(right[len(wrong) :])
    if count % 2:
        assert found == sorted(clocks)[count // 2]
        assert found >= min(right[len(wrong) :])
    heard = data.draw(st.permutations(clocks))[: data.draw(st.integers(0, count))]
    partly = majority_time(heard, count)
    assert (partly is None) == (len(heard) <= count // 2)
    assert partly is None or partly <= found


@given(offsets)
def test_it_is_the_latest_time_that_a_majority_has_reached(clocks: list[int]) -> None:
    found = majority_time(clocks, len(clocks))
    assert found is not None
    assert sum(each >= found for each in clocks) > len(clocks) / 2
    assert sum(each > found for each in clocks) <= len(clocks) / 2


@given(offsets, st.data())
def test_the_time_is_set_by_a_majority_that_agrees_alone(
    right: list[int], data: st.DataObject
) -> None:
    """A minority that is wrong, and clocks that are silent, set it nowhere."""
    count = len(right)
    clocks = [each % int(BOUND_S * 1000) for each in right]
    wrong = data.draw(st.lists(st.integers(-(10**15), 10**15), max_size=(count - 1) // 2))
    mixed = data.draw(st.permutations([*clocks[len(wrong) :], *wrong]))
    heard = mixed[: data.draw(st.integers(0, count))]
    found = agreed_time(heard, count)
    assert found is None or -BOUND_S * 1000 <= found <= 2 * BOUND_S * 1000
    assert agreed_time(mixed, count) is not None


def test_two_clocks_that_differ_set_no_time() -> None:
    """Found by the simulator: one behind, one silent, and the tables' tokens went 62 days back."""
    world = World(errors_s={B: -62 * 86_400.0}, silent={C})
    assert world.clock.reading().source is Source.VOTERS
    assert world.clock.target_ms() is None
    assert world.clock.clocks_missing() == 0, "they are known, and do not agree"
    world.silent.clear()
    assert world.clock.target_ms() == world.right_ms()


def test_a_server_that_has_just_started_says_how_many_clocks_it_lacks() -> None:
    world = World(silent={B, C})
    assert world.clock.target_ms() is None
    assert world.clock.clocks_missing() == 1
    issue = m.Issue(
        by="root",
        operator=True,
        at=Milliseconds(0),
        server=None,
        era=0,
        target=world.clock.target_ms(),
        clocks_missing=world.clock.clocks_missing(),
    )
    with pytest.raises(NotNowError, match="1 more of the voters' clock is needed") as raised:
        m.SetClock().command(issue)
    assert "try again in 10 s" in raised.value.hint
    with pytest.raises(DeniedError, match="no majority of the voters' clocks agrees"):
        m.SetClock().command(replace(issue, clocks_missing=0))


@dataclass
class World:
    """One server and the wall clocks of all, each with its error."""

    voters: tuple[ServerId, ...] = (A, B, C)
    errors_s: dict[ServerId, float] = field(default_factory=dict[ServerId, float])
    silent: set[ServerId] = field(default_factory=set[ServerId])
    error_s: float = 0.001
    now: float = 1000.0
    zero: float = 1000.0
    state: PoolState = PoolState()
    measured: dict[ServerId, ClockSample] = field(default_factory=dict[ServerId, ClockSample])

    def __post_init__(self) -> None:
        servers = {each: Server(each, f"gpu-{each}", f"{each}:1", True) for each in self.voters}
        self.state = PoolState(
            cluster_id="x", now=Milliseconds(START_MS), servers=PersistentMap(servers)
        )
        self.clock = TableClock(lambda: self.state, self_id=A, clock=self, sample=self.sample)

    def monotonic(self) -> float:
        return self.now

    def right_ms(self) -> int:
        return START_MS + int((self.now - self.zero) * 1000)

    def wall_ms(self) -> int:
        return self.right_ms() + int(self.errors_s.get(A, 0.0) * 1000)

    def sample(self, peer: ServerId) -> ClockSample | None:
        if peer not in self.silent:
            wall_ms = self.right_ms() + int(self.errors_s.get(peer, 0.0) * 1000)
            zero_ms = wall_ms - int(self.now * 1000)
            self.measured[peer] = ClockSample(zero_ms, self.now, self.error_s)
        return self.measured.get(peer)

    def stamp(self, at_ms: int) -> None:
        """Let a command with this stamp be applied."""
        now = Milliseconds(max(self.state.now, at_ms))
        self.state = replace(self.state, now=now, index=self.state.index + 1)

    def run(self, seconds: float, every_s: float = 0.5) -> None:
        """Let time pass, with a command of this server now and then, which leads."""
        for _ in range(int(seconds / every_s)):
            self.now += every_s
            at_ms = self.clock.now_ms()
            assert at_ms >= self.state.now
            assert self.clock.refusal(wrap(Tick(), at_ms=at_ms, ttl_ms=0)) is None
            self.stamp(at_ms)

    def ahead_s(self) -> float:
        return (self.state.now - self.right_ms()) / 1000

    def problems(self) -> dict[str, str]:
        return clock_problems(self.state, self.clock.reading())


@pytest.mark.parametrize("wrong", [A, B, C])
@pytest.mark.parametrize("error_s", [400 * 86_400.0, -400 * 86_400.0, 60.0, -60.0])
def test_one_wrong_clock_of_three_is_named_and_not_followed(
    wrong: ServerId, error_s: float
) -> None:
    world = World(errors_s={wrong: error_s})
    world.run(20)
    assert abs(world.ahead_s()) < 0.1
    [problem] = world.problems().values()
    assert f"gpu-{wrong}" in problem
    assert ("ahead of" if error_s > 0 else "behind") in problem
    world.errors_s.clear()
    assert world.problems() == {}


def test_a_table_is_ahead_beyond_the_bound_and_not_at_it() -> None:
    world = World()
    reading = world.clock.reading()
    at = replace(reading, table_ahead_s=BOUND_S)
    beyond = replace(reading, table_ahead_s=BOUND_S + 0.001)
    assert clock_problems(world.state, at) == {}
    assert list(clock_problems(world.state, beyond)) == ["ahead"]


def test_a_reading_says_in_seconds_how_far_the_table_is_ahead() -> None:
    world = World()
    world.run(5)
    assert world.clock.reading().table_ahead_s < 0.1
    world.stamp(world.right_ms() + 2500)
    assert world.clock.reading().table_ahead_s == pytest.approx(2.5, abs=0.1)


def test_a_reading_says_in_seconds_how_far_each_clock_is_ahead() -> None:
    world = World(errors_s={B: 1000.0, C: -2000.0})
    world.run(5)
    clocks = world.clock.reading().clocks
    assert {server: known.ahead_s for server, known in clocks.items()} == {
        A: 0.0,
        B: 1000.0,
        C: -2000.0,
    }
    assert [clocks[each].error_s for each in (A, B, C)] == [0.0, 0.001, 0.001]
    world = World(errors_s={A: 3000.0})
    assert world.clock.reading().clocks[A].ahead_s == 3000.0


def test_two_of_three_clocks_do_when_they_agree_that_it_is_so_late() -> None:
    world = World(errors_s={A: 400 * 86_400.0}, silent={C})
    world.run(20)
    assert abs(world.ahead_s()) < 0.1
    world.errors_s[B] = 400 * 86_400.0  # so much for two clocks: a majority says so
    world.run(1)
    assert world.ahead_s() > 399 * 86_400


def test_with_too_few_clocks_the_time_runs_on() -> None:
    world = World(errors_s={A: 400 * 86_400.0}, silent={B, C})
    assert world.clock.reading().source is Source.HELD
    assert world.problems() == {}, "it has only just started"
    world.run(HELD_MAX_S + 10)
    assert abs(world.ahead_s()) < 0.1
    assert "too few" in world.problems()["held"]


def test_samples_lose_their_word() -> None:
    world = World()
    assert world.clock.reading().source is Source.VOTERS
    world.silent = {B, C}
    world.now += FRESH_S - 0.1
    assert world.clock.reading().source is Source.VOTERS
    world.now += 0.2
    assert world.clock.reading().source is Source.HELD
    world.silent, world.error_s = set(), ERROR_MAX_S + 0.1
    assert world.clock.reading().source is Source.HELD


@pytest.mark.parametrize("days", [0, 1, 26])
def test_the_only_voter_follows_its_clock_as_far_as_a_pool_may_have_been_off(days: int) -> None:
    world = World(voters=(A,), errors_s={A: days * 86_400.0})
    world.run(5)
    assert world.ahead_s() == pytest.approx(days * 86_400, abs=0.1)
    assert world.problems() == {}


@pytest.mark.parametrize("days", [28, 400])
def test_the_only_voters_clock_is_held_back_beyond_that(days: int) -> None:
    world = World(voters=(A,))
    world.run(5)
    world.errors_s[A] = days * 86_400.0
    world.run(5)
    assert abs(world.ahead_s()) < 0.1
    assert "gpupool clock --mend" in world.problems()["held"]
    target = world.clock.target_ms()
    assert target is not None
    assert target == world.wall_ms()
    # An operator takes it.
    world.state = replace(world.state, now=Milliseconds(target), era=1)
    world.run(5)
    assert world.problems() == {}
    assert world.ahead_s() == pytest.approx(days * 86_400, abs=0.1)
    assert SOLE_AHEAD_MAX_S < 28 * 86_400


def test_a_table_that_is_ahead_runs_at_half_speed_until_the_clocks_have_caught_up() -> None:
    world = World()
    world.stamp(START_MS + 20_000)
    world.run(10)
    assert world.ahead_s() == pytest.approx(20 - 10 * (1 - SLEW), abs=0.3)
    assert "ahead of the voters' clocks" in world.problems()["ahead"]
    world.run(40)
    assert abs(world.ahead_s()) < 0.1
    assert world.problems() == {}


def test_a_stamp_ahead_of_the_bounds_is_refused_and_the_tables_own_is_not() -> None:
    world = World()
    world.run(1)

    def refused(ahead_s: float) -> bool:
        at_ms = world.right_ms() + int(ahead_s * 1000)
        return (
            world.clock.refusal(wrap(EndLease(LeaseId(1), "x"), at_ms=at_ms, ttl_ms=0)) is not None
        )

    assert not refused(-1000.0)
    assert not refused(BOUND_S - 0.1)
    assert refused(BOUND_S + 0.1)
    world.silent = {B, C}
    world.now += FRESH_S + 1
    assert refused(0.1), "or each stamp would be the base of one a little further ahead"
    assert not refused(-0.1)
    world.stamp(world.right_ms() + 10 * DAY_MS)
    assert not refused(10 * 86_400.0), "the table's own time moves nothing"


def test_the_bound_of_stamps_is_exact() -> None:
    world = World()
    world.run(1)
    pool_ms = world.clock.reading().pool_ms

    def refusal(at_ms: float) -> str | None:
        return world.clock.refusal(wrap(EndLease(LeaseId(1), "x"), at_ms=int(at_ms), ttl_ms=0))

    assert refusal(pool_ms + BOUND_S * 1000) is None
    assert refusal(pool_ms + BOUND_S * 1000 + 1) is not None


def test_an_order_that_would_set_another_time_than_the_clocks_show_is_refused() -> None:
    world = World()
    target = world.clock.target_ms()
    assert target is not None

    def refusal(to: int) -> str | None:
        order = SetClock(Milliseconds(to), 0, "root")
        return world.clock.refusal(wrap(order, at_ms=START_MS, ttl_ms=0))

    assert refusal(target + 1000) is None
    assert refusal(target - DAY_MS) is not None
    assert refusal(target + DAY_MS) is not None
    world.silent = {B, C}
    world.now += FRESH_S + 1
    assert world.clock.target_ms() is None
    assert refusal(target) is not None


def test_a_leader_goes_on_with_a_time_that_was_set_whatever_the_clocks_show() -> None:
    world = World()
    order = SetClock(Milliseconds(START_MS - DAY_MS), 0, "root")
    plain = wrap(order, at_ms=START_MS, ttl_ms=0)
    assert world.clock.refusal(plain) is not None
    world.state = with_changes(world.state, era=1)
    assert world.clock.refusal(plain) is None


def test_the_stamps_of_a_leader_alone_cannot_ratchet() -> None:
    """A follower without clocks may stamp as late as it can: it gains nothing."""
    world = World(silent={B, C})
    for _ in range(1000):
        world.now += 0.01
        at_ms = world.right_ms() + 4000
        if world.clock.refusal(wrap(Tick(), at_ms=at_ms, ttl_ms=0)) is None:
            world.stamp(at_ms)
        world.stamp(world.clock.now_ms())
    assert abs(world.ahead_s()) < 0.1


def test_a_new_pool_begins_with_its_makers_clock() -> None:
    world = World(errors_s={A: -3600.0})
    world.state = PoolState()
    assert world.clock.now_ms() == world.wall_ms()
    assert world.clock.reading().source is Source.OWN
    assert world.clock.refusal(wrap(Tick(), at_ms=world.wall_ms(), ttl_ms=0)) is None


def test_of_two_majorities_that_agree_the_closer_one_sets_the_time() -> None:
    assert agreed_time([0, 4_000, 5_000], 3) == 4_000
    assert agreed_time([0, 1_000, 5_000], 3) == 0
