"""Runs public libraries' own tests natively, through a pool and on emulated GPUs; prints a table.

    python tests/array_suite/run_library.py FOLDER [NAME ...] [--python PYTHON]
        [--on native,pool,emulated] [--seconds N] [--test-seconds N] [--at-once N] [--processes N]

FOLDER has a checkout of each library, named as in libraries.toml; the libraries without one are
left out. PYTHON is that of an environment with their packages, pytest and NumPy. "Native" needs
the real CuPy there and a GPU; "pool" takes a quarter of a GPU of the pool that `gpupool run` finds;
"emulated" needs neither. Each call waits for its own error, so that no test fails for another. A
test that takes longer than `--test-seconds` has failed where pytest-timeout is installed. After
`--seconds` a run is cut, and the row says so.

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
import tomllib
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPUPOOL = [sys.executable, "-m", "gpupool.cli.main"]
BEFORE = {
    "native": [],
    "pool": [*GPUPOOL, "run", "-q", "--door", "arrays", "-p", "0.25", "--"],
    "emulated": [*GPUPOOL, "emulate", "--gpus", "2", "--"],
}
OUTCOMES = "GPUPOOL_LIBRARY_OUTCOMES"
RUN_S, TEST_S = 540, 60
REASONS = 3
END_S = 10
ENDED = (0, 1, 2, 4, 5)
"""Exit codes of a pytest run that ends by itself; -9 and others are of a run that was cut."""
USAGE_ERROR = 4
NOT_STARTED = {"test": "", "outcome": "failed", "error": "pytest refused the arguments: see stderr"}
REASON_LENGTH = 90


@dataclass(frozen=True, slots=True)
class Result:
    """Test outcomes of a library: counts, and the most frequent last lines of failures."""

    passed: int
    failed: int
    skipped: int
    reasons: tuple[tuple[str, int], ...]
    cut: bool

    def cell(self) -> str:
        """Return the cell of the table: the tests that passed and those that failed."""
        return f"{self.passed}, {self.failed}" + (" (cut)" if self.cut else "")

    def why(self) -> str:
        """Return the most frequent reasons in words."""
        return "; ".join(f"{count}x {reason}" for reason, count in self.reasons)


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
    lines = (crash.message if crash is not None else report.longreprtext).splitlines()
    line = {
        "test": report.nodeid,
        "outcome": outcome,
        "error": lines[0 if crash else -1] if lines else "",
    }
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
    """Return the commit of a checkout, else the version that is installed."""
    argv = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return commit or done.stdout.strip() or "unknown"


def arguments(
    library: dict[str, Any], on: str, python: str, test_s: int, processes: int = 1
) -> list[str]:
    """Return the command line of a library's tests; a test is bounded where pytest can do that."""
    argv = [*BEFORE[on], python, "-m", "pytest", "-q", "--tb=short", "-p", "run_library"]
    has_timeouts = [python, "-c", "import pytest_timeout"]
    if not subprocess.run(has_timeouts, capture_output=True, check=False).returncode:
        argv += ["--timeout", str(test_s)]
    if processes > 1:
        argv += ["-n", str(processes)]
    argv += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return [*argv, *library["arguments"]]


def run(folder: Path, library: dict[str, Any], argv: list[str], seconds: float) -> Result:
    """Run the tests of a library, as libraries.toml has it, in its folder."""
    with tempfile.TemporaryDirectory() as work:
        lines = Path(work) / "outcomes.jsonl"
        lines.touch()
        own = folder / library["path"] if "path" in library else ""
        path = [str(own), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, **library.get("environment", {})}
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "GPUPOOL_BLOCKING": "1",
            OUTCOMES: str(lines),
        }
        # A group of its own: what a library's tests start ends with them.
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, start_new_session=True, stdout=sys.stderr
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"cut after {seconds:.0f} s\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(END_S)
        outcomes = lines.read_text(encoding="utf-8").splitlines()
        if process.returncode == USAGE_ERROR:
            outcomes.append(json.dumps(NOT_STARTED))
        return counted(outcomes, process.returncode not in ENDED)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run public libraries' tests on CuPy.")
    parser.add_argument("folder", type=Path, help="of the libraries' checkouts")
    parser.add_argument("names", nargs="*", help="of libraries; by default all")
    parser.add_argument("--python", default=sys.executable, help="of the libraries' environment")
    parser.add_argument("--on", default="emulated", help="native, pool, emulated, or several")
    parser.add_argument("--seconds", type=float, default=RUN_S, help="of one library's run")
    parser.add_argument("--test-seconds", type=int, default=TEST_S, help="of one test")
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--processes", type=int, default=1, help="of pytest-xdist in each run")
    options = parser.parse_args()
    places = options.on.split(",")
    known = tomllib.loads((Path(__file__).parent / "libraries.toml").read_text(encoding="utf-8"))
    names = [
        name
        for name in options.names or known
        if (options.folder / name).is_dir() or "path" not in known[name]
    ]
    with ThreadPoolExecutor(options.at_once) as pool:
        runs: dict[tuple[str, str], Future[Result]] = {}
        for name in names:
            library = known[name]
            folder = options.folder / name if "path" in library else options.folder
            for on in places:
                limits = options.test_seconds, options.processes
                argv = arguments(library, on, options.python, *limits)
                runs[name, on] = pool.submit(run, folder, library, argv, options.seconds)
        for name in names:
            found = [runs[name, on].result() for on in places]
            cells = " | ".join(each.cell() for each in found)
            version = version_of(options.folder / name, options.python, name)
            date = time.strftime("%Y-%m-%d")
            print(f"| {name} | {version} | {cells} | {found[-1].why()} | {date} |", flush=True)


if __name__ == "__main__":
    main()
