"""``gpupool up`` and ``down``: a pool in the background that a user can play with, once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpupool
from gpupool.cli.lib.background_pool import BackgroundPool, Process, Record, beginning_of
from gpupool.pool.errors import StorageError, UsageError


def made(folder: Path, processes: list[Process], login: str = "") -> BackgroundPool:
    """Return a pool as another run of the command finds it."""
    pool = BackgroundPool(folder)
    pool.record = Record(["--emulate", "1"], ["local-a"], login, processes)
    pool._write()  # pyright: ignore[reportPrivateUsage]
    return BackgroundPool(folder)


def test_a_second_pool_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    me = Process("local-a", os.getpid(), beginning_of(os.getpid()))
    with pytest.raises(UsageError, match="runs already"):
        made(tmp_path, [me]).start(1, [], lambda login: gpupool.Pool(credentials=login).status())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pool = BackgroundPool(tmp_path / "file" / "pool")
    with pytest.raises(StorageError, match=r"a pool cannot be kept in .*file/pool") as raised:
        pool.start(1, [], lambda login: gpupool.Pool(credentials=login).status())
    assert raised.value.why == "not a directory"


def test_a_process_of_the_same_number_is_not_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        pool = made(tmp_path, [Process("local-a", other.pid, "an earlier time")])
        assert pool.living() == []
        assert pool.stop(remove=True) == 0
        assert other.poll() is None
        other.communicate(b"\n")
    assert not tmp_path.exists()


def test_servers_end_and_their_folder_goes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        one = Process("local-a", server.pid, beginning_of(server.pid))
        assert made(tmp_path, [one]).stop(remove=True) == 1
        assert server.wait() != 0
    assert not tmp_path.exists()


@pytest.mark.parametrize(("theirs", "kept"), [("one", False), ("two", True)])
def test_only_the_login_of_this_pool_is_removed(tmp_path: Path, theirs: str, kept: bool) -> None:
    folder, login = tmp_path / "pool", tmp_path / "login.json"
    folder.mkdir()
    (folder / "credentials.json").write_text(json.dumps({"cluster_id": "one"}), encoding="utf-8")
    login.write_text(json.dumps({"cluster_id": theirs}), encoding="utf-8")
    made(folder, [], str(login)).stop(remove=True)
    assert login.exists() is kept


@pytest.mark.slow
def test_the_commands_that_up_prints_work(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
    env |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}

    def shell(command: str) -> "subprocess.CompletedProcess[str]":
        argv = ["sh", "-c", command]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    started = shell("gpupool up --servers 2 --emulate 1:2G")
    try:
        assert started.returncode == 0, started.stderr
        lines = [line.strip() for line in started.stdout.splitlines() if line.startswith("  ")]
        assert [line.split()[1] for line in lines] == ["status", "top", "run", "down"]
        assert shell("gpupool up").returncode == 2
        for line in (lines[0], lines[2], lines[3] + " --keep", "gpupool up", lines[0]):
            done = shell(line)
            assert done.returncode == 0, (line, done.stderr)
    finally:
        assert shell("gpupool down").returncode == 0
    assert not (tmp_path / ".local" / "state" / "gpupool-up").exists()
    assert not (tmp_path / ".config" / "gpupool" / "credentials.json").exists()
