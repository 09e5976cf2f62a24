"""``history.db``: one server's measurements, in SQLite, within a size that it never exceeds.

Each slot is one transaction, with the coarser rows that it completes (``INSERT OR REPLACE ...
SELECT``, so that doing it twice changes nothing). A power loss may lose the last seconds, never the
file (WAL, ``synchronous=NORMAL``). What is too old goes, and so does the oldest of the finest tier
when the size is reached; rows that are not in the next tier yet stay.

Up to schema 4 the hours of a day that was over became one value, and are unpacked when they are
read. The value has for each column the width of its numbers, its length, and the numbers, their
bytes sorted by weight and compressed. The time
is a number of hours. Columns that came later may be missing at the end.
"""

import os
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpupool.monitoring.history import episode_table
from gpupool.monitoring.history.episodes import Left
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.series import (
    CAPACITY,
    GPU,
    LEASE,
    MARK,
    POOL,
    SERVER,
    TABLES,
    TIERS,
    Table,
)
from gpupool.monitoring.history.time_slots import Row, Slot
from gpupool.pool.errors import StorageError
from gpupool.pool.history_query import Episode
from gpupool.pool.model.forgetting import Forgotten, meant
from gpupool.pool.model.units import MIB

HOURS = TIERS[-1]
_KINDS = {1: "B", 2: "H", 4: "I", 8: "q"}


def unpack(db: sqlite3.Connection) -> None:
    """Put all packed rows of a file into its tables of hours, in the transaction that is open.

    Raises:
        sqlite3.DatabaseError: when one of the values is damaged.
    """
    for table in (GPU, LEASE):
        marks = ", ".join("?" * len(table.columns))
        insert = f"INSERT OR REPLACE INTO {table.at(HOURS)} VALUES ({marks})"  # noqa: S608
        for begin, data in db.execute(f"SELECT t, data FROM {table.name}_packed"):  # noqa: S608
            try:
                columns = list(_columns(begin, data))
                columns += [[0] * len(columns[0])] * (len(table.columns) - len(columns))
                db.executemany(insert, zip(*columns, strict=True))
            except (zlib.error, ValueError, KeyError, IndexError, OverflowError) as error:
                raise sqlite3.DatabaseError(f"packed hours are damaged: {error}") from error
        db.execute(f"DROP TABLE {table.name}_packed")


def _columns(begin: int, data: bytes) -> Iterator[list[int]]:
    at = 0
    while at < len(data):
        width, end = data[at], at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        values = _numbers(zlib.decompress(data[at + 5 : end]), width)
        yield [begin + HOURS.step_s * each for each in values] if at == 0 else values
        at = end


