"""The bounds of a policy's document, and the message for one more."""

import pytest
from tests.pool.policy_kit import parse, zone

from gpupool.pool.model.policy import Membership, Policy, Zone
from gpupool.pool.policy.policy_document import (
    PolicyTextError,
    Problem,
    parse_policy,
)

SPAN = "from='1:00'\nto='2:00'\n"
RULES_OF_ONE = "max_leases=1\nmax_gpus=1\ndepartment='p'\nidle_timeout='9s'\n"


def problems(text: str) -> list[tuple[int, str]]:
    """Return the mistakes of a document with their lines."""
    with pytest.raises(PolicyTextError) as caught:
        parse(text)
    return [(each.line, each.text) for each in caught.value.problems]


def rules(last: str) -> str:
    """Return a document with 2048 rules, 2044 in windows, and those of a last window."""
    text = "".join(f"[user.u{n}]\n{RULES_OF_ONE}" for n in range(512))
    text += "".join(f"[[window]]\n{SPAN}[window.user.u{n}]\n{RULES_OF_ONE}" for n in range(511))
    return f"{text}[[window]]\n{SPAN}[window.defaults]\n{last}"


def windows(count: int) -> str:
    return f"[[window]]\n{SPAN}[window.pool]\nmax_leases=1\n" * count


def reservations(count: int) -> str:
    return "[class.x]\n" + f"[[reservation]]\nclass='x'\ncount=1\n{SPAN}" * count


def rule_count(policy: Policy) -> int:
    return len(policy.rules) + sum(len(each.rules) for each in policy.windows)


def test_a_policy_has_4096_rules_at_most_those_of_windows_included() -> None:
    policy = parse(rules(RULES_OF_ONE))
    assert (rule_count(policy), len(policy.rules)) == (4096, 2048)
    more = rules(f"{RULES_OF_ONE}max_memory='1G'\n")
    assert problems(more) == [(0, "it has more than 4096 rules")]


def test_a_policy_has_512_windows_at_most() -> None:
    assert len(parse(windows(512)).windows) == 512
    assert problems(windows(513)) == [(1, "there are more than 512 of [[window]]")]


def test_a_policy_has_64_reservations_at_most() -> None:
    assert len(parse(reservations(64)).reservations) == 64
    assert problems(reservations(65)) == [(2, "there are more than 64 of [[reservation]]")]


def test_a_policy_names_16_zones_at_most() -> None:
    def zoned(count: int) -> str:
        names = [f"zone = 'Z{n}'\n" for n in range(count)]
        text = names[0] + "".join(
            f"[[window]]\n{name}{SPAN}[window.pool]\nmax_leases=1\n" for name in names
        )
        return text + windows(1)  # which has the zone of the document

    def zone_of(name: str) -> Zone:
        return Zone(name, (), (0,))

    policy = parse_policy(zoned(16), zone_of)
    assert sorted(policy.zones) == sorted(f"Z{n}" for n in range(16))
    assert policy.windows[-1].span.zone == "Z0"
    with pytest.raises(PolicyTextError) as caught:
        parse_policy(zoned(17), zone_of)
    assert caught.value.problems == (Problem(99, "it has more than 16 time zones"),)


