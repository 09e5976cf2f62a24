"""Run CUDA programs on GPUs of two servers in one lease; needs a machine with two GPUs.

    python tests/gpu/across_check.py [--only NAME,...] [--budget SECONDS] [--encryption tls|off]

Two ``gpupool join`` on this machine offer one GPU each, and ``gpupool run -n 2 --across`` gives
both to one program, by TCP as from another machine. Prints what differs from a native run on both
GPUs and what was measured; the exit status is the number that failed. First the test suite's C
program for several servers runs behind the door alone, without a pool.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import compile_program  # noqa: E402
from cuda_pool_check import report  # noqa: E402
from leasing import Outcome, RealPool, run  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

DRIVER = HERE.parent / "remoting" / "driver_api"
CUBIN = str(DRIVER / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin")
PROGRAMS = {"across.cu": 40.0, "torch_across.py": 100.0, "cupy_across.py": 60.0}
ACROSS = ("-n", "2", "--across", "--no-wait")


def show(good: bool, name: str, outcome: Outcome) -> int:
    """Print how a program without native results ended; return 1 if it failed."""
    print(f"{'pass' if good else 'FAIL'} {name}: exit {outcome.code} in {outcome.seconds:.1f} s")
    print("    " + "\n    ".join(outcome.output.splitlines()[-20:]), flush=True)
    return not good


def door_alone(folder: Path, driver: list[str]) -> int:
    """Run the C program behind the door alone, on two workers; return how many runs failed."""
    library, program = build.library_dir(), folder / "servers"
    source = str(DRIVER / "programs" / "servers.c")
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-o", str(program), source]
    subprocess.run([*command, str(library / build.LIBRARY)], check=True)
    failed = 0
    for words, last in (([], "results right"), (["lose"], "one server lost")):
        door = [sys.executable, str(DRIVER / "loopback.py"), "--library", str(library), *driver]
        door += ["--tcp", "--memory", str(2 << 30), "--servers", "2", "--verbose", "--"]
        door += [str(program), CUBIN, "2", *words]
        outcome = run(door, 60, folder / "servers.log", dict(os.environ))
        good = outcome.code == 0 and last in outcome.output.splitlines()
        failed += show(good, " ".join(["servers.c", *words]), outcome)
    return failed


def loss(pool: RealPool, program: list[str]) -> int:
    """Kill the second server under a program that uses both; return 1 if it was not told well."""
    process = subprocess.Popen(
        pool.words(program, *ACROSS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=pool.env,
    )
    assert process.stdout is not None
    started = time.monotonic()
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line == "holding\n":
            time.sleep(1)
            pool.servers[1].process.send_signal(signal.SIGKILL)
            started = time.monotonic()
    code = process.wait()
    seconds = time.monotonic() - started
    output = "".join(lines)
    good = code == 125 and "error: " in output and "lost server" in output and seconds < 8
    return show(good, "one server killed", Outcome(code, seconds, {}, output))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="of across, torch_across, cupy_across")
    parser.add_argument("--budget", type=float, default=420)
    parser.add_argument("--encryption", choices=["tls", "off"], default="off")
    parser.add_argument("--driver", default="", help="for the door alone: another driver's folder")
    options = parser.parse_args()
    wanted = {name for name in options.only.split(",") if name}
    end = time.monotonic() + options.budget
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        driver = ["--driver", options.driver] if options.driver else []
        failed = door_alone(folder, driver)
        place = folder / "pool"
        both = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": "0,1"}
        pool = RealPool(place, "--gpus", "0", encryption=options.encryption, remote=True)
        try:
            pool.join("second", "--gpus", "1")
            print(pool.command("gpus").stdout, flush=True)
            for program, limit in PROGRAMS.items():
                stem = program.split(".")[0]
                if wanted and stem not in wanted:
                    continue
                if end - time.monotonic() < 30:
                    print(f"skip {program}: no time left")
                    continue
                path = HERE / "cuda_programs" / program
                command = [sys.executable, str(path)]
                if path.suffix == ".cu":
                    command = [str(compile_program(path, folder, False))]
                native = run(command, limit, place / f"{stem}-native.log", both)
                remote = pool.run(command, *ACROSS, limit=limit, name=stem)
                lines, good = report(program, native, remote)
                print("\n".join(lines), flush=True)
                failed += not good
            smi = pool.run(["nvidia-smi"], *ACROSS, limit=20, name="smi")
            print(smi.output)
            if not wanted or "torch_across" in wanted:
                hold = [sys.executable, str(HERE / "cuda_programs" / "torch_across.py"), "hold"]
                failed += loss(pool, hold)
        finally:
            for server in reversed(pool.servers):
                server.process.kill()
                server.process.wait()
                if failed:
                    print(server.log.read_text()[-2500:])
    return failed


if __name__ == "__main__":
    sys.exit(main())
