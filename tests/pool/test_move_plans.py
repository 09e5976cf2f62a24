"""Where a lease can be moved, to other GPUs of its server or to another server, and why not."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, MONDAY_MS, ONE, A, B, Pool
from tests.pool.test_lease_moves import Moving, gpu
from tests.pool.test_lease_relocations import C, D, E, Going
from tests.pool.test_lease_relocations import gpu as gpu_of

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Partition
from gpupool.pool.model.suspension import GpuMove
from gpupool.pool.scheduling.moves import kept_refusal, moved, plan_moves, unlike
from gpupool.pool.transitions.lease_relocations import plan_relocation


def changed_gpu(pool: Pool, which: GpuId, server: ServerId = A, **changes: object) -> None:
    """Change one GPU of a server in the pool's state, as no report of a server could."""
    servers = pool.state.servers
    found = servers[server]
    other = replace(found.gpus[which], **changes)  # pyright: ignore[reportArgumentType]
    found = replace(found, gpus=found.gpus | {which: other})
    pool.machine.state = replace(pool.state, servers=servers.set(server, found))


def plan(
    pool: Pool, lease: LeaseId, *to: GpuId, off: tuple[GpuId, ...] = ()
) -> tuple[GpuMove, ...] | Result:
    return plan_moves(pool.state, pool.state.leases[lease], pool.state.servers[A], off, to)


def refused(found: object) -> tuple[str, str]:
    assert isinstance(found, Result), found
    assert not found.ok
    return found.kind, found.why


def moves(*pairs: tuple[int, int]) -> tuple[GpuMove, ...]:
    return tuple(GpuMove(A, gpu(one), gpu(other)) for one, other in pairs)


# --- on one server --------------------------------------------------------------------------------


def test_a_lease_gets_no_gpu_twice() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40))
    twice = f"lease {lease:04x} would have GPU {{}} twice"
    assert refused(plan(pool, lease, gpu(2), gpu(2))) == ("never", twice.format(2))
    assert refused(plan(pool, lease, gpu(1), off=(gpu(0),))) == ("never", twice.format(1))
    assert refused(plan(pool, lease, gpu(1), gpu(1))) == ("never", twice.format(1))
    assert plan(pool, lease, gpu(1), gpu(0)) == moves((0, 1), (1, 0))
    assert plan(pool, lease, gpu(1), gpu(2)) == moves((0, 1), (1, 2))
    assert plan(pool, lease, gpu(2), off=(gpu(1),)) == moves((1, 2))
    assert plan(pool, lease) == moves((0, 2), (1, 3))


def test_as_many_gpus_are_named_as_are_left() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40))
    two = f"lease {lease:04x} has 2 GPUs of a: name as many"
    one = f"lease {lease:04x} has 1 GPU of a: name as many"
    assert refused(plan(pool, lease, gpu(2))) == ("never", two)
    assert refused(plan(pool, lease, gpu(2), gpu(3), gpu(0))) == ("never", two)
    assert refused(plan(pool, lease, gpu(2), gpu(3), off=(gpu(0),))) == ("never", one)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize(("foreign", "fits"), [(0, True), (1, False)])
def test_a_gpu_has_room_to_the_byte(away: bool, foreign: int, fits: bool) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 60), (gpu(1), 60))
    changed_gpu(pool, gpu(2), memory_foreign=20 * GIB + foreign)
    if away:
        assert pool.do(c.SuspendLease(lease, "", "ada")).ok
        pool.let_go(lease)
    found = plan(pool, lease, gpu(2), off=(gpu(0),))
    if fits:
        assert found == moves((0, 2))
    else:
        why = "GPU 2 of a has no room: 61440 MiB are needed, and 61439 MiB are free"
        assert refused(found) == ("busy", why)


def test_two_gpus_that_change_places_give_each_other_room() -> None:
    """But one that is suspended has nothing there that it could give back."""
    pool = Moving()
    lease = pool.hold((gpu(0), 60), (gpu(1), 60))
    changed_gpu(pool, gpu(1), memory_foreign=20 * GIB)
    assert plan(pool, lease, gpu(1), gpu(0)) == moves((0, 1), (1, 0))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    assert plan(pool, lease, gpu(1), gpu(0)) == moves((0, 1), (1, 0))
    changed_gpu(pool, gpu(1), memory_foreign=20 * GIB + 1)
    why = "GPU 1 of a has no room: 61440 MiB are needed, and 61439 MiB are free"
    assert refused(plan(pool, lease, gpu(1), gpu(0))) == ("busy", why)


def test_what_a_lease_leaves_has_to_be_a_whole_gpu_that_is_there() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.let_go(lease)
    servers = pool.state.servers
    rest = {key: each for key, each in servers[A].gpus.items() if key != gpu(1)}
    changed = servers.set(A, replace(servers[A], gpus=rest))
    pool.machine.state = replace(pool.state, servers=changed)
    gone = ("never", f"GPU {gpu(1)} of a is not in the pool now")
    assert refused(plan(pool, lease, gpu(2), gpu(3))) == gone
    assert refused(plan(pool, lease, gpu(2), off=(gpu(1),))) == gone
    assert plan(pool, lease, gpu(2), off=(gpu(0),)) == moves((0, 2))


