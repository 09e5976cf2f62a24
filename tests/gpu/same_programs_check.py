"""Run the C programs of the test suite on the real driver: natively, and behind the CUDA door.

    python tests/gpu/same_programs_check.py [--jobs N] [--gpus N] [--runtimes FOLDER] [--only NAMES]

The test suite runs them with a driver without a GPU (``tests/remoting/driver_api``). Behind the
door they must print the same here as there. Natively they run without what they ask of the door
alone (``OURS`` in ``check.h``), and see as many GPUs; how they fail there is shown for comparison,
as are lines that are others natively: ``ahead`` says which calls the driver keeps while a host
function waits. A folder of runtimes has
libcudart of any versions, shared and static, each of which gets a program. The exit status is the
number of failures.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "remoting" / "driver_api"
KERNELS = DRIVER / "fake_cuda" / "kernels"
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "src")]

from leasing import Outcome, run  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

MEMORY = 64 << 20
LIMIT_S = 40
RIGHT = "results right"
CUBIN = str(KERNELS / "test_kernels.sm_90.cubin")
SPECIAL = str(KERNELS / "memory_kernels.sm_90.cubin")


@dataclass(frozen=True)
class Program:
    """A program of ``tests/remoting/driver_api/programs``, its arguments, and its last line."""

    name: str
    arguments: tuple[str, ...] = ()
    last: str = RIGHT
    gpus: int = 1
    runtime: Path | None = None  # CUDA's, instead of the driver's functions


PROGRAMS = [
    Program("everything", (CUBIN,)),
    Program("everything", (str(KERNELS / "test_kernels.ptx"),)),
    Program("everything", (str(KERNELS / "test_kernels.fatbin"),)),
    Program("everything", (str(KERNELS / "test_kernels.fatbin"), "linked")),
    Program("everything", (str(KERNELS / "test_kernels.zstd.fatbin"),)),
    Program("everything", (str(KERNELS / "test_kernels.lz4.fatbin"),)),
    Program("threads", (CUBIN, "two"), "launched: 0, then 700"),
    Program("contextless", (CUBIN,)),
    Program("ordered", (CUBIN,)),
    Program("own_streams", (CUBIN,)),
    Program("mailbox", (CUBIN, "200", "65536")),
    Program("reads", (CUBIN, "/tmp/gpupool-check-reads", "10")),
    Program("host_nodes", ("20",)),
    Program("owners"),
    Program("settings", (CUBIN,)),
    Program("thread_streams", ("500",)),
    Program("virtual"),
    Program("host_virtual", (CUBIN,)),
    Program("linker", (str(KERNELS / "test_kernels.ptx"),)),
    Program("tensors", (), "refused 1 1"),
    Program("hosts", (CUBIN,), "large graph 100 100200 2"),
    Program("ahead", (CUBIN, "1500")),
    Program("times", (CUBIN,)),
    Program("items", (CUBIN,)),
    Program("rows", (CUBIN,)),
    Program("kept", (CUBIN, "all")),
    *(Program("kept", (CUBIN, "after", how)) for how in ("busy", "idle", "several", "kernel")),
    Program("graphs", (CUBIN,)),
    Program("captures", (CUBIN,)),
    Program("host_copies", (CUBIN,)),
    Program("refused", (CUBIN, "/tmp")),
    Program("counted", (SPECIAL,)),
    Program("arrays", (SPECIAL,)),
    Program("mapped", (SPECIAL,)),
    Program("asserts", (str(KERNELS / "assert_kernels.ptx"),)),
    Program("values", gpus=2),
    Program("pools", gpus=2),
    Program("managed", (CUBIN, SPECIAL), gpus=2),
]


def last_of(outcome: Outcome) -> str:
    """Return the last line that a program printed, and its exit status where it is not zero."""
    lines = outcome.output.strip().splitlines() or [""]
    return lines[-1][:150] + (f" (exit {outcome.code})" if outcome.code else "")


def of_runtimes(folder: Path) -> list[Program]:
    """Return a program for each libcudart below a folder."""
    words = (str(KERNELS / "test_kernels.fatbin"), "1")
    found = sorted(folder.rglob("libcudart*"))
    return [Program("registered", words, RIGHT, 1, runtime) for runtime in found]


def compiled(program: Program, folder: Path, library: Path) -> Path:
    """Return the program, linked with the driver's library or a runtime."""
    target = folder / program.name
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-o", str(target)]
    command += [str(DRIVER / "programs" / f"{program.name}.c")]
    if program.runtime is None:
        command += [str(library / build.LIBRARY)]
    else:
        command += [str(program.runtime), "-ldl", "-lrt", "-lm"]
        command += [f"-Wl,-rpath={program.runtime.parent}"]
    subprocess.run(command, check=True)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--runtimes", type=Path)
    parser.add_argument("--only", default="", help="names of programs, between commas")
    options = parser.parse_args()
    programs = PROGRAMS + (of_runtimes(options.runtimes.resolve()) if options.runtimes else [])
    library = build.ensure().parent
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as made:
        folder = Path(made)

        def both(number: int) -> tuple[Outcome, Outcome]:
            program = programs[number]
            place = folder / str(number)
            place.mkdir()
            target = compiled(program, place, library)
            words = [str(target), *program.arguments]
            door = [sys.executable, str(DRIVER / "loopback.py"), "--library", str(library)]
            door += ["--memory", str(MEMORY), "--devices", str(program.gpus)]
            door += ["--verbose", "--", *words]
            env = dict(os.environ)
            visible = ",".join(map(str, range(program.gpus)))
            alone = env | {"CUDA_VISIBLE_DEVICES": visible}
            native = run(words, LIMIT_S, place / "native.log", alone)
            return native, run(door, LIMIT_S, place / "remote.log", env)

        only = {name for name in options.only.split(",") if name}
        chosen = [
            at
            for at, program in enumerate(programs)
            if program.gpus <= options.gpus and (not only or program.name in only)
        ]
        failed = 0
        with ThreadPoolExecutor(options.jobs) as threads:
            for number, (native, remote) in zip(chosen, threads.map(both, chosen), strict=True):
                program = programs[number]
                lines = remote.output.splitlines()
                good = remote.code == 0 and any(line.endswith(program.last) for line in lines)
                failed += not good
                named = (*program.arguments, *([str(program.runtime)] if program.runtime else []))
                words = " ".join(Path(word).name for word in named)
                print(f"{'pass' if good else 'FAIL'} {program.name} {words}", flush=True)
                if not good:
                    print("    | " + "\n    | ".join(lines[-60:]))
                if native.code:
                    print(f"    natively: {last_of(native)}")
                    continue
                for line in native.output.splitlines():
                    if line not in lines:
                        print(f"    natively: {line[:150]}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
