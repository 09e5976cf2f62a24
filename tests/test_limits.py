"""A test that hangs in any wait is named, and the others run all the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = """
[pytest]
timeout = {limit}
timeout_method = signal
trio_mode = true
markers = slow: as in pyproject.toml
"""
WAITING = """
import subprocess, threading
import trio

def test_of_a_lock():
    threading.Event().wait()

async def test_of_trio():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
        await never_said()

async def never_said():
    await trio.sleep_forever()

async def test_in_virtual_time(autojump_clock):
    await trio.sleep(86_400)
    await trio.Event().wait()

def test_of_a_program_that_says_nothing():
    with subprocess.Popen(["sleep", "30"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()

def test_that_passes():
    pass
"""
UNENDING = """
import subprocess
import pytest

@pytest.fixture
def program():
    process = subprocess.Popen(["sleep", "30"])
    yield process
    process.wait()

def test_that_passes_before():
    pass

def test_of_a_program_that_nobody_ends(program):
    program.wait()

def test_that_passes_after():
    pass
"""


def run(
    folder: Path, text: str, *options: str, limit: float = 1.0
) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS.format(limit=limit))
    (folder / "test_hanging.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.limits", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-rfE", "--color=no", *options, "test_hanging.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_tests_that_wait_for_ever_fail_by_name(tmp_path: Path, processes: tuple[str, ...]) -> None:
    # The last of the three ends is half a second behind the second, which under load is too short
    # for pytest to write down where a test was. It has tests of its own below.
    (tmp_path / "conftest.py").write_text("from tests import limits\n\nlimits.LAST_PART = 60\n")
    done = run(tmp_path, WAITING, *processes)
    assert "4 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    failed = re.findall(
        r"^FAILED test_hanging.py::test_(\w+) - (?:Failed: )?Timeout", done.stdout, re.M
    )
    assert failed == ["of_a_lock", "of_trio", "in_virtual_time", "of_a_program_that_says_nothing"]
    # What an async test was waiting for.
    assert re.search(r"in never_said\n[ |]*await trio.sleep_forever\(\)\n", done.stdout)


def test_one_that_cannot_even_end_ends_its_process_which_says_where(tmp_path: Path) -> None:
    done = run(tmp_path, UNENDING)
    assert done.returncode == 1
    assert "Timeout (0:00:01.500000)!\n" in done.stderr
    assert re.search(r'test_hanging.py", line \d+ in program\n', done.stderr), done.stderr


@pytest.mark.long
def test_the_run_goes_on_with_another_process(tmp_path: Path) -> None:
    done = run(tmp_path, UNENDING, "-n", "1")
    # Its call failed, and then its fixture did not end.
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    named = "crashed while running 'test_hanging.py::test_of_a_program_that_nobody_ends'"
    assert named in done.stdout


@pytest.mark.parametrize("options", [(), ("--timeout", "0.5")])
def test_a_mark_says_more_than_the_settings_and_slow_tests_have_more_time(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    text = """
import pytest
from tests.limits import SLOW_LIMIT_S, limit_s

@pytest.mark.timeout(7)
@pytest.mark.slow
def test_that_says_so(request):
    assert limit_s(request.node) == 7

@pytest.mark.slow
def test_that_is_slow(request):
    assert limit_s(request.node) == SLOW_LIMIT_S

def test_that_says_nothing(request):
    assert limit_s(request.node) == %s
""" % (options[1] if options else 3)
    done = run(tmp_path, text, *options, limit=3)
    assert done.returncode == 0, done.stdout
