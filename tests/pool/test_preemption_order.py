"""Requests considered for preemption, the cheapest choice, and the clearing of GPUs."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, ONE, A, B, Pool
from tests.pool.test_preemption import MINUTE_MS, POLICY, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, TokenId
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import Partition, PartStatus, PoolState, Request
from gpupool.pool.scheduling.preemption import (
    Rules,
    choose,
    due_preemptions,
    entry_of,
    is_due,
    preemptions,
    reason_text,
)

LEASES_MAX = "gpupool.pool.scheduling.preemption.EXACT_MAX"
SERVERS_MAX = "gpupool.pool.scheduling.preemption.SERVERS_MAX"
DAY_TOO = POLICY.replace("priority = 5", "priority = 5\npreemptible = true")


def hold_on(pool: Pool, user: str, *places: tuple[str, int], gib: int) -> LeaseId:
    """Grant GPUs of any servers."""
    parts = tuple(Partition(A if s == A else B, GpuId(f"{s}-{n}"), gib * GIB) for s, n in places)
    request = Request(pool.request().id, len(parts), memory=gib * GIB, across=True)
    incarnations = dict.fromkeys({part.server for part in parts}, ONE)
    done = pool.do(c.Grant(request, user, TokenId(user), bytes(32), parts, incarnations))
    assert done.lease is not None, done
    return done.lease


def chosen(state: PoolState) -> list[tuple[LeaseId, ...]]:
    return [each.leases for each in preemptions(state)]


# --- who is looked at -----------------------------------------------------------------------------


def test_a_lease_is_due_for_the_one_request_for_which_it_was_chosen() -> None:
    pool = small()
    first, second = pool.hold_for("ada", (0, 80)), pool.hold_for("ada", (1, 70))
    request, other = pool.request(fraction=1), pool.request()
    pool.wait("boss", request)
    assert [is_due(pool.state, each, request.id) for each in (first, second)] == [False, True]
    assert [is_due(pool.state, each, other.id) for each in (first, second)] == [False, False]
    third = pool.request()
    pool.wait("boss", third)
    due = {
        each: [is_due(pool.state, lease, each.id) for lease in (first, second)]
        for each in (request, third)
    }
    assert due == {request: [False, True], third: [True, False]}


def test_the_leader_makes_its_plan_once_a_second() -> None:
    pool = small()
    lease, request = pool.hold_for("ada", (0, 80)), pool.request()
    pool.hold_for("boss", (1, 80))
    pool.wait("boss", request)
    state = pool.state
    assert state.now % 1000 == 0
    plan = due_preemptions(state)
    reason = reason_text(state.waiting[request.id])
    assert plan == (c.SuspendLease(lease, reason, for_request=request.id),)
    assert reason == "a request of boss with priority 10 goes first"
    assert due_preemptions(replace(state, now=Milliseconds(state.now + 999))) is plan
    later = due_preemptions(replace(state, now=Milliseconds(state.now + 1000)))
    assert later == plan
    assert later is not plan


@pytest.mark.parametrize("user", ["ada", "cy", "boss"])
def test_nothing_is_looked_for_for_a_request_of_the_lowest_priority(user: str) -> None:
    """Even where the free memory is enough for it."""
    pool = small(gpu_count=2)
    pool.grant("ada")
    request = pool.request()
    pool.wait(user, request)
    found = [(each.entry.user, each.leases) for each in preemptions(pool.state)]
    assert found == ([] if user == "ada" else [(user, ())])


def test_without_priorities_or_requests_nothing_is_suspended() -> None:
    pool = small("[class.night]\nusers = ['ada']\npreemptible = true\n", gpu_count=1)
    pool.grant("ada")
    pool.wait("boss", pool.request())
    assert preemptions(pool.state) == ()
    pool = small(gpu_count=1)
    pool.grant("ada")
    assert preemptions(pool.state) == ()


def test_those_behind_one_that_has_to_wait_are_looked_at_all_the_same() -> None:
    pool = small(DAY_TOO, gpu_count=1)
    lease = pool.grant("ada")
    first, second = pool.request(), pool.request()
    pool.wait("boss", first)
    pool.later(1)
    pool.wait("cy", second)
    held_back = DAY_TOO.replace("priority = 10", "priority = 10\nmax_gpus = 0.5")
    taken_away = DAY_TOO.replace("priority = 10", "priority = 9")
    assert is_due(pool.state, lease, first.id)
    for policy in (taken_away, held_back):
        pool.put(policy)
        assert [each.entry.request for each in preemptions(pool.state)] == [second]
        assert is_due(pool.state, lease, second.id)


def test_who_comes_first_has_the_choice() -> None:
    pool = small(DAY_TOO)
    small_one, large = pool.hold_for("ada", (0, 60)), pool.hold_for("ada", (1, 80))
    late, early = pool.request(fraction=1), pool.request(fraction=1)
    pool.wait("cy", early)
    pool.later(1)
    pool.wait("boss", late)
    found = {each.entry.user: each for each in preemptions(pool.state)}
    assert list(found) == ["boss", "cy"]
    assert (found["boss"].leases, found["cy"].leases) == ((small_one,), (large,))
    assert found["boss"].gpus == {(A, GpuId(f"{A}-0"))}
    assert found["cy"].gpus == {(A, GpuId(f"{A}-1"))}


# --- what it costs, and what a class keeps --------------------------------------------------------


def test_a_choice_costs_bytes_then_priorities_from_the_highest_then_time_then_ids() -> None:
    pool = small(DAY_TOO)
    first = pool.hold_for("ada", (0, 30))
    pool.later(1000)
    second = pool.hold_for("cy", (0, 10), (1, 10))
    pool.later(500)
    third = pool.hold_for("boss", (1, 10))
    rules = Rules(pool.state)
    leases = [pool.state.leases[each] for each in (first, second, third)]
    assert rules.cost(leases) == (60 * GIB, (10, 5, 0), 2000, (first, second, third))
    assert rules.cost(leases[::-1]) == rules.cost(leases)
    assert rules.cost([]) == (0, (), 0, ())
    assert [rules.priority(each) for each in leases] == [0, 5, 10]
    assert rules.lowest == 0


def test_the_highest_priority_of_a_choice_counts_before_the_others() -> None:
    text = "".join(
        f"[class.c{n}]\nusers = ['{user}']\npriority = {priority}\npreemptible = true\n"
        for n, (user, priority) in enumerate(
            [("ada", 5), ("bob", 1), ("cy", 4), ("dee", 3), ("boss", 10)]
        )
    )
    pool = small(text)
    high = [pool.hold_for("ada", (0, 40)), pool.hold_for("bob", (0, 40))]
    even = [pool.hold_for("cy", (1, 40)), pool.hold_for("dee", (1, 40))]
    pool.wait("boss", pool.request(fraction=1))
    assert chosen(pool.state) == [tuple(even)]
    assert high


GUARANTEED = POLICY.replace("max_suspended", "guarantee = {}\nmax_suspended")


@pytest.mark.parametrize(
    ("guarantee", "spare", "gives_way"),
    [("0.5", UNIT // 2, 1), ("0.501", UNIT * 499 // 1000, 0), ("1", 0, 0), ("2", -UNIT, 0)],
)
def test_a_class_can_do_without_what_is_above_its_guarantee(
    guarantee: str, spare: int, gives_way: int
) -> None:
    """Of running leases: not of suspended or ended ones."""
    pool = small(GUARANTEED.format(guarantee), gpu_count=4)
    leases = [pool.hold_for("ada", (0, 40)), pool.hold_for("bob", (1, 40))]
    away, ended = pool.hold_for("ada", (2, 40)), pool.hold_for("ada", (3, 40))
    assert pool.do(c.SuspendLease(away, "", "ada")).ok
    assert pool.do(c.EndLease(ended, "over")).ok
    rules = Rules(pool.state)
    assert rules.spare("night") == spare
    assert rules.spare("day") is None, "it has no guarantee"
    held = [pool.state.leases[each] for each in leases]
    assert [rules.keep_guarantees(held[:n]) for n in range(3)] == [
        True,
        gives_way >= 1,
        gives_way >= 2,
    ]


def test_a_lease_that_is_resuming_counts_as_running_again() -> None:
    pool = small(GUARANTEED.format("0.5"), gpu_count=1)
    lease = pool.hold_for("ada", (0, 40))
    assert Rules(pool.state).spare("night") == 0
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    assert Rules(pool.state).spare("night") == -UNIT // 2
    pool.confirm(lease)
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    assert pool.phase(lease) == "resuming"
    assert Rules(pool.state).spare("night") == 0


def test_a_class_of_which_nothing_runs_has_nothing_to_spare() -> None:
    pool = small(GUARANTEED.format("1"))
    assert Rules(pool.state).spare("night") == -UNIT


@pytest.mark.parametrize(("more", "kept"), [(-1, True), (0, True), (1, False)])
def test_a_class_keeps_its_guarantee_to_the_unit(more: int, kept: bool) -> None:
    pool = small(GUARANTEED.format("0.5"))
    leases = [pool.hold_for("ada", (0, 40)), pool.hold_for("bob", (1, 40))]
    rules = Rules(pool.state)
    assert rules.spare("night") == UNIT // 2
    first, second = (pool.state.leases[each] for each in leases)
    half = replace(first, units={A: UNIT // 4, B: UNIT // 4 + more})
    assert rules.keep_guarantees([half]) is kept
    parts = [replace(each, units={A: UNIT // 4}) for each in (first, second)]
    parts[1] = replace(parts[1], units={A: UNIT // 4 + more})
    assert rules.keep_guarantees(parts) is kept


@pytest.mark.parametrize(
    ("change", "policy", "why"),
    [
        ({}, POLICY, ""),
        ({}, POLICY.replace("preemptible = true", "preemptible = true\npriority = 9"), ""),
        (
            {},
            POLICY.replace("preemptible = true", "preemptible = true\npriority = 10"),
            "its priority 10 is not lower than 10",
        ),
        (
            {},
            POLICY.replace("preemptible = true", "preemptible = true\npriority = 11"),
            "its priority 11 is not lower than 10",
        ),
        (
            {},
            POLICY.replace("preemptible = true", "preemptible = false"),
            "neither it nor its class is preemptible "
            "(policy v1, line 4: [class.night] preemptible)",
        ),
        (
            {},
            POLICY.replace("preemptible = true\n", ""),
            "neither it nor its class is preemptible",
        ),
        ({"preemptible": True}, POLICY.replace("preemptible = true", "preemptible = false"), ""),
        ({"preemptible": True}, POLICY.replace("preemptible = true\n", ""), ""),
        ({"end_reason": "over"}, POLICY, "it ends"),
        ({"parts": {A: PartStatus.ENDING}}, POLICY, "it ends"),
        ({"parts": {A: PartStatus.HELD, B: PartStatus.FREED}}, POLICY, "it ends"),
        (
            {},
            GUARANTEED.format("0.501"),
            "class night keeps 0.501 GPUs (policy v1, line 5: [class.night] guarantee)",
        ),
        ({}, GUARANTEED.format("0.5"), ""),
    ],
)
def test_why_a_lease_may_not_be_suspended(change: dict[str, object], policy: str, why: str) -> None:
    pool = small(policy)
    lease, _ = pool.hold_for("ada", (0, 40)), pool.hold_for("bob", (1, 40))
    rules = Rules(pool.state)
    entry = entry_of(rules, "boss", pool.request())
    known = replace(pool.state.leases[lease], **change)  # pyright: ignore[reportArgumentType]
    assert rules.objection(known, entry) == why


def test_a_lease_of_a_server_that_nobody_reaches_is_not_suspended() -> None:
    pool = small(gpu_count=1)
    lease = pool.grant("ada")
    assert pool.do(c.ServerContact(A, ONE, reachable=False)).ok
    rules = Rules(pool.state)
    entry = entry_of(rules, "boss", pool.request())
    assert rules.objection(pool.state.leases[lease], entry) == "server a is not reachable"


# --- the servers ----------------------------------------------------------------------------------


def test_a_request_for_one_server_gets_no_gpus_of_two() -> None:
    pool = Preempting(POLICY, gpu_count=2)
    for server in (A, B):
        hold_on(pool, "boss", (server, 0), gib=80)
        hold_on(pool, "ada", (server, 1), gib=80)
    request = pool.request(2)
    pool.wait("boss", request)
    assert preemptions(pool.state) == ()
    across = replace(pool.request(2), across=True)
    pool.wait("boss", across)
    [found] = preemptions(pool.state)
    assert (found.entry.request, len(found.leases)) == (across, 2)


def test_of_servers_where_as_much_is_moved_the_lower_priority_gives_way() -> None:
    pool = Preempting(DAY_TOO, gpu_count=1)
    hold_on(pool, "cy", (A, 0), gib=80)
    lease = hold_on(pool, "ada", (B, 0), gib=80)
    pool.wait("boss", pool.request())
    assert chosen(pool.state) == [(lease,)]


@pytest.mark.parametrize("on_a", [70, 50])
def test_servers_that_lack_the_least_are_tried_first(
    on_a: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SERVERS_MAX, 1)
    pool = Preempting(POLICY, gpu_count=1)
    leases = {
        A: hold_on(pool, "ada", (A, 0), gib=on_a),
        B: hold_on(pool, "ada", (B, 0), gib=60),
    }
    pool.wait("boss", pool.request(fraction=1))
    assert chosen(pool.state) == [(leases[B if on_a > 60 else A],)]


def test_a_gpu_with_more_free_than_is_needed_makes_up_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the first server 40 GiB are missing on one GPU, and on the second 30 on each."""
    monkeypatch.setattr(SERVERS_MAX, 1)
    pool = Preempting(POLICY, gpu_count=2)
    first = hold_on(pool, "ada", (A, 0), gib=80)
    for gpu in (0, 1):
        hold_on(pool, "ada", (B, gpu), gib=70)
    pool.wait("boss", pool.request(2, memory=40 * GIB))
    assert chosen(pool.state) == [(first,)]


