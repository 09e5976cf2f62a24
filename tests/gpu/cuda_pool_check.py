"""Run CUDA programs natively and on a pool of this machine, through everything that users have.

    python tests/gpu/cuda_pool_check.py [--only NAME,...] [--budget SECONDS] [--jobs N] [--gpus N]
                                        [--bare] [--limit SECONDS]

``gpupool join`` with the real GPU, ``gpupool run -p 0.5`` with the CUDA door: over the Unix socket,
and as from another machine over TCP with TLS. Prints what differs and what was measured (it means
little with several jobs); the exit status is the number of programs that failed. With ``--gpus 2``
the programs that need two GPUs run as well.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import agrees, compile_program  # noqa: E402
from leasing import Outcome, RealPool, run  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

MEASURED = ("_us", "_ms", "_s", "_GBps")


@dataclass(frozen=True)
class Program:
    """A program of ``cuda_programs``, its limit in seconds, and the GPUs that it needs."""

    name: str
    limit: float
    tls: bool = False
    gpus: int = 1
    setting: tuple[str, str] | None = None  # in its environment, natively too

    @property
    def label(self) -> str:
        """The program's display name."""
        words = [self.name] + (["=".join(self.setting)] if self.setting else [])
        return " ".join([*words, *(["2 GPUs"] if self.gpus > 1 else [])])


PROGRAMS = [
    Program("runtime.cu", 60, tls=True),
    Program("memory.cu", 60, tls=True),
    Program("sharing.cu", 40),
    Program("pool_sharing.cu", 40),
    Program("graphs.cu", 60),
    Program("hosts.cu", 60, tls=True),
    Program("host_graphs.cu", 60, tls=True),
    Program("libraries.cu", 60),
    Program("legacy.cu", 60, tls=True),
    Program("device_side.cu", 60, tls=True),
    Program("device_graphs.cu", 60),
    Program("more_libraries.cu", 60),
    Program("torch_basic.py", 75, tls=True),
    Program("torch_files.py", 90),
    Program("torch_resnet.py", 90),
    Program("torch_gpt2.py", 90),
    Program("torch_compile.py", 120),
    Program("torch_green.py", 75),
    Program("torch_tools.py", 180),
    Program("third_party.py", 180),
    Program("triton_kernel.py", 75),
    Program("transformers_small.py", 90),
    Program("cupy_arrays.py", 60),
    Program("numba_kernel.py", 50),
    Program("nvml_view.py", 40),
    Program("jax_small.py", 75),
    Program("torch_basic.py", 75, setting=("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")),
    Program("torch_basic.py", 75, setting=("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")),
    Program("other_libraries.py", 120),
    Program("other_jax.py", 120),
    Program("other_jax.py", 120, gpus=2),
    Program("cuda_core.py", 60),
    Program("torch_launched.py", 120, gpus=2),
    Program("torch_two.py", 90, gpus=2),
    Program("torch_sharded.py", 120, gpus=2),
    Program("torch_ddp.py", 120, gpus=2),
    # As between GPUs that have no access to each other's memory.
    Program("torch_two.py", 90, gpus=2, setting=("NCCL_P2P_DISABLE", "1")),
    Program("torch_ddp.py", 120, gpus=2, setting=("NCCL_P2P_DISABLE", "1")),
]


def report(name: str, native: Outcome, remote: Outcome) -> tuple[list[str], bool]:
    """Return lines on differences and measurements, and whether the program passed."""
    good = remote.code == 0 == native.code
    lines: list[str] = []
    for key, value in native.results.items():
        other = remote.results.get(key, "missing")
        if key.endswith(MEASURED):
            lines.append(f"    {key:24} native {value:>10}  remote {other:>10}")
        elif not agrees(value, other) or value.startswith("failed"):
            good = False
            lines.append(f"    {key:24} native {value[:70]}  remote {other[:70]}  WRONG")
    codes = f"exit {native.code}/{remote.code}"
    times = f"{native.seconds:.1f} s native, {remote.seconds:.1f} s remote"
    lines.append(f"{'pass' if good else 'FAIL'} {name}: {codes}, {times}")
    printed = remote.output.splitlines()
    shown = [line for line in printed if line.startswith("gpupool:")]
    lines += [
        f"    {line}" for line in (shown[:12] if good else [*shown[:20], "...", *printed[-40:]])
    ]
    if native.code:
        lines += [f"    native: {line}" for line in native.output.splitlines()[-4:]]
    return lines, good


