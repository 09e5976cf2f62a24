"""Hours that are packed: nothing of them is lost, and files of before are packed as they are."""

import json
import lzma
import os
import random
import shutil
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.record_history import HOURS, QUESTIONS, T0, answer
from tests.golden.recorded import GOLDEN
from tests.monitoring.samples import gpu_id, sample, table

from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import DAY_S, HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, SCHEMA, HistoryStore
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.packed_hours import ROWS_MAX, Packed, pack, spans
from gpupool.monitoring.history.series import GPU, LEASE, PACKED, TIERS, Table
from gpupool.pool.errors import StorageError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds

HOUR = 3600


DAYS = HOURS // 24 + 1  # the last one is over when the next slot comes
KEPT = HistorySettings(keep_10s_s=800 * DAY_S, keep_1m_s=800 * DAY_S)


def writer(folder: Path, said: list[str]) -> HistoryWriter:
    return HistoryWriter(folder, KEPT, said.append, disk_full=lambda _: False)


def old_file(folder: Path, form: int = 1) -> None:
    """Lay down what an earlier gpupool has written: 80 hours, of the form 1 none of them packed."""
    folder.mkdir(exist_ok=True)
    data = lzma.decompress((GOLDEN / f"history-{form}.db.xz").read_bytes())
    (folder / FILE_NAME).write_bytes(data)


def state_of(folder: Path) -> tuple[list[int], list[int]]:
    """Return the number of packed values and of rows of hours that are left, by table."""
    db = sqlite3.connect(folder / FILE_NAME)

    def count(name: str) -> int:
        return db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]

    try:
        left = [count(each.at(TIERS[-1])) for each in PACKED]
        return [count(each.packed) for each in PACKED], left
    finally:
        db.close()


RECORDED = json.loads((GOLDEN / "history-1.json").read_text())


def answers(folder: Path) -> list[object]:
    return [answer(folder, each) for each in QUESTIONS]


def go_on(folder: Path, slots: int) -> list[str]:
    """Write so many slots, a long time after all that was asked for."""
    said, state = list[str](), table(gpus=2, leases=3)
    keeper = writer(folder, said)
    db = sqlite3.connect(folder / FILE_NAME)
    (last,) = db.execute("SELECT max(t) FROM server_sample_10s").fetchone()
    db.close()
    at = max(T0 + 300 * DAY_S, last + 10)
    keeper.take(sample(state, 1000 * (at + 10 * each), 0.5) for each in range(slots + 1))
    keeper.close()
    return said


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of", [GPU, LEASE], ids=[GPU.name, LEASE.name])
def test_what_is_packed_comes_back(of: Table, seed: int) -> None:
    draw = random.Random(seed)
    tops = [draw.choice((1, 255, 256, 1 << 16, 1 << 32, (1 << 63) - 1)) for _ in of.columns]
    rows = [
        (
            T0 + HOUR * draw.randrange(24),
            *(draw.randrange(3) + 2**40 * (seed == 2) for _ in of.keys),
            *(draw.randint(-top if seed else 0, top) for top in tops[1 + len(of.keys) :]),
        )
        for _ in range(draw.randint(1, 300))
    ]
    packed = Packed(of, T0, pack(of, T0, rows))
    assert sorted(zip(*packed.columns(of.columns), strict=True)) == sorted(rows)
    [last] = packed.columns((of.columns[-1],))
    assert sorted(last) == sorted(row[-1] for row in rows)


