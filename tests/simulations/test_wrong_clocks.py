"""Wrong clocks in the simulator: they move the table's time nowhere, and an operator mends it."""

import pytest

from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.transitions import clock_setting
from gpupool.simulations.checkers.time_checker import TableTime
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import ClusterFaults
from gpupool.simulations.kernel.drifting_clock import EPOCH_MS
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Trace

DAYS_MS = 86_400_000


def pool_of(servers: int, seed: int) -> tuple[Cluster, ClusterFaults]:
    """Return a complete pool with clients that ask and hold leases."""
    cluster = Cluster(Options(seed=seed, servers=servers, clients=12, hold_s=1.0, think_s=0.5))
    cluster.create()
    while not cluster.complete:
        cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
        assert cluster.scheduler.now < 30.0
    cluster.start_clients()
    cluster.scheduler.run_until(cluster.scheduler.now + 5.0)
    return cluster, ClusterFaults(cluster)


def run_for(cluster: Cluster, seconds: float) -> int:
    """Let virtual time pass; return how many leases were granted."""
    before = cluster.counters.granted
    cluster.scheduler.run_until(cluster.scheduler.now + seconds)
    assert cluster.failures.failure is None, cluster.failures.failure
    return cluster.counters.granted - before


def table_ahead_s(cluster: Cluster) -> float:
    """Return how far the newest table's time is ahead of the right time."""
    right_ms = EPOCH_MS + int(cluster.scheduler.now * 1000)
    return (cluster.environment.checkers.logs.state.now - right_ms) / 1000


@pytest.mark.parametrize(
    "seed", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_leaders_wrong_clock_does_not_move_the_tables_time(seed: int) -> None:
    """Finding H1: 3 s of +400 days kept the table 34,559,977 s ahead, and ended nearly all grants.

    This test failed at commit e177413 with exactly that.
    """
    cluster, faults = pool_of(5, seed)
    before = run_for(cluster, 10.0)
    leader = cluster.leader_name()
    assert leader is not None
    faults.clock_jump(leader, 400 * DAYS_MS)
    run_for(cluster, 3.0)
    assert table_ahead_s(cluster) < 5.0
    faults.clock_jump(leader, -400 * DAYS_MS)
    after = run_for(cluster, 10.0)
    assert abs(table_ahead_s(cluster)) < 5.0
    assert after > before / 2


def set_all(cluster: Cluster, faults: ClusterFaults, by_ms: int) -> None:
    for name in cluster.server_names():
        faults.clock_jump(name, by_ms)


@pytest.mark.long
def test_an_operator_sets_a_table_that_is_ahead() -> None:
    """When most clocks were wrong: until then grants go on, and the time runs at half speed."""
    cluster, faults = pool_of(3, seed=3)
    before = run_for(cluster, 10.0)
    set_all(cluster, faults, 20 * DAYS_MS)
    run_for(cluster, 3.0)
    assert table_ahead_s(cluster) > 19 * 86_400
    set_all(cluster, faults, -20 * DAYS_MS)
    run_for(cluster, 3.0)
    ahead_s = table_ahead_s(cluster)
    slowed = run_for(cluster, 10.0)
    assert slowed > before / 3
    assert table_ahead_s(cluster) == pytest.approx(ahead_s - 5.0, abs=1.5)
    cluster.operator.set_clock()
    run_for(cluster, 2.0)
    assert abs(table_ahead_s(cluster)) < 1.0
    assert run_for(cluster, 10.0) > before / 2
    state = cluster.environment.checkers.logs.state
    assert state.era == 1
    assert state.acts[-1].kind == "clock-set"


@pytest.mark.long
def test_leases_are_moved_one_command_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_setting, "MOVED_AT_ONCE_MAX", 1)
    cluster, faults = pool_of(3, seed=6)
    set_all(cluster, faults, 20 * DAYS_MS)
    run_for(cluster, 5.0)
    set_all(cluster, faults, -20 * DAYS_MS)
    run_for(cluster, 3.0)
    logs, left = cluster.environment.checkers.logs, set[int]()
    cluster.operator.set_clock()
    for _ in range(1000):
        run_for(cluster, 0.001)
        move = logs.state.moving
        if move is not None:
            left.add(sum(map(move.is_due, logs.state.leases)))
    assert max(left) >= 3
    assert len(left) >= 3
    assert logs.state.moving is None
    assert abs(table_ahead_s(cluster)) < 2.0
    assert all(each.granted_at <= logs.state.now for each in logs.state.leases.values())
    assert run_for(cluster, 3.0) > 5


