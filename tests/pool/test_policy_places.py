"""Every rule, in every place where it can be written; and windows, by another clock."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, B, Pool, at, zone
from tests.properties import examples

from gpupool.pool.model import commands as c
from gpupool.pool.model.policy import Span
from gpupool.pool.model.state import TokenId
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.policy_calendar import phase
from gpupool.pool.policy.policy_document import RULE_KEYS
from gpupool.pool.policy.weights import lease_weights
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.pool.transitions.leases import encryption_of

VALUES = {
    "max_gpus": "0.5",
    "max_memory": "'40GiB'",
    "max_leases": "1",
    "gpus": "['*a100*']",
    "servers": "['rack=2']",
    "idle_timeout": "'30m'",
    "max_lease_time": "'8h'",
    "data_encryption": "'off'",
    "department": "'physics'",
    "priority": "7",
    "preemptible": "true",
    "max_suspended": "'4h'",
    "min_run_time": "'30s'",
    "guarantee": "2",
    "weight": "2.5",
}
"""Each lets ada have half a GPU, once, and differs from the rules without a policy."""

PLACES = [(target, key) for target, keys in RULE_KEYS.items() for key in keys]
NAMES = {"class": "class.x", "user": "user.ada"}
CLASS = "[class.x]\nusers = ['ada']\n"


def takes_effect(pool: Pool, key: str) -> bool:
    """Let ada have half a GPU for a moment, and return whether a rule could be felt."""
    request = pool.request(fraction=0.5)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    priority = pool.state.waiting[request.id].priority
    claim = pool.claim("ada", pool.request(fraction=0.5))
    number = pool.do(claim).lease
    assert number is not None
    lease = pool.state.leases[number]
    # Its place has room for one more, which only a limit can refuse.
    more = pool.do(replace(claim, request=pool.request(fraction=0.5)))
    assert more.ok or f" {key})" in more.why or f" {key}," in more.why, more
    admission = Admission(pool.state)
    terms = admission.terms("ada")
    felt = {
        "gpus": lease.partitions[0].server == B,
        "servers": lease.partitions[0].server == B,
        "idle_timeout": lease.idle_timeout_s == 1800,
        "max_lease_time": lease.ends_at == pool.now_ms + 8 * 3_600_000,
        "data_encryption": encryption_of(pool.state, lease.id) == "off",
        "department": lease.department == "physics",
        "priority": priority == 7,
        "preemptible": (rule := terms.preemptible) is not None and rule.rule.number == 1,
        "max_suspended": (rule := terms.max_suspended) is not None
        and rule.rule.number == 4 * 3_600_000,
        "min_run_time": terms.min_run_ms == 30_000,
        "guarantee": (rule := admission.moment.guarantee("x")) is not None
        and rule.rule.number == 2000,
        "weight": lease_weights(pool.state, lease.partitions[0].server, 0).get(number) == 2.5,
    }
    found = felt.get(key, not more.ok)
    for each in list(pool.state.leases):
        pool.end(each)
    return found


@pytest.mark.parametrize(("target", "key"), PLACES, ids=map(".".join, PLACES))
def test_every_rule_holds_wherever_it_can_be_written(target: str, key: str) -> None:
    rule = f"{key} = {VALUES[key.removesuffix('_per_user')]}\n"
    where = NAMES.get(target, target)
    assert not takes_effect(Pool(CLASS), key)
    mine = CLASS + rule if target == "class" else f"{CLASS}[{where}]\n{rule}"
    assert takes_effect(Pool(mine), key)
    night = "[[window]]\nname = 'night'\nfrom = '22:00'\nto = '06:00'\n"
    pool = Pool(f"{CLASS}{night}[window.{where}]\n{rule}")
    for moment, is_open in (("23 21:59", False), ("23 22:00", True), ("24 06:00", False)):
        pool.go_to(f"2026-11-{moment}")
        assert takes_effect(pool, key) is is_open


def test_the_largest_that_a_rule_allows_is_named() -> None:
    pool = Pool("[user.ada]\nservers = ['rack=2']\n", gpu_count=2)
    rule = "ada may use servers rack=2 (policy v1, line 2: [user.ada] servers); "
    across = replace(pool.request(4), across=True)
    elsewhere = replace(pool.request(), filters=(parse_filter("server.name = a"),))
    for request, largest in (
        (across, "all servers together have 2 such GPUs"),
        (replace(across, memory=30 * GIB, fraction=0.0), "all servers together have 2 such GPUs"),
        (elsewhere, "the pool has no such matching GPU"),
        (replace(pool.request(), servers=("a",)), "these servers have no such GPU"),
    ):
        refusal = pool.refusal("ada", request)
        assert (refusal.kind, refusal.why.partition(" of that size")[0]) == (
            "denied",
            rule + largest,
        )
    pool.grant("bob", 2)  # of whom the rule says nothing


# --- windows, by another clock --------------------------------------------------------------------

ZONES = (
    *("Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata"),
    *("Australia/Lord_Howe", "Pacific/Auckland", "Africa/Casablanca"),
)
"""Summer in the north, in the south, by half an hour; offsets of half hours; a second change."""

STEP = timedelta(minutes=15)
CHANGES = ("2027-03-14", "2027-03-28", "2027-04-04", "2027-09-26", "2027-10-03", "2027-11-07")


def first_at(info: ZoneInfo, local: datetime) -> datetime:
    """Return the first instant at which the clocks of a zone show this time, or a later one."""
    moment = local.replace(tzinfo=UTC) - timedelta(hours=15)
    while moment.astimezone(info).replace(tzinfo=None) < local:
        moment += STEP
    return moment


@given(
    st.sampled_from(ZONES),
    st.sampled_from(CHANGES),
    st.integers(0, 95),
    st.integers(1, 96),
    st.sets(st.integers(0, 6), max_size=3),
    st.integers(-3 * 96, 3 * 96),
)
@settings(max_examples=examples(150))
def test_a_window_is_open_from_the_time_that_clocks_show(
    name: str, change: str, start: int, length: int, days: set[int], offset: int
) -> None:
    """Opened on its days, over midnight, and on the days on which the clocks are changed."""
    info, table = ZoneInfo(name), zone(name)
    assert table is not None
    quarter = 15 * 60_000
    end = (start + length) % 96 if length < 96 else start
    if end == start:
        start, end = 0, 96
    span = Span(name, start * quarter, end * quarter, tuple(sorted(days)))
    now = datetime.fromisoformat(change).replace(tzinfo=UTC) + offset * STEP
    opened = False
    today = now.replace(tzinfo=None, hour=0, minute=0)
    for back in range(-2, 4):
        day = today - timedelta(days=back)
        if days and day.weekday() not in days:
            continue
        first = day + start * STEP
        last = day + (end if end > start else end + 96) * STEP
        opened |= first_at(info, first) <= now < first_at(info, last)
    assert phase(span, table, at(now.strftime("%Y-%m-%d %H:%M"))).holds is opened
