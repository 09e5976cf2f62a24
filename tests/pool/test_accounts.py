"""The records of ended leases: one for each part, numbered, of the time that really passed."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.policy_kit import A, B, Pool
from tests.pool.pool_strategies import GIB, steps
from tests.pool.test_apply_properties import founded
from tests.pool.test_apply_walks import Walker

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.commands import unwrap, wrap
from gpupool.pool.model.ids import (
    GpuId,
    Incarnation,
    LeaseId,
    Milliseconds,
    RequestId,
    ServerId,
    TokenId,
)
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import (
    RECORD_COUNT_MAX,
    Lease,
    LeaseRecord,
    Partition,
    PartStatus,
    PoolState,
    RecordedGpu,
    Request,
    with_changes,
)
from gpupool.pool.model.suspension import SuspensionHistory
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.kept_records import begin_accounts, record_part, records_since
from gpupool.simulations.checkers.accounts_checker import AccountsClose, byte_ms
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace

ONE = Incarnation(1)
names, numbers = st.text(max_size=20), st.integers(0, 2**63)
recorded = st.builds(
    LeaseRecord,
    number=numbers,
    lease=numbers.map(LeaseId),
    server=names.map(ServerId),
    server_name=names,
    user=names,
    user_class=names,
    department=names,
    client=names,
    program=names,
    gpus=st.lists(
        st.builds(RecordedGpu, gpu=names.map(GpuId), model=names, memory=numbers, units=numbers),
        max_size=4,
    ).map(tuple),
    requested_at=numbers.map(Milliseconds),
    granted_at=numbers.map(Milliseconds),
    ended_at=numbers.map(Milliseconds),
    freed_at=numbers.map(Milliseconds),
    reason=names,
    idle_timeout_ms=numbers,
    away=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
)


class Recount:
    """The simulator's own count, beside a table."""

    def __init__(self) -> None:
        scheduler = Scheduler(0)
        self.failures = FailureReporter(scheduler, Trace(scheduler))
        self.checker = AccountsClose(self.failures)

    def step(self, machine: PoolMachine, plain: object) -> None:
        before = machine.state
        machine.apply(before.index + 1, plain)  # type: ignore[arg-type]
        self.checker.applied(unwrap(plain), before, machine.state)  # type: ignore[arg-type]
        assert self.failures.failure is None, self.failures.failure
        assert violations(machine.state) == []

    def end(self, machine: PoolMachine, records: list[LeaseRecord]) -> None:
        self.checker.end(machine.state)
        assert self.failures.failure is None, self.failures.failure
        assert [each.number for each in records] == list(range(1, len(records) + 1))
        assert byte_ms(records) == self.checker.freed
        for each in records:
            assert each.requested_at <= each.granted_at <= each.ended_at <= each.freed_at
            assert min(gpu.units for gpu in each.gpus) >= 0
            assert sum(gpu.units for gpu in each.gpus) <= len(each.gpus) * UNIT


def watch(machine: PoolMachine) -> list[LeaseRecord]:
    found: list[LeaseRecord] = []
    machine.on_records = found.extend
    return found


@given(recorded)
def test_a_record_is_read_as_what_was_written(record: LeaseRecord) -> None:
    assert decode(LeaseRecord, encode(record)) == record


@given(steps)
def test_records_are_an_independent_recount(
    drawn: list[tuple[c.Command, int, int]],
) -> None:
    machine, recount = founded(), Recount()
    records, now = watch(machine), 1000
    for command, pause, lifetime in drawn:
        now += pause
        recount.step(machine, wrap(command, at_ms=now, ttl_ms=lifetime))
    recount.end(machine, records)


@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_busy_pool_are_an_independent_recount(seed: int) -> None:
    machine, recount, walker = founded(), Recount(), Walker(seed)
    records, now = watch(machine), 10_000
    for number in range(800):
        now += walker.random.choice([0, 1, 7, 1000])
        command: c.Command = walker.next(machine.state)
        era = machine.state.era
        if number % 97 == 96:
            shift = walker.random.choice([-4000, -100, 50_000])
            command = c.SetClock(Milliseconds(machine.state.now + shift), era, "root")
        recount.step(machine, wrap(command, at_ms=now, ttl_ms=0, era=era))
        now = machine.state.now if machine.state.era != era else now
    assert len(records) > 50
    assert any(each.away for each in records)
    recount.end(machine, records)


