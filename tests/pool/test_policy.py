"""A policy's admissions and refusals, in offers and in ``apply``; times, notices, the order."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import (
    GIB,
    MONDAY_MS,
    A,
    B,
    Pool,
    at,
    parse,
    policy_commands,
    upgraded,
    zone,
)

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.policy import POLICY_COUNT_MAX, UNIT, Span, Usage
from gpupool.pool.model.state import STARVED_AFTER_MS, RequestId, TokenId, Waiting
from gpupool.pool.model.tables import WaitingTable
from gpupool.pool.policy.admission import time_text
from gpupool.pool.policy.policy_calendar import UTC, phase, to_utc
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.reconcile import plan_leader
from gpupool.pool.scheduling import fairness
from gpupool.pool.scheduling.fairness import reserved_for_others
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.transitions.leases import encryption_of
from gpupool.pool.transitions.policy_versions import unpack_text
from gpupool.pool.transitions.uploads import STAGED_LAPSE_MS

STUDENTS = """
[class.students]
users = ["ada", "bob"]
max_gpus = 3
max_gpus_per_user = 2
"""


# --- limits ---------------------------------------------------------------------------------------


def test_two_and_a_half_gpus_admit_one_and_two_times_three_quarters() -> None:
    pool = Pool("[defaults]\nmax_gpus = 2.5")
    for fraction in (1.0, 0.75, 0.75):
        pool.grant("ada", fraction=fraction)
    refusal = pool.refusal("ada", pool.request(fraction=0.05))
    assert refusal.kind == "busy"  # it helps when a lease ends
    assert refusal.why == (
        "ada may hold 2.5 GPUs (policy v1, line 2: [defaults] max_gpus); ada holds 2.5, "
        "this takes 0.05"
    )
    pool.grant("bob", fraction=0.05)


def test_a_limit_of_nothing_is_not_the_absence_of_a_limit() -> None:
    pool = Pool('[defaults]\nmax_leases = 0\n[user.bob]\nmax_leases = "none"')
    refusal = pool.refusal("ada", pool.request())
    assert refusal.kind == "denied"
    assert "ada may hold 0 leases" in refusal.why
    pool.grant("bob")


def test_no_rounding_admits_or_refuses_wrongly() -> None:
    # A capacity that nothing divides: a third of it, three times, is not more than all of it.
    pool = Pool("[defaults]\nmax_gpus = 0.9", capacity=(79 << 30) + 12345)
    for _ in range(3):
        pool.grant("ada", fraction=0.3)
    assert pool.refusal("ada", pool.request(memory=4 << 20)).kind == "busy"
    pool.grant("ada", memory=1 << 20)  # what rounding to whole MiB has left
    assert 0.8999 * UNIT < pool.state.usage["ada"].units <= 0.9 * UNIT


def test_more_than_a_limit_at_once_is_denied() -> None:
    pool = Pool(STUDENTS)
    refusal = pool.refusal("ada", pool.request(3))
    assert refusal.kind == "denied"
    assert refusal.why == (
        "ada may hold 2 GPUs (policy v1, line 5: [class.students] max_gpus_per_user), "
        "and this takes 3"
    )
    # The claim of a client that does not ask is refused alike.
    result = pool.do(pool.claim("ada", pool.request(3), anyway="boss"))
    assert (result.kind, result.why) == ("denied", refusal.why)


def test_a_class_limit_is_for_all_members_together() -> None:
    pool = Pool(STUDENTS)
    pool.grant("ada", 2)
    pool.grant("bob", 1)
    refusal = pool.refusal("bob", pool.request())
    assert refusal.kind == "busy"
    assert refusal.why == (
        "class students may hold 3 GPUs together (policy v1, line 4: [class.students] max_gpus); "
        "its members hold 3, this takes 1"
    )
    pool.grant("cy", 2)  # of no class


def test_a_user_who_has_a_limit_is_refused_by_the_kind_of_gpu_as_well() -> None:
    pool = Pool("[user.ada]\ngpus = ['*H100*']\nmax_gpus = 4\n")
    refusal = pool.refusal("ada", pool.request())
    assert refusal.kind == "denied"
    assert "may use GPUs *H100* (policy v1, line 2: [user.ada] gpus)" in refusal.why


def test_the_pools_limit_is_for_all_users_together() -> None:
    pool = Pool('[pool]\nmax_memory = "100G"\n')
    pool.grant("ada", memory=60 * GIB)
    pool.grant("bob", memory=40 * GIB)
    refusal = pool.refusal("cy", pool.request(memory=1 << 20))
    assert (
        "all users may hold 100 GiB together (policy v1, line 2: [pool] max_memory)" in refusal.why
    )
    assert pool.refusal("cy", pool.request(memory=101 << 30)).kind in ("denied", "never")


def test_leases_are_counted_too() -> None:
    pool = Pool("[defaults]\nmax_leases = 2\n[user.boss]\nmax_leases = 'none'")
    first = pool.grant("ada", fraction=0.1)
    pool.grant("ada", fraction=0.1)
    assert "ada may hold 2 leases" in pool.refusal("ada", pool.request(fraction=0.1)).why
    pool.end(first)
    pool.grant("ada", fraction=0.1)
    for _ in range(3):
        pool.grant("boss", fraction=0.1)


def test_a_users_own_rule_beats_the_class_and_the_defaults() -> None:
    pool = Pool(f"[defaults]\nmax_gpus = 1\n{STUDENTS}[user.ada]\nmax_gpus = 3")
    pool.grant("ada", 3)
    assert pool.refusal("bob", pool.request(3)).kind == "denied"
    pool.grant("cy")
    assert "[defaults]" in pool.refusal("cy", pool.request()).why


def test_a_lease_across_servers_counts_as_a_whole_until_each_part_is_free() -> None:
    pool = Pool("[defaults]\nmax_gpus = 6")
    request = replace(pool.request(6), across=True)
    lease = pool.do(pool.claim("ada", request)).lease
    assert lease is not None
    assert pool.state.usage["ada"] == Usage(6 * UNIT, 480 * GIB, 1)
    pool.do(c.EndLease(lease, "over"))
    assert pool.state.usage["ada"].units == 6 * UNIT  # its workers may still live
    [first, second] = pool.state.leases[lease].parts
    pool.do(c.FreeLease(lease, first, pool.state.servers[first].incarnation))
    assert pool.state.usage["ada"].leases == 1
    pool.do(c.FreeLease(lease, second, pool.state.servers[second].incarnation))
    assert "ada" not in pool.state.usage


def test_what_runs_stays_when_a_limit_is_lowered() -> None:
    pool = Pool("[defaults]\nmax_gpus = 4")
    lease = pool.grant("ada", 4)
    pool.put("[defaults]\nmax_gpus = 1")
    assert pool.state.leases[lease].held
    assert plan_leader(pool.state, {}, pool.now_ms + 10**9, A) == ()
    assert pool.refusal("ada", pool.request()).kind == "busy"


# --- places ---------------------------------------------------------------------------------------


def test_a_class_uses_the_models_it_may() -> None:
    pool = Pool('[class.x]\nusers = ["ada"]\ngpus = ["*a100*"]')
    [other] = [a for a in pool.ask("ada", pool.request(2)) if not isinstance(a, Offer)]
    assert (other.server, other.never_here) == (A, True)
    assert other.why == "the pool's rules let ada use none of its GPUs; another server has more"
    lease = pool.grant("ada", 2)
    assert {p.server for p in pool.state.leases[lease].partitions} == {B}
    result = pool.do(pool.claim("ada", pool.request(4), anyway="bob"))
    assert result.kind == "denied"
    assert "ada of class x may not use GPU 0 of a (NVIDIA H200)" in result.why
    assert "policy v1, line 3: [class.x] gpus" in result.why


def test_what_no_admitted_gpu_can_serve_is_denied_with_the_rule() -> None:
    pool = Pool('[user.ada]\nservers = ["rack=9", "name=c*"]')
    refusal = pool.refusal("ada", pool.request())
    assert refusal.kind == "denied"
    assert (
        "ada may use servers rack=9, name=c* (policy v1, line 2: [user.ada] servers)" in refusal.why
    )
    pool.put('[user.ada]\nservers = ["name=b"]')
    pool.grant("ada")


# --- windows --------------------------------------------------------------------------------------

NIGHT = """
[class.students]
users = ["ada", "bob"]
max_gpus_per_user = 1
[[window]]
name = "night"
from = "22:00"
to = "06:00"
zone = "Europe/Berlin"
leases = "end"
grace = "15m"
[window.class.students]
max_gpus_per_user = 4
"""


def test_a_window_changes_a_limit_while_it_is_open() -> None:
    pool = Pool(NIGHT)
    pool.go_to("2026-11-23 12:00")
    refusal = pool.refusal("ada", pool.request(2))
    assert refusal.kind == "busy"  # not denied: it is worth waiting
    assert refusal.why.endswith("and this takes 2; allowed from Mon 22:00 (Europe/Berlin) on")
    assert pool.refusal("ada", pool.request(4)).kind == "busy"
    pool.go_to("2026-11-23 21:00")  # 22:00 in Berlin
    pool.grant("ada", 2)
    pool.go_to("2026-11-24 04:59")
    pool.grant("bob", 2)
    pool.go_to("2026-11-24 05:00")
    assert pool.refusal("bob", pool.request()).kind == "busy"


def test_more_than_any_window_allows_is_denied() -> None:
    pool = Pool(NIGHT.replace("max_gpus_per_user = 4", "max_gpus_per_user = 2"))
    assert pool.refusal("ada", pool.request(3)).kind == "denied"


def test_it_is_allowed_from_when_a_window_lifts_every_limit_that_is_too_low() -> None:
    pool = Pool(
        "[defaults]\nmax_gpus = 1\nmax_memory = '80GiB'\n"
        "[[window]]\nfrom = '08:00'\nto = '09:00'\n[window.defaults]\nmax_gpus = 4\n"
    )
    assert pool.refusal("ada", pool.request(2)).kind == "denied"
    pool.put(
        "[defaults]\nmax_gpus = 1\nmax_memory = '80GiB'\n"
        "[[window]]\nfrom = '08:00'\nto = '12:00'\n[window.defaults]\nmax_gpus = 4\n"
        "[[window]]\nfrom = '10:00'\nto = '12:00'\n[window.defaults]\nmax_memory = '320GiB'\n"
    )
    refusal = pool.refusal("ada", pool.request(2))
    assert refusal.kind == "busy"
    assert refusal.why.endswith("allowed from Mon 10:00 (UTC) on")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "Mon 00:00"),
        (59_999, "Mon 00:00"),
        (60_000, "Mon 00:01"),
        (3_599_999, "Mon 00:59"),
        (3_600_000, "Mon 01:00"),
        (86_399_999, "Mon 23:59"),
        (86_400_000, "Tue 00:00"),
        (7 * 86_400_000 - 1, "Sun 23:59"),
        (7 * 86_400_000, "Mon 00:00"),
    ],
)
def test_a_time_is_told_by_the_minute_that_has_begun(ms: int, text: str) -> None:
    assert time_text(UTC, MONDAY_MS + ms) == f"{text} (UTC)"


def test_a_window_that_closes_gives_notice_and_grace_to_what_it_allowed() -> None:
    pool = Pool(NIGHT)
    pool.go_to("2026-11-23 23:00")
    small, large = pool.grant("ada", 1), pool.grant("ada", 3)
    other = pool.grant("cy", 4)
    closing = at("2026-11-24 05:00")
    assert plan_leader(pool.state, {}, closing - 1, A) == ()
    [notice] = plan_leader(pool.state, {}, closing, A)
    assert notice == c.GiveNotice(large)  # the oldest stays: it fits into what the day allows
    pool.now_ms = closing + 500
    assert pool.do(notice).ok
    lease = pool.state.leases[large]
    assert lease.held
    assert lease.ends_at == closing + 500 + 900_000
    assert lease.notice_at == closing + 500
    assert lease.ends_why == 'window "night" has closed (policy v1, line 5)'
    assert pool.do(notice).kind == "conflict"  # once is enough
    assert plan_leader(pool.state, {}, lease.ends_at - 1, A) == ()
    [end] = plan_leader(pool.state, {}, lease.ends_at, A)
    assert end == c.EndLease(large, lease.ends_why)
    pool.do(end)
    assert not pool.state.leases[large].held
    assert pool.state.leases[small].held
    assert pool.state.leases[other].held


def test_leases_stay_when_a_window_closes_unless_it_says_otherwise() -> None:
    pool = Pool(NIGHT.replace('leases = "end"\ngrace = "15m"\n', ""))
    pool.go_to("2026-11-23 23:00")
    pool.grant("ada", 4)
    assert plan_leader(pool.state, {}, at("2026-11-24 12:00"), A) == ()


def test_a_window_that_takes_away_gives_notice_when_it_opens() -> None:
    pool = Pool(
        "[defaults]\nmax_gpus = 4\n[[window]]\nfrom = '08:00'\nto = '18:00'\nleases = 'end'\n"
        "grace = '5m'\ndays = ['mon']\n[window.defaults]\ngpus = ['*A100*']\n"
    )
    old, fine = pool.grant("ada", 4), pool.grant("bob", 4)
    assert {pool.state.leases[each].partitions[0].server for each in (old, fine)} == {A, B}
    wrong = old if pool.state.leases[old].partitions[0].server == A else fine
    assert plan_leader(pool.state, {}, at("2026-11-23 08:00"), A) == (c.GiveNotice(wrong),)


@pytest.mark.parametrize(("early_ms", "has_notice"), [(1, True), (0, False)])
def test_what_was_granted_once_a_window_was_open_is_not_ended_for_its_opening(
    early_ms: int, has_notice: bool
) -> None:
    """So its rules may be made stricter meanwhile, and leases that run by then stay."""
    text = (
        "[defaults]\nmax_gpus = 4\n[[window]]\nfrom = '08:00'\nto = '18:00'\nleases = 'end'\n"
        "grace = '5m'\n[window.defaults]\nmax_gpus = 3\n"
    )
    pool = Pool(text)
    pool.now_ms = at("2026-11-23 08:00") - early_ms
    lease = pool.grant("ada", 3)
    pool.go_to("2026-11-23 09:00")
    assert plan_leader(pool.state, {}, pool.now_ms, A) == ()
    pool.put(text.replace("max_gpus = 3", "max_gpus = 2"))
    notices = (c.GiveNotice(lease),) if has_notice else ()
    assert plan_leader(pool.state, {}, pool.now_ms, A) == notices


def test_a_server_that_gets_other_labels_changes_what_an_open_window_allows() -> None:
    """Found by simulation: servers disagreed, each by the questions it had been asked before."""
    pool = Pool(
        "[[window]]\nfrom = '08:00'\nto = '18:00'\nleases = 'end'\ngrace = '5m'\n"
        "[window.defaults]\nservers = ['rack=1', 'rack=2']\n"
    )
    lease = pool.grant("ada")
    server = pool.state.leases[lease].partitions[0].server
    pool.go_to("2026-11-23 09:00")
    assert plan_leader(pool.state, {}, pool.now_ms, A) == ()
    pool.do(c.LabelServer(server, {"rack": "3"}, (), "root"))
    assert plan_leader(pool.state, {}, pool.now_ms, A) == (c.GiveNotice(lease),)
    assert pool.do(c.GiveNotice(lease)).ok


def test_a_lost_leader_gives_notice_late_and_the_whole_grace() -> None:
    pool = Pool(NIGHT)
    pool.go_to("2026-11-23 23:00")
    lease = pool.grant("ada", 4)
    pool.now_ms = at("2026-11-24 09:00")  # four hours after the window has closed
    assert plan_leader(pool.state, {}, pool.now_ms, A) == (c.GiveNotice(lease),)
    pool.do(c.GiveNotice(lease))
    assert pool.state.leases[lease].ends_at == pool.now_ms + 900_000


@pytest.mark.parametrize(
    ("moment", "open_now"),
    [
        ("2026-03-29 00:59", True),  # 01:59, a minute before the clocks are put forward
        ("2026-03-29 01:00", True),  # 03:00, which 02:30 has become
        ("2026-03-29 03:59", True),
        ("2026-03-29 04:00", False),  # 06:00 in summer
        ("2026-10-25 03:59", True),  # it has become winter
        ("2026-10-25 05:00", False),
        ("2026-10-24 19:59", False),
        ("2026-10-24 20:00", True),  # 22:00 in summer
    ],
)
def test_windows_follow_the_clocks_of_their_zone(moment: str, open_now: bool) -> None:
    berlin = zone("Europe/Berlin")
    assert berlin is not None
    span = Span("Europe/Berlin", 22 * 3_600_000, 6 * 3_600_000)
    assert phase(span, berlin, at(moment)).holds is open_now


def test_a_time_that_clocks_skip_or_repeat() -> None:
    berlin = zone("Europe/Berlin")
    assert berlin is not None
    assert to_utc(berlin, at("2026-03-29 02:30")) == at("2026-03-29 01:00")
    assert to_utc(berlin, at("2026-10-25 02:30")) == at("2026-10-25 00:30")


def test_phases_meet_without_gaps_for_a_year() -> None:
    berlin = zone("Europe/Berlin")
    assert berlin is not None
    for span in (
        Span("Europe/Berlin", 22 * 3_600_000, 6 * 3_600_000, (4, 5)),
        Span("Europe/Berlin", 0, 86_400_000, (6,)),
        Span("Europe/Berlin", 2 * 3_600_000, 3 * 3_600_000),
    ):
        now, holds = MONDAY_MS, None
        for _ in range(100):
            found = phase(span, berlin, now)
            assert found.since <= now < found.until
            assert found.holds is not holds
            assert phase(span, berlin, found.until - 1).holds is found.holds
            now, holds = found.until, found.holds


def test_windows_that_meet_are_as_one_look_from_anywhere() -> None:
    """The rulebook remembers phases; it must not matter in which order it was asked."""
    text = NIGHT + "".join(
        f"[[window]]\nfrom = '{hour:02d}:00'\nto = '{hour + 2:02d}:30'\n"
        f"[window.defaults]\nmax_leases = {hour}\n"
        for hour in range(0, 20, 3)
    )
    pool = Pool(text)
    book = rulebook(pool.state.policy)
    times = [MONDAY_MS + n * 1_234_567 for n in range(120)]
    forward = [book.moment(now).active for now in times]
    backward = [book.moment(now).active for now in reversed(times)]
    assert forward == backward[::-1]
    assert len(set(forward)) > 5


# --- time -----------------------------------------------------------------------------------------


def test_a_lease_ends_when_its_longest_time_is_over() -> None:
    pool = Pool("[defaults]\nmax_lease_time = '8h'\nidle_timeout = '30m'")
    lease_id = pool.grant("ada")
    lease = pool.state.leases[lease_id]
    assert lease.idle_timeout_s == 1800
    assert lease.ends_at == pool.now_ms + 8 * 3_600_000
    assert lease.notice_at == lease.ends_at - 300_000
    assert plan_leader(pool.state, {}, lease.ends_at - 1, A) == ()
    [end] = plan_leader(pool.state, {}, lease.ends_at, A)
    assert end == c.EndLease(
        lease_id,
        "a lease of ada lasts 8h at most (policy v1, line 2: [defaults] max_lease_time)",
    )


def test_the_shorter_idle_timeout_counts() -> None:
    pool = Pool("[defaults]\nidle_timeout = '30m'")
    for wish_s, effective_s in ((60.0, 60.0), (3600.0, 1800.0), (0.0, 1800.0)):
        request = replace(pool.request(fraction=0.1), idle_timeout_s=wish_s)
        lease = pool.do(pool.claim("ada", request)).lease
        assert lease is not None
        assert pool.state.leases[lease].idle_timeout_s == effective_s


def test_encryption_by_class() -> None:
    pool = Pool('[class.fast]\nusers = ["ada"]\ndata_encryption = "off"')
    fast, usual = pool.grant("ada"), pool.grant("bob")
    assert encryption_of(pool.state, fast) == "off"
    assert encryption_of(pool.state, usual) == "tls"


# --- reservations ---------------------------------------------------------------------------------

COURSE = """
[class.course]
users = ["cy"]
[[reservation]]
name = "lab"
class = "course"
count = 3
gpus = ["*H200*"]
from = 2026-11-23T08:00:00
to = 2026-11-23T12:00:00
"""


def test_reserved_gpus_are_taken_for_everybody_else() -> None:
    pool = Pool(COURSE)
    pool.go_to("2026-11-23 08:00")
    request = replace(pool.request(2), servers=("a",))
    refusal = [a for a in pool.ask("ada", request) if not isinstance(a, Offer)]
    assert any("3 kept for class course" in each.why for each in refusal)
    result = pool.do(pool.claim("ada", pool.request(4), anyway="cy"))
    assert result.kind == "busy"
    assert 'is kept for class course (policy v1, line 4: [[reservation]] "lab")' in result.why
    pool.grant("ada", 4)  # of the other server
    pool.grant("ada", 1)
    assert pool.refusal("bob", pool.request()).kind == "busy"
    pool.grant("cy", 3)
    pool.go_to("2026-11-23 12:00")
    assert pool.refusal("bob", pool.request()).kind == "busy"


def test_a_reservation_is_over_at_its_end() -> None:
    pool = Pool(COURSE)
    pool.go_to("2026-11-23 07:59")
    pool.end(pool.grant("ada", 4))
    pool.go_to("2026-11-23 12:00")
    pool.grant("ada", 4)
    pool.grant("bob", 4)


def test_a_reservation_keeps_what_its_class_uses_already_and_what_others_use_least() -> None:
    pool = Pool(COURSE)
    pool.go_to("2026-11-23 08:00")
    pool.grant("cy", 1)
    kept = rulebook(pool.state.policy).reserved(pool.state)
    held = {(p.server, p.gpu) for lease in pool.state.leases.values() for p in lease.partitions}
    assert len(kept) == 3
    assert held <= kept.keys()


# --- who goes first -------------------------------------------------------------------------------


def wait(pool: Pool, user: str, count: int, number: int) -> Waiting:
    request = replace(pool.request(count), id=RequestId(bytes([number]) * 16))
    assert pool.do(c.Wait(request, user, TokenId(user), "busy")).ok
    return pool.state.waiting[request.id]


def starve(pool: Pool, user: str, count: int, number: int = 255) -> Waiting:
    """Let a request wait for as long as makes it go first."""
    entry = wait(pool, user, count, number)
    for _ in range(STARVED_AFTER_MS // 10_000):
        pool.now_ms += 10_000
        pool.do(c.Wait(entry.request, user, TokenId(user), "busy"))
    return pool.state.waiting[entry.request.id]


def test_the_table_says_after_how_long_a_wait_a_request_goes_first() -> None:
    pool = Pool("")
    pool.grant("dee", 4)
    entry = wait(pool, "ada", 4, 1)
    pool.now_ms += 5000
    pool.do(c.Wait(entry.request, "ada", TokenId("ada"), "busy"))
    assert not [*fairness.starved(pool.state)]
    soon = replace(pool.state, starved_after_ms=4000)
    assert next(fairness.starved(soon)) == pool.state.waiting[entry.request.id]


def test_of_the_starved_the_one_with_the_highest_priority_goes_first() -> None:
    pool = Pool("[class.high]\nusers = ['bob']\npriority = 7")
    pool.grant("dee", 4)
    first, urgent = wait(pool, "ada", 4, 1), wait(pool, "bob", 4, 2)
    soon = replace(pool.state, starved_after_ms=0)
    assert [*fairness.starved(soon)] == [urgent, first]
    upgraded(pool.machine)
    stale = replace(urgent, priority=9)
    waiting = WaitingTable({each.request.id: each for each in (first, stale)})
    now = replace(pool.state, starved_after_ms=0, waiting=waiting)
    assert [*fairness.starved(now)] == [first], "it is renewed first"


def test_the_class_gives_the_priority() -> None:
    pool = Pool('[class.high]\nusers = ["boss"]\npriority = 10\n[defaults]\npriority = 1')
    assert wait(pool, "ada", 1, 1).priority == 1
    assert wait(pool, "boss", 1, 2).priority == 10
    pool.put("")
    assert wait(pool, "boss", 1, 2).priority == 0  # renewed under another policy


def test_a_higher_priority_need_not_wait_for_who_waits_longer() -> None:
    pool = Pool('[class.high]\nusers = ["boss"]\npriority = 10')
    pool.grant("dee", 4)
    pool.grant("dee", 3)
    starve(pool, "ada", 4)
    assert pool.refusal("bob", pool.request()).kind == "busy"
    assert reserved_for_others(pool.state, RequestId(bytes(16)), "bob") is not None
    assert reserved_for_others(pool.state, RequestId(bytes(16)), "boss") is None


def occupy(pool: Pool, server: str, count: int) -> LeaseId:
    """Let somebody have whole GPUs of one server."""
    request = replace(pool.request(count), servers=(server,))
    lease = pool.do(pool.claim("dee", request)).lease
    assert lease is not None
    return lease


def free_gpus(pool: Pool) -> set[tuple[ServerId, GpuId]]:
    servers = pool.state.servers.values()
    return {(s.id, gpu.id) for s in servers for gpu in s.gpus.values() if not gpu.memory_granted}


def renew(pool: Pool, entry: Waiting, times: int) -> Waiting:
    """Let a request wait for ``times`` more renewals, 10 s apart."""
    for _ in range(times):
        pool.now_ms += 10_000
        assert pool.do(c.Wait(entry.request, entry.user, TokenId(entry.user), "busy")).ok
    return pool.state.waiting[entry.request.id]


@pytest.mark.parametrize(("on_a", "on_b"), [(1, 1), (2, 0), (0, 2), (1, 0)])
def test_a_request_over_several_servers_keeps_what_is_free_on_any(on_a: int, on_b: int) -> None:
    pool = Pool()
    occupy(pool, "a", 4 - on_a)
    occupy(pool, "b", 4 - on_b)
    request = replace(pool.request(2), across=True)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    renew(pool, pool.state.waiting[request.id], 7)
    kept = reserved_for_others(pool.state, RequestId(bytes(16)), "bob")
    assert kept is not None
    assert len(kept.gpus) == 2
    assert kept.gpus >= free_gpus(pool)
    refusal = pool.refusal("bob", pool.request())
    assert (refusal.kind, "goes first" in refusal.why) == ("busy", True)


def test_a_request_over_several_servers_keeps_one_server_when_that_is_as_near() -> None:
    pool = Pool()
    occupy(pool, "a", 2)
    occupy(pool, "b", 1)
    request = replace(pool.request(3), across=True)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    renew(pool, pool.state.waiting[request.id], 7)
    kept = reserved_for_others(pool.state, RequestId(bytes(16)), "bob")
    assert kept is not None
    assert {server for server, _ in kept.gpus} == {B}


def test_a_reservation_takes_what_is_kept_for_who_waits_but_not_their_place() -> None:
    pool = Pool(COURSE.replace("12:00:00", "08:01:00"))
    pool.go_to("2026-11-23 07:58:20")
    occupy(pool, "a", 1)
    request = replace(pool.request(4), servers=("a",))
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    since = pool.state.waiting[request.id].since
    entry = renew(pool, pool.state.waiting[request.id], 9)
    on_a = replace(pool.request(), servers=("a",))
    kept = reserved_for_others(pool.state, on_a.id, "cy")
    assert kept is not None
    assert len(kept.gpus) == 4
    # It begins: its class has them, whoever waits.
    entry = renew(pool, entry, 2)
    assert reserved_for_others(pool.state, on_a.id, "cy") is None
    assert pool.do(pool.claim("cy", replace(pool.request(3), servers=("a",)))).ok
    # Who waits is told why, keeps the place, and once it is over goes first again.
    why = [answer.why for answer in pool.ask("ada", request) if isinstance(answer, NoOffer)]
    assert any("3 kept for class course" in each for each in why)
    entry = renew(pool, entry, 7)
    assert entry.since == since
    kept = reserved_for_others(pool.state, on_a.id, "cy")
    assert kept is not None
    assert (kept.entry.request.id, len(kept.gpus)) == (request.id, 4)


def test_who_waits_for_a_limit_keeps_nothing_from_others() -> None:
    pool = Pool("[user.ada]\nmax_gpus = 2")
    mine = pool.grant("ada", 2)
    starve(pool, "ada", 1)
    pool.grant("bob", 4)
    pool.grant("cy", 2)
    # Once the limit lets it through, it goes first like any other.
    pool.end(mine)
    kept = reserved_for_others(pool.state, RequestId(bytes(16)), "bob")
    assert kept is not None
    assert kept.entry.user == "ada"


def test_nothing_is_kept_where_the_waiting_user_may_not_go() -> None:
    pool = Pool('[user.ada]\ngpus = ["*A100*"]')
    pool.grant("dee", 4)
    pool.grant("dee", 1)
    starve(pool, "ada", 4)
    kept = reserved_for_others(pool.state, RequestId(bytes(16)), "bob")
    assert kept is not None
    assert {server for server, _ in kept.gpus} == {B}


# --- versions -------------------------------------------------------------------------------------


def test_a_policy_takes_effect_with_its_last_part() -> None:
    lines = [
        f'[user.u{n}]\nmax_gpus = {n}.125\ngpus = ["model-{n * 7919 % 1000}"]' for n in range(900)
    ]
    pool = Pool()
    *parts, last = policy_commands("\n".join(lines), 0)
    assert len(parts) > 1
    for part in parts:
        assert pool.do(part).ok
        assert pool.state.policy.version == 0
    assert pool.do(last).ok
    assert pool.state.policy.version == 1
    assert len(pool.state.policy.rules) == 1800
    assert pool.state.staged == {}
    assert pool.do(last).ok  # proposed again
    assert pool.state.policy.version == 1


def test_parts_that_do_not_fit_together_change_nothing() -> None:
    pool = Pool()
    [part, last] = policy_commands(NIGHT, 0)
    assert isinstance(part, c.StagePart)
    assert isinstance(last, c.ApplyPolicy)
    assert pool.do(last).kind == "conflict"
    pool.do(replace(part, data=part.data[:-1] + b"x"))
    assert pool.do(last).kind == "invalid"
    pool.do(part)
    pool.now_ms += STAGED_LAPSE_MS + 1
    assert pool.do(last).kind == "conflict"
    assert pool.state.staged == {}
    assert pool.state.policy.version == 0


def test_a_version_can_be_replaced_once() -> None:
    pool = Pool("[defaults]\nmax_gpus = 1")
    mine, other = policy_commands("[defaults]\nmax_gpus = 2", 1), policy_commands(NIGHT, 1, "eve")
    for command in other:
        assert pool.do(command).ok
    assert pool.do(mine[0]).ok
    result = pool.do(mine[1])
    assert (result.kind, result.why) == ("conflict", "eve has applied version 2 meanwhile")


def test_the_history_keeps_the_latest_documents() -> None:
    pool = Pool()
    for number in range(POLICY_COUNT_MAX + 3):
        pool.put(f"[defaults]\nmax_leases = {number}")
    versions = [each.version for each in pool.state.policies]
    assert versions == list(range(4, POLICY_COUNT_MAX + 4))
    assert unpack_text(pool.state.policies[-1].packed).endswith(f"= {POLICY_COUNT_MAX + 2}")
    assert pool.state.policies[-1].by == "root"


def test_a_replica_that_starts_from_a_snapshot_judges_alike() -> None:
    pool = Pool(NIGHT)
    pool.go_to("2026-11-23 23:00")
    pool.grant("ada", 4)
    twin = Pool()
    twin.machine.restore(pool.machine.snapshot())
    twin.now_ms = pool.now_ms
    assert twin.state == pool.state
    claim = pool.claim("bob", pool.request(4))
    assert pool.do(claim) == twin.do(claim)
    assert twin.state == pool.state


def test_an_empty_policy_limits_nothing() -> None:
    pool = Pool()
    assert parse("").rules == ()
    pool.grant("ada", 4)
    pool.grant("ada", 4)
    assert pool.state.usage["ada"] == Usage(8 * UNIT, 640 * GIB, 2)