def _numbers(data: bytes, width: int) -> list[int]:
    """Return numbers from bytes sorted by weight."""
    count = len(data) // width
    mixed = bytearray(count * width)
    for each in range(width):
        mixed[each::width] = data[each * count : (each + 1) * count]
    numbers: array[int] = array(_KINDS[width])
    numbers.frombytes(mixed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


FILE_NAME = "history.db"
SCHEMA = 5
"""1 and 2 had neither episodes of the checks nor the use of the pool's GPUs. 3 had no marks of
GPUs, and of leases neither calls nor the time of leases that are waited for. 2 to 4 packed
hours."""

WAL_SIZE_MAX = 16 << 20
BUSY_S = 5.0
SYNCHRONOUS = "NORMAL"

MARGIN = 4 << 20
"""Largest growth by one write and its roll-ups; smaller below 16 MiB."""

DROP_ROWS = 5000
"""Rows that are deleted at a time, so that no transaction is long."""

VACUUM_PAGES = 256
PAGE_SIZE = 4096
DISK_FREE_MIN, DISK_SHARE_MIN = 2 << 30, 0.05


def _make() -> str:
    parts = [
        "CREATE TABLE gpu (id INTEGER PRIMARY KEY, gpu TEXT NOT NULL UNIQUE,"
        " number INTEGER NOT NULL, model TEXT NOT NULL, capacity INTEGER NOT NULL)",  # MiB
        "CREATE TABLE lease (id INTEGER PRIMARY KEY, user TEXT NOT NULL,"
        " user_class TEXT NOT NULL, department TEXT NOT NULL, client TEXT NOT NULL,"
        " program TEXT NOT NULL, granted_at INTEGER NOT NULL, seen INTEGER NOT NULL)",
        # The time before which all rows of a tier are in the next one.
        "CREATE TABLE rolled (tier TEXT PRIMARY KEY, upto INTEGER NOT NULL)",
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ]
    first = (table for table in TABLES if table not in (CAPACITY, MARK))
    parts += [statement for table in first for statement in _make_tiers(table)]
    return "; ".join(parts) + f"; {_MAKE_OF_3}{_MAKE_MARKS}"


def _make_tiers(table: Table) -> list[str]:
    columns = ", ".join(f"{each} INTEGER NOT NULL" for each in table.columns)
    keys = ", ".join(("t", *table.keys))
    return [
        f"CREATE TABLE {table.at(tier)} ({columns}, PRIMARY KEY ({keys})) WITHOUT ROWID"
        for tier in TIERS
    ]


_MAKE_OF_3 = "; ".join(
    (
        *_make_tiers(CAPACITY),
        "CREATE TABLE model (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        episode_table.MAKE_EPISODES,
    )
)
_MAKE_MARKS = "; ".join(_make_tiers(MARK)) + "; "
_MAKE_OF_4 = _MAKE_MARKS + "".join(
    f"ALTER TABLE {LEASE.at(tier)} ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0; "
    for tier in TIERS
    for column in LEASE.later
)

_MAKE_LATER = {2: _MAKE_OF_3, 3: _MAKE_OF_4}
"""SQL for the parts missing in files of each schema, and of those before it."""

# Names of our own tables and columns alone are put into statements; values are parameters.
_INSERT = {
    table.name: f"INSERT OR REPLACE INTO {table.at(TIERS[0])} ({', '.join(table.columns)})"  # noqa: S608
    f" VALUES ({', '.join('?' * len(table.columns))})"
    for table in TABLES
}


def _roll(table: Table, at: int) -> str:
    """Return the statement that adds rows of a tier up to those of the next coarser one."""
    finer, coarser = TIERS[at], TIERS[at + 1]
    begin = f"t - t % {coarser.step_s}"
    values = [begin, *table.keys]
    values += [f"sum({each})" for each in table.sums] + [f"max({each})" for each in table.maxima]
    values += [f"sum({each})" for each in table.later]
    groups = ", ".join(str(each + 1) for each in range(1 + len(table.keys)))
    return (
        f"INSERT OR REPLACE INTO {table.at(coarser)} ({', '.join(table.columns)})"  # noqa: S608
        f" SELECT {', '.join(values)} FROM {table.at(finer)} WHERE t >= ? AND t < ?"
        f" GROUP BY {groups}"
    )


_ROLL = {(table.name, at): _roll(table, at) for table in TABLES for at in range(len(TIERS) - 1)}


_SEEN = (
    f"UPDATE lease SET seen = ? WHERE id IN (SELECT lease FROM {LEASE.at(TIERS[-1])}"  # noqa: S608
    " WHERE t >= ?)"
)


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open the file; with ``write`` make it if it is missing.

    One of an earlier gpupool gets what it lacks; without ``write``, a copy in memory does.

    Raises:
        StorageError: when it is of a newer gpupool.
        sqlite3.Error: when it is damaged, or the disk refuses.
    """
    if write:
        db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    else:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        db = sqlite3.connect(uri, timeout=BUSY_S, uri=True, check_same_thread=False)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if tables and "rolled" not in tables:
            hint = "history.db has one; gpupool usage reads usage.db"
            raise StorageError(f"{path} has no history", hint=hint)
        if version > SCHEMA:
            raise StorageError(f"{path} was written by a newer gpupool", hint="install that one")
        if not write:
            if 0 < version < SCHEMA:
                with closing(db) as file:
                    db = sqlite3.connect(":memory:", check_same_thread=False)
                    file.backup(db)
                _bring_up(db, version)
            db.execute("PRAGMA query_only=ON")
            return db
        if version == 0:
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
        db.execute(f"PRAGMA journal_size_limit={WAL_SIZE_MAX}")
        if version < SCHEMA:
            _bring_up(db, version)
    except BaseException:
        db.close()
        raise
    return db


def _bring_up(db: sqlite3.Connection, version: int) -> None:
    """Add missing tables to a file of an earlier schema, or an empty one, in one transaction."""
    lacks = [each for before, each in _MAKE_LATER.items() if before >= version]
    db.executescript(f"BEGIN; {''.join(lacks) if version else _make()}")
    if version > 1:
        unpack(db)
    db.execute(f"PRAGMA user_version={SCHEMA}")
    db.commit()


class HistoryStore:
    """The writer's connection to the file; nobody else writes."""

    def __init__(self, path: Path, settings: HistorySettings) -> None:
        """Open the file, and look it through when it was not closed in order.

        Raises:
            StorageError: when it is of a newer gpupool.
            sqlite3.Error: when it is damaged, or the disk refuses.
        """
        self._path = path
        self._settings = settings
        self._forgotten: tuple[Forgotten, ...] = ()
        wal = path.with_name(f"{path.name}-wal")
        unclean = wal.exists() and wal.stat().st_size > 0
        self._db = connect(path, write=True)
        try:
            if unclean:
                self.check()
            self._rolled = dict(self._db.execute("SELECT * FROM rolled"))
            found = self._db.execute("SELECT id, gpu, number, model, capacity FROM gpu")
            self._gpus = {row[1]: row for row in found}
            self._models: dict[str, int] = dict(self._db.execute("SELECT name, id FROM model"))
            self._server = ""
            self._leases = {key for (key,) in self._db.execute("SELECT id FROM lease")}
        except BaseException:
            self._db.close()
            raise

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

    def last_t(self) -> int:
        """Return the time of the newest slot; -1 for none."""
        (newest,) = self._db.execute(f"SELECT max(t) FROM {SERVER.at(TIERS[0])}").fetchone()  # noqa: S608
        (rolled,) = self._db.execute("SELECT max(upto) FROM rolled").fetchone()
        return max(newest if newest is not None else -1, (rolled or 0) - 1)

    # --- writing ---------------------------------------------------------------------------------

    def left(self) -> Left:
        """Return the episodes of the checks that went on when the file was written last."""
        return episode_table.left(self._db)

    def add(self, slot: Slot, server: str = "", episodes: Sequence[Episode] = ()) -> None:
        """Write one slot, and the coarser rows that are complete with it, in one transaction.

        ``episodes`` are those of the checks that have begun or ended.
        """
        with self._db:
            self._db.execute("BEGIN")
            self._name(slot, server)
            self._insert(GPU, slot.t, {(self._gpus[g][0],): row for g, row in slot.gpus.items()})
            leases = {(lease, self._gpus[g][0]): row for (lease, g), row in slot.leases.items()}
            self._insert(LEASE, slot.t, leases)
            self._insert(SERVER, slot.t, {(): slot.server} if slot.server["n"] else {})
            self._insert(POOL, slot.t, {(): slot.pool} if slot.pool["n"] else {})
            marks = {(self._gpus[g][0], mark): row for (g, mark), row in slot.marks.items()}
            self._insert(MARK, slot.t, marks)
            models = {(self._models[name],): row for name, row in slot.models.items()}
            self._insert(CAPACITY, slot.t, models)
            named = episode_table.under_pseudonyms(episodes, self._forgotten)
            episode_table.write(self._db, named, 1000 * (slot.t + TIERS[0].step_s))
            self._roll_up(slot.t + TIERS[0].step_s)

    def _insert(self, table: Table, t: int, rows: Mapping[Any, Row]) -> None:
        columns = (*table.sums, *table.maxima, *table.later)
        values = [(t, *key, *(row[each] for each in columns)) for key, row in rows.items()]
        self._db.executemany(_INSERT[table.name], values)

    def _name(self, slot: Slot, server: str) -> None:
        """Write the names for the keys of this slot's rows."""
        for gpu, books in slot.gpu_books.items():
            row = self._gpus.get(gpu)
            described = (books.index, books.model, books.capacity // MIB)
            if row is None or row[2:] != described:
                number = row[0] if row is not None else len(self._gpus) + 1
                self._gpus[gpu] = (number, gpu, *described)
                self._db.execute("INSERT OR REPLACE INTO gpu VALUES (?,?,?,?,?)", self._gpus[gpu])
        for model in slot.models.keys() - self._models.keys():
            self._models[model] = len(self._models) + 1
            self._db.execute("INSERT INTO model VALUES (?, ?)", (self._models[model], model))
        for lease, each in slot.lease_books.items():
            if lease not in self._leases:
                self._leases.add(lease)
                orders = meant(self._forgotten, each.user)
                order = next((order for order in orders if each.granted_at <= order.at), None)
                user, client = (order.pseudonym, "") if order else (each.user, each.client)
                names = (user, each.user_class, each.department, client, each.program)
                self._db.execute(
                    "INSERT OR REPLACE INTO lease VALUES (?,?,?,?,?,?,?,?)",
                    (lease, *names, each.granted_at, slot.t),
                )
        if server and server != self._server:
            self._server = server
            self._db.execute("INSERT OR REPLACE INTO about VALUES ('server', ?)", (server,))

    def _roll_up(self, upto: int) -> None:
        """Add up the complete rows before ``upto``, and the current hour."""
        for at, (finer, coarser) in enumerate(pairwise(TIERS)):
            complete = upto - upto % coarser.step_s
            since = self._rolled.get(finer.name)
            if since is None:
                row = self._db.execute(f"SELECT min(t) FROM {SERVER.at(finer)}")  # noqa: S608
                since = row.fetchone()[0] or complete
                since -= since % coarser.step_s
            if complete <= since:
                continue
            for table in TABLES:
                self._db.execute(_ROLL[table.name, at], (since, complete))
            self._rolled[finer.name] = complete
            self._db.execute("INSERT OR REPLACE INTO rolled VALUES (?,?)", (finer.name, complete))
            if coarser is TIERS[-1]:
                self._db.execute(_SEEN, (complete, since))

    # --- what goes -------------------------------------------------------------------------------

    def size(self) -> int:
        """Return the bytes of all files of the exporter, with SQLite's files beside them."""
        names = (FILE_NAME, "usage.db")
        return sum(
            _size_of(self._path.with_name(name + end))
            for name in names
            for end in ("", "-wal", "-shm")
        )

    def margin(self) -> int:
        """Return how much room a write needs."""
        return min(MARGIN, self._settings.size_max // 4)

    def make_room(self, tries: int = 8) -> bool:
        """Delete the oldest rows of the finest tier while there is no room; tell whether there is.

        Only so much is done at a time; what is left is done before the next write.
        """
        spare = self.margin() // 2
        for _ in range(tries):
            if self.size() <= self._settings.size_max - self.margin():
                return True
            self.checkpoint()
            size = self.size()
            # Pages that are free in the file are as good as room beside it.
            free = self._db.execute("PRAGMA freelist_count").fetchone()[0] * PAGE_SIZE
            if size - min(free, spare) <= self._settings.size_max - self.margin():
                return True
            if not self._drop_oldest():
                break
            self.vacuum()
        self.checkpoint()
        return self.size() <= self._settings.size_max - self.margin()

    def _drop_oldest(self) -> bool:
        """Delete the oldest rows of the finest tier that is in the next one; at last episodes."""
        for tier in TIERS:
            upto = self._rolled.get(tier.name, 0) if tier is not TIERS[-1] else 2**62
            row = self._db.execute(f"SELECT min(t) FROM {SERVER.at(tier)}").fetchone()  # noqa: S608
            if row[0] is None or row[0] >= upto:
                continue
            rows = min(DROP_ROWS, self.margin() // 200)
            self._drop_before(tier.name, min(upto, self._after(tier.name, rows)))
            return True
        with self._db:
            return episode_table.drop_oldest(self._db, self.margin() // 2000)

    def _after(self, tier: str, rows: int) -> int:
        """Return the time before which a tier has about so many rows of leases."""
        table = f"{LEASE.name}_{tier}"
        found = self._db.execute(
            f"SELECT max(t) FROM (SELECT t FROM {table} ORDER BY t LIMIT ?)",  # noqa: S608
            (rows,),
        ).fetchone()[0]
        server = self._db.execute(
            f"SELECT max(t) FROM (SELECT t FROM {SERVER.name}_{tier} ORDER BY t LIMIT ?)",  # noqa: S608
            (rows,),
        ).fetchone()[0]
        known = [each for each in (found, server) if each is not None]
        return (min(known) if known else 0) + 1

    def _drop_before(self, tier: str, t: int) -> None:
        with self._db:
            for table in TABLES:
                self._db.execute(f"DELETE FROM {table.name}_{tier} WHERE t < ?", (t,))  # noqa: S608

    def expire(self, now: int) -> None:
        """Delete expired rows, a part at a time."""
        for tier, kept in zip(TIERS, self._settings.kept_s(), strict=True):
            upto = self._rolled.get(tier.name, 0) if tier is not TIERS[-1] else 2**62
            before = min(now - kept, upto)
            (oldest,) = self._db.execute(f"SELECT min(t) FROM {SERVER.at(tier)}").fetchone()  # noqa: S608
            if oldest is not None and oldest < before:
                self._drop_before(tier.name, min(before, self._after(tier.name, DROP_ROWS)))
        with self._db:
            self._db.execute("DELETE FROM lease WHERE seen < ?", (now - self._settings.keep_1h_s,))
            episode_table.expire(self._db, 1000 * (now - self._settings.keep_1h_s))
        self.vacuum()

    def vacuum(self) -> None:
        """Give free pages back, some at a time: each is written to the journal and the file."""
        pages = min(VACUUM_PAGES, self.margin() // (16 * PAGE_SIZE))
        self._db.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()

    def checkpoint(self) -> None:
        """Move everything from the journal into the file, unless a reader keeps it."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Replace the names of users by pseudonyms: in the file, its journal, and later slots.

        A lease that a slot still to come names may be of one of them.
        """
        self._forgotten = orders = tuple(forgotten)
        users = self._db.execute("SELECT DISTINCT user FROM lease").fetchall()
        found = [(order, user) for (user,) in users for order in meant(orders, user)]
        of_checks = episode_table.forget(self._db, orders)
        if not found and not of_checks:
            return
        self._db.execute("PRAGMA secure_delete=ON")
        with self._db:
            self._db.executemany(
                "UPDATE lease SET user = ?, client = '' WHERE user = ? AND granted_at <= ?",
                [(order.pseudonym, user, order.at) for order, user in found],
            )
            episode_table.replace_users(self._db, of_checks)
        self.checkpoint()


def _size_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def disk_is_full(folder: Path) -> bool:
    """Return whether so little is free that the room belongs to the table's journal."""
    found = os.statvfs(folder)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    return free < max(DISK_FREE_MIN, DISK_SHARE_MIN * total)
