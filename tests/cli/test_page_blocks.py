"""Blocks of the pages that are marked as tested run as they are written, with a pool."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.page_blocks import ROOT, blocks_of, pages

PAGES = {
    path.name: [block for block in blocks_of(path) if block.kind == "tested"] for path in pages()
}
PLAIN = {name: blocks for name, blocks in PAGES.items() if blocks and name != "start.md"}
PROGRAM = "import cupy\nprint(cupy.arange(10).sum())\n"
POLICY = "[defaults]\nmax_gpus = 100\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Home:
    """The home directory of a reader that types the pages' commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, str] = {}
        for name in ("train.py", "evaluate.py"):
            (path / name).write_text(PROGRAM)
        (path / "new.toml").write_text(POLICY)
        shutil.copytree(ROOT / "examples", path / "examples")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
        self.env |= {"HOME": str(path), "EDITOR": "true", "VISUAL": "true"}
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"

    def run(self, script: str, stdin: str = "") -> str:
        """Run lines in a shell that ends with the first failing command; return the output."""
        words = ["sh", "-e", "-c", script]
        done = subprocess.run(
            words,
            cwd=self.path,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def what_names_stand_for(self) -> dict[str, str]:
        """Return the reader's replacement for each placeholder name of the pages."""
        self.run("gpupool token create --user spare")
        tokens = json.loads(self.run("gpupool token list --json"))["tokens"]
        state = self.path / ".local/state/gpupool-up/local-a"
        self.run(f"gpupool backup --history . --state-dir {state}")
        return {
            "gpu-1": "local-a",
            "7f3a": self.run(
                "lease=$(gpupool alloc -q); gpupool release $lease 2>/dev/null; echo $lease"
            ),
            "revoke ID": f"revoke {next(t['token'] for t in tokens if t['user'] == 'spare')}",
            "/var/lib/gpupool": str(state),
            "/etc/prometheus": str(self.path),
        }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Yield the home directory of a reader with a pool."""
    made = Home(tmp_path_factory.mktemp("home"))
    try:
        made.run("gpupool up")
        made.names = made.what_names_stand_for()
        yield made
    finally:
        made.run("gpupool down")


def test_the_start_page(tmp_path: Path) -> None:
    reader = Home(tmp_path)
    try:
        for block in PAGES["start.md"]:
            said = reader.run(block.script)
            assert [text for text in block.prints if text not in said] == [], said
    finally:
        reader.run("gpupool down")


def test_programs_of_the_python_page(home: Home) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    programs = re.findall(r"(?ms)^```python\n(.*?)^```$", page)
    assert len(programs) == 3
    for program in programs:
        if program.startswith("async "):
            body = textwrap.indent(program, "    ")
            program = f"import trio\nasync def main():\n{body}\ntrio.run(main)\n"
        (home.path / "program.py").write_text(f"import gpupool\n{program}")
        home.run("python program.py")


@pytest.mark.parametrize("page", PLAIN)
def test_blocks_run_as_they_are_written(page: str, home: Home) -> None:
    token = home.run("gpupool token create --operator --user ada 2>/dev/null")
    for block in PLAIN[page]:
        script = block.script
        for name, value in home.names.items():
            script = script.replace(name, value.strip())
        said = home.run(script, stdin=token)
        assert [text for text in block.prints if text not in said] == [], said
