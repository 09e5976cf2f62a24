"""Directories of workers that did their worst: each is removed, and nothing else is."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from host_kit import nest_directories

from gpupool.remoting.host.remove_tree import remove_tree


def names_of_ours(top: Path) -> None:
    """Take the names that the removal would give, with files and with full directories."""
    for number in range(1, 20):
        (top / f".removed-{number}" / "full").mkdir(parents=True)
    (top / ".removed-20").write_text("a file")
    (top / "a" / "b" / "c").mkdir(parents=True)


def closed(top: Path) -> None:
    (top / "shut" / "inner").mkdir(parents=True)
    (top / "shut" / "inner" / "file").touch()
    (top / "shut" / "inner").chmod(0)
    (top / "shut").chmod(0)


def strange(top: Path) -> None:
    os.mkfifo(top / "fifo")
    (top / "\udcff\n\x1b[31m").touch()
    (top / "dangling").symlink_to("/nowhere")
    (top / "loop").symlink_to(top)


@pytest.mark.parametrize("fill", [nest_directories, names_of_ours, closed, strange])
def test_whatever_a_worker_left(fill: Callable[[Path], None], tmp_path: Path) -> None:
    top = tmp_path / "worker"
    top.mkdir()
    fill(top)
    said: list[str] = []
    assert remove_tree(top, said.append), said
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (kept / "inner" / "file").write_text("precious")
    top = tmp_path / "worker"
    (top / "a").mkdir(parents=True)
    (top / "a" / "link").symlink_to(kept, target_is_directory=True)
    (top / "link").symlink_to(kept / "inner", target_is_directory=True)
    assert remove_tree(top)
    assert (kept / "inner" / "file").read_text() == "precious"
    (tmp_path / "other").symlink_to(kept, target_is_directory=True)
    assert remove_tree(tmp_path / "other")
    assert (kept / "inner" / "file").read_text() == "precious"


def test_what_cannot_be_removed_is_said_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("it is not allowed")

    top = tmp_path / "worker"
    top.mkdir()
    for number in range(10):
        (top / str(number)).touch()
    monkeypatch.setattr(os, "unlink", refuse)
    said: list[str] = []
    assert not remove_tree(top, said.append)
    assert len(said) == 3
    assert "it is not allowed" in said[0]


def test_nothing_there(tmp_path: Path) -> None:
    assert remove_tree(tmp_path / "none")
