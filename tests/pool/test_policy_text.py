"""A policy's document: its syntax, and that every mistake names its line."""

import string
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import parse
from tests.properties import examples

from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.policy import NO_LIMIT, Membership, Policy, Rule, Span, Window
from gpupool.pool.policy.policy_document import PolicyTextError, key_lines
from gpupool.pool.policy.prices import PRICE_COUNT_MAX

WHOLE = """\
zone = "Europe/Berlin"

[defaults]
max_gpus = 2.5              # each user
idle_timeout = "1h30m"
class = "guests"

[pool]
max_memory = "1.5T"

[class.students]
users = ["ada", "s-*"]
max_gpus = 16
max_gpus_per_user = 2
gpus = ["*A100*"]
servers = "rack=2"
priority = -5
data_encryption = "off"

[class.guests]
max_leases = 3

[user.boss]
max_gpus = "none"

[[window]]
name = "night"
days = ["mon", "Friday"]
from = "22:00"
to = 06:30:00
leases = "end"
grace = "15m"

[window.class.students]
max_gpus = 64

[[window]]
from = 2026-12-24
to = 2026-12-27T08:00:00+01:00
[window.defaults]
max_lease_time = "2d"

[[reservation]]
name = "course"
class = "students"
count = 4
gpus = "*H200*"
zone = "UTC"
from = "08:00"
to = "12:00"
days = ["tue"]
"""


def rule_of(policy: Policy, target: str, name: str, key: str) -> Rule:
    return next(r for r in policy.rules if (r.target, r.name, r.key) == (target, name, key))


def test_everything_that_can_be_written_is_read() -> None:
    policy = parse(WHOLE)
    assert rule_of(policy, "defaults", "", "max_gpus") == Rule("defaults", "", "max_gpus", 4, 2500)
    assert rule_of(policy, "defaults", "", "idle_timeout").number == 5_400_000
    assert rule_of(policy, "pool", "", "max_memory").number == 3 << 39
    assert rule_of(policy, "class", "students", "gpus").words == ("*A100*",)
    assert rule_of(policy, "class", "students", "servers").words == ("rack=2",)
    assert rule_of(policy, "class", "students", "priority").number == -5
    assert rule_of(policy, "user", "boss", "max_gpus").number == NO_LIMIT
    night, holiday = policy.windows
    assert night.name == "night"
    assert night.line == 26
    assert night.ends_leases
    assert night.grace_ms == 900_000
    assert night.span == Span("Europe/Berlin", 79_200_000, 23_400_000, (0, 4))
    assert night.rules == (Rule("class", "students", "max_gpus", 35, 64_000),)
    assert holiday.name == "line 37"
    assert holiday.span.once
    assert holiday.rules[0].line == 41
    [course] = policy.reservations
    assert (course.group, course.gpu_count, course.gpus) == ("students", 4, ("*H200*",))
    assert policy.members == (
        Membership("ada", "students", 12),
        Membership("s-*", "students", 12),
        Membership("*", "guests", 6),
    )
    assert set(policy.zones) == {"Europe/Berlin", "UTC"}
    assert parse("").zones.keys() == {"UTC"}
    assert parse("").rules == ()


