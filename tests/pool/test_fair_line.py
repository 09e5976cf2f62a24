"""A line that moves: nobody takes fairness or preemption away from those behind, for long."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, upgraded
from tests.pool.test_preemption import MINUTE_MS, Preempting

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, lease_name
from gpupool.pool.model.state import Request
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import due_resumptions, due_suspensions
from gpupool.pool.scheduling.fairness import going_first
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.view_building import build_view

STEP_MS = 5_000


class Busy(Preempting):
    """A pool with small requests that take any free GPUs, for some seconds each."""

    def __init__(self, policy: str = "", seed: int = 0, servers: tuple[str, ...] = ()) -> None:
        super().__init__(policy)
        self._random = Random(seed)
        self._servers = servers
        self._running: list[tuple[LeaseId, int]] = []
        self.small_count = 0

    def can_begin(self, user: str, request: Request) -> bool:
        return any(isinstance(each, Offer) for each in self.ask(user, request))

    def steps(self, minutes: float) -> Iterator[int]:
        """Go on, and return the seconds that have passed."""
        begin = self.now_ms
        while self.now_ms <= begin + minutes * MINUTE_MS:
            for lease, end in [each for each in self._running if each[1] <= self.now_ms]:
                self.end(lease)
                self._running.remove((lease, end))
            yield (self.now_ms - begin) // 1000
            while True:
                request = replace(self.request(), servers=self._servers)
                if not self.can_begin("cy", request):
                    break
                lease = self.do(self.claim("cy", request)).lease
                assert lease is not None
                end = self.now_ms + self._random.randrange(20_000, 60_000)
                self._running.append((lease, end))
                self.small_count += 1
            self.later(STEP_MS)

    def begins_after(self, user: str, request: Request, others: list[tuple[str, Request]]) -> int:
        """Return after how many seconds a request could begin, while others wait before it."""
        for passed in self.steps(20):
            for each in others:
                self.wait(*each)
            if passed >= 60:
                if self.can_begin(user, request):
                    return passed - 60
                self.wait(user, request)
        return 20 * 60


def at_limit(count: int) -> str:
    return f"[user.bob]\nmax_gpus = {count}\n"


@pytest.mark.parametrize("count", [1, 20, 120])
@pytest.mark.parametrize("why", ["drained", "held", "limit", "kept by others"])
def test_requests_that_cannot_be_served_take_nothing_from_those_behind(
    why: str, count: int
) -> None:
    pool = Busy(at_limit(0) if why == "limit" else "", servers=(B,))
    if why == "drained":
        assert pool.do(c.DrainServer(A, "repair", "root")).ok
    elif why != "limit":
        pool.hold_for("dee", *((n, 80) for n in range(4)))
    gpus = 1 if why == "kept by others" else 4
    where = () if why == "limit" else (A,)
    before = [("bob", replace(pool.request(gpus), servers=where)) for _ in range(count)]
    wanted = replace(pool.request(4), servers=(B,))
    assert pool.begins_after("ada", wanted, before) <= 120


def test_no_user_has_all_the_places_for_which_gpus_are_kept() -> None:
    pool = Busy(servers=(B,))
    pool.hold_for("dee", *((n, 80) for n in range(4)))
    sizes = [("bob", replace(pool.request(1, 0.5 + n / 100), servers=(A,))) for n in range(40)]
    assert pool.begins_after("ada", replace(pool.request(4), servers=(B,)), sizes) <= 120


def test_those_behind_leave_gpus_and_those_before_do_not() -> None:
    pool = Preempting()
    pool.hold_for("dee", *((n, 80) for n in range(4)))
    first, second = (replace(pool.request(n), servers=(A,)) for n in (3, 1))
    third = replace(pool.request(2), servers=(A,))
    for _ in range(8):
        for user, request in (("ada", first), ("bob", second), ("cy", third)):
            pool.wait(user, request)
        pool.later(10_000)
    assert [(each.entry.user, len(each.gpus)) for each in going_first(pool.state)] == [
        ("ada", 3),
        ("bob", 1),
    ]
    rest = replace(pool.state, waiting=pool.state.waiting.without(first.id))
    found = [(each.entry.user, len(each.gpus)) for each in going_first(rest)]
    assert found == [("bob", 1), ("cy", 2)]


def test_a_pool_with_an_older_server_keeps_gpus_for_one_request() -> None:
    pool = Busy(servers=(B,))
    upgraded(pool.machine, 11)
    assert pool.do(c.DrainServer(A, "repair", "root")).ok
    before = [("bob", replace(pool.request(4), servers=(A,)))]
    wanted = replace(pool.request(4), servers=(B,))
    assert pool.begins_after("ada", wanted, before) == 20 * 60


# --- where they are free soonest ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_gpus_are_kept_where_short_leases_are_and_not_beside_one_that_lasts(seed: int) -> None:
    pool = Busy(seed=seed)
    pool.hold_for("dee", (0, 80))
    assert pool.begins_after("ada", pool.request(4), []) <= 120


@pytest.mark.parametrize("seed", range(3))
def test_it_turns_away_from_what_turns_out_to_last_and_comes_back_for_nothing(seed: int) -> None:
    """Both servers have one that lasts; that of the second ends after ten minutes."""
    pool = Busy(seed=seed)
    pool.hold_for("dee", (0, 80))
    lasting = pool.hold((next(iter(pool.state.servers[B].gpus)), 80), user="dee")
    wanted = pool.request(4)
    kept: list[str] = []
    for passed in pool.steps(14):
        if passed >= 600 and lasting in pool.state.leases:
            pool.end(lasting)
        if passed >= 60:
            if pool.can_begin("ada", wanted):
                assert passed <= 600 + 120
                break
            pool.wait("ada", wanted)
        kept += [server for each in going_first(pool.state) for server, _ in [min(each.gpus)]]
    else:
        pytest.fail("it never began")
    changes = sum(one != other for one, other in pairwise(kept))
    assert changes <= 1, kept


def test_an_end_that_the_policy_has_set_is_known() -> None:
    """Of two leases of one age, the one with an end is soon over."""
    pool = Preempting("[user.ada]\nmax_lease_time = '61m'\n")
    pool.hold_for("dee", *((n, 80) for n in range(4)))
    for gpu in pool.state.servers[B].gpus:
        pool.hold((gpu, 80), user="ada")
    pool.later(60 * MINUTE_MS)
    request = pool.request(4)
    for _ in range(6):
        pool.wait("bob", request)
        pool.later(9_990)
    pool.wait("bob", request)
    pool.later(60)
    [found] = going_first(pool.state)
    assert {server for server, _ in found.gpus} == {B}


def test_memory_of_strangers_is_not_soon_free() -> None:
    pool = Preempting()
    server = pool.state.servers[A]
    used = tuple(
        replace(gpu, memory_foreign=gpu.capacity // 2 if gpu.index == 0 else 0)
        for gpu in server.gpus.values()
    )
    row = replace(server, gpus={gpu.id: gpu for gpu in used})
    pool.machine.state = replace(pool.state, servers=pool.state.servers.set(A, row))
    for gpu in pool.state.servers[B].gpus:
        pool.hold((gpu, 80), user="ada")
    pool.hold_for("ada", (1, 10))
    request = pool.request(4)
    pool.wait("bob", request)
    [found] = going_first(replace(pool.state, starved_after_ms=0))
    assert {server for server, _ in found.gpus} == {B}


def test_who_goes_first_is_told_what_is_kept_and_who_has_to_let_go() -> None:
    pool = Preempting("[user.dee]\nmax_lease_time = '2h'\n")
    lease = pool.hold_for("dee", (0, 80))
    pool.hold_for("ada", (1, 80))
    pool.later(30 * MINUTE_MS)
    request = replace(pool.request(4), servers=(A,))
    for _ in range(7):
        pool.wait("bob", request)
        pool.later(10_000)
    pool.wait("bob", request)
    why = next(each.why for each in pool.ask("bob", request) if isinstance(each, NoOffer))
    assert why.endswith(
        "; 4 kept for it until 2 leases let go, the oldest "
        f"is {lease_name(lease)} of dee, held for 31m10s; it ends within 1h28m"
    ), why


# --- preemption -----------------------------------------------------------------------------------

CLASSES = """
[class.high]
users = ["ada", "bob"]
priority = 10
[class.low]
users = ["cy"]
preemptible = true
[user.bob]
max_gpus = 1
[user.dee]
class = "high"
"""


def suspended_after(pool: Preempting, waits: list[tuple[str, Request]], minutes: int) -> int:
    for _ in range(minutes * 6):
        for each in waits:
            pool.wait(*each)
        pool.later(10_000)
        if pool.suspensions():
            break
    return len(pool.suspensions())


@pytest.mark.parametrize("count", [15, 16, 17, 300])
@pytest.mark.parametrize("hopeless", ["at the limit", "alike", "each another"])
def test_requests_for_which_nothing_gives_way_take_preemption_from_nobody(
    hopeless: str, count: int
) -> None:
    pool = Preempting(CLASSES)
    pool.grant("bob")
    pool.hold_for("dee", (1, 80))
    for _ in range(6):
        pool.grant("cy")
    user = "bob" if hopeless == "at the limit" else "dee"
    # Of a GPU that dee has: nothing of lower priority is on it.
    sizes = [(n + 20) / 400 if hopeless == "each another" else 1.0 for n in range(count)]
    before = [(user, pool.request(1 if user == "bob" else 8, size)) for size in sizes]
    waits = [*before, ("ada", pool.request())]
    assert suspended_after(pool, waits, minutes=5) == 1


def test_servers_whose_leases_give_way_to_nobody_hide_no_other_server() -> None:
    pool = Preempting(CLASSES)
    assert pool.do(c.DrainServer(B, "repair", "root")).ok
    pool.hold_for("cy", *((n, 80) for n in range(4)))
    pool.wait("ada", pool.request())
    servers, alike = pool.state.servers, pool.state.servers[A]
    for n in range(20):
        name = ServerId(f"{n:012d}")
        gpus = [
            replace(gpu, id=GpuId(f"{name}-{gpu.index}"), memory_granted=30 * GIB)
            for gpu in alike.gpus.values()
        ]
        row = replace(alike, id=name, name=name, gpus={gpu.id: gpu for gpu in gpus})
        servers = servers.set(name, row)
    full = replace(pool.state, servers=servers)
    assert len(due_suspensions(full, pool.now)) == 1


# --- what cannot let go, or go on -----------------------------------------------------------------


def test_a_suspended_lease_goes_on_where_a_drain_has_begun_meanwhile() -> None:
    pool = Preempting(CLASSES, gpu_count=1)
    assert pool.do(c.DrainServer(B, "for the test", "root")).ok
    lease, request = pool.grant("cy"), pool.request()
    pool.wait("ada", request)
    assert pool.lead()
    pool.confirm(lease)
    taken = pool.do(pool.claim("ada", request)).lease
    assert taken is not None
    assert pool.do(c.DrainServer(A, "maintenance", "root")).ok
    pool.end(taken)
    upgraded(pool.machine, 11)
    assert due_resumptions(pool.state, pool.now) == (), "in a pool with an older server"
    upgraded(pool.machine)
    assert due_resumptions(pool.state, pool.now) == (c.ResumeLease(lease),)
    assert pool.do(c.ResumeLease(lease)).ok
    pool.confirm(lease)
    assert pool.phase(lease) == "held"


def over_two_servers() -> tuple[Preempting, LeaseId, Request]:
    """Return a pool in which a lease of two servers is being suspended, and one is cut off."""
    pool = Preempting(CLASSES, gpu_count=1)
    first, second = (next(iter(pool.state.servers[each].gpus)) for each in (A, B))
    lease = pool.hold((first, 80), (second, 80), user="cy")
    request = pool.request()
    pool.wait("ada", request)
    assert [each.lease for each in pool.lead() if isinstance(each, c.SuspendLease)] == [lease]
    assert pool.do(c.ServerContact(B, ONE, reachable=False)).ok
    return pool, lease, request


def test_memory_is_not_given_back_before_a_server_out_of_contact_has_confirmed() -> None:
    pool, lease, request = over_two_servers()
    found = pool.state.leases[lease].suspension
    assert found is not None
    number = found.number
    assert pool.do(c.ConfirmSuspended(lease, A, ONE, number, GIB)).ok
    assert pool.phase(lease) == "suspending"
    assert all(g.memory_granted for s in pool.state.servers.values() for g in s.gpus.values())
    assert not any(isinstance(each, Offer) for each in pool.ask("ada", request))
    assert pool.do(c.ServerContact(B, ONE, reachable=True)).ok
    assert pool.phase(lease) == "suspending"
    assert pool.do(c.ConfirmSuspended(lease, B, ONE, number, GIB)).ok
    assert pool.phase(lease) == "suspended"
    assert not any(g.memory_granted for s in pool.state.servers.values() for g in s.gpus.values())


def test_a_suspension_that_waits_for_a_server_out_of_contact_is_told() -> None:
    pool, lease, _ = over_two_servers()
    health = RaftHealth(Role.FOLLOWER, None, 0, 0, 0, (), (), 0.0, {}, 0)
    [view] = build_view(pool.state, health, A, pool.now).leases
    assert (view.id, view.state) == (lease, "unreachable")
    assert view.reason.endswith("; waits for b, which is out of contact")


def test_a_request_looks_elsewhere_while_a_server_is_awaited() -> None:
    pool = Preempting(CLASSES)
    first, second = (next(iter(pool.state.servers[each].gpus)) for each in (A, B))
    both = pool.hold((first, 20), (second, 20), user="cy")
    others = [pool.hold_for("cy", (n, 80)) for n in range(1, 4)]
    for gpu in list(pool.state.servers[B].gpus)[1:]:
        pool.hold((gpu, 80), user="dee")
    pool.hold_for("dee", (0, 30))
    pool.hold((second, 60), user="dee")
    request = pool.request(memory=40 * GIB)
    pool.wait("ada", request)
    assert [each.lease for each in pool.lead() if isinstance(each, c.SuspendLease)] == [both]
    assert pool.lead() == []
    assert pool.do(c.ServerContact(B, ONE, reachable=False)).ok
    [another] = pool.lead()
    assert isinstance(another, c.SuspendLease)
    assert another.lease in others
