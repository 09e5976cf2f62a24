"""The three lists of the live view, sorted and filtered, and their selection. Pure.

The health panel is ``gpupool health`` from local data.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text

from gpupool.cli.lib.columns import (
    GPU_COLUMNS,
    LEASE_COLUMNS,
    SERVER_COLUMNS,
    AnyLease,
    Column,
    Glyphs,
    cells_of,
    chosen_columns,
    matches,
)
from gpupool.cli.tui.keys import PANELS, Chosen, Extent, UiState
from gpupool.cli.tui.trends import TREND_WIDTH_MIN, trend_column
from gpupool.pool.model.plain import to_plain
from gpupool.pool.read_model.pool_snapshot import (
    GpuRow,
    LeaseRow,
    PoolSnapshot,
    RequestRow,
    ServerRow,
)
from gpupool.pool.telemetry import Health
from gpupool.pool.values import duration_text
from gpupool.pool.view import visible

if TYPE_CHECKING:
    from gpupool.monitoring.health.pool_health import PoolFinding, PoolHealth

R = TypeVar("R", ServerRow, GpuRow, AnyLease)
AnyRow = ServerRow | GpuRow | AnyLease

TITLES = {"servers": "1 Servers", "gpus": "2 GPUs", "leases": "3 Leases"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One list, sorted and filtered, not yet cut to the screen."""

    name: str
    title: str
    headers: tuple[str, ...]
    right: tuple[bool, ...]
    columns: Sequence[Column[Any]]
    rows: Sequence[AnyRow]
    sorted_by: int


def panels(
    snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs, trend_width: int = TREND_WIDTH_MIN
) -> tuple[Panel, Panel, Panel]:
    """Return the three lists in the order of their keys."""
    servers = _panel(0, snapshot.servers, SERVER_COLUMNS, ui, glyphs)
    classes = any(lease.user_class for lease in (*snapshot.view.leases, *snapshot.view.waiting))
    told = (session for each in snapshot.heard.values() for session in each.sessions)
    shares = any(session.share_due for session in told)
    starts = bool(snapshot.starts_by_s)
    known = {"CLASS": classes, "PRIORITY": classes, "SHARE": shares, "FREE IN": starts}
    chosen = _chosen_server(servers, ui)
    everywhere = ui.all_servers or chosen is None
    gpus = snapshot.gpus if everywhere or chosen is None else chosen.gpus
    where = "" if everywhere or chosen is None else f" of {chosen.server.name}"
    trend = trend_column(snapshot, ui.figure, trend_width)
    gpu_columns = [trend if column.title == "UTIL" else column for column in GPU_COLUMNS]
    return (
        servers,
        _panel(1, gpus, gpu_columns, ui, glyphs, where),
        _panel(
            2,
            snapshot.all_leases,
            [c for c in LEASE_COLUMNS if known.get(c.title, True)],
            ui,
            glyphs,
            f", {len(snapshot.view.waiting)} waiting",
        ),
    )


def _panel(
    index: int,
    rows: Sequence[R],
    columns: Sequence[Column[R]],
    ui: UiState,
    glyphs: Glyphs,
    suffix: str = "",
) -> Panel:
    shown = chosen_columns(columns, wide=ui.wide, live=True)
    total = len(rows)
    if ui.only_wrong:
        rows = [row for row in rows if row.wrong]
    sort = ui.sort[index] if ui.sort[index] < len(shown) else -1
    reverse = ui.reverse and PANELS[index] == ui.panel
    if sort >= 0:
        rows = sorted(rows, key=shown[sort].key, reverse=reverse)
    elif reverse:
        rows = list(reversed(rows))
    if ui.filter and PANELS[index] == ui.panel:
        cells = cells_of(shown, rows, glyphs)
        rows = [row for row, line in zip(rows, cells, strict=True) if matches(line, ui.filter)]
    count = str(total) if len(rows) == total else f"{len(rows)} of {total}"
    name = PANELS[index]
    return Panel(
        name=name,
        title=f"{TITLES[name]}{suffix} ({count})",
        headers=tuple(column.title for column in shown),
        right=tuple(column.right for column in shown),
        columns=shown,
        rows=rows,
        sorted_by=sort,
    )


