"""Power cuts of ``history.db``: what a disk keeps of unsynced writes, and what is read afterwards.

SQLite syncs the journal before it moves its pages into the file, and the file before it empties the
journal. Until then a disk may have kept any part of what was written, in any order. So a cut is a
copy of both files with some of it missing: sectors of the journal that are not synced, or pages of
the file while they are moved.
"""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.monitoring.test_history_store import T0, seconds, sums_of, writer

from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, PAGE_SIZE, HistoryStore
from gpupool.monitoring.history.series import TIERS

JOURNAL = f"{FILE_NAME}-wal"
SECTOR = 512
STEPS = 200


def cut_journal(folder: Path, synced: int, draw: random.Random) -> None:
    """Leave the synced part of the journal, and of the rest what a disk may have kept."""
    path = folder / JOURNAL
    data = bytearray(path.read_bytes())
    end = draw.randint(min(synced, len(data)), len(data))
    for at in range(synced - synced % SECTOR + SECTOR, end, SECTOR):
        if draw.random() < 0.1:
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))
    path.write_bytes(data[:end])


def cut_checkpoint(folder: Path, draw: random.Random) -> None:
    """Move the journal's pages into the file, and lose some of these writes."""
    file, journal = folder / FILE_NAME, folder / JOURNAL
    kept = folder / "kept"
    shutil.copy(journal, kept)
    before = file.read_bytes()
    db = sqlite3.connect(file)
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    after = file.read_bytes()
    db.close()
    pages = bytearray(after)
    for at in range(0, len(after), PAGE_SIZE):
        if draw.random() < 0.5:
            pages[at : at + PAGE_SIZE] = before[at : at + PAGE_SIZE].ljust(PAGE_SIZE, b"\0")
    file.write_bytes(pages)
    kept.replace(journal)  # it is emptied only when the file is synced
    (folder / f"{FILE_NAME}-shm").unlink(missing_ok=True)


def cut_power(folder: Path, cuts: int, seed: int) -> None:
    """Write, cut, open again, and look; again and again with one and the same history."""
    draw, first = random.Random(seed), 0
    state = folder / "0"
    state.mkdir()
    for cut in range(1, cuts + 1):
        keeper = writer(state)
        count = draw.randint(1, STEPS)
        keeper.take(seconds(first, count, step_s=10))
        after = folder / str(cut)
        shutil.copytree(state, after)  # the writer has not closed: the journal is there
        keeper.close()
        shutil.rmtree(state)
        state = after
        if draw.random() < 0.5:
            cut_journal(state, 0, draw)
            (state / f"{FILE_NAME}-shm").unlink(missing_ok=True)
        else:
            cut_checkpoint(state, draw)
        said: list[str] = []
        keeper = writer(state, said)
        store = HistoryStore(state / FILE_NAME, HistorySettings())
        store.check()
        last = store.last_t()
        store.close()
        keeper.take([])
        keeper.close()
        assert said == []
        assert not list(state.glob("*damaged*"))
        first = _next(last, first)
    keeper = writer(state)
    keeper.take(seconds(first, 2, step_s=3600))
    keeper.close()
    hours = T0 + first // 3600 * 3600
    fine, middle, coarse = (sums_of(state, tier.name, hours) for tier in TIERS)
    assert fine == middle == coarse


def _next(last: int, before: int) -> int:
    """Return the second to go on with: a cut takes slots of this round, and none of an earlier."""
    after = max(0, last - T0) + 10 if last >= T0 else 0
    assert after >= before
    return after


def test_power_cuts_leave_a_file_that_is_whole(tmp_path: Path) -> None:
    cut_power(tmp_path, 3, seed=1)


@pytest.mark.slow
def test_two_hundred_power_cuts_leave_a_file_that_is_whole(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        cut_power(folder, 10, seed)
