"""Lines of a table, for lists and screens: columns as wide as needed. Pure.

On a screen other columns give way to a reason.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from rich.text import Text

from gpupool.cli.lib.columns import Cell, Column, Glyphs, cells_of, chosen_columns

REASONS = ("REASON", "FAULT")
"""Columns for errors, the last ones of their lists."""

KEPT = ("STATE", "SERVER", "GPU", "GPUS", "LEASE", "USER", *REASONS)
"""Columns that stay where a reason needs room."""

KEPT_LONG = ("AGE", "FREE IN", "BUSY", "PROGRAM")
"""Columns that give way to a reason only when all others have."""

REASON_WIDTH_MIN = 30
"""Least width of a reason, for which other columns yield; it gets spare width, too."""


def table_lines(
    columns: Sequence[Column[Any]],
    cells: Sequence[Sequence[Cell]],
    width: int = sys.maxsize,
    margin: str = " ",
) -> list[Text]:
    """Return a header and a line for each row."""
    widths = [len(column.title) for column in columns]
    for line in cells:
        for at, cell in enumerate(line):
            widths[at] = max(widths[at], len(cell.text))
    keep = _columns_that_fit([column.title for column in columns], cells, widths, width)

    def kept(line: Sequence[Cell]) -> Text:
        return _line(
            margin,
            [line[at] for at in keep],
            [widths[at] for at in keep],
            [columns[at].right for at in keep],
        )

    return [kept([Cell(each.title, "dim") for each in columns]), *map(kept, cells)]


def live_table(
    columns: Sequence[Column[Any]], rows: Sequence[Any], width: int, glyphs: Glyphs
) -> list[Text]:
    """Return the lines of a table of rows with their measurements."""
    shown = chosen_columns(columns, live=True)
    cells = cells_of(shown, rows, glyphs)
    used = [not c.seldom or any(line[at].text for line in cells) for at, c in enumerate(shown)]
    shown = [*compress(shown, used)]
    return table_lines(shown, [[*compress(line, used)] for line in cells], width)


def _columns_that_fit(
    titles: Sequence[str], lines: Iterable[Sequence[Cell]], widths: Sequence[int], width: int
) -> list[int]:
    """Return the columns to show: where a reason is given, others give way to it."""
    keep = list(range(len(titles)))
    last = keep[-1]
    if titles[last] not in REASONS or not any(line[last].text for line in lines):
        return keep
    widths = [*widths[:last], min(widths[last], REASON_WIDTH_MIN)]
    for kept in ((*KEPT, *KEPT_LONG), KEPT):
        for at in reversed(range(last)):
            if sum(widths[each] + 2 for each in keep) <= width:
                return keep
            if at in keep and titles[at] not in kept:
                keep.remove(at)
    return keep


def _line(margin: str, cells: Sequence[Cell], widths: Sequence[int], right: Sequence[bool]) -> Text:
    parts: list[tuple[str, str]] = [(margin, "")]
    for at, cell in enumerate(cells):
        pad = " " * (widths[at] - len(cell.text))
        parts.append((pad, "") if right[at] else (cell.text, cell.style))
        parts.append((cell.text, cell.style) if right[at] else (pad, ""))
        parts.append(("  ", ""))
    return Text.assemble(*parts, no_wrap=True)