# --- many leases ----------------------------------------------------------------------------------


def spanning(pool: Preempting) -> tuple[LeaseId, list[LeaseId]]:
    """Hold one lease that clears two GPUs, and one on each of them that clears it more cheaply."""
    both = pool.hold_for("ada", (0, 30), (1, 30))
    return both, [pool.hold_for("ada", (gpu, 40)) for gpu in (0, 1)]


def test_few_leases_are_compared_in_all_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many are not: there each GPU is cleared as cheaply as it can be by itself."""
    for most, exact in ((3, True), (2, False)):
        monkeypatch.setattr(LEASES_MAX, most)
        pool = small()
        both, each = spanning(pool)
        pool.wait("boss", pool.request(2, memory=40 * GIB))
        assert chosen(pool.state) == [(both,) if exact else tuple(each)]


def test_a_lease_that_holds_nothing_that_is_missing_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third GPU has just as much free as is needed."""
    monkeypatch.setattr(LEASES_MAX, 3)
    pool = small(gpu_count=3)
    both, _ = spanning(pool)
    pool.hold_for("ada", (2, 40))
    pool.wait("boss", pool.request(3, memory=40 * GIB))
    assert chosen(pool.state) == [(both,)]


@pytest.mark.parametrize("others", [0, 9])
def test_what_turns_out_to_be_needless_is_left_out_of_several(others: int) -> None:
    """The first GPU is cleared cheaply, and then again with the second, by a lease on both."""
    pool = small(gpu_count=4)
    for gpu in (1, 2):
        pool.hold_for("boss", (gpu, 40))
    needless = pool.hold_for("ada", (0, 40))
    both = pool.hold_for("ada", (0, 40), (1, 40))
    third = pool.hold_for("ada", (2, 40))
    pool.hold_for("boss", (3, 60))
    for _ in range(others):
        pool.hold_for("ada", (3, 1))
    pool.wait("boss", pool.request(3, memory=40 * GIB))
    assert chosen(pool.state) == [(both, third)]
    assert needless not in chosen(pool.state)[0]