def test_a_document_has_256_kib_at_most_of_its_encoding() -> None:
    end = "\nclass.x.priority = 1\n"
    long = "#" + "ö" * (128 * 1024 - len(end) // 2 - 1)
    whole = f"{long}{'x' * (256 * 1024 - len((long + end).encode()))}{end}"
    assert len(whole.encode()) == 256 * 1024
    assert len(parse(whole).rules) == 1
    assert problems(f"{whole}\n") == [(0, "it is larger than 256 KiB")]


def test_fifty_mistakes_are_told_and_no_more() -> None:
    for count in (49, 50, 51):
        found = problems("".join(f"a{n} = 1\n" for n in range(count)))
        assert [line for line, _ in found] == list(range(1, min(count, 50) + 1))


def test_a_mistake_is_told_in_300_characters_at_most() -> None:
    [(line, text)] = problems(f"{'k' * 1000} = 1\n")
    assert (line, text) == (1, f"unknown key '{'k' * 287}")
    assert len(text) == 300


def test_a_mistake_of_syntax_at_the_end_of_a_document_is_told_in_200_characters() -> None:
    [(line, text)] = problems(f"[{'k' * 300}]\n[{'k' * 300}")
    assert (line, text) == (0, f"Cannot declare ('{'k' * 183}")
    assert len(text) == 200


def test_a_policy_has_64_prices_at_most_the_currency_included() -> None:
    prices = "[prices]\ncurrency = 'EUR'\n" + "".join(f"m{n} = 1\n" for n in range(63))
    parse(prices)
    assert problems(f"{prices}m = 1\n") == [(1, "it has more than 64 prices")]


def test_one_mistake_is_told_once() -> None:
    text = "class is a table: write it as [class]"
    assert problems("class = 3\n") == [(1, text)]
    assert problems("user = 3\n") == [(1, text.replace("class", "user"))]


@pytest.mark.parametrize(("before", "hint"), [(199, "did you mean zebra?"), (200, "write [class.")])
def test_a_class_that_is_none_is_compared_with_200_names(before: int, hint: str) -> None:
    text = "".join(f"[class.{n:03}]\n" for n in range(before))
    [(line, found)] = problems(f"{text}[class.zebra]\n[user.ada]\nclass = 'zebrq'\n")
    assert line == before + 3
    assert found.startswith(f"there is no class 'zebrq'; {hint}")


# --- reservations and windows ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 65_536])
def test_a_reservation_keeps_at_least_one_gpu(count: int) -> None:
    text = f"[class.x]\n[[reservation]]\nclass='x'\ncount={count}\n{SPAN}"
    [reservation] = parse(text).reservations
    assert (reservation.gpu_count, reservation.name, reservation.line) == (count, "line 2", 2)
    assert (reservation.gpus, reservation.servers) == ((), ())


@pytest.mark.parametrize("count", ["0", "-1", "65537", "true", "1.0", "'1'"])
def test_a_reservation_of_no_number_of_gpus_is_refused(count: str) -> None:
    text = f"[class.x]\n[[reservation]]\nclass='x'\n{SPAN}count={count}\n"
    assert problems(text) == [(6, "count is the whole number of GPUs that are kept")]


def test_what_a_reservation_lacks_is_told_at_its_head() -> None:
    assert problems("\n[[reservation]]\n") == [
        (2, 'from: write a time of day such as "08:00", or a date: 2026-12-01T08:00:00'),
        (2, 'to: write a time of day such as "08:00", or a date: 2026-12-01T08:00:00'),
        (2, "the reservation says for no class: class = NAME"),
        (2, "count is the whole number of GPUs that are kept"),
    ]


def test_the_gpus_and_servers_of_a_reservation_are_read_as_those_of_rules() -> None:
    text = f"[class.x]\n[[reservation]]\nclass='x'\ncount=1\n{SPAN}"
    [kept] = parse(f"{text}gpus='*A100*'\nservers=['rack=1','rack=2']\nname='n'\n").reservations
    assert (kept.name, kept.gpus, kept.servers) == ("n", ("*A100*",), ("rack=1", "rack=2"))
    labels = 'servers: write labels as "key=value", or "name=server-*"'
    empty = "gpus: the list is empty, which would allow nothing"
    assert problems(f"{text}gpus=[]\nservers='a'\n") == [(7, empty), (8, labels)]


@pytest.mark.parametrize(
    ("leases", "ends", "suspends", "grace_ms"),
    [
        ("'keep'", False, False, 0),
        ("'end'\ngrace='5m'", True, False, 300_000),
        ("'end'\ngrace='0s'", True, False, 0),
        ("'suspend'", False, True, 0),
    ],
)
def test_a_window_says_what_becomes_of_leases(
    leases: str, ends: bool, suspends: bool, grace_ms: int
) -> None:
    [window] = parse(f"[[window]]\nleases={leases}\n{SPAN}[window.pool]\nmax_leases=1\n").windows
    found = (window.ends_leases, window.suspends_leases, window.grace_ms)
    assert found == (ends, suspends, grace_ms)


@pytest.mark.parametrize(
    ("leases", "line", "text"),
    [
        ("'stop'", 2, 'leases is "keep", "end" or "suspend"'),
        ("3", 2, 'leases is "keep", "end" or "suspend"'),
        ("'end'", 2, 'leases = "end" takes a grace, such as "15m"'),
        ("'keep'\ngrace='5m'", 3, 'grace is for leases = "end"'),
        ("'end'\ngrace=5", 3, 'grace: write a duration such as "30m", "1h30m" or "7d"'),
    ],
)
def test_what_a_window_cannot_do_with_leases(leases: str, line: int, text: str) -> None:
    document = f"[[window]]\nleases={leases}\n{SPAN}[window.pool]\nmax_leases=1\n"
    assert problems(document) == [(line, text)]


@pytest.mark.parametrize(
    ("days", "numbers"),
    [
        ("[]", ()),
        ("'sun'", (6,)),
        ("['Sunday','mon','Mon']", (0, 6)),
        ("['tue','wed']", (1, 2)),
        ("['thursday','fri','SAT']", (3, 4, 5)),
    ],
)
def test_the_days_of_a_span_are_numbered_from_monday(days: str, numbers: tuple[int, ...]) -> None:
    [window] = parse(f"[[window]]\ndays={days}\n{SPAN}[window.pool]\nmax_leases=1\n").windows
    assert window.span.days == numbers


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("from=2026-01-02\nto=2026-01-02", (3, "it ends before it begins")),
        ("from=2026-01-02\nto=2026-01-01", (3, "it ends before it begins")),
        ("from=2026-01-01\nto=2026-01-02\ndays=['mon']", (4, "days are for times of day")),
        ("from='1:00'\nto='1:00'", (3, "it ends when it begins; a whole day is 00:00 to 24:00")),
        ("from='1:00'\nto='2:00'\ndays='foo'",
         (4, "'foo' is no day: write mon, tue, wed, thu, fri, sat, sun")),
        ("from='1:00'\nto='2:00'\ndays=5",
         (4, 'days: write a list of words, such as ["a", "b*"]')),
    ],
)  # fmt: skip
def test_a_span_that_is_none_is_named_where_it_is(span: str, problem: tuple[int, str]) -> None:
    assert problems(f"[[window]]\n{span}\n[window.pool]\nmax_leases=1\n") == [problem]


