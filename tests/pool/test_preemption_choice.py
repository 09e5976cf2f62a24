"""The choice of leases that give way, where there are too many to try every set of them."""

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B
from tests.pool.test_preemption import POLICY, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, TokenId
from gpupool.pool.model.state import Partition
from gpupool.pool.scheduling.fairness import going_first
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.pool.scheduling.preemption import (
    EXACT_MAX,
    Rules,
    entry_of,
    preemptions,
    suspendable_in_ms,
)


def test_a_lease_that_clears_all_gpus_is_enough() -> None:
    """It goes on to clear GPUs only as long as the request does not fit."""
    pool = small(gpu_count=2)
    large = pool.hold_for("ada", (0, 40), (1, 40))
    for _ in range(EXACT_MAX // 2 + 1):
        pool.hold_for("bob", (0, 1))
        pool.hold_for("bob", (1, 1))
    pool.wait("boss", pool.request(2, memory=60 * GIB))
    assert [each.leases for each in preemptions(pool.state)] == [(large,)]


def test_of_two_servers_the_one_where_less_is_moved_is_chosen() -> None:
    """Less is missing on the first, and only a large lease can give way there."""
    pool = Preempting(POLICY, gpu_count=1)
    pool.hold_for("ada", (0, 70))
    for user, gib in (("cy", 60), ("ada", 20)):
        request = pool.request(memory=gib * GIB)
        place = Partition(B, GpuId(f"{B}-0"), gib * GIB)
        done = pool.do(c.Grant(request, user, TokenId(user), bytes(32), (place,), {B: ONE}))
        assert done.ok
    pool.wait("boss", pool.request(memory=20 * GIB))
    assert [each.leases for each in preemptions(pool.state)] == [(done.lease,)]


def test_a_request_goes_first_only_while_a_lease_gives_way_for_it() -> None:
    pool = small()
    first, _ = pool.grant("ada"), pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    [order] = pool.lead()
    assert isinstance(order, c.SuspendLease)
    assert [each.entry.request for each in going_first(pool.state)] == [request]
    assert pool.do(c.EndLease(first, "its user has ended it")).ok
    assert pool.state.leases[first].suspension is not None
    assert going_first(pool.state) == ()


def test_a_refusal_names_who_goes_first_on_these_gpus() -> None:
    pool = small()
    leases = [pool.grant("ada"), pool.grant("ada")]
    for user in ("boss", "cy"):
        pool.wait(user, pool.request())
        assert len(pool.lead()) == 1
    for lease in leases:
        pool.confirm(lease)
    for each in going_first(pool.state):
        [(server, gpu)] = each.gpus
        place = Partition(server, gpu, 40 * GIB)
        asked = pool.request(memory=40 * GIB)
        refused = pool.do(c.Grant(asked, "dee", TokenId("dee"), bytes(32), (place,), {A: ONE}))
        assert refused.why == f"{each.entry.user} has waited 0 s for these GPUs and goes first"


def test_a_server_with_too_few_gpus_takes_the_place_of_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bounded number of servers is tried, those with the least missing first."""
    monkeypatch.setattr("gpupool.pool.scheduling.preemption.SERVERS_MAX", 1)
    pool = Preempting(POLICY, gpu_count=2)
    assert pool.do(c.DrainGpu(A, GpuId(f"{A}-1"), "new fan", "root", b"1" * 16)).ok
    places = tuple(Partition(B, GpuId(f"{B}-{n}"), 80 * GIB) for n in range(2))
    request = pool.request(2)
    held = pool.do(c.Grant(request, "ada", TokenId("ada"), bytes(32), places, {B: ONE}))
    assert held.ok
    pool.wait("boss", pool.request(2))
    assert [each.leases for each in preemptions(pool.state)] == [(held.lease,)]


def test_nothing_is_suspended_for_the_lowest_priority() -> None:
    pool = small()
    assert suspendable_in_ms(pool.state, "boss", pool.request()) == 0
    assert suspendable_in_ms(pool.state, "ada", pool.request()) is None


def test_a_refusal_tells_of_what_is_suspended_for_that_request_only() -> None:
    pool = small()
    for _ in range(2):
        pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    assert pool.lead()
    for asked, is_told in ((request, True), (pool.request(), False)):
        [answer] = [each for each in pool.ask("boss", asked) if each.server == A]
        assert isinstance(answer, NoOffer)
        assert ("; a lease of ada is being suspended for it" in answer.why) is is_told


def test_what_is_suspended_already_gives_way_for_nobody_else() -> None:
    pool = small()
    lease, ended = pool.grant("ada"), pool.grant("ada")

    def objection(to: LeaseId = lease) -> str:
        rules = Rules(pool.state)
        return rules.objection(pool.state.leases[to], entry_of(rules, "boss", pool.request()))

    assert objection() == ""
    assert pool.do(c.SuspendLease(lease, "to make room", "ada")).ok
    assert objection() == "it is suspending already"
    pool.confirm(lease)
    assert objection() == "it is suspended already"
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    assert objection() == "it is resuming already"
    assert pool.do(c.EndLease(ended, "over")).ok
    assert objection(ended) == "it ends"
