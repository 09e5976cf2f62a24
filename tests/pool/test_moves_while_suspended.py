"""Suspended leases that go on with other GPUs, and those that could not go on there."""

from tests.pool.policy_kit import ONE, A, B, upgraded
from tests.pool.test_lease_moves import Moving, gpu

from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.reconcile import due_resumptions, plan_suspensions

S = SuspensionState
P = SuspensionPhase


def suspended(pool: Moving, *places: tuple[GpuId, int], by: str = "ada") -> LeaseId:
    """Return a lease that was suspended by a user or, by another, as an operator does."""
    upgraded(pool.machine)
    lease = pool.hold(*places)
    assert pool.do(c.SuspendLease(lease, "", by, operator=by != "ada")).ok
    pool.let_go(lease)
    return lease


def test_a_suspended_lease_goes_on_with_other_gpus_than_it_had() -> None:
    """Its memory is taken there with the order, and its host hears where to."""
    pool = Moving()
    lease = suspended(pool, (gpu(0), 60))
    before = pool.order_number(lease)
    pool.hold((gpu(0), 60), user="bob")
    pool.now_ms += 7
    done = pool.move(lease, gpu(2))
    text = f"it is resumed, and moved from GPU 0 to GPU 2 of {A[0]}"
    assert (done.ok, done.why, pool.phase(lease)) == (True, text, S.RESUMING)
    assert (pool.granted(0), pool.granted(2)) == (60, 60)
    assert pool.order_number(lease) > before, "the host has had that of its suspension"
    told = {lease: HostSuspension(before, P.SUSPENDED)}
    plan = plan_suspensions(pool.state, A, ONE, told, {lease: 1})
    assert (plan.resume, plan.kill) == ([(lease, pool.order_number(lease))], [])
    assert plan.moves == {lease: {gpu(0): gpu(2)}}
    assert plan.propose == []
    pool.go_on(lease)
    assert (pool.phase(lease), pool.gpus(lease)) == (None, [gpu(2)])
    history = pool.lease(lease).history
    assert history is not None
    assert (history.away_ms, history.away_since) == (7, 0)
    assert history.moved_at == pool.now_ms


def test_where_a_suspended_lease_has_no_room_it_stays_as_it_is() -> None:
    pool = Moving()
    lease = suspended(pool, (gpu(0), 60))
    pool.hold((gpu(2), 60), user="bob")
    before = pool.lease(lease)
    assert "has no room" in pool.move(lease, gpu(2)).why
    assert pool.lease(lease) is before
    assert pool.move(lease).ok, "the pool finds another one"


def test_partitions_of_a_suspended_lease_leave_one_another_no_room() -> None:
    """They have given it back: somebody else may have it."""
    pool = Moving()
    lease = suspended(pool, (gpu(0), 60), (gpu(1), 60))
    pool.hold((gpu(1), 60), user="bob")
    assert "has no room" in pool.move(lease, gpu(1), gpu(2)).why
    refused = pool.move(lease, gpu(2), off=(gpu(0),))
    assert (refused.ok, refused.kind) == (False, "busy"), "the other one has no room on its own"
    assert pool.move(lease, gpu(2), gpu(3)).ok
    assert pool.gpus(lease) == [gpu(2), gpu(3)]


def test_who_has_suspended_a_lease_decides_who_moves_it() -> None:
    pool = Moving()
    lease = suspended(pool, (gpu(0), 40), by="root")
    refused = pool.move(lease, gpu(1))
    why = "root has suspended it, and an operator resumes it"
    assert (refused.kind, refused.why) == ("denied", why)
    assert pool.move(lease, gpu(1), by="root", operator=True).ok


def test_one_on_several_servers_is_moved_while_it_runs_alone() -> None:
    pool = Moving()
    upgraded(pool.machine)
    lease = pool.hold((gpu(0), 40), (gpu(0, B), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease, A, B)
    refused = pool.move(lease, gpu(1))
    why = "it is suspended on several servers; only one that runs is moved there"
    assert (refused.kind, refused.why) == ("busy", why)


def test_one_that_cannot_go_on_there_is_suspended_until_its_own_gpus_are_free() -> None:
    """Its host stands still with nothing on a GPU, so nobody has its memory twice."""
    pool = Moving()
    lease = suspended(pool, (gpu(0), 60))
    other = pool.hold((gpu(0), 60), user="bob")
    assert pool.move(lease, gpu(2)).ok
    plan = pool.plan(lease, phase=P.STRANDED)
    [refusal] = plan.propose
    assert isinstance(refusal, c.RefuseSuspension)
    assert plan.resume == []
    assert pool.do(refusal).ok
    assert (pool.phase(lease), pool.gpus(lease)) == (S.SUSPENDED, [gpu(0)])
    assert (pool.granted(0), pool.granted(2)) == (60, 0)
    plan = pool.plan(lease, phase=P.STRANDED)
    assert (plan.kill, plan.resume, plan.propose) == ([], [], []), "it has nothing there"
    history = pool.lease(lease).history
    assert history is not None
    assert history.refusal is not None
    assert history.away_since == pool.now_ms
    assert "it goes on when there is room: GPU 0 of a is taken" in pool.state.events[-1].text
    assert due_resumptions(pool.state, pool.now_ms) == ()
    assert pool.do(c.EndLease(other, "done", "bob")).ok
    assert pool.do(c.FreeLease(other, A, ONE)).ok
    [resumption] = due_resumptions(pool.state, pool.now_ms)
    assert pool.do(resumption).ok
    plan = pool.plan(lease, phase=P.STRANDED)
    assert (plan.resume, plan.moves) == ([(lease, pool.order_number(lease))], {})
    pool.go_on(lease)
    assert (pool.phase(lease), pool.gpus(lease), pool.granted(0)) == (None, [gpu(0)], 60)


def test_one_that_could_not_go_on_there_is_sent_to_a_third_gpu() -> None:
    """Its host has not gone back yet: its word on the order before counts no more."""
    pool = Moving()
    lease = suspended(pool, (gpu(0), 60))
    pool.hold((gpu(0), 60), user="bob")
    assert pool.move(lease, gpu(2)).ok
    number = pool.order_number(lease)
    assert pool.do(c.RefuseSuspension(lease, A, ONE, number, "the driver refuses")).ok
    assert pool.move(lease, gpu(3)).ok
    told = {lease: HostSuspension(number, P.STRANDED)}
    plan = plan_suspensions(pool.state, A, ONE, told, {lease: 1})
    assert plan.resume == [(lease, pool.order_number(lease))]
    assert plan.moves == {lease: {gpu(0): gpu(3)}}
    assert plan.propose == []


def test_one_that_let_go_to_be_moved_waits_for_its_own_gpus_in_the_same_way() -> None:
    pool = Moving()
    upgraded(pool.machine)
    lease = pool.hold((gpu(0), 60))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease)
    pool.hold((gpu(0), 60), user="bob")
    [refusal] = pool.plan(lease, phase=P.STRANDED).propose
    assert pool.do(refusal).ok
    assert (pool.phase(lease), pool.gpus(lease), pool.granted(1)) == (S.SUSPENDED, [gpu(0)], 0)
    assert pool.state.usage["ada"].units == 0
