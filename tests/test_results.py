"""Rows of benchmark figures: how they are appended, and that those in the documents can be read."""

import argparse
import datetime
import math
from pathlib import Path

import pytest
from tests.benchmarks.results import (
    COLUMNS,
    ROOT,
    Results,
    Row,
    add_options,
    append,
    commit,
    read,
)

FILES = sorted((ROOT / "docs" / "results").glob("*.csv"))
ROW = Row("2026-11-22", "abc", "a, b", "x.py", 'case "1"', "p50", "", "1.5", "ms", "", "")


def test_a_benchmark_appends_rows(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    path = tmp_path / "some.csv"
    for note in ("first", "second"):
        words = ["--csv", str(path), "--hardware", "a machine, with a comma", "--note", note]
        results = Results.of("x.py", parser.parse_args(words))
        results.add("launch", "p50", 3.85, "us", native=3.72, budget="85 %")
    rows = read(path)
    assert [row.note for row in rows] == ["first", "second"]
    assert rows[0].hardware == "a machine, with a comma"
    assert (rows[0].native, rows[0].remote, rows[0].unit) == ("3.72", "3.85", "us")
    datetime.date.fromisoformat(rows[0].date)


def test_a_figure_that_could_not_be_taken_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    results = Results("x.py", path)
    results.add("launch", "p50", float("nan"), "us")
    results.add("launch", "p50", None, "us", native=float("nan"))
    assert not path.exists()
    results.add("launch", "p50", None, "us", native=3.0)
    assert [(row.native, row.remote) for row in read(path)] == [("3", "")]


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_options(parser)
    Results.of("x.py", parser.parse_args([])).add("launch", "p50", 1.0, "us")
    assert list(tmp_path.iterdir()) == []


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    append(path, ROW)
    assert read(path) == [ROW]


def test_a_file_with_other_columns_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("date,figure\n")
    with pytest.raises(ValueError, match="other columns"):
        append(path, ROW)
    with pytest.raises(ValueError, match="other columns"):
        read(path)
    assert path.read_text() == "date,figure\n"


def test_a_row_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text(",".join(COLUMNS) + "\n2026-11-22,abc\n")
    with pytest.raises(ValueError, match="abc"):
        read(path)


def test_there_are_files_to_read() -> None:
    assert {path.name for path in FILES} >= {"consensus.csv", "gpu.csv", "simulation.csv"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_figures_in_the_documents_can_be_plotted(path: Path) -> None:
    rows = read(path)
    assert rows
    for row in rows:
        assert row.benchmark, row
        assert row.case, row
        assert row.metric, row
        assert row.unit, row
        figures = [float(figure) for figure in (row.native, row.remote) if figure]
        assert figures, row
        assert all(map(math.isfinite, figures)), row
        if row.date:
            datetime.date.fromisoformat(row.date)


def test_a_machine_without_git_knows_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert commit() == ""
