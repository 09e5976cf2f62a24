"""Run programs that nobody of this project wrote, natively and behind the CUDA door, and compare.

    python tests/gpu/others_check.py [--cmake FOLDER] [--cu FOLDER] [--pytest FOLDER]
        [--llama FOLDER] [--only Samples/0_Intro*] [--jobs 6] [--bare] [--json FILE]
        [--build FOLDER] [--arguments FILE] [--gpus 2]

Nothing is fetched: each option, which may come several times, names a checkout that is there.
`--cmake` builds each folder below whose CMakeLists.txt is a project of its own, and runs its
programs (cuda-samples/Samples, CUDALibrarySamples); `--cu` builds each .cu file with nvcc and a
shared runtime (Lupine's test/); `--pytest` runs the tests of a folder (CuPy's, cuda-python's,
numba-cuda's); `--llama` builds llama.cpp's test-backend-ops. `--arguments` names a JSON file that
has words for programs by name, as cuda-samples' `test_args.json` does. The GPUs are real ones, cut
into shares of one lease each; with `--gpus N` a lease has shares of N GPUs, and natively programs
see as many. `--bare`, as root, hides the GPU and all of NVIDIA's driver from programs behind the
door.

A program is the same where it ends with the same status and says the same: lines with pass, fail,
error, result or success, with numbers left out. What fails natively is not counted. Each that
differs is printed, with the last lines of both; `--json` records all. The exit status is the number
of those that differ.
"""

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "src")]

from leasing import Outcome, RealPool, run  # noqa: E402