def is_stale(row: AnyRow) -> bool:
    """Return whether a row's data is old."""
    match row:
        case ServerRow():
            return row.unreachable
        case GpuRow():
            return row.server.unreachable
        case _:
            return row.state == "unreachable"


def _chosen_server(servers: Panel, ui: UiState) -> ServerRow | None:
    if not servers.rows:
        return None
    row = servers.rows[min(ui.selected[0], len(servers.rows) - 1)]
    return row if isinstance(row, ServerRow) else None


def chosen_server(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> ServerRow | None:
    """Return the server that the cursor of the first panel is on."""
    return _chosen_server(panels(snapshot, ui, glyphs)[0], ui)


def chosen_row(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> AnyRow | None:
    """Return the row that the cursor is on."""
    panel = panels(snapshot, ui, glyphs)[ui.panel_index]
    return panel.rows[min(ui.cursor, len(panel.rows) - 1)] if panel.rows else None


def subject_of(row: AnyRow) -> Chosen:
    """Return the subject of a row's detail."""
    match row:
        case ServerRow():
            return "server", row.server.id
        case GpuRow():
            return "gpu", row.gpu.id
        case LeaseRow():
            return "lease", str(row.source.id)
        case RequestRow():
            return "waiting", row.source.request


def row_json(row: AnyRow) -> str:
    """Return a row as indented JSON, exactly the fields that ``--json`` prints."""
    match row:
        case ServerRow():
            body: dict[str, Any] = {"server": row.server, "telemetry": row.telemetry}
        case GpuRow():
            body = {"server": row.server.server.name, "gpu": row.gpu, "telemetry": row.telemetry}
        case LeaseRow() | RequestRow():
            body = {"lease": row.source, "rate": row.rate, "figures": row.figures}
    return json.dumps(to_plain(body), indent=2)


def extent(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> Extent:
    """Return how many rows and columns each list has now."""
    first, second, third = all_panels = panels(snapshot, ui, glyphs)
    panel = all_panels[ui.panel_index]
    row = panel.rows[min(ui.cursor, len(panel.rows) - 1)] if panel.rows else None
    return Extent(
        (len(first.rows), len(second.rows), len(third.rows)),
        (len(first.headers), len(second.headers), len(third.headers)),
        subject_of(row) if row is not None else None,
    )


STYLES = {Health.WARN: "yellow", Health.FAIL: "bold red"}


def health_of(snapshot: PoolSnapshot) -> "PoolHealth":
    """Return the merged findings without those of servers that do not answer now."""
    from gpupool.monitoring.health.pool_health import merged  # only where it is shown

    return merged(snapshot.view, snapshot.heard, snapshot.awaited)


def health_lines(snapshot: PoolSnapshot, glyphs: Glyphs) -> list[Text]:
    """Return lines of the pool's health findings."""
    health = health_of(snapshot)
    verdict = "not healthy" if health.count(Health.FAIL) else "healthy"
    counts = f"{health.count(Health.FAIL)} fail, {health.count(Health.WARN)} warn"
    counts += f", {health.silenced} silenced" if health.silenced else ""
    answer = f"{health.answered} of {health.servers} servers answer"
    lines = [Text(f" Health: {verdict}; {counts}; {answer}", "bold"), Text("")]
    return [*lines, *finding_lines(health.findings, health.at, glyphs)]


def finding_lines(rows: "Iterable[PoolFinding]", at: int, glyphs: Glyphs) -> list[Text]:
    """Return findings with their hints."""
    from gpupool.monitoring.health.pool_health import line, silence_words

    lines: list[Text] = []
    for row in rows:
        finding = row.finding
        ago = duration_text(max(0.0, (at - finding.since) / 1000))
        text = Text.assemble(
            (f" {finding.status.name.lower():<5}", STYLES.get(finding.status, "")),
            f" {_shown(finding.check, glyphs):<14} {_shown(line(row), glyphs)} (for {ago})",
        )
        lines.append(text)
        if row.silence is not None:
            text.stylize("dim")
            words = silence_words(row.silence, at)
            lines.append(Text(f"{'':22}{_shown(words, glyphs)}", "dim"))
        elif finding.hint:
            lines.append(Text(f"{'':22}hint: {_shown(finding.hint, glyphs)}", "dim"))
    return lines


def _shown(text: str, glyphs: Glyphs) -> str:
    text = visible(text)
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text
