"""Folders in a temporary directory: those of killed commands go, and nothing that is used."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpupool
from gpupool.cli.lib import demonstration, policy_draft
from gpupool.cli.lib.demonstration import Demonstration
from gpupool.cli.lib.policy_draft import DRAFT, draft_of
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.daemon.systemd import make_runtime_dir
from gpupool.remoting.local.files import ABANDONED_AFTER_S
from gpupool.remoting.program import notebook_magics

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
CELL = """
import os, signal
from gpupool.remoting.program import notebook_magics
notebook_magics.subprocess.Popen = lambda *_words, **_more: os.kill(os.getpid(), signal.SIGKILL)
notebook_magics.gpu("", "password = 1")
"""
SERVES = """
import os, signal
from gpupool.remoting.daemon.systemd import make_runtime_dir
make_runtime_dir("me")
os.kill(os.getpid(), signal.SIGKILL)
"""
EDITS = "from gpupool.cli.lib.policy_draft import draft_of"
SHOWS = "from gpupool.cli.lib.demonstration import Demonstration"


@pytest.fixture
def left_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that runs a killed program, and returns the old folder left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(program: str) -> Path:
        before = set(tmp_path.iterdir())
        done = subprocess.run([sys.executable, "-c", program], check=False)
        assert done.returncode == -signal.SIGKILL
        (left,) = set(tmp_path.iterdir()) - before
        aged(left)
        return left

    return run


def aged(folder: Path) -> None:
    then = folder.stat().st_mtime - 2 * ABANDONED_AFTER_S
    os.utime(folder, (then, then))


@pytest.mark.long
def test_the_folder_of_a_killed_demonstration_is_removed_by_the_next_one(
    left_by: Callable[[str], Path],
) -> None:
    left = left_by(f"{SHOWS}; Demonstration(); {KILLED}")
    assert left.name.startswith(demonstration.FOLDER_PREFIX)
    shown = Demonstration()
    assert not left.exists()
    shown._clean_up()  # pyright: ignore[reportPrivateUsage]
    assert list(left.parent.iterdir()) == []


@pytest.mark.long
def test_servers_that_a_killed_demonstration_left_keep_its_folder(
    left_by: Callable[[str], Path],
) -> None:
    kept = Demonstration()
    try:
        kept._pool.start(  # pyright: ignore[reportPrivateUsage]
            1, ["--emulate", "1:1G"], lambda login: gpupool.Pool(credentials=login).status()
        )
        # As when the command was killed.
        folder = kept._folder  # pyright: ignore[reportPrivateUsage]
        os.close(kept._held)  # pyright: ignore[reportPrivateUsage]
        kept._held = os.open(os.devnull, os.O_RDONLY)  # pyright: ignore[reportPrivateUsage]
        aged(folder)
        other = Demonstration()
        assert folder.exists()
        shutil.rmtree(other._folder)  # pyright: ignore[reportPrivateUsage]
        os.close(other._held)  # pyright: ignore[reportPrivateUsage]
    finally:
        kept._clean_up()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_demonstration_ends_with_its_terminal(tmp_path: Path, number: int) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    with subprocess.Popen(
        # Whoever runs the tests may ignore SIGHUP.
        [sys.executable, "-m", "gpupool.cli.main", "demo"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("gpupool status" in line for line in demo.stdout), "three servers run"
        [folder] = tmp_path.glob(f"{demonstration.FOLDER_PREFIX}*")
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(60) == 128 + number
    assert not folder.exists()
    command = f"--state-dir\0{folder}".encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert command not in each.read_bytes()


def test_a_draft_of_a_killed_editor_goes_unless_it_was_edited(
    left_by: Callable[[str], Path],
) -> None:
    plain = left_by(f"{EDITS}\nwith draft_of('a'):\n    {KILLED}")
    edited = left_by(
        f"{EDITS}\nwith draft_of('a') as draft:\n    draft.write_text('b')\n    {KILLED}"
    )
    assert edited.name.startswith(policy_draft.PREFIX)
    with draft_of("a") as draft:
        assert draft.read_text() == "a"
        assert not plain.exists()
        assert (edited / DRAFT).read_text() == "b"
    assert list(edited.parent.iterdir()) == [edited]


def test_the_cell_of_a_killed_notebook_is_removed_by_the_next_one(
    left_by: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_by(CELL)
    assert left.stat().st_mode & 0o777 == 0o700
    seen: list[str] = []

    def run(words: list[str], **_more: object) -> "subprocess.Popen[str]":
        seen.append(Path(words[-1]).read_text())
        return subprocess.Popen(["true"], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(
        notebook_magics, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": run})
    )
    notebook_magics.gpu("", "a = 2")
    assert seen == ["a = 2"]
    assert list(left.parent.iterdir()) == []


def test_the_folder_of_a_killed_server_is_removed_by_the_next_one(
    left_by: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its usual folder has the server's id, and is found by that; this is the other."""
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    somebodys = tmp_path / "gpupool-me"
    somebodys.touch()
    left = left_by(SERVES)
    made = make_runtime_dir(ServerId("me"))
    assert made.stat().st_mode & 0o777 == 0o711
    assert set(tmp_path.iterdir()) == {somebodys, made}
    assert left != made
    aged(made)
    assert make_runtime_dir(ServerId("me")) != made
    assert made.exists(), "its server lives"


def test_a_deep_folder_that_was_left_is_removed(left_by: Callable[[str], Path]) -> None:
    """In Python 3.11 and 3.12 it ended each later start with a RecursionError."""
    left = left_by(f"{EDITS}\nwith draft_of('a'):\n    {KILLED}")
    here = os.open(left, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    aged(left)
    with draft_of("a"):
        assert not left.exists()


def interrupted(text: str) -> None:
    with draft_of("a") as draft:
        draft.write_text(text)
        raise KeyboardInterrupt


def test_an_edited_draft_is_kept_when_its_command_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        interrupted("b")
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == "b"
    assert str(kept) in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        interrupted("a")
    assert list(tmp_path.iterdir()) == [kept]
