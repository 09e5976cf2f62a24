"""Opening times of windows, to the millisecond; a rulebook's kept times, and those found anew."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import MONDAY_MS, at, parse, zone

from gpupool.pool.model.policy import Policy, Span
from gpupool.pool.model.units import DAY_MS
from gpupool.pool.policy import rulebook as module
from gpupool.pool.policy.policy_calendar import FOREVER, UTC, Phase, offset_ms, phase
from gpupool.pool.policy.rulebook import Rulebook, rulebook

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("name", "moment", "offset"),
    [
        ("UTC", "2026-07-01 00:00", 0),
        ("Europe/Berlin", "2027-03-28 00:59:59", HOUR_MS),
        ("Europe/Berlin", "2027-03-28 01:00:00", 2 * HOUR_MS),
        ("America/New_York", "2026-12-01 00:00", -5 * HOUR_MS),
        ("Asia/Kolkata", "2026-12-01 00:00", 5 * HOUR_MS + HOUR_MS // 2),
    ],
)
def test_clocks_are_ahead_of_utc_by_whole_seconds(name: str, moment: str, offset: int) -> None:
    found = zone(name)
    assert found is not None
    assert offset_ms(found, at(moment)) == offset


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-24 06:00", (False, "2026-11-23 10:00", "2026-11-24 09:00")),
        ("2026-11-24 09:00", (True, "2026-11-24 09:00", "2026-11-24 10:00")),
        ("2026-11-24 09:59:59", (True, "2026-11-24 09:00", "2026-11-24 10:00")),
        ("2026-11-24 10:00", (False, "2026-11-24 10:00", "2026-11-25 09:00")),
    ],
)
def test_a_daily_span_is_open_from_its_start_until_its_end(
    moment: str, expected: tuple[bool, str, str]
) -> None:
    holds, since, until = expected
    span = Span("UTC", 9 * HOUR_MS, 10 * HOUR_MS)
    assert phase(span, UTC, at(moment)) == Phase(holds, at(since), at(until))


def test_a_weekly_window_whose_next_time_clocks_skip_opens_a_week_later() -> None:
    """A rulebook's memory of the week before equals the finding of one of that day."""
    text = """
        zone = "Europe/Berlin"
        [[window]]
        from = "02:15"
        to = "02:45"
        days = ["sun"]
        [window.pool]
        max_leases = 1
    """
    policy = replace(parse(text), version=1, digest=b"x")
    old, new = Rulebook(policy), Rulebook(policy)
    assert not old.moment(at("2027-03-25 12:00")).active  # there is no 02:15 on the 28th
    for moment in ("2027-03-28 00:30", "2027-03-29 12:00", "2027-04-05 12:00"):
        assert not old.moment(at(moment)).active
    assert old.moment(at("2027-04-11 00:30")).active == new.moment(at("2027-04-11 00:30")).active
    assert new.moment(at("2027-04-11 00:30")).active == {0}


@pytest.mark.parametrize("first", range(0, 21, 3))
def test_a_phase_says_nothing_of_times_for_which_it_is_not_true(first: int) -> None:
    berlin = zone("Europe/Berlin")
    assert berlin is not None
    span = Span("Europe/Berlin", 2 * HOUR_MS + HOUR_MS // 4, 2 * HOUR_MS + HOUR_MS // 2, (6,))
    known = phase(span, berlin, begins := at("2027-03-20 12:00") + first * DAY_MS)
    for hour in range(-24 * 20, 24 * 20):
        now = begins + hour * HOUR_MS
        if known.since <= now < known.until:
            assert phase(span, berlin, now).holds == known.holds


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-22 23:59", (False, "2026-11-22 00:00", "2026-11-27 00:00")),
        ("2026-11-27 00:00", (True, "2026-11-27 00:00", "2026-11-29 00:00")),
        ("2026-11-28 12:00", (True, "2026-11-27 00:00", "2026-11-29 00:00")),
        ("2026-11-29 00:00", (False, "2026-11-29 00:00", "2026-12-04 00:00")),
    ],
)
def test_days_that_meet_are_one_opening(moment: str, expected: tuple[bool, str, str]) -> None:
    holds, since, until = expected
    friday_and_saturday = Span("UTC", 0, DAY_MS, (4, 5))
    assert phase(friday_and_saturday, UTC, at(moment)) == Phase(holds, at(since), at(until))


def test_a_span_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    friday = Span("UTC", 22 * HOUR_MS, 6 * HOUR_MS, (4,))
    opened, closed = at("2026-11-27 22:00"), at("2026-11-28 06:00")
    assert phase(friday, UTC, opened - 1) == Phase(False, at("2026-11-21 06:00"), opened)
    assert phase(friday, UTC, closed - 1) == Phase(True, opened, closed)
    assert phase(friday, UTC, closed) == Phase(False, closed, at("2026-12-04 22:00"))


