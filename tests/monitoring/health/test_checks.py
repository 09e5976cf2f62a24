"""Every check: found within its interval and 2 s, gone after the cure, never in a healthy pool."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitoring.health.healthy_pool import DAY_MS, GIB, GPUS, START_MS, A, B, C, Machine

from gpupool.monitoring.health import check_table
from gpupool.monitoring.health.device_memory import DeviceMemory, SelfTest
from gpupool.monitoring.health.health_monitor import SIGNS, FindingTracker
from gpupool.monitoring.health.readings import ExporterReadings, Result
from gpupool.monitoring.history.history_settings import CAPPED, FULL, SET_BACK
from gpupool.pool.automatic_drains import SIGN_NAMES
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, RequestId, TokenId
from gpupool.pool.model.state import (
    Lease,
    Partition,
    PartStatus,
    PoolState,
    Request,
    ServerStatus,
    Waiting,
    with_changes,
)
from gpupool.pool.telemetry import (
    HISTOGRAMS,
    ConsensusTelemetry,
    GpuTelemetry,
    Health,
    Histogram,
    HostTelemetry,
)

WARN, FAIL = Health.WARN, Health.FAIL
Change = Callable[[Machine], None]


def gpu(**changes: Any) -> Change:
    return lambda machine: machine.change_gpu(**changes)


def table(change: Callable[[PoolState], PoolState]) -> Change:
    def apply(machine: Machine) -> None:
        machine.state = change(machine.state)

    return apply


def gpu_of_table(**changes: Any) -> Change:
    def change(state: PoolState) -> PoolState:
        server = state.servers[A]
        gpus = server.gpus | {GPUS[3]: replace(server.gpus[GPUS[3]], **changes)}
        return with_changes(state, servers=state.servers.set(A, with_changes(server, gpus=gpus)))

    return table(change)


def server_b(**changes: Any) -> Change:
    def change(state: PoolState) -> PoolState:
        server = with_changes(state.servers[B], **changes)
        return with_changes(state, servers=state.servers.set(B, server))

    return table(change)


def health(**changes: Any) -> Change:
    def apply(machine: Machine) -> None:
        machine.health = replace(machine.health, **changes)

    return apply


def host(**changes: Any) -> Change:
    def apply(machine: Machine) -> None:
        machine.host = replace(machine.host or HostTelemetry(), **changes)

    return apply


def consensus(**changes: Any) -> Change:
    def apply(machine: Machine) -> None:
        machine.consensus = replace(machine.consensus or ConsensusTelemetry(), **changes)

    return apply


def slow_calls(name: str, value_s: float, count: int) -> Change:
    def apply(machine: Machine) -> None:
        bucket = sum(bound < value_s for bound in HISTOGRAMS[name])
        counts = list(machine.histograms[name].counts)
        counts[bucket] += count
        machine.histograms = machine.histograms | {
            name: Histogram(tuple(counts), machine.histograms[name].sum + count * value_s)
        }

    return apply


def attribute(**changes: Any) -> Change:
    def apply(machine: Machine) -> None:
        for name, value in changes.items():
            setattr(machine, name, value)

    return apply


def self_test(test: SelfTest) -> Change:
    return attribute(tests={GPUS[3]: test})


def token(left_ms: int) -> Change:
    def change(state: PoolState) -> PoolState:
        known = state.tokens[TokenId("root")]
        changed = replace(known, expires_at=Milliseconds(START_MS + left_ms))
        return with_changes(state, tokens=state.tokens | {known.id: changed})

    return table(change)


def backup_at(ago_ms: int) -> Change:
    return table(lambda state: with_changes(state, backup_at=Milliseconds(START_MS + ago_ms)))


def waits(for_ms: int, *, drained: bool) -> Change:
    def change(state: PoolState) -> PoolState:
        since = Milliseconds(START_MS - for_ms)
        request = Request(RequestId(bytes(16)), 1, fraction=1.0)
        entry = Waiting(request, "ada", 0, since, since, "busy")
        state = with_changes(state, waiting=state.waiting.set(request.id, entry))
        if drained:
            server = with_changes(state.servers[B], drain_reason="new fan")
            state = with_changes(state, servers=state.servers.set(B, server))
        return state

    return table(change)


def nobody_waits(state: PoolState) -> PoolState:
    return with_changes(state, waiting=type(state.waiting)())


@dataclass(frozen=True)
class Case:
    check: str
    status: Health
    ill: Change
    well: Change | None  # None: it is over by itself after some time
    warm_up: int = 30


CASES = [
    Case("gpu-fault", FAIL, gpu_of_table(fault="it is lost"), gpu_of_table(fault="")),
    Case("xid", FAIL, gpu(xids={79: 1}), gpu(xids={})),
    Case("xid", WARN, gpu(xids={63: 1}), gpu(xids={})),
    Case("recovery", FAIL, gpu(recovery_action=1), gpu(recovery_action=0)),
    Case("ecc", FAIL, gpu(ecc_errors=2), gpu(ecc_errors=0)),
    Case("ecc", WARN, gpu(ecc_corrected=50), None, 3700),
    Case("remapped-rows", WARN, gpu(remapped_rows={"pending": 1}), gpu(remapped_rows={})),
    Case("remapped-rows", FAIL, gpu(remapped_rows={"failed": 1}), gpu(remapped_rows={})),
    Case("temperature", FAIL, gpu(temperature_c=93.0), gpu(temperature_c=70.0)),
    Case("throttle", WARN, gpu(throttled_s={"thermal": 40.0}), None),
    Case("throttle", FAIL, gpu(throttled_s={"hw_thermal": 400.0}), None),
    Case("pcie", WARN, gpu(pcie_replays=11), None),
    Case("nvlink", WARN, gpu(nvlink_errors=1), None),
    Case("pcie-link", WARN, gpu(pcie_width=8), gpu(pcie_width=16)),
    Case("pcie-link", WARN, gpu(pcie_generation=3), gpu(pcie_generation=5)),
    Case("nvlink", FAIL, gpu(nvlinks_up=16), gpu(nvlinks_up=18)),
    Case("self-test", WARN, self_test(SelfTest(9, 8.0, 10.0)), self_test(SelfTest(9, 9.9, 10.0))),
    Case(
        "self-test",
        FAIL,
        self_test(SelfTest(9, 9.0, 9.0, "it computed wrongly")),
        self_test(SelfTest(9, 9.0, 9.0)),
    ),
    Case("gpu-count", WARN, attribute(gpus_before=9), attribute(gpus_before=8)),
    Case("foreign-use", WARN, gpu_of_table(memory_foreign=8 * GIB), gpu_of_table(memory_foreign=0)),
    Case(
        "drained", WARN, gpu_of_table(drain_reason="auto: thermal"), gpu_of_table(drain_reason="")
    ),
    Case("disk", WARN, host(disk_free=90 * GIB), host(disk_free=500 * GIB)),
    Case("disk", FAIL, host(disk_free=GIB), host(disk_free=500 * GIB)),
    Case("disk", WARN, slow_calls("raft_fsync_duration_seconds", 0.1, 30), None),
    Case("disk", FAIL, slow_calls("raft_fsync_duration_seconds", 2.0, 30), None),
    Case("descriptors", WARN, host(descriptors=850), host(descriptors=100)),
    Case("descriptors", FAIL, host(descriptors=1000), host(descriptors=100)),
    Case("disk", FAIL, host(disk_read_only=True), host(disk_read_only=False)),
    Case("memory", WARN, host(memory_charged=7 * GIB // 2), host(memory_charged=GIB)),
    Case("memory", FAIL, host(memory_charged=4 * GIB), host(memory_charged=GIB)),
    Case("processes", WARN, host(pids=420), host(pids=50)),
    Case("processes", FAIL, host(pids=499), host(pids=50)),
    Case(
        "link-loss",
        WARN,
        consensus(link_sent={B: 200_000}, link_resent={B: 400}),
        consensus(link_resent={B: 3}),
    ),
    Case("mtu", WARN, consensus(link_mtu={B: 1500}), consensus(link_mtu={B: 9000})),
    Case("mtu", FAIL, consensus(link_stalls_s={B: 6.0}), consensus(link_stalls_s={})),
    Case("journal", WARN, consensus(journal_bytes=GIB), consensus(journal_bytes=GIB // 512)),
    Case("versions", FAIL, consensus(link_versions={B: 4}), consensus(link_versions={})),
    Case("address", FAIL, consensus(link_away={B: 2}), consensus(link_away={B: 1})),
    Case("event-loop", WARN, attribute(loop_lag_s=0.2), attribute(loop_lag_s=0.0)),
    Case("event-loop", FAIL, attribute(loop_lag_s=1.5), attribute(loop_lag_s=0.0)),
    Case("link", FAIL, health(connected=(C,)), health(connected=(B, C))),
    Case("link-rtt", WARN, consensus(link_rtt_s={B: 0.02}), consensus(link_rtt_s={B: 0.0003})),
    Case("apply-lag", WARN, health(commit_index=300), health(commit_index=100)),
    Case("apply-lag", FAIL, health(commit_index=101), health(commit_index=100), 200),
    Case("elections", FAIL, health(elections=6), None, 100),
    Case("worker-start", WARN, slow_calls("worker_start_seconds", 15.0, 1), None),
    Case("worker-start", FAIL, attribute(counters={"worker_start_failures": 2}), None),
    Case(
        "certificate",
        WARN,
        attribute(certificates={"server": 20 * 86400.0}),
        attribute(certificates={}),
    ),
    Case("certificate", FAIL, attribute(certificates={"server": 0.0}), attribute(certificates={})),
    Case("certificate", WARN, attribute(certificates={"ca": 1e7}), attribute(certificates={})),
    Case("certificate", FAIL, attribute(has_signer=False), attribute(has_signer=True)),
    Case(
        "history",
        FAIL,
        attribute(exporter=ExporterReadings(problem="damaged")),
        attribute(exporter=ExporterReadings()),
    ),
    *(
        Case(
            "history",
            WARN,
            attribute(exporter=ExporterReadings(problem=problem)),
            attribute(exporter=ExporterReadings()),
        )
        for problem in (FULL, CAPPED, SET_BACK)
    ),
    Case("history", WARN, attribute(exporter=ExporterReadings(dropped=3)), None, 100),
    Case("history", WARN, attribute(exporter=ExporterReadings(restarts=4)), None, 100),
    Case("quorum", FAIL, health(majority_age_s=3.0), health(majority_age_s=0.0)),
    Case("quorum", WARN, health(connected=(C,)), health(connected=(B, C))),
    Case("quorum", WARN, health(voters=(A, B, C, "d"), connected=(B, C, "d")), health(voters=(A,))),
    Case("pool-time", FAIL, consensus(table_ahead_s=6.0), consensus(table_ahead_s=0.0)),
    Case(
        "silent", FAIL, server_b(status=ServerStatus.UNREACHABLE), server_b(status=ServerStatus.UP)
    ),
    Case("table", FAIL, health(diverged=(B,)), health(diverged=())),
    Case("versions", WARN, server_b(driver_version="570.1"), server_b(driver_version="580.1")),
    Case("waiting", WARN, waits(DAY_MS // 12, drained=True), table(nobody_waits)),
    Case("waiting", FAIL, waits(2 * DAY_MS, drained=False), table(nobody_waits)),
    Case("tokens", WARN, token(7 * DAY_MS), token(300 * DAY_MS)),
    Case("tokens", FAIL, token(-1), token(300 * DAY_MS)),
    Case("backup", WARN, backup_at(-8 * DAY_MS), backup_at(-DAY_MS)),
]


def named(case: Case) -> str:
    return f"{case.check}-{case.status.name.lower()}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_found_in_time_and_gone_after_the_cure(case: Case) -> None:
    machine = Machine()
    assert machine.run(case.warm_up) == ()
    check = next(each for each in check_table.CHECKS if each.name == case.check)
    limit_s = check.every_s + check.patience_s + 2
    if (case.check, case.status) == ("apply-lag", FAIL):
        limit_s += 60  # for which nothing was applied
    case.ill(machine)
    ill_at = machine.now_s
    assert machine.seconds_until(case.check) <= limit_s
    [found] = [each for each in machine.monitor.findings if each.check == case.check]
    assert found.status is case.status
    assert found.text
    assert found.hint
    assert found.since - START_MS >= 1000 * ill_at
    if case.well is not None:
        case.well(machine)
    assert machine.seconds_until(case.check, gone=True, at_most=3800) <= 3750


def test_every_check_has_a_case() -> None:
    elsewhere = {"repeated-xid", "clock", "link-speed"}  # the last in test_pool_health
    assert {case.check for case in CASES} | elsewhere == {c.name for c in check_table.CHECKS}
    for check in check_table.CHECKS:
        statuses = {case.status for case in CASES if case.check == check.name}
        if check.name not in elsewhere | {"elections"}:
            assert statuses == {s for s, said in ((WARN, check.warns), (FAIL, check.fails)) if said}


YEAR_S = 400 * 86400.0


@pytest.mark.parametrize(("offset_s", "status"), [(1.5, WARN), (-7.0, FAIL), (YEAR_S, FAIL)])
def test_a_clock_that_is_off_those_of_a_majority(offset_s: float, status: Health) -> None:
    machine = Machine()
    machine.run(30)
    consensus(clock_offset_s={B: offset_s, C: offset_s})(machine)
    assert machine.seconds_until("clock") <= 12
    [found] = machine.monitor.findings
    assert found.status is status
    way = "behind" if offset_s > 0 else "ahead of"
    assert found.text.startswith("the clock of a is ")
    assert f" {way} the time on which " in found.text
    consensus(clock_offset_s={B: 0.1, C: 0.1})(machine)
    assert machine.seconds_until("clock", gone=True) <= 42


@pytest.mark.parametrize("offset_s", [YEAR_S, -YEAR_S, 7.0])
def test_a_leader_whose_clock_is_wrong_makes_no_right_server_fail(offset_s: float) -> None:
    machine = Machine()
    machine.health = replace(machine.health, leader=B)
    machine.run(30)
    consensus(clock_offset_s={B: offset_s, C: 0.1})(machine)
    assert machine.run(60) == ()


def test_a_server_without_a_vote_is_judged_by_the_voters_clocks() -> None:
    machine = Machine()
    machine.health = replace(machine.health, voters=(B, C), connected=(B, C), leader=B)
    machine.run(30)
    consensus(clock_offset_s={B: 7.0, C: 7.0})(machine)
    assert machine.seconds_until("clock") <= 12


def test_a_clock_is_not_judged_while_no_majority_is_known() -> None:
    machine = Machine()
    machine.run(30)
    consensus(clock_offset_s={})(machine)
    assert machine.run(60) == ()


def test_clocks_of_which_no_majority_agrees() -> None:
    machine = Machine()
    machine.run(30)
    consensus(clock_offset_s={B: 7.0, C: -7.0})(machine)
    assert machine.seconds_until("clock") <= 12
    [found] = machine.monitor.findings
    assert (found.status, "no majority" in found.text) == (FAIL, True)


def test_a_server_that_starts_looks_for_the_others_first() -> None:
    machine = Machine()
    health(leader=None, majority_age_s=99.0)(machine)
    assert machine.run(5) == ()
    assert machine.seconds_until("quorum") <= 4


def test_corrected_errors_beside_those_of_a_month() -> None:
    machine = Machine()
    machine.errors_a_second = {GPUS[3]: 0.01, GPUS[4]: 1.0}
    machine.run(30)
    for number in (3, 4):
        machine.change_gpu(number, ecc_corrected=100)
    assert machine.seconds_until("ecc") <= 12  # an hour of this start is not needed
    assert [each.subject for each in machine.monitor.findings] == [GPUS[3]]


def test_an_idle_gpu_lets_its_pcie_link_rest() -> None:
    machine = Machine()
    machine.change_gpu(utilization=0.0, pcie_width=1, pcie_generation=1)
    assert machine.run(100) == ()


def test_what_is_remembered_of_gpus_outlives_a_start() -> None:
    memory, day = DeviceMemory(), 86_400_000
    assert memory.gpu_count is None
    at = START_MS
    for number in range(40):
        at = START_MS + number * day
        memory.note_errors([GpuTelemetry(GPUS[0], 0, ecc_corrected=24 * number)], at)
        if number < 2:
            assert not memory.errors_a_second(at)
    memory.note_test(GPUS[0], 5, 10.0, "")
    memory.note_test(GPUS[0], 6, 9.0, "it computed wrongly")
    memory.note_test(GPUS[0], 7, 9.0, "")
    again = DeviceMemory(memory.text(8))
    assert again.gpu_count == 8
    assert again.errors_a_second(at) == {GPUS[0]: 24 / 86_400}
    assert again.tests() == {GPUS[0]: SelfTest(7, 9.0, 10.0)}
    older = memory.text(8).replace('"problem"', '"right_in_a_row": 3, "problem"')
    assert DeviceMemory(older).tests() == again.tests(), "earlier versions counted"
    # A driver that was loaded anew counts from 0.
    again.note_errors([GpuTelemetry(GPUS[0], 0, ecc_corrected=0)], at)
    assert again.errors_a_second(at + day) == {GPUS[0]: 24 / 86_400}
    for damaged in ("{", "[]", '{"gpus": "x"}', '{"gpus": 1, "devices": {"a": 1}}'):
        assert DeviceMemory(damaged).gpu_count is None


def test_elections_in_an_hour() -> None:
    machine = Machine()
    for number in range(4):
        machine.run(600)
        assert not machine.monitor.findings
        health(elections=2 + number)(machine)
    assert machine.seconds_until("elections") <= 12
    assert machine.monitor.findings[0].status is WARN


def held(machine: Machine, number: int, user: str) -> None:
    """Let one lease of ``user`` be the only one on the fourth GPU."""
    lease = Lease(
        id=LeaseId(number),
        request=RequestId(number.to_bytes(16)),
        user=user,
        token=TokenId("t"),
        partitions=(Partition(A, GPUS[3], GIB),),
        parts={A: PartStatus.HELD},
        ticket_hash=bytes(32),
        granted_at=Milliseconds(START_MS),
    )
    state = machine.state
    machine.state = with_changes(state, leases=type(state.leases)().set(lease.id, lease))


def test_programs_of_several_users_fail_on_one_gpu() -> None:
    machine = Machine(drain_for=("repeated-xid",))
    machine.run(5)
    for number, user in enumerate(["ada", "ada", "bob"], start=1):
        assert not machine.monitor.findings
        held(machine, number, user)
        machine.run(2)
        machine.change_gpu(xids={31: number})
        machine.run(2)
    [found] = machine.monitor.findings
    assert (found.check, found.subject, found.status) == ("repeated-xid", GPUS[3], WARN)
    assert list(machine.monitor.signs()) == [(GPUS[3], "repeated-xid")]


def test_one_users_programs_accuse_no_gpu() -> None:
    machine = Machine()
    for number in range(1, 9):
        held(machine, number, "ada")
        machine.run(2)
        machine.change_gpu(xids={31: number})
        machine.run(2)
    assert not machine.monitor.findings


def test_every_sign_has_checks() -> None:
    assert set(SIGNS) == set(SIGN_NAMES)
    names = {check.name for check in check_table.CHECKS}
    assert names.issuperset(name for found in SIGNS.values() for name in found)


def test_signs_drain_only_what_was_asked_for() -> None:
    for drain_for, expected in ((("thermal",), [(GPUS[3], "thermal")]), (("pcie",), []), ((), [])):
        machine = Machine(drain_for=drain_for)
        machine.run(30)
        machine.change_gpu(throttled_s={"thermal": 100.0})
        machine.run(12)
        assert list(machine.monitor.signs()) == expected


def test_a_server_without_readings_has_no_findings() -> None:
    machine = Machine()
    machine.host = machine.consensus = None
    machine.histograms = {}
    for number, known in enumerate(machine.gpus.values()):
        machine.gpus[GPUS[number]] = type(known)(known.gpu, known.memory_used)
    assert machine.run(700) == ()


@pytest.mark.long
def test_nothing_is_found_in_24_hours_of_a_healthy_pool_with_noise() -> None:
    """Every tenth second, so that it takes two seconds; the rounds of 1 s see the same values."""
    machine, random = Machine(), Random(5)
    corrected = throttled = replays = 0
    for step in range(8640):
        machine.now_s += 9.0
        if random.random() < 0.02:
            corrected += 1
        throttled += random.random() < 0.03
        replays += random.random() < 0.1
        machine.change_gpu(
            temperature_c=random.uniform(30, 88),
            ecc_corrected=corrected,
            throttled_s={"thermal": float(throttled), "hw_thermal": 0.0, "hw_power_brake": 0.0},
            pcie_replays=replays,
            xids={31: step // 500},
        )
        machine.loop_lag_s = 3.0 if random.random() < 0.005 else random.uniform(0, 0.05)
        consensus(
            link_rtt_s={B: random.uniform(1e-4, 2e-3), C: random.uniform(1e-4, 2e-3)},
            clock_offset_s={B: random.gauss(0, 0.1), C: random.gauss(0, 0.1)},
        )(machine)
        host(disk_free=int(random.uniform(200, 900) * GIB), descriptors=random.randint(50, 700))(
            machine
        )
        slow_calls("raft_fsync_duration_seconds", random.uniform(1e-4, 2e-2), 10)(machine)
        if random.random() < 0.01:
            health(connected=(C,))(machine)  # a link that comes back within a round
            machine.health = replace(machine.health, leader=B)
        else:
            health(connected=(B, C), leader=A)(machine)
        index = machine.health.commit_index + random.randint(0, 50)
        health(commit_index=index, applied_index=index - random.randint(0, 3))(machine)
        assert machine.second() == (), f"after {machine.now_s:.0f} s"


# --- patience -------------------------------------------------------------------------------------


def rounds(tracker: FindingTracker, *statuses: Health, begin: float = 0.0) -> list[Health]:
    shown: list[Health] = []
    for number, status in enumerate(statuses):
        now = begin + number
        results = [Result("x", "y", status, f"is {status.name}")] if status else []
        found = tracker.round(results, now, Milliseconds(int(1000 * now)))
        shown.append(found[0].status if found else Health.OK)
    return shown


OK = Health.OK


def test_worse_at_once_and_better_after_three_good_rounds() -> None:
    said = rounds(
        FindingTracker({}), OK, WARN, FAIL, WARN, WARN, FAIL, WARN, WARN, WARN, OK, OK, OK
    )
    assert said == [OK, WARN, FAIL, FAIL, FAIL, FAIL, FAIL, FAIL, WARN, WARN, WARN, OK]


def test_patience() -> None:
    said = rounds(FindingTracker({"x": 3.0}), WARN, WARN, OK, WARN, WARN, FAIL, WARN, WARN, FAIL)
    assert said == [OK, OK, OK, OK, OK, OK, WARN, WARN, WARN]


def test_flapping_is_one_finding() -> None:
    tracker = FindingTracker({})
    said = rounds(tracker, *[FAIL, OK, OK, OK] * 3)
    assert said[-4:] == [FAIL, FAIL, FAIL, WARN]
    [found] = tracker.round([], 13.0, Milliseconds(13_000))
    assert found.text == "failed 3 times in 10 minutes, and is well now: is FAIL"
    assert (found.status, found.flaps) == (WARN, True)
    assert tracker.round([], 700.0, Milliseconds(700_000)) == ()


@given(
    st.lists(st.sampled_from([OK, OK, OK, WARN, FAIL]), max_size=80),
    st.sampled_from([0.0, 2.0, 5.0]),
)
def test_level_and_text_are_of_one_moment(statuses: list[Health], patience_s: float) -> None:
    """A text is shown at the level of the result that said it, or as a memory."""
    tracker = FindingTracker({"x": patience_s})
    for number, status in enumerate(statuses):
        text = f"is {status.name} at {number}"
        results = [Result("x", "y", status, text)] if status else []
        for found in tracker.round(results, float(number), Milliseconds(1000 * number)):
            if "is well now" in found.text:
                assert found.status is WARN
                assert status is OK
            else:
                assert f"is {found.status.name} at" in found.text


def test_a_server_that_does_not_know_the_table_checks_for_a_majority_alone() -> None:
    """Its table may lack the operators' tokens, for example."""
    machine = Machine(knows_table=False)
    token(-1)(machine)
    assert machine.run(30) == ()
    health(leader=None, majority_age_s=10.0)(machine)
    assert [each.check for each in machine.run(30)] == ["quorum"]
    health(leader=A, majority_age_s=0.0)(machine)
    machine.knows_table = True
    assert [each.check for each in machine.run(30)] == ["tokens"]


