"""Run CUDA programs natively and on a pool of this machine, through everything that users have.

    python tests/gpu/cuda_pool_check.py [--only NAME,...] [--budget SECONDS]

``gpupool join`` with the real GPU, ``gpupool run -p 0.5`` with the CUDA door: over the Unix socket,
and as from another machine over TCP with TLS. Prints what differs and what was measured; the exit
status is the number of programs that failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import agrees, compile_program  # noqa: E402
from leasing import GPUPOOL, Outcome, RealPool, run  # noqa: E402

from gpupool.remoting.driver import build  # noqa: E402

MEASURED = ("_us", "_ms", "_s", "_GBps")
PROGRAMS: list[tuple[str, float, bool]] = [
    ("runtime.cu", 60, True),
    ("memory.cu", 60, True),
    ("sharing.cu", 40, False),
    ("graphs.cu", 60, False),
    ("hosts.cu", 60, True),
    ("torch_basic.py", 75, True),
    ("cupy_arrays.py", 60, False),
    ("numba_kernel.py", 50, False),
    ("nvml_view.py", 40, False),
    ("jax_small.py", 75, False),
]
"""Name, seconds, whether it is run over TLS as well."""


def report(name: str, native: Outcome, remote: Outcome) -> bool:
    """Print what differs and what was measured; return whether the program passed."""
    good = remote.code == 0 == native.code
    for key, value in native.results.items():
        other = remote.results.get(key, "missing")
        if key.endswith(MEASURED):
            print(f"    {key:24} native {value:>10}  remote {other:>10}")
        elif not agrees(value, other):
            good = False
            print(f"    {key:24} native {value[:70]}  remote {other[:70]}  DIFFERS")
    mark = "pass" if good else "FAIL"
    print(
        f"{mark} {name}: exit {native.code}/{remote.code}, "
        f"{native.seconds:.1f} s native, {remote.seconds:.1f} s remote"
    )
    lines = remote.output.splitlines()
    shown = [line for line in lines if line.startswith("gpupool:")]
    print("    " + "\n    ".join(shown[:12] if good else [*shown[:20], "...", *lines[-40:]]))
    if native.code:
        print("    native: " + "\n    | ".join(native.output.splitlines()[-4:]))
    return good


def command_of(program: str, folder: Path) -> list[str]:
    """Return how to run a program natively, compiling it if need be."""
    path = HERE / "cuda_programs" / program
    if program.endswith(".cu"):
        return [str(compile_program(path, folder, program == "runtime.cu"))]
    return [sys.executable, str(path)]


def failures_of(pool: RealPool, folder: Path) -> int:
    """End sessions under a program that waits for a kernel of a minute; return what went wrong."""
    program, driver = folder / "leased", HERE.parent / "remoting" / "driver"
    command = ["gcc", "-std=c11", "-o", str(program), str(driver / "programs" / "leased.c")]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    image = driver / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin"
    failed = 0
    for how in ("worker killed", "lease ended"):
        process = subprocess.Popen(
            pool.words([str(program), str(image), "wait"], "-p", "0.5"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=pool.env,
        )
        assert process.stdout is not None
        while process.stdout.readline() not in ("waiting\n", ""):
            pass
        started = time.monotonic()
        if how == "worker killed":
            for path in Path(f"/proc/{pool.server.pid}/task").glob("*/children"):
                for pid in path.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
        else:
            leases = json.loads(pool.command("leases", "--json").stdout)["leases"]
            pool.command("kill", leases[0]["name"], "--reason", "for a check")
        text = process.communicate(timeout=60)[0]
        seconds = time.monotonic() - started
        good = process.returncode == 125 and "error 46" in text and seconds < 5
        failed += not good
        print(f"{'pass' if good else 'FAIL'} {how}: exit {process.returncode} in {seconds:.2f} s")
        print("    " + "\n    ".join(text.splitlines()))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=280)
    options = parser.parse_args()
    wanted = {name for name in options.only.split(",") if name}
    end = time.monotonic() + options.budget
    failures = 0
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        chosen = [each for each in PROGRAMS if not wanted or each[0].split(".")[0] in wanted]
        natives: dict[str, Outcome] = {}
        commands = {name: command_of(name, folder) for name, _, _ in chosen}
        # One after the other: a GPU is offered by one server at a time.
        for kind in ("Unix socket", "TLS"):
            far = kind == "TLS"
            pool = RealPool(
                folder / kind.split()[0], encryption="tls" if far else "off", remote=far
            )
            try:
                for program, limit, twice in chosen:
                    if (far and not twice) or end - time.monotonic() < 25:
                        print(f"skip {program}, {kind}")
                        continue
                    command = commands[program]
                    if program not in natives:
                        log = folder / "native.log"
                        natives[program] = run(command, limit, log, dict(os.environ))
                    remote = pool.run(command, "-p", "0.5", limit=limit, name="remote")
                    failures += not report(f"{program}, {kind}", natives[program], remote)
                    sys.stdout.flush()
                if not far:
                    failures += failures_of(pool, folder)
                    print(pool.command("smi").stdout)
                    print(pool.run([*GPUPOOL, "smi"], "-p", "0.5", limit=20, name="smi").output)
            finally:
                pool.stop()
                if failures:
                    print(pool.log.read_text()[-2500:])
    return failures


if __name__ == "__main__":
    sys.exit(main())
