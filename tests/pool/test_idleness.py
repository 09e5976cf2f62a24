"""When leases that nobody uses are announced and ended: the rules, without a clock."""

from dataclasses import replace

import pytest
from tests.pool.pool_strategies import SERVERS, TOKENS, founding
from tests.pool.test_lease_relocations import C, D, Going, gpu

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.state import Partition, PartStatus, PoolState, Request
from gpupool.pool.model.suspension import Suspension, SuspensionState
from gpupool.pool.model.tables import LeaseTable
from gpupool.pool.policy.lease_ends import (
    duration,
    effective_timeout_s,
    idle_notice,
    idle_plan,
    idle_reason,
    notice_s,
)
from gpupool.pool.transitions.apply import PoolMachine

ONE = Incarnation(1)
TIMEOUT_S = 1200.0
A, B = SERVERS[0], SERVERS[1]


def machine_with_lease(servers: tuple[ServerId, ...], idle_timeout_s: float) -> PoolMachine:
    machine = PoolMachine(PoolState())
    for index, command in enumerate(founding(), start=1):
        machine.apply(index, wrap(command, at_ms=index, ttl_ms=0))
    state = machine.state
    parts = tuple(Partition(s, next(iter(state.servers[s].gpus)), 1 << 30) for s in servers)
    request = Request(
        RequestId(bytes(16)), len(parts), 0.1, across=True, idle_timeout_s=idle_timeout_s
    )
    incarnations = {s: state.servers[s].incarnation for s in servers}
    grant = c.Grant(request, "ada", TOKENS["ada"], bytes(32), parts, incarnations)
    commit(machine, grant)
    assert len(machine.state.leases) == 1
    return machine


def commit(machine: PoolMachine, command: c.Command) -> None:
    machine.apply(machine.state.index + 1, wrap(command, at_ms=1000, ttl_ms=0))


def only_lease(machine: PoolMachine) -> LeaseId:
    return next(iter(machine.state.leases))


def test_an_unused_lease_is_announced_and_then_ended() -> None:
    machine = machine_with_lease((A,), TIMEOUT_S)
    lease = only_lease(machine)
    early_s = notice_s(TIMEOUT_S)
    assert early_s == 60
    for idle_s, nearly_s, announced, ended in (
        (0.0, None, False, False),
        (TIMEOUT_S - early_s - 1, None, False, False),
        (TIMEOUT_S - early_s, None, True, False),
        (TIMEOUT_S, 59.0, True, False),  # the notice promised 60 s
        (TIMEOUT_S, 60.0, True, True),
        (1.0, 60.0, False, False),  # used meanwhile
    ):
        nearly = {} if nearly_s is None else {lease: nearly_s}
        plan = idle_plan(machine.state, A, ONE, {lease: idle_s}, nearly)
        assert (lease in plan.nearly) is announced, idle_s
        end = c.EndLease(lease, "it was not used for 20 min, its idle timeout")
        assert plan.propose == ((end,) if ended else ()), idle_s


def test_without_a_timeout_nothing_ever_ends() -> None:
    machine = machine_with_lease((A,), 0.0)
    lease = only_lease(machine)
    plan = idle_plan(machine.state, A, ONE, {lease: 1e9}, {lease: 1e9})
    assert (plan.nearly, plan.propose) == (frozenset(), ())


def test_a_lease_on_two_servers_is_idle_only_on_both() -> None:
    machine = machine_with_lease((A, B), TIMEOUT_S)
    lease = only_lease(machine)
    alone = idle_plan(machine.state, A, ONE, {lease: 2 * TIMEOUT_S}, {lease: 2 * TIMEOUT_S})
    assert not alone.nearly
    assert alone.propose == (c.NoteIdle(lease, A, ONE, idle=True),)
    commit(machine, *alone.propose)
    assert machine.state.leases[lease].idle_on == (A,)
    again = idle_plan(machine.state, A, ONE, {lease: 2 * TIMEOUT_S}, {})
    assert (again.nearly, again.propose) == (frozenset(), ())
    # B used it until lately, and comes to the end of its patience now: it announces, and so does A.
    other = idle_plan(machine.state, B, ONE, {lease: TIMEOUT_S - 60}, {})
    assert other.nearly == {lease}
    commit(machine, *other.propose)
    assert set(machine.state.leases[lease].idle_on) == {A, B}
    first = idle_plan(machine.state, A, ONE, {lease: 3 * TIMEOUT_S}, {})
    assert (first.nearly, first.propose) == ({lease}, ())  # not without the notice
    later = idle_plan(machine.state, A, ONE, {lease: 3 * TIMEOUT_S}, {lease: 60.0})
    assert later.propose == (c.EndLease(lease, idle_reason(TIMEOUT_S)),)
    # B is used once more, and takes its word back.
    used = idle_plan(machine.state, B, ONE, {lease: 0.0}, {lease: 59.0})
    assert used.propose == (c.NoteIdle(lease, B, ONE, idle=False),)
    commit(machine, *used.propose)
    assert not idle_plan(machine.state, A, ONE, {lease: 3 * TIMEOUT_S}, {lease: 60.0}).nearly


