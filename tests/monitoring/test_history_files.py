"""Files of the history that earlier gpupools wrote: they answer as they did, and are kept on."""

import json
import lzma
import os
import random
import shutil
import signal
import sqlite3
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.golden.record_history import HOURS, QUESTIONS, T0, answer
from tests.golden.recorded import GOLDEN
from tests.monitoring.samples import gpu_id, sample, table

from gpupool.monitoring.history.history_reader import read_history
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, SCHEMA, unpack
from gpupool.monitoring.history.history_writer import HistoryWriter
from gpupool.monitoring.history.series import GPU, LEASE
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.model.units import DAY_S

KEPT = HistorySettings(keep_10s_s=800 * DAY_S, keep_1m_s=800 * DAY_S)
FORMS = (1, 3, 4)
"""Schemas of recorded files. From 2 to 4 the hours of days that were over were packed."""


def writer(folder: Path, said: list[str]) -> HistoryWriter:
    return HistoryWriter(folder, KEPT, said.append, disk_full=lambda _: False)


def old_file(folder: Path, form: int) -> None:
    """Lay down 80 hours that an earlier gpupool has written."""
    folder.mkdir(exist_ok=True)
    data = lzma.decompress((GOLDEN / f"history-{form}.db.xz").read_bytes())
    (folder / FILE_NAME).write_bytes(data)


def recorded(form: int) -> Any:
    return json.loads((GOLDEN / f"history-{form}.json").read_text())


def answers(folder: Path) -> list[object]:
    return [answer(folder, each) for each in QUESTIONS]


def go_on(folder: Path, slots: int) -> list[str]:
    """Write so many slots, a long time after all that was asked for."""
    said, state = list[str](), table(gpus=2, leases=3)
    helper = writer(folder, said)
    db = sqlite3.connect(folder / FILE_NAME)
    (last,) = db.execute("SELECT max(t) FROM server_sample_10s").fetchone()
    db.close()
    at = max(T0 + 300 * DAY_S, last + 10)
    helper.take(sample(state, 1000 * (at + 10 * each), 0.5) for each in range(slots + 1))
    helper.close()
    return said


def asked(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(folder / FILE_NAME)
    try:
        return db.execute(statement).fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_before_answers_the_same(tmp_path: Path, form: int) -> None:
    old_file(tmp_path, form)
    before = (tmp_path / FILE_NAME).read_bytes()
    assert answers(tmp_path) == recorded(form)
    assert (tmp_path / FILE_NAME).read_bytes() == before  # who reads writes nothing
    product = ("user", "wire", "bob", 0, HOURS * 3600)  # of columns, row by row
    rows = answer(tmp_path, product)
    assert rows["series"][0]["points"]
    for _ in range(2):
        assert go_on(tmp_path, 2) == []
        assert asked(tmp_path, "PRAGMA user_version") == [(SCHEMA,)]
        assert asked(tmp_path, "PRAGMA integrity_check") == [("ok",)]
        assert asked(tmp_path, "SELECT 1 FROM sqlite_master WHERE name LIKE '%packed'") == []
        # Of the three whole days and eight hours of the file, with two GPUs, and the hour after.
        assert asked(tmp_path, "SELECT count(*), count(DISTINCT t) FROM sample_1h") == [(160, 80)]
        assert answers(tmp_path) == recorded(form)
        assert answer(tmp_path, product) == rows


def test_a_file_without_calls_and_marks_gets_both(tmp_path: Path) -> None:
    """Its packed hours lack the later columns, in which nothing is known to have been."""
    old_file(tmp_path, 3)
    until = Milliseconds(1000 * (T0 + 301 * DAY_S))
    lease = HistoryQuery("lease", "calls", "4", Milliseconds(1000 * T0), until)
    marks = replace(lease, of="gpu-marks", name=gpu_id(0))
    assert go_on(tmp_path, 2) == []
    (series,) = read_history(tmp_path, lease).series
    assert [each[1] for each in series.points[:3]] == [0, 0, 0]
    assert series.points[-1][1] > 0
    assert (read_history(tmp_path, marks).problem, read_history(tmp_path, marks).series) == ("", ())


def packed(width: int, number: int) -> bytes:
    """Return a column with one number as an earlier gpupool packed it."""
    found = zlib.compress(number.to_bytes(width, "little", signed=width == 8))
    return bytes((width,)) + len(found).to_bytes(4, "little") + found


def test_numbers_of_each_width_come_back() -> None:
    """The recorded files have no number of eight bytes."""
    db = sqlite3.connect(":memory:")
    numbers = [1, *range(2, len(GPU.columns) - 3), 1 << 15, 1 << 31, -(1 << 40)]
    widths = [*[1] * (len(GPU.columns) - 4), 2, 4, 8]
    for of in (GPU, LEASE):
        db.execute(f"CREATE TABLE {of.name}_packed (t INTEGER, upto INTEGER, data BLOB)")
        db.execute(f"CREATE TABLE {of.name}_1h ({', '.join(of.columns)})")
    data = packed(1, 2) + b"".join(map(packed, widths, numbers))
    db.execute("INSERT INTO sample_packed VALUES (7200, 18000, ?)", (data,))
    unpack(db)
    assert db.execute("SELECT * FROM sample_1h").fetchall() == [(7200 + 2 * 3600, *numbers)]


@pytest.mark.parametrize("harm", [b"\x09", b"cut", b"changed"])
def test_a_damaged_file_is_put_aside(tmp_path: Path, harm: bytes) -> None:
    old_file(tmp_path, 4)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    (good,) = db.execute("SELECT data FROM lease_sample_packed").fetchone()
    bad = {b"cut": good[:-3], b"changed": good[:9] + b"~~" + good[11:]}.get(harm, harm)
    db.execute("UPDATE lease_sample_packed SET data = ?", (bad,))
    db.commit()
    db.close()
    said: list[str] = []
    writer(tmp_path, said).take([])
    assert len(said) == 1
    assert said[0].endswith("it is history.damaged-1.db now, begun anew")


def kill_while_it_unpacks(folder: Path, kills: int, seed: int) -> None:
    """Kill a process that brings a file of before up, again and again."""
    draw, form = random.Random(seed), 4
    for each in range(kills):
        if each % 3 == 0:
            shutil.rmtree(folder, ignore_errors=True)
            old_file(folder, form)
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
        helper = writer(folder, said)
        helper.take([])
        helper.close()
        assert said == []
        assert answers(folder) == recorded(form)


def test_killed_while_it_unpacks_it_has_lost_nothing(tmp_path: Path) -> None:
    kill_while_it_unpacks(tmp_path / "history", 6, seed=1)


@pytest.mark.slow
def test_killed_often_while_it_unpacks_it_has_lost_nothing(tmp_path: Path) -> None:
    kill_while_it_unpacks(tmp_path / "history", 200, seed=2)
