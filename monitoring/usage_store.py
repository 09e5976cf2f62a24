"""``usage.db``: the records of ended leases that one server has, in SQLite.

A record is there once, by lease, server and number, whatever is imported twice. The number tells
apart the stays of a lease that came back to a server. What was committed survives the end of the
process and of the machine (WAL, ``synchronous=FULL``). A damaged file is put aside and begun anew
from ``leases.jsonl``.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpupool.monitoring.accounting import gaps_of
from gpupool.pool.errors import StorageError
from gpupool.pool.model.bounds import SIGNED_MAX
from gpupool.pool.model.forgetting import Forgotten, meant, without_names
from gpupool.pool.model.state import LeaseRecord, RecordedGpu
from gpupool.pool.model.suspension import Span
from gpupool.pool.record_query import RecordQuery

FILE_NAME = "usage.db"
SCHEMA = 3

WAL_SIZE_MAX = 16 << 20
BUSY_S = 5.0

_MAKE = """
CREATE TABLE record (
    lease INTEGER NOT NULL, server TEXT NOT NULL, number INTEGER NOT NULL,
    server_name TEXT NOT NULL, user TEXT NOT NULL, user_class TEXT NOT NULL,
    department TEXT NOT NULL, client TEXT NOT NULL, program TEXT NOT NULL,
    gpus TEXT NOT NULL, requested_at INTEGER NOT NULL, granted_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL, freed_at INTEGER NOT NULL, reason TEXT NOT NULL,
    idle_timeout_ms INTEGER NOT NULL, away TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (lease, server, number)
) WITHOUT ROWID;
CREATE INDEX record_number ON record (number);
CREATE INDEX record_freed ON record (freed_at);
"""
_COLUMNS = tuple(field.name for field in fields(LeaseRecord))
_GPUS = _COLUMNS.index("gpus")
# Names of our own fields alone are put into these; values are parameters.
_INSERT = (
    f"INSERT OR IGNORE INTO record ({', '.join(_COLUMNS)})"  # noqa: S608
    f" VALUES ({', '.join('?' * len(_COLUMNS))})"
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM record"  # noqa: S608


class UsageStore:
    """One connection to the file; the writer's is the only one that writes."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        """Open the file; with ``write`` make it if it is missing.

        Raises:
            StorageError: when it is of a newer gpupool.
            sqlite3.Error: when it is damaged, or the disk refuses.
        """
        if write:
            self._db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
        else:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_S, uri=True,
                check_same_thread=False,
            )  # fmt: skip
        try:
            self._prepare(path, write=write)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, path: Path, *, write: bool) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master")}
        if tables and "record" not in tables:
            hint = "usage.db has them; gpupool history reads history.db"
            raise StorageError(f"{path} has no accounts", hint=hint)
        if version > SCHEMA:
            raise StorageError(f"{path} was written by a newer gpupool", hint="install that one")
        if not write:
            self._db.execute("PRAGMA query_only=ON")
            self._db.execute("BEGIN")  # everything that is read is of one moment
            return
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(f"PRAGMA journal_size_limit={WAL_SIZE_MAX}")
        if version == 0:
            self._db.executescript(f"BEGIN; {_MAKE} PRAGMA user_version={SCHEMA}; COMMIT;")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def check(self) -> None:
        """Look through the whole file.

        Raises:
            sqlite3.DatabaseError: when it is damaged.
        """
        found = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise sqlite3.DatabaseError(str(found))

    def add(self, records: Sequence[LeaseRecord]) -> None:
        """Add the records that are not there yet, in one transaction."""
        with self._db:
            self._db.executemany(_INSERT, [_row_of(record) for record in records])

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Replace the names of users by pseudonyms, in the file and in its journal."""
        orders = tuple(forgotten)
        users = self._db.execute("SELECT DISTINCT user FROM record").fetchall()
        found = [(order, user) for (user,) in users for order in meant(orders, user)]
        reasons = self._db.execute("SELECT DISTINCT reason FROM record").fetchall()
        naming = [r for (r,) in reasons if without_names(r, orders) != r]
        if not found and not naming:
            return
        self._db.execute("PRAGMA secure_delete=ON")
        with self._db:
            self._db.executemany(
                "UPDATE record SET user = ?, client = '' WHERE user = ? AND number <= ?",
                [(order.pseudonym, user, order.number) for order, user in found],
            )
            for order in orders:
                said = [
                    (without_names(reason, (order,)), reason, order.number) for reason in naming
                ]
                self._db.executemany(
                    "UPDATE record SET reason = ? WHERE reason = ? AND number <= ?", said
                )
                naming += [new for new, old, _ in said if new != old]
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def newest(self) -> int:
        """Return the largest number of a record; 0 for none."""
        (number,) = self._db.execute("SELECT max(number) FROM record").fetchone()
        return number or 0

    def select(self, query: RecordQuery, count: int) -> list[LeaseRecord]:
        """Return at most ``count`` of the records that a query asks for, by number."""
        where, values = _where(query)
        rows = self._db.execute(f"{_SELECT}{where} ORDER BY number LIMIT ?", [*values, count])
        return [_record_of(row) for row in rows]

    def each(self, query: RecordQuery) -> Iterator[LeaseRecord]:
        """Yield all records that a query asks for, by number."""
        where, values = _where(query)
        for row in self._db.execute(f"{_SELECT}{where} ORDER BY number", values):
            yield _record_of(row)

    def everything(self) -> list[LeaseRecord]:
        """Return all records, by number."""
        return [_record_of(row) for row in self._db.execute(f"{_SELECT} ORDER BY number")]

    def missing(self) -> tuple[tuple[int, int], ...]:
        """Return the runs of numbers that are not there, below the newest."""
        count, newest = self._db.execute("SELECT count(*), max(number) FROM record").fetchone()
        if count == (newest or 0):
            return ()
        return gaps_of(number for (number,) in self._db.execute("SELECT number FROM record"))


def _where(query: RecordQuery) -> tuple[str, list[int]]:
    where = " WHERE number > ? AND freed_at > ? AND granted_at < ?"
    values: list[int] = [query.after, query.since, query.until]
    if query.through:
        where, values = f"{where} AND number <= ?", [*values, query.through]
    if query.lease:
        where, values = f"{where} AND lease = ?", [*values, query.lease]
    return where, values


def put_aside(path: Path) -> Path:
    """Rename a damaged database, and delete its WAL files; return its new name."""
    number = 1
    while (to := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        number += 1
    path.rename(to)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    return to


def _row_of(record: LeaseRecord) -> tuple[int | str, ...]:
    gpus = [[gpu.gpu, gpu.model, gpu.memory, gpu.units] for gpu in record.gpus]
    texts = {"gpus": _text(gpus), "away": _text(record.away)}
    row = tuple(texts.get(name) or getattr(record, name) for name in _COLUMNS)
    # SQLite has no larger integers; one such record must not keep out those after it.
    return tuple(min(each, SIGNED_MAX) if isinstance(each, int) else each for each in row)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _record_of(row: tuple[Any, ...]) -> LeaseRecord:
    *values, away = row
    values[_GPUS] = _gpus_of(values[_GPUS])
    return LeaseRecord(*values, away=_away_of(away))


def _away_of(text: str) -> tuple[Span, ...]:
    return () if text == "[]" else tuple((begin, end) for begin, end in json.loads(text))


@lru_cache(maxsize=4096)
def _gpus_of(text: str) -> tuple[RecordedGpu, ...]:
    return tuple(RecordedGpu(*each) for each in json.loads(text))