def test_a_span_of_every_hour_is_open_without_a_break() -> None:
    for span in (Span("UTC", 0, DAY_MS), Span("UTC", 0, DAY_MS, tuple(range(7)))):
        found = phase(span, UTC, MONDAY_MS)
        assert found.holds
        assert found.since <= MONDAY_MS - 7 * DAY_MS
        assert found.until >= MONDAY_MS + 7 * DAY_MS


def test_a_span_that_clocks_skip_was_not_open_then() -> None:
    berlin = zone("Europe/Berlin")
    assert berlin is not None
    sunday = Span("Europe/Berlin", 2 * HOUR_MS + 900_000, 3 * HOUR_MS - 900_000, (6,))
    skipped = at("2027-03-28 01:00")
    next_one = at("2027-04-04 00:15")
    assert not phase(sunday, berlin, skipped).holds
    known_since = at("2027-03-25 23:00")  # the last opening was on the 21st
    assert phase(sunday, berlin, at("2027-04-02 12:00")) == Phase(False, known_since, next_one)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (999, Phase(False, 0, 1000)),
        (1000, Phase(True, 1000, 5000)),
        (4999, Phase(True, 1000, 5000)),
        (5000, Phase(False, 5000, FOREVER)),
    ],
)
def test_a_span_between_dates_opens_once(moment: int, expected: Phase) -> None:
    assert phase(Span("UTC", 1000, 5000, once=True), UTC, moment) == expected


# --- rulebooks ------------------------------------------------------------------------------------

HOURS = """
[[window]]
from = "00:00"
to = "01:00"
[window.pool]
max_leases = 1
[[window]]
from = "01:00"
to = "02:00"
[window.pool]
max_leases = 2
"""


def in_force(text: str, version: int = 1) -> Policy:
    return replace(parse(text), version=version, digest=bytes([version]))


@pytest.mark.parametrize(
    ("now", "active"),
    [
        (0, {0}),
        (HOUR_MS - 1, {0}),
        (HOUR_MS, {1}),
        (2 * HOUR_MS - 1, {1}),
        (2 * HOUR_MS, set[int]()),
    ],
)
def test_windows_are_open_from_the_first_millisecond_of_time_on(now: int, active: set[int]) -> None:
    assert Rulebook(in_force(HOURS)).moment(now).active == active


def test_a_moment_reaches_from_one_change_to_the_next() -> None:
    book = Rulebook(in_force(HOURS))
    moment = book.moment(MONDAY_MS + HOUR_MS)
    assert (moment.start, moment.end) == (MONDAY_MS + HOUR_MS, MONDAY_MS + 2 * HOUR_MS)
    assert book.moment(moment.end - 1) is moment
    assert book.moment(moment.end).active == set()
    assert book.moment(moment.start).active == {1}, "and back"
    without = Rulebook(in_force("[pool]\nmax_leases = 1\n")).moment(5)
    assert (without.active, without.start, without.end) == (frozenset(), 0, FOREVER)


@pytest.mark.parametrize("key", ["max_gpus", "max_leases", "max_memory"])
@pytest.mark.parametrize("place", ["defaults", "pool", "class.x", "user.a"])
def test_a_limit_anywhere_makes_requests_wait_for_it(place: str, key: str) -> None:
    value = "'none'" if key == "max_memory" else "1"
    assert Rulebook(in_force(f"[{place}]\n{key} = {value}\n")).has_caps


def test_a_book_says_what_its_rules_are_about() -> None:
    def about(text: str) -> tuple[bool, ...]:
        book = Rulebook(in_force(text))
        limits = (book.has_caps, book.has_priorities, book.has_weights)
        return (*limits, book.ends_leases, book.suspends_leases)

    window = "[[window]]\nfrom='1:00'\nto='2:00'\nleases={}\n[window.class.x]\ngpus='*'\n[class.x]"
    no = False
    assert about("") == (no, no, no, no, no)
    assert about("[defaults]\ngpus = ['*']\nidle_timeout = '1h'\n") == (no, no, no, no, no)
    assert about("[class.x]\nmax_gpus_per_user = 1\n") == (True, no, no, no, no)
    assert about("[class.x]\npriority = 1\n") == (no, True, no, no, no)
    assert about("[class.x]\nweight = 1\n") == (no, no, True, no, no)
    assert about(window.format("'end'\ngrace='1m'")) == (no, no, no, True, no)
    assert about(window.format("'suspend'")) == (no, no, no, no, True)
    assert about(window.format("'keep'")) == (no, no, no, no, no)
    assert about(HOURS) == (True, no, no, no, no)


