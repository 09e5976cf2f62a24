"""Unasked duties of a leader and a server, at the very bounds of contact, attachment and time."""

from dataclasses import replace

import pytest
from tests.pool.pool_strategies import GIB, TOKENS
from tests.pool.test_lease_relocations import C, D, Going
from tests.pool.test_lease_relocations import gpu as gpu_of
from tests.pool.test_placement_and_reconcile import wanted
from tests.pool.test_preemption import POLICY, Preempting
from tests.pool.test_suspensions import ONE, A, B, Pool

from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Incarnation
from gpupool.pool.model.state import PoolState, ServerStatus
from gpupool.pool.reconcile import (
    NOTHING_TO_DO,
    SuspensionPlan,
    due_resumptions,
    due_suspensions,
    plan_host,
    plan_leader,
    plan_suspensions,
)

P = SuspensionPhase
LOST = c.ServerContact(B, ONE, reachable=False)
BACK = c.ServerContact(B, ONE, reachable=True)
NOTHING = SuspensionPlan([], [], [], [])


def with_b(pool: Pool, status: ServerStatus) -> PoolState:
    server = replace(pool.state.servers[B], status=status)
    return replace(pool.state, servers=pool.state.servers | {B: server})


# --- contact --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "plan"), [(0.0, ()), (10.0, ()), (10.001, (LOST,))])
def test_a_server_is_lost_after_more_than_ten_seconds_without_contact(
    age_s: float, plan: tuple[c.Command, ...]
) -> None:
    pool = Pool()
    assert plan_leader(pool.state, {B: age_s}, pool.now_ms, A) == plan
    for status in (ServerStatus.UNREACHABLE, ServerStatus.JOINED):
        assert plan_leader(with_b(pool, status), {B: age_s}, pool.now_ms, A) == ()


@pytest.mark.parametrize(("age_s", "plan"), [(0.0, (BACK,)), (1.999, (BACK,)), (2.0, ())])
def test_a_lost_server_is_back_with_contact_of_the_last_two_seconds(
    age_s: float, plan: tuple[c.Command, ...]
) -> None:
    pool = Pool()
    lost = with_b(pool, ServerStatus.UNREACHABLE)
    assert plan_leader(lost, {B: age_s}, pool.now_ms, A, {B}) == plan
    assert plan_leader(lost, {B: age_s}, pool.now_ms, A, {A}) == ()
    for status in (ServerStatus.UP, ServerStatus.JOINED):
        assert plan_leader(with_b(pool, status), {B: age_s}, pool.now_ms, A, {B}) == ()


def test_a_leader_has_contact_with_itself() -> None:
    pool = Pool()
    assert plan_leader(with_b(pool, ServerStatus.UNREACHABLE), {B: 99.0}, pool.now_ms, B) == (BACK,)
    assert plan_leader(pool.state, {B: 99.0}, pool.now_ms, B) == ()


def test_nothing_is_said_of_a_server_of_which_nothing_is_known() -> None:
    """And the contact of another one says nothing of it."""
    pool = Pool()
    other, *_ = (each for each in pool.state.servers if each not in (A, B))
    assert plan_leader(with_b(pool, ServerStatus.UNREACHABLE), {}, pool.now_ms, A, {B}) == ()
    assert plan_leader(pool.state, {A: 99.0, other: 0.0}, pool.now_ms, other) == (
        replace(LOST, server=A),
    )


@pytest.mark.parametrize(("after_ms", "plan"), [(0, ()), (15_000, ()), (15_001, (c.Tick(),))])
def test_time_is_told_when_a_request_has_lapsed(after_ms: int, plan: tuple[c.Command, ...]) -> None:
    pool = Pool()
    request = wanted(1, 9, 1.0)
    assert pool.apply(c.Wait(request, "ada", TOKENS["ada"], "busy")).ok
    assert plan_leader(pool.state, {}, pool.now_ms + after_ms, A) == plan


# --- a host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unattached_s", "ends"), [(0.0, False), (10.0, False), (10.001, True)])
def test_a_lease_without_a_client_ends_after_more_than_ten_seconds(
    unattached_s: float, ends: bool
) -> None:
    pool = Pool()
    plan = plan_host(pool.state, A, ONE, {pool.id: 1}, {pool.id: unattached_s}, {})
    end = c.EndLease(pool.id, "its client never connected")
    assert (plan.kill, plan.propose) == ((), (end,) if ends else ())


@pytest.mark.parametrize(("unattached_s", "stays"), [(0.0, False), (10.0, False), (10.001, True)])
def test_a_program_has_ten_seconds_to_connect_to_the_other_server(
    unattached_s: float, stays: bool
) -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40))
    assert pool.go(lease).ok
    plan = plan_host(pool.state, D, ONE, {}, {lease: unattached_s}, {})
    why = "its program did not connect to the other server"
    refusal = c.RefuseRelocation(lease, pool.goes(lease).number, why, D, ONE)
    assert plan.propose == ((refusal,) if stays else ())
    plan = plan_host(pool.state, C, ONE, {}, {lease: unattached_s}, {})
    end = c.EndLease(lease, "its client never connected")
    assert plan.propose == ((end,) if stays else ())


