"""The table of the checks' episodes in ``history.db``: a statement or two for each thing done."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpupool.monitoring.history.episodes import Left
from gpupool.pool.history_query import Episode, HistoryPage, HistoryQuery
from gpupool.pool.model.forgetting import Forgotten, meant
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Health

MAKE_EPISODES = (
    "CREATE TABLE episode (began INTEGER NOT NULL, name TEXT NOT NULL, subject TEXT NOT NULL,"
    " status INTEGER NOT NULL, ended INTEGER NOT NULL, text TEXT NOT NULL,"
    " PRIMARY KEY (began, name, subject, status)) WITHOUT ROWID; "
)
COUNT_MAX = 50_000
"""Episodes of one server; with long texts 20 MB."""

PART_COUNT = 500
SINCE, UNTIL = "checks since", "checks until"
"""Begin and end of the checks' record: rows of ``about``, in milliseconds of the pool's time."""

OF_USERS = "tokens"
"""The check with users as subjects."""

_WRITE = "INSERT OR REPLACE INTO episode VALUES (?,?,?,?,?,?)"
_COLUMNS = "name, subject, status, began, ended, text"


def write(db: sqlite3.Connection, episodes: Iterable[Episode], until_ms: int) -> None:
    """Write episodes, and ``until_ms`` as the latest time of the open ones."""
    rows = [(e.began, e.check, e.subject, int(e.status), e.ended, e.text) for e in episodes]
    if rows:
        db.executemany(_WRITE, rows)
    db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (UNTIL, str(until_ms)))
    db.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (SINCE, str(until_ms)))


def left(db: sqlite3.Connection) -> Left:
    """Return the episodes that went on when the file was written last."""
    found = db.execute(f"SELECT {_COLUMNS} FROM episode WHERE ended = 0").fetchall()  # noqa: S608
    return Left(tuple(_episode(row) for row in found), Milliseconds(_about(db, UNTIL)))


def expire(db: sqlite3.Connection, before_ms: int) -> None:
    """Delete episodes that ended before a moment, and the oldest of too many."""
    if _about(db, SINCE) < before_ms:
        db.execute(
            "DELETE FROM episode WHERE began < ? AND ended BETWEEN 1 AND ?", (before_ms,) * 2
        )
        _known_since(db, before_ms)
    (count,) = db.execute("SELECT count(*) FROM episode").fetchone()
    if count > COUNT_MAX:
        drop_oldest(db, count - COUNT_MAX)


def drop_oldest(db: sqlite3.Connection, count: int) -> bool:
    """Delete the oldest episodes that have ended; tell whether there were any."""
    oldest = "SELECT began, name, subject, status, ended FROM episode WHERE ended > 0"
    found = db.execute(f"{oldest} ORDER BY began LIMIT ?", (count,)).fetchall()
    keys = [row[:4] for row in found]
    where = "began = ? AND name = ? AND subject = ? AND status = ?"
    db.executemany(f"DELETE FROM episode WHERE {where}", keys)  # noqa: S608
    if found:
        _known_since(db, max(row[4] for row in found))
    return bool(found)


def forget(db: sqlite3.Connection, forgotten: Iterable[Forgotten]) -> list[tuple[str, str, int]]:
    """Return the replacements: pseudonyms, users, and up to when."""
    users = db.execute("SELECT DISTINCT subject FROM episode WHERE name = ?", (OF_USERS,))
    orders = tuple(forgotten)
    return [(o.pseudonym, user, o.at) for (user,) in users if user for o in meant(orders, user)]


def under_pseudonyms(
    episodes: Iterable[Episode], forgotten: Sequence[Forgotten]
) -> Iterator[Episode]:
    """Yield episodes with pseudonyms for forgotten users."""
    for each in episodes:
        orders = meant(forgotten, each.subject) if each.check == OF_USERS else ()
        order = next((order for order in orders if each.began <= order.at), None)
        yield replace(each, subject=order.pseudonym, text="") if order is not None else each


def replace_users(db: sqlite3.Connection, found: Sequence[tuple[str, str, int]]) -> None:
    """Replace users by pseudonyms, and delete the texts about them."""
    values = [(pseudonym, user, upto, OF_USERS) for pseudonym, user, upto in found]
    db.executemany(
        "UPDATE OR REPLACE episode SET subject = ?, text = ''"
        " WHERE subject = ? AND began <= ? AND name = ?",
        values,
    )


def read(db: sqlite3.Connection, query: HistoryQuery) -> HistoryPage:
    """Return a part of the episodes of a range, the newest first."""
    where, values = "began < ? AND (ended = 0 OR ended > ?)", [query.until, query.since]
    chosen: list[str] = []
    for column, word in (("name", query.metric), ("subject", query.name)):
        if word:
            where += f" AND {column} = ?"
            chosen.append(word)
    found = db.execute(
        f"SELECT {_COLUMNS} FROM episode WHERE {where}"  # noqa: S608
        " ORDER BY began DESC, name, subject, status LIMIT ? OFFSET ?",
        (*values, *chosen, PART_COUNT + 1, query.after),
    ).fetchall()
    shown = found[:PART_COUNT]
    return HistoryPage(
        episodes=tuple(_episode(row) for row in shown),
        after=query.after + len(shown),
        more=len(found) > len(shown),
        oldest=Milliseconds(_about(db, SINCE)),
    )


def _episode(row: tuple[str, str, int, int, int, str]) -> Episode:
    check, subject, status, began, ended, text = row
    return Episode(check, subject, Health(status), Milliseconds(began), Milliseconds(ended), text)


def _about(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row is not None else 0


def _known_since(db: sqlite3.Connection, at: int) -> None:
    since = max(at, _about(db, SINCE))
    db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (SINCE, str(since)))
