"""Shared resources of tests are sound for each of them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = """
import contextlib
import pytest
from tests.shared import Shared

class Pool:
    count = ended = 0

    def __init__(self):
        Pool.count += 1
        self.number = Pool.count
        self.wrong = []  # at each look from now on

@contextlib.contextmanager
def started():
    yield Pool()
    Pool.ended += 1

SHARED = Shared(started, lambda pool: pool.wrong.pop(0) if pool.wrong else "", settle_s=0.2)

@pytest.fixture
def pool(request):
    yield from SHARED.lend(request)

def test_1_starts_it(pool):
    assert pool.number == 1

def test_2_leaves_what_is_over_soon(pool):
    assert pool.number == 1
    pool.wrong = ["a lease is ending", "a lease is ending"]

def test_3_fails_and_breaks_it(pool):
    assert pool.number == 1
    pool.wrong = ["server b has ended"] * 1000
    raise SystemError("its failure")

def test_4_gets_a_new_one(pool):
    assert pool.number == 2
    assert Pool.ended == 1

def test_5_passes_and_breaks_it(pool):
    assert pool.number == 2
    pool.wrong = ["server c has ended"] * 1000

def test_6_gets_a_new_one(pool):
    assert pool.number == 3
    assert Pool.ended == 2

def test_7_fails_and_breaks_nothing(pool):
    raise SystemError("its failure")

def test_8_has_the_same(pool):
    assert pool.number == 3

def test_9_was_the_last_one():
    SHARED.end()
    SHARED.end()
    assert Pool.ended == 3
"""


def test_what_a_test_breaks_the_next_one_gets_anew(tmp_path: Path) -> None:
    (tmp_path / "test_sharing.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.shared", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly"]  # their order is what they test
    done = subprocess.run(
        [*command, "-rfE", "--color=no", "-c", "/dev/null", "--rootdir", ".", "test_sharing.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 failed, 7 passed, 1 error" in done.stdout, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert said == [
        "FAILED test_sharing.py::test_3_fails_and_breaks_it - SystemError: its failure",
        "FAILED test_sharing.py::test_7_fails_and_breaks_nothing - SystemError: its failure",
        "ERROR test_sharing.py::test_5_passes_and_breaks_it - Failed: the test passed, and "
        "left what others use unsound: server c has ended",
    ]
