"""Questions answered from ``history.db``: right points, from the right tier, to the right user."""

import sqlite3
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.monitoring.samples import START_MS, gpu_id, sample, table

from gpupool.monitoring.frames import EXPORTER, HistoryAnswered
from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import NOT_BEGUN, HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.series import TIERS, tier_for
from gpupool.pool.history_query import HistoryPage, HistoryQuery, SampleSum
from gpupool.pool.model.ids import Milliseconds

T0 = START_MS // 1000 // 86_400 * 86_400
HOURS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours and 70 s of two GPUs and three leases, with a gap in the third hour."""
    path, state = tmp_path_factory.mktemp("history"), table(gpus=2, leases=3)
    helper = HistoryWriter(path, HistorySettings(), print, disk_full=lambda _: False)
    for second in range(0, HOURS * 3600 + 80, 10):
        if not 2 * 3600 <= second < 2 * 3600 + 1800:
            busy = 0.8 if second < 3600 else 0.2
            helper.take(
                sample(state, 1000 * (T0 + second + tenth), busy) for tenth in range(0, 10, 2)
            )
    helper.close()
    return path


def ask(folder: Path, of: str, metric: str, since: int, until: int, **more: object) -> HistoryPage:
    query = HistoryQuery(
        of, metric, since=Milliseconds(1000 * (T0 + since)), until=Milliseconds(1000 * (T0 + until))
    )
    return read_history(folder, replace(query, **more))  # type: ignore[arg-type]


@pytest.mark.long
def test_a_gpu_has_a_point_for_each_step(folder: Path) -> None:
    page = ask(folder, "gpu", "busy", 0, 3600, name=gpu_id(0))
    [series] = page.series
    assert (page.step_s, page.more, series.key, series.label) == (10, False, gpu_id(0), "GPU 0")
    assert series.points[0] == (T0, 4000, 5, 800)
    assert len(series.points) == 360
    assert page.oldest == 1000 * T0


def test_a_server_has_its_gpus_figures_and_its_own(folder: Path) -> None:
    page = ask(folder, "server", "temperature", 0, 600)
    assert [series.label for series in page.series] == ["GPU 0", "GPU 1"]
    [own] = ask(folder, "server", "cpu", 0, 600).series
    assert (own.key, own.points[0]) == ("", (T0, 1250, 5, -1))
    [pool] = ask(folder, "pool", "granted", 0, 600).series
    assert pool.points[0][1] / pool.points[0][2] == 30 * 1024


def test_a_gap_has_no_points(folder: Path) -> None:
    [series] = ask(folder, "gpu", "busy", 2 * 3600 - 20, 2 * 3600 + 1820, name=gpu_id(0)).series
    assert [point[0] - T0 for point in series.points] == [7180, 7190, 9000, 9010]


def test_the_tail_comes_from_the_finer_tiers(folder: Path) -> None:
    """Nothing is added up yet of the hour and the minute that go on."""
    end = HOURS * 3600 + 70
    whole = ask(folder, "gpu", "busy", 0, 400 * 3600, name=gpu_id(0))
    [series] = whole.series
    assert whole.step_s == 3600
    assert [point[0] - T0 for point in series.points] == [3600 * hour for hour in range(HOURS + 1)]
    assert series.points[-1][2] == 35  # 70 s
    [fine] = ask(folder, "gpu", "busy", 0, end, name=gpu_id(0), points_max=2).series
    assert sum(point[2] for point in fine.points) == sum(point[2] for point in series.points)


def test_points_are_never_more_than_asked_for(folder: Path) -> None:
    page = ask(folder, "gpu", "busy", 0, HOURS * 3600, name=gpu_id(0), points_max=100)
    assert page.step_s % 10 == 0
    assert 50 < len(page.series[0].points) <= 100
    assert sum(point[2] for point in page.series[0].points) == (HOURS * 360 - 180) * 5


def test_a_user_has_the_sum_of_their_leases(folder: Path) -> None:
    """Bob has leases 2 and 6, ada has 4; each is a quarter as busy as its GPU."""
    both = ask(folder, "user", "busy", 0, 60, name="bob").series[0].points[0]
    one = ask(folder, "lease", "busy", 0, 60, name="4").series[0].points[0]
    assert (both[1], both[2]) == (2 * one[1], one[2]) == (2000, 5)
    rtt = ask(folder, "user", "rtt", 0, 60, name="bob").series[0].points[0]
    assert rtt[1] / rtt[2] == 120


def test_a_client_has_the_sum_of_its_leases_whoever_they_are_of(folder: Path) -> None:
    """All three leases are of one machine."""
    whole = ask(folder, "client", "busy", 0, 60, name="ada@laptop").series[0].points[0]
    one = ask(folder, "lease", "busy", 0, 60, name="4").series[0].points[0]
    assert (whole[1], whole[2]) == (3 * one[1], one[2])
    seen = ask(folder, "client", "busy", 0, 60, name="ada@laptop", user="ada").series[0].points[0]
    assert seen[1] == one[1], "a user is told of their own leases there"
    assert ask(folder, "client", "busy", 0, 60, name="ada").series == ()


def test_a_lease_waits_for_the_network_as_often_as_for_results(folder: Path) -> None:
    [waits] = ask(folder, "lease", "waits", 10, 20, name="4").series[0].points
    [wire] = ask(folder, "lease", "wire", 10, 20, name="4").series[0].points
    assert wire == (T0 + 10, waits[1] * 120, waits[2], -1)
    assert wire[1] > 0
    ones = [ask(folder, "lease", "wire", 10, 20, name=each).series[0].points[0] for each in "26"]
    both = ask(folder, "user", "wire", 10, 20, name="bob").series[0].points[0]
    assert both[1:3] == (sum(each[1] for each in ones), wire[2])
    hours = [ask(folder, "lease", each, 0, 400 * 3600, name="4") for each in ("waits", "wire")]
    (waited, *_), (wired, *_) = (each.series[0].points for each in hours)
    assert wired[1] == waited[1] * 120


def test_users_are_told_of_their_own_leases_alone(folder: Path) -> None:
    assert ask(folder, "lease", "busy", 0, 60, name="4", user="ada").series
    assert ask(folder, "lease", "busy", 0, 60, name="2", user="ada").series == ()
    assert ask(folder, "user", "busy", 0, 60, name="bob", user="ada").series == ()
    sums = ask(folder, "sums", "user", 0, 3600, user="ada").sums
    assert [each.key for each in sums] == ["ada"]


def test_sums_are_of_the_exact_range_whatever_its_edges(folder: Path) -> None:
    def total(since: int, until: int, by: str = "user") -> SampleSum:
        found = ask(folder, "sums", by, since, until).sums
        whole = found[0]
        for each in found[1:]:
            whole = whole.plus(each)
        return whole

    whole = total(0, HOURS * 3600 + 70)
    assert whole.slots == 3 * (HOURS * 360 - 180 + 7)
    cut = [0, 50, 3600, 3670, 5000, 8000, 9500, 10_810, HOURS * 3600 + 70]
    pieces = [total(a, b) for a, b in pairwise(cut)]
    for name in ("slots", "idle", "busy", "memory", "granted"):
        assert sum(getattr(each, name) for each in pieces) == getattr(whole, name)
    for by in ("class", "client", "lease", "model", "program", "day", "server"):
        assert total(0, HOURS * 3600 + 70, by).slots == whole.slots


def test_sums_have_shares_of_gpus(folder: Path) -> None:
    found = {each.key: each for each in ask(folder, "sums", "user", 0, 3600).sums}
    bob = found["bob"]
    # Two leases of 10 of 140 GiB for an hour.
    assert bob.held / 1e6 == pytest.approx(2 * 3600 * 10 / 140, rel=1e-4)
    assert (bob.idle, bob.wasted, bob.memory_max) == (0, 0, 8 * 1024)
    assert bob.memory / bob.granted == pytest.approx(0.8)


def test_an_answer_comes_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupool.monitoring.history import history_reader

    whole = ask(folder, "server", "busy", 0, 3600)
    monkeypatch.setattr(history_reader, "PART_POINTS", 100)
    points: dict[str, list[tuple[int, ...]]] = {}
    after, more, parts = 0, True, 0
    while more:
        page = ask(folder, "server", "busy", 0, 3600, after=after)
        for series in page.series:
            points.setdefault(series.key, []).extend(series.points)
        after, more, parts = page.after, page.more, parts + 1
    assert parts == 8
    assert points == {each.key: list(each.points) for each in whole.series}


def test_a_part_fits_into_256_kib() -> None:
    from gpupool.monitoring.history.history_reader import PART_POINTS
    from gpupool.pool.history_query import HistorySeries

    points = tuple((T0 + 3600 * at, 2**33, 2**17, 2**18) for at in range(PART_POINTS))
    page = HistoryPage(3600, (HistorySeries("g", "l", points),))
    assert len(EXPORTER.encode(HistoryAnswered(1, page))) <= 256 << 10


def test_a_question_that_takes_too_long_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpupool.monitoring.history import history_reader

    monkeypatch.setattr(history_reader, "STEPS_BETWEEN_LOOKS", 10)
    query = HistoryQuery("server", "busy", until=Milliseconds(1000 * (T0 + 20_000)))
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        read_history(folder, query, time_max_s=0.0)


@pytest.mark.parametrize(
    ("of", "metric", "name"),
    [
        ("gpu", "nonsense", gpu_id(0)),
        ("nothing", "busy", ""),
        ("gpu", "busy", "no such GPU"),
        ("lease", "busy", "'; DROP TABLE lease"),
        ("lease", "busy", "9" * 40),
        ("sums", "nonsense", "x"),
    ],
)
def test_what_makes_no_sense_has_no_points(folder: Path, of: str, metric: str, name: str) -> None:
    page = ask(folder, of, metric, 0, 3600, name=name)
    assert page.series == ()


def test_nothing_is_known_before_there_is_a_file(tmp_path: Path) -> None:
    assert ask(tmp_path, "gpu", "busy", 0, 60).problem


def test_a_file_without_tables_is_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()  # as its writer makes it, some time before the tables
    assert ask(tmp_path, "gpu", "busy", 0, 60).problem == NOT_BEGUN


def test_the_coarsest_tier_with_enough_points_that_reaches_back_is_read() -> None:
    day, begun = 86_400, {"10s": 9 * 86_400, "1m": 5 * 86_400, "1h": 0}
    assert tier_for(3600, {}, 0) is TIERS[0]
    assert tier_for(day, {}, 0) is TIERS[1]
    assert tier_for(30 * day, {}, 0) is TIERS[2]
    assert tier_for(3600, begun, 9 * day) is TIERS[0]
    assert tier_for(3600, begun, 6 * day) is TIERS[1]
    assert tier_for(3600, begun, day) is TIERS[2]
    assert tier_for(3600, {"10s": 50, "1m": 0, "1h": 0}, 0) is TIERS[0]  # it has just begun


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**64 - 1, -1])
@pytest.mark.parametrize("of", ["server", "sums", "lease"])
def test_numbers_that_no_time_has_do_no_harm(folder: Path, of: str, number: int) -> None:
    """No query may end the exporter."""
    plain = HistoryQuery(
        of,
        "" if of == "sums" else "busy",
        str(number),
        Milliseconds(1000 * T0),
        Milliseconds(1000 * T0 + 60_000),
    )
    for change in ("since", "until", "after", "points_max"):
        page = read_history(folder, replace(plain, **{change: number}))  # type: ignore[arg-type]
        EXPORTER.encode(HistoryAnswered(1, page))
        assert all(each.key == "" for each in page.sums)