WINDOW = "[[window]]\n"
RULE = "\n[window.pool]\nmax_leases=1"
RESERVED = "[class.x]\n[[reservation]]\nclass='x'\n"
MISTAKES = {
    "[defaults]\nmax_gpu = 2": "line 2: unknown key 'max_gpu' in [defaults]; did you mean max_gpu",
    "a = 1": "line 1: unknown key 'a'; known are zone,",
    "b = \n": "line 1: invalid value",
    "[defaults]\n\nmax_gpus = 1.2345": "line 3: max_gpus: write three decimals at most",
    "[defaults]\nmax_gpus = inf": "line 2: max_gpus: write a number of GPUs",
    "[defaults]\nmax_gpus = -1": "line 2: max_gpus: write a number of GPUs",
    "[defaults]\nmax_gpus = true": "line 2: max_gpus: write a number of GPUs",
    "[defaults]\nmax_memory = 80": 'line 2: max_memory: write a size such as "80GiB"',
    "[pool]\nmax_memory = '80'": "line 2: max_memory: '80' is not a size: write a number and its",
    "[defaults]\nmax_leases = 1.5": "line 2: max_leases: write a whole number",
    "[defaults]\nidle_timeout = 30": 'line 2: idle_timeout: write a duration such as "30m"',
    "[defaults]\nidle_timeout = '1s'": "line 2: idle_timeout: write at least 2s",
    "[defaults]\ngpus = []": "line 2: gpus: the list is empty",
    "[defaults]\nservers = ['rack1']": "line 2: servers: write labels as",
    "[defaults]\ndata_encryption = 'no'": 'line 2: data_encryption: write "tls" or "off"',
    "[defaults]\nclass = 'x'": "line 2: there is no class 'x'; write [class.x]",
    "[user.bob]\nclass='studnets'\n[class.students]": "line 2: there is no class 'studnets'; did",
    "[class.x]\npriority = 'high'": "line 2: priority: write a whole number",
    "[user.bob]\npriority = 1": "line 2: unknown key 'priority' in [user.bob]",
    f"[user.{'n' * 65}]\nmax_gpus = 1": "line 1: a name has 1 to 64 characters",
    "[user.'']\nmax_gpus = 1": "line 1: a name has 1 to 64 characters",
    "[pool]\nmax_gpus_per_user = 1": "line 2: unknown key 'max_gpus_per_user' in [pool]",
    "[class.x]\nusers=['a']\n[class.y]\nusers=['a']": "line 4: user a is in class x (line 2)",
    "zone = 'Mars/Base'": "line 1: 'Mars/Base' is no time zone",
    "zone = ''": "line 1: '' is no time zone",
    "class = 3": "line 1: class is a table: write it as [class]",
    "[window]\nfrom = '1:00'": "line 1: write it with two brackets: [[window]]",
    WINDOW + "to = '1:00'" + RULE: "line 1: from: write a time of day",
    WINDOW + "from='25:00'\nto='1:00'" + RULE: "line 2: from: 25:00 is no time",
    WINDOW + "from='1:00'\nto='1:00'" + RULE: "line 3: it ends when it begins",
    WINDOW + "from='1:00'\nto=2026-01-01" + RULE: "line 3: from and to are both",
    WINDOW + "from='1:00'\nto='2:00'": "line 1: the window has no rules",
    WINDOW + "from='1:00'\nto='2:00'\ndays=['mon',\n'foo']" + RULE: "line 4: 'foo' is no day",
    WINDOW + "from='1:00'\nto='2:00'\ndays=['monday', 'monkey']" + RULE: "'monkey' is no day: ",
    WINDOW + "from='1:00'\nto='2:00'\ncolour='red'" + RULE: "line 4: unknown key 'colour' in [[win",
    RESERVED + "from='1:00'\nto='2:00'\ncount=1\ncolour=1": "line 7: unknown key 'colour' in [[res",
    WINDOW + "from='1:00'\nto='2:00'\nleases='end'" + RULE: "line 4: leases = ",
    WINDOW + "from='1:00'\nto='2:00'\ngrace='5m'" + RULE: "line 4: grace is for",
    WINDOW + "from='1:00'\nto='2:00'\nleases='suspend'\ngrace='5m'" + RULE: "line 5: grace is",
    "[class.x]\npreemptible = 1": "line 2: preemptible: write true or false",
    "[class.x]\nmin_run_time = 'none'": "line 2: min_run_time: write a duration such as",
    "[class.x]\nguarantee = 'none'": "line 2: guarantee: write a number of GPUs such as 2.5",
    "[defaults]\nguarantee = 2": "line 2: unknown key 'guarantee' in [defaults]",
    "[class.x]\nweight = 0": "line 2: weight: write a number from 0.1 to 10, such as 2.5",
    "[class.x]\nweight = 10.001": "line 2: weight: write a number from 0.1 to 10",
    "[class.x]\nweight = nan": "line 2: weight: write a number from 0.1 to 10",
    "[class.x]\nweight = 'none'": "line 2: weight: write a number from 0.1 to 10",
    "[class.x]\nweight = true": "line 2: weight: write a number from 0.1 to 10",
    "[class.x]\nweight = 1.0001": "line 2: weight: write three decimals at most",
    "[defaults]\nweight = 2": "line 2: unknown key 'weight' in [defaults]",
    "[user.a]\npreemptible = true": "line 2: unknown key 'preemptible' in [user.a]",
    "[class.x]\nmax_gpus = 1.5\nguarantee = 2": "line 3: guarantee: it is 2 GPUs, and class x "
    "may hold 1.5 GPUs (line 2)",
    "[pool]\nmax_gpus = 3\n[class.x]\nguarantee = 2\n[class.y]\nguarantee = 1.5": "line 6: "
    "guarantee: all classes together have 3.5 GPUs, and all users may hold 3 (line 2)",
    "[class.x]\nguarantee=2\n[[window]]\nfrom='1:00'\nto='2:00'\n[window.class.x]\nmax_gpus=1": (
        "line 2: guarantee: it is 2 GPUs, and class x may hold 1 GPUs (line 7)"
    ),
    "[class.x]\nguarantee=2\n[[window]]\nfrom='1:00'\nto='2:00'\n[window.class.x]\npriority=1\n"
    "max_gpus=1": "line 2: guarantee: it is 2 GPUs, and class x may hold 1 GPUs (line 8)",
    WINDOW + "from='1:00'\nto='2:00'\n[window.class.x]\nmax_leases=1": "line 4: there is no class",
    "[[reservation]]\nfrom='1:00'\nto='2:00'\ncount=1": "line 1: the reservation says for no class",
    "[class.x]\ndepartment = 'a\u0080b'": "line 2: department: write a name without control",
    "[[reservation]]\n" * 65: "there are more than 64 of",
    RESERVED + "from='1:00'\nto='2:00'\ncount=0": "line 6: count is the whole",
    RESERVED + "from=2026-02-01\nto=2026-01-01\ncount=1": "line 5: it ends before it begins",
    "# long\n" + "x" * 300_000: "it is larger than 256 KiB",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_named_with_its_line(text: str) -> None:
    with pytest.raises(PolicyTextError) as caught:
        parse(text)
    assert MISTAKES[text] in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(PolicyTextError) as caught:
        parse("[defaults]\nmax_gpus = 'x'\nmax_lases = 2\n[class.a]\nmax_leases = -1\n")
    assert [problem.line for problem in caught.value.problems] == [2, 3, 5]


# --- lines ----------------------------------------------------------------------------------------

BARE = st.text(string.ascii_lowercase + string.digits + "-_", min_size=1, max_size=4)
KEYS = st.one_of(BARE, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4))
SCALARS = st.one_of(
    st.integers(-99, 99).map(str),
    st.sampled_from(
        ["true", "1.5", "07:30:00", "2026-01-01 08:00:00", '""', "''", '"a # ] } b"', "'a, \"b'"]
    ),
    st.sampled_from(['"""a\\"""b"""', '"\\"q\\\\"']),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: "[ " + ", ".join(each) + " ]"),
        st.dictionaries(BARE, inner, max_size=2).map(
            lambda each: "{ " + ", ".join(f"{k} = {v}" for k, v in each.items()) + " }"
        ),
    ),
    max_leaves=6,
)


