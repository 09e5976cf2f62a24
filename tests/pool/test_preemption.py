"""Preemption by policy: suspended leases, the users before them, durations, and exceptions."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, ONE, A, B, Pool, upgraded
from tests.properties import examples

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, TokenId
from gpupool.pool.model.policy import MILLI
from gpupool.pool.model.state import Partition, PoolState, Request, Waiting
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.reconcile import due_resumptions, due_suspensions
from gpupool.pool.scheduling.fairness import reserved_for_others
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.policy_explain import explain
from gpupool.pool.scheduling.preemption import Rules, is_due, preemptions

POLICY = """
[class.night]
users = ["ada", "bob"]
preemptible = true
max_suspended = "4h"
[class.day]
users = ["cy"]
priority = 5
[class.staff]
users = ["boss"]
priority = 10
"""
MINUTE_MS = 60_000


class Preempting(Pool):
    """A pool with a leader that does its duties when told to, with servers of this version."""

    def __init__(self, policy: str = "", *, gpu_count: int = 4) -> None:
        super().__init__(policy, gpu_count=gpu_count)
        upgraded(self.machine)

    @property
    def now(self) -> int:
        return int(self.now_ms)

    def wait(self, user: str, request: Request) -> None:
        assert self.do(c.Wait(request, user, TokenId(user), "busy")).ok

    def suspensions(self) -> list[LeaseId]:
        return [each.lease for each in due_suspensions(self.state, self.now)]

    def lead(self) -> list[c.Command]:
        """Propose the leader's commands, and return the accepted ones."""
        now, state = self.now, self.state
        suspensions = due_suspensions(state, now)
        due = due_resumptions(state, now, {s.for_request for s in suspensions} - {None})
        return [each for each in (*suspensions, *due) if self.do(each).ok]

    def confirm(self, lease: LeaseId) -> None:
        """Confirm the suspension or resumption of a lease on each of its servers."""
        found = self.state.leases[lease]
        assert found.suspension is not None
        goes_on = found.suspension.state is SuspensionState.RESUMING
        for server in found.parts:
            number = found.suspension.number
            command: c.Command = c.ConfirmSuspended(lease, server, ONE, number, GIB)
            if goes_on:
                command = c.ConfirmResumed(lease, server, ONE, number)
            assert self.do(command).ok

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.do(c.Tick())

    def phase(self, lease: LeaseId) -> str:
        found = self.state.leases[lease].suspension
        return found.state.value if found is not None else "held"

    def hold_for(self, user: str, *parts: tuple[int, int], preemptible: bool = False) -> LeaseId:
        """Grant a lease of so many GiB on these GPUs of the first server."""
        memory = parts[0][1] * GIB
        request = Request(
            self.request().id, len(parts), memory=memory, preemptible=preemptible, across=True
        )
        places = tuple(Partition(A, GpuId(f"{A}-{gpu}"), memory) for gpu, _ in parts)
        command = c.Grant(request, user, TokenId(user), bytes(32), places, {A: ONE})
        result = self.do(command)
        assert result.lease is not None, result
        return result.lease


def small(policy: str = POLICY, gpu_count: int = 2) -> Preempting:
    """Return a pool of one server with GPUs of 80 GiB; the other grants nothing."""
    pool = Preempting(policy, gpu_count=gpu_count)
    assert pool.do(c.DrainServer(B, "for the test", "root")).ok
    return pool


def test_a_request_of_higher_priority_gets_its_gpu_and_gives_it_back() -> None:
    pool = small()
    first, second = pool.grant("ada"), pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    [order] = pool.lead()
    assert isinstance(order, c.SuspendLease)
    why = "a request of boss with priority 10 goes first"
    assert order == c.SuspendLease(first, why, for_request=request.id)
    assert pool.lead() == [], "one is enough"
    assert (pool.phase(first), pool.phase(second)) == ("suspending", "held")
    pool.confirm(first)
    assert pool.lead() == [], "it stays away while the request waits"
    taken = pool.do(pool.claim("boss", request))
    assert taken.lease is not None
    assert pool.lead() == []
    pool.end(taken.lease)
    assert pool.lead() == [c.ResumeLease(first)]
    pool.confirm(first)
    assert pool.phase(first) == "held"


