"""The state of one live view: the pool's answers and the view's own, for tasks that share it."""

from dataclasses import replace

import trio
from rich.text import Text

from gpupool.cli.lib.columns import Glyphs
from gpupool.cli.tui.answers import Answers
from gpupool.cli.tui.keys import Extent, UiState
from gpupool.cli.tui.panels import extent
from gpupool.cli.tui.screen import render, row_at
from gpupool.cli.tui.trends import Trends
from gpupool.pool.model.ids import ServerId
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate, PoolWatch


class Collector:
    """Takes updates as they come; time is passed in."""

    def __init__(self, interval_s: float) -> None:
        """Make an empty one, for updates that come so often."""
        self.watch = PoolWatch(interval_s)
        self.trends = Trends()
        self.ping_s: dict[ServerId, float] = {}

    def take(self, update: PoolUpdate, now: float) -> None:
        """Take the update that a subscription delivered at ``now``."""
        for telemetry in self.watch.take(update, now):
            self.trends.take(telemetry)
        snapshot = self.watch.snapshot(now)
        if snapshot is not None:
            self.trends.take_pool(snapshot)

    def snapshot(self, now: float) -> PoolSnapshot | None:
        """Return all that is known at ``now``; None before the first view."""
        known = self.watch.snapshot(now)
        return known and replace(
            known,
            ping_s=dict(self.ping_s),
            trends=dict(self.trends.gpus.points),
            pool_trend=dict(self.trends.pool.points),
        )


class LiveView:
    """The state of the live view, and the event that makes it draw again."""

    def __init__(self, glyphs: Glyphs, ui: UiState) -> None:
        self.glyphs = glyphs
        self.ui = ui
        self.collector = Collector(ui.interval_s)
        self.answers = Answers()
        self.frozen: PoolSnapshot | None = None  # what a paused view keeps showing
        self.viewed = trio.Event()
        """The first view is there."""
        self.changed = trio.Event()
        self.awaited = trio.Event()
        """A change that somebody waits for: a key's, or the first of something."""
        self.pressed = trio.Event()
        self.ended_by = 0

    def snapshot(self) -> PoolSnapshot | None:
        """Return the snapshot to show now; while paused, the one of the pause."""
        if self.ui.paused and self.frozen is not None:
            return self.frozen
        self.frozen = self.collector.snapshot(trio.current_time())
        return self.frozen

    def frame(self, width: int, height: int) -> Text:
        """Return the frame to show now."""
        return render(self.snapshot(), self.ui, width, height, self.glyphs, self.answers)

    def extent(self) -> Extent:
        """Return the current range of the cursor keys."""
        snapshot = self.snapshot()
        if snapshot is None:
            return Extent((0, 0, 0), (1, 1, 1))
        return extent(snapshot, self.ui, self.glyphs)

    def key_of_click(self, key: str, width: int, height: int) -> str:
        """Return the key that a ``click:COLUMN:LINE`` stands for; empty for none."""
        snapshot = self.snapshot()
        if snapshot is None:
            return ""
        line = int(key.rpartition(":")[2])
        return row_at(snapshot, self.ui, width, height, line, self.glyphs)

    def take_key(self) -> None:
        """Wake the task that waits for a key."""
        self.pressed.set()
        self.pressed = trio.Event()

    def touch(self, *, awaited: bool = False) -> None:
        """Ask for a new frame; at once when somebody waits for it."""
        self.changed.set()
        if awaited:
            self.awaited.set()

    def message(self, text: str) -> None:
        """Show a message until the next key."""
        self.ui = replace(self.ui, message=text)
        self.touch(awaited=True)
