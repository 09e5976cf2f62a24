"""No process that a command starts has a token among its arguments, which all users can read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import commands
from tests.commands import GPUPOOL

import gpupool
from gpupool.cli.lib.background_pool import BackgroundPool, start_join

TOKEN = re.compile(r"gpupool-[a-z2-7]{20}")


def arguments_of_processes(mark: str) -> list[str]:
    """Return the arguments of all processes that have ``mark`` among them."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if mark in words:
            found.append(words)
    return found


def test_a_server_reads_its_token_from_a_pipe(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read(), file=sys.stderr)"
    said = tmp_path / "said"
    for token, expected in (
        (None, "[] \n"),
        ("gpupool-secret", "['--token', '-'] gpupool-secret\n"),
    ):
        with said.open("w") as errors:
            argv = [sys.executable, "-c", code]
            process = start_join(argv, token, env={}, cwd=tmp_path, errors=errors)
            assert process.wait() == 0
        assert said.read_text() == expected


def test_a_server_that_has_ended_takes_no_token(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as errors:
        process = start_join(["/bin/false"], "x" * 1000, env={}, cwd=tmp_path, errors=errors)
        assert process.wait() == 1


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_no_server_of_a_background_pool_has_a_token_among_its_arguments(tmp_path: Path) -> None:
    pool = BackgroundPool(tmp_path / "pool")
    try:
        pool.start(2, ["--emulate", "1:1G"], lambda at: gpupool.Pool(credentials=at).status())
        found = arguments_of_processes(str(tmp_path / "pool"))
    finally:
        pool.stop(remove=True)
    assert len(found) >= 2
    assert [words for words in found if TOKEN.search(words)] == []


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["login", "nonsense"], '"gpupool login -" reads stdin'),
        (["join", "--witness", "--token", "nonsense"], "--token-file FILE"),
        (["rejoin", "--token", "nonsense"], "--token-file FILE"),
        (["login", "-"], ""),
        (["join", "--witness", "--token", "-"], ""),
        (["join", "--witness", "--token-file", "token"], ""),
        (["join", "--witness"], ""),  # by a variable
    ],
)
def test_a_token_among_the_arguments_is_warned_of(
    tmp_path: Path, arguments: list[str], instead: str
) -> None:
    given = tmp_path / "token"
    given.write_text("nonsense")
    env = {name: text for name, text in os.environ.items() if not name.startswith("GPUPOOL_")}
    env |= {"HOME": str(tmp_path), "GPUPOOL_CREDENTIALS": str(tmp_path / "me.json")}
    if arguments[0] != "login":
        arguments = [*arguments, "--state-dir", str(tmp_path / "state")]
    env["GPUPOOL_JOIN_TOKEN"] = "nonsense"
    done = commands.finish([*GPUPOOL, *arguments], env=env, cwd=tmp_path, timeout=60)
    assert done.returncode != 0
    warned = "which all users of this machine can read" in done.stderr
    assert warned is bool(instead), done.stderr
    assert instead in done.stderr


READS_ITS_TOKEN = """
import os, subprocess
from gpupool.cli.commands import join
from gpupool.cli.main import main

def run(options, log_format, warning):
    print(options.token, "GPUPOOL_JOIN_TOKEN" in os.environ)
    print("gpupool-secret" in subprocess.run(["env"], capture_output=True, text=True).stdout)
    print(b"gpupool-secret" in open("/proc/self/environ", "rb").read())
    print(b"PATH=" in open("/proc/self/environ", "rb").read())

join._run = run
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_token_of_the_environment_is_gone_once_it_is_read(tmp_path: Path) -> None:
    env = {**os.environ, "GPUPOOL_JOIN_TOKEN": "gpupool-secret"}
    command = [sys.executable, "-c", READS_ITS_TOKEN, "join", "--state-dir", str(tmp_path / "a")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["gpupool-secret", "False", "False", "False", "True"], done.stderr
