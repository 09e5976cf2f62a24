"""The work of the exporter's threads: records into ``usage.db``, and questions answered from it."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpupool.monitoring.frames import PAGE_SIZE_MAX
from gpupool.monitoring.history.history_settings import NOT_BEGUN
from gpupool.monitoring.pages import told
from gpupool.monitoring.record_import import RecordReader
from gpupool.monitoring.usage_store import FILE_NAME, UsageStore, put_aside
from gpupool.pool.model.codec import encode
from gpupool.pool.model.forgetting import Forgotten
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import PAGE_COUNT_MAX, RecordPage, RecordQuery
from gpupool.pool.transitions.kept_records import under_pseudonym
from gpupool.remoting.protocol import framing

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class RecordWriter:
    """Imports ``leases.jsonl`` into ``usage.db``; used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        added: Callable[[Sequence[LeaseRecord]], None] = lambda _batch: None,
    ) -> None:
        """Make it; ``say`` takes lines for the log, ``added`` the records that are in from now."""
        self._added = added
        self._path = folder / FILE_NAME
        self._reader = RecordReader(folder)
        self._say = say
        self._store: UsageStore | None = None
        self._newest = 0
        self._told = 0
        """Number of the last record imported before; records that are read again have not ended
        anew."""
        self.forgotten: tuple[Forgotten, ...] = ()
        """Forgotten users; any thread may set it."""
        self._forgot: tuple[Forgotten, ...] = ()
        self.problem = ""
        """Why the database may lack records; empty when it does not."""

    def step(self) -> None:
        """Import new records. A failure is logged once, and the import is tried again later."""
        try:
            store = self._open()
            forgotten = self.forgotten
            for batch in self._reader.batches(self._newest):
                store.add([under_pseudonym(each, forgotten) for each in batch])
                self._newest = max(self._newest, batch[-1].number)
                if added := [each for each in batch if each.number > self._told]:
                    self._added(added)
                self._told = max(self._told, self._newest)
            if forgotten != self._forgot:
                store.forget(forgotten)
                self._forgot = forgotten
        except sqlite3.Error as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - it is tried again
            self._note(f"the accounts cannot be kept: {error}")
        else:
            if self.problem:
                self._say("the accounts are kept again")
            self.problem = ""

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _open(self) -> UsageStore:
        if self._store is None:
            store = UsageStore(self._path, write=True)
            try:
                store.check()
                newest = store.newest()
                # What it lacks may still be in the files.
                self._newest = 0 if store.missing() else newest
                self._told = max(self._told, newest)
            except BaseException:
                store.close()
                raise
            self._store = store
            self._reader.again()
        return self._store

    def _failed(self, error: sqlite3.Error) -> None:
        self.close()
        code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # ``check`` finds damage without a code of its own.
        if code in DAMAGED or type(error) is sqlite3.DatabaseError:
            try:
                to = put_aside(self._path)
            except OSError as failed:
                self._note(f"{self._path.name} is damaged and cannot be renamed: {failed}")
                return
            self._say(f"{self._path.name} is damaged ({error}): it is {to.name} now, begun anew")
            self._newest = 0
            self.problem = f"{to.name} was damaged"
        else:
            self._note(f"the accounts cannot be written: {error}")

    def _note(self, text: str) -> None:
        if text != self.problem:
            self._say(text)
        self.problem = text


def answer(folder: Path, query: RecordQuery, size_max: int = PAGE_SIZE_MAX) -> RecordPage:
    """Return a page of the records in ``usage.db``.

    Raises:
        sqlite3.Error: when the database cannot be read.
    """
    if not (folder / FILE_NAME).exists():
        return RecordPage(problem=NOT_BEGUN)
    store = UsageStore(folder / FILE_NAME)
    try:
        newest = store.newest()
        known = RecordPage(upto=newest, newest=newest, missing=store.missing())
        if not query.count:
            return known
        if query.by:
            page = told(store.each(query), query)
            return replace(page, upto=newest, newest=newest, missing=known.missing)
        count = min(max(1, query.count), PAGE_COUNT_MAX)
        rows = store.select(query, count + 1)
    finally:
        store.close()
    while True:
        chosen = rows[:count]
        more = len(rows) > count
        page = replace(
            told(chosen, query),
            upto=chosen[-1].number if more else known.upto,
            more=more,
            newest=known.newest,
            missing=known.missing,
        )
        if count == 1 or len(framing.dump(encode(page))) <= size_max:
            return page
        count //= 2
