"""Lints the files of a change and tests its rooms in seconds: ``make quick``.

The change is what differs from the main branch. The tests of a room import from it, and lie in the
folder of its top folder, in that of ``cli``, which is above all, or in none. Those that start
processes are left out, and properties try few examples.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("pool", "consensus", "remoting", "monitoring", "cli", "simulations")
OPTIONS = ("-q", "--hypothesis-profile=quick", "-m", "not (process or slow or long or gpu)")
SEEDS = 3


def lines(*command: str) -> list[str]:
    """Return a command's output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def changed() -> list[str]:
    """Return the files that a change touches; it may have removed one."""
    base = lines("git", "merge-base", "HEAD", "origin/main") or ["HEAD"]
    new = lines("git", "ls-files", "--others", "--exclude-standard")
    return sorted({*lines("git", "diff", "--name-only", *base), *new})


def found_for(name: str, texts: dict[str, str]) -> set[str]:
    """Return the tests of a file's room, or those that name a file that is in none."""
    top, room, *_ = path = (*Path(name).parts, "")
    stem, where = Path(name).stem, ""
    if top in FOLDERS:
        where = rf"tests/({top}/|cli/|\w+\.py)"
        wanted = room + r"\b" if len(path) > 3 else rf".*\b{stem}\b"
        wanted = rf"\bgpupool\.{top}(\.| import ){wanted}"
    elif top == "tests" and name.endswith(".py"):
        wanted = rf"(?m)^(from|import) .*\b{stem}\b"
    else:
        wanted = rf"\b{re.escape(Path(name).name)}\b"
    return {
        test
        for test, text in texts.items()
        if test in (name, "tests/test_docs.py" if name.endswith(".md") else name)
        or test.startswith(f"tests/{top}/{room}/")
        or (re.match(where, test) and re.search(wanted, text))
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out most seeds, which are examples too."""
    of_tests = [getattr(getattr(item, "callspec", None), "indices", {}) for item in items]
    items[:] = [each for each, at in zip(items, of_tests, strict=True) if at.get("seed", 0) < SEEDS]


def main() -> None:
    """Lint, then test."""
    os.chdir(ROOT)
    names = changed()
    python = [name for name in names if name.endswith(".py") and Path(name).exists()]
    for words in (("check",), ("format", "--check")) if python else ():
        ruff = Path(sys.executable).with_name("ruff")
        if subprocess.run([ruff, *words, *python], check=False).returncode:
            sys.exit(1)
    texts = {path.as_posix(): path.read_text() for path in Path("tests").rglob("test_*.py")}
    tests = set[str]().union(*(found_for(name, texts) for name in names))
    options = [*OPTIONS, "tests/test_layout.py", *sorted(tests)]
    sys.exit(pytest.main(options, plugins=[sys.modules[__name__]]))


if __name__ == "__main__":
    main()
