"""Obstacles to suspending a lease, to resuming it, and to its return to its old GPUs."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, upgraded
from tests.pool.test_lease_moves import Moving, gpu

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Incarnation, LeaseId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, PoolState, with_changes
from gpupool.pool.model.suspension import SuspensionHistory, SuspensionState
from gpupool.pool.transitions.lease_suspensions import (
    order_refusal,
    resume_refusal,
    way_back_refusal,
    with_order,
)

S = SuspensionState


def arriving(*, upgrade: bool = False) -> tuple[Moving, LeaseId]:
    """Return a pool with a lease of 40 GiB that was moved from GPU 0 to 1, and is not there yet."""
    pool = Moving()
    if upgrade:
        upgraded(pool.machine)
    lease = pool.hold((gpu(0), 40))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease)
    return pool, lease


def stranded(pool: Moving, lease: LeaseId, reason: str = "no memory") -> Result:
    number = pool.order_number(lease)
    return pool.do(c.RefuseSuspension(lease, A, ONE, number, reason))


def without_gpus(state: PoolState, server: ServerId = A) -> PoolState:
    row = with_changes(state.servers[server], gpus={})
    return with_changes(state, servers=state.servers.set(server, row))


def without_server(state: PoolState, server: ServerId = A) -> PoolState:
    return with_changes(state, servers=state.servers.without(server))


# --- suspending -----------------------------------------------------------------------------------


def test_a_lease_is_suspended_for_a_request_only_while_that_waits() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    request = pool.request(9)
    order = c.SuspendLease(lease, "to make room", for_request=request.id)
    before = pool.state
    refused = pool.do(order)
    assert refused == Result(False, "conflict", "the request waits no more")
    assert pool.state.leases is before.leases
    assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
    assert pool.do(order).ok
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert (suspension.for_request, suspension.by) == (request.id, "")
    assert pool.state.events[-1].text == "by the pool: to make room"


@pytest.mark.parametrize("length", [0, 199, 200, 201])
def test_why_a_lease_is_suspended_is_cut_at_200_characters(length: int) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "x" * length, "ada")).ok
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert suspension.why == "x" * min(200, length)
    said = suspension.why or "no reason given"
    assert pool.state.events[-1].text == f"by ada: {said}"
    assert pool.state.acts[-1].text == f"lease of ada: {said}"


@pytest.mark.parametrize(
    ("reason", "said"),
    [("", "its server could not"), ("no memory", "no memory"), ("x" * 201, "x" * 200)],
)
def test_why_a_lease_was_not_suspended_is_known(reason: str, said: str) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    assert stranded(pool, lease, reason).ok
    event, history = pool.state.events[-1], pool.lease(lease).history
    assert (event.kind, event.text) == ("not-suspended", said)
    assert history is not None
    assert history.refusal is not None
    assert (history.refusal.reason, history.refusal.at) == (said, pool.state.now)


def test_memory_that_a_server_says_it_takes_adds_up_and_is_never_less_than_none() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    number = pool.order_number(lease)
    assert pool.do(c.ConfirmSuspended(lease, A, ONE, number, -5)).ok
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert (suspension.bytes, suspension.state) == (0, S.SUSPENDED)
    said = "its workers have let go; it takes 0 MiB of its servers' memory"
    assert pool.state.events[-1].text == said


# --- orders ---------------------------------------------------------------------------------------


def test_an_order_is_of_its_user_or_an_operator_and_well_formed() -> None:
    pool = Moving()
    lease = pool.lease(pool.hold((gpu(0), 40)))
    name = f"{lease.id:04x}"
    order = c.SuspendLease(lease.id, "", "ada")

    def refusal(of: Lease | None, **changes: object) -> Result | None:
        return order_refusal(of, replace(order, **changes))  # type: ignore[arg-type]

    assert refusal(lease) is None
    assert refusal(None) == Result(False, "never", f"the pool has no lease {name}")
    foreign = Result(False, "denied", f"lease {name} belongs to ada")
    assert refusal(lease, by="bob") == foreign
    assert refusal(lease, by="bob", operator=True) is None
    assert refusal(lease, by="") is None
    over = with_changes(lease, end_reason="done")
    assert refusal(over) == Result(False, "closed", f"lease {name} has ended: done")
    for length in (1, 15, 17):
        malformed = Result(False, "invalid", "malformed number of an order")
        assert refusal(lease, order=bytes(length)) == malformed
    assert refusal(lease, order=bytes(16)) is None
    known = with_changes(lease, history=SuspensionHistory(orders=(bytes(16),)))
    assert refusal(known, order=bytes(16)) == Result(True, lease=lease.id)
    assert refusal(known, order=b"x" * 16) is None
    assert refusal(known) is None


def test_a_lease_remembers_its_latest_eight_orders() -> None:
    orders = [bytes([number]) * 16 for number in range(10)]
    history = SuspensionHistory()
    for order in orders:
        history = with_order(history, order)
    assert history.orders == tuple(orders[2:])
    assert with_order(history, b"") is history


# --- going back -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "said"),
    [("", "its server could not"), ("no memory", "no memory"), ("x" * 201, "x" * 200)],
)
@pytest.mark.parametrize("taken", [False, True])
def test_why_a_lease_was_not_moved_is_known(reason: str, said: str, taken: bool) -> None:
    pool, lease = arriving(upgrade=True)
    if taken:
        pool.hold((gpu(0), 41), user="bob")
    assert stranded(pool, lease, reason).ok
    event, history = pool.state.events[-1], pool.lease(lease).history
    assert history is not None
    assert history.refusal is not None
    assert (history.refusal.reason, history.refusal.at) == (said, pool.state.now)
    more = "; it goes on when there is room: GPU 0 of a is taken by now" if taken else ""
    assert (event.kind, event.text) == ("not-moved", said + more)
    assert pool.phase(lease) is (S.SUSPENDED if taken else S.RESUMING)
    assert (history.away_since > 0) == taken


@pytest.mark.parametrize(("gib", "phase"), [(40, S.RESUMING), (41, S.SUSPENDED)])
def test_a_lease_goes_back_while_its_old_gpu_has_as_much_or_waits_for_it(
    gib: int, phase: S
) -> None:
    pool, lease = arriving()
    pool.hold((gpu(0), gib), user="bob")
    assert stranded(pool, lease).ok
    assert pool.phase(lease) is phase
    assert pool.gpus(lease) == [gpu(0)]


@pytest.mark.parametrize(("reserved", "free"), [(40, True), (41, False)])
def test_what_the_driver_keeps_of_the_old_gpu_is_not_free(reserved: int, free: bool) -> None:
    pool, lease = arriving()
    server = pool.state.servers[A]
    old = with_changes(server.gpus[gpu(0)], memory_reserved=reserved * GIB)
    row = with_changes(server, gpus=server.gpus | {old.id: old})
    state = with_changes(pool.state, servers=pool.state.servers.set(A, row))
    assert (way_back_refusal(state, pool.lease(lease)) is None) == free


def test_there_is_no_way_back_to_what_the_pool_has_no_more() -> None:
    pool, lease = arriving()
    gone = Result(False, "busy", "one of its old GPUs is not in the pool now")
    for state in (without_gpus(pool.state), without_server(pool.state)):
        assert way_back_refusal(state, pool.lease(lease)) == gone
    pool.go_on(lease)
    arrived = Result(False, "conflict", "it is not being moved")
    assert way_back_refusal(pool.state, pool.lease(lease)) == arrived


# --- going on -------------------------------------------------------------------------------------


def test_a_lease_does_not_go_on_with_what_the_pool_has_no_more() -> None:
    pool = Moving()
    lease = pool.lease(pool.hold((gpu(0), 40)))
    gone = Result(False, "busy", "one of its GPUs is not in the pool now")
    assert resume_refusal(without_gpus(pool.state), lease) == gone
    assert resume_refusal(without_server(pool.state), lease) == gone
    assert pool.do(c.DrainGpu(A, gpu(0), "hot", "root")).ok
    hot = Result(False, "busy", "GPU 0 of a grants nothing now: hot")
    assert resume_refusal(pool.state, lease) == hot


def test_a_lease_that_goes_on_is_not_one_more() -> None:
    pool = Moving("[defaults]\nmax_leases = 1\n")
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    assert pool.phase(lease) is S.SUSPENDED
    assert pool.do(c.ResumeLease(lease, "ada")) == Result(True, lease=lease)
    assert pool.phase(lease) is S.RESUMING


def test_a_lease_that_goes_on_counts_its_memory_against_limits() -> None:
    pool = Moving('[defaults]\nmax_memory = "60G"\n')
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    pool.hold((gpu(1), 30))
    result = pool.do(c.ResumeLease(lease, "ada"))
    assert result.ok
    assert result.why.startswith("it goes on when there is room: ada may hold 60 GiB")
    assert pool.phase(lease) is S.SUSPENDED


def test_nobody_resumes_what_is_not_suspended_and_the_pool_only_what_it_is_asked_to() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    done = Result(True, why="it is not suspended", lease=lease)
    assert pool.do(c.ResumeLease(lease, "ada")) == done
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    refused = pool.do(c.ResumeLease(lease, ""))
    assert refused == Result(False, "conflict", "nobody wants it to go on")
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    again = Result(True, why="it is being resumed already", lease=lease)
    assert pool.do(c.ResumeLease(lease, "ada")) == again


@pytest.mark.parametrize("upgrade", [False, True])
def test_a_lease_on_two_servers_stays_where_it_was_moved_when_the_way_back_is_taken(
    upgrade: bool,
) -> None:
    """The other server's workers may run already, so that it cannot be suspended."""
    pool = Moving()
    if upgrade:
        upgraded(pool.machine)
    lease = pool.hold((gpu(0), 40), (gpu(0, B), 20))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease, A, B)
    pool.hold((gpu(0), 41), user="bob")
    before = pool.state.leases
    taken = Result(False, "busy", "GPU 0 of a is taken by now")
    assert stranded(pool, lease) == taken
    assert pool.state.leases is before
    number = pool.order_number(lease)
    foreign = Result(False, "conflict", "it is moved on another server")
    assert pool.do(c.RefuseSuspension(lease, B, ONE, number, "no memory")) == foreign


