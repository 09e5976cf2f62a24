"""The log of alerts at the very edges of its times, its limit and its roles."""

from dataclasses import replace

import pytest

from gpupool.pool.alert_log import (
    ALERTS_A_MESSAGE,
    NO_MAJORITY,
    Alert,
    AlertLog,
    Condition,
    Message,
    Rule,
    Times,
    alert_id,
)

FAULT = Rule("GpuFault", "critical", "A GPU is at fault.", "fault > 0")
SLOW = Rule("Disk", "warning", "A disk is slow.", "slow > 0", for_s=30.0)
CUT_OFF = Rule(NO_MAJORITY, "critical", "No majority.", "majority == 0")
AT_ONCE = Times(group_s=0.0, silent_first_s=0.0)
HOUR_S = 3600.0


def bad(subject: str = "a", rule: Rule = FAULT) -> Condition:
    return Condition(rule, subject, f"{subject} is bad", "look at it")


class Looks:
    """The looks of one server, and the alerts that each of them told."""

    def __init__(self, times: Times | None = None) -> None:
        self.log = AlertLog() if times is None else AlertLog(times)
        self.sends = self.majority = True

    def message(self, now_s: float, *conditions: Condition) -> Message | None:
        now_ms = int(1000 * now_s)
        return self.log.look(conditions, now_s, now_ms, sends=self.sends, majority=self.majority)

    def told(self, now_s: float, *conditions: Condition) -> list[str]:
        """Return the subjects that are told of, with a star where it is over."""
        message = self.message(now_s, *conditions)
        alerts = message.alerts if message is not None else ()
        return [each.subject + "*" * bool(each.ended_ms) for each in alerts]


def looked_to(looks: Looks, now_s: float, *conditions: Condition, step: float = 5.0) -> None:
    """Look every few seconds up to a moment, at which nothing has been told."""
    first_s = now_s - 200.0
    for number in range(int(200.0 / step) + 1):
        assert looks.told(first_s + number * step, *conditions) == []


def test_the_first_look_is_followed_by_a_minute_of_silence() -> None:
    looks = Looks()
    found = [looks.told(float(second), bad()) for second in range(70)]
    assert [second for second, told in enumerate(found) if told] == [60]


def test_what_begins_later_is_told_half_a_minute_after_it_began() -> None:
    looks = Looks()
    looked_to(looks, 500.0)
    assert looks.told(505.0, bad()) == []
    assert looks.told(534.0, bad(), bad("b")) == []
    assert looks.told(535.0, bad(), bad("b")) == ["a", "b"]


def test_a_condition_fires_once_it_has_held_for_as_long_as_its_rule_says() -> None:
    looks = Looks(AT_ONCE)
    assert looks.told(10.0, bad(rule=SLOW)) == []
    assert looks.told(39.0, bad(rule=SLOW)) == []
    assert looks.told(40.0, bad(rule=SLOW)) == ["a"]


def test_a_sender_begins_anew_after_more_than_half_a_minute_without_a_look() -> None:
    for without_s, told in ((30.0, ["a"]), (31.0, [])):
        looks = Looks()
        looked_to(looks, 500.0)
        assert looks.told(505.0, bad()) == []
        assert looks.told(505.0 + without_s, bad()) == told


def test_a_condition_is_over_after_a_quarter_of_a_minute_without_it() -> None:
    looks = Looks(replace(AT_ONCE, over_after_s=Times().over_after_s))
    assert looks.told(10.0, bad()) == ["a"]
    assert looks.told(24.0) == []
    assert looks.told(24.5, bad()) == []
    assert looks.told(39.0) == []
    assert looks.told(39.5) == ["a*"]
    assert looks.told(60.0) == [], "once"
    assert looks.told(61.0, bad()) == ["a"], "and this is another one"


def test_what_comes_back_before_its_end_is_told_is_another_alert() -> None:
    looks = Looks(Times(group_s=30.0, silent_first_s=0.0))
    assert looks.told(10.0, bad()) == []
    [first] = alerts(looks.message(40.0, bad()))
    assert looks.told(55.0) == []
    assert looks.told(70.0, bad()) == []
    [again] = alerts(looks.message(100.0, bad()))
    assert (first.began_ms, first.ended_ms) == (10_000, 0)
    assert (again.began_ms, again.ended_ms) == (70_000, 0)


