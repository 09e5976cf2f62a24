"""The tables and charts of ``gpupool analyze`` in the terminal: pure, of figures alone."""

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpupool.pool.values import duration_text
from gpupool.pool.view import visible

if TYPE_CHECKING:
    from gpupool.monitoring.analysis.report_figures import Report
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
    """Return a table of waits and GPU use by pool size."""
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


# --- the report -----------------------------------------------------------------------------------

PAGE_WIDTH = 120
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>GPU use</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root {{ color-scheme: light dark; }} {stylesheet}</style></head>
<body><h1>GPU use</h1><pre>{code}</pre></body></html>
"""

BAR = 40
SHADES = " ░▒▓█"
KINDS = (("working", "working"), ("idle", "held idle"), ("free", "free"), ("unknown", "unknown"))
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def report_view(report: "Report") -> Iterator[RenderableType]:
    """Return the report's tables and charts, those of the page, from top to bottom."""
    yield Text(
        f"{visible(report.source)}: {report.days:.1f} days from {report.begins} ({report.zone}), "
        f"{report.account.gpu_count:,} GPUs, {report.job_count:,} jobs"
    )
    yield ""
    hours = report.account.hours
    amounts = [(label, float(getattr(hours, name))) for name, label in KINDS]
    yield _bars("GPU-HOURS", amounts)
    if sum(report.account.bins):
        bins = [(f"{n * 10}-{n * 10 + 10} %", v) for n, v in enumerate(report.account.bins)]
        yield ""
        yield _bars("BUSY", bins)
    yield ""
    yield from _heat_lines(report)
    if report.users:
        yield ""
        yield _users_table(report)
    if report.too_large:
        yield ""
        yield _too_large_table(report)
    yield ""
    when, level = report.busiest
    yield Text(f"busiest hour: {when}, {level:.1f} GPUs asked for")
    yield Text(
        f"GPUs asked for at once: {report.p95_demand:.1f} for 95 % of the time, "
        f"{report.peak_demand:.1f} at most"
    )
    if report.sizes:
        yield ""
        yield from sizes_view(report.sizes, report.goal)
    yield ""
    for sentence in report.assumptions:
        yield Text(f"- {visible(sentence)}")


def report_page(report: "Report") -> str:
    """Return the terminal report as one HTML page, which loads nothing."""
    console = Console(file=StringIO(), record=True, width=PAGE_WIDTH)
    for part in report_view(report):
        console.print(part)
    return console.export_html(code_format=PAGE)


def _bars(title: str, amounts: Sequence[tuple[str, float]]) -> Table:
    table = _table(title, "HOURS", "SHARE", "")
    table.columns[-1].justify = "left"
    total = sum(value for _, value in amounts) or 1.0
    top = max(value for _, value in amounts) or 1.0
    for label, value in amounts:
        bar = "█" * round(value / top * BAR) or ("▏" if value else "")
        table.add_row(label, f"{value:,.1f}", f"{value / total:.0%}", Text(bar))
    return table


def _heat_lines(report: "Report") -> Iterator[RenderableType]:
    values = [value for row in report.heat for value in row if value is not None]
    top = max(values, default=0.0) or 1.0
    what = f"{top:.0%} busy" if report.heat_of == "busy" else f"{top:.1f} GPUs asked for"
    yield Text("HOUR  " + "".join(f"{hour:<6}" for hour in range(0, 24, 3)), style="bold")
    for day, row in enumerate(report.heat):
        cells = [
            ". " if value is None else SHADES[round(value / top * (len(SHADES) - 1))] * 2
            for value in row
        ]
        yield Text(f"{DAYS[day]:<6}" + "".join(cells))
    yield Text(f"      {SHADES[-1]} is {what}")


def _users_table(report: "Report") -> Table:
    table = _table("USER", "JOBS", "HELD", "WORKING", "IDLE", "IDLE SHARE")
    for user in report.users:
        known = user.idle + user.working
        hours = [f"{each:,.1f}" for each in (user.held, user.working, user.idle)]
        share = f"{user.idle / known:.0%}" if known else "-"
        name = Text(visible(user.user)[:40] or "(none)")
        table.add_row(name, f"{user.jobs:,}", *hours, share)
    return table


def _too_large_table(report: "Report") -> Table:
    table = _table("ASKED FOR WHOLE GPUS", "JOBS", "GPU-HOURS", "WOULD HAVE DONE")
    for each in report.too_large:
        name = Text(visible(each.user)[:40] or "(none)")
        table.add_row(name, f"{each.jobs:,}", f"{each.gpu_hours:,.1f}", f"{each.share:.0%}")
    return table
