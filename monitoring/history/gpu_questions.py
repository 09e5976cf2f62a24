"""What happened to one GPU, from ``history.db``: its leases' memory, and its marks.

The memory of leases is that of the time in which the GPU was seen, so that the leases of one step
add up. Leases of others than who asks are one, which has no name.
"""

import sqlite3
from collections.abc import Iterable

from gpupool.monitoring.history.gpu_marks import word_of
from gpupool.monitoring.history.series import GPU, LEASE, MARK, Table
from gpupool.pool.model.ids import LeaseId, lease_name

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
