"""Power cuts of both databases: the unsynced writes kept by a disk, and the data read afterwards.

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
from tests.monitoring.records import record, write
from tests.monitoring.test_history_store import T0, seconds, sums_of, writer

from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, PAGE_SIZE, HistoryStore
from gpupool.monitoring.history.series import TIERS
from gpupool.monitoring.record_writer import RecordWriter
from gpupool.monitoring.usage_store import FILE_NAME as USAGE
from gpupool.monitoring.usage_store import UsageStore

SECTOR = 512
STEPS = 200


def cut_journal(folder: Path, synced: int, draw: random.Random, name: str = FILE_NAME) -> None:
    """Leave the synced part of the journal, and of the rest a part that a disk may keep."""
    path = folder / f"{name}-wal"
    data = bytearray(path.read_bytes())
    end = draw.randint(min(synced, len(data)), len(data))
    for at in range(synced - synced % SECTOR + SECTOR, end, SECTOR):
        if draw.random() < 0.1:
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))
    path.write_bytes(data[:end])


def cut_checkpoint(
    folder: Path, draw: random.Random, name: str = FILE_NAME, page_size: int = PAGE_SIZE
) -> None:
    """Move the journal's pages into the file, and lose some of these writes."""
    file, journal = folder / name, folder / f"{name}-wal"
    kept = folder / "kept"
    shutil.copy(journal, kept)
    before = file.read_bytes()
    db = sqlite3.connect(file)
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    after = file.read_bytes()
    db.close()
    pages = bytearray(after)
    for at in range(0, len(after), page_size):
        if draw.random() < 0.5:
            pages[at : at + page_size] = before[at : at + page_size].ljust(page_size, b"\0")
    file.write_bytes(pages)
    kept.replace(journal)  # it is emptied only when the file is synced
    (folder / f"{name}-shm").unlink(missing_ok=True)


def cut_power(folder: Path, cuts: int, seed: int) -> None:
    """Write, cut, open again, and look; again and again with one and the same history."""
    draw, first = random.Random(seed), 0
    state = folder / "0"
    state.mkdir()
    for cut in range(1, cuts + 1):
        helper = writer(state)
        count = draw.randint(1, STEPS)
        helper.take(seconds(first, count, step_s=10))
        after = folder / str(cut)
        shutil.copytree(state, after)  # the writer has not closed: the journal is there
        helper.close()
        shutil.rmtree(state)
        state = after
        if draw.random() < 0.5:
            cut_journal(state, 0, draw)
            (state / f"{FILE_NAME}-shm").unlink(missing_ok=True)
        else:
            cut_checkpoint(state, draw)
        said: list[str] = []
        helper = writer(state, said)
        store = HistoryStore(state / FILE_NAME, HistorySettings())
        store.check()
        last = store.last_t()
        store.close()
        helper.take([])
        helper.close()
        assert said == []
        assert not list(state.glob("*damaged*"))
        first = _next(last, first)
    helper = writer(state)
    helper.take(seconds(first, 2, step_s=3600))
    helper.close()
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


# --- accounts -------------------------------------------------------------------------------------

SQLITE_PAGE = 4096


def cut_power_of_accounts(folder: Path, cuts: int, seed: int) -> None:
    """Import records, cut, and open again: committed ones are there, and the rest comes anew."""
    draw, written = random.Random(seed), 0
    state = folder / "0"
    (state / "monitoring").mkdir(parents=True)
    for cut in range(1, cuts + 1):
        more = [record(written + each) for each in range(1, draw.randint(2, 40))]
        write(state, more)
        said: list[str] = []
        writer = RecordWriter(state / "monitoring", said.append)
        writer.step()
        committed = written + len(more)
        path = state / "monitoring" / f"{USAGE}-wal"
        synced = path.stat().st_size
        after = folder / str(cut)
        store = UsageStore(state / "monitoring" / USAGE, write=True)
        # One more transaction, of which the disk has synced nothing, and which was told nobody.
        late = [record(committed + each) for each in range(1, draw.randint(2, 20))]
        store.add(late)
        shutil.copytree(state, after)
        store.close()
        writer.close()
        shutil.rmtree(state)
        state = after
        place = state / "monitoring"
        if draw.random() < 0.5:
            cut_journal(place, synced, draw, USAGE)
            (place / f"{USAGE}-shm").unlink(missing_ok=True)
        else:
            cut_checkpoint(place, draw, USAGE, SQLITE_PAGE)
        store = UsageStore(place / USAGE)
        store.check()
        assert said == []
        found = store.everything()
        store.close()
        wanted = [record(each) for each in range(1, committed + len(late) + 1)]
        assert found[:committed] == wanted[:committed], "of what was committed nothing is lost"
        assert found in (wanted[:committed], wanted), "a transaction is there whole or not at all"
        write(state, late)
        written = committed + len(late)
        writer = RecordWriter(place, said.append)
        writer.step()
        writer.close()
        store = UsageStore(place / USAGE)
        assert store.everything() == wanted, "and nothing is there twice"
        store.close()
        assert said == []
        assert not list(place.glob("*damaged*"))


def test_power_cuts_leave_the_accounts_whole(tmp_path: Path) -> None:
    cut_power_of_accounts(tmp_path, 5, seed=1)


@pytest.mark.slow
def test_two_hundred_power_cuts_leave_the_accounts_whole(tmp_path: Path) -> None:
    for seed in range(20):
        cut_power_of_accounts(tmp_path / f"seed{seed}", 10, seed)
