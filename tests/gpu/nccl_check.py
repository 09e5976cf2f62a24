"""NCCL between two servers in one lease, beside native; needs a machine with two GPUs and PyTorch.

    python tests/gpu/nccl_check.py [--only NAME,...] [--budget SECONDS] [--encryption tls|off]

Two ``gpupool join`` on this machine offer one GPU each. Native and remote runs are held to the same
transport (``NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1``). Prints one line for each case, with figures;
the exit status is the number of cases that failed. The servers' workers get the machine's network
(``GPUPOOL_UNCONFINED``), without which NCCL cannot connect; with ``GPUPOOL_NCCL_PORTS`` in the
environment they are held to those ports instead.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import agrees  # noqa: E402
from leasing import Outcome, RealPool, run  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402
from gpupool.remoting.host.isolation.confinement import PORTS_VARIABLE, VARIABLE  # noqa: E402

ACROSS = ("-n", "2", "--across", "--no-wait")
PROGRAM = str(HERE / "cuda_programs" / "torch_nccl.py")
JAX_PROGRAM = str(HERE / "cuda_programs" / "jax_nccl.py")
TRANSPORT = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
LOSS_LIMIT_S = 8.0
LOSS_TOLERANCE = 1e-3
"""Of a training's losses, which differ in the fourth decimal between native runs."""

CASES = {
    # name: the program with its words, its limit, whether torchrun starts it
    "reduce": ([PROGRAM, "reduce"], 120.0, False),
    "collectives": ([PROGRAM, "collectives"], 90.0, False),
    "ddp": ([PROGRAM, "ddp"], 120.0, False),
    "fsdp": ([PROGRAM, "fsdp"], 120.0, False),
    "torchrun": ([PROGRAM, "ddp", "--short"], 120.0, True),
    "jax": ([JAX_PROGRAM], 150.0, False),
}


def command(words: list[str], torchrun: bool) -> list[str]:
    if torchrun:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [sys.executable, *launcher, *words]
    return [sys.executable, *words]


def compare(name: str, native: Outcome, remote: Outcome) -> bool:
    """Print a case; return whether results are equal and speeds near."""
    ended = native.code == remote.code == 0 and native.results.keys() == remote.results.keys()
    good = ended and all(
        agrees(value, remote.results[key], LOSS_TOLERANCE) for key, value in native.results.items()
    )
    print(f"{'pass' if good else 'FAIL'} {name}: exits {native.code} {remote.code}, ", end="")
    print(f"{native.seconds:.1f} s native, {remote.seconds:.1f} s remote")
    pairs = [re.findall(r"^FIGURE (.+) (\S+) (\S+)$", one.output, re.M) for one in (native, remote)]
    ours = {what: float(value) for what, value, _ in pairs[1]}
    for what, value, unit in pairs[0]:
        share = ours.get(what, 0.0) / float(value)
        print(f"    {what}: native {value}, remote {ours.get(what, 0.0):g} {unit}, {share:.0%}")
    if not good:
        for one in (native, remote):
            print("    | " + "\n    | ".join(one.output.splitlines()[-30:]))
    sys.stdout.flush()
    return good


def loss(pool: RealPool) -> bool:
    """Kill the second server under a program; say whether both its ranks heard in time."""
    environment = pool.env | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        pool.words(command([PROGRAM, "hold"], False), *ACROSS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    started, lines, seconds = time.monotonic(), list[str](), list[float]()
    killed = False
    for line in process.stdout:
        lines.append(line)
        if line == "holding\n" and not killed:
            time.sleep(1)
            pool.servers[1].process.send_signal(signal.SIGKILL)
            started, killed = time.monotonic(), True
        if line.startswith("heard"):
            seconds.append(time.monotonic() - started)
        if time.monotonic() - started > 60:
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    good = killed and code == 125 and time.monotonic() - started < LOSS_LIMIT_S
    print(f"{'pass' if good else 'FAIL'} one server killed: exit {code}, heard after {seconds} s, ")
    print(f"    over after {time.monotonic() - started:.1f} s")
    print("    | " + "\n    | ".join("".join(lines).splitlines()[-12:]), flush=True)
    return good


def two_clients(pool: RealPool, folder: Path) -> bool:
    """Let two programs of one lease, which see one device each, train together."""
    script = folder / "both.sh"
    start = f"{sys.executable} {PROGRAM} ddp --short --rank"
    script.write_text(
        "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29571 WORLD_SIZE=2\n"
        f"CUDA_VISIBLE_DEVICES=1 RANK=1 LOCAL_RANK=0 {start} 1 & other=$!\n"
        f"CUDA_VISIBLE_DEVICES=0 RANK=0 LOCAL_RANK=0 {start} 0; mine=$?\n"
        "wait $other; theirs=$?; exit $((mine + theirs))\n"
    )
    words = ["bash", str(script)]
    native = run(words, 120, folder / "two-native.log", dict(os.environ) | TRANSPORT)
    remote = pool.run(words, *ACROSS, limit=120, name="two-clients")
    return compare("two clients", native, remote)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=f"of {', '.join(CASES)}, two, loss")
    parser.add_argument("--budget", type=float, default=520)
    parser.add_argument("--encryption", choices=["tls", "off"], default="off")
    options = parser.parse_args()
    wanted = {name for name in options.only.split(",") if name}
    end = time.monotonic() + options.budget
    build.ensure()
    os.environ.update(TRANSPORT)
    if PORTS_VARIABLE not in os.environ:
        os.environ[VARIABLE] = "network,landlock-network,system-calls"
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        place = folder / "pool"
        pool = RealPool(place, "--gpus", "0", encryption=options.encryption, remote=True)
        try:
            pool.join("second", "--gpus", "1")
            print(pool.command("gpus").stdout, flush=True)
            for case, (words, limit, torchrun) in CASES.items():
                if (wanted and case not in wanted) or end - time.monotonic() < 30:
                    continue
                program = command(words, torchrun)
                native = run(program, limit, place / f"{case}-native.log", dict(os.environ))
                remote = pool.run(program, *ACROSS, limit=limit, name=case)
                failed += not compare(case, native, remote)
            if not wanted or "two" in wanted:
                failed += not two_clients(pool, folder)
            if not wanted or "loss" in wanted:
                failed += not loss(pool)
        finally:
            for server in reversed(pool.servers):
                server.process.kill()
                server.process.wait()
                if failed:
                    print(server.log.read_text()[-4000:])
    return failed


if __name__ == "__main__":
    sys.exit(main())
