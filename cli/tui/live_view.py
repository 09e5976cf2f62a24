"""The live view: the terminal, its keys, the subscription, and the one task that draws."""

import io
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.exits import die_of
from gpupool.cli.lib.rows import PoolSnapshot
from gpupool.cli.tui.collector import Collector
from gpupool.cli.tui.keys import INTERVALS_S, Action, Extent, UiState, decode_keys, press
from gpupool.cli.tui.screen import chosen_server, extent, render
from gpupool.cli.tui.trends import SLOT_S, SLOTS
from gpupool.pool.errors import GpupoolError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.protocol.messages import DrainServer, GetTelemetry

FRAME_S = 0.25
"""A frame is drawn at most so often, and at least once a second, since ages grow."""

IDLE_FRAME_S = 1.0
ESCAPE_S = 0.05
"""An ESC that nothing follows for so long is the key, not the beginning of a sequence."""

PICTURE_S = 3.5
"""Long enough for rates to be known."""

PING_EVERY_S = 5.0
PING_COUNT_MAX = 64
FILL_EVERY_S = 60.0
"""So often a server is asked for its history again: it closes the gap before the first reading."""

LOOK_S = 0.1
"""So soon a server that has been chosen is asked for its history."""

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LiveView:
    """The state of the live view, and the event that makes it draw again."""

    def __init__(self, glyphs: Glyphs, ui: UiState) -> None:
        self.glyphs = glyphs
        self.ui = ui
        self.collector = Collector()
        self.frozen: PoolSnapshot | None = None  # what a paused view keeps showing
        self.changed = trio.Event()
        self.ended_by = 0

    def snapshot(self) -> PoolSnapshot | None:
        """Return the snapshot to show now; while paused, the one of the pause."""
        if self.ui.paused and self.frozen is not None:
            return self.frozen
        self.frozen = self.collector.snapshot(trio.current_time())
        return self.frozen

    def frame(self, width: int, height: int) -> Text:
        """Return the frame to show now."""
        return render(self.snapshot(), self.ui, width, height, self.glyphs)

    def touch(self) -> None:
        """Ask for a new frame."""
        self.changed.set()

    def message(self, text: str) -> None:
        """Show a message until the next key."""
        self.ui = replace(self.ui, message=text)
        self.touch()


def watch(
    credentials: str | None, glyphs: Glyphs, *, wide: bool, interval_s: float, readonly: bool
) -> int:
    """Show the live view until it is left; return the exit code."""
    index = min(range(len(INTERVALS_S)), key=lambda at: abs(INTERVALS_S[at] - interval_s))
    screen = LiveView(glyphs, UiState(wide=wide, readonly=readonly, interval_index=index))
    run_async(partial(_watch, screen, credentials))
    if screen.ended_by:
        die_of(screen.ended_by)
    return 0


async def _watch(screen: LiveView, credentials: str | None) -> None:
    # Before the screen is taken over: a failure to connect is an ordinary error.
    async with connected(credentials) as pool:
        with (
            trio.open_signal_receiver(*ENDINGS, signal.SIGWINCH, signal.SIGCONT) as signals,
            cbreak(sys.stdin.fileno()) as enter_again,
        ):
            console = Console(highlight=False)
            with Live(
                console=console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_collect, screen, pool)
                    nursery.start_soon(_ping, screen, pool)
                    nursery.start_soon(_fill, screen, pool)
                    nursery.start_soon(_draw, screen, live, console)
                    nursery.start_soon(
                        _take_signals, screen, signals, enter_again, nursery.cancel_scope
                    )
                    await _take_keys(screen, pool, nursery)
                    nursery.cancel_scope.cancel()


@contextmanager
def cbreak(descriptor: int) -> Generator[Callable[[], None]]:
    """Read single keys from a terminal; its modes are as before afterwards, however we end.

    Yields a function that sets the modes again, for a return from Ctrl-Z.
    """
    before = termios.tcgetattr(descriptor)

    def enter() -> None:
        tty.setcbreak(descriptor, termios.TCSADRAIN)

    enter()
    try:
        yield enter
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _collect(screen: LiveView, pool: Pool) -> None:
    """Take the updates of one subscription for the whole screen."""
    while True:
        interval_s = screen.ui.interval_s
        async with pool.subscribe(interval_s) as updates:
            async for update in updates:
                screen.collector.take(update, trio.current_time())
                if not screen.ui.paused:
                    screen.touch()
                if screen.ui.interval_s != interval_s:
                    break


async def _ping(screen: LiveView, pool: Pool) -> None:
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


