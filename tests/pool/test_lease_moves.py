"""Moving leases to other GPUs of their server: rights, targets, and the memory charged when."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, Pool

from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, Partition, Request
from gpupool.pool.model.suspension import GpuMove, SuspensionState
from gpupool.pool.reconcile import SuspensionPlan, plan_suspensions

S = SuspensionState
P = SuspensionPhase


def gpu(index: int, server: ServerId = A) -> GpuId:
    return GpuId(f"{server}-{index}")


class Moving(Pool):
    """Two servers with four emulated GPUs each."""

    def __init__(self, policy: str = "", gpu_count: int = 4, *, emulated: bool = True) -> None:
        super().__init__(policy, gpu_count=gpu_count, emulated=emulated)

    def move(
        self,
        lease: LeaseId,
        *to: GpuId,
        off: tuple[GpuId, ...] = (),
        server: ServerId = A,
        by: str = "ada",
        operator: bool = False,
    ) -> Result:
        return self.do(c.MoveLease(lease, server, by, operator, off, to))

    def lease(self, lease: LeaseId) -> Lease:
        return self.state.leases[lease]

    def gpus(self, lease: LeaseId) -> list[GpuId]:
        return [part.gpu for part in self.lease(lease).partitions]

    def order_number(self, lease: LeaseId) -> int:
        found = self.lease(lease).suspension
        assert found is not None
        return found.number

    def let_go(self, lease: LeaseId, *servers: ServerId) -> None:
        for server in servers or (A,):
            confirmed = c.ConfirmSuspended(lease, server, ONE, self.order_number(lease), GIB)
            assert self.do(confirmed).ok

    def go_on(self, lease: LeaseId, *servers: ServerId) -> None:
        for server in servers or (A,):
            assert self.do(c.ConfirmResumed(lease, server, ONE, self.order_number(lease))).ok

    def granted(self, index: int, server: ServerId = A) -> int:
        return self.state.servers[server].gpus[gpu(index, server)].memory_granted // GIB

    def plan(
        self, lease: LeaseId, *, phase: P = P.SUSPENDED, server: ServerId = A
    ) -> SuspensionPlan:
        """Return a server's plan when its host is in this phase."""
        told = HostSuspension(self.order_number(lease), phase)
        return plan_suspensions(self.state, server, ONE, {lease: told}, {lease: 1})

    def phase(self, lease: LeaseId) -> S | None:
        found = self.lease(lease).suspension
        return found.state if found is not None else None


def test_a_lease_lets_go_and_goes_on_elsewhere_in_one_step() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    units = pool.lease(lease).units
    done = pool.move(lease, gpu(2))
    assert (done.ok, done.why) == (True, f"it is being moved from GPU 0 to GPU 2 of {A[0]}")
    assert (pool.phase(lease), pool.granted(0), pool.granted(2)) == (S.SUSPENDING, 40, 0)
    usage = pool.state.usage["ada"]
    pool.let_go(lease)
    assert (pool.phase(lease), pool.granted(0), pool.granted(2)) == (S.RESUMING, 0, 40)
    pool.go_on(lease)
    assert (pool.phase(lease), pool.gpus(lease)) == (None, [gpu(2)])
    assert (pool.state.usage["ada"], pool.lease(lease).units) == (usage, units)
    history = pool.lease(lease).history
    assert history is not None
    assert (history.away_ms, history.away, history.refusal) == (0, (), None)
    assert history.moved_at == pool.state.now
    assert [act.kind for act in pool.state.acts][-1] == "lease-moved"
    assert pool.move(lease).ok, "and again, where the pool likes"


def test_the_pool_chooses_the_fullest_gpu_that_has_room() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    pool.hold((gpu(1), 60))
    pool.hold((gpu(3), 30))
    assert pool.move(lease).ok
    pool.let_go(lease)
    assert pool.gpus(lease) == [gpu(3)]


