"""One server's history, read from its ``history.db`` or a copy of it, without a pool.

So the figures of a server that has left its pool are not lost: they stay in its state directory,
and the pool's other servers do not have them.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.monitoring.history.history_reader import read_file
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, connect
from gpupool.monitoring.history.series import SERVER, SLOT_S, TIERS
from gpupool.pool.errors import StorageError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, KeptTier, Storage, joined
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, ServerId

SUFFIXES = ("-wal", "-shm")
"""SQLite's files beside a database count with it."""

SHOWN = (FILE_NAME, "usage.db", "leases.jsonl")


def storage_of(folder: Path, settings: HistorySettings) -> HistoryPage:
    """Return a folder's file sizes and limits.

    Raises:
        StorageError: when the history is of a newer gpupool.
    """
    files = dict[str, int]()
    for path in folder.iterdir():
        name = path.name
        for suffix in SUFFIXES:
            name = name.removesuffix(suffix)
        kept = next((each for each in SHOWN if name == each or name.startswith(f"{each}.")), "")
        if kept:
            with suppress(FileNotFoundError):  # SQLite removes its journal meanwhile
                files[kept] = files.get(kept, 0) + path.stat().st_size
    oldest = _oldest(folder / FILE_NAME) if FILE_NAME in files else {}
    tiers = tuple(
        KeptTier(tier.step_s, kept_s, Milliseconds(1000 * oldest.get(tier.name, 0)))
        for tier, kept_s in zip(TIERS, settings.kept_s(), strict=True)
    )
    return HistoryPage(storage=Storage(files, settings.size_max, tiers))


def _oldest(path: Path) -> dict[str, int]:
    """Return the beginning of each tier's rows; the history itself reports failures."""
    try:
        db = connect(path, write=False)
    except sqlite3.Error:
        return {}
    try:
        if db.execute("PRAGMA user_version").fetchone() == (0,):
            return {}  # the writer has made the file, and no table yet
        found: dict[str, int] = {}
        for tier in TIERS:
            (t,) = db.execute(f"SELECT min(t) FROM {SERVER.at(tier)}").fetchone()  # noqa: S608
            if t is not None:
                found[tier.name] = t
        return found
    except sqlite3.Error:
        return {}
    finally:
        db.close()


THIS = ServerId("")
"""The file's server; the file does not contain its id."""

PARTS_MAX = 64
"""An answer of any range has fewer."""


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """A GPU of which the file has figures."""

    id: GpuId
    index: int


@dataclass(frozen=True, slots=True)
class KeptServer:
    """The server that wrote the file."""

    id: ServerId
    name: str
    gpus: tuple[KeptGpu, ...]


@dataclass(frozen=True, slots=True)
class KeptLease:
    """A lease of which the file has figures."""

    id: LeaseId


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """The subjects of a history file: servers, leases, and the end of its rows."""

    servers: tuple[KeptServer, ...]
    leases: tuple[KeptLease, ...]
    until_s: int  # when its last row ends; 0: it has none


def look_into(path: Path) -> KeptHistory:
    """Return the subjects with figures in a file.

    Raises:
        StorageError: when it is none, or of a newer gpupool.
    """
    try:
        db = connect(path, write=False)
        try:
            row = db.execute("SELECT value FROM about WHERE name = 'server'").fetchone()
            gpus = db.execute("SELECT gpu, number FROM gpu ORDER BY number, gpu").fetchall()
            leases = db.execute("SELECT id FROM lease").fetchall()
            tiers = (SERVER.at(tier) for tier in TIERS[:2])  # coarser rows end no later
            ends = [db.execute(f"SELECT max(t) FROM {each}").fetchone()[0] for each in tiers]  # noqa: S608
        finally:
            db.close()
    except sqlite3.Error as error:
        raise _unreadable(path, str(error)) from error
    server = KeptServer(THIS, row[0] if row else "", tuple(KeptGpu(*each) for each in gpus))
    slot, minute = ends
    until_s = max(0 if slot is None else slot + SLOT_S, 0 if minute is None else minute + 60)
    return KeptHistory((server,), tuple(KeptLease(*each) for each in leases), until_s)


def read_whole(path: Path, query: HistoryQuery) -> HistoryPage:
    """Return all parts of an answer.

    Raises:
        StorageError: when the file cannot be read.
    """
    try:
        return joined(list(_parts(path, query)))
    except sqlite3.Error as error:
        raise _unreadable(path, str(error)) from error


def _parts(path: Path, query: HistoryQuery) -> Iterator[HistoryPage]:
    for _ in range(PARTS_MAX):
        page = read_file(path, query)
        yield page
        if not page.more or page.after <= query.after:
            return
        query = replace(query, after=page.after)


def _unreadable(path: Path, why: str) -> StorageError:
    hint = '"gpupool backup --history DIR", on a server, makes a copy while it runs'
    return StorageError(f"cannot read {path}", why=why, hint=hint)