async def _fill(screen: LiveView, pool: Pool) -> None:
    """Fetch what the chosen server has kept of its GPUs, so that their lines begin full."""
    trends, asked = screen.collector.trends, dict[tuple[ServerId, str], float]()
    looked_at: UiState | None = None
    while True:
        view, ui, now = screen.collector.view, screen.ui, trio.current_time()
        due = min(asked.values(), default=now) + FILL_EVERY_S <= now
        if view is None or (ui is looked_at and not due):
            await trio.sleep(LOOK_S)
            continue
        asked = {key: at for key, at in asked.items() if at + FILL_EVERY_S > now}
        snapshot, looked_at = screen.snapshot(), ui
        row = chosen_server(snapshot, ui, screen.glyphs) if snapshot is not None else None
        if row is None:
            looked_at = None
            await trio.sleep(IDLE_FRAME_S)
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

    since = Milliseconds(now_ms - 1000 * SLOT_S * (SLOTS + 1))
    until = Milliseconds(now_ms + 1000 * SLOT_S)
    answer = await pool.history(HistoryQuery("server", figure, "", since, until), (server,))
    for page in answer.pages.values():
        if page.step_s == SLOT_S:
            screen.collector.trends.fill(server, figure, page, metrics_of("gpu")[figure].scale)
    screen.touch()


async def _draw(screen: LiveView, live: Live, console: Console) -> None:
    while True:
        screen.changed = trio.Event()
        width, height = console.size
        live.update(screen.frame(width, height), refresh=True)
        await trio.sleep(FRAME_S)
        with trio.move_on_after(IDLE_FRAME_S - FRAME_S):
            await screen.changed.wait()


async def _take_signals(
    screen: LiveView,
    signals: AsyncIterator[int],
    enter_again: Callable[[], None],
    scope: trio.CancelScope,
) -> None:
    async for number in signals:
        if number in ENDINGS:
            screen.ended_by = number
            scope.cancel()
            return
        if number == signal.SIGCONT:
            enter_again()
        screen.touch()


async def _take_keys(screen: LiveView, pool: Pool, nursery: trio.Nursery) -> None:
    """Read keys until the view is to be left."""
    descriptor = sys.stdin.fileno()
    pending = b""
    while True:
        with trio.move_on_after(ESCAPE_S if pending else float("inf")) as waited:
            await trio.lowlevel.wait_readable(descriptor)
        if waited.cancelled_caught:
            keys, pending = decode_keys(pending)
        else:
            data = os.read(descriptor, 1024)
            if not data:
                return  # the terminal is gone
            keys, pending = decode_keys(pending + data, more=True)
        for key in keys:
            screen.ui, action = press(screen.ui, key, _extent(screen))
            if action is Action.QUIT:
                return
            if action is not None:
                nursery.start_soon(_act, screen, pool, action)
        screen.touch()


def _extent(screen: LiveView) -> Extent:
    snapshot = screen.snapshot()
    return extent(snapshot, screen.ui, screen.glyphs) if snapshot else Extent((0, 0, 0), (1, 1, 1))


async def _act(screen: LiveView, pool: Pool, action: Action) -> None:
    """Drain or undrain the chosen server, and say what came of it."""
    snapshot = screen.snapshot()
    row = chosen_server(snapshot, screen.ui, screen.glyphs) if snapshot is not None else None
    if row is None:
        screen.message("no server is chosen")
        return
    try:
        if action is Action.DRAIN:
            await pool.operate(DrainServer(row.server.id, screen.ui.typed.strip()))
            screen.message(f"{row.server.name} is drained")
        else:
            await pool.operate(DrainServer(row.server.id, None))
            screen.message(f"{row.server.name} takes leases again")
    except GpupoolError as error:
        screen.message(str(error))


# --- one frame ------------------------------------------------------------------------------------


def print_frame(snapshot: PoolSnapshot, glyphs: Glyphs, *, wide: bool) -> None:
    """Print one frame on the terminal, as high as it needs to be."""
    console = Console(highlight=False)
    console.print(render(snapshot, UiState(wide=wide, readonly=True), *console.size, glyphs))


def picture(
    credentials: str | None, glyphs: Glyphs, interval_s: float, *, width: int, height: int
) -> str:
    """Return one frame as SVG, taken after two updates, so that rates are known."""
    screen = LiveView(glyphs, UiState(readonly=True))

    async def draw() -> Text:
        async with connected(credentials) as pool, trio.open_nursery() as nursery:
            nursery.start_soon(_collect, screen, pool)
            nursery.start_soon(_ping, screen, pool)
            nursery.start_soon(_fill, screen, pool)
            await trio.sleep(max(PICTURE_S, 4 * interval_s))
            nursery.cancel_scope.cancel()
        return screen.frame(width, height)

    frame = run_async(draw)
    console = Console(
        width=width,
        height=height,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(frame)
    return console.export_svg(title="gpupool top", unique_id="gpupool-top")