def test_what_is_freed_is_kept_for_the_request() -> None:
    pool = small(gpu_count=1)
    lease = pool.grant("ada")
    request = pool.request()
    pool.wait("cy", request)
    pool.lead()
    pool.confirm(lease)
    for user in ("ada", "bob", "cy"):
        other = pool.request(fraction=0.25)
        kept = reserved_for_others(pool.state, other.id, user)
        assert kept is not None
        assert kept.entry.request.id == request.id
        refusal = pool.do(replace(pool.claim("boss", other), user=user, token=TokenId(user)))
        assert refusal.why == "cy has waited 0 s for these GPUs and goes first"
    assert reserved_for_others(pool.state, pool.request().id, "boss") is None, "higher still"
    assert pool.do(c.CancelRequest(request.id, "no more", "cy")).ok
    assert pool.lead() == [c.ResumeLease(lease)], "its request is gone"


@pytest.mark.parametrize(
    ("policy", "user", "why"),
    [
        ("priority = 5", "cy", ""),
        ("preemptible = false", "cy", "neither it nor its class is preemptible (policy v1, line 4"),
        ("", "cy", "neither it nor its class is preemptible"),
        ("preemptible = true\nguarantee = 0.5", "cy", "class c keeps 0.5 GPUs (policy v1, line 5:"),
    ],
)
def test_what_the_rules_protect_is_never_chosen(policy: str, user: str, why: str) -> None:
    text = f"[class.c]\nusers = ['cy']\n\n{policy}\n[class.s]\nusers = ['boss']\npriority = 5\n"
    pool = small(text, gpu_count=1)
    lease = pool.grant(user)
    request = pool.request()
    pool.wait("boss", request)
    assert pool.lead() == []
    _, lines = explain(pool.state, "boss", request)
    said = f"lease {lease:04x} of cy would not: {why}" in "\n".join(lines)
    assert said == bool(why), "of equals nothing is said"
    order = c.SuspendLease(lease, "", for_request=request.id)
    assert pool.do(order).why == "the policy's rules do not ask for it now", "nor by an old leader"


def test_a_request_can_say_that_it_is_preemptible() -> None:
    pool = small("[class.s]\nusers = ['boss']\npriority = 1\n", gpu_count=2)
    pool.hold_for("cy", (0, 80))
    willing = pool.hold_for("cy", (1, 80), preemptible=True)
    pool.wait("boss", pool.request())
    assert pool.suspensions() == [willing]


def test_the_minimum_run_time_is_between_two_suspensions() -> None:
    pool = small(POLICY.replace("max_suspended", "min_run_time = '10m'\nmax_suspended"), 1)
    lease = pool.grant("ada")
    for _ in range(2):
        request = pool.request()
        pool.wait("boss", request)
        assert pool.lead(), "the first may come at once"
        pool.confirm(lease)
        assert pool.do(c.CancelRequest(request.id, "no more", "boss")).ok
        pool.lead()
        pool.confirm(lease)
        again = pool.request()
        pool.later(9 * MINUTE_MS)
        pool.wait("boss", again)
        assert pool.lead() == []
        text = "it was resumed 9m ago, and runs for 10m at least"
        assert text in "\n".join(explain(pool.state, "boss", again)[1])
        assert pool.do(c.CancelRequest(again.id, "no more", "boss")).ok
        pool.later(MINUTE_MS)


@pytest.mark.parametrize(("by", "gives_way"), [("ada", True), ("root", False)])
def test_a_user_keeps_no_lease_from_giving_way_by_suspending_it(by: str, gives_way: bool) -> None:
    pool = small(POLICY.replace("max_suspended", "min_run_time = '10m'\nmax_suspended"), 1)
    lease = pool.grant("ada")
    assert pool.do(c.SuspendLease(lease, "a pause", by, operator=by == "root")).ok
    pool.confirm(lease)
    assert pool.do(c.ResumeLease(lease, by, operator=by == "root")).ok
    pool.confirm(lease)
    pool.later(9 * MINUTE_MS)
    pool.wait("boss", pool.request())
    assert pool.suspensions() == [lease] * gives_way


def test_apply_judges_by_its_own_instant_whatever_was_asked_before() -> None:
    """A server that has looked a moment ago must not answer otherwise than one that has not."""
    pool = small(gpu_count=1)
    lease = pool.grant("ada")
    first = pool.request()
    pool.wait("boss", first)
    pool.lead()
    pool.confirm(lease)
    pool.later(500)
    assert pool.do(c.CancelRequest(first.id, "no more", "boss")).ok
    pool.lead()
    pool.confirm(lease)
    pool.later(10 * MINUTE_MS - 200)
    request = pool.request()
    pool.wait("boss", request)
    assert pool.suspensions() == []
    assert not is_due(pool.state, lease, request.id)
    soon = replace(pool.state, now=Milliseconds(pool.state.now + 300))
    assert pool.state.now // 1000 == soon.now // 1000
    assert is_due(soon, lease, request.id)