def test_words_of_another_process_suspension_or_state_do_not_count() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    over = Result(False, "conflict", "that suspension is over")
    word = c.ConfirmSuspended(lease, A, ONE, 1, GIB)
    assert pool.do(word) == over
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    word = replace(word, number=pool.order_number(lease))
    stale = Result(False, "conflict", "not the current incarnation")
    ended = Result(False, "conflict", "the lease has ended")
    assert pool.do(replace(word, incarnation=Incarnation(2))) == stale
    assert pool.do(replace(word, server=ServerId("none"))) == stale
    assert pool.do(replace(word, server=B)) == ended
    assert pool.do(replace(word, lease=LeaseId(9999))) == ended
    assert pool.do(replace(word, number=word.number + 1)) == over
    back = c.ConfirmResumed(lease, A, ONE, word.number)
    assert pool.do(back) == Result(False, "conflict", "the lease is suspending")
    assert pool.do(word) == Result(True)
    assert pool.do(word) == Result(False, "conflict", "the lease is suspended")
    assert pool.do(c.EndLease(lease, "over")).ok
    assert pool.do(word) == ended


def test_a_second_order_to_suspend_says_how_far_the_first_is() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    order = c.SuspendLease(lease, "", "ada")
    assert pool.do(order) == Result(True, lease=lease)
    for _ in range(2):
        again = Result(True, why="it is suspended already", lease=lease)
        assert pool.do(order) == again
        if pool.phase(lease) is S.SUSPENDING:
            pool.let_go(lease)
    assert pool.do(c.ResumeLease(lease, "ada")) == Result(True, lease=lease)
    busy = Result(False, "busy", "it is being resumed; try again when it runs")
    assert pool.do(order) == busy
    event, act = pool.state.events[-1], pool.state.acts[-1]
    assert (event.kind, event.text) == ("resuming", "by ada")
    assert (act.kind, act.by, act.text) == ("lease-resumed", "ada", "lease of ada")


