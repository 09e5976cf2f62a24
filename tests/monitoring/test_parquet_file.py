"""Parquet of a report: value for value what JSON and CSV say; without pyarrow, what to do."""

import csv
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.monitoring.records import record, write

from gpupool.cli.main import run
from gpupool.cli.server.records.lease_file import monitoring_folder
from gpupool.monitoring.accounting import Range
from gpupool.monitoring.parquet_file import METADATA_KEY, parquet_of, require_pyarrow
from gpupool.monitoring.record_writer import RecordWriter
from gpupool.monitoring.usage_report import Report, as_csv, as_plain, make_report
from gpupool.pool.errors import UsageError
from gpupool.pool.history_query import SampleSum
from gpupool.pool.record_query import ClassSum, GroupSum

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="pyarrow is not installed: pip install 'gpupool[parquet]'",
)


def report_of(*names: str) -> Report:
    """Return a report of which samples have seen the first row only."""
    groups = [GroupSum(name, 1, str(10**18 // 3), str(7 * 10**15)) for name in names]
    whole = GroupSum("", len(names), str(len(names) * 10**18 // 3), str(7 * 10**15), 50, 20)
    known = SampleSum(
        names[0] if names else "ada", slots=3, idle=1, held=10**6, wasted=333_333, busy_n=3,
        busy=7, memory=11, granted=13, memory_max=9,
    )  # fmt: skip
    return make_report(
        groups, whole, ((), ()), [ClassSum("lab", 1, 2, 3)], "user", Range(), [known]
    )


def opened(data: bytes) -> Any:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return parquet.read_table(io.BytesIO(data))


@needs_pyarrow
def test_values_are_those_of_json_and_csv() -> None:
    report = report_of("ada", 'b"ö,b', "")
    table = opened(parquet_of(report, silent={"gpu-2": "no answer"}))
    plain = json.loads(json.dumps(as_plain(report)))
    assert table.to_pylist() == plain.pop("rows")
    facts = json.loads(table.schema.metadata[METADATA_KEY])
    assert facts == {"schema": 1, "silent": {"gpu-2": "no answer"}, **plain}
    _, *lines = csv.reader(io.StringIO(as_csv(report), newline=""))
    cells = [["" if each is None else each for each in row.values()] for row in table.to_pylist()]
    assert [
        [type(cell)(word) for cell, word in zip(row, words, strict=True)]
        for row, words in zip(cells, lines, strict=True)
    ] == cells
    idle = {row["key"]: row["idle_share"] for row in table.to_pylist()}
    assert (idle["ada"], idle[""]) == (0.333333, None)  # what is unknown is null, and not 0


@needs_pyarrow
def test_a_report_without_rows_has_the_same_columns() -> None:
    empty, full = opened(parquet_of(report_of())), opened(parquet_of(report_of("ada")))
    assert empty.num_rows == 0
    assert empty.schema == full.schema


@needs_pyarrow
def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [record(number) for number in range(1, 30)])
    writer = RecordWriter(monitoring_folder(tmp_path), lambda _: None)
    writer.step()
    writer.close()
    copy = str(monitoring_folder(tmp_path) / "usage.db")
    asked = ["usage", "--file", copy, "--since", "2001-01-01", "--by", "lease"]
    target = tmp_path / "usage.parquet"
    assert run([*asked, "--parquet", str(target)]) == 0
    assert "rows written to" in capsys.readouterr().err
    assert run([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows
    assert opened(target.read_bytes()).to_pylist() == rows


def test_without_pyarrow_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(UsageError, match="needs pyarrow") as found:
        require_pyarrow()
    assert found.value.hint == f"{sys.executable} -m pip install 'gpupool[parquet]'"


def test_it_excludes_other_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", "--parquet", "x", "--csv"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert run(["usage", "--parquet", "x", "--lease", "7f3a"]) == 2
    assert "--lease" in capsys.readouterr().err
