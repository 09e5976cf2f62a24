"""A real directory as the disk: whole writes, and space reserved behind appended data."""

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_node import entry

from gpupool.consensus.storage import store as storage_module
from gpupool.consensus.storage.disk import AHEAD_BYTES, Disk, FileDisk
from gpupool.consensus.storage.journal import JOURNAL, Journal, Superblock
from gpupool.consensus.storage.store import open_storage
from gpupool.pool.errors import StorageError
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk

NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(*_arguments: object) -> NoReturn:
    raise NO_ROOM


def filled(disk: Disk, last: bytes) -> Journal:
    """Return a journal of three batches, of which the newest ends with ``last``."""
    superblock = Superblock(disk)
    superblock.keep()
    journal = Journal.create(disk, superblock)
    for index in (2, 3, 4):
        journal.append(*entry(b"x" * 50, index, 1))
        journal.sync()
    journal.append(last, 5, 1)
    journal.sync()
    return journal


def facts(disk: Disk) -> tuple[Any, ...]:
    """Return a journal's content as read, or the reason of its refusal."""
    try:
        journal = Journal.open(disk, superblock := Superblock(disk))
    except StorageError as error:
        return (str(error),)
    return (list(journal.entries), journal.term, journal.vote, journal.boot, superblock.floor)


@given(st.data())
def test_zeros_behind_a_journal_change_nothing(data: st.DataObject) -> None:
    disk = SimulatedDisk(random.Random(1))
    filled(disk, data.draw(st.sampled_from([b"\x02", b"\x02\0", b"\x02" + bytes(70)])))
    whole, known = disk.read(JOURNAL), disk.read("superblock")
    torn = bytearray(whole[: data.draw(st.integers(16, len(whole)))])
    if data.draw(st.booleans()):
        torn[data.draw(st.integers(0, len(torn) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    zeros = bytes(data.draw(st.sampled_from([100, 124, 4096])))
    # What was cut off may begin with zeros: a crash that took only them has taken nothing.
    cut = whole[len(torn) :]
    bare = bytes(torn) + cut[: len(cut) - len(cut.lstrip(b"\0"))]
    found: list[tuple[Any, ...]] = []
    for content in (bare, bytes(torn) + zeros):
        disk.put(JOURNAL, content)
        disk.put("superblock", known)
        found.append(facts(disk))
    assert found[0] == found[1]


@pytest.mark.parametrize("last", [b"\x02end", b"\x02" + bytes(70)], ids=["text", "zeros"])
def test_a_journal_of_a_killed_server_is_whole_and_one_that_was_closed_has_no_zeros(
    tmp_path: Path, last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FileDisk(tmp_path / "a")
    journal = filled(disk, last)
    content = disk.read(JOURNAL)
    shutil.copytree(tmp_path / "a", tmp_path / "killed")
    assert (tmp_path / "killed" / JOURNAL).read_bytes().rstrip(b"\0") == content.rstrip(b"\0")
    copy = FileDisk(tmp_path / "killed")
    assert facts(copy)[0] == journal.entries
    copy.close()
    disk.close()
    assert (tmp_path / "a" / JOURNAL).read_bytes() == content
    assert not caplog.records


def test_appending_changes_the_size_of_a_file_once_in_a_mebibyte(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.write("file", b"first")
    sizes: set[int] = set()
    for _ in range(100):
        disk.append("file", b"more" * 1000)
        sizes.add((tmp_path / "file").stat().st_size)
    assert sizes == {5 + 4000 + AHEAD_BYTES}
    disk.append("file", bytes(AHEAD_BYTES))
    assert (tmp_path / "file").stat().st_size > max(sizes)
    assert len(disk.read("file")) == 5 + 400_000 + AHEAD_BYTES
    disk.close()
    assert (tmp_path / "file").stat().st_size == 5 + 400_000 + AHEAD_BYTES


def test_a_disk_without_room_for_more_takes_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(tmp_path)
    disk.write("file", b"")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for _ in range(3):
        disk.append("file", b"0123456789")
    assert disk.read("file") == (tmp_path / "file").read_bytes() == b"0123456789" * 3
    disk.close()


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    disk.write("file", b"")
    real = os.pwrite

    def write_a_little(fd: int, data: bytes, offset: int) -> int:
        return real(fd, bytes(data)[:3], offset)

    monkeypatch.setattr(os, "pwrite", write_a_little)
    disk.append("file", b"0123456789")
    assert disk.read("file") == b"0123456789"
    disk.close()


def test_a_full_real_disk_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path, create=True)
    monkeypatch.setattr(os, "pwrite", refuse)
    storage.journal.set_vote(3, "b")
    with pytest.raises(StorageError, match="No space left on device"):
        storage.journal.sync()
    assert not (tmp_path / storage_module.DIRECTORY / "reserve").exists()
    storage.close()