def test_a_span_between_two_dates_is_over_at_the_second() -> None:
    text = "[[window]]\nfrom=2026-01-01\nto={}\n[window.pool]\nmax_leases=1\n"
    [window] = parse(text.format("2026-01-02")).windows
    assert window.span.once
    assert window.span.end - window.span.start == 86_400_000


# --- classes --------------------------------------------------------------------------------------


def test_a_member_without_brackets_has_the_line_of_its_key() -> None:
    assert parse("[class.x]\npriority = 1\nusers = 'ada'\n").members == (Membership("ada", "x", 3),)


def test_members_in_brackets_have_the_line_of_their_key() -> None:
    text = "[class.x]\nusers = [\n'b*',\n'ada', 'c?',\n'd[ef]']\n[user.gil]\nclass = 'x'\n"
    assert parse(f"{text}[defaults]\nclass = 'x'\n").members == (
        Membership("ada", "x", 2),
        Membership("gil", "x", 7),
        Membership("b*", "x", 2),
        Membership("c?", "x", 2),
        Membership("d[ef]", "x", 2),
        Membership("*", "x", 9),
    )


def test_a_user_may_be_put_in_one_class_twice_and_in_no_second_one() -> None:
    text = "[class.x]\nusers = ['ada']\n[class.y]\n[user.ada]\nclass = '{}'\n"
    assert parse(text.format("x")).members == (Membership("ada", "x", 2),)
    why = "user ada is in class x (line 2) already; each has one class"
    assert problems(text.format("y")) == [(5, why)]