def test_the_only_voters_clock_is_held_back_and_taken_by_order() -> None:
    cluster, faults = pool_of(1, seed=4)
    set_all(cluster, faults, 400 * DAYS_MS)
    before = run_for(cluster, 5.0)
    assert abs(table_ahead_s(cluster)) < 1.0
    assert before > 3
    cluster.operator.set_clock()
    run_for(cluster, 1.0)
    assert table_ahead_s(cluster) == pytest.approx(400 * 86_400, abs=1.0)


@pytest.mark.long
def test_a_pool_that_was_off_for_weeks_starts_by_itself() -> None:
    """A majority agrees; the only voter of a pool may be three weeks and some days ahead."""
    for servers, days in ((3, 29), (1, 26)):
        cluster, faults = pool_of(servers, seed=5)
        for name in cluster.server_names():
            faults.kill(name, 2.0)
        set_all(cluster, faults, days * DAYS_MS)
        run_for(cluster, 8.0)
        assert table_ahead_s(cluster) == pytest.approx(days * 86_400, abs=10.0)


class TimeBench:
    """The checker of the table's time, before voters with clocks set by hand."""

    def __init__(self, ahead_ms: dict[str, int]) -> None:
        scheduler = Scheduler(1, events_max=10, burst_max=10)
        self._failures = FailureReporter(scheduler, Trace(scheduler))
        self._checker = TableTime(self._failures)
        self.ahead_ms = {ServerId(name): ms for name, ms in ahead_ms.items()}

    def agrees(self, voters: str, at: float, now_ms: int, era: int = 0) -> bool:
        """Apply a command that leaves the table with ``voters`` and the time ``now_ms``."""
        clocks = {each: round(1000 * at) + ahead for each, ahead in self.ahead_ms.items()}
        ids = [ServerId(name) for name in voters]
        servers = PersistentMap({i: Server(i, i, f"{i}:1", voter=True) for i in ids})
        state = PoolState(now=Milliseconds(now_ms), servers=servers, era=era)
        self._checker.applied(state, clocks, at)
        return self._failures.failure is None


def test_a_stamp_of_before_a_new_voter_may_be_applied_after_it() -> None:
    """Seed 700234: nothing was applied for 5 s, and then all at once.

    By three clocks the stamps were good. With the fourth voter, who came between them, they are
    not, and they were made before it.
    """
    bench = TimeBench({"a": 69_700, "b": 6_500, "c": 86_900, "d": 7_500})
    assert bench.agrees("abc", 20.0, 89_700)
    assert bench.agrees("abc", 25.3, 89_700)
    assert bench.agrees("abcd", 25.301, 89_800)
    assert bench.agrees("abcd", 25.304, 95_000)
    assert not bench.agrees("abcd", 28.5, 105_000)


def test_a_command_is_bounded_by_the_voters_of_before_it() -> None:
    """Seed 800019: the clocks of two of three voters were ahead, and one of these left the pool.

    The command that removed it had the time that the other one's clock had jumped to.
    """
    bench = TimeBench({"a": 0, "b": 2_875_761_978, "c": 0})
    assert bench.agrees("abc", 20.0, 20_000)
    bench.ahead_ms[ServerId("c")] = 24_090
    assert bench.agrees("ac", 20.2, 44_290)


@pytest.mark.parametrize(
    ("at", "era", "good"), [(21.1, 0, True), (24.0, 0, False), (21.1, 1, False)]
)
def test_former_voters_bound_what_was_stamped_lately_in_this_era(
    at: float, era: int, good: bool
) -> None:
    bench = TimeBench({"a": 0, "b": 2_875_761_978, "c": 24_090})
    assert bench.agrees("abc", 20.0, 20_000)
    assert bench.agrees("ac", 20.2, 20_200)
    assert bench.agrees("ac", 20.3, 20_300, era)
    assert bench.agrees("ac", at, 45_190, era) == good
