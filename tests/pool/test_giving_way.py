"""Leases that give way to windows: their choice, reason, number, and longest time."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool
from tests.pool.test_preemption import MINUTE_MS, Preempting, small

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.policy import Window
from gpupool.pool.model.relocation import Relocation, RelocationState
from gpupool.pool.model.state import Lease, Partition
from gpupool.pool.model.suspension import (
    DRIVER_TOO_OLD,
    MIG_INSTANCE,
    SuspendRefusal,
    SuspensionHistory,
)
from gpupool.pool.policy.giving_way import (
    away_too_long,
    never_suspendable,
    not_suspendable,
    pause_end,
    running_since,
    too_early,
    window_reason,
    window_suspensions,
)
from gpupool.pool.policy.lease_ends import (
    allowed_no_more,
    due,
    effective_timeout_s,
    notice_text,
)

CLASS = """
[class.night]
users = ["ada", "bob"]
preemptible = true
min_run_time = "10m"
max_suspended = "4h"
"""
DAY = """
[[window]]
name = "day"
from = "08:00"
to = "20:00"
leases = "suspend"
[window.class.night]
max_gpus = 1
"""


def two_leases() -> tuple[Preempting, LeaseId, LeaseId]:
    """Return a full pool at the moment at which the day has begun, with the older lease first."""
    pool = small(CLASS + DAY)
    pool.go_to("2026-11-23 07:00")
    older, younger = pool.grant("ada"), pool.grant("bob")
    pool.go_to("2026-11-23 08:00")
    return pool, older, younger


def test_what_is_being_suspended_for_a_window_is_not_suspended_again() -> None:
    pool, older, younger = two_leases()
    assert pool.suspensions() == [younger]
    assert pool.lead()
    assert (pool.phase(older), pool.phase(younger)) == ("held", "suspending")
    assert pool.suspensions() == []
    pool.confirm(younger)
    assert pool.suspensions() == []


def test_what_cannot_be_suspended_now_is_left_by_a_window_until_it_can_be() -> None:
    pool, _, younger = two_leases()
    incarnation = pool.state.servers[A].incarnation
    assert pool.do(c.ServerContact(A, incarnation, reachable=False)).ok
    assert pool.suspensions() == []
    assert pool.do(c.ServerContact(A, incarnation, reachable=True)).ok
    assert pool.suspensions() == [younger]


def test_what_was_resumed_runs_its_time_before_a_window_suspends_it_again() -> None:
    later = DAY.replace("08:00", "08:07")
    pool = small(CLASS + DAY.replace("20:00", "08:05") + later)
    pool.go_to("2026-11-23 07:00")
    pool.grant("ada")
    younger = pool.grant("bob")
    pool.go_to("2026-11-23 08:00")
    assert pool.lead()
    pool.confirm(younger)
    pool.go_to("2026-11-23 08:05")
    assert pool.lead() == [c.ResumeLease(younger)]
    pool.confirm(younger)
    pool.go_to("2026-11-23 08:07")
    assert pool.suspensions() == []
    pool.go_to("2026-11-23 08:14:59")
    assert pool.suspensions() == []
    pool.go_to("2026-11-23 08:15")
    assert pool.suspensions() == [younger]


def test_a_window_suspends_when_it_closes_and_says_so() -> None:
    night = DAY.replace("08:00", "22:00").replace("20:00", "06:00").replace("day", "night")
    pool = small(CLASS + "max_gpus = 1\n" + night.replace("max_gpus = 1", "max_gpus = 2"))
    pool.go_to("2026-11-23 22:00")
    pool.grant("ada")
    younger = pool.grant("bob")
    assert pool.suspensions() == []
    pool.go_to("2026-11-24 06:00")
    why = 'window "night" is closed (policy v1, line 9)'
    assert pool.lead() == [c.SuspendLease(younger, why)]
    [window] = pool.state.policy.windows
    pool.go_to("2026-11-24 22:00")
    assert window_reason(pool.state, window) == 'window "night" is open (policy v1, line 9)'


def test_a_policy_whose_windows_keep_leases_suspends_none() -> None:
    for leases in ('leases = "keep"', 'leases = "end"\ngrace = "5m"', ""):
        pool = small(CLASS + DAY.replace('leases = "suspend"', leases))
        pool.go_to("2026-11-23 07:00")
        pool.grant("ada", 2)
        pool.go_to("2026-11-23 08:00")
        assert window_suspensions(pool.state) == {}


# --- several windows ------------------------------------------------------------------------------


def window(leases: str, user: str, hours: tuple[str, str] = ("08:00", "20:00")) -> str:
    table = f"[window.user.{user}]\nmax_gpus = 1"
    start, end = hours
    return f"[[window]]\nleases = {leases}\nfrom = '{start}'\nto = '{end}'\n{table}\n"


KEEPS = window("'keep'", "ada")
SUSPENDS = window("'suspend'", "bob")
ENDS = window("'end'\ngrace = '5m'", "cy")


def forbidden(pool: Pool, *, suspends: bool = False) -> dict[str, Window]:
    """Return the users of leases that the rules allow no more, and the window of each."""
    found = allowed_no_more(pool.state, suspends=suspends)
    return {pool.state.leases[lease].user: each for lease, each in found.items()}


@pytest.mark.parametrize(
    "windows",
    [(KEEPS, SUSPENDS, ENDS), (ENDS, SUSPENDS, KEEPS), (SUSPENDS, KEEPS, ENDS)],
)
def test_each_window_does_what_it_says_to_the_leases_that_it_forbids(
    windows: tuple[str, ...],
) -> None:
    pool = Pool("".join(windows))
    for user in ("ada", "bob", "cy", "dee"):
        pool.grant(user, 2)
    assert forbidden(pool) == forbidden(pool, suspends=True) == {}
    pool.go_to("2026-11-23 08:00")
    of_policy = pool.state.policy.windows
    assert forbidden(pool) == {"cy": of_policy[windows.index(ENDS)]}
    assert forbidden(pool, suspends=True) == {"bob": of_policy[windows.index(SUSPENDS)]}


@pytest.mark.parametrize("leases", ["'suspend'", "'end'\ngrace = '5m'"])
def test_what_was_forbidden_before_a_window_is_not_its_to_end(leases: str) -> None:
    """As after a policy that is stricter than the one of the grant."""
    suspends = leases == "'suspend'"
    pool = Pool()
    for user in ("ada", "bob"):
        pool.grant(user, 2)
    pool.put("[defaults]\nmax_gpus = 1\n" + window(leases, "bob"))
    pool.go_to("2026-11-23 08:00")
    assert forbidden(pool, suspends=suspends) == {}
    pool.put("[defaults]\nmax_gpus = 1\n[user.bob]\nmax_gpus = 2\n" + window(leases, "bob"))
    assert list(forbidden(pool, suspends=suspends)) == ["bob"]


@pytest.mark.parametrize(("early_ms", "is_due"), [(0, True), (1, False)])
def test_a_lease_that_ends_within_the_grace_gets_no_notice(early_ms: int, is_due: bool) -> None:
    limits = "[defaults]\nmax_lease_time = '2h'\n"
    pool = Pool(limits + ENDS)
    pool.go_to("2026-11-23 06:05:00")
    pool.now_ms += 1 - early_ms
    lease = pool.grant("cy", 2)
    pool.go_to("2026-11-23 08:00")
    expected = (c.GiveNotice(lease),) if is_due else ()
    assert due(pool.state, pool.now_ms) == expected
    twin = Pool(limits + window("'suspend'", "cy"))
    twin.go_to("2026-11-23 06:05:00")
    twin.grant("cy", 2)
    twin.go_to("2026-11-23 08:00")
    assert list(forbidden(twin, suspends=True)) == ["cy"]


def test_a_lease_that_has_ended_gets_no_notice() -> None:
    pool = Pool(ENDS)
    lease = pool.grant("cy", 2)
    pool.do(c.EndLease(lease, "over"))
    pool.go_to("2026-11-23 08:00")
    assert lease in pool.state.leases
    assert due(pool.state, pool.now_ms) == ()


@pytest.mark.parametrize(
    ("longest", "ms", "notice_ms", "text"),
    [
        ("2s", 2000, 200, "0s"),
        ("10m", 600_000, 60_000, "1m"),
        ("50m", 3_000_000, 300_000, "5m"),
        ("51m", 3_060_000, 300_000, "5m"),
        ("7d", 604_800_000, 300_000, "5m"),
    ],
)
def test_notice_of_the_latest_end_is_a_tenth_of_the_time_and_five_minutes_at_most(
    longest: str, ms: int, notice_ms: int, text: str
) -> None:
    pool = Pool(f"[defaults]\nmax_lease_time = '{longest}'\n")
    number = pool.grant("ada")
    lease = pool.state.leases[number]
    assert lease.ends_at == pool.now_ms + ms
    assert lease.notice_at == lease.ends_at - notice_ms
    rule = "(policy v1, line 2: [defaults] max_lease_time)"
    why = f"a lease of ada lasts {longest} at most {rule}"
    assert notice_text(lease) == f"it ends in {text}: {why}"


def test_a_lease_without_a_longest_time_has_no_end() -> None:
    for policy in ("", "[defaults]\nmax_lease_time = '1h'\n[user.ada]\nmax_lease_time = 'none'\n"):
        pool = Pool(policy)
        number = pool.grant("ada")
        lease = pool.state.leases[number]
        assert (lease.ends_at, lease.notice_at, lease.ends_why) == (0, 0, "")
        assert due(pool.state, pool.now_ms + 10**12) == ()


@pytest.mark.parametrize(
    ("wishes", "shortest"),
    [((0.5,), 0.5), ((1.0, 0.0), 1.0), ((0.0, -1.0), 0.0), ((3.0, 2.0, 4.0), 2.0), ((), 0.0)],
)
def test_any_wish_above_nothing_is_an_idle_timeout(
    wishes: tuple[float, ...], shortest: float
) -> None:
    assert effective_timeout_s(*wishes) == shortest


# --- single leases --------------------------------------------------------------------------------


def suspended_at(pool: Preempting) -> Lease:
    """Suspend the first lease of the pool, and return it."""
    lease = pool.grant("ada")
    assert pool.do(c.SuspendLease(lease, "", "root", operator=True)).ok
    pool.confirm(lease)
    return pool.state.leases[lease]


@pytest.mark.parametrize(
    ("longest", "after_ms", "ends"),
    [
        ("'2s'", 1999, False),
        ("'2s'", 2000, True),
        ("'4h'", 4 * 60 * MINUTE_MS - 1, False),
        ("'4h'", 4 * 60 * MINUTE_MS, True),
        ("'none'", 10**12, False),
    ],
)
def test_a_suspended_lease_ends_after_the_longest_time(
    longest: str, after_ms: int, ends: bool
) -> None:
    rules = f"[defaults]\nmax_suspended = '2s'\n[class.x]\nusers = ['ada']\nmax_suspended={longest}"
    pool = small(rules)
    lease = suspended_at(pool)
    pool.later(after_ms)
    rule = "(policy v1, line 5: [class.x] max_suspended)"
    why = f"it was suspended for {longest[1:-1]}, the longest time {rule}"
    assert away_too_long(pool.state, lease) == (why if ends else "")
    assert away_too_long(pool.state, replace(lease, suspension=None)) == ""
    assert away_too_long(pool.state, replace(lease, history=None)) == ""


def test_a_suspended_lease_stays_where_no_rule_ends_it() -> None:
    pool = small("")
    lease = suspended_at(pool)
    pool.later(10**12)
    assert away_too_long(pool.state, lease) == ""


def plain_lease() -> tuple[Pool, Lease]:
    pool = Pool()
    lease = pool.grant("ada")
    return pool, pool.state.leases[lease]


def history(resumed_at: int = 0, refused_at: int | None = None) -> SuspensionHistory:
    refusal = None if refused_at is None else SuspendRefusal("it has no room", ms(refused_at))
    return SuspensionHistory(resumed_at=ms(resumed_at), refusal=refusal)


def ms(number: int) -> Milliseconds:
    return Milliseconds(number)


@pytest.mark.parametrize(
    ("been_through", "end", "since"),
    [
        (None, 0, 100),
        (history(), 0, 100),
        (history(1000), 1050, 1000),
        (history(0, 3000), 3050, 100),
        (history(1000, 3000), 3050, 1000),
        (history(4000, 3000), 4050, 4000),
        (history(1), 51, 1),
    ],
)
def test_a_pause_is_counted_from_the_latest_return_or_attempt(
    been_through: SuspensionHistory | None, end: int, since: int
) -> None:
    _, plain = plain_lease()
    lease = replace(plain, history=been_through, granted_at=ms(100))
    assert pause_end(lease, 50) == end
    assert running_since(lease) == since


@pytest.mark.parametrize(("after_ms", "early"), [(0, True), (59_999, True), (60_000, False)])
def test_it_is_too_early_until_the_least_time_is_over(after_ms: int, early: bool) -> None:
    pool, plain = plain_lease()
    now = pool.state.now
    lease = replace(plain, history=history(now - after_ms))
    ran = "1m" if after_ms else "0s"
    why = f"it was resumed {ran} ago, and runs for 1m at least"
    assert too_early(pool.state, lease, 60_000) == (why if early else "")
    lease = replace(plain, history=history(now - 3_600_000, now - after_ms))
    why = "it could not be suspended lately: it has no room"
    assert too_early(pool.state, lease, 60_000) == (why if early else "")
    assert too_early(pool.state, plain, 60_000) == ""


def test_what_is_not_there_does_not_hide_what_cannot_be_suspended() -> None:
    pool, plain = plain_lease()
    server = pool.state.servers[A]
    name, gpu = next(iter(server.gpus.items()))
    instance = replace(gpu, parent=GpuId("whole"))
    with_mig = replace(server, gpus={**server.gpus, name: instance})
    old = replace(server, driver_version="569.99")
    gone = (Partition(ServerId("f" * 12), name, 1), Partition(A, GpuId("none"), 1))
    here = Partition(A, name, 1)
    for partitions, found, why in (
        (gone, server, ""),
        ((here,), server, ""),
        ((*gone, here), with_mig, MIG_INSTANCE),
        ((*gone, here), old, DRIVER_TOO_OLD),
        ((*gone, here), replace(old, driver_version="570"), ""),
        ((*gone, here), replace(old, driver_version="unknown"), ""),
        (gone, old, ""),
    ):
        state = replace(pool.state, servers=pool.state.servers.set(A, found))
        assert never_suspendable(state, replace(plain, partitions=partitions)) == why


def test_a_lease_that_goes_to_another_server_is_not_suspended() -> None:
    pool, plain = plain_lease()
    assert not_suspendable(pool.state, plain) == ""
    way = Relocation(RelocationState.LEAVING, 1, A, B, "root", ms(0), ms(0))
    why = "it is being moved to another server"
    assert not_suspendable(pool.state, replace(plain, relocation=way)) == why


def test_a_lease_of_which_a_server_or_a_gpu_is_gone_is_not_reachable() -> None:
    pool, plain = plain_lease()
    name = next(iter(pool.state.servers[A].gpus))
    for part, where in (
        (Partition(ServerId("f" * 12), name, 1), "f" * 12),
        (Partition(A, GpuId("none"), 1), "a"),
    ):
        lease = replace(plain, partitions=(Partition(A, name, 1), part))
        assert not_suspendable(pool.state, lease) == f"server {where} is not reachable"
