"""The last minutes of GPUs' figures, for the sparklines: from the history, then from live readings.

Pure: values and times in, points out. Only servers that were looked at lately are followed, since
a pool may have thousands of GPUs and a screen shows those of one server.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpupool.cli.lib.columns import (
    NOT_KNOWN,
    UTILIZATION_THRESHOLDS,
    Cell,
    Column,
    Glyphs,
    load_style,
)
from gpupool.cli.lib.columns import bar as bar_of
from gpupool.cli.lib.rows import GpuRow, PoolSnapshot
from gpupool.cli.lib.terminal_chart import Point, sparkline
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.telemetry import GpuTelemetry, Telemetry

SLOT_S = 10
"""The step of the history's finest tier."""

SLOTS = 40
WIDTH = 20  # characters: two slots each
FOLLOWED_MAX = 8
GIB = 1 << 30
Points = tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a GPU that a sparkline can show; its name is the history's."""

    title: str
    read: Callable[[GpuTelemetry], float | None]
    text: Callable[[float], str]
    top: Callable[[GpuRow, float], float]  # of the row, and of the largest value shown


def _percent(value: float) -> str:
    return f"{value * 100:3.0f}%"


def _power_top(row: GpuRow, largest: float) -> float:
    limit = row.telemetry.power_limit_w if row.telemetry is not None else None
    return limit or largest


FIGURES: dict[str, Figure] = {
    "busy": Figure("UTIL", lambda t: t.utilization, _percent, lambda row, top: 1.0),
    "sm": Figure("SM ACTIVITY", lambda t: t.sm_activity, _percent, lambda row, top: 1.0),
    "memory": Figure(
        "MEMORY USED",
        lambda t: t.memory_used / GIB,
        lambda value: f"{value:.1f}G",
        lambda row, top: row.gpu.memory_total / GIB,
    ),
    "power": Figure("POWER DRAWN", lambda t: t.power_w, lambda value: f"{value:.0f}W", _power_top),
    "temperature": Figure(
        "TEMPERATURE",
        lambda t: t.temperature_c,
        lambda value: f"{value:.0f}C",
        lambda row, top: 100,
    ),
}


@dataclass(slots=True)
class Trends:
    """The latest slots of the figures of the servers that are followed."""

    points: dict[tuple[GpuId, str], Points] = field(default_factory=dict[tuple[GpuId, str], Points])
    _sums: dict[tuple[GpuId, str], tuple[float, int]] = field(
        default_factory=dict[tuple[GpuId, str], tuple[float, int]]
    )
    """Of the last slot of each: what its point is the mean of."""

    _followed: dict[ServerId, set[GpuId]] = field(default_factory=dict[ServerId, set[GpuId]])

    def follow(self, server: ServerId) -> None:
        """Keep the readings of a server from now on; the one that came first gives way."""
        gpus = self._followed.pop(server, set[GpuId]())
        self._followed[server] = gpus
        if len(self._followed) > FOLLOWED_MAX:
            oldest = next(iter(self._followed))
            for gpu in self._followed.pop(oldest):
                for name in FIGURES:
                    self.points.pop((gpu, name), None)
                    self._sums.pop((gpu, name), None)

    def follows(self, server: ServerId) -> bool:
        """Return whether the readings of a server are kept."""
        return server in self._followed

    def take(self, telemetry: Telemetry) -> None:
        """Take the readings of one server at one moment."""
        gpus = self._followed.get(telemetry.server)
        if gpus is None:
            return
        slot = telemetry.at // 1000 // SLOT_S * SLOT_S
        for gpu in telemetry.gpus:
            gpus.add(gpu.gpu)
            for name, figure in FIGURES.items():
                value = figure.read(gpu)
                if value is not None:
                    self._add((gpu.gpu, name), slot, value)

    def _add(self, key: tuple[GpuId, str], slot: int, value: float) -> None:
        points = self.points.get(key, ())
        total, count = 0.0, 0
        if points and points[-1][0] >= slot:
            if points[-1][0] > slot:
                return  # a clock that went back
            total, count = self._sums.get(key, (points[-1][1], 1))
            points = points[:-1]
        self._sums[key] = total + value, count + 1
        self.points[key] = (*points, (slot, (total + value) / (count + 1)))[-SLOTS:]

    def fill(self, server: ServerId, name: str, page: HistoryPage, scale: float) -> None:
        """Take what a server has kept; where both are known, the history's value holds.

        Args:
            server: whose page it is.
            name: of the figure.
            page: the server's answer.
            scale: what a mean of the page is multiplied by.
        """
        gpus = self._followed.get(server)
        if gpus is None:
            return
        for series in page.series:
            gpu = GpuId(series.key)
            gpus.add(gpu)
            merged = dict(self.points.get((gpu, name), ()))
            last = max(merged, default=None)  # it may not be over: live readings go on with it
            for t, total, count, *_ in series.points:
                if count and t != last:
                    merged[t] = total / count * scale
            if last is None or max(merged, default=last) != last:
                self._sums.pop((gpu, name), None)
            self.points[gpu, name] = tuple(sorted(merged.items()))[-SLOTS:]


def trend_column(snapshot: PoolSnapshot, name: str) -> Column[GpuRow]:
    """Return the column that shows how one figure of each GPU went, and its value now."""
    figure = FIGURES[name]
    now_s = int(snapshot.view.now / 1000 + snapshot.view_age_s)
    until = now_s // SLOT_S * SLOT_S + SLOT_S
    trends: Mapping[tuple[GpuId, str], Points] = snapshot.trends

    def value_of(row: GpuRow) -> float | None:
        return figure.read(row.telemetry) if row.telemetry is not None else None

    def cell(row: GpuRow, glyphs: Glyphs) -> Cell:
        value = value_of(row)
        text = NOT_KNOWN if value is None else figure.text(value)
        style = ""
        if name in ("busy", "sm") and value is not None:
            style = load_style(value, UTILIZATION_THRESHOLDS)
        points = trends.get((row.gpu.id, name), ())
        if points:
            top = figure.top(row, _largest(points))
            frame = (until - SLOTS * SLOT_S, until)
            drawn = sparkline(points, frame, WIDTH, top, in_ascii=glyphs.ascii)
            return Cell(f"{drawn} {text}", style)
        if name == "busy" and value is not None:
            return Cell(f"{bar_of(value, 8, glyphs)} {text}", style)
        return Cell(text, style)

    return Column(figure.title, cell, lambda row: -(value_of(row) or 0.0), live=True)


def _largest(points: Iterable[Point]) -> float:
    return max((value for _, value in points), default=0.0)