def test_a_host_with_nothing_to_do_does_nothing() -> None:
    pool = Pool()
    assert plan_host(pool.state, A, ONE, {pool.id: 1}, {}, {}) == NOTHING_TO_DO
    assert plan_host(pool.state, A, Incarnation(2), {}, {}, {pool.id: "gone"}) == NOTHING_TO_DO
    plan = plan_host(pool.state, A, Incarnation(2), {pool.id: 0}, {}, {})
    assert (plan.kill, plan.propose) == ((pool.id,), ())


def test_a_part_is_freed_once_it_has_no_worker() -> None:
    pool = Pool()
    assert pool.apply(c.EndLease(pool.id, "done", "ada")).ok
    for count, plan in ((0, (c.FreeLease(pool.id, A, ONE),)), (1, ())):
        found = plan_host(pool.state, A, ONE, {pool.id: count}, {}, {pool.id: "gone"})
        assert (found.kill, found.propose) == ((pool.id,), plan)


# --- suspensions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [None, *P])
def test_a_lease_that_has_ended_is_neither_suspended_nor_resumed(phase: P | None) -> None:
    pool = Pool()
    assert pool.suspend().ok
    told = HostSuspension(pool.number, phase) if phase is not None else None
    assert pool.apply(c.EndLease(pool.id, "done", "ada")).ok
    assert pool.plan(told) == NOTHING
    hosted = {pool.id: HostSuspension(7, P.SUSPENDED)}
    assert plan_suspensions(pool.state, A, ONE, hosted, {}) == NOTHING


def test_a_server_that_the_table_does_not_know_yet_suspends_nothing() -> None:
    pool = Pool()
    assert pool.suspend().ok
    assert plan_suspensions(pool.state, A, ONE, {}, {}).suspend == [(pool.id, pool.number)]
    assert plan_suspensions(pool.state, A, Incarnation(2), {}, {}) == NOTHING
    assert plan_suspensions(pool.state, A, Incarnation(0), {}, {}) == NOTHING


def test_a_suspension_that_the_host_has_not_heard_of_is_told_and_fenced() -> None:
    """Its memory is another's already: workers of a former suspension must not run on."""
    pool = Pool()
    pool.suspended()
    former = HostSuspension(pool.number - 1, P.SUSPENDED)
    suspend = [(pool.id, pool.number)]
    assert pool.plan(former) == SuspensionPlan(suspend, [], [pool.id], [])
    assert pool.plan(former, workers=0) == SuspensionPlan(suspend, [], [], [])
    later = HostSuspension(pool.number + 1, P.SUSPENDED)
    assert pool.plan(later) == NOTHING


@pytest.mark.parametrize("phase", list(P))
def test_only_workers_that_have_let_go_live_on_in_a_suspended_lease(phase: P) -> None:
    pool = Pool()
    pool.suspended()
    told = HostSuspension(pool.number, phase)
    kill = [] if phase in (P.SUSPENDED, P.STRANDED) else [pool.id]
    assert pool.plan(told) == SuspensionPlan([], [], kill, [])
    assert pool.plan(told, workers=0) == NOTHING


@pytest.mark.parametrize("phase", list(P))
def test_a_server_that_has_confirmed_says_nothing_more(phase: P) -> None:
    pool = Pool()
    assert pool.suspend().ok
    assert pool.confirm(A).ok
    assert pool.plan(HostSuspension(pool.number, phase, 7)) == NOTHING
    assert pool.confirm(B).ok
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    assert pool.resumed(A).ok
    assert pool.plan(HostSuspension(pool.number, phase, 7)) == NOTHING


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        (None, True),
        (P.RUNNING, True),
        (P.REFUSED, True),
        (P.SUSPENDING, False),
        (P.SUSPENDED, False),
        (P.RESUMING, False),
        (P.STRANDED, False),
    ],
)
def test_a_lease_goes_on_where_the_host_says_that_it_runs(phase: P | None, says: bool) -> None:
    pool = Pool()
    pool.suspended()
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    told = HostSuspension(pool.number, phase) if phase is not None else None
    plan = pool.plan(told)
    confirmed: list[c.Command] = [c.ConfirmResumed(pool.id, A, ONE, pool.number)]
    assert plan == SuspensionPlan([], [(pool.id, pool.number)], [], confirmed if says else [])


# --- what goes on ---------------------------------------------------------------------------------


def test_a_suspended_lease_goes_on_only_when_it_is_to_and_has_room() -> None:
    pool = Pool()
    assert due_resumptions(pool.state, pool.now_ms) == ()
    pool.suspended()
    assert due_resumptions(pool.state, pool.now_ms) == (), "nobody wants it to"
    taken = pool.take(60)
    assert taken.lease is not None
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    assert due_resumptions(pool.state, pool.now_ms) == (), "it has no room"
    assert pool.apply(c.EndLease(taken.lease, "done", "bob")).ok
    assert pool.apply(c.FreeLease(taken.lease, B, ONE)).ok
    resumes = (c.ResumeLease(pool.id),)
    assert due_resumptions(pool.state, pool.now_ms) == resumes
    assert due_resumptions(pool.state, pool.now_ms - 1000) == resumes
    assert plan_leader(pool.state, {}, pool.now_ms, A) == resumes


def test_nothing_is_suspended_without_leases_or_without_a_policy() -> None:
    pool = Preempting(POLICY)
    pool.wait("boss", pool.request(9))
    assert due_suspensions(pool.state, pool.now) == ()
    without = Pool()
    assert due_suspensions(without.state, without.now_ms) == ()
    assert without.granted(A) == 40 * GIB
