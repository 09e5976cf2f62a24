"""How soon `gpupool run` starts its program: after the grant, and in all, beside the program alone.

    python tests/benchmarks/starting.py [--runs 40] [--csv FILE] [--gpu]

Three `gpupool join` servers with emulated GPUs on loopback, one `gpupool run` after the other. The
grant's time is the table's, taken by the server that proposed it; the program's is the clock of the
same machine when it runs. CPU is that of `gpupool run` and its program. `--gpu` has one server with
the machine's GPUs, by TCP with TLS, and a CUDA program that does next to nothing, natively and on a
quarter of one GPU, in turns.
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
from tests.gpu.leasing import RealPool

from gpupool.remoting.driver_api import build

ROOT = Path(__file__).resolve().parents[2]
BUDGET_MS = 300
ADDED_MS = 250
"""Budget for the time that `gpupool run` adds to a program."""

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


def one_run(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Return how long a command took, and its processor time, in milliseconds."""
    began = time.monotonic()
    _, status, usage = os.wait4(os.posix_spawnp(command[0], command, env), 0)
    assert status == 0, command
    return (time.monotonic() - began) * 1000, (usage.ru_utime + usage.ru_stime) * 1000


def measure_gpu(folder: Path, runs: int, results: Results) -> None:
    """Print the time that `gpupool run` adds to a nearly empty CUDA program."""
    library = build.ensure()
    program = folder / "trivial"
    source = ROOT / "tests/gpu/cuda_programs/trivial.c"
    subprocess.run(["cc", "-O2", "-o", str(program), str(source), str(library)], check=True)
    folder.chmod(0o711)
    pool = RealPool(folder / "pool", encryption="tls", remote=True)
    env = pool.env | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {
        "native": [str(program)],
        "gpupool run": pool.words([str(program)], "-p", "0.25"),
        "gpupool run true": pool.words(["true"], "-p", "0.25"),
    }
    try:
        for command in commands.values():
            one_run(command, env)  # what is compiled, and a spare worker
        turns = [{name: one_run(each, env) for name, each in commands.items()} for _ in range(runs)]
    finally:
        pool.stop()
    wall = {name: [turn[name][0] for turn in turns] for name in commands}
    for name in commands:
        cpu = statistics.median(turn[name][1] for turn in turns)
        print(f"{name:20s} {words(wall[name])}  CPU {cpu:6.0f} ms")
        native = statistics.median(wall["native"]) if name == "gpupool run" else None
        results.add("trivial.c", f"{name}, p50", statistics.median(wall[name]), "ms", native=native)
    added = [turn["gpupool run"][0] - turn["native"][0] for turn in turns]
    print(f"{'added':20s} {words(added)}  (budget {ADDED_MS})")
    added_ms = statistics.median(added)
    results.add("trivial.c", "added, p50", added_ms, "ms", budget=f"{ADDED_MS} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--gpu", action="store_true", help="a real GPU instead of emulated ones")
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("starting.py", options)
    print(f"load average {os.getloadavg()[0]:.1f}, {options.runs} runs each, n 3 servers")
    with tempfile.TemporaryDirectory(prefix="gpupool-starting-") as folder:
        if options.gpu:
            measure_gpu(Path(folder), options.runs, results)
            return
        pool = LivePool(Path(folder))
        try:
            pool.start()
            for name, command in PROGRAMS.items():
                measure(pool, name, command, options.runs, results)
        finally:
            pool.stop()


if __name__ == "__main__":
    main()