def test_rows_of_a_day_are_packed_some_thousand_at_a_time() -> None:
    few = [(T0 + HOUR * each, 100) for each in range(24)]
    assert list(spans(few)) == [(T0, T0 + DAY_S)]
    many = [(T0 + HOUR * each, ROWS_MAX // 2) for each in (0, 1, 2, 5)]
    assert list(spans(many)) == [(T0, T0 + 2 * HOUR), (T0 + 2 * HOUR, T0 + 6 * HOUR)]
    assert list(spans([(T0, 3 * ROWS_MAX)])) == [(T0, T0 + HOUR)]


@pytest.mark.parametrize("harm", [b"", b"\x09", b"cut", b"changed"])
def test_a_damaged_value_is_said_to_be_one(harm: bytes) -> None:
    good = pack(GPU, T0, [(T0, *range(1, len(GPU.columns)))])
    bad = {b"cut": good[:-3], b"changed": good[:9] + b"~~" + good[11:]}.get(harm, harm)
    with pytest.raises(StorageError, match="damaged"):
        Packed(GPU, T0, bad).columns(GPU.columns)


def test_a_file_of_before_answers_the_same_while_it_is_packed(tmp_path: Path) -> None:
    old_file(tmp_path)
    assert answers(tmp_path) == RECORDED  # read before its writer has come
    product = ("user", "wire", "bob", 0, HOURS * HOUR)  # of columns, row by row
    rows = answer(tmp_path, product)
    assert rows["series"][0]["points"]
    for packed in range(1, DAYS + 2):
        assert go_on(tmp_path, 1) == []
        values, left = state_of(tmp_path)
        assert values == [min(packed, DAYS)] * 2
        assert (min(left) > 0) is (max(left) > 0) is (packed < DAYS)
        assert answers(tmp_path) == RECORDED
        assert answer(tmp_path, product) == rows
    db = sqlite3.connect(tmp_path / FILE_NAME)
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_a_file_without_calls_and_marks_answers_the_same_and_gets_both(tmp_path: Path) -> None:
    """Its packed hours lack the later columns, in which nothing is known to have been."""
    old_file(tmp_path, 3)
    recorded = json.loads((GOLDEN / "history-3.json").read_text())
    assert answers(tmp_path) == recorded
    until = Milliseconds(1000 * (T0 + 301 * DAY_S))
    lease = HistoryQuery("lease", "calls", "4", Milliseconds(1000 * T0), until)
    marks = replace(lease, of="gpu-marks", name=gpu_id(0))
    told = [read_history(tmp_path, each).problem for each in (lease, marks)]
    assert told == ["it has not kept calls yet", "it has not kept what happened to its GPUs"]
    assert go_on(tmp_path, 2) == []
    assert answers(tmp_path) == recorded
    (series,) = read_history(tmp_path, lease).series
    assert [each[1] for each in series.points[:3]] == [0, 0, 0]
    assert series.points[-1][1] > 0
    assert (read_history(tmp_path, marks).problem, read_history(tmp_path, marks).series) == ("", ())
    packed, left = state_of(tmp_path)
    assert min(packed) > 0 and min(left) >= 0


def test_a_value_that_lacks_more_than_later_columns_is_damaged() -> None:
    row = [(T0, *range(1, len(LEASE.columns)))]
    before = replace(LEASE, later=())
    old = pack(before, T0, [row[0][: len(before.columns)]])
    busy = row[0][LEASE.columns.index("busy")]
    columns = Packed(LEASE, T0, old).columns(("busy", *LEASE.later))
    assert [list(each) for each in columns] == [[busy], [0], [0]]
    with pytest.raises(StorageError, match="damaged"):
        Packed(LEASE, T0, pack(replace(before, maxima=()), T0, [row[0][:-4]])).columns(("t",))


def test_hours_are_never_added_up_into_packed_ones(tmp_path: Path) -> None:
    """As when the note of what is added up were lost."""
    old_file(tmp_path)
    for _ in range(4):
        go_on(tmp_path, 1)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.execute("DELETE FROM rolled")
    db.commit()
    db.close()
    go_on(tmp_path, 1)
    assert answers(tmp_path) == RECORDED


def test_what_is_kept_no_longer_goes_with_its_packed_days(tmp_path: Path) -> None:
    old_file(tmp_path)
    for _ in range(4):
        go_on(tmp_path, 1)
    store = HistoryStore(tmp_path / FILE_NAME, HistorySettings(DAY_S, DAY_S, DAY_S))
    before = state_of(tmp_path)[0]
    store.expire(T0 + 2 * DAY_S + DAY_S // 2)
    store.expire(T0 + 2 * DAY_S + DAY_S // 2)
    store.close()
    # The second day is packed as one, of which half is kept.
    assert (before, state_of(tmp_path)[0]) == ([4, 4], [3, 3])
    said = answer(tmp_path, ("gpu", "busy", QUESTIONS[0][2], 0, 17 * DAY_S))
    assert said["oldest"] == 1000 * (T0 + DAY_S + DAY_S // 2)
    assert said["series"][0]["points"][0][0] == T0 + DAY_S + DAY_S // 2


def kill_while_it_packs(folder: Path, kills: int, seed: int) -> None:
    """Kill a process that packs a file of before, again and again, until all is packed."""
    draw = random.Random(seed)
    for each in range(kills):
        if min(state_of(folder)[0] if each else [0]) >= DAYS:
            shutil.rmtree(folder)
        if not folder.exists():
            old_file(folder)
        child = os.fork()
        if child == 0:
            try:
                go_on(folder, 6)
            finally:
                os._exit(1)
        time.sleep(draw.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said: list[str] = []
        keeper = writer(folder, said)
        keeper.take([])
        keeper.close()
        assert said == []
        assert answers(folder) == RECORDED


def test_killed_while_it_packs_it_has_lost_nothing(tmp_path: Path) -> None:
    kill_while_it_packs(tmp_path / "history", 6, seed=1)


@pytest.mark.slow
def test_killed_often_while_it_packs_it_has_lost_nothing(tmp_path: Path) -> None:
    kill_while_it_packs(tmp_path / "history", 200, seed=2)