def test_a_part_of_a_card_is_not_left() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40))
    changed_gpu(pool, gpu(1), parent=gpu(3))
    why = "GPU 1 of a is a MIG instance, and programs on one cannot be suspended"
    assert refused(plan(pool, lease)) == ("never", why)
    assert refused(plan(pool, lease, gpu(2), off=(gpu(1),))) == ("never", why)
    assert plan(pool, lease, gpu(2), off=(gpu(0),)) == moves((0, 2))


def test_a_gpu_that_a_server_does_not_have_is_named() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40), (gpu(0, B), 40))
    long = GpuId("x" * 99)
    assert refused(plan(pool, lease, long)) == ("never", f"a has no GPU {'x' * 64}")
    why = f"lease {lease:04x} has no GPU {{}} of a"
    assert refused(plan(pool, lease, off=(long,))) == ("never", why.format("x" * 64))
    assert refused(plan(pool, lease, off=(gpu(0, B),))) == ("never", why.format(gpu(0, B)))
    assert refused(plan(pool, lease, off=(gpu(0), gpu(1)))) == ("never", why.format(gpu(1)))


def test_the_pool_takes_the_fullest_gpu_and_of_equals_the_first() -> None:
    pool = Moving(gpu_count=5)
    lease = pool.hold((gpu(0), 20), (gpu(1), 20))
    pool.hold((gpu(4), 60), user="bob")
    pool.hold((gpu(3), 30), user="bob")
    assert plan(pool, lease) == moves((0, 4), (1, 3))
    assert plan(pool, lease, off=(gpu(1),)) == moves((1, 4))
    pool.hold((gpu(2), 30), user="bob")
    assert plan(pool, lease) == moves((0, 4), (1, 2))


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, ""),
        ({"index": 7, "memory_granted": GIB, "fault": "hot"}, ""),
        ({"parent": GpuId("card")}, "is a MIG instance"),
        ({"emulated": False}, "is a real one"),
        ({"name": "A100"}, "is another model than GPU 0"),
        ({"memory_total": 81 * GIB}, "is another model than GPU 0"),
        ({"memory_total": 81 * GIB, "memory_reserved": GIB}, ""),
        ({"name": "A100", "emulated": False, "parent": GpuId("card")}, "is a MIG instance"),
    ],
)
def test_how_gpus_differ(changes: dict[str, object], how: str) -> None:
    found = Moving().state.servers[A].gpus[gpu(0)]
    other = replace(found, **changes)  # pyright: ignore[reportArgumentType]
    assert unlike(found, other) == how
    assert unlike(replace(found, emulated=False), found) == "is an emulated one"


def test_only_what_moves_is_elsewhere_afterwards() -> None:
    pool = Moving()
    held = pool.hold((gpu(0), 40), (gpu(1), 40), (gpu(0, B), 40))
    lease = pool.state.leases[held]
    found = moved(lease, [GpuMove(A, gpu(0), gpu(2)), GpuMove(B, gpu(1, B), gpu(3, B))])
    parts = [Partition(A, gpu(2), 40 * GIB), Partition(A, gpu(1), 40 * GIB)]
    assert found.partitions == (*parts, Partition(B, gpu(0, B), 40 * GIB))
    assert moved(lease, ()) == lease


PRIORITIES = "".join(
    f"[class.{user}]\nusers = ['{user}']\npriority = {priority}\n"
    for user, priority in (("ada", 5), ("bob", 6), ("cy", 4))
)


@pytest.mark.parametrize(
    ("user", "kept"),
    [("ada", True), ("bob", False), ("cy", True)],
)
def test_what_is_kept_for_one_who_goes_first_is_left_alone(user: str, kept: bool) -> None:
    """Those of a higher priority need not."""
    pool = Moving(PRIORITIES.replace("'ada'", "'ada', 'dee'"), gpu_count=2)
    lease = pool.hold((gpu(0), 40), user=user)
    pool.hold((gpu(1), 30), user="boss")
    request = replace(pool.request(), servers=("a",))
    assert pool.do(c.Wait(request, "dee", TokenId("dee"), "busy")).ok
    state = replace(pool.state, starved_after_ms=0)
    assert state.now == MONDAY_MS
    found = kept_refusal(state, state.leases[lease], moves((0, 1)))
    why = ("busy", "GPU 1 of a is kept for dee, who goes first")
    assert (refused(found) if found is not None else None) == (why if kept else None)
    assert kept_refusal(state, state.leases[lease], ()) is None
    elsewhere = GpuMove(B, gpu(0, B), gpu(1, B))
    assert kept_refusal(state, state.leases[lease], [elsewhere]) is None
    both = kept_refusal(state, state.leases[lease], [elsewhere, *moves((0, 1))])
    assert both == found


