"""The live view: the terminal, its keys, the subscription, and the one task that draws."""

import io
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.lib.output import run_async
from gpupool.cli.tui.fetching import fill, fill_pool, keep_answers, ping
from gpupool.cli.tui.keys import INTERVALS_S, Action, UiState, press
from gpupool.cli.tui.live_state import LiveView
from gpupool.cli.tui.panels import chosen_server
from gpupool.cli.tui.terminal_keys import MOUSE_OFF, MOUSE_ON, decode_keys
from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import die_of
from gpupool.remoting.protocol import messages as m

FRAME_S = 0.04
"""Least seconds between frames; for data of servers, one update interval."""

IDLE_FRAME_S = 1.0
"""A frame is drawn at least so often, since ages grow."""

ESCAPE_S = 0.05
"""An ESC that nothing follows for so long is the key, not the beginning of a sequence."""

PICTURE_S = 3.5
"""Long enough for rates to be known."""

FONTS = re.compile(r"\s*@font-face \{[^}]*\}")
"""A picture must not load anything from elsewhere: the reader's own fonts do."""

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Options:
    """Command-line options of a live view."""

    wide: bool = False
    interval_s: float = 0.5
    readonly: bool = False


def watch(credentials: str | None, glyphs: Glyphs, options: Options) -> int:
    """Show the live view until it is left; return the exit code."""
    index = min(range(len(INTERVALS_S)), key=lambda at: abs(INTERVALS_S[at] - options.interval_s))
    ui = UiState(wide=options.wide, readonly=options.readonly, interval_index=index)
    screen = LiveView(glyphs, ui)
    run_async(partial(_watch, screen, credentials))
    if screen.ended_by:
        die_of(screen.ended_by)
    return 0


async def _watch(screen: LiveView, credentials: str | None) -> None:
    # Before the screen is taken over: a failure to connect is an ordinary error.
    async with connected(credentials) as pool:
        await _show(screen, pool, (_collect, ping, fill, fill_pool, keep_answers))


async def _show(screen: LiveView, pool: Pool | None, tasks: Sequence[Any]) -> None:
    """Take over the terminal and run the tasks until the view is left."""
    with (
        trio.open_signal_receiver(*ENDINGS, signal.SIGWINCH, signal.SIGCONT) as signals,
        cbreak(sys.stdin.fileno()) as enter_again,
    ):
        console = Console(highlight=False)
        with (
            Live(
                console=console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
            _mouse(console) as set_mouse,
        ):
            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(task, screen, pool)
                nursery.start_soon(_draw, screen, live, console, set_mouse)
                nursery.start_soon(
                    _take_signals, screen, signals, enter_again, nursery.cancel_scope
                )
                await _take_keys(screen, pool, nursery, console)
                nursery.cancel_scope.cancel()


@contextmanager
def _mouse(console: Console) -> Generator[Callable[[bool], None]]:
    """Let the terminal report clicks and the wheel, or not; it does not afterwards."""
    now = False

    def set_mouse(wanted: bool) -> None:
        nonlocal now
        if wanted is not now:
            now = wanted
            console.file.write(MOUSE_ON if wanted else MOUSE_OFF)
            console.file.flush()

    try:
        yield set_mouse
    finally:
        set_mouse(False)


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
        interval_s = screen.collector.watch.interval_s = screen.ui.interval_s
        async with pool.subscribe(interval_s) as updates:
            async for update in updates:
                now = trio.current_time()
                screen.collector.take(update, now)
                if not screen.ui.paused:
                    screen.touch(awaited=not screen.viewed.is_set())
                screen.viewed.set()
                if screen.ui.interval_s != interval_s:
                    break


async def _draw(
    screen: LiveView, live: Live, console: Console, set_mouse: Callable[[bool], None]
) -> None:
    while True:
        set_mouse(screen.ui.mouse)
        screen.changed, screen.awaited = trio.Event(), trio.Event()
        width, height = console.size
        drawn = trio.current_time()
        live.update(screen.frame(width, height), refresh=True)
        await trio.sleep(FRAME_S)
        with trio.move_on_at(drawn + IDLE_FRAME_S):
            await screen.changed.wait()
        with trio.move_on_at(drawn + min(screen.ui.interval_s, IDLE_FRAME_S)):
            await screen.awaited.wait()


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


async def _take_keys(
    screen: LiveView, pool: Pool | None, nursery: trio.Nursery, console: Console
) -> None:
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
            if key.startswith("click:"):
                key = screen.key_of_click(key, *console.size)
            screen.ui, action = press(screen.ui, key, screen.extent())
            screen.take_key()
            if action is Action.QUIT:
                return
            if action is not None and pool is not None:
                nursery.start_soon(_act, screen, pool, action)
        screen.touch(awaited=True)


async def _act(screen: LiveView, pool: Pool, action: Action) -> None:
    """Drain or undrain the chosen server, and show the result."""
    snapshot = screen.snapshot()
    row = chosen_server(snapshot, screen.ui, screen.glyphs) if snapshot is not None else None
    if row is None:
        screen.message("no server is chosen")
        return
    try:
        if action is Action.DRAIN:
            await pool.operate(m.DrainServer(row.server.id, screen.ui.typed.strip()))
            screen.message(f"{row.server.name} is drained")
        else:
            await pool.operate(m.DrainServer(row.server.id, None))
            screen.message(f"{row.server.name} takes leases again")
    except GpupoolError as error:
        screen.message(str(error))


# --- one frame ------------------------------------------------------------------------------------


def picture(
    credentials: str | None, glyphs: Glyphs, interval_s: float, *, width: int, height: int
) -> str:
    """Return one frame as SVG, taken after two updates, so that rates are known."""
    screen = LiveView(glyphs, UiState(readonly=True))

    async def draw() -> Text:
        async with connected(credentials) as pool, trio.open_nursery() as nursery:
            nursery.start_soon(_collect, screen, pool)
            for task in (ping, fill, fill_pool):
                nursery.start_soon(task, screen, pool)
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
    svg = console.export_svg(title="gpupool top", unique_id="gpupool-top")
    return FONTS.sub("", svg)