def test_a_lease_that_could_not_be_suspended_is_left_alone_and_another_chosen() -> None:
    pool = small()
    first, second = pool.hold_for("ada", (0, 80)), pool.hold_for("bob", (1, 80))
    pool.wait("boss", pool.request())
    [order] = pool.lead()
    chosen = next(each for each in (first, second) if pool.phase(each) == "suspending")
    other = second if chosen == first else first
    assert isinstance(order, c.SuspendLease)
    number = pool.state.leases[chosen].suspension
    assert number is not None
    assert pool.do(c.RefuseSuspension(chosen, A, ONE, number.number, "no memory left")).ok
    pool.confirm(chosen)
    assert pool.suspensions() == [other]
    lines = explain(pool.state, "boss", pool.request())[1]
    assert "it could not be suspended lately: no memory left" in "\n".join(lines)


def test_the_fewest_bytes_then_the_lowest_priority_then_the_latest_resumed() -> None:
    text = POLICY.replace("priority = 5", "priority = 5\npreemptible = true")
    for sizes, users, expected in (
        ((60, 40), ("ada", "ada"), 1),
        ((60, 60), ("cy", "ada"), 1),
        ((60, 60), ("ada", "cy"), 0),
    ):
        pool = small(text)
        held = [pool.hold_for(users[n], (n, sizes[n])) for n in range(2)]
        pool.wait("boss", pool.request(fraction=1))
        assert pool.suspensions() == [held[expected]]
    pool = small(text)
    pool.grant("ada")
    pool.later(1000)
    younger = pool.grant("ada")
    pool.wait("boss", pool.request())
    assert pool.suspensions() == [younger]


def test_nobody_is_suspended_for_memory_that_is_about_to_be_free() -> None:
    """Found by simulation: a lease that ended while it was suspended was replaced by another."""
    pool = small(gpu_count=2)
    pool.grant("ada")
    ends = pool.grant("bob")
    pool.wait("boss", pool.request())
    assert pool.do(c.EndLease(ends, "done", "bob")).ok
    assert pool.suspensions() == []
    pool = small(gpu_count=2)
    first, second = pool.grant("ada"), pool.grant("bob")
    pool.wait("boss", pool.request())
    pool.lead()
    assert pool.phase(first) == "suspending"
    assert pool.do(c.EndLease(first, "Ctrl-C", "ada")).ok
    assert pool.lead() == []
    assert pool.phase(second) == "held"


def test_several_requests_each_get_their_own() -> None:
    pool = small()
    held = {pool.grant("ada"), pool.grant("bob")}
    for user in ("cy", "boss", "boss"):
        pool.wait(user, pool.request())
    orders = pool.lead()
    assert {each.lease for each in orders if isinstance(each, c.SuspendLease)} == held
    served = {each.for_request for each in orders if isinstance(each, c.SuspendLease)}
    users = {pool.state.waiting[each].user for each in served if each is not None}
    assert users == {"boss"}


def test_across_servers_and_with_several_gpus() -> None:
    pool = Preempting(POLICY, gpu_count=1)
    first, second = pool.grant("ada"), pool.grant("bob")
    request = replace(pool.request(2), across=True)
    pool.wait("boss", request)
    assert len(pool.lead()) == 2
    pool.confirm(first)
    assert pool.lead() == []
    assert pool.phase(first) == "suspended", "it waits for the other"
    pool.confirm(second)
    assert pool.do(pool.claim("boss", request)).ok


def test_a_priority_that_the_policy_has_taken_away_counts_no_more() -> None:
    pool = small(gpu_count=1)
    pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    assert pool.suspensions()
    pool.put(POLICY.replace("priority = 10", "priority = 0"))
    assert pool.suspensions() == [], "its place in the line says 10 until it is renewed"


def test_what_does_not_suffice_any_more_goes_on() -> None:
    pool = Preempting(POLICY, gpu_count=1)
    first, second = pool.grant("ada"), pool.grant("bob")
    pool.wait("boss", replace(pool.request(2), across=True))
    pool.lead()
    pool.confirm(first)
    found = pool.state.leases[second].suspension
    assert found is not None
    server = next(iter(pool.state.leases[second].parts))
    assert pool.do(c.RefuseSuspension(second, server, ONE, found.number, "MIG mode")).ok
    assert pool.lead() == [c.ResumeLease(first)]