def test_a_suspended_lease_need_not_leave_its_own_gpus_to_itself() -> None:
    pool = Moving(gpu_count=2)
    away = pool.hold((gpu(0), 60), (gpu(1), 60), user="ada")
    assert pool.do(c.SuspendLease(away, "", "ada")).ok
    pool.let_go(away)
    pool.hold((gpu(0), 60), user="bob")
    assert pool.do(c.ResumeLease(away, "ada")).ok
    state = replace(pool.state, starved_after_ms=0)
    swap = moves((0, 1), (1, 0))
    assert kept_refusal(state, state.leases[away], swap) is None
    other = pool.hold((gpu(1), 20), user="cy")
    state = replace(pool.state, starved_after_ms=0)
    found = kept_refusal(state, state.leases[other], moves((1, 0)))
    why = "GPU 0 of a is kept for ada, who goes first"
    assert refused(found) == ("busy", why)


# --- to another server ----------------------------------------------------------------------------


def there(pool: Going, lease: LeaseId, target: ServerId = D) -> object:
    return plan_relocation(pool.state, pool.state.leases[lease], pool.state.servers[target])


def test_each_part_gets_the_fullest_gpu_that_is_left() -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40), (gpu_of(1), 40))
    first, second = (Partition(D, gpu_of(n, D), 40 * GIB) for n in (0, 1))
    assert there(pool, lease) == (first, second)
    pool.hold((gpu_of(1, D), 40), user="bob")
    assert there(pool, lease) == (second, first)
    pool.hold((gpu_of(0, D), 41), user="bob")
    why = "no GPU of d has 40960 MiB free for it"
    assert refused(there(pool, lease)) == ("busy", why)


@pytest.mark.parametrize(
    "changes", [{"name": "A100"}, {"emulated": True}, {"parent": GpuId("card")}]
)
def test_a_server_without_such_a_gpu_can_never_have_it(changes: dict[str, object]) -> None:
    pool = Going()
    lease = pool.hold((gpu_of(1), 40))
    changed_gpu(pool, gpu_of(0, D), D, **changes)
    assert there(pool, lease) == (Partition(D, gpu_of(1, D), 40 * GIB),)
    changed_gpu(pool, gpu_of(1, D), D, **changes)
    why = "d has no GPU like GPU 1 that it has"
    assert refused(there(pool, lease)) == ("never", why)


def test_a_gpu_that_is_unfit_or_a_byte_too_full_is_not_taken() -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40))
    changed_gpu(pool, gpu_of(0, D), D, memory_foreign=40 * GIB + 1)
    changed_gpu(pool, gpu_of(1, D), D, fault="no longer present")
    why = "no GPU of d has 40960 MiB free for it"
    assert refused(there(pool, lease)) == ("busy", why)
    changed_gpu(pool, gpu_of(0, D), D, memory_foreign=40 * GIB)
    assert there(pool, lease) == (Partition(D, gpu_of(0, D), 40 * GIB),)


def test_what_is_left_has_to_be_a_whole_gpu_in_the_pool() -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40), (gpu_of(1), 40))
    changed_gpu(pool, gpu_of(1), C, parent=GpuId("card"))
    why = "GPU 1 that it has is a MIG instance"
    assert refused(there(pool, lease)) == ("never", why)
    servers = pool.state.servers
    rest = {key: each for key, each in servers[C].gpus.items() if key != gpu_of(1)}
    changed = servers.set(C, replace(servers[C], gpus=rest))
    pool.machine.state = replace(pool.state, servers=changed)
    assert refused(there(pool, lease)) == ("busy", "one of its GPUs is not in the pool now")


def test_a_user_goes_only_where_the_rules_let_them() -> None:
    pool = Going("[user.ada]\ngpus = ['GPU']\n")
    lease = pool.hold((gpu_of(0), 40))
    assert there(pool, lease) == (Partition(D, gpu_of(0, D), 40 * GIB),)
    pool.put("[user.ada]\ngpus = ['*H200*']\n")
    kind, why = refused(there(pool, lease))
    assert (kind, why[:31]) == ("denied", "ada may not use GPU 1 of d (GPU")


def test_what_is_kept_on_another_server_is_left_alone() -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40))
    pool.hold((gpu_of(1, D), 30), user="cy")
    for place in (gpu_of(1), gpu_of(0, E), gpu_of(1, E)):
        pool.hold((place, 70), user="cy")
    request = replace(pool.request(2), servers=("d",))
    assert pool.do(c.Wait(request, "bob", TokenId("bob"), "busy")).ok
    assert there(pool, lease) == (Partition(D, gpu_of(1, D), 40 * GIB),)
    pool.machine.state = replace(pool.state, starved_after_ms=0)
    why = "GPU 1 of d is kept for bob, who goes first"
    assert refused(there(pool, lease)) == ("busy", why)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (c.DrainServer(D, "new fan", "root"), "new fan"),
        (c.ServerContact(D, ONE, reachable=False), "unreachable"),
    ],
)
def test_a_server_that_grants_nothing_takes_nothing_over(command: c.Command, why: str) -> None:
    pool = Going()
    lease = pool.hold((gpu_of(0), 40))
    assert pool.do(command).ok
    assert refused(there(pool, lease)) == ("busy", f"server d grants nothing now: {why}")
