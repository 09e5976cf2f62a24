"""Runs CuPy's own tests through the array door on emulated GPUs, and compares with a record.

    python tests/array_suite/run_suite.py CUPY [FOLDER...] [--record] [--late] [--outcomes FILE]
        [--gpu | --native] [--beside FILE] [--jobs N [--seconds N]]

CUPY is a checkout of CuPy (github.com/cupy/cupy) at the tag of the version that the drop-in names;
it is only read, and nothing of it is copied into this project. FOLDER is a folder or a file below
its `tests`, such as `cupyx_tests/scipy_tests/signal_tests`. Without one, nearly all run. `--record`
writes their record anew; `--late` runs in the door's default mode, where what only the worker
knows comes late.
With `--gpu` the worker has the first GPUs of this machine and its CuPy; with `--native` that CuPy
itself runs the tests. `--beside FILE` counts only tests that passed in the outcomes of another run,
a native one for example. The exit status is 1 if a test fails that the record does not have.

`--jobs N` runs the files in N processes, a large file in several. They take turns with the GPUs
that the machine has, two for each. No part begins after `--seconds N`, and those that are left are
named.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import suite_outcomes as so

HERE = Path(__file__).resolve().parent
OTHERS = ("distributed_tests", "jit_tests", "testing_tests", "tools_tests")
"""Tests of packages that the drop-in leaves to CuPy, or takes from it."""
PYTEST = (
    f"-m pytest -q --tb=no -W ignore -c {os.devnull} -p suite_plugin -p no:cacheprovider -p no:trio"
    " --continue-on-collection-errors --timeout 60"
)
SHOWN = 40
PART_BYTES = 12_000
"""Of a test file: CuPy's have some ten tests for each 1,000 bytes, and a few a hundred."""


@dataclass(frozen=True, slots=True)
class Part:
    """A folder or a file of tests, or a file's tests with number ``index`` modulo ``of``."""

    place: str
    index: int = 0
    of: int = 1

    def __str__(self) -> str:
        """Return its name for a reader."""
        return self.place + (f" ({self.index + 1} of {self.of})" if self.of > 1 else "")


def folders_of(cupy: Path) -> list[str]:
    """Return the folders of tests that run."""
    found = (
        place.relative_to(cupy / "tests").as_posix()
        for parent in ("cupy_tests", "cupyx_tests", "cupyx_tests/scipy_tests")
        for place in (cupy / "tests" / parent).glob("*_tests")
        if place.name not in (*OTHERS, "scipy_tests")
    )
    return sorted(found)


def parts_of(work: Path, folder: str) -> Iterator[tuple[int, Part]]:
    """Yield the parts of a folder, each with its size in bytes."""
    place = work / folder
    for file in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
        size = file.stat().st_size
        count = 1 + size // PART_BYTES
        for index in range(count):
            yield size // count, Part(str(file.relative_to(work)), index, count)


def visible_gpus() -> list[str]:
    """Return ``CUDA_VISIBLE_DEVICES`` of each process: two adjacent GPUs of all that are there."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    count = len(listed.stdout.splitlines())
    return [",".join(str((at + i) % count) for i in range(min(2, count))) for at in range(count)]


def run_parts(
    parts: list[Part], work: Path, outcomes: Path, options: argparse.Namespace
) -> list[Part]:
    """Run parts side by side; return those that did not begin in time."""
    gpus = [""] if options.devices == "emulated" else visible_gpus()
    ends = time.monotonic() + options.seconds
    left: list[Part] = []

    def run_one(numbered: tuple[int, Part]) -> None:
        number, part = numbered
        if time.monotonic() > ends:
            left.append(part)
            return
        where = {"devices": options.devices, "gpus": gpus[number % len(gpus)]}
        seconds = run_part(work, part, outcomes, late=options.late, **where)
        sys.stderr.write(f"{part}: {seconds:.0f} s\n")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_one, enumerate(parts)))
    return left


def run_part(
    work: Path, part: Part, outcomes: Path, *, late: bool, devices: str, gpus: str = ""
) -> float:
    """Run pytest on one part; return how long it took."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "GPUPOOL_SUITE_OVERLAY": str(work / "overlay"),
        "GPUPOOL_SUITE_OUTCOMES": str(outcomes),
        "GPUPOOL_SUITE_DEVICES": devices,
        "GPUPOOL_SUITE_PART": f"{part.index}/{part.of}",
        "GPUPOOL_BLOCKING": "0" if late else "1",
    }
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    argv = [sys.executable, *PYTEST.split(), "-m", "not slow", "--rootdir", str(work), part.place]
    began = time.monotonic()
    done = subprocess.run(argv, cwd=work, env=environment, check=False, capture_output=True)
    if done.returncode not in (0, 1, 5):  # 5: no test, where a part has none
        sys.stderr.write(f"{part}: pytest ended with {done.returncode}\n")
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
    """Run CuPy's test suite as the command line says."""
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
    parser.add_argument("--jobs", type=int, default=1, help="so many processes side by side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after it")
    options = parser.parse_intermixed_args()
    folders = options.folders or folders_of(options.cupy)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        lines: Path = options.outcomes or work / "outcomes.jsonl"
        if not lines.exists():
            prepare(options.cupy.resolve(), work)
            parts = [Part(folder) for folder in folders]
            if options.jobs > 1:
                sized = [each for folder in folders for each in parts_of(work, folder)]
                parts = [part for _, part in sorted(sized, key=lambda each: -each[0])]
            for part in run_parts(parts, work, lines, options):
                sys.stderr.write(f"{part}: not run\n")
        outcomes = so.read_outcomes(lines)
    if options.beside:
        passed = {
            each.test for each in so.read_outcomes(options.beside) if each.outcome == "passed"
        }
        outcomes = [each for each in outcomes if each.test in passed]
    if options.record:
        known = so.read_record()
        so.write_record(so.without(known, folders) | so.patterns(outcomes, known))
    return report(outcomes, so.read_record())


if __name__ == "__main__":
    sys.exit(main())
