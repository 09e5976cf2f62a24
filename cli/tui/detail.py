"""One server, GPU, lease or waiting request alone: its state, charts, parts and advice. Pure."""

from collections.abc import Callable, Sequence

from rich.text import Text

from gpupool.cli.lib.columns import (
    GPU_COLUMNS,
    LEASE_COLUMNS,
    NOT_KNOWN,
    STATE_STYLES,
    Glyphs,
    gpus_text,
)
from gpupool.cli.lib.table_lines import live_table
from gpupool.cli.lib.terminal_chart import Frame, chart
from gpupool.cli.tui.answers import Answers
from gpupool.cli.tui.keys import DAY_S, UiState
from gpupool.cli.tui.panels import finding_lines, health_of
from gpupool.cli.tui.tree import session_words
from gpupool.pool.model.ids import GpuId
from gpupool.pool.read_model.pool_snapshot import LeaseRow, PoolSnapshot
from gpupool.pool.values import duration_text, free_text, size_text
from gpupool.pool.view import LeaseView, visible

CHART_WIDTH_MIN = 48
CHARTS_ABREAST = 3
CHART_HEIGHT = 4
AGO = {900: "15 minutes", 3600: "hour", 21_600: "6 hours", 86_400: "24 hours"}


def detail_lines(
    snapshot: PoolSnapshot, ui: UiState, answers: Answers, width: int, glyphs: Glyphs
) -> list[Text]:
    """Return the lines of the detail that is open."""
    kind, name = ui.detail
    make = _KINDS.get(kind, _nothing)
    above, below = make(name, snapshot, answers, width, glyphs)
    drawn = [] if kind == "waiting" else _charts(ui, answers, width, glyphs)
    return [*above, *drawn, *below]


Parts = tuple[list[Text], list[Text]]
"""Lines above the charts, and below."""


def _nothing(
    name: str, snapshot: PoolSnapshot, answers: Answers, width: int, glyphs: Glyphs
) -> Parts:
    return [_title("it", name, "gone")], []


def _title(kind: str, name: str, state: str, *words: str) -> Text:
    return Text.assemble(
        f" {kind} ",
        (name, "bold"),
        "  ",
        (state, STATE_STYLES.get(state.rstrip("*"), "")),
        "".join(f"   {visible(word)}" for word in words if word),
    )


def _head(text: str) -> Text:
    return Text(f" {text}", "cyan")


def _server(
    name: str, snapshot: PoolSnapshot, answers: Answers, width: int, glyphs: Glyphs
) -> Parts:
    row = next((each for each in snapshot.servers if each.server.id == name), None)
    if row is None:
        return [_title("Server", name, "removed")], []
    server = row.server
    words = [server.address, "leader" if server.leader else "", server.reason]
    words += [f"driver {server.driver_version}" if server.driver_version else ""]
    words += [f"ping {row.ping_s * 1000:.1f} ms" if row.ping_s is not None else ""]
    gpus = live_table(GPU_COLUMNS, row.gpus, width, glyphs)
    here = _held(snapshot, lambda lease: any(p.server == server.id for p in lease.partitions))
    below = [_head(f"GPUs ({len(server.gpus)})"), *gpus]
    below += _leases(here, width, glyphs)
    return [_title("Server", server.name, row.state, *words)], [
        *below,
        *_advice(snapshot, server.name, None, glyphs),
    ]


def _gpu(name: str, snapshot: PoolSnapshot, answers: Answers, width: int, glyphs: Glyphs) -> Parts:
    found = next((g for row in snapshot.servers for g in row.gpus if g.gpu.id == name), None)
    if found is None:
        return [_title("GPU", name, "removed")], []
    server, gpu = found.server.server, found.gpu
    trouble = gpu.fault or (f"drained: {gpu.drain}" if gpu.drain else "")
    words = [gpu.name, size_text(gpu.memory_total), gpu.pci_bus_id, gpu.id, trouble]
    here = _held(snapshot, lambda lease: any(p.gpu == gpu.id for p in lease.partitions))
    title = _title("GPU", f"{gpu.index} of {server.name}", found.state, *words)
    return [title], [
        *live_table(GPU_COLUMNS, [found], width, glyphs),
        *_leases(here, width, glyphs),
        *_advice(snapshot, server.name, gpu.id, glyphs),
    ]


