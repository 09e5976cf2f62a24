"""Questions answered from ``history.db``, each on a connection of its own that only reads.

The answer comes from the coarsest tier that has enough points, and what is not added up yet from
the finer ones, so that it reaches to the last ten seconds. A question that takes too long ends.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpupool.monitoring.accounting import day_of
from gpupool.monitoring.history.history_settings import NOT_BEGUN
from gpupool.monitoring.history.history_store import FILE_NAME, connect
from gpupool.monitoring.history.series import (
    GPU,
    LEASE,
    METRICS,
    SERVER,
    SLOT_S,
    TIERS,
    Metric,
    Table,
    tier_for,
)
from gpupool.pool.history_query import (
    POINTS_MAX,
    HistoryPage,
    HistoryQuery,
    HistorySeries,
    SampleSum,
)
from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name

TIME_MAX_S = 5.0
STEPS_BETWEEN_LOOKS = 10_000
PART_POINTS = 8000
"""Points of one part; less than 256 KiB."""

PART_SUMS = 2000
FAR_S, AFTER_MAX = 2**40, 2**31
"""What strangers ask is cut to what SQLite has numbers for."""

NAMED = ("", "", "user", "class", "department", "client", "program", "model")
"""What columns of a row of sums are called, as keys."""

Parts = list[tuple[str, int, int]]  # a tier's name, and from when to before when
HOUR_S = TIERS[-1].step_s


def read_history(folder: Path, query: HistoryQuery, time_max_s: float = TIME_MAX_S) -> HistoryPage:
    """Return one part of the answer.

    Raises:
        sqlite3.Error: when the database cannot be read, or not in time.
        StorageError: when it is of a newer gpupool.
    """
    if not (folder / FILE_NAME).exists():
        return HistoryPage(problem=NOT_BEGUN)
    db = connect(folder / FILE_NAME, write=False)
    try:
        deadline = time.monotonic() + time_max_s
        db.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS)
        db.execute("BEGIN")
        if db.execute("PRAGMA user_version").fetchone() == (0,):
            return HistoryPage(problem=NOT_BEGUN)  # the writer has made the file, and no table yet
        return _Reader(db).answer(query)
    finally:
        db.close()


class _Reader:
    """One question's view of the database."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rolled: dict[str, int] = dict(db.execute("SELECT * FROM rolled"))
        self._oldest: dict[str, int] = {}
        for tier in TIERS:
            (found,) = db.execute(f"SELECT min(t) FROM {SERVER.at(tier)}").fetchone()  # noqa: S608
            self._oldest[tier.name] = 2**62 if found is None else found

    def answer(self, query: HistoryQuery) -> HistoryPage:
        begun = min(self._oldest.values())
        oldest = Milliseconds(0 if begun == 2**62 else 1000 * begun)
        since = max(min(query.since // 1000, FAR_S), begun)
        until = min(query.until // 1000, FAR_S)
        query = replace(query, after=min(query.after, AFTER_MAX))
        if begun == 2**62 or until <= since:
            return HistoryPage(oldest=oldest)
        if query.of == "sums":
            page = self._sums(query, since, until)
        else:
            found = METRICS.get("lease" if query.of == "user" else query.of, {}).get(query.metric)
            if found is None and query.of == "server":
                found = METRICS["gpu"].get(query.metric)
            if found is None:
                return HistoryPage(problem=f"it knows no {query.metric[:64]} of a {query.of[:64]}")
            page = self._series(query, *found, since, until)
        return replace(page, oldest=oldest)

    # --- series ----------------------------------------------------------------------------------

    def _series(
        self, query: HistoryQuery, table: Table, metric: Metric, since: int, until: int
    ) -> HistoryPage:
        tier = tier_for(until - since, self._oldest, since)
        most = min(max(2, query.points_max), POINTS_MAX)
        steps = -(-(until - since) // (tier.step_s * (most - 1)))
        step = tier.step_s * max(1, steps)
        since -= since % step  # all points are of whole steps
        parts: Parts = [(tier.name, since, until)]
        for finer in reversed(TIERS[: TIERS.index(tier)]):
            parts.append((finer.name, max(since, self._rolled.get(finer.name, 0)), until))
        where, values = self._chosen(query, table)
        # No more columns than are needed: SQLite copies each of them.
        key = "gpu" if table is GPU else "0"
        columns = (
            f"{key} AS k, t, {' + '.join(metric.sums)} AS s, {metric.count} AS n,"
            f" {metric.maximum or '-1'} AS m"
        )
        source, bounds = _source(table, parts, where, values, columns)
        if table is LEASE:  # several at a time; any other table has one row of a time and key
            count = "max(n)" if metric.additive else "sum(n)"
            top = "sum(m)" if metric.additive and metric.maximum else "max(m)"
            source = (
                f"SELECT k, t, sum(s) AS s, {count} AS n, {top} AS m FROM ({source}) GROUP BY t"  # noqa: S608
            )
        rows = self._db.execute(
            f"SELECT k, t - t % {step} AS b, sum(s), sum(n), max(m) FROM ({source})"  # noqa: S608
            " GROUP BY k, b HAVING sum(n) > 0 ORDER BY k, b LIMIT ? OFFSET ?",
            (*bounds, PART_POINTS + 1, query.after),
        ).fetchall()
        shown = rows[:PART_POINTS]
        return HistoryPage(
            step_s=step,
            series=tuple(self._named(table, shown)),
            after=query.after + len(shown),
            more=len(rows) > PART_POINTS,
        )

    def _chosen(self, query: HistoryQuery, table: Table) -> tuple[str, tuple[str | int, ...]]:
        """Return what limits the rows to what was asked for, and may be told."""
        if table is GPU and query.of == "gpu":
            return "gpu IN (SELECT id FROM gpu WHERE gpu = ?)", (query.name,)
        if table is not LEASE:
            return "1", ()
        own, values = ("AND user = ?", (query.user,)) if query.user else ("", ())
        by = "id = ?" if query.of == "lease" else "user = ?"
        name: str | int = query.name
        if query.of == "lease":
            name = int(query.name) if query.name.isdecimal() and len(query.name) < 19 else -1
        return f"lease IN (SELECT id FROM lease WHERE {by} {own})", (name, *values)  # noqa: S608

    def _named(self, table: Table, rows: list[tuple[int, ...]]) -> Iterator[HistorySeries]:
        names = {key: (gpu, f"GPU {number}") for key, gpu, number in self._gpus()}
        points: dict[int, list[tuple[int, ...]]] = {}
        for key, *point in rows:
            points.setdefault(key, []).append(tuple(point))
        for key, found in points.items():
            name, label = names.get(key, ("", "")) if table is GPU else ("", "")
            yield HistorySeries(name, label, tuple(found))

    def _gpus(self) -> list[tuple[int, str, int]]:
        return self._db.execute("SELECT id, gpu, number FROM gpu").fetchall()

    # --- sums ------------------------------------------------------------------------------------

    def _sums(self, query: HistoryQuery, since: int, until: int) -> HistoryPage:
        where: str = "1"
        values: tuple[str | int, ...] = ()
        if query.user:
            where, values = "lease IN (SELECT id FROM lease WHERE user = ?)", (query.user,)
        if query.name.isdecimal() and len(query.name) < 19:
            where, values = f"{where} AND lease = ?", (*values, int(query.name))
        source, bounds = _source(LEASE, self._exact(since, until), where, values)
        day = "t - t % 86400" if query.metric == "day" else "0"
        rows = self._db.execute(
            "SELECT d, lease, user, user_class, department, client, program, model, capacity,"  # noqa: S608
            " n, slots, idle, busy_n, busy, memory, granted, top FROM (SELECT"
            f" {day} AS d, lease, gpu AS g, sum(n) AS n, sum(slots) AS slots,"
            " sum(idle) AS idle, sum(busy_n) AS busy_n, sum(busy) AS busy, sum(memory) AS memory,"
            " sum(granted) AS granted, max(memory_max) AS top"
            f" FROM ({source}) GROUP BY 1, 2, 3)"
            " JOIN lease AS names ON names.id = lease JOIN gpu AS gpus ON gpus.id = g",
            bounds,
        )
        key_of = self._key(query.metric)
        found: dict[str, list[int]] = {}
        for row in rows:
            each = _figures(*row[8:])
            known = found.get(key := key_of(row))
            if known is None:
                found[key] = each
            else:
                top = max(known[-1], each[-1])
                known[:] = [a + b for a, b in zip(known, each, strict=True)]
                known[-1] = top
        ordered = sorted(found)
        chosen = ordered[query.after : query.after + PART_SUMS]
        return HistoryPage(
            sums=tuple(SampleSum(key, *found[key]) for key in chosen),
            after=query.after + len(chosen),
            more=query.after + len(chosen) < len(ordered),
        )

    def _key(self, by: str) -> Callable[[tuple[Any, ...]], str]:
        """Return what says the key of a row."""
        if by and by in NAMED:
            at = NAMED.index(by)
            return lambda row: row[at]
        if by == "lease":
            return lambda row: lease_name(LeaseId(row[1]))
        if by == "day":
            return lambda row: day_of(1000 * row[0])
        row = self._db.execute("SELECT value FROM about WHERE name = 'server'").fetchone()
        name = row[0] if row is not None and by == "server" else ""
        return lambda _: name

    def _exact(self, since: int, until: int) -> Parts:
        """Return the coarsest rows that together are just the range, as far as they are kept."""
        parts: Parts = []
        self._cover(len(TIERS) - 1, since, until, parts)
        return parts

    def _cover(self, at: int, since: int, until: int, parts: Parts) -> None:
        tier = TIERS[at]
        if since >= until:
            return
        if at == 0:
            parts.append((tier.name, since - since % SLOT_S, until))
            return
        finer = TIERS[at - 1].name
        first = -(-since // tier.step_s) * tier.step_s
        if self._oldest[finer] > max(since, min(self._oldest.values()) + HOUR_S):
            first = since - since % tier.step_s  # the finer rows of the edge are gone
        last = min(until - until % tier.step_s, self._rolled.get(finer, 0))
        if first < last:
            parts.append((tier.name, first, last))
            self._cover(at - 1, since, first, parts)
            self._cover(at - 1, last, until, parts)
        else:
            self._cover(at - 1, since, until, parts)


def _source(
    table: Table,
    parts: Parts,
    where: str,
    values: tuple[str | int, ...],
    columns: str = "*",
) -> tuple[str, tuple[str | int, ...]]:
    """Return a statement for all rows of the parts, and its parameters."""
    statements: list[str] = []
    bounds: list[str | int] = []
    for tier, since, until in parts:
        statements.append(
            f"SELECT {columns} FROM {table.name}_{tier} WHERE t >= ? AND t < ? AND {where}"  # noqa: S608
        )
        bounds += [since, until, *values]
    return " UNION ALL ".join(statements), tuple(bounds)


def _figures(
    capacity: int,
    n: int,
    slots: int,
    idle: int,
    busy_n: int,
    busy: int,
    memory: int,
    granted: int,
    memory_max: int,
) -> list[int]:
    """Return the figures of a ``SampleSum``, in its order."""
    share = granted * 1_000_000 * SLOT_S // (n * capacity) if n and capacity else 0
    held, wasted = slots * share, idle * share
    return [slots, idle, held, wasted, busy_n, busy, memory, granted, memory_max]