@pytest.mark.parametrize("by", ["ada", "boss"])
def test_a_lease_that_its_user_has_suspended_has_run_all_the_time(by: str) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", by, operator=True)).ok
    pool.let_go(lease)
    pool.now_ms += 1000
    assert pool.do(c.ResumeLease(lease, by, operator=True)).ok
    pool.now_ms += 1000
    pool.go_on(lease)
    history = pool.lease(lease).history
    assert history is not None
    assert history.resumed_at == (0 if by == "ada" else pool.now_ms)
    event = pool.state.events[-1]
    assert (event.kind, event.text) == ("resumed", "of ada")
    assert history.away_ms == 1000


def test_an_order_about_another_users_lease_or_none_changes_nothing() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    before = pool.state.leases
    foreign = Result(False, "denied", f"lease {lease:04x} belongs to ada")
    unknown = Result(False, "never", "the pool has no lease 270f")
    none = LeaseId(9999)
    for mine, of_none in (
        (c.SuspendLease(lease, "", "bob"), c.SuspendLease(none, "", "bob")),
        (c.ResumeLease(lease, "bob"), c.ResumeLease(none, "bob")),
        (c.MoveLease(lease, A, "bob"), c.MoveLease(none, A, "bob")),
    ):
        assert pool.do(mine) == foreign
        assert pool.do(of_none) == unknown
    assert pool.state.leases is before