def test_some_of_several_gpus_and_servers_are_left() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40), (gpu(0, B), 40))
    assert pool.move(lease, off=(gpu(1),)).ok
    pool.let_go(lease, A)
    assert pool.phase(lease) is S.SUSPENDING, "B has not let go"
    assert (pool.granted(1), pool.granted(2)) == (40, 0)
    pool.let_go(lease, B)
    assert pool.gpus(lease) == [gpu(0), gpu(2), gpu(0, B)]
    pool.go_on(lease, A, B)
    assert pool.move(lease, gpu(2), gpu(0)).ok, "they may change places"
    pool.let_go(lease, A, B)
    assert pool.gpus(lease) == [gpu(2), gpu(0), gpu(0, B)]
    pool.go_on(lease, A, B)
    assert pool.move(lease, gpu(2), gpu(3)).ok
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert suspension.moves == (GpuMove(A, gpu(0), gpu(3)),), "one stays"


def test_a_gpu_that_was_taken_meanwhile_leaves_it_where_it_was() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 60))
    assert pool.move(lease, gpu(1)).ok
    pool.hold((gpu(1), 60), user="bob")
    assert pool.do(c.DrainGpu(A, gpu(0), "hot", "root")).ok, "nor is it kept from going back"
    pool.let_go(lease)
    assert (pool.phase(lease), pool.gpus(lease), pool.granted(0)) == (S.RESUMING, [gpu(0)], 60)
    history = pool.lease(lease).history
    assert history is not None
    assert history.refusal is not None
    assert history.refusal.reason == f"GPU 1 of {A[0]} is taken by now"
    assert pool.plan(lease).moves == {}
    pool.go_on(lease)


def test_a_server_that_cannot_suspend_it_or_an_order_to_resume_ends_the_move() -> None:
    for refuses in (True, False):
        pool = Moving()
        lease = pool.hold((gpu(0), 60))
        assert pool.move(lease, gpu(1)).ok
        number = pool.order_number(lease)
        refusal = c.RefuseSuspension(lease, A, ONE, number, "no memory left")
        assert pool.do(refusal if refuses else c.ResumeLease(lease, "ada")).ok
        assert (pool.phase(lease), pool.granted(0), pool.granted(1)) == (S.RESUMING, 60, 0)
        assert pool.plan(lease).moves == {}
        pool.go_on(lease)
        assert pool.gpus(lease) == [gpu(0)]


def stranded(pool: Moving, lease: LeaseId) -> c.Command:
    """Return a server's proposal when its host cannot use the GPUs that a lease was moved to."""
    plan = pool.plan(lease, phase=P.STRANDED)
    assert (plan.resume, plan.moves) == ([], {}), "it has been told"
    (command,) = plan.propose
    return command


def test_a_server_that_cannot_use_the_new_gpu_gets_the_old_one_back() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 60), (gpu(0, B), 20))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease, A, B)
    assert (pool.granted(0), pool.granted(1)) == (0, 60)
    number = pool.order_number(lease)
    assert not pool.do(c.RefuseSuspension(lease, B, ONE, number, "not its business")).ok
    assert pool.do(c.DrainGpu(A, gpu(0), "hot", "root")).ok, "nor does a drain keep it away"
    usage = pool.state.usage["ada"]
    command = stranded(pool, lease)
    assert isinstance(command, c.RefuseSuspension)
    assert pool.do(command).ok
    assert not pool.do(command).ok, "once"
    assert (pool.granted(0), pool.granted(1), pool.state.usage["ada"]) == (60, 0, usage)
    assert (pool.phase(lease), pool.gpus(lease)) == (S.RESUMING, [gpu(0), gpu(0, B)])
    plan = pool.plan(lease, phase=P.STRANDED)
    assert (plan.resume, plan.moves, plan.propose) == ([(lease, number)], {}, [])
    pool.go_on(lease, A, B)
    history = pool.lease(lease).history
    assert history is not None
    assert history.refusal is not None
    assert pool.state.events[-2].kind == "not-moved"


