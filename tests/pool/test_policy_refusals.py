"""The words of the policy's refusals, and how much exactly a limit leaves."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, MONDAY_MS, A, B, Pool, zone

from gpupool.pool.model.policy import UNIT, Rule, Usage
from gpupool.pool.model.state import Request, RequestId
from gpupool.pool.policy.admission import (
    Admission,
    May,
    amount,
    duration_text,
    least_need,
    number_text,
    sizes_of,
    sizes_of_all,
    time_text,
)
from gpupool.pool.policy.rulebook import Cap, Source, plus, used

MIB = 1 << 20


PLACES = {
    "user.ada": "[user.ada]\n{}\n",
    "class.x": "[class.x]\nusers = ['ada', 'bob']\n{}\n",
    "pool": "[pool]\n{}\n",
    "defaults": "[defaults]\n{}\n",
}


@pytest.mark.parametrize(
    ("rule", "fits", "passes"),
    [
        ("max_gpus = 3", Usage(units=UNIT), Usage(units=UNIT + 1)),
        ("max_memory = '240GiB'", Usage(memory=80 * GIB), Usage(memory=80 * GIB + 1)),
        ("max_leases = 2", Usage(leases=1), Usage(leases=2)),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_limit_can_be_reached_and_not_passed(
    place: str, rule: str, fits: Usage, passes: Usage
) -> None:
    pool = Pool(PLACES[place].format(rule))
    pool.grant("ada", 2)
    admission = Admission(pool.state)
    assert not admission.is_limited("ada", fits)
    assert admission.limit_refusal("ada", fits) is None
    assert admission.is_limited("ada", passes)
    refusal = admission.limit_refusal("ada", passes)
    assert refusal is not None
    assert refusal.kind == "busy"
    assert admission.is_limited("bob", fits) is False
    assert admission.is_limited("bob", passes) is (place in ("class.x", "pool"))


def test_a_class_and_the_pool_count_all_who_hold_something_together() -> None:
    pool = Pool(
        "[class.x]\nusers = ['ada', 'bob']\nmax_leases = 4\n[class.y]\nusers = ['cy']\n"
        "max_leases = 2\n[pool]\nmax_leases = 5\n"
    )
    for user in ("ada", "bob", "bob", "cy"):
        pool.grant(user, fraction=0.1)
    admission = Admission(pool.state)
    held = {
        user: [admission.usage_of(terms, cap) for cap in terms.caps]
        for user in ("ada", "bob", "cy", "dee")
        for terms in [admission.terms(user)]
    }
    assert held == {"ada": [3, 4], "bob": [3, 4], "cy": [1, 4], "dee": [4]}
    assert not admission.is_limited("dee", Usage(leases=1))
    assert admission.is_limited("dee", Usage(leases=2))
    refusal = admission.limit_refusal("bob", Usage(leases=2))
    assert refusal is not None
    assert refusal.why == (
        "class x may hold 4 leases together (policy v1, line 3: [class.x] max_leases); "
        "its members hold 3, this takes 2"
    ), "the first that is reached"
    refusal = admission.limit_refusal("dee", Usage(leases=2))
    assert refusal is not None
    assert refusal.why == (
        "all users may hold 5 leases together (policy v1, line 8: [pool] max_leases); "
        "all users hold 4, this takes 2"
    )


@pytest.mark.parametrize(
    ("key", "value", "need", "text"),
    [
        ("max_leases", "1", Usage(leases=2), "1 lease (policy"),
        ("max_leases", "0", Usage(leases=1), "0 leases (policy"),
        ("max_gpus", "1", Usage(units=2 * UNIT), "1 GPU (policy"),
        ("max_gpus", "1.5", Usage(units=2 * UNIT), "1.5 GPUs (policy"),
        ("max_memory", "'1GiB'", Usage(memory=2 * GIB), "1 GiB (policy"),
        ("max_memory", "'2.5GiB'", Usage(memory=3 * GIB), "2.5 GiB (policy"),
    ],
)
def test_a_limit_is_told_in_its_unit(key: str, value: str, need: Usage, text: str) -> None:
    pool = Pool(f"[user.ada]\n{key} = {value}\n")
    refusal = Admission(pool.state).limit_refusal("ada", need)
    assert refusal is not None
    assert refusal.kind == "denied"
    assert refusal.why.startswith(f"ada may hold {text} v1, line 2: [user.ada] {key}), and this")


@pytest.mark.parametrize(
    ("dimension", "number", "text"),
    [
        ("max_gpus", UNIT, "1"),
        ("max_gpus", UNIT * 5 // 2, "2.5"),
        ("max_memory", GIB, "1"),
        ("max_memory", 100 * GIB, "100"),
        ("max_memory", GIB // 2, "0.5"),
        ("max_leases", 10, "10"),
    ],
)
def test_amounts_are_told_without_needless_zeros(dimension: str, number: int, text: str) -> None:
    cap = Cap("user", dimension, 0, Source(Rule("defaults", "", dimension, 1)))
    assert amount(number, cap) == text


def test_usage_has_a_number_for_each_limit() -> None:
    usage = Usage(units=1, memory=2, leases=3)
    found = [used(usage, each) for each in ("max_gpus", "max_memory", "max_leases")]
    assert found == [1, 2, 3]
    assert plus(usage, Usage(10, 20, 30)) == Usage(11, 22, 33)
    assert plus(usage, Usage(10, 20, 30), -1) == Usage(-9, -18, -27)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1.0, "1"), (100.0, "100"), (0.25, "0.25"), (1 / 3, "0.333"), (2.0004, "2")],
)
def test_numbers_have_three_decimals_at_most(number: float, text: str) -> None:
    assert number_text(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (0.4, "0s"),
        (0.6, "1s"),
        (59, "59s"),
        (60, "1m"),
        (61, "1m01s"),
        (119, "1m59s"),
        (3599, "59m59s"),
        (3600, "1h"),
        (3659, "1h"),
        (3660, "1h01m"),
        (5400, "1h30m"),
        (86_399, "23h59m"),
        (86_400, "1d"),
        (89_999, "1d"),
        (90_000, "1d01h"),
        (2 * 86_400 - 1, "1d23h"),
        (7 * 86_400, "7d"),
    ],
)
def test_a_duration_is_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds * 1000) == text


def test_a_time_is_told_on_the_clock_of_its_zone() -> None:
    berlin, kolkata = zone("Europe/Berlin"), zone("Asia/Kolkata")
    assert berlin is not None
    assert kolkata is not None
    evening = MONDAY_MS + 23 * 3_600_000
    assert time_text(berlin, evening) == "Tue 00:00 (Europe/Berlin)"
    assert time_text(kolkata, evening) == "Tue 04:30 (Asia/Kolkata)"


def window(start: str, zone_name: str, rules: str) -> str:
    return f"[[window]]\nfrom = '{start}'\nto = '23:59'\nzone = '{zone_name}'\n{rules}\n"


GPUS = "[window.defaults]\nmax_gpus = 4"
MEMORY = "[window.user.ada]\nmax_memory = '1T'"


@pytest.mark.parametrize(
    ("windows", "when"),
    [
        ([("22:00", "Europe/Berlin", GPUS), ("21:00", "UTC", MEMORY)], "22:00 (Europe/Berlin)"),
        ([("21:00", "UTC", MEMORY), ("22:00", "Europe/Berlin", GPUS)], "21:00 (UTC)"),
        ([("9:00", "UTC", MEMORY), ("22:00", "Europe/Berlin", GPUS)], "22:00 (Europe/Berlin)"),
        (
            [
                ("22:00", "Europe/Berlin", MEMORY),
                ("21:00", "UTC", GPUS),
                ("22:00", "Europe/Berlin", GPUS),
            ],
            "22:00 (Europe/Berlin)",
        ),
    ],
)
def test_when_it_is_allowed_is_told_by_the_first_window_that_changes_then(
    windows: list[tuple[str, str, str]], when: str
) -> None:
    pool = Pool("[defaults]\nmax_gpus = 1\n" + "".join(window(*each) for each in windows))
    pool.go_to("2026-11-23 08:00")
    refusal = pool.refusal("ada", pool.request(2))
    assert refusal.kind == "busy"
    assert refusal.why.endswith(f"and this takes 2; allowed from Mon {when} on")


def test_when_a_place_is_allowed_is_told_too() -> None:
    places = "[window.user.ada]\ngpus = '*'"
    pool = Pool("[user.ada]\ngpus = '*A100*'\n" + window("09:00", "UTC", places))
    server = pool.state.servers[A]
    one = next(iter(server.gpus.values()))
    refusal = Admission(pool.state).place_refusal("ada", [(server, one)])
    assert refusal is not None
    rule = "(policy v1, line 2: [user.ada] gpus)"
    assert (refusal.kind, refusal.why) == (
        "busy",
        f"ada may not use GPU 0 of a (NVIDIA H200) {rule}; allowed from Mon 09:00 (UTC) on",
    )
    pool.go_to("2026-11-23 09:00")
    assert Admission(pool.state).place_refusal("ada", [(server, one)]) is None
    assert Admission(pool.state).place_refusal("ada", []) is None


def test_both_rules_of_places_are_named_when_nothing_fits() -> None:
    pool = Pool("[class.x]\nusers = ['ada']\ngpus = ['*A100*', 'L4']\nservers = 'rack=1'\n")
    admission = Admission(pool.state)
    refusal = admission.fit_refusal("ada", lambda _: False, lambda _: "nothing is left")
    assert refusal is not None
    assert (refusal.kind, refusal.why) == (
        "denied",
        "ada of class x may use GPUs *A100*, L4 (policy v1, line 3: [class.x] gpus) and "
        "ada of class x may use servers rack=1 (policy v1, line 4: [class.x] servers); "
        "nothing is left",
    )
    assert admission.fit_refusal("ada", lambda _: True, lambda _: "") is None
    assert admission.fit_refusal("bob", lambda _: False, lambda _: "") is None, "no rule says so"
    a, b = pool.state.servers[A], pool.state.servers[B]
    may = admission.usable("ada")
    assert [may(each, next(iter(each.gpus.values()))) for each in (a, b)] == [False, False]


def test_what_fits_is_judged_by_the_rules_of_each_moment() -> None:
    opens = window("09:00", "UTC", "[window.user.ada]\ngpus = '*NVIDIA*'")
    pool = Pool(f"[user.ada]\ngpus = 'L4'\n{opens}")
    a, b = pool.state.servers[A], pool.state.servers[B]
    h200, a100 = next(iter(a.gpus.values())), next(iter(b.gpus.values()))
    found = {"h200": (a, h200), "a100": (b, a100), "l4": (b, replace(a100, name="L4"))}
    admission = Admission(pool.state)

    def names(may: May) -> str:
        return " ".join(name for name, place in found.items() if may(*place))

    assert admission.fit_refusal("ada", lambda may: may(*found["l4"]), names) is None
    later = admission.fit_refusal("ada", lambda may: names(may) == "h200 a100", names)
    never = admission.fit_refusal("ada", lambda may: names(may) == "h200", names)
    assert later is not None
    assert never is not None
    why = "ada may use GPUs L4 (policy v1, line 2: [user.ada] gpus); l4"
    assert (later.kind, later.why) == ("busy", f"{why}; allowed from Mon 09:00 (UTC) on")
    assert (never.kind, never.why) == ("denied", why)


# --- the least that a request counts as -----------------------------------------------------------


def asked(count: int, fraction: float = 0.0, memory: int = 0) -> Request:
    return Request(RequestId(bytes(16)), count, fraction, memory)


@pytest.mark.parametrize(
    ("request_", "sizes", "need"),
    [
        (asked(2, memory=40 * GIB), (80 * GIB, 160 * GIB), Usage(UNIT // 2, 80 * GIB, 1)),
        (asked(1, memory=40 * GIB), (80 * GIB, 80 * GIB), Usage(UNIT // 2, 40 * GIB, 1)),
        (asked(1, memory=40 * GIB), (0, 0), Usage(0, 40 * GIB, 1)),
        (asked(3, fraction=0.5), (80 * GIB, 160 * GIB), Usage(3 * UNIT // 2, 120 * GIB, 1)),
        (asked(1, fraction=0.5), (0, 0), Usage(UNIT // 2, 0, 1)),
        (asked(1, fraction=0.5), (4 * MIB - 2, 9 * MIB), Usage(UNIT // 2, MIB, 1)),
        (asked(1, fraction=0.5), (4 * MIB, 9 * MIB), Usage(UNIT // 2, 2 * MIB, 1)),
    ],
)
def test_a_request_needs_the_least_of_any_gpu(
    request_: Request, sizes: tuple[int, int], need: Usage
) -> None:
    assert least_need(request_, sizes) == need


def test_sizes_are_those_of_the_smallest_and_the_largest_gpu() -> None:
    pool = Pool(capacity=80 * GIB)
    assert sizes_of_all(pool.state) == (80 * GIB, 80 * GIB)
    assert sizes_of([]) == (0, 0)
    gpus = [gpu for each in pool.state.servers.values() for gpu in each.gpus.values()]
    others = [replace(gpu, memory_total=size) for gpu, size in zip(gpus, (9, 7, 8), strict=False)]
    assert sizes_of(others) == (7, 9)
    assert sizes_of(others[1:2]) == (7, 7)
