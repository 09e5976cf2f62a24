"""Copies of a server's databases by SQLite's online backup, while its exporter writes them."""

import contextlib
import os
import sqlite3
from pathlib import Path

from gpupool.monitoring.history.history_store import FILE_NAME as HISTORY
from gpupool.monitoring.usage_store import FILE_NAME as USAGE
from gpupool.pool.errors import StorageError, UsageError

PAGES_AT_A_TIME = 1024
"""So that the exporter can write between two steps."""


def copy_databases(folder: Path, to: Path) -> list[Path]:
    """Copy those databases of a server that are there; return the copies, which its owner may read.

    Raises:
        UsageError: when there are none here.
        StorageError: when one cannot be read, or its copy not be written.
    """
    found = [folder / name for name in (USAGE, HISTORY) if (folder / name).exists()]
    if not found:
        raise UsageError(f"there is no history in {folder}", hint="give --state-dir")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [_copy(path, to / path.name) for path in found]
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"{folder} cannot be copied to {to}", why=str(error)) from error


def _copy(path: Path, to: Path) -> Path:
    part = to.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    with (
        contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as source,
        contextlib.closing(sqlite3.connect(part)) as target,
    ):
        source.backup(target, pages=PAGES_AT_A_TIME)
        target.execute("PRAGMA journal_mode = DELETE")
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(to)
    return to
