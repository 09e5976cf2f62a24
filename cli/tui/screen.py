"""The live view as a pure function: from a snapshot, the user's choices and a size to text."""

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from gpupool.cli.lib.columns import (
    MEMORY_THRESHOLDS,
    STATE_STYLES,
    Glyphs,
    bar,
    cells_of,
    load_style,
)
from gpupool.cli.lib.table_lines import table_lines
from gpupool.cli.tui.answers import Answers
from gpupool.cli.tui.detail import detail_lines
from gpupool.cli.tui.keys import KEYS, OVERLAYS, Key, Mode, UiState
from gpupool.cli.tui.panels import Panel, chosen_row, health_lines, is_stale, panels, row_json
from gpupool.cli.tui.tree import tree_lines
from gpupool.cli.tui.trends import pool_line, trend_width
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.values import duration_text, size_text
from gpupool.pool.view import ALARM, PoolView, visible

PANEL_HEIGHT_MIN = 3  # title, header, one row
POOL_LINE_HEIGHT_MIN = 20
"""A screen of fewer lines has no line of the last hour."""

NO_ANSWERS = Answers()


def render(
    snapshot: PoolSnapshot | None,
    ui: UiState,
    width: int,
    height: int,
    glyphs: Glyphs,
    answers: Answers = NO_ANSWERS,
) -> Text:
    """Return exactly ``height`` lines of at most ``width`` columns."""
    if snapshot is None:
        lines = [Text(" gpupool", "bold"), Text(" asking the pool ...", "dim")]
        return _frame(lines, ui, width, height, glyphs)
    banner = _banner(snapshot, ui, width, height, glyphs)
    body_height = max(0, height - len(banner) - 1)
    if ui.mode in OVERLAYS:
        body = _scrolled(_overlay(snapshot, ui, answers, width, glyphs), ui.scroll, body_height)
    else:
        body = _body(snapshot, ui, glyphs, width, body_height)
    if snapshot.is_old:
        for line in body:
            line.stylize("dim")
    return _frame([*banner, *body[:body_height]], ui, width, height, glyphs)


def _overlay(
    snapshot: PoolSnapshot, ui: UiState, answers: Answers, width: int, glyphs: Glyphs
) -> Sequence[Text]:
    match ui.mode:
        case Mode.HEALTH:
            return health_lines(snapshot, glyphs)
        case Mode.TREE:
            return tree_lines(snapshot, glyphs, ui.tree_by)
        case Mode.USAGE:
            return _usage(answers)
        case Mode.DETAIL:
            return detail_lines(snapshot, ui, answers, width, glyphs)
        case Mode.JSON:
            row = chosen_row(snapshot, ui, glyphs)
            text = row_json(row) if row is not None else "{}"
            return [Text(f" {line}") for line in text.splitlines()]
        case _:
            return _help(ui)


def _usage(answers: Answers) -> list[Text]:
    lines = [Text(" Usage of the last 7 days", "bold"), Text("")]
    if not answers.usage:
        return [*lines, Text(f" {answers.pending}", "dim")]
    return [*lines, *(Text(f" {visible(line)}") for line in answers.usage)]


def _scrolled(lines: Sequence[Text], scroll: int, height: int) -> list[Text]:
    first = min(scroll, max(0, len(lines) - height))
    return list(lines[first : first + height])


def _frame(lines: list[Text], ui: UiState, width: int, height: int, glyphs: Glyphs) -> Text:
    lines = lines[: max(0, height - 1)]
    lines += [Text("") for _ in range(height - 1 - len(lines))]
    lines.append(_footer(ui, width))
    for line in lines:
        line.truncate(width, overflow="crop" if glyphs.ascii else "ellipsis")
    frame = Text("\n", no_wrap=True, overflow="crop").join(lines)
    frame.end = ""
    return frame


def _banner(
    snapshot: PoolSnapshot, ui: UiState, width: int, height: int, glyphs: Glyphs
) -> list[Text]:
    view = snapshot.view
    reached, voters = view.raft.reached(view.answered_by), len(view.raft.voters)
    age = snapshot.view_age_s
    age_word = "now" if age < 1.0 else f"{duration_text(age)} ago"
    first = Text.assemble(
        (f" gpupool {view.name}", "bold"),
        "   leader ",
        (view.raft.leader or "none", "bold" if view.raft.leader else "bold red"),
        f"  term {view.raft.term}  quorum ",
        (f"{reached}/{voters}", "" if view.raft.quorum else "bold red"),
        f"   GPUs {snapshot.sums.counts_text()}   ",
        (f"as of {age_word}", "bold red" if age > snapshot.stale_after_s else ""),
        ("   PAUSED" if ui.paused else "", "bold yellow"),
    )
    sentence = next(iter(view.warnings), "") if snapshot.is_old else ""
    if snapshot.is_old and snapshot.nobody_answers:
        sentence = "no server answers; trying again"
    if sentence:
        return [first, Text(f" {sentence}", "bold white on red")]
    lines = [first, _memory_line(snapshot, glyphs)]
    if height >= POOL_LINE_HEIGHT_MIN:
        lines.append(Text(pool_line(snapshot, width, glyphs)))
    return lines