def test_a_lease_does_not_go_on_with_a_gpu_that_is_broken() -> None:
    pool = Moving()
    lease = pool.lease(pool.hold((gpu(0), 40)))
    assert resume_refusal(pool.state, lease) is None
    readings = {gpu(0): c.GpuReading(0, "fell off the bus")}
    assert pool.do(c.ReportGpus(A, ONE, readings)).ok
    broken = Result(False, "busy", "GPU 0 of a grants nothing now: fell off the bus")
    assert resume_refusal(pool.state, lease) == broken


def test_what_the_pool_suspends_goes_on_by_itself() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    request = pool.request(9)
    assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
    assert pool.do(c.SuspendLease(lease, "to make room", for_request=request.id)).ok
    before = pool.state.leases
    why = "it goes on by itself once there is room again: to make room"
    assert pool.do(c.ResumeLease(lease, "ada")) == Result(True, why=why, lease=lease)
    assert pool.state.leases is before
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert suspension.resume_since == pool.state.now


def test_a_lease_that_could_not_be_suspended_knows_its_orders_still() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    orders = (b"1" * 16, b"2" * 16)
    for order in orders:
        assert pool.do(c.SuspendLease(lease, "", "ada", order=order)).ok
        suspension = pool.lease(lease).suspension
        assert suspension is not None
        assert stranded(pool, lease).ok
        pool.go_on(lease)
    history = pool.lease(lease).history
    assert history is not None
    assert history.orders == orders
    assert pool.do(c.SuspendLease(lease, "", "ada", order=orders[0])) == Result(True, lease=lease)
    assert pool.lease(lease).suspension is None


def test_what_goes_on_by_itself_is_no_act() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    request = pool.request(9)
    assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
    count = pool.state.act_count
    assert pool.do(c.SuspendLease(lease, "to make room", for_request=request.id)).ok
    pool.let_go(lease)
    assert pool.do(c.ResumeLease(lease, "")) == Result(True, lease=lease)
    event = pool.state.events[-1]
    assert (event.kind, event.text) == ("resuming", "by the pool")
    assert pool.state.act_count == count
