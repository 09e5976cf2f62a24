"""How soon `gpupool run` starts its program: after the grant, and in all, beside the program alone.

    python tests/benchmarks/starting.py [--runs 40] [--csv FILE]

Three `gpupool join` servers with emulated GPUs on loopback, one `gpupool run` after the other. The
grant's time is the table's, taken by the server that proposed it; the program's is the clock of the
same machine when it runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from results import Results, add_options

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cli.conftest import LivePool

BUDGET_MS = 300
PROGRAMS = {
    "date": ["date", "+%s%N"],
    "python": [sys.executable, "-c", "import time; print(time.time_ns())"],
    "python, array door": [
        sys.executable,
        "-c",
        "import time; began = time.time_ns(); import cupy; cupy.ones(1).sum().get(); print(began)",
    ],
}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the middle, the 99th percentile and the worst of some milliseconds."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


def words(values: Sequence[float]) -> str:
    """Return the quantiles of some milliseconds in words."""
    return "  ".join(f"{name} {figure:6.0f} ms" for name, figure in quantiles(values).items())


def measure(pool: LivePool, name: str, command: list[str], runs: int, results: Results) -> None:
    """Print one program's figures."""
    alone: list[float] = []
    whole: list[float] = []
    after_grant: list[float] = []
    for _ in range(runs):
        began = time.monotonic()
        if "door" not in name:
            subprocess.run(command, check=True, capture_output=True, env=pool.env)
            alone.append((time.monotonic() - began) * 1000)
        began = time.monotonic()
        done = pool.run("run", "-n", "1", "-p", "0.5", "--", *command)
        whole.append((time.monotonic() - began) * 1000)
        assert done.returncode == 0, done.stderr
        started_ms = int(done.stdout) / 1e6
        events = pool.view()["events"]
        granted_ms = [float(e["at"]) for e in events if e["kind"] == "granted"][-1]
        after_grant.append(started_ms - granted_ms)
    print(f"{name:20s} runs after its grant: {words(after_grant)}  (budget {BUDGET_MS})")
    print(f"{name:20s} gpupool run, in all:  {words(whole)}")
    if alone:
        print(f"{name:20s} alone:                {words(alone)}")
    for metric, figure in quantiles(after_grant).items():
        budget = f"{BUDGET_MS} ms" if metric == "max" else ""
        results.add(name, f"grant to program, {metric}", figure, "ms", budget=budget)
    native = quantiles(alone) if alone else {}
    for metric, figure in quantiles(whole).items():
        results.add(name, f"in all, {metric}", figure, "ms", native=native.get(metric))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("starting.py", options)
    print(f"load average {os.getloadavg()[0]:.1f}, {options.runs} runs each, n 3 servers")
    with tempfile.TemporaryDirectory(prefix="gpupool-starting-") as folder:
        pool = LivePool(Path(folder))
        try:
            pool.start()
            for name, command in PROGRAMS.items():
                measure(pool, name, command, options.runs, results)
        finally:
            pool.stop()


if __name__ == "__main__":
    main()