def _lease(
    name: str, snapshot: PoolSnapshot, answers: Answers, width: int, glyphs: Glyphs
) -> Parts:
    row = next(iter(_held(snapshot, lambda lease: str(lease.id) == name)), None)
    below = [_head("Account and advice")]
    told = answers.leases.get(name)
    if told is None:
        below.append(Text(f" {answers.pending}", "dim"))
    else:
        below += [Text(f" {_shown(each, glyphs)}") for each in told]
    if row is None:
        return [_title("Lease", f"{int(name):x}", "ended")], below
    lease = row.source
    words = [lease.user, lease.client, lease.program, lease.reason]
    above = [_title("Lease", lease.name, row.state, *words)]
    above += live_table(LEASE_COLUMNS, [row], width, glyphs)
    above += _sessions(row)
    places = {(part.server, part.gpu) for part in lease.partitions}
    gpus = [each for each in snapshot.gpus if (each.server.server.id, each.gpu.id) in places]
    return above, [_head("Its GPUs"), *live_table(GPU_COLUMNS, gpus, width, glyphs), *below]


def _waiting(
    name: str, snapshot: PoolSnapshot, answers: Answers, width: int, glyphs: Glyphs
) -> Parts:
    queue = snapshot.requests
    at = next((n for n, each in enumerate(queue) if each.source.request == name), None)
    if at is None:
        return [_title("Request", name[:4] + "?", "granted or gone")], []
    row, source = queue[at], queue[at].source
    wants = f"{gpus_text(row)} for {duration_text(row.age_s)}"
    words = [source.user, source.client, source.program]
    return [_title("Request", row.id, "waiting", *words)], [
        Text(f" wants {wants}; {at} before it in the order of service"),
        Text(f" because: {visible(source.reason)}"),
        *([] if row.free_in_s is None else [Text(f" {free_text(row.free_in_s)}")]),
        *(Text(f" only where {visible(each)}") for each in source.filters),
        _head("Before it"),
        *live_table(LEASE_COLUMNS, queue[:at], width, glyphs),
    ]


_KINDS: dict[str, Callable[[str, PoolSnapshot, Answers, int, Glyphs], Parts]] = {
    "server": _server,
    "gpu": _gpu,
    "lease": _lease,
    "waiting": _waiting,
}


def _held(snapshot: PoolSnapshot, fits: Callable[[LeaseView], bool]) -> list[LeaseRow]:
    return [LeaseRow(snapshot, lease) for lease in snapshot.view.leases if fits(lease)]


def _leases(rows: Sequence[LeaseRow], width: int, glyphs: Glyphs) -> list[Text]:
    lines = live_table(LEASE_COLUMNS, rows, width, glyphs) if rows else []
    return [_head(f"Leases ({len(rows)})"), *lines]


def _sessions(row: LeaseRow) -> list[Text]:
    names = row.snapshot.names
    lines = [
        Text(f" on {names.get(server, server)}: {', '.join(session_words(row, server))}")
        for server in row.sessions
    ]
    return lines or [Text(" no session of it is known now", "dim")]


def _advice(snapshot: PoolSnapshot, server: str, gpu: GpuId | None, glyphs: Glyphs) -> list[Text]:
    """Return a server's health findings; for a GPU, its findings alone."""
    health = health_of(snapshot)
    rows = [each for each in health.findings if each.server == server]
    if gpu is not None:
        rows = [each for each in rows if each.finding.subject == gpu]
    lines = finding_lines(rows, health.at, glyphs) or [Text(" nothing is wrong", "dim")]
    return [_head("Findings and advice"), *lines]


def _charts(ui: UiState, answers: Answers, width: int, glyphs: Glyphs) -> list[Text]:
    charts = answers.charts.get((ui.detail, ui.span_s))
    span = AGO.get(ui.span_s, f"{ui.span_s // DAY_S} days")
    head = _head(f"Last {span}  ([ ] less, more)")
    if charts is None:
        return [head, Text(f" {answers.pending}", "dim")]
    abreast = max(1, min(CHARTS_ABREAST, width // CHART_WIDTH_MIN))
    ascii_only = glyphs.ascii or glyphs.blocks
    frame = Frame(charts.since, charts.until, width // abreast - 2, CHART_HEIGHT, ascii_only)
    known = [each for each in charts.charts if each.points]
    lines = [head]
    for first in range(0, len(known), abreast):
        drawn = [
            chart(each.metric, each.unit, each.points, frame)
            for each in known[first : first + abreast]
        ]
        for row in zip(*drawn, strict=True):
            cells = (f"{each[: frame.width]:<{frame.width}}" for each in row)
            lines.append(Text(" " + "  ".join(cells).rstrip()))
    unknown = [each.metric for each in charts.charts if not each.points]
    if unknown:
        lines.append(Text(f" nothing is known of: {', '.join(unknown)}", "dim"))
    if charts.trouble:
        lines.append(Text(f" {_shown(charts.trouble, glyphs)}", "yellow"))
    return lines


def _shown(text: str, glyphs: Glyphs) -> str:
    text = visible(text) or NOT_KNOWN
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text