def test_only_the_current_incarnation_speaks() -> None:
    machine = machine_with_lease((A, B), TIMEOUT_S)
    lease = only_lease(machine)
    commit(machine, c.NoteIdle(lease, A, Incarnation(2), idle=True))
    assert machine.state.leases[lease].idle_on == ()
    for incarnation, held in ((Incarnation(2), True), (ONE, False)):
        state = machine.state
        if not held:
            ended = replace(state.leases[lease], end_reason="over")
            state = replace(state, leases=LeaseTable({lease: ended}))
        plan = idle_plan(state, A, incarnation, {lease: 1e6}, {lease: 1e6})
        assert (plan.nearly, plan.propose) == (frozenset(), ())


def test_the_shortest_wish_counts() -> None:
    assert effective_timeout_s() == 0
    assert effective_timeout_s(0, 0) == 0
    assert effective_timeout_s(0, 600, 30) == 30


def test_words() -> None:
    assert idle_notice(1800) == "it has not been used for 29 min, and ends in 1 min unless it is"
    assert idle_notice(10) == "it has not been used for 9 s, and ends in 1 s unless it is"
    assert [duration(s) for s in (2.5, 90, 120, 3600, 5400, 28800)] == [
        "2.5 s", "90 s", "2 min", "1 h", "90 min", "8 h",
    ]  # fmt: skip


@pytest.mark.parametrize("timeout_s", [2.0, 10.0, 599.0, 3600.0, 1e6])
def test_the_notice_is_short(timeout_s: float) -> None:
    assert 0 < notice_s(timeout_s) <= 60
    assert notice_s(timeout_s) == pytest.approx(min(60, timeout_s / 10))


@pytest.mark.parametrize(
    "changes",
    [
        {"suspension": Suspension(SuspensionState.SUSPENDED, 1, "", "", Milliseconds(0))},
        {"end_reason": "over"},
        {"idle_timeout_s": 0.0},
        {"parts": {B: PartStatus.HELD}},
        {"idle_on": (A,), "parts": dict.fromkeys((A, B), PartStatus.HELD)},
    ],
)
def test_a_lease_that_does_not_end_keeps_none_behind_it_from_ending(
    changes: dict[str, object],
) -> None:
    """For example a suspended one: others use the GPUs that its program does not use."""
    machine = machine_with_lease((A,), TIMEOUT_S)
    lease = machine.state.leases[only_lease(machine)]
    passed = replace(lease, **changes)  # pyright: ignore[reportArgumentType]
    behind = replace(lease, id=LeaseId(lease.id + 1))
    table = LeaseTable({passed.id: passed, behind.id: behind})
    idle_s = dict.fromkeys((LeaseId(999), passed.id, behind.id), TIMEOUT_S)
    plan = idle_plan(replace(machine.state, leases=table), A, ONE, idle_s, idle_s)
    assert plan.nearly == {behind.id}
    assert plan.propose == (c.EndLease(behind.id, idle_reason(TIMEOUT_S)),)


@pytest.mark.parametrize("stays", [False, True])
def test_the_server_that_a_lease_is_not_on_any_more_says_nothing_of_its_use(stays: bool) -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert pool.refuse(lease).ok if stays else pool.confirm(lease).ok
    for server in (C, D):
        assert pool.do(c.NoteIdle(lease, server, ONE, True)).ok
    assert pool.lease(lease).idle_on == (C, D)
    kept, left = (C, D) if stays else (D, C)
    assert pool.do(pool.freed(lease, left)).ok
    found = pool.lease(lease)
    assert (found.idle_on, list(found.parts), list(found.units)) == ((kept,), [kept], [kept])
    assert [part.server for part in found.partitions] == [kept]
