"""Blocks of the pages that are marked as tested run as they are written, with a pool."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"start.md": "", "user.md": "gpupool up --servers 2 --emulate 2:8G"}
"""Pages with such blocks, and what a reader has done before."""


def blocks_of(page: str) -> list[str]:
    """Return the marked blocks of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"<!-- tested -->\n```sh\n(.*?)```", text, re.DOTALL)


def test_pages_with_marked_blocks_are_run() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "<!-- tested" in path.read_text()]
    assert {path.name for path in pages} == set(PAGES)
    for path in pages:
        assert len(blocks_of(path.name)) == path.read_text().count("<!-- tested")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a home with the programs that the pages name, without a pool in the end."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "kmeans.py", tmp_path / "train.py")
    yield tmp_path
    run("gpupool down", tmp_path)


def run(script: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run a block in a shell that ends with the first command that fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
    env |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    argv = ["sh", "-e", "-c", script]
    return subprocess.run(argv, cwd=home, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_as_they_are_written(page: str, home: Path) -> None:
    for block in filter(None, [PAGES[page], *blocks_of(page)]):
        done = run(block, home)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
