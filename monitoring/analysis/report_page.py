"""The report as one HTML page: charts are SVG within it, nothing is loaded, texts are escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from gpupool.monitoring.analysis.gpu_hours import BINS
from gpupool.monitoring.analysis.report_figures import Report

PAGE_MAX = 500_000
"""Bytes. All lists in it are short, so that it stays far below."""

TEXT_MAX = 80
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
KINDS = (
    ("working", "working", "#2a7d4f"),
    ("idle", "held idle", "#d98e04"),
    ("free", "free", "#9db4c8"),
    ("unknown", "unknown", "#b9b9b9"),
)
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } th, td { padding: .2rem .9rem .2rem 0; text-align: right; }
th:first-child, td:first-child, .text { text-align: left; }
th { border-bottom: 1px solid #8888; } svg { max-width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; } .box { display: inline-block;
width: .8em; height: .8em; margin-right: .3em; } li { margin: .2rem 0; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(report: Report) -> str:
    """Return the page."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>GPU use: {text(report.source)}</title><style>{STYLE}</style></head><body>",
        f"<h1>GPU use: {text(report.source)}</h1>",
        f"<p>{report.days:.1f} days from {text(report.begins)} ({text(report.zone)}), "
        f"{report.account.gpu_count:,} GPUs, {report.job_count:,} jobs.</p>",
        *_hours(report),
        *_histogram(report),
        *_heat(report),
        *_users(report),
        *_too_large(report),
        *_demand(report),
        *_sizes(report),
        "<h2>What is assumed</h2><ul>",
        *(f"<li>{text(each, 400)}</li>" for each in report.assumptions),
        "</ul></body></html>",
    ]
    return "\n".join(parts) + "\n"