def test_what_can_neither_go_on_nor_go_back_ends_where_it_may_run_on_another_server() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 60), (gpu(0, B), 20))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease, A, B)
    refusal = stranded(pool, lease)
    pool.hold((gpu(0), 60), user="bob")
    assert pool.do(refusal).why == f"GPU 0 of {A[0]} is taken by now"
    command = stranded(pool, lease)
    assert isinstance(command, c.EndLease)
    assert command.reason == "it could not be moved: ; and GPU 0 of a is taken by now"
    assert pool.do(command).ok


def test_the_host_is_told_where_until_it_has_said_that_workers_go_on() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 60), (gpu(0, B), 60))
    assert pool.move(lease, gpu(1)).ok
    assert pool.plan(lease, phase=P.SUSPENDED).moves == {}
    pool.let_go(lease, A, B)
    for phase in (P.SUSPENDED, P.RESUMING):
        plan = pool.plan(lease, phase=phase)
        assert (plan.resume, plan.moves) == (
            [(lease, pool.order_number(lease))],
            {lease: {gpu(0): gpu(1)}},
        )
    assert pool.plan(lease, phase=P.SUSPENDED, server=B).moves == {}
    pool.go_on(lease, A)
    assert pool.plan(lease, phase=P.RUNNING).resume == []


def test_a_restart_of_the_server_in_each_step_ends_it_and_frees_both() -> None:
    for steps in range(3):
        pool = Moving()
        lease = pool.hold((gpu(0), 60))
        if steps > 0:
            assert pool.move(lease, gpu(1)).ok
        if steps > 1:
            pool.let_go(lease)
        server = pool.state.servers[A]
        gpus = tuple(replace(each, memory_granted=0) for each in server.gpus.values())
        up = c.ServerUp(A, Incarnation(2), "x:1", "1", "580.2", "13.0", gpus, {}, accounts=True)
        assert pool.do(up).ok
        assert lease not in pool.state.leases
        assert (pool.granted(0), pool.granted(1)) == (0, 0)


def other_gpu(pool: Moving, **changes: object) -> None:
    """Replace GPU 1 of the first server by another kind of GPU."""
    server = pool.state.servers[A]
    gpus = tuple(
        replace(each, **changes) if each.index == 1 else each  # pyright: ignore[reportArgumentType]
        for each in server.gpus.values()
    )
    up = c.ServerUp(A, ONE, "x:1", "1", "580.2", "13.0", gpus, dict(server.labels), accounts=True)
    assert pool.do(up).ok


NO_OTHER_SERVER = (
    "a lease is moved among the GPUs of one server, because what its program has there lives in "
    "that server's worker process"
)


def drained(pool: Moving) -> None:
    assert pool.do(c.DrainServer(A, "new fan", "root")).ok


def gpu_drained(pool: Moving) -> None:
    assert pool.do(c.DrainGpu(A, gpu(1), "hot", "root")).ok


def unreachable(pool: Moving) -> None:
    assert pool.do(c.ServerContact(A, ONE, reachable=False)).ok


def part_of_a_card(pool: Moving) -> None:
    other_gpu(pool, parent=gpu(3))


def real(pool: Moving) -> None:
    other_gpu(pool, emulated=False)


def another_model(pool: Moving) -> None:
    other_gpu(pool, name="A100")


def elsewhere_by_policy(pool: Moving) -> None:
    pool.put("[user.ada]\nservers = ['rack=2']\n")


def taken(pool: Moving) -> None:
    pool.hold((gpu(1), 50), user="bob")


