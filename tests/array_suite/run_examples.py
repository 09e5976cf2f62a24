"""Runs CuPy's own examples behind the array door, on emulated GPUs or a real one.

    python tests/array_suite/run_examples.py CUPY [--gpu] [--only NAME,...]

CUPY is a checkout of CuPy; it is only read, and nothing of it is copied into this project. Left out
are examples of libraries that the door does not have (cuTENSOR, cuSPARSELt, MPI, and cuSPARSE by
its own functions), of cuFFT's callbacks, and of nvcc. Those that plot get a stand-in for
matplotlib, which draws nothing. With ``--gpu`` each runs natively too, by the CuPy of this machine.
An example is right if it ends with status 0, and says the same words as natively: what it says in
numbers are mostly times. One that fails natively is not compared. Exit status 0 means that all
others were right, and that there are some.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
ends: Any = importlib.import_module("array_ends")

TWO = ("finance/monte_carlo_multigpu.py", "peer/peer_matrix.py")
"""Those of two GPUs, which run on emulated ones."""

STRUCTURES = "builtin_vectors complex_struct packed_matrix"
STREAMS = "cublas cufft cupy_event cupy_kernel cupy_memcpy curand cusolver map_reduce thrust"

EXAMPLES: dict[str, list[str]] = {
    "cg/cg.py": ["--max-iter", "50"],
    **{f"custom_struct/{name}.py": [] for name in STRUCTURES.split()},
    "finance/black_scholes.py": ["--n-options", "10000"],
    "finance/monte_carlo.py": ["--n-options", "20", "--n-samples-per-thread", "50"],
    TWO[0]: ["--n-options", "20", "--n-samples-per-thread", "50", "--gpus", "0", "1"],
    "gemm/sgemm.py": ["--m", "64", "--n", "96", "--k", "48"],
    "gmm/gmm.py": ["--num", "5000", "--max-iter", "10", "-o", "gmm.png"],
    TWO[1]: [],
    "kmeans/kmeans.py": ["--num", "20000", "-o", "kmeans.png"],
    **{f"stream/{name}.py": [] for name in STREAMS.split()},
}
"""Each with arguments by which it takes seconds on an emulated GPU."""

PYPLOT = "def __getattr__(name):\n    return lambda *args, **kwargs: None\n"
LIMIT_S = 300
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?|inf|nan")


def run(script: Path, words: list[str], stand_ins: str, door: str) -> tuple[int, str, float]:
    """Run an example; return its exit status, its output and its duration in seconds."""
    path = [stand_ins, *([str(ends.DROPIN)] if door else [])]
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, inherited])}
    if door:
        environment["GPUPOOL_AGENT"] = door
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=stand_ins, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, time.monotonic() - began


def words_of(text: str) -> str:
    """Return an example's output with numbers masked and whitespace normalized."""
    return " ".join(NUMBER.sub("#", text).split())


def main() -> int:
    """Run the examples; return how many were wrong, or 1 if none was right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cupy", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    wanted = [
        name for name in EXAMPLES if options.only in ("", name) or name in options.only.split(",")
    ]
    checkout = options.cupy.resolve()  # an example runs in a folder of its own
    if missing := [name for name in wanted if not (checkout / "examples" / name).is_file()]:
        parser.error(f"{options.cupy} has no examples/{missing[0]}")
    right = failed_natively = 0
    serve = [str(ends.KIT / "door_kit.py"), "2", "tcp"]
    if options.gpu:
        serve = [ends.ENDS, "--serve", "tcp", "--gpu"]
        wanted = [name for name in wanted if name not in TWO]
    with (
        tempfile.TemporaryDirectory() as folder,
        ends.process(*serve) as other,
    ):
        (Path(folder) / "matplotlib").mkdir()
        (Path(folder) / "matplotlib" / "__init__.py").write_text("def use(name): pass\n")
        (Path(folder) / "matplotlib" / "pyplot.py").write_text(PYPLOT)
        for name in wanted:
            script = checkout / "examples" / name
            native = run(script, EXAMPLES[name], folder, "") if options.gpu else None
            status, text, took = run(script, EXAMPLES[name], folder, other.said)
            same = native is None or words_of(native[1]) == words_of(text)
            fails = native is not None and native[0] != 0
            good = not status and same and not fails
            right += good
            failed_natively += fails
            beside = "" if native is None else f", natively status {native[0]} in {native[2]:.1f} s"
            verdict = "right" if good else "fails natively" if fails else "WRONG"
            print(f"{verdict} {name}: {took:.1f} s{beside}", flush=True)
            if not good:
                print("    " + "\n    ".join(text.splitlines()[-6:]))
                if native is not None and native[0] == 0:
                    print("    natively: " + words_of(native[1])[-300:])
    print(f"{right} of {len(wanted)} are right, {failed_natively} fail natively")
    return len(wanted) - right - failed_natively if right else 1


if __name__ == "__main__":
    sys.exit(main())