def test_a_record_says_who_had_what_and_when() -> None:
    pool = Pool(
        "[class.lab]\nusers = ['ada']\n[user.ada]\ndepartment = 'physics'\nidle_timeout = '30m'\n"
    )
    request = dataclasses.replace(
        pool.request(2, 0.25), across=True, client="ada@laptop", program="train.py"
    )
    first = pool.now_ms
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    pool.now_ms += 5000
    parts = tuple(Partition(s, GpuId(f"{s}-1"), 20 * GIB) for s in (A, B))
    incarnations = {A: ONE, B: ONE}
    claim = c.Grant(request, "ada", TokenId("ada"), bytes(32), parts, incarnations)
    lease = pool.do(claim).lease
    assert lease is not None
    pool.put("[user.ada]\ndepartment = 'history'\n")  # later changes do not rewrite the past
    pool.now_ms += 60_000
    pool.do(c.EndLease(lease, "released", "ada"))
    pool.now_ms += 10
    pool.do(c.FreeLease(lease, B, ONE))
    pool.do(c.FreeLease(lease, B, ONE))
    pool.now_ms += 1
    pool.do(c.FreeLease(lease, A, ONE))
    of_b, of_a = pool.state.records
    assert (of_b.server, of_a.server) == (B, A)
    assert of_b == LeaseRecord(
        number=1,
        lease=lease,
        server=B,
        server_name=B[0],
        user="ada",
        user_class="lab",
        department="physics",
        client="ada@laptop",
        program="train.py",
        gpus=(RecordedGpu(parts[1].gpu, of_b.gpus[0].model, 20 * GIB, UNIT // 4),),
        requested_at=Milliseconds(first),
        granted_at=Milliseconds(first + 5000),
        ended_at=Milliseconds(first + 65_000),
        freed_at=Milliseconds(first + 65_010),
        reason="released",
        idle_timeout_ms=1_800_000,
    )
    assert of_b.gpus[0].model
    assert (of_a.number, of_a.freed_at) == (2, of_b.freed_at + 1)


@pytest.mark.parametrize(("times", "shares"), [(1, [2, 2]), (2, [1, 3])])
def test_the_shares_of_a_part_add_up_to_what_the_grant_counted(
    times: int, shares: list[int]
) -> None:
    """Although its GPUs were said to be larger since."""
    pool = Pool()
    lease = pool.grant("ada", 2, 0.5)
    [(key, units)] = pool.state.leases[lease].units.items()
    assert units == UNIT
    server = pool.state.servers[key]
    gpus = {
        gpu.id: with_changes(gpu, memory_total=gpu.memory_total * times)
        for gpu in server.gpus.values()
    }
    servers = pool.state.servers.set(key, with_changes(server, gpus=gpus))
    pool.machine.state = with_changes(pool.state, servers=servers)
    pool.end(lease)
    [record] = pool.state.records
    assert [gpu.units * 4 // UNIT for gpu in record.gpus] == shares


def test_a_server_that_restarts_frees_what_it_had_with_a_record() -> None:
    pool = Pool()
    lease = pool.do(pool.claim("ada", pool.request())).lease
    pool.now_ms += 1234
    pool.do(c.ServerUp(A, Incarnation(2), "x:1", "1", "580.2", "13.0", (), {}, accounts=True))
    (record,) = pool.state.records
    assert (record.lease, record.freed_at - record.granted_at) == (lease, 1234)
    assert record.reason == f"server {A[0]} restarted"


def test_a_pool_without_such_servers_has_no_records() -> None:
    """The bytes of older tables stay, and servers that read an old log number alike."""
    pool = Pool()
    since = pool.state.accounts_since
    assert since
    machine = PoolMachine(dataclasses.replace(pool.state, accounts_since=Milliseconds(0)))
    pool.machine = machine
    lease = pool.do(pool.claim("ada", pool.request())).lease
    assert lease is not None
    pool.end(lease)
    assert machine.state.record_count == 0
    plain = encode(machine.state)
    assert isinstance(plain, dict)
    assert not {"accounts_since", "records", "record_count"} & plain.keys()


def test_the_table_keeps_the_latest_records() -> None:
    pool = Pool()
    found = watch(pool.machine)
    for _ in range(RECORD_COUNT_MAX + 3):
        lease = pool.do(pool.claim("ada", pool.request())).lease
        assert lease is not None
        pool.end(lease)
    state = pool.state
    assert [each.number for each in found] == list(range(1, RECORD_COUNT_MAX + 4))
    assert list(state.records) == found[3:]
    assert records_since(state, RECORD_COUNT_MAX) == tuple(found[-3:])
    again = watched_restart(state)
    assert again == list(state.records)


def watched_restart(state: PoolState) -> list[LeaseRecord]:
    """Return the records that the server gets when it adopts a table."""
    machine = PoolMachine(PoolState())
    found = watch(machine)
    machine.adopt(decode(PoolState, encode(state)))
    return found


def test_an_unknown_request_of_the_accident_is_not_after_its_grant() -> None:
    """Setting the time back moves each instant by itself."""
    pool = Pool()
    request: Request = pool.request()
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    to = pool.now_ms
    pool.now_ms += 3_600_000
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    lease = pool.do(pool.claim("ada", request)).lease
    assert lease is not None
    pool.do(c.SetClock(Milliseconds(to + 10), 0, "root"))
    held = pool.state.leases[lease]
    assert held.granted_at <= held.requested_at
    machine = pool.machine
    for command in (c.EndLease(lease, "over", "ada"), c.FreeLease(lease, A, ONE)):
        machine.apply(machine.state.index + 1, wrap(command, at_ms=to + 50, ttl_ms=0, era=1))
    (record,) = machine.state.records
    assert record.requested_at <= record.granted_at <= record.ended_at <= record.freed_at
    assert record.freed_at - record.granted_at == 40


def lease_of(*parts: Partition, **changes: object) -> Lease:
    """Return a lease that was granted at 250, with nothing else that matters."""
    lease = Lease(
        id=LeaseId(7),
        request=RequestId(bytes(16)),
        user="ada",
        token=TokenId("ada"),
        partitions=parts,
        parts=dict.fromkeys((part.server for part in parts), PartStatus.HELD),
        ticket_hash=bytes(32),
        granted_at=Milliseconds(250),
        end_reason="over",
        ended_at=Milliseconds(900),
    )
    return with_changes(lease, **changes)


def record_at_once(lease: Lease, server: ServerId = A) -> LeaseRecord:
    """Return the record of a part that is freed in a table with nothing but accounts."""
    table = PoolState(now=Milliseconds(1000), accounts_since=Milliseconds(1))
    state = record_part(table, lease, server)
    assert state.record_count == 1
    [made] = state.records
    return made


@pytest.mark.parametrize(("now", "since"), [(0, 1), (1, 1), (2, 2), (5000, 5000)])
def test_accounts_begin_once_and_never_at_0(now: int, since: int) -> None:
    state = begin_accounts(PoolState(now=Milliseconds(now)))
    assert state.accounts_since == since
    later = with_changes(state, now=Milliseconds(9000))
    assert begin_accounts(later) is later


def test_a_part_on_what_the_table_does_not_know_is_recorded_without_names() -> None:
    one, two = (Partition(A, GpuId(f"{A}-{number}"), GIB) for number in (1, 2))
    made = record_at_once(lease_of(one, two, units={A: 100}))
    assert made.server_name == ""
    assert made.gpus == (RecordedGpu(one.gpu, "", GIB, 0), RecordedGpu(two.gpu, "", GIB, 100))
    assert (made.ended_at, made.freed_at, made.reason) == (900, 1000, "over")


def test_a_part_that_the_grant_did_not_count_is_recorded_with_no_share() -> None:
    made = record_at_once(lease_of(Partition(A, GpuId("x"), GIB)))
    assert [gpu.units for gpu in made.gpus] == [0]


@pytest.mark.parametrize(
    ("away", "counted"),
    [
        ((100, 249), ()),
        ((100, 250), ()),
        ((100, 251), ((250, 251),)),
        ((250, 300), ((250, 300),)),
        ((260, 300), ((260, 300),)),
    ],
)
def test_of_the_times_away_those_since_the_stay_began_are_recorded(
    away: tuple[int, int], counted: tuple[tuple[int, int], ...]
) -> None:
    span = (Milliseconds(away[0]), Milliseconds(away[1]))
    history = SuspensionHistory(away=(span,), away_ms=span[1] - span[0])
    made = record_at_once(lease_of(Partition(A, GpuId("x"), GIB), history=history))
    assert made.away == counted


@pytest.mark.parametrize(("number", "seen"), [(-1, 3), (0, 3), (4, 3), (5, 2), (7, 0), (9, 0)])
def test_records_since_a_number_are_those_that_the_table_still_has(number: int, seen: int) -> None:
    made = record_at_once(lease_of(Partition(A, GpuId("x"), GIB)))
    kept = tuple(dataclasses.replace(made, number=each) for each in (5, 6, 7))
    state = PoolState(records=kept, record_count=7)
    assert records_since(state, number) == kept[3 - seen :]
