"""Runs a library's own tests through the array door, and prints one row of a table.

    python tests/array_suite/run_library.py FOLDER [--python PYTHON] [--name NAME] [--late]
        [--seconds N] [--test-seconds N] [PYTEST ARGUMENTS]

FOLDER is a checkout or an unpacked source archive of a library; pytest runs in it. PYTHON is that
of an environment with the library's packages, pytest and NumPy; the real CuPy is not needed there.
Within `gpupool run` the tests use that pool; else a worker of two emulated GPUs starts beside them.
Each call waits for its own error, so that no test fails for another; `--late` is the default mode
of the door. A test that takes longer than `--test-seconds` has failed where pytest-timeout is
installed. After `--seconds` the run is cut, and the row says so. What this program does not know
are arguments of pytest.

The rows are those of the table of known libraries in docs/results/array-door.md.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "array_api" / "door_kit.py"
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
OUTCOMES = "GPUPOOL_LIBRARY_OUTCOMES"
RUN_S, TEST_S = 540, 60
REASONS = 3
END_S = 10
ENDED = (0, 1, 2, 5)
"""Exit codes of a pytest run that ends by itself: all passed, failures, import errors, no tests."""
REASON_LENGTH = 90


@dataclass(frozen=True, slots=True)
class Result:
    """Test outcomes of a library: counts, and the most frequent last lines of failures."""

    passed: int
    failed: int
    skipped: int
    reasons: tuple[tuple[str, int], ...]
    cut: bool

    def row(self, name: str, version: str, date: str) -> str:
        """Return the row of the table."""
        why = "; ".join(f"{count}x {reason}" for reason, count in self.reasons)
        cut = " (cut)" if self.cut else ""
        return f"| {name} | {version} | {self.passed}{cut} | {self.failed} | {why} | {date} |"


def pytest_runtest_logreport(report: Any) -> None:
    """Write a line for each test, where this file is pytest's plugin."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
        _write(report, outcome)


def pytest_collectreport(report: Any) -> None:
    """Write a line for a file that cannot be imported."""
    if report.failed:
        _write(report, "failed")


def _write(report: Any, outcome: str) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (
        crash.message.splitlines()[:1] if crash is not None else report.longreprtext.splitlines()
    )
    line = {"test": report.nodeid, "outcome": outcome, "error": lines[-1] if lines else ""}
    with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def counted(lines: list[str], cut: bool) -> Result:
    """Count outcomes; a test that passed and could not be torn down has failed."""
    found: dict[str, str] = {}
    errors: Counter[str] = Counter()
    for each in map(json.loads, lines):
        if found.get(each["test"]) != "failed":
            found[each["test"]] = each["outcome"]
        if each["outcome"] == "failed":
            errors[shortened(each["error"])] += 1
    numbers = Counter(found.values())
    reasons = tuple(errors.most_common(REASONS))
    return Result(numbers["passed"], numbers["failed"], numbers["skipped"], reasons, cut)


def shortened(error: str) -> str:
    """Return an error message without numbers, addresses and paths, to group similar errors."""
    plain = re.sub(r"0x[0-9a-f]+|\d[\d.,e+-]*", "N", error.removeprefix("E").strip())
    return re.sub(r"(/[\w.-]+){2,}", "PATH", plain).replace("|", "/")[:REASON_LENGTH]


def version_of(folder: Path, python: str, name: str) -> str:
    """Return the version that is installed, and the commit of a checkout."""
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    argv = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    return " ".join(filter(None, [done.stdout.strip(), commit])) or "unknown"


@contextlib.contextmanager
def agent() -> Generator[str]:
    """Give the socket of the pool that this runs in, or of a worker that starts for it."""
    if "GPUPOOL_AGENT" in os.environ:
        yield os.environ["GPUPOOL_AGENT"]
        return
    with subprocess.Popen(
        [sys.executable, str(KIT), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        yield worker.stdout.readline().strip()


def run(
    folder: Path, arguments: list[str], *, python: str, seconds: float, test_s: int, late: bool
) -> Result:
    """Run pytest in a folder."""
    with tempfile.TemporaryDirectory() as work, agent() as socket:
        lines = Path(work) / "outcomes.jsonl"
        lines.touch()
        path = [str(DROPIN), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "GPUPOOL_AGENT": socket,
            "GPUPOOL_BLOCKING": "" if late else "1",
            OUTCOMES: str(lines),
        }
        argv = [python, "-m", "pytest", "-q", "--tb=short", "-p", "run_library"]
        has_timeouts = [python, "-c", "import pytest_timeout"]
        if not subprocess.run(has_timeouts, capture_output=True, check=False).returncode:
            argv += ["--timeout", str(test_s)]
        argv += ["-p", "no:cacheprovider", "--continue-on-collection-errors", *arguments]
        # A group of its own: what a library's tests start ends with them.
        process = subprocess.Popen(argv, cwd=folder, env=environment, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"cut after {seconds:.0f} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)
        cut = process.returncode not in ENDED
        return counted(lines.read_text(encoding="utf-8").splitlines(), cut)


def main() -> int:
    """Run the command line; the exit status is 1 if a test failed."""
    parser = argparse.ArgumentParser(description="Run a library's tests through the array door.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable, help="of the library's environment")
    parser.add_argument("--name", help="of the library's package; by default the folder's")
    parser.add_argument("--late", action="store_true", help="errors come late, as by default")
    parser.add_argument("--seconds", type=float, default=RUN_S, help="of the whole run")
    parser.add_argument("--test-seconds", type=int, default=TEST_S, help="of one test")
    options, arguments = parser.parse_known_args()
    name = options.name or options.folder.resolve().name
    result = run(
        options.folder,
        arguments,
        python=options.python,
        seconds=options.seconds,
        test_s=options.test_seconds,
        late=options.late,
    )
    version = version_of(options.folder, options.python, name)
    print("\n" + result.row(name, version, time.strftime("%Y-%m-%d")))
    return int(result.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