def command_of(program: str, folder: Path) -> list[str]:
    """Return how to run a program natively, compiling it if need be."""
    path = HERE / "cuda_programs" / program
    if program.endswith(".cu"):
        return [str(compile_program(path, folder, program == "runtime.cu"))]
    return [sys.executable, str(path)]


def failures_of(pool: RealPool, folder: Path) -> int:
    """End sessions under a program that waits for a kernel of a minute; count the failures."""
    program, driver = folder / "leased", HERE.parent / "remoting" / "driver_api"
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
            for path in Path("/proc").glob("[0-9]*/comm"):
                if path.read_text() == "gpupool-worker\n":
                    os.kill(int(path.parent.name), signal.SIGKILL)
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


def both(
    pool: RealPool, program: Program, command: list[str], fraction: str, limit: float
) -> tuple[list[str], bool]:
    """Run a program natively and on the pool; return lines to print, and whether it passed."""
    env, settings = dict(os.environ), dict([program.setting] if program.setting else [])
    log = pool.folder / f"{program.label}-native.log"
    if program.gpus == 1:
        env["CUDA_VISIBLE_DEVICES"] = "0"
    native = run(command, program.limit, log, env | settings)
    options = ["-n", str(program.gpus), "-p", fraction]
    for name, value in settings.items():
        options += ["--env", f"{name}={value}"]
    remote = pool.run(command, *options, limit=limit, name=program.label)
    return report(program.label, native, remote)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=280)
    parser.add_argument("--limit", type=float, default=120, help="seconds for each program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--bare", action="store_true", help="programs see no GPU and no driver")
    options = parser.parse_args()
    wanted = {name.split(".")[0] for name in options.only.split(",") if name}
    if unknown := wanted - {each.name.split(".")[0] for each in PROGRAMS}:
        parser.error(f"there is no program {', '.join(sorted(unknown))}")
    end = time.monotonic() + options.budget
    fraction = "0.5" if options.jobs < 3 else f"{1 / options.jobs:.2f}"
    failures = 0
    build.ensure()
    with (
        tempfile.TemporaryDirectory(prefix="gpupool-check-") as name,
        ThreadPoolExecutor(options.jobs) as threads,
    ):
        folder = Path(name)
        folder.chmod(0o711)
        named = [each for each in PROGRAMS if not wanted or each.name.split(".")[0] in wanted]
        chosen = [each for each in named if each.gpus <= options.gpus]
        compiling = {each: threads.submit(command_of, each.name, folder) for each in chosen}
        # One after the other: a GPU is offered by one server at a time.
        for kind in ("Unix socket", "TLS"):
            far = kind == "TLS"
            encryption = "tls" if far else "off"
            pool = RealPool(
                folder / kind.split()[0], encryption=encryption, remote=far, bare=options.bare
            )

            def one(program: Program, pool: RealPool = pool) -> tuple[list[str], bool]:
                if end - time.monotonic() < 25:
                    return [f"skip {program.label}: no time left"], True
                try:
                    command = compiling[program].result()
                except (OSError, subprocess.SubprocessError) as error:
                    return [f"FAIL {program.label}: cannot be compiled: {error}"], False
                return both(pool, program, command, fraction, options.limit)

            try:
                print(f"--- {kind}", flush=True)
                for lines, good in threads.map(one, [p for p in chosen if p.tls or not far]):
                    print("\n".join(lines), flush=True)
                    failures += not good
                if not far:
                    failures += failures_of(pool, folder)
                    print(pool.command("gpus").stdout)
                    print(pool.run(["nvidia-smi"], "-p", "0.5", limit=20, name="smi").output)
            finally:
                pool.stop()
                if failures:
                    print(pool.log.read_text()[-2500:])
    return failures


if __name__ == "__main__":
    sys.exit(main())
