"""The tables and charts of ``gpupool analyze`` in the terminal: pure, of figures alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpupool.cli.lib.values import duration_text
from gpupool.pool.view import visible

if TYPE_CHECKING:
    from gpupool.monitoring.analysis.sizing import Goal, Row, Size

SILOS_SHOWN = 12
MEANINGS = {
    "recorded": "jobs hold GPUs as recorded",
    "attached": "held while computing, and for the idle timeout",
    "whole": "whole GPUs only",
    "silos": "whole GPUs, each group its own",
}


def sizes_view(sizes: "Sequence[Size]", goal: "Goal") -> Iterator[RenderableType]:
    """Return a table of all modes, then one of each mode with its waits by number of GPUs."""
    table = _table("MODE", "GPUS", "RANGE", "P95 DEMAND", "PEAK", "WHAT IT MEANS")
    for each in sizes:
        ranged = f"{each.low}-{each.high}" if goal.resamples and not each.parts else "-"
        table.add_row(
            each.mode.value,
            str(each.gpu_count),
            ranged,
            f"{each.p95_demand:.1f}",
            f"{each.peak_demand:.1f}",
            Text(MEANINGS[each.mode.value]),
        )
    yield table
    for each in sizes:
        if each.rows:
            yield ""
            yield rows_table(each.mode.value, each.rows)
        if each.parts:
            yield ""
            yield _silos_table(each)
        if each.too_large:
            yield Text(f"  {each.too_large} job(s) ask more memory than a GPU has: left out")
        if each.unseen:
            yield Text(f"  {each.unseen} job(s) without readings count as computing all the time")


def rows_table(mode: str, rows: "Sequence[Row]") -> Table:
    """Return what pools of different sizes achieve."""
    table = _table(f"{mode.upper()}: GPUS", "P50 WAIT", "P95 WAIT", "MAX WAIT", "SUM", "USE")
    for row in rows:
        waits = (row.p50_s, row.p95_s, row.max_s)
        cells = [duration_text(round(wait)) for wait in waits]
        refused = f"  {row.refused} refused" if row.refused else ""
        hours = f"{row.sum_s / 3600:,.1f} h"
        table.add_row(str(row.gpu_count), *cells, hours, f"{row.use:.0%}{refused}")
    return table


def _silos_table(size: "Size") -> Table:
    table = _table("SILO", "GPUS")
    for name, count in size.parts[:SILOS_SHOWN]:
        table.add_row(Text(visible(name)[:40]), str(count))
    rest = size.parts[SILOS_SHOWN:]
    if rest:
        table.add_row(f"{len(rest)} more", str(sum(count for _, count in rest)))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, title in enumerate(titles):
        left = at == 0 or title == "WHAT IT MEANS"
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    return table
