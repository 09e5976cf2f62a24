"""Runs CuPy's own tests through the array door on emulated GPUs, and compares with a record.

    python tests/array_suite/run_suite.py CUPY [FOLDER...] [--record] [--late] [--outcomes FILE]
        [--gpu | --native] [--beside FILE]

CUPY is a checkout of CuPy (github.com/cupy/cupy) at the tag of the version that the drop-in names;
it is only read, and nothing of it is copied into this project. FOLDER is one such as `math_tests`
or `cupyx/signal_tests`, or a file in it. Without one, all folders of `FOLDERS` run. `--record`
writes their record anew; `--late` runs in the door's default mode, where what only the worker
knows comes late.
With `--gpu` the worker has the first GPUs of this machine and its CuPy; with `--native` that CuPy
itself runs the tests. `--beside FILE` counts only tests that passed in the outcomes of another run,
a native one for example. The exit status is 1 if a test fails that the record does not have.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import suite_outcomes as so

HERE = Path(__file__).resolve().parent
FOLDERS = (
    "binary_tests",
    "core_tests",
    "creation_tests",
    "fft_tests",
    "functional_tests",
    "indexing_tests",
    "io_tests",
    "lib_tests",
    "linalg_tests",
    "logic_tests",
    "manipulation_tests",
    "math_tests",
    "misc_tests",
    "padding_tests",
    "polynomial_tests",
    "random_tests",
    "sorting_tests",
    "statistics_tests",
    "cupyx/fft_tests",
    "cupyx/fftpack_tests",
    "cupyx/interpolate_tests",
    "cupyx/jit_tests",
    "cupyx/linalg_tests",
    "cupyx/ndimage_tests",
    "cupyx/signal_tests",
    "cupyx/sparse_tests",
    "cupyx/spatial_tests",
    "cupyx/special_tests",
    "cupyx/stats_tests",
)
TEST_S = 60
SHOWN = 40


def run_folder(work: Path, folder: str, outcomes: Path, *, late: bool, devices: str) -> float:
    """Run pytest on one folder; return how long it took."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "GPUPOOL_SUITE_OVERLAY": str(work / "overlay"),
        "GPUPOOL_SUITE_OUTCOMES": str(outcomes),
        "GPUPOOL_SUITE_DEVICES": devices,
        "GPUPOOL_BLOCKING": "" if late else "1",
    }
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-W", "ignore", "-c", os.devnull]
    argv += ["--rootdir", str(work), "-p", "suite_plugin", "-p", "no:cacheprovider"]
    argv += [
        "-p",
        "no:trio",
        "--continue-on-collection-errors",
        "--timeout",
        str(TEST_S),
        "-m",
        "not slow",
    ]
    began = time.monotonic()
    done = subprocess.run(
        [*argv, so.place_of(folder)],
        cwd=work,
        env=environment,
        check=False,
        capture_output=True,
    )
    if done.returncode not in (0, 1):
        sys.stderr.write(f"{folder}: pytest ended with {done.returncode}\n")
        sys.stderr.write((done.stdout + done.stderr).decode(errors="replace")[-2000:])
    return time.monotonic() - began


def prepare(cupy: Path, work: Path) -> None:
    """Lay the tests out: the drop-in has the name `cupy` there, with CuPy's own `testing`."""
    for needed in (cupy / "tests" / "cupy_tests", cupy / "cupy" / "testing"):
        if not needed.is_dir():
            sys.exit(f"{needed} is missing: name a checkout of CuPy, as in CUPY=/path/to/cupy")
    for name in ("cupy_tests", "cupyx_tests"):
        (work / name).symlink_to(cupy / "tests" / name)
    (work / "overlay").mkdir()
    (work / "overlay" / "testing").symlink_to(cupy / "cupy" / "testing")


def report(outcomes: list[so.Outcome], expected: dict[str, str]) -> int:
    """Print the tables; return the exit status."""
    print("\n".join(so.table(outcomes, expected)))
    print(f"without tests of internals, {so.without_internals(outcomes, expected):.2%} pass")
    new = [each for each in outcomes if each.outcome == "failed"]
    new = [each for each in new if so.expected_reason(expected, each) is None]
    for each in new[:SHOWN]:
        print(f"NEW {each.test}\n    {each.error.splitlines()[0] if each.error else ''}")
    if len(new) > SHOWN:
        print(f"and {len(new) - SHOWN} more")
    return 1 if new else 0


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Run CuPy's own tests through the array door.")
    parser.add_argument("cupy", type=Path)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--record", action="store_true", help="write their record anew")
    parser.add_argument("--late", action="store_true", help="errors come late, as by default")
    parser.add_argument("--outcomes", type=Path, help="keep the outcomes, or read a run's again")
    parser.add_argument("--beside", type=Path, help="leave out what failed in these outcomes")
    for name in ("gpu", "native"):
        parser.add_argument(
            f"--{name}", dest="devices", action="store_const", const=name, default="emulated"
        )
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        lines: Path = options.outcomes or work / "outcomes.jsonl"
        if not lines.exists():
            prepare(options.cupy.resolve(), work)
            for folder in options.folders or FOLDERS:
                seconds = run_folder(
                    work, folder, lines, late=options.late, devices=options.devices
                )
                sys.stderr.write(f"{folder}: {seconds:.0f} s\n")
        outcomes = so.read_outcomes(lines)
    if options.beside:
        passed = {
            each.test for each in so.read_outcomes(options.beside) if each.outcome == "passed"
        }
        outcomes = [each for each in outcomes if each.test in passed]
    if options.record:
        kept = so.without(so.read_record(), options.folders or FOLDERS)
        so.write_record(kept | so.patterns(outcomes))
    return report(outcomes, so.read_record())


if __name__ == "__main__":
    sys.exit(main())
