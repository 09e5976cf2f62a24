"""Tasks of the live view that query servers for data outside its subscription."""

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce

import trio

from gpupool.cli.tui.answers import CHARTS, ChartData, Charts, chart_of
from gpupool.cli.tui.keys import DAY_S, Chosen, Mode, UiState
from gpupool.cli.tui.live_state import LiveView
from gpupool.cli.tui.panels import chosen_server
from gpupool.cli.tui.trends import POOL_SPAN_S, SLOT_S, SLOTS
from gpupool.monitoring.usage_asking import FoundUsage, ask_usage
from gpupool.pool.errors import GpupoolError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.record_query import FAR, RecordQuery
from gpupool.pool.view import PoolView
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.protocol.messages import GetTelemetry

PING_EVERY_S = 5.0
PING_COUNT_MAX = 64
FILL_EVERY_S = 60.0
"""So often a server is asked for its history again: it closes the gap before the first reading."""

SERVERS_ASKED_MAX = 32
"""In a larger pool the line of the last hour begins empty: its servers are not all asked."""

USAGE_EVERY_S = 60.0
USAGE_SPAN_S = 7 * DAY_S
MIB = 1 << 20


async def ping(screen: LiveView, pool: Pool) -> None:
    """Measure now and then how long each server takes to answer."""

    async def measure(connection: ServerConnection) -> None:
        started = trio.current_time()
        with suppress(GpupoolError):
            await connection.call(GetTelemetry(), timeout_s=PING_EVERY_S)
            screen.collector.ping_s[connection.server] = trio.current_time() - started

    while True:
        async with trio.open_nursery() as nursery:
            for connection in list(pool.connections.by_server.values())[:PING_COUNT_MAX]:
                nursery.start_soon(measure, connection)
            await trio.sleep(PING_EVERY_S)


# --- sparklines -----------------------------------------------------------------------------------


async def fill(screen: LiveView, pool: Pool) -> None:
    """Fetch the chosen server's history of its GPUs, so that their lines begin full."""
    trends, asked = screen.collector.trends, dict[tuple[ServerId, str], float]()
    looked_at: UiState | None = None
    await screen.viewed.wait()
    while True:
        view, ui, now = screen.collector.watch.view, screen.ui, trio.current_time()
        assert view is not None  # once there is one, there always is
        due = min(asked.values(), default=now - FILL_EVERY_S) + FILL_EVERY_S
        if ui is looked_at and due > now:
            with trio.move_on_at(due):
                await screen.pressed.wait()
            continue
        asked = {key: at for key, at in asked.items() if at + FILL_EVERY_S > now}
        snapshot, looked_at = screen.snapshot(), ui
        row = chosen_server(snapshot, ui, screen.glyphs) if snapshot is not None else None
        if row is None:
            looked_at = None
            await trio.sleep(1.0)
            continue
        key = row.server.id, ui.figure
        if key in asked and trends.follows(row.server.id):
            continue
        asked[key] = now
        trends.follow(row.server.id)
        with suppress(GpupoolError):
            await _fill_one(screen, pool, *key, view.now)


async def _fill_one(
    screen: LiveView, pool: Pool, server: ServerId, figure: str, now_ms: int
) -> None:
    from gpupool.monitoring.history.history_report import metrics_of  # only where it is drawn

    query = _query("server", figure, "", now_ms, SLOT_S * (SLOTS + 1))
    answer = await pool.history(query, (server,))
    trends = screen.collector.trends
    for page in answer.pages.values():
        if page.step_s == SLOT_S:
            trends.fill(server, figure, page, metrics_of("gpu")[figure].scale)
    screen.touch(awaited=True)


async def fill_pool(screen: LiveView, pool: Pool) -> None:
    """Fetch the last hour of the pool; of a large one, only one server's data."""
    await screen.viewed.wait()
    while True:
        view = screen.collector.watch.view
        assert view is not None
        with suppress(GpupoolError):
            await _fill_pool_once(screen, pool, view)
        await trio.sleep(FILL_EVERY_S)


async def _fill_pool_once(screen: LiveView, pool: Pool, view: PoolView) -> None:
    servers = [server for server in view.servers if server.gpus and server.state != "down"]
    busy: list[HistoryPage] = []
    if 0 < len(servers) <= SERVERS_ASKED_MAX:
        query = _query("server", "busy", "", view.now, POOL_SPAN_S)
        answer = await pool.history(query, [each.id for each in servers])
        busy = list(answer.pages.values())
    query = _query("pool", "granted", "", view.now, POOL_SPAN_S)
    told = (await pool.history(query, (view.answered_by,))).pages.values()
    held = sum(gpu.capacity for server in view.servers for gpu in server.gpus) // MIB
    for page in told:
        screen.collector.trends.fill_pool(busy, page, held)
    screen.touch(awaited=True)


def _query(of: str, metric: str, name: str, now_ms: int, span_s: int) -> HistoryQuery:
    since = Milliseconds(now_ms - 1000 * span_s)
    return HistoryQuery(of, metric, name, since, Milliseconds(now_ms + 1000 * SLOT_S))


