"""Accepted folders of NVIDIA's MPS: any user of the machine may make the driver's default one."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_probes import landlock_version
from test_worker_confinement import as_root, in_child

from gpupool.remoting.host.isolation.confinement import Confinement
from gpupool.remoting.protocol import mps_folders
from gpupool.remoting.worker import namespaces, sandbox

STRANGER = 52_997
HOLDS = ("private-devices", "own-uid")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the driver looks, which does not exist yet."""
    path = tmp_path / "nvidia-mps"
    monkeypatch.setattr(mps_folders, "DIRECTORY", str(path))
    monkeypatch.delenv(mps_folders.VARIABLE, raising=False)
    return path


def listen(folder: Path) -> Path:
    """Make the daemon's socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control"))
    return folder / "control"


def by_daemon(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)  # as the daemon itself makes it
    listen(folder)


def by_stranger(folder: Path) -> None:
    folder.mkdir()
    os.chown(listen(folder), STRANGER, STRANGER)
    os.chown(folder, STRANGER, STRANGER)


def with_a_strangers_socket(folder: Path) -> None:
    """Where the daemon has left its folder, which is open to everybody."""
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(listen(folder), STRANGER, STRANGER)


def as_link(folder: Path) -> None:
    folder.symlink_to("/")


def as_link_to_a_folder(folder: Path) -> None:
    by_daemon(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def as_file(folder: Path) -> None:
    folder.touch()


@as_root
@pytest.mark.parametrize(
    "make", [by_stranger, with_a_strangers_socket, as_link, as_link_to_a_folder, as_file]
)
def test_what_anybody_could_have_made_turns_nothing_off(
    folder: Path, make: Callable[[Path], None]
) -> None:
    """A folder of any user turned off private shared memory and turns, for all new workers."""
    assert not mps_folders.is_used()
    make(folder)
    assert not mps_folders.is_used()
    assert Confinement().shares_memory(HOLDS)


def test_the_folder_of_nvidias_daemon_counts(folder: Path) -> None:
    by_daemon(folder)
    assert mps_folders.is_used()
    assert mps_folders.default_folder() == (str(folder),)
    assert str(folder) in namespaces.needed_paths(())
    assert not Confinement().shares_memory(HOLDS)


@as_root
@pytest.mark.parametrize("make", [by_stranger, as_link, as_link_to_a_folder, as_file])
def test_what_anybody_could_have_made_is_shown_to_no_worker(
    folder: Path, make: Callable[[Path], None]
) -> None:
    make(folder)
    assert str(folder) not in namespaces.needed_paths(())


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
@pytest.mark.parametrize("make", [by_daemon, as_link])
def test_a_link_in_place_of_the_folder_opens_nothing_else(
    folder: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A link to the root let all workers write wherever file modes let them."""
    make(folder)
    outside = tmp_path / "outside"
    outside.touch()

    def inside() -> bytes:
        assert sandbox.forbid_new_privileges()
        assert "landlock" in sandbox.restrict_files((), ())
        try:
            outside.write_text("x")
        except PermissionError:
            return b"refused"
        return b"written"

    assert in_child(inside) == b"refused"


@pytest.mark.parametrize("slash", ["", "/", "/."])
def test_a_link_that_the_operator_named_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    named = tmp_path / "named"
    monkeypatch.setenv(mps_folders.VARIABLE, str(named) + slash)
    assert mps_folders.is_used()  # its daemon may be yet to start
    named.symlink_to("/")
    assert not mps_folders.is_used()
    assert not [path for path in namespaces.needed_paths(()) if path.startswith(str(named))]
    named.unlink()
    named.mkdir()
    os.chmod(named, 0o777)
    assert mps_folders.named_folder() == (str(named) + slash,)
    assert str(named) + slash in namespaces.needed_paths(())
    assert folder  # the driver's own one is not there