def quoted(key: str) -> str:
    if key.isascii() and all(each.isalnum() or each in "-_" for each in key):
        return key
    body = "".join(f"\\U{ord(each):08x}" for each in key)
    return f'"{body}"'


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return lines of TOML, most of which make a valid document."""
    lines: list[str] = []
    for _ in range(draw(st.integers(0, 8))):
        name = ".".join(quoted(each) for each in draw(st.lists(KEYS, min_size=1, max_size=2)))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            lines.append(f"[ {name} ] # table")
        elif kind == 1:
            lines.append(f"[[{name}]]")
        elif kind == 2:
            lines.append(draw(st.sampled_from(["", "# a = 1", "  ", "\t# [b]"])))
        else:
            lines.append(f"{name} = {draw(VALUES)}")
    return "\n".join(lines)


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    found = {path: value} if path else {}
    if isinstance(value, dict):
        for key, each in value.items():  # pyright: ignore[reportUnknownVariableType]
            found |= paths_of(each, (*path, key))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, list):
        for index, each in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            found |= paths_of(each, (*path, index))
    return found


@given(documents())
@settings(max_examples=examples(400), deadline=None)
def test_every_key_of_any_document_has_its_line(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    lines = key_lines(text)
    paths = paths_of(document)
    assert {(key,) for key in document} <= lines.keys() <= paths.keys()
    for path, line in lines.items():
        # The document up to that line has the key, and up to the line before it has not.
        before = "\n".join(text.split("\n")[: line - 1])
        if isinstance(path[-1], str):
            assert quoted(path[-1]) in text.split("\n")[line - 1]
        try:
            earlier = tomllib.loads(before)
        except tomllib.TOMLDecodeError:
            continue  # the line is within a value
        assert path not in paths_of(earlier)


@given(st.text(alphabet=string.printable, max_size=80))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_a_policy_or_names_its_mistakes(text: str) -> None:
    try:
        parse(text)
    except PolicyTextError as error:
        if not error.problems:
            raise AssertionError("it names no mistake") from error


def test_a_policy_has_a_number_of_prices_at_most() -> None:
    def priced(count: int) -> str:
        return "[prices]\n" + "".join(f'"model {n}" = 1\n' for n in range(count))

    parse(priced(PRICE_COUNT_MAX))
    with pytest.raises(PolicyTextError, match=f"more than {PRICE_COUNT_MAX} prices"):
        parse(priced(PRICE_COUNT_MAX + 1))


def test_an_hour_has_sixty_minutes_and_a_minute_sixty_seconds() -> None:
    [window] = parse(WINDOW + "from='0:59'\nto='1:00:59'" + RULE).windows
    assert (window.span.start, window.span.end) == (3_540_000, 3_659_000)
    for wrong in ("0:60", "0:00:60"):
        with pytest.raises(PolicyTextError, match="is no time of day"):
            parse(WINDOW + f"from='{wrong}'\nto='2:00'" + RULE)


def test_a_window_of_before_leases_could_be_suspended_suspends_none() -> None:
    """Only a window that does has it written, so that older servers read all others."""
    for leases, suspends in (("keep", False), ("suspend", True)):
        [window] = parse(WINDOW + f"from='1:00'\nto='2:00'\nleases='{leases}'" + RULE).windows
        plain = encode(window)
        assert isinstance(plain, dict)
        assert ("suspends_leases" in plain) is suspends
        assert decode(Window, plain).suspends_leases is suspends
