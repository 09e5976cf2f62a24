"""The invariants of the table: each breach is found, at once or by a few rows with each command."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.pool.policy_kit import Pool as BookedPool
from tests.pool.test_shared_gpus import CARDS, SERVERS, Pool

from gpupool.pool import invariants
from gpupool.pool.invariants import VIOLATION_COUNT_MAX, InvariantSampler, check_rows, violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId
from gpupool.pool.model.relocation import Relocation, RelocationState
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, GpuOrder, Lease, PartStatus, PoolState, Server
from gpupool.pool.model.suspension import Suspension, SuspensionHistory, SuspensionState
from gpupool.pool.model.tables import LeaseTable, PersistentMap
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.view_building import build_view


def leased() -> PoolState:
    pool = Pool()
    pool.up(SERVERS[0], CARDS[:2], restart=True)
    pool.up(SERVERS[1], CARDS[2:], restart=True)
    assert pool.grant(SERVERS[0], CARDS[0]).ok
    assert pool.grant(SERVERS[1], CARDS[2]).ok
    assert violations(pool.state) == []
    return pool.state


def with_lease(state: PoolState, **changes: Any) -> PoolState:
    lease: Lease = next(iter(state.leases.values()))
    return replace(state, leases=state.leases | {lease.id: replace(lease, **changes)})


def with_server(state: PoolState, server: Server) -> PoolState:
    return replace(state, servers=state.servers | {server.id: server})


def with_gpu(state: PoolState, **changes: Any) -> PoolState:
    server = state.servers[SERVERS[0]]
    gpu = replace(server.gpus[CARDS[0]], **changes)
    return with_server(state, replace(server, gpus=server.gpus | {gpu.id: gpu}))


def broken_tables() -> dict[str, PoolState]:
    state = leased()
    lease = next(iter(state.leases.values()))
    a, b = state.servers[SERVERS[0]], state.servers[SERVERS[1]]
    freed = dict.fromkeys(lease.parts, PartStatus.FREED)
    voters = {ServerId(str(n)): replace(a, id=ServerId(str(n)), gpus={}) for n in range(8)}
    for voter in voters:
        voters[voter] = replace(voters[voter], voter=True)
    return {
        "books say": with_gpu(state, memory_granted=1),
        "granted of": with_gpu(state, memory_total=1),
        "offered by two servers": with_server(state, replace(b, gpus=a.gpus | b.gpus)),
        "granted but not in the table": replace(state, servers=PersistentMap({b.id: b})),
        "the policy's books": replace(state, usage={}),
        "points at no lease": replace(state, leases=LeaseTable()),
        "is closed and has a lease": replace(state, closed=PersistentMap({lease.request: "over"})),
        "not found by its request": replace(state, by_request=PersistentMap()),
        "name different servers": with_lease(state, parts={b.id: PartStatus.HELD}),
        "freed everywhere": with_lease(state, parts=freed),
        "held, with a part ending": with_lease(
            state, parts=lease.parts | {b.id: PartStatus.ENDING}
        ),
        "two partitions on one GPU": with_lease(state, partitions=lease.partitions * 2),
        "administrative acts": replace(state, act_count=state.act_count + 1),
        "8 voters": replace(state, servers=voters),
    }


BROKEN = broken_tables()


@pytest.mark.parametrize("text", BROKEN)
def test_each_breach_is_found(text: str) -> None:
    assert any(text in found for found in violations(BROKEN[text]))


@pytest.mark.parametrize("text", BROKEN)
def test_the_sampler_finds_what_the_whole_check_finds(text: str) -> None:
    reported: list[str] = []
    sampler = InvariantSampler(reported.append)
    state = BROKEN[text]
    for _ in range(2 + sum(1 for _ in check_rows(state)) // invariants.ROWS_PER_APPLY):
        sampler.applied(state)
    assert violations(state)[:1] == [reported[0].rpartition(" (")[0]]
    assert f"(table of index {state.index})" in reported[0]
    assert len(sampler.found) <= VIOLATION_COUNT_MAX
    for _ in range(50):
        sampler.applied(state)
    assert len(reported) == 1, "one error, however long the table stays wrong"


def test_a_breach_is_shown_in_the_warnings_of_status_and_stops_nothing() -> None:
    reported: list[str] = []
    state = replace(leased(), usage={})
    machine = PoolMachine(state, sampler=InvariantSampler(reported.append))
    tick = wrap(c.Tick(), at_ms=2000, ttl_ms=0)
    for index in range(state.index + 1, state.index + 20):
        assert decode(Result, machine.apply(index, tick)).ok
    assert len(reported) == 1
    health = RaftHealth(Role.LEADER, SERVERS[0], 1, 1, 1, (SERVERS[0],), (), 0.0, {}, 0)
    view = build_view(machine.state, health, SERVERS[0], 0, machine.violations)
    assert "the pool's table is wrong" in view.warnings[0]
    assert "the policy's books" in view.warnings[0]


def test_the_work_of_one_command_does_not_grow_with_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = leased()
    server = replace(state.servers[SERVERS[0]], voter=False, gpus={})
    many = {ServerId(f"{n:012x}"): server for n in range(1000)}
    state = replace(state, servers=state.servers | many)
    count = 0

    def counted(table: PoolState) -> Iterator[list[str]]:
        nonlocal count
        for row in check_rows(table):
            count += 1
            yield row

    monkeypatch.setattr(invariants, "check_rows", counted)
    sampler = InvariantSampler(lambda _text: None)
    for _ in range(1200):
        before = count
        sampler.applied(state)
        assert count - before <= invariants.ROWS_PER_APPLY
    assert count > 2 * len(many), "the whole table was checked, more than once"
    assert sampler.found == ()


def test_records_whose_numbers_have_a_gap_are_found() -> None:
    pool = BookedPool()
    for _ in range(3):
        pool.end(pool.grant("ada"))
    state = pool.state
    assert [record.number for record in state.records] == [1, 2, 3]
    for records in (state.records[::-1], (*state.records[:2], state.records[1])):
        wrong = replace(state, records=records)
        assert violations(wrong) == ["the numbers of the records of leases have a gap"]


@pytest.mark.parametrize(("index", "ms"), [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_a_suspension_or_relocation_of_after_the_tables_time_is_found(index: int, ms: int) -> None:
    """By its number or by its time; an order of the present instant is right."""
    state = leased()
    number, since = state.index + index, Milliseconds(state.now + ms)
    suspended = Suspension(SuspensionState.SUSPENDING, number, "ada", "", since)
    found = violations(with_lease(state, suspension=suspended))
    assert any("suspended after the table's time" in each for each in found) is bool(index or ms)
    there = (SERVERS[0], SERVERS[1], "ada", since, Milliseconds(0))
    goes = Relocation(RelocationState.LEAVING, number, *there)
    found = violations(with_lease(state, relocation=goes))
    late = "goes to another server after the table's time"
    assert any(late in each for each in found) is bool(index or ms)


def test_a_suspension_that_all_servers_have_confirmed_is_found() -> None:
    state = leased()
    [first, *_] = state.leases.values()
    for confirmed in ((), tuple(first.parts)):
        suspended = Suspension(
            SuspensionState.RESUMING, 1, "ada", "", Milliseconds(0), confirmed=confirmed
        )
        found = violations(with_lease(state, suspension=suspended))
        assert any("resuming, and confirmed by all" in each for each in found) is bool(confirmed)


def test_a_history_that_does_not_say_since_when_a_lease_is_away_is_found() -> None:
    state = leased()
    wrong = "known as away, or its history not"
    for since in (0, 1):
        history = SuspensionHistory(away_since=Milliseconds(since))
        found = violations(with_lease(state, history=history))
        assert any(wrong in each for each in found) is bool(since)
        suspended = Suspension(SuspensionState.SUSPENDED, 1, "ada", "", Milliseconds(0))
        found = violations(with_lease(state, history=history, suspension=suspended))
        assert any(wrong in each for each in found) is not bool(since)


@pytest.mark.parametrize(("parts", "is_suspended"), [(2, False), (1, False), (2, True)])
def test_a_lease_that_goes_is_on_both_servers_and_not_suspended(
    parts: int, is_suspended: bool
) -> None:
    state = leased()
    there = (SERVERS[0], SERVERS[1], "ada", Milliseconds(0), Milliseconds(0))
    goes = Relocation(RelocationState.LEAVING, 1, *there)
    suspended = Suspension(SuspensionState.SUSPENDING, 1, "ada", "", Milliseconds(0))
    held = dict.fromkeys(SERVERS[:parts], PartStatus.HELD)
    suspension = suspended if is_suspended else None
    found = violations(with_lease(state, relocation=goes, parts=held, suspension=suspension))
    wrong = any("and is elsewhere or suspended" in each for each in found)
    assert wrong is (parts < 2 or is_suspended)


@pytest.mark.parametrize("field", ["granted_at", "ended_at"])
def test_a_lease_that_was_granted_or_ended_after_the_tables_time_is_found(field: str) -> None:
    state = leased()
    for ms in (0, 1):
        found = violations(with_lease(state, **{field: Milliseconds(state.now + ms)}))
        wrong = any("granted or ended after the table's time" in each for each in found)
        assert wrong is bool(ms)


@pytest.mark.parametrize(
    ("authorities", "sound"),
    [
        ((), True),
        ((b"a",), True),
        ((b"a", b"b"), True),
        ((b"a", b"b", b"c"), False),
        ((b"a", b"a"), False),
        ((b"a", b""), False),
        ((b"",), False),
    ],
)
def test_two_cas_are_trusted_at_most_and_they_differ(
    authorities: tuple[bytes, ...], sound: bool
) -> None:
    found = violations(replace(leased(), authorities=authorities))
    count = len(authorities)
    wrong = f"{count} CAs are trusted, of which some are alike or empty"
    assert found == ([] if sound else [wrong])


@pytest.mark.parametrize(("count", "found"), [(7, []), (8, ["8 voters"])])
def test_seven_servers_may_vote(count: int, found: list[str]) -> None:
    voters = {
        ServerId(f"{number}"): Server(ServerId(f"{number}"), f"s{number}", "x:1", True)
        for number in range(count)
    }
    assert violations(PoolState(servers=PersistentMap(voters))) == found


def test_records_that_are_not_counted_are_found() -> None:
    pool = BookedPool()
    pool.end(pool.grant("ada"))
    for count, kept in ((2, 1), (0, 1)):
        wrong = [f"{count} records of leases, of which {kept} are kept"]
        assert violations(replace(pool.state, record_count=count)) == wrong


@pytest.mark.parametrize(
    ("drained", "ordered", "sound"),
    [
        ("", None, True),
        ("", "", True),
        ("hot", "hot", True),
        ("hot", None, False),
        ("", "hot", False),
        ("hot", "cold", False),
    ],
)
def test_a_gpu_is_drained_as_the_latest_order_says(
    drained: str, ordered: str | None, sound: bool
) -> None:
    state = with_gpu(leased(), drain_reason=drained)
    if ordered is not None:
        orders = {CARDS[0]: GpuOrder(ordered, Milliseconds(1))}
        state = with_server(state, replace(state.servers[SERVERS[0]], gpu_orders=orders))
    found = violations(state)
    assert len(found) == (not sound)
    assert all(f"{CARDS[0]}: drained as {drained!r}, ordered as" in each for each in found)


def test_a_server_remembers_the_first_five_violations() -> None:
    """And the command with which a check begins checks no row yet."""
    reported: list[str] = []
    gpus = [Gpu(GpuId(f"GPU-{number}"), number, "X", 8, memory_granted=1) for number in range(9)]
    server = Server(SERVERS[0], "a", "a:1", True, gpus={each.id: each for each in gpus})
    state = PoolState(index=70, servers=PersistentMap({server.id: server}))
    sampler = InvariantSampler(reported.append)
    sampler.applied(state)
    assert (sampler.found, reported) == ((), [])
    sampler.applied(state)
    assert sampler.found == tuple(
        f"GPU-{number}: books say 1, leases hold 0 (table of index 70)" for number in range(5)
    )
    assert reported == [sampler.found[0]]
