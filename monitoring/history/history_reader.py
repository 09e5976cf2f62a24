"""Queries of ``history.db``, each on a separate read-only connection.

The answer comes from the coarsest tier that has enough points, and what is not added up yet from
the finer ones, so that it reaches to the last ten seconds. A question that takes too long ends.

In the history of one GPU, the memory of leases is that of the time in which the GPU was seen, so
that the leases of one step add up. Leases of others than who asks are one, which has no name.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import add
from pathlib import Path

from gpupool.monitoring.accounting import day_of
from gpupool.monitoring.history import episode_table
from gpupool.monitoring.history.history_settings import NOT_BEGUN
from gpupool.monitoring.history.history_store import FILE_NAME, connect
from gpupool.monitoring.history.series import (
    CAPACITY,
    GPU,
    LEASE,
    MARK,
    METRICS,
    SERVER,
    SLOT_S,
    TIERS,
    Metric,
    Table,
    tier_for,
)
from gpupool.monitoring.history.time_slots import word_of
from gpupool.pool.history_query import (
    POINTS_MAX,
    CapacitySum,
    HistoryPage,
    HistoryQuery,
    HistorySeries,
    SampleSum,
)
from gpupool.pool.model.ids import LeaseId, Milliseconds, lease_name
from gpupool.pool.model.units import DAY_S

OTHERS = -1
"""The key of the leases that are not told of one by one."""

Parts = list[tuple[str, int, int]]  # a tier's name, and from when to before when
Points = dict[tuple[int, int], list[int]]  # by key and time: a sum, a count, and no maximum


class GpuQuestions:
    """One question about one GPU; see the module."""

    def __init__(self, db: sqlite3.Connection, gpu: int, parts: Parts, step: int) -> None:
        """Make it, of points that are ``step`` seconds apart."""
        self._db = db
        self._gpu = gpu
        self._parts = parts
        self._step = step

    def marks(self) -> Points:
        """Return how much of each mark there was: milliseconds, or a number of errors."""
        found = self._sums(MARK, "mark", "amount")
        return {key: [amount, 1, -1] for key, amount in found.items()}

    def leases(self, user: str) -> Points:
        """Return the memory that each lease had in use, MiB; of a user, their own by themselves."""
        seen = {t: n for (_, t), n in self._sums(GPU, "0", "n").items()}
        memory = self._sums(LEASE, "lease", "memory")
        own = self._own(user) if user else None
        points: Points = {}
        for (lease, t), used in memory.items():
            told = lease if own is None or lease in own else OTHERS
            point = points.setdefault((told, t), [0, max(1, seen.get(t, 0)), -1])
            point[0] += used
        return points

    def names(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        """Return the name and the user of each lease."""
        users = dict(self._db.execute("SELECT id, user FROM lease"))
        return {
            key: ("", "") if key == OTHERS else (lease_name(LeaseId(key)), users.get(key, ""))
            for key in keys
        }

    def _own(self, user: str) -> set[int]:
        found = self._db.execute("SELECT id FROM lease WHERE user = ?", (user,))
        return {lease for (lease,) in found}

    def _at(self, t: int) -> int:
        return t - t % self._step

    def _sums(self, table: Table, key: str, column: str) -> dict[tuple[int, int], int]:
        """Return the sums of a column by key and time."""
        statements: list[str] = []
        bounds: list[int] = []
        for tier, since, until in self._parts:
            statements.append(
                f"SELECT {key} AS k, t - t % {self._step} AS b, {column} AS s"  # noqa: S608
                f" FROM {table.name}_{tier} WHERE t >= ? AND t < ? AND gpu = ?"
            )
            bounds += [since, until, self._gpu]
        found = self._db.execute(
            f"SELECT k, b, sum(s) FROM ({' UNION ALL '.join(statements)}) GROUP BY k, b",  # noqa: S608
            bounds,
        )
        return {(k, b): s for k, b, s in found}


def mark_names(keys: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return the word of each mark; it has no label."""
    return {key: (word_of(key), "") for key in keys}


TIME_MAX_S = 5.0
STEPS_BETWEEN_LOOKS = 10_000
PART_POINTS = 8000
"""Points of one part; less than 256 KiB."""

PART_SUMS = 2000
FAR_S, AFTER_MAX = 2**40, 2**31
"""Limits of numbers in queries, within the range of SQLite."""

NAMED = {"user": "user", "class": "user_class", "department": "department"} | {
    each: each for each in ("client", "program")
}
"""Columns of a lease's names, by key."""

SEVERAL = ("user", "client")
"""Query subjects with a name that several leases have; columns of these names."""

NAMES_AT_A_TIME = 500
SUMMED = ("n", "slots", "idle", "busy_n", "busy", "memory", "granted")
"""Lease columns that reports sum; the maximum of used memory follows them."""

OF_GPU = ("gpu-leases", "gpu-marks")
"""Queries about one GPU besides its figures."""