# --- what is open -----------------------------------------------------------------------------

Open = tuple[Mode, Chosen, int]


def _open(ui: UiState) -> Open:
    """Return the mode, detail and span that determine the query."""
    return ui.mode, ui.detail if ui.mode is Mode.DETAIL else ("", ""), ui.span_s


async def keep_answers(screen: LiveView, pool: Pool) -> None:
    """Query servers for the open panel repeatedly; cancel when it is left."""
    while True:
        shown = _open(screen.ui)
        if screen.collector.watch.view is None or shown[0] not in (Mode.DETAIL, Mode.USAGE):
            await screen.pressed.wait()
            continue
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask_for, screen, pool, shown)
            while _open(screen.ui) == shown:
                await screen.pressed.wait()
            nursery.cancel_scope.cancel()


async def _ask_for(screen: LiveView, pool: Pool, shown: Open) -> None:
    mode, detail, span_s = shown
    while True:
        if mode is Mode.USAGE:
            await _usage(screen, pool)
            await trio.sleep(USAGE_EVERY_S)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_charts, screen, pool, detail, span_s)
                if detail[0] == "lease":
                    nursery.start_soon(_lease, screen, pool, detail[1])
            await trio.sleep(SLOT_S)


async def _charts(screen: LiveView, pool: Pool, detail: Chosen, span_s: int) -> None:
    view = screen.collector.watch.view
    if view is None:
        return
    kind, name = detail
    servers = _servers_of(detail, view)
    metrics = CHARTS[kind]
    found: dict[str, ChartData] = {}
    silent: dict[ServerId, str] = {}

    async def ask(metric: str) -> None:
        from gpupool.monitoring.history.history_report import metrics_of

        figure = metrics_of(kind)[metric]
        query = _query(kind, metric, "" if kind == "server" else name, view.now, span_s)
        try:
            answer = await pool.history(query, servers)
        except GpupoolError as error:
            silent[ServerId("")] = str(error)
            return
        silent.update(answer.silent)
        pages = answer.pages.values()
        found[metric] = chart_of(metric, figure.unit, pages, figure.scale, additive=figure.additive)

    async with trio.open_nursery() as nursery:
        for metric in metrics:
            nursery.start_soon(ask, metric)
    until = view.now // 1000 + SLOT_S
    names = {server.id: server.name for server in view.servers}
    trouble = "; ".join(
        f"{names.get(server, server)}: {why}" if server else why for server, why in silent.items()
    )
    drawn = tuple(found[metric] for metric in metrics if metric in found)
    screen.answers.charts[detail, span_s] = Charts(until - span_s, until, drawn, trouble)
    screen.touch(awaited=True)


def _servers_of(detail: Chosen, view: PoolView) -> Sequence[ServerId]:
    """Return the servers with figures of it; none for all servers."""
    kind, name = detail
    if kind == "server":
        return (ServerId(name),)
    if kind == "gpu":
        return [each.id for each in view.servers if any(gpu.id == name for gpu in each.gpus)]
    leases = [each for each in view.leases if str(each.id) == name]
    return list(dict.fromkeys(part.server for each in leases for part in each.partitions))


async def _lease(screen: LiveView, pool: Pool, name: str) -> None:
    from gpupool.monitoring.usage_report import lease_report

    view = screen.collector.watch.view
    assert view is not None  # a lease of it was chosen
    lease = LeaseId(int(name))
    query = RecordQuery(since=Milliseconds(0), until=FAR, lease=lease, by="")
    try:
        found = await ask_usage(pool, view, query)
    except GpupoolError as error:
        screen.answers.leases[name] = (str(error),)
    else:
        known = reduce(SampleSum.plus, found.samples) if found.samples else None
        lines = lease_report(lease, found.parts, known) if found.parts else []
        told = (*lines, *_missing(found))
        screen.answers.leases[name] = told or ("nothing is known of it that you may see",)
    screen.touch(awaited=True)


async def _usage(screen: LiveView, pool: Pool) -> None:
    from gpupool.monitoring.usage_report import WASTE_TITLES, aligned, table

    view = screen.collector.watch.view
    if view is None:
        return
    since = Milliseconds(view.now - 1000 * USAGE_SPAN_S)
    try:
        found = await ask_usage(pool, view, RecordQuery(since=since, until=FAR, by="user"))
    except GpupoolError as error:
        screen.answers.usage = (str(error),)
    else:
        assert found.report is not None  # no lease was asked for
        wasted = aligned(table(found.report.by_waste(), WASTE_TITLES))
        lines = (*aligned(table(found.report)), "", "held while nothing ran:", *wasted)
        screen.answers.usage = (*lines, *_missing(found))
    screen.touch(awaited=True)


def _missing(found: FoundUsage) -> list[str]:
    """Return the gaps of an answer."""
    said = [f"server {name} did not answer ({why})" for name, why in found.silent.items()]
    return [*said, *found.problems]
