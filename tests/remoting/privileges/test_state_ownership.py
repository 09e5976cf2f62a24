"""A state directory's parts for a server that gives up root's privileges, and its other parts."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool.remoting.privileges import ownership

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

UID = 51_998


@pytest.fixture
def state(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    yield path, descriptor
    os.close(descriptor)


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_all_of_a_former_servers_files_are_handed_over(state: tuple[Path, int]) -> None:
    path, descriptor = state
    (path / "consensus" / "peers").mkdir(parents=True)
    files = [path / "identity.json", path / "consensus" / "journal", path / "consensus/peers/a"]
    for file in files:
        file.write_text("x")
    assert ownership.hand_over(descriptor, UID, UID) == []
    assert {owner(each) for each in (path, path / "consensus", *files)} == {UID}
    # What root wrote there later, such as gpupool recover, is handed over at the next start.
    (path / "identity.json").unlink()
    (path / "identity.json").write_text("y")
    assert ownership.hand_over(descriptor, UID, UID) == []
    assert owner(path / "identity.json") == UID


def test_no_link_is_followed_and_no_file_with_another_name_is_given(
    state: tuple[Path, int], tmp_path: Path
) -> None:
    path, descriptor = state
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("root's")
    folder.mkdir()
    (folder / "inside").write_text("root's")
    (path / "link").symlink_to(secret)
    (path / "to-folder").symlink_to(folder)
    os.link(secret, path / "second-name")
    os.mkfifo(path / "pipe")
    left = ownership.hand_over(descriptor, UID, UID)
    assert sorted(left) == ["link", "pipe", "second-name", "to-folder"]
    for each in (secret, folder, folder / "inside", path / "link"):
        assert owner(each) == 0
    assert owner(path) == UID


def test_others_files_stay_theirs(state: tuple[Path, int]) -> None:
    path, descriptor = state
    (path / "other").write_text("x")
    os.chown(path / "other", UID + 1, UID + 1)
    assert ownership.hand_over(descriptor, UID, UID) == ["other"]
    assert owner(path / "other") == UID + 1


def test_the_helpers_part_stays_roots_and_gets_what_a_former_server_left(
    state: tuple[Path, int],
) -> None:
    path, descriptor = state
    (path / "kernels" / "ab").mkdir(parents=True)
    (path / "kernels" / "ab" / "kernel").write_text("code")
    (path / "workers.json").write_text("{}")
    part = ownership.own_part(descriptor)
    ownership.hand_over(descriptor, UID, UID)
    assert sorted(os.listdir(part)) == ["kernels", "workers.json"]
    os.close(part)
    found = [path / "keeper", path / "keeper/kernels/ab/kernel", path / "keeper/workers.json"]
    assert {owner(each) for each in found} == {0}
    assert stat.S_IMODE((path / "keeper").stat().st_mode) == 0o700


def test_a_record_of_workers_that_is_not_roots_is_not_believed(state: tuple[Path, int]) -> None:
    """Root kills the processes that it names, and removes a directory."""
    path, descriptor = state
    (path / "workers.json").write_text("{}")
    os.chown(path / "workers.json", UID, UID)
    part = ownership.own_part(descriptor)
    assert os.listdir(part) == []
    os.close(part)


@pytest.mark.parametrize("kind", ["link", "theirs", "open", "file"])
def test_a_helpers_part_that_the_server_made_is_not_used(
    state: tuple[Path, int], tmp_path: Path, kind: str
) -> None:
    path, descriptor = state
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "precious").write_text("x")
    if kind == "link":
        (path / "keeper").symlink_to(target)
    elif kind == "file":
        (path / "keeper").write_text("x")
    else:
        (path / "keeper").mkdir()
        (path / "keeper" / "workers.json").write_text("{}")
        os.chown(path / "keeper", *(UID, UID) if kind == "theirs" else (0, 0))
        (path / "keeper").chmod(0o700 if kind == "theirs" else 0o777)
    part = ownership.own_part(descriptor)
    assert os.listdir(part) == []
    os.close(part)
    assert owner(path / "keeper") == 0
    assert not (path / "keeper").is_symlink()
    assert (target / "precious").exists()
    assert sorted(os.listdir(path)) == ["keeper"]


def test_a_directory_in_which_no_server_lives_goes_and_another_stays(
    state: tuple[Path, int],
) -> None:
    path, descriptor = state
    os.close(ownership.own_part(descriptor))
    (path / "lock").touch()
    (path / "identity.json").touch()
    ownership.remove_unused(path, "lock")
    assert (path / "keeper").is_dir()
    (path / "identity.json").unlink()
    ownership.remove_unused(path, "lock")
    assert not path.exists()