def test_what_goes_on_is_told_again_after_four_hours_and_then_after_four_more() -> None:
    looks = Looks(Times(group_s=0.0, silent_first_s=0.0, standstill_s=1e9))
    assert looks.told(1.0, bad()) == ["a"]
    for hours in (4, 8):
        assert looks.told(hours * HOUR_S, bad()) == []
        assert looks.told(hours * HOUR_S + 1.0, bad()) == ["a"]
        assert looks.told(hours * HOUR_S + 2.0, bad()) == []


def test_what_is_over_before_it_is_told_is_never_told_and_the_next_one_waits_in_full() -> None:
    looks = Looks(Times(silent_first_s=0.0))
    assert looks.told(10.0, bad()) == []
    assert looks.told(25.0) == []
    assert looks.told(30.0, bad("c")) == []
    assert looks.told(45.0, bad("c")) == []
    assert looks.told(60.0, bad("c")) == ["c"]


def test_all_that_are_over_are_told_of() -> None:
    looks = Looks(AT_ONCE)
    assert looks.told(0.0, bad(), bad("b"), bad("c")) == ["a", "b", "c"]
    assert looks.told(15.0, bad("b")) == ["a*", "c*"]


# --- the limit ------------------------------------------------------------------------------------


def filled(times: Times) -> tuple[Looks, list[Condition]]:
    """Return a log that told twenty times, at each second from the first on."""
    looks, known = Looks(times), list[Condition]()
    for number in range(1, 21):
        known.append(bad(f"{number}"))
        message = looks.message(float(number), *known)
        assert message is not None
        assert [each.subject for each in message.alerts] == [f"{number}"]
        assert message.left_out == 0
    return looks, known


def test_the_twenty_first_message_waits_until_an_hour_after_the_first() -> None:
    looks, known = filled(replace(AT_ONCE, standstill_s=1e9))
    more = [*known, bad("x"), bad("y")]
    for now_s in (21.0, 3600.0):
        assert looks.message(now_s, *more) is None
    message = looks.message(3601.0, *more)
    assert [each.subject for each in alerts(message)] == ["x", "y"]
    assert message is not None
    assert message.left_out == 2
    assert looks.message(3601.5, *more, bad("z")) is None, "the second one counts for a second yet"
    message = looks.message(3602.0, *more, bad("z"))
    assert message is not None
    assert message.left_out == 1, "those of before have been told"
    message = looks.message(3603.0, *more, bad("z"), bad("u"))
    assert message is not None
    assert message.left_out == 0


def test_what_the_limit_holds_back_is_tried_again_after_half_a_minute() -> None:
    looks, known = filled(replace(AT_ONCE, standstill_s=1e9))
    looks.log.times = Times(silent_first_s=0.0, standstill_s=1e9)
    more = [*known, bad("x")]
    assert looks.message(3540.0, *more) is None
    assert looks.message(3570.0, *more) is None, "it is held back for the first time"
    assert looks.message(3599.0, *more) is None
    assert looks.message(3600.0, *more) is None, "and for the second time"
    assert looks.message(3629.0, *more) is None
    message = looks.message(3630.0, *more)
    assert message is not None
    assert ([each.subject for each in message.alerts], message.left_out) == (["x"], 2)


def test_of_too_many_at_once_the_first_are_told() -> None:
    looks = Looks(AT_ONCE)
    subjects = [f"{number}" for number in range(ALERTS_A_MESSAGE + 1)]
    assert looks.told(1.0, *map(bad, subjects)) == subjects[:100]


# --- roles ----------------------------------------------------------------------------------------


def test_who_is_not_the_sender_tells_of_nothing_that_goes_on() -> None:
    looks = Looks(AT_ONCE)
    looks.sends = False
    for second in range(5):
        assert looks.told(float(second), bad(), bad("quorum", CUT_OFF)) == []


