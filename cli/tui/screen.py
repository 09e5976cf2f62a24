"""The live view as a pure function: from a snapshot, the user's choices and a size to text."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rich.text import Text

from gpupool.cli.lib.columns import (
    GPU_COLUMNS,
    LEASE_COLUMNS,
    MEMORY_THRESHOLDS,
    SERVER_COLUMNS,
    STATE_STYLES,
    Cell,
    Column,
    Glyphs,
    bar,
    cells_of,
    chosen_columns,
    load_style,
    matches,
)
from gpupool.cli.lib.output import to_plain
from gpupool.cli.lib.rows import (
    GpuRow,
    LeaseRow,
    PoolSnapshot,
    ServerRow,
    gpu_counts,
    gpu_rows,
    lease_rows,
    server_rows,
    waiting_rows,
)
from gpupool.cli.lib.values import duration_text, size_text
from gpupool.cli.tui.health_panel import health_lines
from gpupool.cli.tui.keys import KEYS, PANELS, Extent, Mode, UiState
from gpupool.cli.tui.trends import trend_column
from gpupool.pool.view import ALARM, PoolView

R = TypeVar("R", ServerRow, GpuRow, LeaseRow)

VIEW_STALE_AFTER_S = 5.0
"""A view older than this is dimmed as a whole: old numbers must not look new."""

PANEL_HEIGHT_MIN = 3  # title, header, one row
REASONS = ("REASON", "FAULT")
"""Columns, the last ones of their lists, that say what is wrong."""

KEPT = ("STATE", "SERVER", "GPU", "GPUS", "LEASE", "USER", *REASONS)
"""Columns that stay where a reason needs room."""

TITLES = {"servers": "1 Servers", "gpus": "2 GPUs", "leases": "3 Leases"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One list, sorted and filtered, not yet cut to what fits."""

    name: str
    title: str
    headers: tuple[str, ...]
    right: tuple[bool, ...]
    columns: Sequence[Column[Any]]
    rows: Sequence[ServerRow | GpuRow | LeaseRow]
    sorted_by: int