def _memory_line(snapshot: PoolSnapshot, glyphs: Glyphs) -> Text:
    view, sums = snapshot.view, snapshot.sums
    ratio = sums.granted / sums.capacity if sums.capacity else 0.0
    line = Text.assemble(
        " memory ",
        (bar(ratio, 20, glyphs), load_style(ratio, MEMORY_THRESHOLDS)),
        f" {size_text(sums.granted)} of {size_text(sums.capacity)} granted"
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
    all_panels = panels(snapshot, ui, glyphs, trend_width(width))
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


def row_at(
    snapshot: PoolSnapshot, ui: UiState, width: int, height: int, line: int, glyphs: Glyphs
) -> str:
    """Return the key ``row:PANEL:NUMBER`` of a frame line's row; empty for no row."""
    top = len(_banner(snapshot, ui, width, height, glyphs))
    all_panels = panels(snapshot, ui, glyphs)
    heights = _heights([len(p.rows) for p in all_panels], ui.panel_index, height - top - 1)
    for index, panel in enumerate(all_panels):
        at = line - top - 2  # below the title and the header
        if 0 <= at < heights[index] - 2:
            row = _first_shown(panel, ui.selected[index], heights[index]) + at
            return f"row:{index}:{row}" if row < len(panel.rows) else ""
        top += heights[index]
    return ""


def _first_shown(panel: Panel, cursor: int, height: int) -> int:
    room, count = max(0, height - 2), len(panel.rows)
    cursor = min(cursor, max(0, count - 1))
    return min(max(0, cursor - room + 1), max(0, count - room))


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
    start = _first_shown(panel, cursor, height)
    rows = panel.rows[start : start + room]
    numbers = range(start, start + len(rows))
    # Only what is shown is made into text: a pool may have thousands of rows.
    cells = cells_of(panel.columns, rows, glyphs)
    if count > room:
        title += f", {start + 1}-{start + len(rows)} shown"
    lines = table_lines(panel.columns, cells, width)
    for row, line in zip(numbers, lines[1:], strict=True):
        if is_stale(rows[row - start]):
            line.stylize("dim")
        if focused and row == cursor:
            line.pad_right(max(0, width - len(line.plain)))
            line.stylize("bold reverse")
    return [_rule(title, width, glyphs, focused=focused), *lines]


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
        Text(" FREE IN: by then enough GPUs are free for a request, unless those ahead take them."),
        Text(
            " Last hour: how busy all GPUs of the pool were, how much of their memory was granted."
        ),
        Text(" Dim: old numbers. Any key goes back.", "dim"),
    ]
    return lines


def _footer(ui: UiState, width: int) -> Text:
    match ui.mode:
        case Mode.FILTER:
            return Text(f" filter: {ui.filter}_   Enter keeps it, Esc clears it", "bold")
        case Mode.DRAIN:
            hint = ui.message or "Enter drains, Esc does not"
            return Text(f" drain, because: {ui.typed}_   {hint}", "bold yellow")
        case Mode.UNDRAIN:
            return Text(" grant on this server again? y/n", "bold yellow")
        case Mode.DETAIL:
            return Text(" arrows scroll, [ ] less and more time, any other key goes back", "dim")
        case Mode.TREE:
            return Text(
                " arrows scroll, t groups by user or client, any other key goes back", "dim"
            )
        case _ if ui.mode in OVERLAYS:
            return Text(" arrows scroll, any other key goes back", "dim")
        case _:
            return _browse_footer(ui, width)


def _browse_footer(ui: UiState, width: int) -> Text:
    """Return the key help, filters and message: on a narrow screen without the lesser keys."""
    told = Text()
    if ui.filter:
        told.append(f"  filter: {ui.filter}", "yellow")
    if ui.only_wrong:
        told.append("  only what is wrong", "yellow")
    if ui.message:
        told.append(f"  {ui.message}", "bold yellow")
    shown = [key for key in KEYS if key.footer and not (key.write and ui.readonly)]
    line = _keys_line(shown)
    if len(line) + len(told) > width:
        line = _keys_line([key for key in shown if not key.lesser])
    if len(line) + len(told) > width and told:
        return Text.assemble(told, line)
    return Text.assemble(line, told)


def _keys_line(keys: Sequence[Key]) -> Text:
    line = Text(" ")
    for key in keys:
        line.append(key.keys[0], "bold")
        line.append(f" {key.footer}  ", "dim")
    return line