LIMIT_S = 90.0
PYTEST_LIMIT_S = 3000.0
BUILD_LIMIT_S = 900.0
TELLING = re.compile(r"pass|fail|error|result|success", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
OURS = re.compile(r"^gpupool: ")


@dataclass(frozen=True)
class Program:
    """One program or test suite: where it comes from, and how it is run."""

    name: str
    words: tuple[str, ...]  # the first one is the executable
    folder: Path
    report: Path | None = None  # of pytest, one of each run


@dataclass(frozen=True)
class Verdict:
    """One program or test, natively and behind the door."""

    name: str
    native: str  # "pass", or what it is instead
    remote: str
    same: bool
    native_s: float = 0.0
    remote_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Return whether it passes natively; others say nothing about the door."""
        return self.native == "pass"


def told(output: str) -> list[str]:
    """Return a program's lines on its outcome, without numbers and gpupool's lines."""
    lines = (line.strip() for line in output.splitlines() if not OURS.match(line))
    return [NUMBER.sub("#", line) for line in lines if TELLING.search(line)]


def word_of(code: int) -> str:
    """Return an exit status in a word."""
    if code == 124:
        return "no end"
    return "pass" if code == 0 else f"signal {-code}" if code < 0 else f"exit {code}"


def compared(name: str, native: Outcome, remote: Outcome) -> Verdict:
    """Return whether a program is the same behind the door."""
    same = native.code == remote.code and told(native.output) == told(remote.output)
    words = word_of(native.code), word_of(remote.code)
    return Verdict(name, *words, same, native.seconds, remote.seconds)


def cases(report: str) -> dict[str, str]:
    """Return the outcome of each test in a report of pytest: pass, skip, fail or error."""
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = next((k for k in ("failure", "error", "skipped") if k in kinds), "pass")
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def compared_cases(name: str, native: dict[str, str], remote: dict[str, str]) -> list[Verdict]:
    """Return the verdict of each test; one that is missing behind the door differs."""
    return [
        Verdict(f"{name} {test}", outcome, found := remote.get(test, "missing"), found == outcome)
        for test, outcome in native.items()
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many pass, in a sentence."""
    counted = [each for each in verdicts if each.counts]
    same = sum(each.same for each in counted)
    left = len(verdicts) - len(counted)
    return f"{same} of {len(counted)} that pass natively are the same; {left} do not pass natively"


# --- building -------------------------------------------------------------------------------------


def quietly(words: Sequence[str], log: Path) -> bool:
    """Run a step of a build; return whether it succeeded."""
    with log.open("a") as output:
        try:
            done = subprocess.run(
                words, stdout=output, stderr=output, timeout=BUILD_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            output.write(f"{error}\n")
            return False
    return done.returncode == 0


def by_cmake(source: Path, built: Path, *targets: str) -> list[Path]:
    """Build a folder, and return its programs."""
    built.mkdir(parents=True, exist_ok=True)
    log = built / "build.log"
    first = ["cmake", "-S", str(source), "-B", str(built), "-DCMAKE_BUILD_TYPE=Release"]
    first += ["-DCMAKE_CUDA_ARCHITECTURES=native", "-DGGML_CUDA=ON"]
    second = ["cmake", "--build", str(built), "-j", "4"]
    second += [word for target in targets for word in ("--target", target)]
    if not (quietly(first, log) and quietly(second, log)):
        return []
    return sorted(
        path
        for path in built.rglob("*")
        if path.is_file()
        and os.access(path, os.X_OK)
        and "CMakeFiles" not in path.parts
        and ".so" not in path.name
    )


def of_cmake(folder: Path, built: Path) -> Iterator[tuple[str, Path, Path]]:
    """Return the folders that are programs: name, source, and where to build."""
    for made in sorted(folder.rglob("CMakeLists.txt")):
        if "cmake_minimum_required" in made.read_text(errors="replace"):
            name = made.parent.relative_to(folder).as_posix()
            yield f"{folder.name}/{name}", made.parent, built / folder.name / name


def with_arguments(programs: Iterable[Program], given: dict[str, Any]) -> Iterator[Program]:
    """Return each program as often as it is to be run, with its words."""
    for each in programs:
        entry = given.get(Path(each.words[0]).name, {})
        if entry.get("skip"):
            continue
        runs = entry.get("runs", [entry])
        for number, one in enumerate(runs, 1):
            name = f"{each.name} ({number})" if len(runs) > 1 else each.name
            words = (*each.words, *one.get("args", ()))
            yield replace(each, name=name, words=words)


def chosen(names: Iterable[str], only: str) -> set[str]:
    """Return the names that fit one of the patterns; all, without any."""
    patterns = [each for each in only.split(",") if each]
    return {
        name
        for name in names
        if not patterns or any(fnmatch.fnmatch(name, each) for each in patterns)
    }


class Builder:
    """Builds the programs that the options name, several at once."""

    def __init__(self, folder: Path, jobs: int, only: str) -> None:
        self._folder = folder
        self._jobs = jobs
        self._only = only
        self.failed: list[str] = []

    def programs(self, options: argparse.Namespace) -> list[Program]:
        """Return all programs; those that cannot be built are in ``failed``."""
        steps = [step for each in options.cmake for step in of_cmake(each, self._folder)]
        cu = [
            (f"{each.name}/{p.stem}", p) for each in options.cu for p in sorted(each.rglob("*.cu"))
        ]
        wanted = chosen([name for name, *_ in (*steps, *cu)], self._only)
        with ThreadPoolExecutor(self._jobs) as threads:
            made = [
                *threads.map(self._cmake, (step for step in steps if step[0] in wanted)),
                *threads.map(self._nvcc, (each for each in cu if each[0] in wanted)),
            ]
        given: dict[str, Any] = {}
        if options.arguments:
            given = json.loads(options.arguments.read_text())
        found = [*with_arguments((program for each in made for program in each), given)]
        for each in options.llama:
            built = self._folder / each.name
            programs = [p for p in by_cmake(each, built, "test-backend-ops") if "ops" in p.name]
            found += [Program("llama.cpp", (str(p), "test"), built) for p in programs]
            self.failed += [] if programs else ["llama.cpp"]
        for number, each in enumerate(options.pytest):
            report = self._folder / f"report{number}.xml"
            # By no settings but pytest's own, and also where a file needs what is not installed.
            own = ("-c", os.devnull, "--rootdir", str(each), "--continue-on-collection-errors")
            words = (
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                *own,
                str(each),
            )
            found.append(Program(each.name, words, each, report))
        return found

    def _cmake(self, step: tuple[str, Path, Path]) -> list[Program]:
        name, source, built = step
        programs = by_cmake(source, built)
        if not programs:
            self.failed.append(name)
        data = source / "data"
        if data.is_dir() and not (built / "data").exists():
            shutil.copytree(data, built / "data")
        if len(programs) == 1:
            return [Program(name, (str(programs[0]),), built)]
        # A project of several programs puts what each one reads beside it.
        return [Program(f"{name}/{path.name}", (str(path),), path.parent) for path in programs]

    def _nvcc(self, given: tuple[str, Path]) -> list[Program]:
        name, source = given
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        words = ["nvcc", "-O2", "-arch=native", "-cudart", "shared", "-o", str(target)]
        words += [str(source), "-lcuda", "-lcublas"]
        if not quietly(words, target.with_suffix(".log")):
            self.failed.append(name)
            return []
        return [Program(name, (str(target),), target.parent)]


# --- running --------------------------------------------------------------------------------------


def in_folder(program: Program) -> list[str]:
    """Return the words that run a program where it was built."""
    return ["env", "-C", str(program.folder), *program.words]


def both(
    pool: RealPool, folder: Path, number: int, program: Program, gpus: int, share: str
) -> list[Verdict]:
    """Run one program both ways, with that share of so many GPUs behind the door."""
    alone = {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in range(gpus))} | os.environ
    lease = ("-n", str(gpus), "-p", share)
    words, limit = in_folder(program), PYTEST_LIMIT_S if program.report else LIMIT_S
    if program.report is None:
        native = run(words, limit, folder / f"{number}.native.log", alone)
        remote = pool.run(words, *lease, limit=limit, name=f"{number}.remote")
        verdict = compared(program.name, native, remote)
        if verdict.counts and not verdict.same:
            tails = [outcome.output.strip()[-800:] for outcome in (native, remote)]
            print(
                f"DIFFERS {program.name}\n--- natively\n{tails[0]}\n--- behind the door\n{tails[1]}"
            )
        return [verdict]
    reports = [program.report.with_suffix(f".{kind}.xml") for kind in ("native", "remote")]
    run([*words, f"--junitxml={reports[0]}"], limit, folder / f"{number}.log", alone)
    pool.run([*words, f"--junitxml={reports[1]}"], *lease, limit=limit, name=f"{number}.remote")
    texts = [path.read_text() if path.exists() else "<testsuites/>" for path in reports]
    verdicts = compared_cases(program.name, cases(texts[0]), cases(texts[1]))
    for each in verdicts:
        if each.counts and not each.same:
            print(f"DIFFERS {each.name}: {each.remote}")
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("cmake", "cu", "pytest", "llama"):
        parser.add_argument(f"--{name}", type=Path, action="append", default=[])
    parser.add_argument("--only", default="", help="patterns of names, between commas")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--gpus", type=int, default=1, help="of each lease")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arguments", type=Path, help="JSON: words for programs, by name")
    parser.add_argument("--build", type=Path, help="keeps what was built, for the next run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpupool-others-") as made:
        folder = Path(made)
        folder.chmod(0o711)
        builder = Builder((options.build or folder / "built").resolve(), options.jobs, options.only)
        programs = builder.programs(options)
        print(f"{len(programs)} programs; cannot be built: {', '.join(builder.failed) or 'none'}")
        pool = RealPool(folder / "pool", bare=options.bare)
        share = f"{int(100 / options.jobs) / 100:.2f}"
        alone = [p for p in programs if p.report is not None]
        others = [p for p in programs if p.report is None]

        def shared(given: tuple[int, Program]) -> list[Verdict]:
            return both(pool, folder, *given, options.gpus, share)

        try:
            with ThreadPoolExecutor(options.jobs) as threads:
                runs = threads.map(shared, enumerate(others))
                verdicts = [verdict for each in runs for verdict in each]
            for number, program in enumerate(alone, len(others)):
                verdicts += both(pool, folder, number, program, options.gpus, "1")
        finally:
            pool.stop()
    for each in verdicts:
        if not each.counts:
            print(f"natively {each.native}: {each.name}")
    print(summary(verdicts))
    if options.json:
        record = {"failed_builds": builder.failed, "programs": [asdict(each) for each in verdicts]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return sum(each.counts and not each.same for each in verdicts)


if __name__ == "__main__":
    sys.exit(main())
