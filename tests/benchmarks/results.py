"""Appends the figures of benchmarks to a CSV file, such as those in ``docs/results``.

A row is one figure of one case; ``native`` is what it is compared with: CUDA without gpupool, bare
pysyncobj or a plain socket. A benchmark that is killed keeps the rows that it has written.
"""

import argparse
import csv
import datetime
import math
import os
import platform
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. Empty means unknown, or that nothing was compared."""

    date: str
    commit: str
    hardware: str
    benchmark: str
    case: str
    metric: str
    native: str
    remote: str
    unit: str
    budget: str
    note: str


COLUMNS = tuple(field.name for field in fields(Row))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark that writes rows."""
    parser.add_argument("--csv", type=Path, help="append each figure to this file, as a row")
    parser.add_argument("--hardware", default="", help="the machine, in words, for --csv")
    parser.add_argument("--note", default="", help="such as what else ran, for --csv")


class Results:
    """Rows of one run of one benchmark; without a file, nothing is written."""

    def __init__(
        self, benchmark: str, path: Path | None, *, hardware: str = "", note: str = ""
    ) -> None:
        """Make the results of ``benchmark``; rows go to the end of ``path``."""
        self._benchmark = benchmark
        self._path = path
        self._hardware = hardware or f"{platform.machine()}, {os.cpu_count()} cores"
        self._note = note
        self._date = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._commit = commit() if path is not None else ""

    @classmethod
    def of(cls, benchmark: str, options: argparse.Namespace) -> "Results":
        """Return the results that ``add_options`` asks for."""
        return cls(benchmark, options.csv, hardware=options.hardware, note=options.note)

    def add(
        self,
        case: str,
        metric: str,
        remote: float | None,
        unit: str,
        *,
        native: float | None = None,
        budget: str = "",
    ) -> None:
        """Append one figure; one that could not be taken is no row.

        ``remote`` is None where the other side alone was measured, in a turn of its own.
        """
        if self._path is None or all(math.isnan(v) for v in (remote, native) if v is not None):
            return
        row = Row(
            date=self._date,
            commit=self._commit,
            hardware=self._hardware,
            benchmark=self._benchmark,
            case=case,
            metric=metric,
            native="" if native is None else f"{native:.6g}",
            remote="" if remote is None else f"{remote:.6g}",
            unit=unit,
            budget=budget,
            note=self._note,
        )
        append(self._path, row)


def append(path: Path, row: Row) -> None:
    """Append ``row``, with the heading if the file is new.

    Raises:
        ValueError: when the file has other columns.
    """
    is_new = not path.exists() or not path.stat().st_size
    if not is_new:
        with path.open(encoding="utf-8", newline="") as file:
            if tuple(next(csv.reader(file))) != COLUMNS:
                raise ValueError(f"{path} has other columns than {', '.join(COLUMNS)}")
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        writer.writerow([getattr(row, name) for name in COLUMNS])


def read(path: Path) -> list[Row]:
    """Return the rows of a file.

    Raises:
        ValueError: when a row has too few or too many columns, or the heading is another.
    """
    with path.open(encoding="utf-8", newline="") as file:
        heading, *rows = csv.reader(file)
    if tuple(heading) != COLUMNS:
        raise ValueError(f"{path} has other columns than {', '.join(COLUMNS)}")
    for row in rows:
        if len(row) != len(COLUMNS):
            raise ValueError(f"{path}: {row}")
    return [Row(*row) for row in rows]


def commit() -> str:
    """Return the short hash of the checked-out commit, with ``+`` if changed; or nothing."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
            )
        except OSError:  # a copy on a machine without git
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short", "HEAD")
    return found + "+" if found and git("status", "--porcelain", "-uno") else found
