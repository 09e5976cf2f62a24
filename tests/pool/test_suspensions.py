"""Suspending and resuming leases: the memory charged when, and the rights to order it."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import upgraded
from tests.pool.pool_strategies import GIB, SERVERS
from tests.pool.test_placement_and_reconcile import ONE, Table

from gpupool.monitoring.accounting import Range
from gpupool.monitoring.usage_report import lease_report, live_records
from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.policy import Usage
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, LeaseRecord, Partition, Request
from gpupool.pool.model.suspension import (
    DRIVER_TOO_OLD,
    SPAN_COUNT_MAX,
    SuspensionHistory,
    SuspensionState,
)
from gpupool.pool.policy.giving_way import never_suspendable, not_suspendable
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import SuspensionPlan, plan_suspensions
from gpupool.pool.view import PoolView
from gpupool.pool.view_building import build_view

A, B = SERVERS[:2]
S = SuspensionState
P = SuspensionPhase


class Pool(Table):
    """A pool with one lease of 40 GiB on each of two servers."""

    def __init__(self) -> None:
        super().__init__()
        request = Request(RequestId(bytes(16)), 2, memory=40 * GIB, across=True)
        parts = (self.part(A, 40), self.part(B, 40))
        result = self.apply(self.claim(request, parts))
        assert result.lease is not None
        self.id = result.lease

    def part(self, server: ServerId, gib: int) -> Partition:
        return Partition(server, GpuId(f"{server}-1"), gib * GIB)

    @property
    def lease(self) -> Lease:
        return self.state.leases[self.id]

    @property
    def number(self) -> int:
        assert self.lease.suspension is not None
        return self.lease.suspension.number

    @property
    def phase(self) -> S | None:
        return self.lease.suspension.state if self.lease.suspension is not None else None

    def apply(self, command: c.Command, after_ms: int = 0) -> Result:
        result = super().apply(command, after_ms)
        assert violations(self.state) == []
        return result

    def granted(self, server: ServerId) -> int:
        return self.state.servers[server].gpus[GpuId(f"{server}-1")].memory_granted

    def suspend(self, by: str = "ada", *, operator: bool = False) -> Result:
        return self.apply(c.SuspendLease(self.id, "to make room", by, operator))

    def confirm(self, server: ServerId, number: int | None = None) -> Result:
        number = self.number if number is None else number
        return self.apply(c.ConfirmSuspended(self.id, server, ONE, number, GIB))

    def suspended(self, by: str = "ada") -> None:
        assert self.suspend(by, operator=True).ok
        assert self.confirm(A).ok
        assert self.confirm(B).ok

    def resumed(self, server: ServerId) -> Result:
        return self.apply(c.ConfirmResumed(self.id, server, ONE, self.number))

    def take(self, gib: int) -> Result:
        request = Request(RequestId(b"x" * 16), 1, memory=gib * GIB)
        return self.apply(self.claim(request, (self.part(B, gib),), "bob"))

    def wait(self, ms: int) -> None:
        self.apply(c.CancelRequest(RequestId(b"z" * 16), "nothing"), after_ms=ms)

    def plan(self, told: HostSuspension | None, workers: int = 1) -> SuspensionPlan:
        hosted = {self.id: told} if told is not None else {}
        return plan_suspensions(self.state, A, ONE, hosted, {self.id: workers})


def test_memory_is_given_back_once_all_servers_have_let_go() -> None:
    pool = Pool()
    assert pool.suspend().ok
    assert pool.phase is S.SUSPENDING
    assert pool.confirm(A).ok
    assert pool.confirm(A).ok, "said again"
    assert (pool.granted(A), pool.granted(B)) == (40 * GIB, 40 * GIB)
    assert pool.take(60).kind == "busy"
    assert pool.confirm(B).ok
    assert pool.phase is S.SUSPENDED
    assert (pool.granted(A), pool.granted(B)) == (0, 0)
    assert pool.state.usage["ada"] == Usage(leases=1)
    assert pool.take(60).ok


def test_memory_is_taken_before_workers_go_on() -> None:
    pool = Pool()
    pool.suspended()
    assert pool.apply(c.ResumeLease(pool.id, "ada"), after_ms=5000).ok
    assert pool.phase is S.RESUMING
    assert (pool.granted(A), pool.granted(B)) == (40 * GIB, 40 * GIB)
    assert pool.resumed(B).ok
    assert pool.phase is S.RESUMING
    assert pool.resumed(A).ok
    assert pool.lease.suspension is None
    assert pool.lease.history is not None
    assert pool.lease.history.away_ms == 5000
    assert pool.state.usage["ada"].memory == 80 * GIB


def test_an_order_to_resume_that_is_not_needed_says_so() -> None:
    pool = Pool()
    order = c.ResumeLease(pool.id, "ada")
    assert pool.apply(order).why == "it is not suspended"
    pool.suspended()
    assert pool.apply(order).why == ""
    assert pool.apply(order).why == "it is being resumed already"


def test_late_confirmations_of_an_earlier_suspension_do_nothing() -> None:
    pool = Pool()
    assert pool.suspend().ok
    first = pool.number
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    assert pool.phase is S.RESUMING
    assert not pool.confirm(A).ok, "it is being resumed"
    assert pool.resumed(A).ok
    assert pool.resumed(B).ok
    assert pool.suspend().ok
    assert not pool.confirm(A, first).ok
    assert pool.number > first
    wrong = c.ConfirmSuspended(pool.id, A, Incarnation(9), pool.number, 0)
    assert not pool.apply(wrong).ok
    assert pool.lease.suspension is not None
    assert pool.lease.suspension.confirmed == ()


def test_a_refusal_lets_all_servers_go_on_and_gives_nothing_back() -> None:
    pool = Pool()
    assert pool.suspend().ok
    assert pool.confirm(A).ok
    assert pool.apply(c.RefuseSuspension(pool.id, B, ONE, pool.number, "MIG mode")).ok
    assert pool.phase is S.RESUMING
    assert pool.granted(A) == 40 * GIB
    assert pool.lease.history is not None
    assert pool.lease.history.refusal is not None
    assert pool.lease.history.refusal.reason == "MIG mode"
    assert pool.plan(HostSuspension(pool.number, P.SUSPENDED)).resume == [(pool.id, pool.number)]
    assert pool.resumed(A).ok
    assert pool.resumed(B).ok
    assert pool.lease.suspension is None


def test_a_lease_that_ends_while_suspended_gives_nothing_back_twice() -> None:
    for steps in range(4):
        pool = Pool()
        assert pool.suspend().ok
        if steps > 0:
            assert pool.confirm(A).ok
        if steps > 1:
            assert pool.confirm(B).ok
        if steps > 2:
            assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
        assert pool.apply(c.EndLease(pool.id, "Ctrl-C", "ada")).ok
        assert not pool.apply(c.ConfirmSuspended(pool.id, B, ONE, pool.number, 0)).ok
        for server in (A, B):
            assert pool.apply(c.FreeLease(pool.id, server, ONE)).ok
        assert (pool.granted(A), pool.granted(B)) == (0, 0)
        assert "ada" not in pool.state.usage
        assert pool.id not in pool.state.leases


def test_a_restarted_server_ends_its_suspended_leases() -> None:
    pool = Pool()
    pool.suspended()
    gpus = tuple(replace(g, memory_granted=0) for g in pool.state.servers[A].gpus.values())
    up = c.ServerUp(A, Incarnation(2), "a:1", "1", "580.2", "13.0", gpus)
    assert pool.apply(up).ok
    assert "restarted" in pool.lease.end_reason
    assert pool.apply(c.FreeLease(pool.id, B, ONE)).ok
    assert pool.id not in pool.state.leases
    assert (pool.granted(A), pool.granted(B)) == (0, 0)


def test_without_room_an_order_to_resume_waits() -> None:
    pool = Pool()
    pool.suspended()
    taken = pool.take(60)
    assert taken.lease is not None
    assert pool.apply(c.ResumeLease(pool.id)).kind == "conflict", "nobody wants it yet"
    result = pool.apply(c.ResumeLease(pool.id, "ada"))
    assert result.ok
    assert result.why == "it goes on when there is room: GPU 1 of b is taken by now"
    assert pool.phase is S.SUSPENDED
    assert pool.apply(c.ResumeLease(pool.id)).kind == "busy"
    assert pool.apply(c.EndLease(taken.lease, "done", "bob")).ok
    assert pool.apply(c.FreeLease(taken.lease, B, ONE)).ok
    assert pool.apply(c.ResumeLease(pool.id)).ok
    assert pool.phase is S.RESUMING


def test_who_may_order_it() -> None:
    pool = Pool()
    assert pool.suspend("bob").why == f"lease {pool.id:04x} belongs to ada"
    assert pool.apply(c.SuspendLease(LeaseId(4000), "")).why == "the pool has no lease 0fa0"
    pool.suspended("root")
    assert pool.suspend().why == "it is suspended already"
    why = "root has suspended it, and an operator resumes it"
    assert pool.apply(c.ResumeLease(pool.id, "ada")).why == why
    assert pool.apply(c.ResumeLease(pool.id, "eve", operator=True)).ok
    assert pool.suspend().kind == "busy", "it is being resumed"
    assert pool.apply(c.EndLease(pool.id, "done", "ada")).ok
    assert pool.suspend().why == f"lease {pool.id:04x} has ended: done"
    assert [act.kind for act in pool.state.acts][-2:] == ["lease-suspended", "lease-resumed"]


def test_an_order_is_carried_out_once() -> None:
    pool = Pool()
    order = c.SuspendLease(pool.id, "", "ada", order=bytes(16))
    assert pool.apply(order).ok
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    assert pool.resumed(A).ok
    assert pool.resumed(B).ok
    assert pool.apply(order).ok
    assert pool.lease.suspension is None, "a repetition that came late"


def test_a_server_is_told_and_says_what_its_host_has_done() -> None:
    pool = Pool()
    assert pool.plan(None) == SuspensionPlan([], [], [], [])
    assert pool.suspend().ok
    number = pool.number
    assert pool.plan(None).suspend == [(pool.id, number)]
    assert pool.plan(HostSuspension(number - 1, P.RUNNING)).suspend == [(pool.id, number)]
    for phase in (P.RUNNING, P.SUSPENDING):
        assert pool.plan(HostSuspension(number, phase)) == SuspensionPlan([], [], [], [])
    [said] = pool.plan(HostSuspension(number, P.SUSPENDED, 7)).propose
    assert said == c.ConfirmSuspended(pool.id, A, ONE, number, 7)
    [said] = pool.plan(HostSuspension(number, P.REFUSED, reason="MIG")).propose
    assert said == c.RefuseSuspension(pool.id, A, ONE, number, "MIG")
    pool.confirm(A)
    pool.confirm(B)
    assert pool.plan(HostSuspension(number, P.SUSPENDED)) == SuspensionPlan([], [], [], [])
    assert pool.plan(HostSuspension(number, P.RUNNING)).kill == [pool.id], "fenced"
    assert pool.apply(c.ResumeLease(pool.id, "ada")).ok
    for phase in (P.SUSPENDED, P.RESUMING):
        plan = pool.plan(HostSuspension(number, phase))
        assert plan == SuspensionPlan([], [(pool.id, number)], [], [])
    [said] = pool.plan(HostSuspension(number, P.RUNNING)).propose
    assert said == c.ConfirmResumed(pool.id, A, ONE, number)
    assert pool.plan(None, workers=0).propose == [said], "it had no worker there"


@pytest.mark.parametrize("phase", list(P))
def test_a_host_that_suspends_what_the_table_holds_is_told_to_go_on(phase: P) -> None:
    """As after a suspension that the table has given up, or that is over."""
    pool = Pool()
    goes_on = [(pool.id, 7)] if phase in (P.SUSPENDING, P.SUSPENDED) else []
    assert pool.plan(HostSuspension(7, phase)) == SuspensionPlan([], goes_on, [], [])


def test_the_clock_can_be_set_back_over_a_suspension() -> None:
    pool = Pool()
    pool.suspended()
    assert pool.apply(c.SetClock(Milliseconds(500), 0, "root"), after_ms=60_000).ok
    assert violations(pool.state) == []


# --- accounts -------------------------------------------------------------------------------------


def freed(pool: Pool) -> list[LeaseRecord]:
    """End the lease, and return the records of its parts."""
    lease = pool.lease
    assert pool.apply(c.EndLease(pool.id, "done")).ok
    for server in lease.parts:
        assert pool.apply(c.FreeLease(pool.id, server, ONE)).ok
    return list(pool.state.records)


def went_away(pool: Pool, ms: int) -> None:
    """Be suspended for so long, and run again."""
    pool.suspended()
    assert pool.apply(c.ResumeLease(pool.id, "ada", operator=True), after_ms=ms).ok
    assert pool.resumed(A).ok
    assert pool.resumed(B).ok


def test_time_away_is_in_no_account() -> None:
    pool = Pool()
    granted = pool.lease.granted_at
    pool.wait(3000)
    went_away(pool, 5000)
    went_away(pool, 700)
    pool.suspended()
    pool.wait(40)
    records = freed(pool)
    assert [sum(end - begin for begin, end in each.away) for each in records] == [5740, 5740]
    for each in records:
        assert len(each.away) == 3
        assert Range().ms_of(each) == each.freed_at - granted - 5740
        middle = each.away[0][0] + 1000
        parts = Range(0, middle), Range(middle)
        assert sum(part.ms_of(each) for part in parts) == Range().ms_of(each)


def test_very_many_times_away_are_counted_in_full() -> None:
    history = SuspensionHistory()
    for at in range(100, 100 + 10 * SPAN_COUNT_MAX * 2, 10):
        history = replace(history, away_since=Milliseconds(at)).back(Milliseconds(at + 3))
    assert len(history.away) == SPAN_COUNT_MAX
    assert history.away_ms == sum(end - begin for begin, end in history.away)
    assert history.away_ms == 3 * 2 * SPAN_COUNT_MAX
    edges = [each for span in history.away for each in span]
    assert edges == sorted(edges)


def test_the_view_says_what_a_suspended_lease_holds() -> None:
    pool = Pool()
    pool.suspended()
    view = view_of(pool)
    (lease,) = view.leases
    assert (lease.state, lease.is_away, lease.memory) == ("suspended", True, 0)
    assert sum(end - begin for begin, end in lease.away) == 90
    assert not any(gpu.memory_granted for server in view.servers for gpu in server.gpus)
    records, _ = live_records(view)
    assert {Range().ms_of(each) for each in records} == {pool.state.now - lease.granted_at}
    assert "suspended   once, 0.1 s in all" in "\n".join(lease_report(pool.id, records))


def test_leases_on_what_cannot_be_suspended_are_named() -> None:
    pool = Pool()
    assert not_suspendable(pool.state, pool.lease) == ""
    instance = Partition(A, GpuId(f"{A}-2"), GIB)
    lease = replace(pool.lease, partitions=(instance,))
    assert not_suspendable(pool.state, lease) == "a MIG instance cannot be suspended"
    gone = replace(pool.lease, partitions=(Partition(ServerId("f" * 12), GpuId("0"), GIB),))
    assert "is not reachable" in not_suspendable(pool.state, gone)


def with_driver(pool: Pool, version: str, *, emulated: bool = False) -> None:
    """Start server B with a driver of this version."""
    server = pool.state.servers[B]
    gpus = tuple(replace(gpu, emulated=emulated) for gpu in server.gpus.values())
    up = c.ServerUp(B, ONE, "b:1", "1", version, "13.0", gpus, {}, accounts=True)
    assert pool.apply(up).ok
    upgraded(pool.machine)


@pytest.mark.parametrize(
    ("version", "emulated", "why"),
    [
        ("569.99", False, DRIVER_TOO_OLD),
        ("470.256.02", False, DRIVER_TOO_OLD),
        ("570.00", False, ""),
        ("580.159.04", False, ""),
        ("470.256.02", True, ""),  # no driver is asked
        ("", False, ""),  # its host knows
        ("R470 (a beta)", False, ""),
    ],
)
def test_what_the_table_knows_keeps_a_lease_from_being_suspended_before_any_attempt(
    version: str, emulated: bool, why: str
) -> None:
    pool = Pool()
    with_driver(pool, version, emulated=emulated)
    assert (not_suspendable(pool.state, pool.lease), never_suspendable(pool.state, pool.lease)) == (
        why,
        why,
    )
    (lease,) = view_of(pool).leases
    assert (lease.not_suspendable, lease.not_suspended) == (why, "")
    said = pool.suspend()
    assert (said.ok, said.why, pool.phase) == (not why, why, None if why else S.SUSPENDING)
    assert pool.lease.history is None if why else pool.lease.history


def test_a_server_that_is_away_keeps_no_order_from_being_kept() -> None:
    pool = Pool()
    assert pool.apply(c.ServerContact(B, ONE, reachable=False)).ok
    assert "is not reachable" in not_suspendable(pool.state, pool.lease)
    (lease,) = view_of(pool).leases
    assert (lease.state, lease.not_suspendable) == ("unreachable", "")
    assert pool.suspend().ok


def view_of(pool: Pool) -> PoolView:
    health = RaftHealth(Role.LEADER, A, 1, 1, 1, (A, B), (B,), 0.1, {}, 1)
    return build_view(pool.state, health, A, pool.state.now + 90)


def test_a_lease_that_never_was_moved_says_so() -> None:
    pool = Pool()
    pool.suspended()
    assert pool.lease.history is not None
    assert pool.lease.history.moved_at == 0


def test_nothing_is_killed_of_a_lease_without_workers() -> None:
    pool = Pool()
    pool.suspended()
    assert plan_suspensions(pool.state, A, ONE, {}, {pool.id: 1}).kill == [pool.id]
    assert plan_suspensions(pool.state, A, ONE, {}, {}).kill == []