def test_a_gpu_that_is_full_of_small_leases_is_cleared_without_trying_their_sets() -> None:
    """There are as many sets as atoms in a piece of iron."""
    pool = small(gpu_count=1)
    leases = [pool.hold_for("ada", (0, 1)) for _ in range(80)]
    pool.wait("boss", pool.request(fraction=1))
    assert chosen(pool.state) == [tuple(leases)]


@pytest.mark.parametrize("most", [10, 0])
def test_a_choice_with_a_lease_that_it_does_not_need_is_none(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LEASES_MAX, most)
    pool = small(DAY_TOO)
    first = pool.hold_for("ada", (0, 60))
    needless, other = pool.hold_for("bob", (1, 10)), pool.hold_for("cy", (1, 60))
    rules = Rules(pool.state)
    entry = entry_of(rules, "boss", pool.request(memory=40 * GIB))

    def with_one(lease: LeaseId) -> tuple[LeaseId, ...] | None:
        found = choose(rules, entry, frozenset(), pool.state.leases[lease])
        return found.leases if found is not None else None

    assert with_one(first) == (first,)
    assert with_one(other) == (other,)
    assert with_one(needless) is None


@pytest.mark.parametrize("most", [10, 0])
def test_a_lease_that_may_not_give_way_is_part_of_no_choice(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LEASES_MAX, most)
    pool = small()
    pool.hold_for("ada", (0, 80))
    protected = pool.hold_for("cy", (1, 80))
    rules = Rules(pool.state)
    entry = entry_of(rules, "boss", pool.request())
    assert choose(rules, entry, frozenset()) is not None
    assert choose(rules, entry, frozenset(), pool.state.leases[protected]) is None
    taken = frozenset({(A, GpuId(f"{A}-0"))})
    assert choose(rules, entry, taken) is None


def test_the_minimum_run_time_is_over_at_its_end() -> None:
    pool = small(POLICY.replace("max_suspended", "min_run_time = '10m'\nmax_suspended"), 1)
    lease = pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    assert pool.lead()
    pool.confirm(lease)
    assert pool.do(c.CancelRequest(request.id, "no more", "boss")).ok
    pool.lead()
    pool.confirm(lease)
    pool.later(10 * MINUTE_MS - 1)
    again = pool.request()
    pool.wait("boss", again)
    assert preemptions(pool.state) == ()
    pool.later(1)
    assert chosen(pool.state) == [(lease,)]


def test_nothing_is_suspended_where_strangers_have_what_it_would_leave() -> None:
    pool = small(gpu_count=1)
    pool.hold_for("ada", (0, 40))
    for gib, chosen_ones in ((60, 0), (40, 1)):
        reading = c.GpuReading(gib * GIB, "")
        assert pool.do(c.ReportGpus(A, ONE, {GpuId(f"{A}-0"): reading})).ok
        pool.wait("boss", pool.request(memory=40 * GIB))
        assert len(preemptions(pool.state)) == chosen_ones
