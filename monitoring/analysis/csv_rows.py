"""Rows of CSV: those that schedulers and monitors write, with a limit on everything, and our own.

A row that cannot be read ends the import with the file and the line: a figure made of the rest
would be a guess that nobody sees.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpupool.monitoring.analysis.trace_form import TraceError

LINE_MAX = 1 << 18
COLUMN_COUNT_MAX = 512
ROW_COUNT_MAX = 500_000_000
NOTHING = frozenset(
    {"", "NA", "N/A", "[N/A]", "nan", "NaN", "None", "Unknown", "null", "NULL", "-"}
    | {"[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "[Insufficient Permissions]"}
)
"""Words for unknown values, in any of the formats."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""The beginnings of cells that a spreadsheet executes."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV (RFC 4180), with ``'`` before a text that would be executed."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows([_inert(each) for each in row] for row in rows)
    return out.getvalue()


def _inert(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


@dataclass(frozen=True, slots=True)
class Source:
    """One file of an import: its name for messages, and its lines."""

    name: str
    lines: Iterable[str]


class Row:
    """One row by the names of its columns."""

    __slots__ = ("_columns", "fields", "number", "source")

    def __init__(
        self, source: str, number: int, columns: dict[str, int], fields: Sequence[str]
    ) -> None:
        self.source = source
        self.number = number
        self._columns = columns
        self.fields = fields

    def text(self, column: str) -> str:
        """Return a field, and nothing where there is no such column or no value."""
        at = self._columns.get(column)
        text = self.fields[at].strip() if at is not None else ""
        return "" if text in NOTHING else text

    def wrong(self, why: str) -> TraceError:
        """Return the error that this row cannot be read."""
        return TraceError(
            f"{self.source}, line {self.number} cannot be read",
            why=why,
            hint="check that the file is whole and of that format",
        )


def rows(source: Source, needed: Sequence[str], *, delimiter: str = ",") -> Iterator[Row]:
    """Return the rows of a table.

    Args:
        source: where they are.
        needed: columns without which nothing can be said.
        delimiter: what stands between two fields.

    Raises:
        TraceError: when it is no such table.
    """
    lines = _checked(source)
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        names = [name.strip() for name in next(reader, list[str]())]
        columns = _columns(source, names, needed)
        for fields in reader:
            if fields and any(fields):
                if len(fields) > COLUMN_COUNT_MAX:
                    raise csv.Error(f"{len(fields)} columns")
                yield Row(source.name, reader.line_num, columns, _width(fields, len(names)))
    except csv.Error as error:
        raise TraceError(
            f"{source.name}, line {reader.line_num} is no line of a table",
            why=str(error),
            hint="check that the file is whole and of that format",
        ) from error


def _width(fields: list[str], width: int) -> list[str]:
    return fields + [""] * (width - len(fields)) if len(fields) < width else fields


def _columns(source: Source, names: Sequence[str], needed: Sequence[str]) -> dict[str, int]:
    columns = {name: at for at, name in reversed(list(enumerate(names)))}
    missing = [name for name in needed if name not in columns]
    if missing or len(names) > COLUMN_COUNT_MAX:
        raise TraceError(
            f"{source.name} has no column {', '.join(missing)}"
            if missing
            else f"{source.name} has too many columns",
            why=f"its first line is {', '.join(names)[:120]!r}",
            hint="check the format, and export the file with these columns",
        )
    return columns


def _checked(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if len(line) > LINE_MAX or number > ROW_COUNT_MAX:
            raise TraceError(
                f"{source.name}, line {number} is too long, or the file has too many lines",
                hint="check that the file is of that format, or cut it",
            )
        # The mark with which some programs begin a file is no part of the first column's name.
        yield line.removeprefix("\ufeff") if number == 1 else line


def peeked(source: Source) -> tuple[str, Source]:
    """Return the first line of a source, and the source with that line still in it."""
    iterator = iter(source.lines)
    first = next(iterator, "")

    def again() -> Iterator[str]:
        yield first
        yield from iterator

    return first, Source(source.name, again())