@pytest.mark.parametrize("sends", [False, True])
def test_who_has_no_majority_tells_of_that_alone(sends: bool) -> None:
    looks = Looks(AT_ONCE)
    looks.sends, looks.majority = sends, False
    assert looks.told(1.0, bad(), bad("quorum", CUT_OFF)) == ["quorum"]


@pytest.mark.parametrize("sends", [False, True])
def test_who_is_in_touch_again_is_silent_for_a_minute_before_it_says_so(sends: bool) -> None:
    looks = Looks(Times(group_s=0.0, standstill_s=1e9))
    looks.sends, looks.majority = sends, False
    assert looks.told(0.0, bad("quorum", CUT_OFF)) == []
    assert looks.told(60.0, bad("quorum", CUT_OFF)) == ["quorum"]
    looks.sends, looks.majority = sends, True
    assert looks.told(100.0) == []
    assert looks.told(159.0) == []
    assert looks.told(160.0) == ["quorum*"]


def test_who_sends_need_not_say_that_it_has_a_majority() -> None:
    log = AlertLog(AT_ONCE)
    assert log.look([bad()], 1.0, 1000, sends=True) is not None
    assert AlertLog(AT_ONCE).look([bad()], 1.0, 1000, sends=False) is None


def test_what_ended_without_a_majority_is_told_once_there_is_one_again() -> None:
    looks = Looks(AT_ONCE)
    assert looks.told(0.0, bad(), bad("b")) == ["a", "b"]
    looks.majority = False
    assert looks.told(15.0) == [], "it is cut off, and may tell of that alone"
    assert looks.told(16.0, bad("quorum", CUT_OFF)) == ["quorum"]
    looks.majority = True
    assert looks.told(17.0, bad("quorum", CUT_OFF)) == ["a*", "b*"]
    looks.sends = False
    assert looks.told(32.0, bad("c")) == ["quorum*"], "of that alone, again"


def test_one_that_goes_on_hides_no_other_that_is_over() -> None:
    looks = Looks(AT_ONCE)
    looks.majority = looks.sends = False
    both = [bad("one", CUT_OFF), bad("two", CUT_OFF)]
    assert looks.told(0.0, *both) == ["one", "two"]
    looks.majority = True
    assert looks.told(15.0, both[0]) == ["two*"]


# --- what is told ---------------------------------------------------------------------------------


def test_an_alert_says_all_that_is_known_of_it() -> None:
    looks = Looks(AT_ONCE)
    [alert] = alerts(looks.message(62.0, bad()))
    told = (alert.rule, alert.severity, alert.subject, alert.text, alert.hint)
    assert told == ("GpuFault", "critical", "a", "a is bad", "look at it")
    assert (alert.began_ms, alert.ended_ms) == (62_000, 0)
    [since] = alerts(Looks(AT_ONCE).message(62.0, replace(bad(), since_ms=7)))
    assert since.began_ms == 7


@pytest.mark.parametrize(
    ("one_ms", "other_ms", "alike"),
    [(60_000, 119_999, True), (59_999, 60_000, False), (119_999, 120_000, False)],
)
def test_alerts_of_one_rule_and_subject_that_began_in_one_minute_have_one_id(
    one_ms: int, other_ms: int, alike: bool
) -> None:
    def id_of(since_ms: int) -> str:
        [alert] = alerts(Looks(AT_ONCE).message(500.0, replace(bad(), since_ms=since_ms)))
        return alert.id

    assert (id_of(one_ms) == id_of(other_ms)) is alike


def test_ids_differ_by_rule_subject_and_time() -> None:
    ids = [alert_id("a", "b", 1), alert_id("a", "c", 1), alert_id("c", "b", 1)]
    ids.append(alert_id("a", "b", 2))
    assert [len(each) for each in ids] == [32] * 4
    assert len(set(ids)) == 4


def test_what_is_not_said_of_an_alert_is_that_it_ended_or_waited() -> None:
    alert = Alert("id", "Test", "warning", "test", "a test", "", 1)
    assert alert.ended_ms == 0
    assert Message((alert,)).left_out == 0
    assert FAULT.for_s == 0.0


def alerts(message: Message | None) -> tuple[Alert, ...]:
    assert message is not None
    return message.alerts