CLASSES = """
[class.x]
users = ["ada", "b*", "c*"]
[class.y]
users = ["bob", "c*"]
[defaults]
class = "y"
"""


def test_users_are_in_the_class_that_names_them_before_the_first_that_matches() -> None:
    users = ("ada", "bob", "bert", "cy", "dee")
    classes = ["x", "y", "x", "x", "y"]
    book = Rulebook(in_force(CLASSES))
    assert book.groups_of(users) == classes
    assert book.groups_of(users) == classes, "and once they are known"
    assert [Rulebook(in_force(CLASSES)).group_of(user) for user in users] == classes
    few = Rulebook(in_force("[class.x]\nusers = ['ada', 'b*']\n"))
    assert few.groups_of(["zoe", "bob", "ada"]) == ["", "x", "x"]
    assert few.groups_of([]) == []


def test_classes_of_more_users_than_are_remembered_are_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "USER_COUNT_MAX", 4)
    book = Rulebook(in_force(CLASSES))
    for _ in range(2):
        for number in range(9):
            assert book.group_of(f"b{number}") == "x"
            assert book.group_of("bob") == "y"
        assert len(book._groups) <= 4  # pyright: ignore[reportPrivateUsage]


def test_terms_of_more_users_than_are_remembered_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "USER_COUNT_MAX", 4)
    moment = Rulebook(in_force(CLASSES + HOURS)).moment(MONDAY_MS)
    for _ in range(2):
        for number in range(9):
            user = f"b{number}"
            assert (moment.terms(user).user, moment.terms(user).group) == (user, "x")
            assert len(moment.later(user)) == 2
        assert len(moment._terms) <= 4  # pyright: ignore[reportPrivateUsage]
        assert len(moment._later) <= 4  # pyright: ignore[reportPrivateUsage]


def test_a_window_of_several_classes_is_ahead_for_each() -> None:
    text = "[class.x]\nusers=['ada']\n[class.y]\nusers=['bob']\n" + (
        "[[window]]\nfrom='1:00'\nto='2:00'\n[window.class.x]\nmax_gpus=1\n"
        "[window.class.y]\nmax_gpus=2\n"
        "[[window]]\nfrom='3:00'\nto='4:00'\n[window.user.bob]\nmax_gpus=3\n"
    )
    moment = Rulebook(in_force(text)).moment(MONDAY_MS)
    for user, starts in (("ada", [1]), ("bob", [1, 3])):
        found = [(each.start - MONDAY_MS) // HOUR_MS for each in moment.later(user)]
        assert found == starts


def test_the_latest_eight_policies_stay_compiled() -> None:
    policies = [in_force(HOURS, version) for version in range(101, 110)]
    books = [rulebook(each) for each in policies[:8]]
    assert [rulebook(each) for each in policies[:8]] == books
    assert rulebook(policies[0]) is books[0]
    assert rulebook(in_force(HOURS, 101)) is books[0], "an equal one"
    last = rulebook(policies[8])
    assert rulebook(policies[8]) is last
    assert rulebook(policies[1]) is books[1]
    assert rulebook(policies[0]) is not books[0]


def test_a_policy_that_says_the_digest_of_another_gets_its_own_book() -> None:
    one, other = in_force(HOURS, 99), in_force("[pool]\nmax_leases = 7\n", 99)
    assert rulebook(one).policy is one
    assert rulebook(other).policy is other
    assert rulebook(one).policy is one


def test_a_pool_that_was_never_given_a_policy_has_no_rules() -> None:
    assert rulebook(Policy()) is rulebook(Policy())
    draft = rulebook(in_force("[pool]\nmax_leases = 0\n", 0))
    assert draft.moment(MONDAY_MS).terms("ada").caps == ()


@pytest.mark.parametrize(("value", "ms"), [("'none'", 0), ("'2s'", 2000), ("'1h'", HOUR_MS)])
def test_no_limit_of_time_is_as_none_at_all(value: str, ms: int) -> None:
    rules = f"[user.ada]\nidle_timeout = {value}\nmax_lease_time = {value}\n"
    text = f"[defaults]\nidle_timeout = '9s'\nmax_lease_time = '9s'\n{rules}"
    moment = Rulebook(in_force(text)).moment(MONDAY_MS)
    ada, bob = moment.terms("ada"), moment.terms("bob")
    assert (ada.idle_timeout_ms, ada.max_lease_ms) == (ms, ms)
    assert (bob.idle_timeout_ms, bob.max_lease_ms) == (9000, 9000)
    alone = Rulebook(in_force("")).moment(MONDAY_MS).terms("ada")
    assert (alone.idle_timeout_ms, alone.max_lease_ms) == (0, 0)
    assert (alone.priority, alone.min_run_ms, alone.department) == (0, 600_000, "")