def test_nothing_is_suspended_for_a_limit_or_where_it_does_not_help() -> None:
    pool = small(POLICY.replace("priority = 10", "priority = 10\nmax_gpus = 0.5"), 1)
    pool.grant("ada")
    pool.wait("boss", pool.request())
    assert pool.lead() == []
    pool = small(gpu_count=2)
    pool.grant("ada")
    pool.grant("boss")
    pool.wait("boss", pool.request(2))
    assert pool.lead() == [], "the other GPU stays the boss's"


def test_a_lease_suspended_for_too_long_ends_with_a_reason() -> None:
    pool = small(gpu_count=1)
    lease = pool.grant("ada")
    request = pool.request()
    pool.wait("boss", request)
    pool.lead()
    pool.confirm(lease)
    assert pool.do(pool.claim("boss", request)).ok
    pool.later(4 * 60 * MINUTE_MS - 1)
    assert pool.lead() == []
    pool.later(1)
    [end] = pool.lead()
    why = "it was suspended for 4h, the longest time (policy v1, line 5: [class.night] "
    assert end == c.EndLease(lease, why + "max_suspended)", away=True)
    assert pool.state.leases[lease].end_reason.startswith("it was suspended for 4h")


def test_a_lease_that_was_resumed_before_the_end_for_a_too_long_suspension_goes_on() -> None:
    """Seed 10194823: the resumption was in the log, and not committed when the end was proposed."""
    pool = small(gpu_count=1)
    lease, request = pool.grant("ada"), pool.request()
    pool.wait("boss", request)
    pool.lead()
    pool.confirm(lease)
    assert pool.do(pool.claim("boss", request)).ok
    pool.later(4 * 60 * MINUTE_MS)
    before = pool.state
    [end] = pool.lead()
    assert isinstance(end, c.EndLease)
    assert end.away
    assert not pool.state.leases[lease].held
    pool.machine.state = before
    pool.end(next(each for each in before.leases if each != lease))
    assert pool.do(c.ResumeLease(lease)).ok
    assert pool.do(end).ok
    assert pool.state.leases[lease].held


NIGHT = """
[class.night]
users = ["ada", "bob"]
max_gpus = 2
[[window]]
name = "day"
from = "08:00"
to = "20:00"
leases = "suspend"
[window.class.night]
max_gpus = 1
"""


def test_a_window_suspends_and_they_go_on_when_it_closes() -> None:
    pool = small(NIGHT)
    older, younger = pool.grant("ada"), pool.grant("bob")
    pool.go_to("2026-11-23T07:59:59")
    assert pool.lead() == []
    pool.go_to("2026-11-23T08:00:00")
    why = 'window "day" is open (policy v1, line 5)'
    assert pool.lead() == [c.SuspendLease(younger, why)]
    pool.confirm(younger)
    assert pool.lead() == []
    assert pool.phase(older) == "held"
    pool.go_to("2026-11-23T19:00:00")
    assert pool.lead() == []
    pool.go_to("2026-11-23T20:00:00")
    assert pool.lead() == [c.ResumeLease(younger)]
    pool.confirm(younger)
    assert pool.lead() == []


def test_a_starved_suspended_lease_has_its_gpus_kept_from_others() -> None:
    pool = small(gpu_count=1)
    lease = pool.hold_for("ada", (0, 60))
    request = Request(pool.request().id, 1, memory=60 * GIB)
    pool.wait("boss", request)
    pool.lead()
    pool.confirm(lease)
    taken = pool.do(pool.claim("boss", request))
    assert taken.lease is not None
    small_one = pool.do(pool.claim("bob", pool.request(memory=20 * GIB)))
    assert small_one.ok, "it takes nothing that the suspended one could have"
    assert small_one.lease is not None
    pool.later(pool.state.starved_after_ms)
    pool.end(small_one.lease)
    refused = pool.ask("bob", pool.request(memory=20 * GIB))
    whys = [each.why for each in refused if isinstance(each, NoOffer)]
    assert any("ada has waited longer and goes first" in why for why in whys)
    assert any(isinstance(each, Offer) for each in pool.ask("boss", pool.request(memory=GIB)))
    pool.end(taken.lease)
    assert pool.lead() == [c.ResumeLease(lease)]