def test_a_round_is_cheap() -> None:
    """At most 1 ms in the middle, with 8 GPUs and 50 leases; a loaded machine is given more."""
    machine = Machine()
    leases = type(machine.state.leases)()
    for number in range(1, 51):
        held(machine, number, "ada")
        leases = leases.set(LeaseId(number), machine.state.leases[LeaseId(number)])
    machine.state = with_changes(machine.state, leases=leases)
    machine.run(700)
    took: list[float] = []
    for _ in range(200):
        machine.now_s += 1.0
        readings = machine.readings()
        began = perf_counter()
        machine.monitor.round(readings)
        took.append(perf_counter() - began)
    assert sorted(took)[100] < 0.001
    assert sorted(took)[190] < 0.005


def test_a_check_that_raises_is_told_and_stops_no_other() -> None:
    machine, told = Machine(), list[str]()
    machine.monitor = type(machine.monitor)((), told.append)
    machine.change_gpu(remapped_rows=None, recovery_action=1)
    machine.run(3)
    assert any("AttributeError" in text for text in told)
    assert [each.check for each in machine.monitor.findings] == ["recovery"]


def test_gpu_ids_are_subjects() -> None:
    machine = Machine()
    machine.run(5)
    machine.change_gpu(xids={79: 1})
    [found] = machine.run(2)
    assert found.subject == GpuId("GPU-3")
    assert "GPU 3" in found.text
