"""Run CUDA programs natively and through the CUDA door on this machine, and compare.

    PYTHONPATH=src python tests/gpu/cuda_door_check.py [--only NAME,...] [--budget SECONDS] [--tcp]

Needs a real GPU, nvcc and a C compiler; CuPy, numba-cuda, PyTorch and JAX where they are. Client
and worker are separate processes over loopback. A program prints ``RESULT name value`` lines:
values called ``*_us``, ``*_ms``, ``*_s``, ``*_GBps`` are measurements, the rest must agree. The
exit status is the number of programs that failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from gpupool.remoting.driver_api.build import build  # noqa: E402

PROGRAMS = Path(__file__).resolve().parent / "cuda_programs"
LOOPBACK = ROOT / "tests" / "remoting" / "driver_api" / "loopback.py"
MEASURED = ("_us", "_ms", "_s", "_GBps")
TAIL_LINES = 40
RELATIVE_TOLERANCE = 2e-2
LOGGED = re.compile(r"gpupool:|worker:|[IWEF]\d{4} |\d{4}-\d\d-\d\d .*: [IWEF] ")
"""Lines of ours, and of absl's and TensorFlow's logging."""


@dataclass
class Outcome:
    """The outcome of one run of one program."""

    code: int
    seconds: float
    results: dict[str, str]
    output: str


STEPS: list[tuple[str, float]] = [
    ("runtime.cu", 60),
    ("memory.cu", 60),
    ("graphs.cu", 60),
    ("hosts.cu", 60),
    ("host_graphs.cu", 60),
    ("libraries.cu", 60),
    ("speed.cu", 60),
    ("cupy_arrays.py", 60),
    ("torch_basic.py", 75),
    ("torch_resnet.py", 90),
    ("torch_gpt2.py", 90),
    ("numba_kernel.py", 50),
    ("jax_small.py", 75),
]


LIBRARIES = {
    "libraries": ("cublas", "cufft"),
    "more_libraries": ("cublasLt", "cublas", "cusparse", "cusolver", "curand"),
}


def library_options(names: tuple[str, ...]) -> list[str]:
    """Return nvcc's options for some libraries, of the toolkit or of NVIDIA's wheels."""
    wheels = [Path(place) / "nvidia" / "cu13" for place in sys.path]
    folders = [each for each in wheels if (each / "include" / "cublas_v2.h").is_file()]
    if not folders:
        return [f"-l{name}" for name in names]
    include, library = folders[0] / "include", folders[0] / "lib"
    # Wheels have no name without a version, which -l would look for, and nvcc takes no other.
    files = [path for name in names for path in library.glob(f"lib{name}.so.*")]
    linked = [f"-rpath={library}", f"-rpath-link={library}", *map(str, files)]
    return [f"-I{include}", *(word for each in linked for word in ("-Xlinker", each))]


def compile_program(source: Path, folder: Path, shared: bool) -> Path:
    """Compile a CUDA program with the runtime linked statically, or as a shared library."""
    target = folder / (source.stem + ("-shared" if shared else ""))
    kind = "shared" if shared else "static"
    command = ["nvcc", "-O2", "-arch=sm_90", f"--cudart={kind}", "-o", str(target), str(source)]
    if source.stem in LIBRARIES:
        command += library_options(LIBRARIES[source.stem])
    if source.stem.startswith("device_"):  # kernels that launch are linked on their own
        command += ["-rdc=true", "-lcudadevrt"]
    subprocess.run(command, check=True, timeout=100)
    return target


def run(command: list[str], limit: float, folder: Path, name: str) -> Outcome:
    """Run a program; its output goes to a file, so that nothing is lost when it hangs."""
    path = folder / f"{name}.log"
    start = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "0"  # JAX says why it refuses a device only there
    with path.open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            # Python programs show where they hang; then everything of this run ends.
            os.killpg(process.pid, 6)
            time.sleep(1)
            os.killpg(process.pid, 9)
            process.wait()
            code = 124
    text = path.read_text(errors="replace")
    results = dict[str, str]()
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] == "RESULT":
            results[words[1]] = " ".join(words[2:])
    return Outcome(code, time.monotonic() - start, results, text)


def agrees(native: str, remote: str, tolerance: float = RELATIVE_TOLERANCE) -> bool:
    """Say whether two values are the same, or numbers that are close."""
    if native == remote:
        return True
    try:
        pairs = list(zip(map(float, native.split()), map(float, remote.split()), strict=True))
    except ValueError:
        return False
    return all(abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-6) for a, b in pairs)


def compare(name: str, native: Outcome, remote: Outcome) -> bool:
    """Print differences and measurements; return whether the program passed."""
    good = remote.code == 0 and native.code == 0
    for key, value in native.results.items():
        other = remote.results.get(key)
        if key.endswith(MEASURED):
            if other is not None:
                ratio = float(other) / float(value) if float(value) else 0.0
                print(f"    {key:28} native {value:>10}  remote {other:>10}  x{ratio:.2f}")
        elif other is None or not agrees(value, other):
            good = False
            print(f"    {key:28} native {value[:60]}  remote {(other or 'missing')[:60]}  DIFFERS")
    mark = "pass" if good else "BROKEN NATIVELY" if native.code else "FAIL"
    codes = f"exit {native.code}/{remote.code}"
    print(f"{mark} {name}: {codes}, {native.seconds:.1f} s native, {remote.seconds:.1f} s remote")
    if native.code:
        print("    broken natively: " + "\n    | ".join(native.output.splitlines()[-3:]))
        # Nothing to compare with: that is the machine's fault, not the door's.
        return True
    if not good:
        lines = remote.output.splitlines()
        # What a library logs before its exception says more than the exception's traceback.
        logged = [line for line in lines if LOGGED.match(line)]
        print("    | " + "\n    | ".join([*logged[:TAIL_LINES], "...", *lines[-TAIL_LINES:]]))
    else:
        notes = [line for line in remote.output.splitlines() if line.startswith("gpupool:")]
        for line in notes[:12]:
            print(f"    {line}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=290)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--driver", default="", help="a folder with a fake driver for the worker")
    parser.add_argument("--no-native", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + options.budget
    wanted = {name for name in options.only.split(",") if name}
    failures = 0
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as temporary:
        folder = Path(temporary)
        build(folder / "library")
        door = [sys.executable, str(LOOPBACK), "--library", str(folder / "library"), "--verbose"]
        door += ["--memory", str(100 << 30), *(["--tcp"] if options.tcp else [])]
        door += ["--driver", options.driver] if options.driver else []
        for name, limit in STEPS:
            if wanted and name.split(".")[0] not in wanted:
                continue
            left = end - time.monotonic()
            if left < 15:
                print(f"skip {name}: no time left")
                continue
            source = PROGRAMS / name
            try:
                if name.endswith(".cu"):
                    command = [str(compile_program(source, folder, name == "runtime.cu"))]
                else:
                    command = [sys.executable, str(source)]
            except (OSError, subprocess.SubprocessError) as error:
                print(f"FAIL {name}: cannot be compiled: {error}")
                failures += 1
                continue
            limit = min(limit, left / 2)
            native = Outcome(0, 0.0, {}, "")
            if not options.no_native:
                native = run(command, limit, folder, f"{name}-native")
            remote = run([*door, "--", *command], limit, folder, f"{name}-remote")
            failures += not compare(name, native, remote)
            sys.stdout.flush()
    return failures


if __name__ == "__main__":
    sys.exit(main())