def test_a_request_is_told_what_is_done_for_it() -> None:
    pool = small(gpu_count=1)
    pool.grant("boss", fraction=0.5)
    lease = pool.grant("ada", fraction=0.5)
    request = pool.request(fraction=0.5)
    assert explain(pool.state, "boss", request)[1][-2:] == (
        f"lease {lease:04x} of ada would be suspended for it: 40 GiB, priority 0, "
        "runs for 0s, never suspended",
        "priority 10 or more protects 1 of the leases",
    )
    assert not any("suspended" in line for line in explain(pool.state, "bob", request)[1])
    pool.wait("boss", request)
    pool.lead()
    whys = [each.why for each in pool.ask("boss", request) if isinstance(each, NoOffer)]
    assert any(why.endswith("; a lease of ada is being suspended for it") for why in whys)


# --- the choice, compared with all choices --------------------------------------------------------


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Preempting, Request]:
    """Return a pool full of leases of all kinds, and a request of the boss that waits."""
    guarantee = draw(st.sampled_from(["", "guarantee = 0.5\n", "guarantee = 1.25\n"]))
    text = POLICY.replace("max_suspended", f"{guarantee}max_suspended")
    pool = small(text.replace("priority = 5", "priority = 5\npreemptible = true"), 3)
    free = [80, 80, 80]
    for _ in range(draw(st.integers(1, 8))):
        gpus = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=2, unique=True))
        room = min(free[gpu] for gpu in gpus)
        size = min(room, draw(st.sampled_from([10, 20, 20, 40, 80])))
        if size:
            user = draw(st.sampled_from(["ada", "bob", "cy", "dee", "boss"]))
            pool.hold_for(user, *((gpu, size) for gpu in gpus), preemptible=draw(st.booleans()))
            for gpu in gpus:
                free[gpu] -= size
            pool.later(draw(st.sampled_from([0, 1000])))
    memory = draw(st.sampled_from([20, 50, 80])) * GIB
    request = Request(pool.request().id, draw(st.integers(1, 3)), memory=memory)
    pool.wait(draw(st.sampled_from(["boss", "cy"])), request)
    return pool, request


def startable(state: PoolState, request: Request, without: tuple[LeaseId, ...]) -> bool:
    free = {gpu.id: gpu.memory_free for gpu in state.servers[A].gpus.values()}
    for lease in without:
        for part in state.leases[lease].partitions:
            free[part.gpu] += part.memory
    return sum(each >= request.memory for each in free.values()) >= request.count


def forbidden(state: PoolState, entry: Waiting, chosen: tuple[LeaseId, ...]) -> bool:
    """Say by the policy's words alone whether a choice may not be made."""
    priorities = {"cy": 5, "boss": 10}
    night = [lease for lease in state.leases.values() if lease.user in ("ada", "bob")]
    rule = next((r for r in state.policy.rules if r.key == "guarantee"), None)
    left = sum(sum(each.units.values()) for each in night if each.id not in chosen)
    takes = any(state.leases[each].user in ("ada", "bob") for each in chosen)
    if rule is not None and left < rule.number * MILLI and takes:
        return True
    for lease in (state.leases[each] for each in chosen):
        if priorities.get(lease.user, 0) >= entry.priority:
            return True
        if lease.user == "dee" and not lease.preemptible:
            return True
    return False


@given(crowded())
@settings(max_examples=examples(30), deadline=None)
def test_the_choice_is_the_cheapest_allowed_one_and_no_larger_than_needed(
    found: tuple[Preempting, Request],
) -> None:
    pool, request = found
    state, entry = pool.state, pool.state.waiting[found[1].id]
    leases = list(state.leases)
    ways = [
        way
        for count in range(len(leases) + 1)
        for way in combinations(leases, count)
        if startable(state, request, way) and not forbidden(state, entry, way)
    ]
    [chosen] = preemptions(state) or [None]
    if () in ways:
        assert chosen is None or chosen.leases == ()
        return
    assert (chosen is not None) == bool(ways)
    if chosen is not None:
        rules = Rules(state)
        assert chosen.leases in ways
        costs = (rules.cost([state.leases[each] for each in way]) for way in ways)
        assert rules.cost([state.leases[each] for each in chosen.leases]) == min(costs)


@given(crowded())
@settings(max_examples=examples(30), deadline=None)
def test_among_many_leases_too_the_choice_is_allowed_and_minimal(
    found: tuple[Preempting, Request],
) -> None:
    pool, request = found
    state, entry = pool.state, pool.state.waiting[request.id]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpupool.pool.scheduling.preemption.EXACT_MAX", -1)
        many = preemptions(state)
    for chosen in many:
        assert startable(state, request, chosen.leases)
        assert not forbidden(state, entry, chosen.leases)
        for each in chosen.leases:
            rest = tuple(other for other in chosen.leases if other != each)
            assert not startable(state, request, rest)
