"""A real directory of files: read permissions, synced files, and open descriptors."""

import os
import sys
from pathlib import Path

import pytest

from gpupool.consensus.storage.disk import FileDisk
from gpupool.pool.errors import StorageError


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def noted_syncs(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of inodes to which each later sync adds the synced one."""
    synced: list[int] = []

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    patch.setattr("gpupool.consensus.storage.disk._sync_data", note)
    patch.setattr(os, "fsync", note)
    return synced


def test_a_directory_is_made_with_those_above_it_and_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "pool" / "server" / "log"
    disk = FileDisk(directory)
    disk.write("one", b"1")
    disk.reserve("two", 10)
    disk.close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [(directory / name).stat().st_mode & 0o777 for name in ("one", "two")] == [0o600] * 2
    again = FileDisk(directory)
    assert again.names() == ["one", "two"]
    again.close()


def test_a_directory_is_free_once_it_is_closed_and_may_be_closed_twice(tmp_path: Path) -> None:
    before = open_files()
    disk = FileDisk(tmp_path)
    disk.write("one", b"1")
    with pytest.raises(StorageError, match="is in use"):
        FileDisk(tmp_path)
    disk.close()
    disk.close()
    assert open_files() == before
    FileDisk(tmp_path).close()


def test_a_sync_makes_that_file_durable_and_a_sync_of_the_directory_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(tmp_path)
    disk.write("one", b"1")
    disk.write("two", b"2")
    synced = noted_syncs(monkeypatch)
    disk.sync("two")
    assert synced == [(tmp_path / "two").stat().st_ino]
    disk.sync_directory()
    assert synced[1:] == [tmp_path.stat().st_ino]
    disk.close()


def test_a_file_that_is_written_again_and_again_is_open_once(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.write("one", bytes(10))
    disk.overwrite("one", 0, b"x")
    before = open_files()
    for _ in range(5):
        disk.append("one", b"y")
        disk.overwrite("one", 2, b"z")
        disk.sync("one")
    assert open_files() == before
    assert disk.read("one") == b"x\0z" + bytes(7) + b"y" * 5
    disk.close()


def test_a_file_that_goes_is_closed_and_one_of_its_name_is_another(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    before = open_files()
    for content in (b"1", b"2"):
        disk.write("one", content)
        assert open_files() == before + 1
        disk.remove("one")
        assert open_files() == before
    disk.write("one", b"3")
    assert disk.read("one") == b"3"
    disk.close()


def test_a_file_replaced_by_another_is_closed_and_what_follows_goes_to_the_other(
    tmp_path: Path,
) -> None:
    disk = FileDisk(tmp_path)
    disk.write("one", b"1")
    disk.write("new", b"2")
    before = open_files()
    disk.rename("new", "one")
    assert open_files() == before - 1
    disk.append("one", b"3")
    assert disk.names() == ["one"]
    assert disk.read("one") == b"23"
    disk.write("new", b"4")
    assert (disk.read("one"), disk.read("new")) == (b"23", b"4")
    disk.close()


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_a_reserve_has_its_size_and_what_is_there_already_stays(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", platform)
        disk.reserve("reserve", 5000)
        assert disk.read("reserve") == bytes(5000)
        disk.write("full", b"abc")
        before = open_files()
        disk.reserve("full", 3)
        disk.reserve("full", 2)
        assert open_files() == before
    assert disk.read("full") == b"abc"
    disk.close()