def text(value: str, limit: int = TEXT_MAX) -> str:
    """Return a text for the page: cut, and without any meaning to a browser."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in value[:limit])
    return escape(shown + ("\u2026" if len(value) > limit else ""), quote=True)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are escaped already."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _hours(report: Report) -> list[str]:
    hours = report.account.hours
    at, bars, rows = 0.0, list[str](), list[tuple[str, str, str]]()
    for name, label, colour in KINDS:
        value = float(getattr(hours, name))
        share = value / hours.total if hours.total else 0.0
        bars.append(
            f'<rect x="{at:.2f}" y="0" width="{share * 900:.2f}" height="34" fill="{colour}">'
            f"<title>{label}: {share:.1%}</title></rect>"
        )
        at += share * 900
        box = f'<span class="box" style="background:{colour}"></span>{label}'
        rows.append((box, f"{value:,.1f}", f"{share:.1%}"))
    rows.append(("all", f"{hours.total:,.1f}", "100%" if hours.total else "-"))
    svg = f'<svg viewBox="0 0 900 34" role="img" aria-label="GPU-hours">{"".join(bars)}</svg>'
    return ["<h2>Where the GPU-hours went</h2>", svg, _table(("", "GPU-hours", "share"), rows)]


def _histogram(report: Report) -> list[str]:
    bins = report.account.bins
    if not sum(bins):
        return []
    top = max(bins)
    bars = "".join(
        f'<rect x="{40 + n * 60}" y="{170 - value / top * 150:.1f}" width="54" '
        f'height="{value / top * 150:.1f}" fill="#3b6ea5"><title>{n * 10}-{n * 10 + 10} % busy: '
        f"{value:,.1f} GPU-hours</title></rect>"
        f'<text x="{40 + n * 60}" y="186">{n * 10}-{n * 10 + 10} %</text>'
        for n, value in enumerate(bins)
    )
    width = 60 + BINS * 60
    svg = f'<svg viewBox="0 0 {width} 192" role="img" aria-label="busy">{bars}</svg>'
    return ["<h2>How busy GPUs were, in GPU-hours</h2>", svg]


def _heat(report: Report) -> list[str]:
    values = [value for row in report.heat for value in row if value is not None]
    top = max(values, default=0.0) or 1.0
    cells: list[str] = []
    for day, row in enumerate(report.heat):
        label = DAYS[day]
        cells.append(f'<text x="0" y="{day * 24 + 34}">{label}</text>')
        for hour, value in enumerate(row):
            shade = 0.0 if value is None else value / top
            shown = "unknown" if value is None else _shown(report, value)
            cells.append(
                f'<rect x="{44 + hour * 30}" y="{day * 24 + 18}" width="28" height="22" '
                f'fill="#c2410c" fill-opacity="{0.05 + 0.95 * shade:.2f}">'
                f"<title>{label} {hour}:00: {shown}</title></rect>"
            )
    hours = "".join(f'<text x="{44 + h * 30}" y="12">{h}</text>' for h in range(0, 24, 3))
    svg = (
        f'<svg viewBox="0 0 770 192" role="img" aria-label="by hour">{hours}{"".join(cells)}</svg>'
    )
    what = "Busy" if report.heat_of == "busy" else "GPUs asked for"
    return [f"<h2>{what} by hour and weekday (darkest: {_shown(report, top)})</h2>", svg]


def _shown(report: Report, value: float) -> str:
    return f"{value:.0%}" if report.heat_of == "busy" else f"{value:.1f} GPUs"


def _users(report: Report) -> list[str]:
    rows = [
        (
            text(u.user or "(none)"),
            f"{u.jobs:,}",
            f"{u.held:,.1f}",
            f"{u.working:,.1f}",
            f"{u.idle:,.1f}",
            f"{u.idle / (u.idle + u.working):.0%}" if u.idle + u.working else "-",
        )
        for u in report.users
    ]
    titles = ("user", "jobs", "GPU-hours held", "working", "idle", "idle share")
    return ["<h2>Held and idle, by user</h2>", _table(titles, rows)] if rows else []


def _too_large(report: Report) -> list[str]:
    if not report.too_large:
        return []
    rows = [
        (
            text(each.user or "(none)"),
            f"{each.jobs:,}",
            f"{each.gpu_hours:,.1f}",
            f"{each.share:.0%}",
        )
        for each in report.too_large
    ]
    titles = ("user", "jobs", "GPU-hours", "of a GPU would have done")
    return ["<h2>Whole GPUs of which a part would have done</h2>", _table(titles, rows)]


def _demand(report: Report) -> list[str]:
    when, level = report.busiest
    return [
        "<h2>Demand</h2><ul>",
        f"<li>Busiest hour: {text(when)}, {level:.1f} GPUs asked for.</li>",
        f"<li>For 95 % of the time at most {report.p95_demand:.1f} GPUs at once.</li>",
        f"<li>Most at any time: {report.peak_demand:.1f} GPUs.</li></ul>",
    ]


def _sizes(report: Report) -> list[str]:
    if not report.sizes:
        return []
    resampled = report.goal.resamples > 0
    rows = [
        (
            size.mode.value,
            f"{size.gpu_count:,}",
            f"{size.low:,}-{size.high:,}" if resampled and not size.parts else "-",
            f"{size.p95_demand:.1f}",
        )
        for size in report.sizes
    ]
    parts = [
        "<h2>How many GPUs a pool would need</h2>",
        _table(("use", "GPUs", "range", "p95 of demand"), rows),
    ]
    for size in report.sizes:
        if size.rows:
            waits = [
                (
                    f"{row.gpu_count:,}",
                    *(f"{s:,.0f}" for s in (row.p50_s, row.p95_s, row.max_s)),
                    f"{row.use:.0%}",
                )
                for row in size.rows
            ]
            parts.append(f"<h2>Waits, {size.mode.value}</h2>")
            titles = ("GPUs", "p50, s", "p95, s", "longest, s", "use")
            parts.append(_table(titles, waits))
    return parts