@pytest.mark.parametrize(
    ("prepare", "to", "kind", "why"),
    [
        (None, (gpu(9),), "never", "a has no GPU aaaaaaaaaaaa-9"),
        (None, (gpu(1, B),), "never", "a has no GPU bbbbbbbbbbbb-1"),
        (None, (gpu(0),), "never", "lease {name} has these GPUs already"),
        (None, (gpu(1), gpu(2)), "never", "lease {name} has 1 GPU of a: name as many"),
        (taken, (gpu(1),), "busy", "GPU 1 of a has no room: 40960 MiB are needed, and 30720 MiB"),
        (drained, (gpu(1),), "busy", "server a grants nothing now: new fan"),
        (drained, (), "busy", f"server a grants nothing now, and {NO_OTHER_SERVER}"),
        (gpu_drained, (gpu(1),), "busy", "GPU 1 of a grants nothing now: "),
        (unreachable, (gpu(1),), "busy", "server a is not reachable"),
        (
            part_of_a_card,
            (gpu(1),),
            "never",
            "GPU 1 of a is a MIG instance",
        ),
        (
            real,
            (gpu(1),),
            "never",
            "GPU 1 of a is a real one",
        ),
        (
            another_model,
            (gpu(1),),
            "never",
            "GPU 1 of a is another model than GPU 0",
        ),
        (
            elsewhere_by_policy,
            (gpu(1),),
            "denied",
            "ada may not use GPU 1 of a",
        ),
    ],
)
def test_where_a_lease_cannot_go(
    prepare: Callable[[Moving], None] | None, to: tuple[GpuId, ...], kind: str, why: str
) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    if prepare is not None:
        prepare(pool)
    done = pool.move(lease, *to)
    assert (done.ok, done.kind) == (False, kind)
    assert done.why.startswith(why.format(name=f"{lease:04x}")), done.why
    assert pool.phase(lease) is None


def test_full_neighbours_are_no_room_for_the_pool_to_choose() -> None:
    pool = Moving(gpu_count=2)
    lease = pool.hold((gpu(0), 40))
    pool.hold((gpu(1), 50))
    done = pool.move(lease)
    assert done.why == "no other GPU of a like GPU 0 has 40960 MiB free for it"


def test_real_gpus_are_for_what_runs_on_real_ones_and_parts_of_a_card_for_nothing() -> None:
    pool = Moving(emulated=False)
    lease = pool.hold((gpu(0), 40))
    assert pool.move(lease, gpu(1)).ok
    pool.let_go(lease)
    assert pool.gpus(lease) == [gpu(1)]
    other_gpu(pool, emulated=True)
    assert pool.move(pool.hold((gpu(2), 40)), gpu(1)).why == "GPU 1 of a is an emulated one"
    pool = Moving()
    other_gpu(pool, parent=gpu(3))
    lease = pool.hold((gpu(1), 40))
    assert pool.move(lease).why == "a MIG instance cannot be suspended"


def test_who_may_move_what_and_when() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.move(LeaseId(999)).why == "the pool has no lease 03e7"
    assert pool.move(lease, by="bob").why == f"lease {lease:04x} belongs to ada"
    name = f"lease {lease:04x}"
    assert pool.move(lease, server=B).why == f"{name} has no GPU of b: {NO_OTHER_SERVER}"
    assert pool.move(lease, server=ServerId("c" * 12)).why == f"the pool has no server {'c' * 12}"
    assert pool.move(lease, off=(gpu(3),)).why == f"{name} has no GPU {gpu(3)} of a"
    assert pool.move(lease, by="boss", operator=True).ok
    assert pool.move(lease).why == "it is being moved already; try again when it runs"
    pool.let_go(lease)
    assert pool.move(lease).why == "it is being moved already; try again when it runs"
    pool.go_on(lease)
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    assert pool.move(lease).why == "it is suspending; try again when it runs"
    pool.let_go(lease)
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    assert pool.move(lease).why == "it is resuming; try again when it runs"
    assert pool.do(c.EndLease(lease, "done", "ada")).ok
    assert pool.move(lease).why == f"lease {lease:04x} has ended: done"


def test_an_order_is_carried_out_once() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    order = c.MoveLease(lease, A, "ada", order=b"1" * 16)
    assert pool.do(order).ok
    pool.let_go(lease)
    pool.go_on(lease)
    there = pool.gpus(lease)
    assert pool.do(order).ok, "a repetition that came late"
    assert (pool.phase(lease), pool.gpus(lease)) == (None, there)
    assert not pool.do(replace(order, order=b"short")).ok


