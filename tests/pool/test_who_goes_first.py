"""Suspended leases that have waited long, and GPUs that are kept as memory comes back."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, Pool
from tests.pool.test_preemption import Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, RequestId, TokenId
from gpupool.pool.model.state import PartStatus, PoolState, Request, Waiting
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.scheduling.fairness import (
    ReservedGpus,
    going_first,
    kept_from,
    nearest,
    needed_by,
    reserved_for_others,
    with_memory_to_come,
)

NOBODY = RequestId(bytes(16))


def gpu(index: int, server: str = A) -> GpuId:
    return GpuId(f"{server}-{index}")


def users_of(state: PoolState) -> list[str]:
    return [each.entry.user for each in going_first(state)]


def waits_to_go_on(policy: str = "") -> tuple[Preempting, LeaseId]:
    """Return a pool with a suspended lease of 60 GiB; another user has its GPU by now."""
    pool = small(policy, gpu_count=1)
    lease = pool.hold_for("ada", (0, 60))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.confirm(lease)
    pool.hold_for("bob", (0, 60))
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    assert pool.phase(lease) == "suspended"
    return pool, lease


# --- suspended leases -----------------------------------------------------------------------------


def test_a_suspended_lease_goes_first_when_it_has_waited_as_long_as_a_starved_request() -> None:
    pool, lease = waits_to_go_on()
    pool.later(pool.state.starved_after_ms - 1)
    assert going_first(pool.state) == ()
    pool.later(1)
    [found] = going_first(pool.state)
    assert found.gpus == {(A, gpu(0))}
    entry, known = found.entry, pool.state.leases[lease]
    assert known.suspension is not None
    assert (entry.request.id, entry.request.count) == (known.request, 1)
    assert (entry.since, entry.renewed) == (known.suspension.resume_since, pool.state.now)
    assert pool.do(c.EndLease(lease, "over", "ada")).ok
    assert going_first(pool.state) == ()


def test_a_lease_that_nobody_has_ordered_to_go_on_keeps_nothing() -> None:
    pool = small(gpu_count=1)
    lease = pool.hold_for("ada", (0, 60))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.later(10 * pool.state.starved_after_ms)
    assert going_first(pool.state) == ()
    pool.confirm(lease)
    pool.later(10 * pool.state.starved_after_ms)
    assert going_first(pool.state) == ()


@pytest.mark.parametrize(
    ("rule", "goes_first"),
    [
        ("max_leases = 1", True),  # a suspended lease is counted as one already
        ("max_leases = 0", False),
        ("max_gpus = 0.75", True),
        ("max_gpus = 0.7", False),
        ("max_memory = '60GiB'", True),
        ("max_memory = '59GiB'", False),
        ("gpus = ['*H200*']", True),
        ("gpus = ['*A100*']", False),
        ("servers = ['rack=2']", False),
    ],
)
def test_a_suspended_lease_that_waits_for_a_rule_keeps_nothing(rule: str, goes_first: bool) -> None:
    pool, _ = waits_to_go_on()
    pool.put(f"[user.ada]\n{rule}\n")
    pool.later(pool.state.starved_after_ms)
    assert users_of(pool.state) == ["ada"] * goes_first


def test_a_suspended_lease_whose_gpu_or_server_is_gone_keeps_nothing() -> None:
    pool, _ = waits_to_go_on()
    pool.later(pool.state.starved_after_ms)
    state, server = pool.state, pool.state.servers[A]
    assert users_of(state) == ["ada"]
    without_gpu = state.servers.set(A, replace(server, gpus={}))
    assert users_of(replace(state, servers=without_gpu)) == []
    assert users_of(replace(state, servers=state.servers.without(A))) == []


@pytest.mark.parametrize(
    ("priority", "kept"),
    [(0, True), (5, True), (6, False)],
)
def test_a_suspended_lease_goes_first_by_the_priority_of_its_user(
    priority: int, kept: bool
) -> None:
    pool, lease = waits_to_go_on(
        "[class.x]\nusers = ['ada']\npriority = 5\n"
        f"[class.y]\nusers = ['cy']\npriority = {priority}\n"
    )
    pool.later(pool.state.starved_after_ms)
    found = kept_from(pool.state, NOBODY, "cy")
    assert [each.entry.priority for each in found] == [5] * kept
    own = pool.state.leases[lease].request
    assert kept_from(pool.state, own, "ada") == [], "nor anything from itself"


def test_suspended_leases_do_not_wait_for_one_another() -> None:
    pool = small(gpu_count=2)
    leases = [pool.hold_for("ada", (0, 60)), pool.hold_for("ada", (1, 60))]
    for lease in leases:
        assert pool.do(c.SuspendLease(lease, "", "ada")).ok
        pool.confirm(lease)
    pool.hold_for("bob", (0, 60), (1, 60))
    for lease in leases:
        assert pool.do(c.ResumeLease(lease, "ada")).ok
        pool.later(1)
    pool.later(pool.state.starved_after_ms)
    first, second = (pool.state.leases[each].request for each in leases)
    assert [each.entry.request.id for each in going_first(pool.state)] == [first, second]
    assert kept_from(pool.state, second, "ada") == []
    kept = [each.entry.request.id for each in kept_from(pool.state, NOBODY, "ada")]
    assert kept == [first, second]


# --- memory that comes back -----------------------------------------------------------------------


def entry_for(pool: Pool, gib: int, count: int = 1) -> Waiting:
    """Return a request of whole bytes as if it waited."""
    request = pool.request(count, memory=gib * GIB)
    return Waiting(request, "boss", 10, Milliseconds(0), Milliseconds(0), "")


def test_gpus_that_are_about_to_be_free_are_nearer_than_those_that_lack_less_now() -> None:
    pool = small(gpu_count=2)
    ends = pool.hold_for("ada", (0, 80))
    pool.hold_for("bob", (1, 40))
    entry = entry_for(pool, 80)
    now, none = pool.state.servers, frozenset[tuple[str, str]]()
    assert nearest(pool.state, entry, frozenset(), now) == ({(A, gpu(1))}, False)
    assert pool.do(c.EndLease(ends, "over")).ok
    soon = with_memory_to_come(pool.state, entry)
    assert nearest(pool.state, entry, frozenset(), soon) == ({(A, gpu(0))}, True)
    taken = frozenset({(A, gpu(0))})
    assert nearest(pool.state, entry, taken, soon) == ({(A, gpu(1))}, False)
    both = frozenset({(A, gpu(0)), (A, gpu(1))})
    assert nearest(pool.state, entry, both, soon) == (none, False)


def test_what_a_server_has_freed_already_does_not_come_once_more() -> None:
    pool = Preempting(gpu_count=1)
    lease = pool.hold((gpu(0), 40), (gpu(0, B), 40))
    entry = entry_for(pool, 80)
    assert pool.do(c.EndLease(lease, "over")).ok
    assert pool.do(c.FreeLease(lease, A, ONE)).ok
    assert pool.state.leases[lease].parts == {A: PartStatus.FREED, B: PartStatus.ENDING}
    pool.hold((gpu(0), 50), user="bob")
    soon = with_memory_to_come(pool.state, entry)
    free = {each.id: each.gpus[gpu(0, each.id)].memory_free for each in soon.values()}
    assert free == {A: 30 * GIB, B: 80 * GIB}


def test_of_a_lease_that_ends_while_it_is_suspended_nothing_comes() -> None:
    pool, lease = waits_to_go_on()
    assert pool.do(c.EndLease(lease, "over", "ada")).ok
    soon = with_memory_to_come(pool.state, entry_for(pool, 80))
    assert soon[A].gpus[gpu(0)].memory_free == 20 * GIB


def test_what_is_suspended_for_one_request_comes_back_for_no_other() -> None:
    pool = small(gpu_count=1)
    lease = pool.grant("ada")
    request = pool.request()
    assert pool.do(c.Wait(request, "boss", TokenId("boss"), "busy")).ok
    assert pool.lead()
    assert pool.phase(lease) == "suspending"
    mine = pool.state.waiting[request.id]
    assert with_memory_to_come(pool.state, mine)[A].gpus[gpu(0)].memory_free == 80 * GIB
    other = entry_for(pool, 80)
    assert with_memory_to_come(pool.state, other)[A].gpus[gpu(0)].memory_free == 0


# --- which GPUs -----------------------------------------------------------------------------------


def kept_for(pool: Pool, request: Request) -> set[tuple[str, str]]:
    waiting = Waiting(request, "ada", 0, Milliseconds(0), Milliseconds(0), "")
    return {*needed_by(pool.state, waiting)}


@pytest.mark.parametrize(("count", "across", "kept"), [(8, True, 8), (9, True, 0), (5, False, 0)])
def test_nothing_is_kept_where_there_are_too_few_gpus(count: int, across: bool, kept: int) -> None:
    pool = Pool()
    assert len(kept_for(pool, replace(pool.request(count), across=across))) == kept


@pytest.mark.parametrize(("fraction", "kept"), [(1 / (80 << 10), 1), (0.9 / (80 << 10), 0)])
def test_nothing_is_kept_for_less_than_the_smallest_partition(fraction: float, kept: int) -> None:
    pool = Pool()
    assert len(kept_for(pool, pool.request(fraction=fraction))) == kept


@pytest.mark.parametrize(("gib", "kept"), [(80, 1), (81, 0)])
def test_nothing_is_kept_for_more_than_a_gpu_has(gib: int, kept: int) -> None:
    pool = Pool()
    assert len(kept_for(pool, pool.request(memory=gib * GIB))) == kept


def test_a_gpu_that_grants_nothing_and_a_server_that_does_not_are_not_kept() -> None:
    pool = Pool(gpu_count=1)
    assert kept_for(pool, pool.request()) == {(A, gpu(0))}
    assert pool.do(c.DrainGpu(A, gpu(0), "hot", "root", b"1" * 16)).ok
    assert kept_for(pool, pool.request()) == {(B, gpu(0, B))}
    assert pool.do(c.DrainServer(B, "new fan", "root")).ok
    assert kept_for(pool, pool.request()) == set()


@pytest.mark.parametrize(("on_a", "on_b", "kept"), [(80, 40, A), (40, 80, A), (39, 40, B)])
def test_a_gpu_with_more_free_than_is_needed_is_as_ready_as_one_with_just_that(
    on_a: int, on_b: int, kept: str
) -> None:
    pool = Pool(gpu_count=1)
    for server, gib in ((A, on_a), (B, on_b)):
        if gib < 80:
            pool.hold((gpu(0, server), 80 - gib))
    assert kept_for(pool, pool.request(memory=40 * GIB)) == {(kept, gpu(0, kept))}


def test_of_servers_that_are_as_near_the_first_by_id_is_taken_in_whatever_order_they_came() -> None:
    pool = Pool()
    servers = pool.state.servers
    turned = PersistentMap((server, servers[server]) for server in (B, A))
    assert list(turned) == [B, A]
    pool.machine.state = replace(pool.state, servers=turned)
    assert {server for server, _ in kept_for(pool, pool.request(3))} == {A}


# --- several that go first ------------------------------------------------------------------------


def starve(pool: Preempting, user: str, request: Request) -> Waiting:
    """Let a request wait for as long as makes it go first."""
    pool.wait(user, request)
    for _ in range(pool.state.starved_after_ms // 10_000):
        pool.later(10_000)
        pool.wait(user, request)
    return pool.state.waiting[request.id]


def test_a_starved_request_and_a_suspended_lease_both_keep_their_gpus() -> None:
    pool = small(gpu_count=3)
    lease = pool.hold_for("ada", (0, 60))
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    pool.confirm(lease)
    pool.hold_for("bob", (0, 60))
    pool.hold_for("bob", (1, 60))
    pool.hold_for("bob", (2, 70))
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    pool.later(1)
    entry = starve(pool, "dee", pool.request(memory=40 * GIB))
    pool.later(1)
    pool.wait("dee", entry.request)
    own = pool.state.leases[lease].request
    first, second = going_first(pool.state)
    assert (first.entry.request.id, first.gpus) == (own, {(A, gpu(0))})
    assert (second.entry.request.id, second.gpus) == (entry.request.id, {(A, gpu(1))})
    assert reserved_for_others(pool.state, NOBODY, "cy") is None, "of a higher priority"
    kept = reserved_for_others(pool.state, NOBODY, "dee")
    assert kept == ReservedGpus(first.entry, frozenset({(A, gpu(0)), (A, gpu(1))}))
    assert reserved_for_others(pool.state, entry.request.id, "dee") == first
    assert reserved_for_others(pool.state, own, "ada") is None


def test_a_starved_request_keeps_nothing_from_itself_and_all_from_those_behind() -> None:
    pool = small(gpu_count=1)
    pool.hold_for("bob", (0, 60))
    entry = starve(pool, "ada", pool.request())
    assert reserved_for_others(pool.state, entry.request.id, "ada") is None
    for user in ("ada", "bob", "dee"):
        kept = reserved_for_others(pool.state, NOBODY, user)
        assert kept == ReservedGpus(entry, frozenset({(A, gpu(0))}))
    assert reserved_for_others(pool.state, NOBODY, "boss") is None


def test_memory_of_leases_that_end_counts_only_for_whom_leases_are_suspended() -> None:
    """Whether there are suspended leases or not, a starved request keeps the same GPUs."""
    pool = small(gpu_count=3)
    ends = pool.hold_for("ada", (0, 80))
    pool.hold_for("ada", (1, 40))
    other = pool.hold_for("ada", (2, 80))
    entry = starve(pool, "dee", pool.request())
    assert pool.do(c.EndLease(ends, "over")).ok
    [found] = going_first(pool.state)
    assert found == ReservedGpus(entry, frozenset({(A, gpu(1))}))
    assert pool.do(c.SuspendLease(other, "", "ada")).ok
    assert pool.state.leases.suspended()
    assert going_first(pool.state) == (found,)


def test_whom_suspended_leases_do_not_suffice_keeps_nothing_unless_it_is_starved() -> None:
    pool = small(gpu_count=3)
    for n in range(3):
        pool.hold_for("ada", (n, 80))
    two, one = pool.request(2), pool.request()
    pool.wait("boss", two)
    pool.wait("cy", one)
    assert len(pool.lead()) == 3
    assert [each.entry.request for each in going_first(pool.state)] == [two, one]
    away = {each.id: each.suspension for each in pool.state.leases.suspended().values()}
    lease, number = next(
        (lease, found.number)
        for lease, found in away.items()
        if found is not None and found.for_request == two.id
    )
    assert pool.do(c.RefuseSuspension(lease, A, ONE, number, "no memory left")).ok
    [found] = going_first(pool.state)
    assert (found.entry.request, len(found.gpus)) == (one, 1)
    soon = replace(pool.state, starved_after_ms=0)
    assert [each.entry.request for each in going_first(soon)] == [two, one]


def test_a_request_is_ready_when_all_of_its_gpus_are() -> None:
    pool = small(gpu_count=2)
    servers = pool.state.servers
    both = {(A, gpu(0)), (A, gpu(1))}
    entry = entry_for(pool, 60, 2)
    assert nearest(pool.state, entry, frozenset(), servers) == (both, True)
    pool.hold_for("ada", (0, 40))
    assert nearest(pool.state, entry, frozenset(), pool.state.servers) == (both, False)


def test_what_others_hold_beside_memory_that_comes_back_stays_held() -> None:
    pool = small(gpu_count=1)
    ends = pool.hold_for("ada", (0, 40))
    pool.hold_for("bob", (0, 30))
    assert pool.do(c.EndLease(ends, "over")).ok
    soon = with_memory_to_come(pool.state, entry_for(pool, 80))
    assert soon[A].gpus[gpu(0)].memory_free == 50 * GIB


def test_ahead_counts_those_whose_turn_is_before() -> None:
    """Not all waiting requests: the first in line has nobody ahead of it."""
    pool = Preempting("[class.high]\nusers = ['eve']\npriority = 10\n", gpu_count=1)
    pool.hold((gpu(0), 80), user="dee")
    pool.hold((gpu(0, B), pool.state.servers[B].gpus[gpu(0, B)].memory_free // GIB), user="dee")
    first, second, third = (pool.request() for _ in range(3))
    assert pool.refusal("ada", first).ahead == 0
    pool.wait("ada", first)
    pool.now_ms += 1000
    pool.wait("bob", second)
    assert [pool.refusal(u, r).ahead for u, r in [("ada", first), ("bob", second)]] == [0, 1]
    pool.now_ms += 1000
    assert pool.refusal("cy", third).ahead == 2, "one that does not wait yet comes last"
    assert pool.refusal("eve", third).ahead == 0, "unless its priority is higher"
