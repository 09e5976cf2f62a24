"""A forked command equals a new process, for the command and for the tests."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import commands
from tests.commands import FORKS_OF_THIS, GPUPOOL, SOURCES, Forks

ENVIRONMENT = {**os.environ, "GPUPOOL_CREDENTIALS": "/none/here.json"}
Start = Callable[..., "subprocess.Popen[Any]"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not FORKS_OF_THIS.can(GPUPOOL, ENVIRONMENT), reason="no command is forked here"
    ),
]


def ordinary(words: list[str], **options: Any) -> "subprocess.Popen[Any]":
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, **pipes, **options)


BOTH = pytest.mark.parametrize("start", [commands.start, ordinary])


def facts(process: "subprocess.Popen[Any]") -> dict[str, str]:
    """Return Linux's status of the process itself, apart from its numbers, words and memory."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    told = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    same = ("PPid", "TracerPid", "Uid", "Gid", "Umask", "Groups", "SigBlk", "SigIgn", "SigCgt")
    return {name: told[name] for name in (*same, "Threads", "NoNewPrivs", "CapEff")}


def files(process: "subprocess.Popen[Any]") -> list[str]:
    """Return the targets of its descriptors, without numbers.

    libffi from 3.5 on keeps one of itself, once a callback was made, so the others have moved on.
    """
    opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    return sorted(re.sub(r"\d+", "", target) for target in opened if "libffi" not in target)


@BOTH
def test_words_output_and_exit_code_are_the_commands(start: Start) -> None:
    with start([*GPUPOOL, "version", "--json"], env=ENVIRONMENT) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("{")
    with start([*GPUPOOL, "status"], env=ENVIRONMENT) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "/none/here.json" in err


@BOTH
def test_the_folder_is_its_own(start: Start, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[defaults]\nmax_gpu = 1\n")
    words = [*GPUPOOL, "policy", "check", "p.toml"]
    with start(words, env=ENVIRONMENT, cwd=tmp_path) as process:
        _out, err = process.communicate(timeout=60)
    assert "did you mean" in err


def test_linux_tells_no_difference(tmp_path: Path) -> None:
    """Of parents, users, signals and files; both wait for input that nobody writes."""
    os.mkfifo(tmp_path / "pipe")
    words = [*GPUPOOL, "policy", "check", str(tmp_path / "pipe")]
    told: list[object] = []
    for start in (commands.start, ordinary):
        with (
            start(words, env=ENVIRONMENT, start_new_session=True) as process,
            (tmp_path / "pipe").open("wb", buffering=0) as pipe,
        ):
            # More than the pipe holds is written when the command reads. An open pipe says less:
            # it opens for the writer before the reader's file has its number.
            held = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
            assert pipe.write(b"#" * 2 * held) == 2 * held
            told.append((facts(process), files(process)))
            assert os.getsid(process.pid) == process.pid
            process.send_signal(signal.SIGTERM)
            told.append(process.wait(60))
    assert told[:2] == told[2:]


def test_what_only_a_new_process_reads_is_given_to_a_new_process() -> None:
    for name in ("PYTHONPATH", "LD_PRELOAD", "LC_ALL"):
        assert not FORKS_OF_THIS.can(GPUPOOL, ENVIRONMENT | {name: "/x"})
    assert not FORKS_OF_THIS.can([sys.executable, "-c", "pass"], ENVIRONMENT)
    with commands.start([*GPUPOOL, "version"], env=ENVIRONMENT) as process:
        assert isinstance(process, commands.Command)
        process.communicate(timeout=60)


def test_sources_on_pythons_path_are_those_of_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert Forks().can(GPUPOOL, other | {"PYTHONPATH": SOURCES})
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    assert Forks().can(GPUPOOL, other)
    assert not Forks().can(GPUPOOL, other | {"PYTHONPATH": "/x"})
