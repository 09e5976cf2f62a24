"""Storage of an exporter, for administrators: sizes, the cap, and the oldest rows."""

import sqlite3
from contextlib import suppress
from pathlib import Path

from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, connect
from gpupool.monitoring.history.series import SERVER, TIERS
from gpupool.pool.history_query import HistoryPage, KeptTier, Storage
from gpupool.pool.model.ids import Milliseconds

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
