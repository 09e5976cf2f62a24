"""A library's own tests run through the array door, and are counted."""

import sys
from pathlib import Path

from tests.array_suite import run_library

TESTS = """
import cupy
import pytest

def test_that_passes():
    assert cupy.arange(3).sum() == 3

@pytest.mark.parametrize("n", [1, 2])
def test_that_fails(n):
    assert cupy.arange(3).sum() == n

def test_that_is_skipped():
    pytest.skip()
"""


def run(folder: Path, seconds: float) -> run_library.Result:
    (folder / "test_library.py").write_text(TESTS)
    (folder / "test_other.py").write_text("import no_such_module")
    library = {"arguments": ["-c", "/dev/null", "-p", "no:trio"]}
    argv = run_library.arguments(library, "emulated", sys.executable, 60)
    return run_library.run(folder, library, argv, seconds)


def test_outcomes_are_counted(tmp_path: Path) -> None:
    result = run(tmp_path, 120)
    assert (result.passed, result.failed, result.skipped) == (1, 3, 1)
    assert result.cell() == "1, 3"
    assert result.why().startswith("2x assert")
    assert "1x ModuleNotFoundError: No module named 'no_such_module'" in result.why()


def test_a_run_that_is_cut_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, 0)
    assert result.cut
    assert "(cut)" in result.cell()


def test_errors_of_one_kind_are_one_reason() -> None:
    first = run_library.shortened("E   ValueError: shape (3, 4) at 0x7f31 in /usr/lib/a.py")
    assert first == run_library.shortened("E  ValueError: shape (5, 6) at 0x80 in /home/me/b.py")
    lines = [
        '{"test": "a", "outcome": "passed", "error": ""}',
        '{"test": "a", "outcome": "failed", "error": "E  at teardown"}',
    ]
    result = run_library.counted(lines, cut=False)
    assert (result.passed, result.failed) == (0, 1)
