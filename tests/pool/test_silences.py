"""Silences: an end and a reason, a person's last word, and none that goes on for ever."""

from dataclasses import replace

import pytest
from tests.pool.test_gpu_drains import Table

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import objection
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.silences import SILENCE_COUNT_MAX, SILENCE_MAX_MS
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.silencing import set_silence, silences_now

HOUR_MS = 3_600_000


def silence(
    table: Table,
    reason: str | None,
    *,
    check: str = "disk",
    until: int | None = None,
    order: bytes | None = None,
) -> Result:
    index = table.state.index
    end = Milliseconds(table.state.now + HOUR_MS if until is None else until)
    number = index.to_bytes(16) if order is None else order
    return table.do(c.SetSilence(check, "a", "free", reason, end, "root", number))


def now(table: Table) -> list[str]:
    return [each.reason for each in silences_now(table.state, table.state.now)]


def test_it_has_an_end_a_reason_and_an_act() -> None:
    table = Table()
    assert silence(table, "new disk tomorrow").ok
    [known] = silences_now(table.state, table.state.now)
    assert (known.by, known.reason, known.check) == ("root", "new disk tomorrow", "disk")
    act = table.state.acts[-1]
    assert (act.kind, act.by, act.subject) == ("silenced", "root", "a/disk/free")
    assert act.text == "for 60 min: new disk tomorrow"
    assert not silences_now(table.state, known.until)
    silence(table, "another", check="clock", until=int(known.until) + HOUR_MS)
    assert len(table.state.silences) == 2


def test_the_last_word_counts_and_repetitions_do_nothing() -> None:
    table = Table()
    silence(table, "one", order=b"1" * 16)
    silence(table, "two", order=b"2" * 16)
    assert now(table) == ["two"]
    silence(table, "one", order=b"1" * 16)  # comes again, late
    assert now(table) == ["two"]
    silence(table, None, order=b"3" * 16)
    assert now(table) == []
    for late in (b"1" * 16, b"2" * 16):
        silence(table, "one", order=late)
    assert now(table) == []
    silence(table, "anew", order=b"4" * 16)
    silence(table, None, order=b"3" * 16)
    assert now(table) == ["anew"]
    kinds = [act.kind for act in table.state.acts if "silenced" in act.kind]
    assert kinds == ["silenced", "silenced", "unsilenced", "silenced"]


def test_lifting_what_is_not_silenced_is_no_act() -> None:
    table = Table()
    count = table.state.act_count
    assert silence(table, None).why == "nothing of it is silenced"
    assert table.state.act_count == count


@pytest.mark.parametrize(
    ("check", "reason", "after_ms"),
    [
        ("", "why", HOUR_MS),
        ("x" * 65, "why", HOUR_MS),
        ("disk", " ", HOUR_MS),
        ("disk", "why", -1),
        ("disk", "why", SILENCE_MAX_MS + 10_000),
    ],
)
def test_what_makes_no_sense_is_refused(check: str, reason: str, after_ms: int) -> None:
    table = Table()
    until = table.state.now + after_ms
    assert silence(table, reason, check=check, until=until).kind == RefusalKind.INVALID.value
    assert table.state.silences == ()


def test_there_are_not_too_many_and_those_that_are_over_make_room() -> None:
    table = Table(0)
    for number in range(SILENCE_COUNT_MAX):
        assert silence(table, "why", check=f"check-{number}").ok
    assert silence(table, "why", check="one more").kind == RefusalKind.CONFLICT.value
    assert silence(table, "why", check="check-0").ok  # one that is there
    table.do(c.SetClock(Milliseconds(table.state.now + 2 * HOUR_MS), 0, "root"))
    assert now(table) == []


def test_a_clock_that_is_set_back_keeps_its_length() -> None:
    table = Table()
    before = table.state.now
    table.do(c.SetClock(Milliseconds(before + 100 * HOUR_MS), 0, "root"))
    table.machine.apply(
        table.state.index + 1,
        c.wrap(
            c.SetSilence(
                "disk", "", "", "why", Milliseconds(before + 101 * HOUR_MS), "root", b"1" * 16
            ),
            at_ms=before + 100 * HOUR_MS + 1000,
            ttl_ms=60_000,
            era=1,
        ),
    )
    [made] = table.state.silences
    table.machine.apply(
        table.state.index + 1,
        c.wrap(c.SetClock(before, 1, "root"), at_ms=made.at, ttl_ms=60_000, era=1),
    )
    [moved] = table.state.silences
    assert moved.until - moved.at == made.until - made.at
    assert moved.until <= before + HOUR_MS


