"""Files that are replaced whole, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from gpupool.pool.errors import StorageError
from gpupool.remoting.local.files import replace_file, write_private


def test_a_file_is_replaced_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "pool.backup"
    path.write_text("before")
    path.chmod(0o644)
    write_private(path, b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["pool.backup"]


def test_the_data_and_then_its_name_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        real_sync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        done.append("replace")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    replace_file(tmp_path / "key", b"x")
    assert done == ["sync .key.new", "replace", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_disk_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, fails, fail)
    with pytest.raises(StorageError, match="no space left on device"):
        write_private(path, b"after")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_where_a_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="not a directory"):
        write_private(tmp_path / "file" / "pool.backup", b"x")


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    link.symlink_to(target)
    write_private(link, b"x")
    assert link.is_symlink()
    assert target.read_bytes() == b"x"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(pipe, b"through the pipe")
        assert os.read(reading, 100) == b"through the pipe"
    finally:
        os.close(reading)
    assert pipe.is_fifo()
    with pytest.raises(StorageError, match="no space left on device"):
        write_private(Path("/dev/full"), b"x")
