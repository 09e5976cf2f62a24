"""What is written down is what the program does."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.cli.main import COMMANDS
from gpupool.cli.reference import reference

ROOT = Path(__file__).resolve().parent.parent


def test_cli_reference_is_what_help_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    # In a process of its own, because click keeps what other tests made of a command's options.
    argv = [sys.executable, "-m", "gpupool.cli.reference"]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert written.rstrip("\n") == made.rstrip("\n"), "write it anew with: make docs"


def test_every_command_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    named = set(re.findall(r"\bgpupool ([a-z]+)\b", code))
    assert {"join", "run", "demo", "token", "login"} <= named
    assert named <= {*COMMANDS, "token"}, named - set(COMMANDS)


def test_readme_names_the_two_commands_and_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert f"\n{target}:" in makefile
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / path).exists(), f"README links to {path}"


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "help"])
def test_every_command_has_a_help_text(name: str) -> None:
    assert f"## gpupool {name}\n" in reference()


def test_the_service_file_runs_a_command_that_exists() -> None:
    text = (ROOT / "packaging" / "gpupool.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=\S*/gpupool (\w+)", text, re.M)
    assert command is not None
    assert command[1] in COMMANDS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_service_file(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "gpupool.service").read_text(encoding="utf-8")
    unit = tmp_path / "gpupool.service"
    unit.write_text(text.replace("/opt/gpupool/bin/gpupool", shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_examples_keep_their_lines() -> None:
    text = reference()
    assert "\\b" not in text
    lines = [line.strip() for line in text.splitlines()]
    assert "gpupool run -- python train.py                  one whole GPU" in lines