def panels(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> tuple[Panel, Panel, Panel]:
    """Return the three lists in the order of their keys."""
    servers = _panel(0, server_rows(snapshot), SERVER_COLUMNS, ui, glyphs)
    classes = any(lease.user_class for lease in (*snapshot.view.leases, *snapshot.view.waiting))
    chosen = _chosen_server(servers, ui)
    everywhere = ui.all_servers or chosen is None
    gpus = gpu_rows(snapshot, None if everywhere or chosen is None else chosen.server.id)
    where = "" if everywhere or chosen is None else f" of {chosen.server.name}"
    leases = [*lease_rows(snapshot), *waiting_rows(snapshot)]
    trend = trend_column(snapshot, ui.figure)
    gpu_columns = [trend if column.title == "UTIL" else column for column in GPU_COLUMNS]
    return (
        servers,
        _panel(1, gpus, gpu_columns, ui, glyphs, where),
        _panel(
            2,
            leases,
            [c for c in LEASE_COLUMNS if classes or not c.classes],
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


def _is_stale(row: ServerRow | GpuRow | LeaseRow) -> bool:
    if isinstance(row, LeaseRow):
        return row.state == "unreachable"
    return row.stale if isinstance(row, ServerRow) else row.server.stale


def _chosen_server(servers: Panel, ui: UiState) -> ServerRow | None:
    if not servers.rows:
        return None
    row = servers.rows[min(ui.selected[0], len(servers.rows) - 1)]
    return row if isinstance(row, ServerRow) else None


def chosen_server(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> ServerRow | None:
    """Return the server that the cursor of the first panel is on."""
    return _chosen_server(panels(snapshot, ui, glyphs)[0], ui)


def chosen_row(
    snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs
) -> ServerRow | GpuRow | LeaseRow | None:
    """Return the row that the cursor is on."""
    panel = panels(snapshot, ui, glyphs)[ui.panel_index]
    return panel.rows[min(ui.cursor, len(panel.rows) - 1)] if panel.rows else None


def row_json(row: ServerRow | GpuRow | LeaseRow) -> str:
    """Return a row as indented JSON, exactly the fields that ``--json`` prints."""
    match row:
        case ServerRow():
            body: dict[str, Any] = {"server": row.server, "telemetry": row.telemetry}
        case GpuRow():
            body = {"server": row.server.server.name, "gpu": row.gpu, "telemetry": row.telemetry}
        case LeaseRow():
            body = {"lease": row.source, "rate": row.rate, "figures": row.figures}
    return json.dumps(to_plain(body), indent=2)


def extent(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> Extent:
    """Return how many rows and columns each list has now."""
    first, second, third = panels(snapshot, ui, glyphs)
    return Extent(
        (len(first.rows), len(second.rows), len(third.rows)),
        (len(first.headers), len(second.headers), len(third.headers)),
    )


# --- the frame ------------------------------------------------------------------------------------


def render(
    snapshot: PoolSnapshot | None, ui: UiState, width: int, height: int, glyphs: Glyphs
) -> Text:
    """Return exactly ``height`` lines of at most ``width`` columns."""
    if snapshot is None:
        lines = [Text(" gpupool", "bold"), Text(" asking the pool ...", "dim")]
        return _frame(lines, ui, width, height, stale=False)
    banner = _banner(snapshot, ui, glyphs)
    stale = _stale(snapshot)
    body_height = max(0, height - len(banner) - 1)
    if ui.mode is Mode.HELP:
        body = _scrolled(_help(ui), ui.scroll, body_height)
    elif ui.mode is Mode.HEALTH:
        body = _scrolled(health_lines(snapshot, glyphs), ui.scroll, body_height)
    elif ui.mode is Mode.JSON:
        row = chosen_row(snapshot, ui, glyphs)
        text = row_json(row) if row is not None else "{}"
        body = _scrolled([Text(f" {line}") for line in text.splitlines()], ui.scroll, body_height)
    else:
        body = _body(snapshot, ui, glyphs, width, body_height)
    if stale:
        for line in body:
            line.stylize("dim")
    return _frame([*banner, *body[:body_height]], ui, width, height, stale=stale)


def _scrolled(lines: list[Text], scroll: int, height: int) -> list[Text]:
    return lines[min(scroll, max(0, len(lines) - height)) :]


def _stale(snapshot: PoolSnapshot) -> bool:
    return snapshot.view_age_s > VIEW_STALE_AFTER_S or not snapshot.view.raft.quorum


def _frame(lines: list[Text], ui: UiState, width: int, height: int, *, stale: bool) -> Text:
    lines = lines[: max(0, height - 1)]
    lines += [Text("") for _ in range(height - 1 - len(lines))]
    lines.append(_footer(ui))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    frame = Text("\n", no_wrap=True, overflow="crop").join(lines)
    frame.end = ""
    return frame


def quorum_counts(view: PoolView) -> tuple[int, int]:
    """Return how many voters the answering server is in touch with, itself included, of all."""
    voters = set(view.raft.voters)
    reached = voters & {view.answered_by, *view.raft.connected}
    return len(reached), len(voters)


def _banner(snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs) -> list[Text]:
    view = snapshot.view
    reached, voters = quorum_counts(view)
    age = snapshot.view_age_s
    age_word = "now" if age < 1.0 else f"{duration_text(age)} ago"
    first = Text.assemble(
        (f" gpupool {view.name}", "bold"),
        "   leader ",
        (view.raft.leader or "none", "bold" if view.raft.leader else "bold red"),
        f"  term {view.raft.term}  quorum ",
        (f"{reached}/{voters}", "" if view.raft.quorum else "bold red"),
        f"   GPUs {gpu_counts(snapshot).text()}   ",
        (f"as of {age_word}", "bold red" if age > VIEW_STALE_AFTER_S else ""),
        ("   PAUSED" if ui.paused else "", "bold yellow"),
    )
    sentence = snapshot.trouble or next(iter(view.warnings), "") if _stale(snapshot) else ""
    if sentence:
        return [first, Text(f" {sentence}", "bold white on red")]
    return [first, _memory_line(snapshot, glyphs)]


def _memory_line(snapshot: PoolSnapshot, glyphs: Glyphs) -> Text:
    view = snapshot.view
    gpus = [gpu for server in view.servers for gpu in server.gpus]
    granted, capacity = sum(g.memory_granted for g in gpus), sum(g.capacity for g in gpus)
    ratio = granted / capacity if capacity else 0.0
    line = Text.assemble(
        " memory ",
        (bar(ratio, 20, glyphs), load_style(ratio, MEMORY_THRESHOLDS)),
        f" {size_text(granted)} of {size_text(capacity)} granted"
        f"   leases {len(view.leases)}   waiting {len(view.waiting)}   data {view.data_encryption}",
        f"   policy v{view.policy_version}" if view.policy_version else "",
    )
    if view.warnings:
        bad = view.warnings[0].startswith(ALARM)
        line.append(f"   ! {view.warnings[0]}", "bold red" if bad else "yellow")
    return line


def _body(
    snapshot: PoolSnapshot, ui: UiState, glyphs: Glyphs, width: int, height: int
) -> list[Text]:
    all_panels = panels(snapshot, ui, glyphs)
    heights = _heights([len(p.rows) for p in all_panels], ui.panel_index, height)
    lines: list[Text] = []
    for index, panel in enumerate(all_panels):
        if heights[index]:
            focused = index == ui.panel_index
            lines += _panel_lines(panel, focused, ui.selected[index], width, heights[index], glyphs)
    rest = height - len(lines)
    if rest >= 2:
        lines.append(_rule("Events", width, glyphs, focused=False))
        lines += _event_lines(snapshot.view, rest - 1)
    return lines


def _heights(counts: Sequence[int], focus: int, height: int) -> list[int]:
    """Share ``height`` lines: the chosen list first, then the others, as far as they are full."""
    wanted = [count + 2 for count in counts]
    wanted = [max(PANEL_HEIGHT_MIN, each) for each in wanted]
    if height < PANEL_HEIGHT_MIN * len(counts):
        return [height if index == focus else 0 for index in range(len(counts))]
    given = [PANEL_HEIGHT_MIN for _ in counts]
    left = height - sum(given)
    for index in [focus, *(i for i in range(len(counts)) if i != focus)]:
        # The chosen list leaves a third to the others, unless they do not need it.
        others = sum(wanted[i] - given[i] for i in range(len(counts)) if i != index)
        cap = left if index != focus else max(left - others, left * 2 // 3)
        more = min(wanted[index] - given[index], cap)
        given[index] += more
        left -= more
    return given


def _rule(title: str, width: int, glyphs: Glyphs, *, focused: bool) -> Text:
    dash = "-" if glyphs.ascii else "─"
    mark = (">" if glyphs.ascii else "▶") if focused else " "
    line = f"{mark}{title} "
    return Text(line + dash * max(0, width - len(line)), "bold cyan" if focused else "cyan")


def _panel_lines(
    panel: Panel, focused: bool, cursor: int, width: int, height: int, glyphs: Glyphs
) -> list[Text]:
    title = panel.title
    if panel.sorted_by >= 0:
        title += f" by {panel.headers[panel.sorted_by].lower()}"
    room = max(0, height - 2)
    count = len(panel.rows)
    cursor = min(cursor, max(0, count - 1))
    start = min(max(0, cursor - room + 1), max(0, count - room))
    rows = panel.rows[start : start + room]
    visible = range(start, start + len(rows))
    # Only what is shown is made into text: a pool may have thousands of rows.
    cells = dict(zip(visible, cells_of(panel.columns, rows, glyphs), strict=True))
    if count > room:
        title += f", {start + 1}-{start + len(visible)} shown"
    widths = [len(header) for header in panel.headers]
    for row in visible:
        for at, cell in enumerate(cells[row]):
            widths[at] = max(widths[at], len(cell.text))
    keep = _columns_that_fit(panel, cells.values(), widths, width)

    def kept(line: Sequence[Cell]) -> Text:
        return _line(
            [line[at] for at in keep],
            [widths[at] for at in keep],
            [panel.right[at] for at in keep],
        )

    header = [Cell(text, "dim") for text in panel.headers]
    lines = [_rule(title, width, glyphs, focused=focused), kept(header)]
    for row in visible:
        line = kept(cells[row])
        if _is_stale(panel.rows[row]):
            line.stylize("dim")
        if focused and row == cursor:
            line.pad_right(max(0, width - len(line.plain)))
            line.stylize("bold reverse")
        lines.append(line)
    return lines


def _columns_that_fit(
    panel: Panel, lines: Iterable[Sequence[Cell]], widths: Sequence[int], width: int
) -> list[int]:
    """Return the columns to show: where a reason is given, others give way to it."""
    keep = list(range(len(panel.headers)))
    last = keep[-1]
    if panel.headers[last] not in REASONS or not any(line[last].text for line in lines):
        return keep
    for at in reversed(range(last)):
        if sum(widths[each] + 2 for each in keep) <= width:
            break
        if panel.headers[at] not in KEPT:
            keep.remove(at)
    return keep


def _line(cells: Sequence[Cell], widths: Sequence[int], right: Sequence[bool]) -> Text:
    parts: list[tuple[str, str]] = [(" ", "")]
    for at, cell in enumerate(cells):
        pad = " " * (widths[at] - len(cell.text))
        parts.append((pad, "") if right[at] else (cell.text, cell.style))
        parts.append((cell.text, cell.style) if right[at] else (pad, ""))
        parts.append(("  ", ""))
    return Text.assemble(*parts, no_wrap=True)


def _event_lines(view: PoolView, count: int) -> list[Text]:
    lines: list[Text] = []
    for event in reversed(view.events[-count:]):
        clock = datetime.fromtimestamp(event.at / 1000).astimezone().strftime("%H:%M:%S")
        style = STATE_STYLES["down"] if event.kind in ("unreachable", "removed") else ""
        text = Text.assemble(
            (f" {clock}  ", "dim"),
            (f"{event.kind:<14}", style),
            f" {event.subject:<10}  {event.text}",
        )
        lines.append(text)
    return lines


def _help(ui: UiState) -> list[Text]:
    lines = [Text(""), Text(" Keys", "bold")]
    for key in KEYS:
        if key.write and ui.readonly:
            continue
        lines.append(Text.assemble((f"   {'  '.join(key.keys):<28}", "cyan"), key.does))
    lines += [
        Text(""),
        Text(" States: idle, mix, full, drain, down, new; away, or *: does not answer now,"),
        Text(" and the numbers of that server are the last known ones."),
        Text(" Of leases: UP/S and DOWN/S are bytes from and to the client, WAITS/S answers that"),
        Text(
            " it waited for, WIRE seconds of each second that it waited for the network: WAITS/S x"
        ),
        Text(
            " RTT, above 0.2 bound by latency. BUSY is GPUs, ~ an estimate; IDLE since it computed."
        ),
        Text(" Dim: old numbers. Any key goes back.", "dim"),
    ]
    return lines


def _footer(ui: UiState) -> Text:
    match ui.mode:
        case Mode.FILTER:
            return Text(f" filter: {ui.filter}_   Enter keeps it, Esc clears it", "bold")
        case Mode.DRAIN:
            hint = ui.message or "Enter drains, Esc does not"
            return Text(f" drain, because: {ui.typed}_   {hint}", "bold yellow")
        case Mode.UNDRAIN:
            return Text(" grant on this server again? y/n", "bold yellow")
        case Mode.HELP | Mode.JSON | Mode.HEALTH:
            return Text(" arrows scroll, any other key goes back", "dim")
        case Mode.BROWSE:
            shown = [key for key in KEYS if key.footer and not (key.write and ui.readonly)]
            line = Text(" ")
            for key in shown:
                line.append(key.keys[0], "bold")
                line.append(f" {key.footer}  ", "dim")
            if ui.filter:
                line.append(f"  filter: {ui.filter}", "yellow")
            if ui.only_wrong:
                line.append("  only what is wrong", "yellow")
            if ui.message:
                line.append(f"  {ui.message}", "bold yellow")
            return line