def test_older_pools_cannot_take_it() -> None:
    assert objection("set-silence", 6)
    assert not objection("set-silence", 7)


def test_a_silence_is_over_at_its_end_and_not_after_it() -> None:
    table = Table()
    assert silence(table, "why", until=table.state.now + 2000).ok
    assert table.state.now + 1000 == table.state.silences[0].until
    assert silence(table, None).why == "nothing of it is silenced"
    assert table.state.silences[0].until == table.state.now


def order(**changes: object) -> c.SetSilence:
    """Return an order that is taken at 1000, with some of it changed."""
    known = c.SetSilence("disk", "a", "free", "why", Milliseconds(61_000), "root", b"1" * 16)
    return replace(known, **changes)  # type: ignore[arg-type]


NAMES = "a silence is of a check or a rule, and at most of one server"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"check": "x" * 64}, ""),
        ({"check": "x" * 65}, NAMES),
        ({"check": ""}, NAMES),
        ({"server": "x" * 64}, ""),
        ({"server": "x" * 65}, NAMES),
        ({"server": ""}, ""),
        ({"subject": "x" * 200}, ""),
        ({"subject": "x" * 201}, "no finding has a subject of that length"),
        ({"subject": ""}, ""),
        ({"reason": ""}, "a silence needs a reason"),
        ({"reason": " \n"}, "a silence needs a reason"),
        ({"until": 999}, "a silence ends within 90 days"),
        ({"until": 1000}, "a silence ends within 90 days"),
        ({"until": 1001}, ""),
        ({"until": 1000 + 90 * 86_400_000}, ""),
        ({"until": 1001 + 90 * 86_400_000}, "a silence ends within 90 days"),
    ],
)
def test_each_part_of_an_order_has_bounds(changes: dict[str, object], why: str) -> None:
    before = PoolState(now=Milliseconds(1000))
    state, result = set_silence(before, order(**changes))
    assert (result.ok, result.why) == (not why, why)
    if why:
        assert result.kind == "invalid"
        assert state is before
    else:
        assert len(state.silences) == 1


@pytest.mark.parametrize(
    ("length_ms", "minutes"), [(1, 1), (59_999, 1), (60_000, 1), (60_001, 2), (120_000, 2)]
)
def test_the_minutes_of_a_silence_are_rounded_up(length_ms: int, minutes: int) -> None:
    state = PoolState(now=Milliseconds(1000))
    state, _ = set_silence(state, order(until=Milliseconds(1000 + length_ms)))
    assert state.acts[-1].text == f"for {minutes} min: why"
    event = state.events[-1]
    assert (event.kind, event.subject) == ("silenced", "a/disk/free")
    assert event.text == f"for {minutes} min: why (by root)"
    state, _ = set_silence(state, order(reason=None, order=b"2" * 16))
    assert (state.acts[-1].kind, state.acts[-1].text) == ("unsilenced", "")
    assert state.events[-1].text == "(by root)"


def test_a_silence_remembers_its_latest_four_orders() -> None:
    state = PoolState(now=Milliseconds(1000))
    for number in range(6):
        state, _ = set_silence(state, order(order=bytes([number]) * 16))
    [known] = state.silences
    assert known.orders == tuple(bytes([number]) * 16 for number in (2, 3, 4, 5))


def test_an_order_that_is_repeated_says_that_it_was_done() -> None:
    state, result = set_silence(PoolState(now=Milliseconds(1000)), order())
    assert result == Result(True)
    again, result = set_silence(state, order())
    assert result == Result(True, why="it was done already")
    assert again is state
    lifted = set_silence(state, order(reason=None, order=b"2" * 16))
    assert lifted[1] == Result(True)
    again, result = set_silence(lifted[0], order(reason=None, order=b"3" * 16))
    assert result == Result(True, why="nothing of it is silenced")
    assert again is lifted[0]
    anew, result = set_silence(state, order(order=b""))
    assert result == Result(True)
    assert anew.act_count == state.act_count + 1
