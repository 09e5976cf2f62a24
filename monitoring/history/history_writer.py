"""Work of the exporter's thread that keeps the history; it reports failures and goes on.

A damaged file is put aside and begun anew. While the disk is full, or the files may not grow,
slots are left out and counted; a gap stays a gap.
"""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

from gpupool.monitoring.history.episodes import EpisodeBook
from gpupool.monitoring.history.history_settings import CAPPED, FULL, SET_BACK, HistorySettings
from gpupool.monitoring.history.history_store import (
    FILE_NAME,
    HistoryStore,
    disk_is_full,
)
from gpupool.monitoring.history.time_slots import Slot, SlotMaker
from gpupool.monitoring.sample import Sample
from gpupool.monitoring.usage_store import put_aside
from gpupool.pool.model.forgetting import Forgotten

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
EXPIRE_EVERY_S = 60
CHECKPOINT_EVERY_S = 300


class HistoryWriter:
    """Writes samples into ``history.db``; used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        settings: HistorySettings,
        say: Callable[[str], None],
        disk_full: Callable[[Path], bool] = disk_is_full,
    ) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._settings = settings
        self._say = say
        self._disk_full = disk_full
        self._store: HistoryStore | None = None
        self._slots = SlotMaker()
        self._episodes: EpisodeBook | None = None  # since the file could be read
        self._expired_at = self._moved_at = 0
        self.forgotten: tuple[Forgotten, ...] = ()
        """Forgotten users; any thread may set it."""
        self._forgot: tuple[Forgotten, ...] = ()
        self.lost = 0
        """Slots that could not be written."""
        self.problem = ""
        """Why the history may lack something; empty when it does not."""

    @property
    def refused(self) -> int:
        """Samples from before the last written slot: the clock was set back."""
        return self._slots.refused

    def take(self, samples: Iterable[Sample]) -> None:
        """Write the slots that end with these samples."""
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - the next ones may be kept
            self._failed(error)
        for sample in samples:
            if self._episodes is not None:
                self._episodes.look(sample.telemetry.findings, sample.at)
            refused = self.refused
            slot = self._slots.add(sample)
            if self.refused > refused:
                self._note(SET_BACK)  # until a slot is written again
            if slot is not None:
                self._write(slot, sample.name)

    def close(self) -> None:
        """Close the database."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _open(self) -> HistoryStore:
        if self._store is None:
            self._store = HistoryStore(self._path, self._settings)
            self._slots.last_t = max(self._slots.last_t, self._store.last_t())
            if self._episodes is None:
                self._episodes = EpisodeBook(self._store.left())
            self._episodes.write_again()
            self._forgot = ()  # this file may be another one
        forgotten = self.forgotten
        if forgotten != self._forgot:
            self._store.forget(forgotten)
            self._forgot = forgotten
        return self._store

    def _write(self, slot: Slot, server: str) -> None:
        try:
            store = self._open()
            if self._disk_full(self._folder):
                self._lose(FULL)
            elif not store.make_room():
                self._lose(CAPPED)
            else:
                assert self._episodes is not None
                episodes = self._episodes.unwritten()
                store.add(slot, server, episodes)
                self._episodes.written(episodes)
                self._note("")
                self._tidy(store, slot.t)
        except Exception as error:  # noqa: BLE001 - the next one may be kept
            self.lost += 1
            self._failed(error)

    def _tidy(self, store: HistoryStore, now: int) -> None:
        if now - self._expired_at >= EXPIRE_EVERY_S:
            self._expired_at = now
            store.expire(now)
        if now - self._moved_at >= CHECKPOINT_EVERY_S:
            self._moved_at = now
            store.checkpoint()

    def _lose(self, why: str) -> None:
        self.lost += 1
        self._note(why)

    def _failed(self, error: Exception) -> None:
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
        else:
            self._note(f"the history is not kept: {error}")

    def _note(self, text: str) -> None:
        if text != self.problem:
            self._say(text or "the history is kept again")
        self.problem = text
