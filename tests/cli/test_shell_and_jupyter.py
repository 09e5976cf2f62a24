"""Shells that show their lease, and Jupyter kernels: installed files, and whether they run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpupool.cli.commands.jupyter import command as jupyter
from gpupool.cli.commands.jupyter import kernel_dir
from gpupool.cli.commands.run import marked_shell
from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.remoting.program.program_run import program_text

GPUPOOL = [sys.executable, "-m", "gpupool.cli.main"]


# --- shells ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bash", "dash", "zsh", "fish"])
def test_the_prompt_shows_the_lease(name: str, terminal: Any, tmp_path: Path) -> None:
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / ".bashrc").write_text('PS1="mine> "\nPROMPT_COMMAND="true"\nalias own="echo OWN"\n')
    (tmp_path / ".zshrc").write_text('PROMPT="mine> "\nalias own="echo OWN"\n')
    with marked_shell(shell) as (arguments, env):
        base = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TERM": "dumb"}
        terminal.spawn(arguments, base | env | {"GPUPOOL_LEASE": "7f3a"})
        terminal.read_until("(gpu 7f3a) ")
        if name in ("bash", "zsh"):
            terminal.read_until("(gpu 7f3a) mine>")
            terminal.type(b"own\n")
            terminal.read_until("OWN")
        terminal.type(b"exit 3\n")
        assert terminal.wait() == 3


def test_an_unknown_shell_starts_as_it_is() -> None:
    with marked_shell("/opt/strange/xonsh") as (arguments, env):
        assert (arguments, env) == (["/opt/strange/xonsh"], {})


def test_programs_are_called_by_their_names() -> None:
    cases = {
        "train.py": ["/usr/bin/python3", "-u", "/home/ada/train.py", "--epochs", "3"],
        "": ["/bin/sh", "-c", "cd x; python train.py"],
    }
    for script, arguments in cases.items():
        expected = f"{os.path.basename(arguments[0])} {script}".rstrip()
        assert program_text(tuple(arguments)) == expected


# --- kernels --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "share" / "jupyter"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    return folder


def install(*arguments: str) -> str:
    result = CliRunner().invoke(jupyter, ["install", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def spec_of(name: str = "gpupool") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kernel_dir(name) / "kernel.json").read_text())
    return found


@pytest.mark.process
def test_a_kernel_asks_for_what_was_asked_for(data_dir: Path) -> None:
    install(
        "-n", "2", "-p", "0.5", "--python", sys.executable, "--filter", "gpu.memory >= 40GiB",
        "--server", "a", "--wait", "90s", "--across",
    )  # fmt: skip
    spec = spec_of()
    assert spec["interrupt_mode"] == "message"
    assert spec["display_name"] == "Python on 2 x 0.5 GPU"
    ours, kernel = spec["argv"][: spec["argv"].index("--")], spec["argv"][-5:]
    assert ours[:5] == [sys.executable, "-m", "gpupool.cli.main", "run", "--lazy"]
    assert kernel == [
        sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
    ]  # fmt: skip
    for option, value in {
        "--count": "2", "--fraction": "0.5", "--idle-timeout": "1800s", "--server": "a",
        "--filter": "gpu.memory >= 40GiB", "--wait": "90s",
    }.items():  # fmt: skip
        assert ours[ours.index(option) + 1] == value
    assert "--across" in ours


def test_what_a_kernel_asks_for_is_understood(data_dir: Path) -> None:
    """The options come back as they were, through the real command line."""
    install("-n", "2", "-m", "20GiB", "--python", sys.executable, "--idle-timeout", "2h")
    argv = spec_of()["argv"]
    done = subprocess.run(
        [*argv[: argv.index("--")], "--credentials", "/nowhere", "--", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")  # lazy: a program without a GPU needs no pool


@pytest.mark.process
def test_only_our_own_kernels_are_touched(data_dir: Path) -> None:
    install("--name", "big", "--python", sys.executable)
    install("--name", "big", "-n", "4", "--python", sys.executable)  # anew
    assert spec_of("big")["display_name"] == "Python on 4 GPUs"
    other = kernel_dir("python3")
    other.mkdir(parents=True)
    (other / "kernel.json").write_text("{}")
    for arguments in (["install", "--name", "python3"], ["remove", "--name", "python3"]):
        with pytest.raises(GpupoolError, match="not ours"):
            CliRunner().invoke(jupyter, arguments, catch_exceptions=False)
    with pytest.raises(UsageError, match="no name for a kernel"):
        CliRunner().invoke(jupyter, ["install", "--name", "../x"], catch_exceptions=False)
    assert CliRunner().invoke(jupyter, ["remove", "--name", "big"]).exit_code == 0
    assert not kernel_dir("big").exists()
    with pytest.raises(GpupoolError, match="there is no kernel big"):
        CliRunner().invoke(jupyter, ["remove", "--name", "big"], catch_exceptions=False)
