"""The history of the checks: from when to when each found something, through restarts and all."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitoring.samples import START_MS, sample, table
from tests.monitoring.test_history_store import rows_of, seconds, writer

from gpupool.monitoring.history import episode_table, history_store
from gpupool.monitoring.history.episodes import EpisodeBook, Left
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.series import LEASE, TIERS
from gpupool.monitoring.sample import Sample
from gpupool.pool.history_query import Episode, HistoryPage, HistoryQuery, joined
from gpupool.pool.model.forgetting import Forgotten, digest_of
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Finding, Health

WARN, FAIL = Health.WARN, Health.FAIL
T0 = START_MS // 1000 // 3600 * 3600
STATE = table(gpus=1, leases=1)


def ms(second: float) -> Milliseconds:
    return Milliseconds(round(1000 * (T0 + second)))


def hot(since: float, status: Health = FAIL, subject: str = "GPU-1") -> Finding:
    return Finding("temperature", subject, status, ms(since), "GPU 1 has 91 C")


def at(second: int, *findings: Finding) -> Sample:
    made = sample(STATE, ms(second))
    return replace(made, telemetry=replace(made.telemetry, findings=findings))


def told(folder: Path, **asked: object) -> list[tuple[str, str, int, float, float]]:
    """Return check, subject, status, and from when to when in seconds; -1: it goes on."""
    page = ask(folder, **asked)
    return [
        (e.check, e.subject, e.status, e.began / 1000 - T0, e.ended / 1000 - T0 if e.ended else -1)
        for e in page.episodes
    ]


def ask(folder: Path, **asked: object) -> HistoryPage:
    query = HistoryQuery("health", since=ms(0), until=ms(86_400))
    return read_history(folder, replace(query, **asked))  # type: ignore[arg-type]


def test_a_finding_that_comes_and_goes_is_an_episode(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    found = [() if not 12 <= second < 31 else (hot(12),) for second in range(60)]
    helper.take(at(second, *found[second]) for second in range(25))
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 12, -1)], "it goes on"
    helper.take(at(second, *found[second]) for second in range(25, 60))
    helper.close()
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 12, 31)]
    [episode] = ask(tmp_path).episodes
    assert episode.text == "GPU 1 has 91 C"


def test_a_finding_that_gets_worse_and_better_is_one_episode_each(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(at(second, hot(0, WARN)) for second in range(10))
    helper.take(at(second, hot(9.5)) for second in range(10, 20))
    helper.take(at(second, hot(19.5, WARN)) for second in range(20, 41))
    helper.close()
    assert told(tmp_path) == [
        ("temperature", "GPU-1", WARN, 19.5, -1),
        ("temperature", "GPU-1", FAIL, 9.5, 19.5),
        ("temperature", "GPU-1", WARN, 0, 9.5),
    ], "the newest first"


def test_one_that_flaps_is_one_episode(tmp_path: Path) -> None:
    """Its ``since`` is that of its last change."""
    helper = writer(tmp_path)
    helper.take(at(second, hot(second)) for second in range(60))
    helper.close()
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 0, -1)]


def test_what_went_on_goes_on_after_a_restart_of_the_exporter(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.take(at(second, hot(3), hot(4, subject="GPU-2")) for second in range(31))
    first.close()
    second = writer(tmp_path)
    second.take(at(moment, hot(3)) for moment in range(50, 71))
    second.close()
    assert told(tmp_path) == [
        ("temperature", "GPU-2", FAIL, 4, 30),  # it was seen last then
        ("temperature", "GPU-1", FAIL, 3, -1),
    ]


def test_what_begins_anew_while_nobody_looked_is_another_episode(tmp_path: Path) -> None:
    """The server was started again, so it found the same anew."""
    first = writer(tmp_path)
    first.take(at(second, hot(3)) for second in range(31))
    first.close()
    second = writer(tmp_path)
    second.take(at(moment, hot(45)) for moment in range(50, 71))
    second.close()
    assert told(tmp_path) == [
        ("temperature", "GPU-1", FAIL, 45, -1),
        ("temperature", "GPU-1", FAIL, 3, 30),
    ]


def test_an_answer_has_what_touches_the_range_and_was_asked_for(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    disk = Finding("disk", "free", WARN, ms(0), "9 GiB are free")
    helper.take(at(second, disk, *([hot(12)] if 12 <= second < 31 else [])) for second in range(60))
    helper.close()
    both = [("temperature", "GPU-1", FAIL, 12, 31), ("disk", "free", WARN, 0, -1)]
    assert told(tmp_path) == both
    assert told(tmp_path, since=ms(31)) == both[1:], "it had ended by then"
    assert told(tmp_path, until=ms(12)) == both[1:], "it had not begun"
    assert told(tmp_path, metric="temperature") == both[:1]
    assert told(tmp_path, metric="temperature", name="GPU-2") == []
    assert told(tmp_path, user="ada") == both, "everybody sees what is wrong now, and what was"
    assert ask(tmp_path).oldest == ms(10), "when the first slot was written"


def test_parts_of_a_long_answer_are_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_table, "PART_COUNT", 3)
    helper = writer(tmp_path)
    findings = [hot(0, subject=f"GPU-{number}") for number in range(7)]
    helper.take(at(second, *findings) for second in range(11))
    helper.close()

    def parts() -> Iterator[HistoryPage]:
        after, more = 0, True
        while more:
            page = ask(tmp_path, after=after)
            yield page
            after, more = page.after, page.more

    pages = list(parts())
    assert [len(page.episodes) for page in pages] == [3, 3, 1]
    assert {each.subject for each in joined(pages).episodes} == {f.subject for f in findings}


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    full = True

    def is_full(_: Path) -> bool:
        return full

    helper = HistoryWriter(tmp_path, HistorySettings(), print, is_full)
    helper.take(at(second, *([hot(2)] if second < 15 else [])) for second in range(31))
    assert told(tmp_path) == []
    full = False
    helper.take(at(second) for second in range(31, 51))
    helper.close()
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 2, 15)]


def test_a_new_file_in_the_place_of_a_damaged_one_has_what_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    helper = writer(tmp_path, said)
    helper.take(at(second, hot(2)) for second in range(21))
    helper.close()
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 4096)
    helper.take(at(second, hot(2)) for second in range(21, 61))
    helper.close()
    assert any("damaged" in each for each in said)
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 2, -1)]


def test_a_file_of_before_gets_the_table(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    helper.take(seconds(0, 25))
    helper.close()
    db = history_store.connect(tmp_path / FILE_NAME, write=True)
    newer = ["episode", "model"]
    newer += [f"{name}_sample_{tier.name}" for name in ("capacity", "mark") for tier in TIERS]
    drops = "".join(f"DROP TABLE {name}; " for name in newer)
    for tier in TIERS:
        for column in LEASE.later:
            drops += f"ALTER TABLE {LEASE.at(tier)} DROP COLUMN {column}; "
    db.executescript(f"{drops} DELETE FROM about; PRAGMA user_version=1;")
    db.close()
    helper.take(at(second, hot(30)) for second in range(30, 51))
    helper.close()
    assert told(tmp_path) == [("temperature", "GPU-1", FAIL, 30, -1)]
    assert ask(tmp_path).oldest == ms(30)
    assert rows_of(tmp_path, "SELECT count(*) FROM capacity_sample_10s")[0][0] > 0


def test_episodes_are_kept_as_long_as_hours_and_their_number_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_table, "COUNT_MAX", 2)
    helper = writer(tmp_path, settings=HistorySettings(keep_1h_s=600))
    for begin in range(0, 400, 100):
        there, gone = range(begin, begin + 50), range(begin + 50, begin + 100)
        helper.take(at(second, hot(begin)) for second in there)
        helper.take(at(second) for second in gone)
    helper.close()
    assert [began for *_, began, _ in told(tmp_path)] == [300, 200]
    assert ask(tmp_path).oldest == ms(150), "since the end of the newest that was left out"
    helper.take(at(second) for second in range(900, 1100, 10))
    helper.close()
    assert told(tmp_path) == []


def test_when_there_is_no_room_episodes_go_last(tmp_path: Path) -> None:
    helper = writer(tmp_path, settings=HistorySettings(size_max=288 << 10))
    for begin in range(0, 800, 40):
        there, gone = range(begin, begin + 20, 5), range(begin + 20, begin + 40, 5)
        findings = [replace(hot(begin, subject=f"GPU-{n}"), text="x" * 300) for n in range(60)]
        helper.take(at(second, *findings) for second in there)
        helper.take(at(second) for second in gone)
        assert (tmp_path / FILE_NAME).stat().st_size <= 288 << 10
    helper.close()
    kept = told(tmp_path)
    assert helper.lost == 0, "old episodes have made room"
    assert 60 <= len(kept) < 1200
    assert kept[0][3] == 760


def test_a_forgotten_operators_name_is_not_in_it(tmp_path: Path) -> None:
    helper = writer(tmp_path)
    ends = Finding("tokens", "eve", WARN, ms(0), "the last token of operator eve ends in 3 days")
    helper.take(at(second, ends) for second in range(21))
    salt = bytes(16)
    helper.forgotten = (Forgotten(salt, digest_of(salt, "eve"), 0, ms(30)),)
    helper.take([])
    assert told(tmp_path)[0][:2] == ("tokens", helper.forgotten[0].pseudonym)
    helper.take(at(second) for second in range(40, 61))  # its end is written as well
    helper.close()
    assert [each[1] for each in told(tmp_path)] == [helper.forgotten[0].pseudonym]
    assert rows_of(tmp_path, "SELECT count(*) FROM episode WHERE text LIKE '%eve%'") == [(0,)]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(("a", "b")), st.sampled_from((WARN, FAIL)), max_size=2),
        max_size=40,
    )
)
def test_episodes_are_just_when_findings_were_there(rounds: list[dict[str, Health]]) -> None:
    """Of each subject no two overlap, and at each round those that go on are the findings."""
    book, kept = EpisodeBook(Left()), dict[tuple[object, ...], Episode]()
    since: dict[str, tuple[Health, int]] = {}
    for second, found in enumerate(rounds, start=1):
        for subject, status in found.items():
            if since.get(subject, (None,))[0] is not status:
                since[subject] = status, second
        since = {subject: each for subject, each in since.items() if subject in found}
        findings = [hot(since[subject][1], status, subject) for subject, status in found.items()]
        book.look(findings, ms(second))
        changed = book.unwritten()
        kept |= {(e.began, e.subject, e.status): e for e in changed}
        book.written(changed)
        assert not book.unwritten()
        there = {e.subject: e.status for e in kept.values() if not e.ended}
        assert there == found
    for subject in ("a", "b"):
        mine = sorted((e for e in kept.values() if e.subject == subject), key=lambda e: e.began)
        for earlier, later in pairwise(mine):
            assert earlier.began < earlier.ended <= later.began
