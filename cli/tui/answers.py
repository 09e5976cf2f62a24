"""Answers to the live view's queries for open panels: charts, one lease, the usage. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupool.cli.lib.terminal_chart import Point
from gpupool.cli.tui.keys import Chosen
from gpupool.pool.history_query import HistoryPage

CHARTS: dict[str, tuple[str, ...]] = {
    "server": ("busy", "memory", "granted", "power", "cpu", "network", "rtt", "lag"),
    "gpu": ("busy", "sm", "memory", "granted", "power", "temperature"),
    "lease": ("busy", "memory", "bytes-in", "bytes-out", "waits", "rtt"),
    "waiting": (),
}
"""The history's metrics that a detail draws."""


@dataclass(frozen=True, slots=True)
class ChartData:
    """One chart of a detail."""

    metric: str
    unit: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Charts:
    """All charts of one detail, of the same time, by the pool's clock."""

    since: int  # Unix seconds
    until: int
    charts: tuple[ChartData, ...]
    trouble: str = ""


@dataclass(slots=True)
class Answers:
    """The latest answers by query."""

    charts: dict[tuple[Chosen, int], Charts] = field(
        default_factory=dict[tuple[Chosen, int], Charts]
    )
    leases: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Lines about a lease; about an ended one as well."""

    usage: tuple[str, ...] = ()

    @property
    def pending(self) -> str:
        """Placeholder for an answer."""
        return "asking the servers ..."


def chart_of(
    metric: str, unit: str, pages: Iterable[HistoryPage], scale: float, *, additive: bool
) -> ChartData:
    """Return one series from histories of several GPUs and servers: their sum or mean.

    A moment that only some of them know is that of those: a gap of one is no zero.
    """
    sums: dict[int, tuple[float, int]] = {}
    for page in pages:
        for series in page.series:
            for t, total, count, *_ in series.points:
                if count:
                    known, number = sums.get(t, (0.0, 0))
                    sums[t] = known + total / count * scale, number + 1
    points = (
        (t, total if additive else total / number) for t, (total, number) in sorted(sums.items())
    )
    return ChartData(metric, unit, tuple(points))
