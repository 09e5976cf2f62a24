"""The pool's last 24 hours as shares granted and busy, from the history of servers.

A voter keeps what was granted and the capacity; how busy GPUs were each server keeps of its own.
So busy is asked of all servers, and only in pools where that is little work.
"""

from collections import defaultdict
from collections.abc import Iterable

import trio

from gpupool.monitoring.history.history_report import Line, Subject, lines_of, metrics_of
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import GpupoolError
from gpupool.pool.history_query import HistoryQuery
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot

DAY_S = 24 * 3600
STEP_S = 600
"""Of the chart: no finer than the points of any server for this range."""

POINTS_MAX = 700
FRESH_S = 60.0
"""An answer younger than that is told again, to all that look with the same rights."""

SERVERS_MAX = 16
"""In larger pools nobody is asked how busy GPUs were."""


class PoolDay:
    """The last 24 hours of one pool, asked for once a minute however many look."""

    def __init__(self) -> None:
        self._asking = trio.Lock()
        self._told: dict[str, object] = {}
        self._until = 0.0

    async def told(self, source: PoolSource) -> dict[str, object]:
        """Return times in milliseconds, and shares in percent; None where nothing is known.

        Raises:
            GpupoolError: when no server answers.
        """
        async with self._asking:
            if not self._told or source.now() >= self._until:
                self._told = await _ask(source)
                self._until = source.now() + FRESH_S
            return self._told


async def _ask(source: PoolSource) -> dict[str, object]:
    snapshot = source.known()
    last_s = int(snapshot.view.now) // 1000 // STEP_S * STEP_S
    first_s = last_s - DAY_S
    whole = Subject("pool", "", "pool")
    granted = _binned(await _lines(source, snapshot, whole, "granted", first_s))
    capacity = _binned(await _lines(source, snapshot, whole, "capacity", first_s))
    times = range(first_s, last_s + 1, STEP_S)
    asks_all = len(snapshot.view.servers) <= SERVERS_MAX
    return {
        "t": [1000 * t for t in times],
        "granted": [_percent(granted.get(t), capacity.get(t)) for t in times],
        "busy": await _busy(source, snapshot, times) if asks_all else [],
    }


async def _busy(source: PoolSource, snapshot: PoolSnapshot, times: range) -> list[float | None]:
    """Return the mean of the GPUs of all servers that have told something of a moment."""
    busy: dict[int, float] = defaultdict(float)
    gpus: dict[int, int] = defaultdict(int)
    for server in snapshot.view.servers:
        if server.id in snapshot.silent:
            continue
        subject = Subject("server", "", server.name, (server.id,))
        try:
            lines = await _lines(source, snapshot, subject, "busy", times.start)
        except GpupoolError:
            continue  # its GPUs count in no mean
        of_server: dict[int, float] = defaultdict(float)
        for line in lines:
            for t, value in _binned([line]).items():
                of_server[t] += value
        for t, value in of_server.items():
            busy[t] += value
            gpus[t] += len(server.gpus)
    return [_percent(busy[t], gpus[t]) if gpus[t] else None for t in times]


async def _lines(
    source: PoolSource, snapshot: PoolSnapshot, subject: Subject, metric: str, first_s: int
) -> list[Line]:
    since, until = Milliseconds(1000 * first_s), Milliseconds(snapshot.view.now + 1)
    query = HistoryQuery(
        subject.of, metric, subject.name, since=since, until=until, points_max=POINTS_MAX
    )
    answer = await source.history(query, subject.servers)
    names: dict[ServerId, str] = {}
    return lines_of(subject, metrics_of(subject.of)[metric], answer.pages, names)


def _binned(lines: Iterable[Line]) -> dict[int, float]:
    """Return the mean of the points that begin in each step."""
    found: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        for t, value, _ in line.points:
            found[t // STEP_S * STEP_S].append(value)
    return {t: sum(values) / len(values) for t, values in found.items()}


def _percent(part: float | None, whole: float | None) -> float | None:
    return round(min(100.0, 100 * part / whole), 1) if part is not None and whole else None