def test_gpus_that_are_kept_for_another_are_not_taken() -> None:
    pool = Moving(gpu_count=2)
    lease = pool.hold((gpu(0), 40))
    pool.hold((gpu(1), 30))
    pool.hold((gpu(0, B), 80), user="cy")
    pool.hold((gpu(1, B), 80), user="cy")
    request = replace(pool.request(fraction=1), servers=("a",))
    for _ in range(pool.state.starved_after_ms // 5000 + 1):
        assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
        pool.now_ms += 5000
    done = pool.move(lease, gpu(1))
    assert done.why == "GPU 1 of a is kept for bob, who goes first"


def test_nor_are_those_of_a_suspended_lease_that_has_long_waited_to_go_on() -> None:
    pool = Moving(gpu_count=2)
    away = pool.hold((gpu(1), 80), user="bob")
    assert pool.do(c.SuspendLease(away, "", "bob")).ok
    pool.let_go(away)
    other = pool.hold((gpu(1), 30), user="cy")
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.ResumeLease(away, "bob")).ok
    assert pool.phase(away) is S.SUSPENDED
    assert pool.move(lease, gpu(1)).ok, "it has only just begun to wait"
    pool.now_ms += pool.state.starved_after_ms
    pool.let_go(lease)
    assert pool.gpus(lease) == [gpu(0)], "and now it goes first"
    pool.go_on(lease)
    assert pool.move(lease, gpu(1)).why == "GPU 1 of a is kept for bob, who goes first"
    assert pool.do(c.EndLease(other, "done", "cy")).ok


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_keep_the_books_and_lose_no_lease(seed: int) -> None:
    """``Pool.do`` checks the invariants after each command: memory is granted to no two."""
    random, pool, moves = Random(seed), Moving(), 0
    for _ in range(150):
        held = [each for each in pool.state.leases.values() if each.held]
        before = {each.id: each for each in held}
        ended: set[LeaseId] = set()
        what = random.random()
        if what < 0.3 or not held:
            request = pool.request(random.choice([1, 1, 2]), random.choice([0.25, 0.5, 1.0]))
            user = random.choice(["ada", "bob"])
            pool.do(_claim(pool, random, request, user))
        elif what < 0.4:
            lease = random.choice(held).id
            ended.add(lease)
            pool.do(c.EndLease(lease, "done"))
            for server in list(pool.state.leases[lease].parts):
                pool.do(c.FreeLease(lease, server, ONE))
        elif what < 0.6:
            lease = random.choice(held)
            server = random.choice(list(lease.parts))
            to = (gpu(random.randrange(4), server),) if random.random() < 0.5 else ()
            order = c.MoveLease(lease.id, server, "root", operator=True, to=to)
            moves += pool.do(order).ok
        elif what < 0.65:
            pool.do(c.SuspendLease(random.choice(held).id, "", "root", operator=True))
        elif what < 0.7:
            pool.do(c.ResumeLease(random.choice(held).id, "root", operator=True))
        else:
            lease = random.choice(held)
            server = random.choice(list(lease.parts))
            number = lease.suspension.number if lease.suspension is not None else 0
            for word in (
                c.ConfirmSuspended(lease.id, server, ONE, number, 0),
                c.ConfirmResumed(lease.id, server, ONE, number),
            )[: random.choice([1, 2])]:
                pool.do(word)
        for lease_id in before.keys() - ended:
            now = pool.state.leases[lease_id]
            assert now.held
            was = [(part.server, part.memory) for part in before[lease_id].partitions]
            assert [(part.server, part.memory) for part in now.partitions] == was
    assert moves


def _claim(pool: Moving, random: Random, request: Request, user: str) -> c.Grant:
    server = random.choice([A, B])
    gpus = random.sample(range(4), request.count)
    memory = int(80 * GIB * request.fraction)
    parts = tuple(Partition(server, gpu(each, server), memory) for each in gpus)
    return c.Grant(request, user, TokenId(user), bytes(32), parts, {server: ONE})