Groups = dict[tuple[int, int, int], list[int]]  # by day or 0, lease and GPU
HOUR_S = TIERS[-1].step_s


def read_history(folder: Path, query: HistoryQuery, time_max_s: float = TIME_MAX_S) -> HistoryPage:
    """Return one part of the answer.

    Raises:
        sqlite3.Error: when the database cannot be read, or not in time.
        StorageError: when it is of a newer gpupool.
    """
    if not (folder / FILE_NAME).exists():
        return HistoryPage(problem=NOT_BEGUN)
    return read_file(folder / FILE_NAME, query, time_max_s)


def read_file(path: Path, query: HistoryQuery, time_max_s: float = TIME_MAX_S) -> HistoryPage:
    """Return one part of the answer of a file that there is; raises as ``read_history``."""
    db = connect(path, write=False)
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
        if query.of == "health":
            return self._episodes(query)
        begun = min(self._oldest.values())
        oldest = Milliseconds(0 if begun == 2**62 else 1000 * begun)
        since = max(min(query.since // 1000, FAR_S), begun)
        until = min(query.until // 1000, FAR_S)
        query = replace(query, after=min(query.after, AFTER_MAX))
        if begun == 2**62 or until <= since:
            return HistoryPage(oldest=oldest)
        if query.of == "sums":
            page = self._sums(query, since, until)
        elif query.of == "capacity":
            page = self._capacity(query, since, until)
        elif query.of in OF_GPU:
            page = self._of_gpu(query, since, until)
        else:
            kind = "lease" if query.of in SEVERAL else query.of
            found = METRICS.get(kind, {}).get(query.metric)
            if found is None and query.of == "server":
                found = METRICS["gpu"].get(query.metric)
            if found is None:
                return HistoryPage(problem=f"it knows no {query.metric[:64]} of a {query.of[:64]}")
            page = self._series(query, *found, since, until)
        return replace(page, oldest=oldest)

    def _episodes(self, query: HistoryQuery) -> HistoryPage:
        """Return the checks' episodes, which every user may see."""
        cut = replace(
            query,
            since=Milliseconds(min(query.since, 1000 * FAR_S)),
            until=Milliseconds(min(query.until, 1000 * FAR_S)),
            after=min(query.after, AFTER_MAX),
        )
        return episode_table.read(self._db, cut)

    def _capacity(self, query: HistoryQuery, since: int, until: int) -> HistoryPage:
        """Return the use of the pool's GPUs, by day and model, which every user may see."""
        source, bounds = _source(CAPACITY, self._exact(since, until), "1", ())
        summed = ", ".join(f"sum({each})" for each in CAPACITY.sums)
        found = self._db.execute(
            f"SELECT s.t - s.t % {DAY_S} AS d, name, {summed} FROM ({source}) s"  # noqa: S608
            " JOIN model ON model.id = s.model GROUP BY d, name ORDER BY d, name LIMIT ? OFFSET ?",
            (*bounds, PART_SUMS + 1, query.after),
        ).fetchall()
        shown = found[:PART_SUMS]
        return HistoryPage(
            capacity=tuple(CapacitySum(*row) for row in shown),
            after=query.after + len(shown),
            more=len(found) > len(shown),
        )

    # --- series ----------------------------------------------------------------------------------

    def _series(
        self, query: HistoryQuery, table: Table, metric: Metric, since: int, until: int
    ) -> HistoryPage:
        step, parts = self._steps(query, since, until)
        chosen, values = _chosen(query, table)
        where = f"{table.keys[0]} IN ({chosen})" if chosen else "1"
        # No more columns than are needed: SQLite copies each of them.
        key = "gpu" if table is GPU else "0"
        total, of = metric.statements
        columns = f"{key} AS k, t, {total} AS s, {of} AS n, {metric.maximum or '-1'} AS m"
        source, bounds = _source(table, parts, where, values, columns)
        if table is LEASE:  # several at a time; any other table has one row of a time and key
            count = "max(n)" if metric.additive else "sum(n)"
            top = "sum(m)" if metric.additive and metric.maximum else "max(m)"
            source = (
                f"SELECT k, t, sum(s) AS s, {count} AS n, {top} AS m FROM ({source}) GROUP BY t"  # noqa: S608
            )
        found = self._db.execute(
            f"SELECT k, t - t % {step} AS b, sum(s), sum(n), max(m) FROM ({source}) GROUP BY k, b",  # noqa: S608
            bounds,
        )
        points = {(k, b): (s, n, m) for k, b, s, n, m in found}
        names = {key: (gpu, f"GPU {number}") for key, gpu, number in self._gpus()}
        return _page(query, step, points, names if table is GPU else {})

    def _steps(self, query: HistoryQuery, since: int, until: int) -> tuple[int, Parts]:
        """Return how far points are apart, and the tiers that have them; all are of whole steps."""
        tier = tier_for(until - since, self._oldest, since)
        most = min(max(2, query.points_max), POINTS_MAX)
        steps = -(-(until - since) // (tier.step_s * (most - 1)))
        step = tier.step_s * max(1, steps)
        since -= since % step
        parts: Parts = [(tier.name, since, until)]
        for finer in reversed(TIERS[: TIERS.index(tier)]):
            parts.append((finer.name, max(since, self._rolled.get(finer.name, 0)), until))
        return step, parts

    def _of_gpu(self, query: HistoryQuery, since: int, until: int) -> HistoryPage:
        """Return leases or marks of one GPU, which every user may see but for names of leases."""
        step, parts = self._steps(query, since, until)
        row = self._db.execute("SELECT id FROM gpu WHERE gpu = ?", (query.name,)).fetchone()
        if row is None:
            return HistoryPage(step_s=step)
        asked = GpuQuestions(self._db, row[0], parts, step)
        if query.of == "gpu-marks":
            points = asked.marks()
            return _page(query, step, points, mark_names(key for key, _ in points))
        points = asked.leases(query.user)
        return _page(query, step, points, asked.names({key for key, _ in points}))

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
        by_day = query.metric == "day"
        summed = ", ".join(f"sum({each})" for each in SUMMED)
        rows = self._db.execute(
            f"SELECT {'t - t % 86400' if by_day else '0'}, lease, gpu, {summed}, max(memory_max)"  # noqa: S608
            f" FROM ({source}) GROUP BY 1, 2, 3",
            bounds,
        )
        groups = {(day, lease, gpu): row for day, lease, gpu, *row in rows}
        found = self._figures(groups, query.metric)
        ordered = sorted(found)
        shown = ordered[query.after : query.after + PART_SUMS]
        return HistoryPage(
            sums=tuple(SampleSum(key, *found[key]) for key in shown),
            after=query.after + len(shown),
            more=query.after + len(shown) < len(ordered),
        )

    def _figures(self, groups: Groups, by: str) -> dict[str, list[int]]:
        """Return the figures of groups by key, of leases and GPUs that have names."""
        gpus = {
            each: rest for each, *rest in self._db.execute("SELECT id, model, capacity FROM gpu")
        }
        leases = self._lease_names({lease for _, lease, _ in groups}, NAMED.get(by, "''"))
        row = self._db.execute("SELECT value FROM about WHERE name = 'server'").fetchone()
        server = row[0] if row is not None and by == "server" else ""
        found: dict[str, list[int]] = {}
        for (day, lease, gpu), sums in groups.items():
            if lease not in leases or gpu not in gpus:
                continue
            model, capacity = gpus[gpu]
            if by in NAMED:
                key = leases[lease]
            elif by == "lease":
                key = lease_name(LeaseId(lease))
            elif by == "day":
                key = day_of(1000 * day)
            else:
                key = model if by == "model" else server
            each = _figures(capacity, *sums)
            if (known := found.setdefault(key, each)) is not each:
                known[:] = *map(add, known[:-1], each[:-1]), max(known[-1], each[-1])
        return found

    def _lease_names(self, leases: Iterable[int], column: str) -> dict[int, str]:
        """Return one of the names of each lease that has names."""
        wanted, names = sorted(leases), dict[int, str]()
        for at in range(0, len(wanted), NAMES_AT_A_TIME):
            some = wanted[at : at + NAMES_AT_A_TIME]
            marks = ",".join("?" * len(some))
            names.update(
                self._db.execute(f"SELECT id, {column} FROM lease WHERE id IN ({marks})", some)  # noqa: S608
            )
        return names

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


def _page(
    query: HistoryQuery,
    step: int,
    points: Mapping[tuple[int, int], Sequence[int]],
    names: Mapping[int, tuple[str, str]],
) -> HistoryPage:
    """Return the part of these points, by key and time, that is asked for."""
    known = sorted((*key, *point) for key, point in points.items() if point[1] > 0)
    shown = known[query.after : query.after + PART_POINTS]
    found: dict[int, list[tuple[int, ...]]] = {}
    for key, *point in shown:
        found.setdefault(key, []).append(tuple(point))
    return HistoryPage(
        step_s=step,
        series=tuple(
            HistorySeries(*names.get(key, ("", "")), tuple(each)) for key, each in found.items()
        ),
        after=query.after + len(shown),
        more=len(known) > query.after + PART_POINTS,
    )


def _chosen(query: HistoryQuery, table: Table) -> tuple[str, tuple[str | int, ...]]:
    """Return the statement for the keys that were asked for, and may be told; empty for all."""
    if table is GPU and query.of == "gpu":
        return "SELECT id FROM gpu WHERE gpu = ?", (query.name,)
    if table is not LEASE:
        return "", ()
    own, values = ("AND user = ?", (query.user,)) if query.user else ("", ())
    by = f"{query.of if query.of in SEVERAL else 'id'} = ?"
    name: str | int = query.name
    if query.of == "lease":
        name = int(query.name) if query.name.isdecimal() and len(query.name) < 19 else -1
    return f"SELECT id FROM lease WHERE {by} {own}", (name, *values)  # noqa: S608


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
