"""The last minutes of figures, for the sparklines: from the history, then from live readings.

Pure: values and times in, points out. Only servers that were looked at lately are followed, since
a pool may have thousands of GPUs and a screen shows those of one server.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpupool.cli.lib.columns import (
    NOT_KNOWN,
    UTILIZATION_THRESHOLDS,
    Cell,
    Column,
    Glyphs,
    load_style,
)
from gpupool.cli.lib.columns import bar as bar_of
from gpupool.cli.lib.terminal_chart import Point, sparkline
from gpupool.pool.history_query import HistoryPage
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.read_model.pool_snapshot import GpuRow, Points, PoolSnapshot
from gpupool.pool.telemetry import GpuTelemetry, Telemetry

SLOT_S = 10
"""The step of the history's finest tier."""

TREND_WIDTH_MIN, TREND_WIDTH_MAX = 20, 60  # characters: two slots each
OTHER_COLUMNS = 118
"""Width of the other GPU columns: a sparkline gets the rest of the screen."""

SLOTS = 2 * TREND_WIDTH_MAX
POOL_SPAN_S = 3600
POOL_SLOTS = POOL_SPAN_S // SLOT_S
FOLLOWED_MAX = 8
GIB = 1 << 30
K = TypeVar("K")


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
class Series(Generic[K]):
    """The latest slots of figures; a slot's point is the mean of its readings."""

    slots: int
    points: dict[K, Points] = field(default_factory=dict[K, Points])
    _sums: dict[K, tuple[float, int]] = field(default_factory=dict[K, tuple[float, int]])
    """Of the last slot of each."""

    def add(self, key: K, at_ms: int, value: float) -> None:
        """Take one reading."""
        slot = at_ms // 1000 // SLOT_S * SLOT_S
        points = self.points.get(key, ())
        total, count = 0.0, 0
        if points and points[-1][0] >= slot:
            if points[-1][0] > slot:
                return  # a clock that went back
            total, count = self._sums.get(key, (points[-1][1], 1))
            points = points[:-1]
        self._sums[key] = total + value, count + 1
        self.points[key] = (*points, (slot, (total + value) / (count + 1)))[-self.slots :]

    def fill(self, key: K, points: Iterable[Point]) -> None:
        """Merge points of the history, which override known ones, but for the last slot.

        That one may not be over: live readings go on with it.
        """
        merged = dict(self.points.get(key, ()))
        last = max(merged, default=None)
        merged |= {t: value for t, value in points if t != last}
        if last is None or max(merged) != last:
            self._sums.pop(key, None)
        if merged:
            self.points[key] = tuple(sorted(merged.items()))[-self.slots :]

    def forget(self, key: K) -> None:
        """Keep nothing of one figure."""
        self.points.pop(key, None)
        self._sums.pop(key, None)


def _gpu_series() -> Series[tuple[GpuId, str]]:
    return Series(SLOTS)


def _pool_series() -> Series[str]:
    return Series(POOL_SLOTS)