@pytest.mark.parametrize("length", [1, 64])
def test_a_name_that_is_referred_to_has_64_characters_at_most(length: int) -> None:
    name = "n" * length
    window = f"[[window]]\nname = '{name}'\n{SPAN}[window.pool]\nmax_leases=1\n"
    kept = f"[[reservation]]\nclass = '{name}'\nname = '{name}'\ncount = 1\n{SPAN}"
    members = f"[class.{name}]\n[user.ada]\nclass = '{name}'\n"
    policy = parse(members + window + kept)
    assert policy.members == (Membership("ada", name, 3),)
    assert [each.name for each in policy.windows] == [name]
    assert [(each.name, each.group) for each in policy.reservations] == [(name, name)]
    too_long = window.replace(name + "'", "n" * 65 + "'")
    assert problems(too_long) == [(2, "name is a name of at most 64 characters")]


@pytest.mark.parametrize(
    ("table", "key"),
    [("class.x", "users"), ("user.ada", "class"), ("defaults", "class"), ("pool", "gpus")],
)
def test_a_window_changes_nobodys_class(table: str, key: str) -> None:
    text = f"[class.x]\n[[window]]\n{SPAN}[window.{table}]\nmax_gpus = 1\n{key} = 'x'\n"
    [(line, found)] = problems(text)
    where = f"[window.{table}]"
    assert line == 7
    assert found.startswith(f"unknown key '{key}' in {where}; ")


@pytest.mark.parametrize("name", ["n", "n" * 64])
def test_the_shortest_and_the_longest_names_are_taken(name: str) -> None:
    policy = parse(f"[class.{name}]\nmax_gpus=1\n[user.{name}]\nmax_gpus=1\n")
    assert [(each.target, each.name) for each in policy.rules] == [("class", name), ("user", name)]


@pytest.mark.parametrize("target", ["class", "user"])
@pytest.mark.parametrize("name", ["''", "n" * 65])
def test_names_that_are_too_short_or_too_long_are_refused(target: str, name: str) -> None:
    text = f"[{target}.{name}]\nmax_gpus=1\n"
    assert problems(text) == [(1, "a name has 1 to 64 characters")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class = 3\n", (1, "class is a table: write it as [class]")),
        ("[class]\nx = 3\n", (2, "x is a table: write it as [class.x]")),
        ("zone = 3\n", (1, "zone is a name of at most 64 characters")),
        (f"zone = '{'z' * 65}'\n", (1, "zone is a name of at most 64 characters")),
        ("[defaults]\nclass = 3\n", (2, "class is a name of at most 64 characters")),
        ("window = 3\n", (1, "write it with two brackets: [[window]]")),
        ("[prices]\nm = 'x'\n", (2, "m: a price is a number, such as 2.10")),
        ("[prices]\ncurrency = 1\n",
         (2, "currency: a currency is a word of at most 8 characters")),
        ("x = \n", (1, "invalid value (column 5)")),
    ],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_says_what_it_should_be(
    text: str, problem: tuple[int, str]
) -> None:
    assert problems(text) == [problem]


def test_a_problem_of_the_whole_document_has_no_line() -> None:
    assert str(Problem(0, "wrong")) == "wrong"
    assert str(Problem(1, "wrong")) == "line 1: wrong"
    with pytest.raises(PolicyTextError, match=r"line 1: unknown .*; line 2: unknown "):
        parse_policy("a = 1\nb = 1\n", zone)
