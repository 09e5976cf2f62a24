"""Silences: an end and a reason, a person's last word, and none that goes on for ever."""

import pytest
from tests.pool.test_gpu_drains import Table

from gpupool.pool.model import commands as c
from gpupool.pool.model.formats import objection
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.model.silences import SILENCE_COUNT_MAX, SILENCE_MAX_MS
from gpupool.pool.transitions.silencing import silences_now

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