@dataclass(slots=True)
class Trends:
    """The latest slots of the servers that are followed, and the last hour of the pool."""

    gpus: Series[tuple[GpuId, str]] = field(default_factory=_gpu_series)
    pool: Series[str] = field(default_factory=_pool_series)
    """Shares of the pool's GPUs: how busy they are, and how much of their memory is granted."""

    _followed: dict[ServerId, set[GpuId]] = field(default_factory=dict[ServerId, set[GpuId]])

    def follow(self, server: ServerId) -> None:
        """Keep the readings of a server from now on; the one that came first gives way."""
        gpus = self._followed.pop(server, set[GpuId]())
        self._followed[server] = gpus
        if len(self._followed) > FOLLOWED_MAX:
            oldest = next(iter(self._followed))
            for gpu in self._followed.pop(oldest):
                for name in FIGURES:
                    self.gpus.forget((gpu, name))

    def follows(self, server: ServerId) -> bool:
        """Return whether the readings of a server are kept."""
        return server in self._followed

    def take(self, telemetry: Telemetry) -> None:
        """Take the readings of one server at one moment."""
        gpus = self._followed.get(telemetry.server)
        if gpus is None:
            return
        for gpu in telemetry.gpus:
            gpus.add(gpu.gpu)
            for name, figure in FIGURES.items():
                value = figure.read(gpu)
                if value is not None:
                    self.gpus.add((gpu.gpu, name), telemetry.at, value)

    def take_pool(self, snapshot: PoolSnapshot) -> None:
        """Add the sums of the view and all servers to the trends."""
        sums, now = snapshot.sums, snapshot.view.now
        if sums.capacity:
            self.pool.add("granted", now, sums.granted / sums.capacity)
        if sums.busy is not None:
            self.pool.add("busy", now, sums.busy)

    def fill(self, server: ServerId, name: str, page: HistoryPage, scale: float) -> None:
        """Merge a server's history; where both are known, the history's value holds.

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
            points = ((t, total / count * scale) for t, total, count, *_ in series.points if count)
            self.gpus.fill((gpu, name), points)

    def fill_pool(self, pages: Iterable[HistoryPage], granted: HistoryPage, held: int) -> None:
        """Fill the pool's last hour from the history of its servers.

        Args:
            pages: how busy the GPUs of each server were, in thousandths.
            granted: how much memory was granted, in MiB, as one of them says.
            held: the pool's memory now, in MiB.
        """
        busy: dict[int, tuple[float, int]] = {}
        for page in pages:
            for series in page.series:
                for t, total, count, *_ in series.points:
                    if count and page.step_s == SLOT_S:
                        known, gpus = busy.get(t, (0.0, 0))
                        busy[t] = known + total / count / 1000, gpus + 1
        self.pool.fill("busy", ((t, total / gpus) for t, (total, gpus) in busy.items()))
        for series in granted.series:
            shares = [(t, total / count / held) for t, total, count, *_ in series.points if count]
            self.pool.fill("granted", shares if held else ())


def trend_width(width: int) -> int:
    """Return how many characters of a screen a line gets."""
    return max(TREND_WIDTH_MIN, min(TREND_WIDTH_MAX, width - OTHER_COLUMNS))


def trend_column(snapshot: PoolSnapshot, name: str, width: int) -> Column[GpuRow]:
    """Return the column that shows how one figure of each GPU went, and its value now."""
    figure = FIGURES[name]
    until = snapshot.now_ms // 1000 // SLOT_S * SLOT_S + SLOT_S
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
            frame = (until - 2 * width * SLOT_S, until)
            drawn = sparkline(
                points, frame, width, top, in_ascii=glyphs.ascii, in_blocks=glyphs.blocks
            )
            return Cell(f"{drawn} {text}", style)
        if name == "busy" and value is not None:
            return Cell(f"{bar_of(value, 8, glyphs)} {text}", style)
        return Cell(text, style)

    return Column(figure.title, cell, lambda row: -(value_of(row) or 0.0), live=True)


def pool_line(snapshot: PoolSnapshot, width: int, glyphs: Glyphs) -> str:
    """Return how busy the pool was in the last hour and how much of it was granted."""
    until = snapshot.now_ms // 1000 // SLOT_S * SLOT_S + SLOT_S
    across = max(8, min(TREND_WIDTH_MAX, (width - 42) // 2))
    parts: list[str] = []
    for name in ("busy", "granted"):
        points = [each for each in snapshot.pool_trend.get(name, ()) if each[0] < until]
        drawn = sparkline(
            points,
            (until - POOL_SPAN_S, until),
            across,
            1.0,
            in_ascii=glyphs.ascii,
            in_blocks=glyphs.blocks,
        )
        now = _percent(points[-1][1]) if points else f"{NOT_KNOWN:>4}"
        parts.append(f"{name} {drawn} {now}")
    return f" last hour  {'   '.join(parts)}"


def _largest(points: Iterable[Point]) -> float:
    return max((value for _, value in points), default=0.0)
