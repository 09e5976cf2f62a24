"""Copies of a server's databases: whole, private, while somebody writes."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.monitoring.records import record

from gpupool.monitoring.database_copy import copy_databases
from gpupool.monitoring.usage_store import UsageStore
from gpupool.pool.errors import StorageError, UsageError
from gpupool.pool.record_query import RecordQuery


def test_a_copy_has_what_was_committed_while_the_writer_goes_on(tmp_path: Path) -> None:
    folder, to = tmp_path / "monitoring", tmp_path / "copy"
    folder.mkdir()
    store = UsageStore(folder / "usage.db", write=True)
    store.add([record(1), record(2)])
    [path] = copy_databases(folder, to)
    store.add([record(3)])
    assert path.stat().st_mode & 0o777 == 0o600
    copy = UsageStore(path)
    assert [each.number for each in copy.each(RecordQuery())] == [1, 2]
    copy.close()
    assert copy_databases(folder, to) == [path]  # and again, in its place
    copy = UsageStore(path)
    assert copy.newest() == 3
    copy.close()
    store.close()
    assert {each.name for each in to.iterdir()} == {"usage.db"}


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no history"):
        copy_databases(tmp_path, tmp_path / "copy")
    (tmp_path / "usage.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="cannot be copied"):
        copy_databases(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy" / "usage.db").exists()


def test_history_that_was_never_checkpointed_is_in_the_copy(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "history.db")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE t (x)")
    db.execute("INSERT INTO t VALUES (7)")
    db.commit()
    [path] = copy_databases(tmp_path, tmp_path / "copy")
    with contextlib.closing(sqlite3.connect(path)) as copied:
        assert copied.execute("SELECT x FROM t").fetchall() == [(7,)]
    db.close()
