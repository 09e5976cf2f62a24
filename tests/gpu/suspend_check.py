"""Suspend and resume programs on a pool of this machine with its real GPU; root, one H200.

    python tests/gpu/suspend_check.py [--budget SECONDS] [--only NAMES] [--direct]

``same``: ResNet-50, GPT-2, JAX and CuPy are each suspended five times in mid-run; every value that
they print must be that of an undisturbed run. ``speed``: bytes a second out and back, natively
and through a pool. ``preempt``: an interactive lease takes the GPU from a training one. ``move``
(only when named; two GPUs): GPT-2 and CuPy by the CUDA door are moved five times between two GPUs
in mid-run; every value must be that of an undisturbed run on one. It uses ``gpupool suspend``;
with ``--direct``, or where there is no such command, what the host calls. With ``--spill`` what is
suspended goes on to that folder, and the memory of its worker must be free.
The exit status is the number of cases that failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from leasing import GPUPOOL, RealPool  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402
from gpupool.remoting.host import host_memory  # noqa: E402
from gpupool.remoting.host.suspension import checkpointer  # noqa: E402

PROGRAM = str(HERE / "cuda_programs" / "suspended.py")
BEGAN = time.monotonic()
MIB, GIB = 1 << 20, 1 << 30
LEFT_MAX = 64 * MIB
SPILLED_MAX = 2 * GIB
"""Limit of a spilled worker's resident memory, with the ends of the driver's memory."""

OUT_BAR, BACK_BAR = 2.0, 4.0  # GB/s
FIRST_BAR_S = 20.0
MODEL_GIB = 4
TIMES = 5
ENDLESS = "100000"
say_lock = threading.Lock()


def say(*words: object) -> None:
    with say_lock:
        print(f"[{time.monotonic() - BEGAN:5.1f}]", *words, flush=True)


def gpu_memory() -> dict[int, int]:
    """Return the bytes that each process has on GPUs."""
    fields = "--query-compute-apps=pid,used_memory"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    return {int(pid): int(size) * MIB for pid, size in rows if size.strip().isdigit()}


def descendants(pid: int) -> list[int]:
    """Return a process and all that come from it."""
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(word) for word in path.read_text().split()]
            except OSError:
                continue
    return found


@dataclass
class Running:
    """A program that prints steps."""

    name: str
    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list[str])
    other: list[str] = field(default_factory=list[str])

    def read(self, source: IO[str]) -> None:
        for line in source:
            (self.lines if line.startswith(("STEP", "DONE")) else self.other).append(line.strip())

    def wait_steps(self, count: int, seconds: float) -> bool:
        """Wait for some steps more; return whether they came."""
        wanted = len(self.lines) + count
        end = time.monotonic() + seconds
        while len(self.lines) < wanted and self.process.poll() is None:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return len(self.lines) >= wanted or self.done()

    def done(self) -> bool:
        return bool(self.lines) and self.lines[-1] == "DONE"


def start(name: str, words: list[str], env: dict[str, str]) -> Running:
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env | {"PYTHONUNBUFFERED": "1"},
    )
    running = Running(name, process)
    assert process.stdout is not None
    threading.Thread(target=running.read, args=(process.stdout,), daemon=True).start()
    return running


class Suspender:
    """Suspends a pool's work: by its command, or by its host's calls."""

    def __init__(self, pool: RealPool, *, direct: bool, spills: bool = False) -> None:
        self.pool, self.spills = pool, spills
        has = pool.command("suspend", "--help").returncode == 0
        self.direct = direct or not has
        say("suspension by", "the host's calls" if self.direct else "gpupool suspend")

    def latest_lease(self) -> str:
        leases = json.loads(self.pool.command("leases", "--json").stdout)["leases"]
        return max((str(each["name"]) for each in leases), key=lambda name: int(name, 16))

    def new_worker(self, before: set[int]) -> int:
        """Return the worker that has come to have GPU memory."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ours = set(descendants(self.pool.server.pid))
            if new := [pid for pid in gpu_memory() if pid in ours - before]:
                return new[0]
            time.sleep(0.1)
        raise RuntimeError("no worker has GPU memory")

    def out(self, lease: str, worker: int, size: int) -> float:
        """Suspend; return the seconds that it took."""
        began = time.monotonic()
        if self.direct:
            outcome = checkpointer.suspend([worker], size)
            if outcome.problem:
                raise RuntimeError(outcome.problem)
        else:
            spilled = self._spilled()
            self._command("suspend", lease)
            self._until(lambda: gpu_memory().get(worker, 0) <= LEFT_MAX, "the memory stays")
            if self.spills:
                self._until(lambda: self._spilled() > spilled, "it stays in memory")
                if (left := host_memory.resident(worker)) > SPILLED_MAX:
                    raise RuntimeError(f"its worker has {left} bytes")
        return time.monotonic() - began

    def _spilled(self) -> int:
        return self.pool.log.read_text().count("on the disk")

    def back(self, lease: str, worker: int, size: int) -> float:
        """Resume; return the seconds that it took."""
        began = time.monotonic()
        if self.direct:
            outcome = checkpointer.resume([worker], size)
            if outcome.problem:
                raise RuntimeError(outcome.problem)
        else:
            self._command("resume", lease)
            self._until(lambda: gpu_memory().get(worker, 0) >= size * 0.95, "no memory comes back")
        return time.monotonic() - began

    def _command(self, *words: str) -> None:
        done = self.pool.command(*words)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or done.stdout.strip())

    def _until(self, holds: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + 60
        while not holds():
            if time.monotonic() > end:
                said = [self.pool.command(each).stdout for each in ("leases", "gpus", "events")]
                raise RuntimeError("\n".join([problem, *said]))
            time.sleep(0.05)


def run_words(program: list[str], *options: str) -> list[str]:
    return [*GPUPOOL, "run", "-v", *options, "--", sys.executable, *program]


def first_other(some: list[str], others: list[str]) -> int:
    """Return the first step at which two runs differ, or -1."""
    return next((i for i, (a, b) in enumerate(zip(some, others, strict=False)) if a != b), -1)


KINDS = ("resnet", "gpt2", "jax", "cupy")


def same(pool: RealPool, suspender: Suspender, steps: int, kinds: tuple[str, ...] = KINDS) -> int:
    """Compare programs that are suspended in mid-run with undisturbed ones."""
    # Twice: what differs between two native runs proves nothing.
    native, again = (
        {
            kind: start(kind, [sys.executable, PROGRAM, kind, ENDLESS], dict(os.environ))
            for kind in kinds
        }
        for _ in range(2)
    )
    failed: list[str] = []
    cases: list[tuple[str, Running, str, int]] = []
    threads: list[threading.Thread] = []

    def disturb(kind: str, running: Running, lease: str, worker: int) -> None:
        try:
            for turn in range(TIMES):
                if not running.wait_steps(steps, 60):
                    raise RuntimeError(f"it does not run (turn {turn})")
                size = gpu_memory().get(worker, 0)
                took = suspender.out(lease, worker, size)
                time.sleep(0.3)
                left, at = gpu_memory().get(worker, 0), len(running.lines)
                time.sleep(0.3)
                if left > LEFT_MAX or len(running.lines) > at:
                    raise RuntimeError(f"{left // MIB} MiB left, {len(running.lines) - at} steps")
                back = suspender.back(lease, worker, size)
                say(kind, f"{size / 1e9:.2f} GB, out {took:.2f} s, back {back:.2f} s, left {left}")
            running.wait_steps(steps, 60)
        except Exception as error:  # noqa: BLE001 - one case, and the others go on
            failed.append(kind)
            say(kind, "FAILED:", error, *running.other[-8:])

    for kind in kinds:
        # One that is suspended at the moment has nothing on the GPU, and comes back.
        before = {*gpu_memory(), *(worker for _, _, _, worker in cases)}
        options = ["-p", "0.2", "--door", "arrays" if kind == "cupy" else "cuda"]
        running = start(kind, run_words([PROGRAM, kind, ENDLESS], *options), pool.env)
        try:
            worker = suspender.new_worker(before)
            case = (kind, running, suspender.latest_lease(), worker)
            cases.append(case)
            threads.append(threading.Thread(target=disturb, args=case))
            threads[-1].start()  # the others start meanwhile
        except RuntimeError as error:
            failed.append(kind)
            say(kind, "FAILED to start:", error, *running.other[-5:])

    for thread in threads:
        thread.join()
    for kind, running, _, _ in cases:
        found = list(running.lines)
        for each in (native[kind], again[kind]):
            each.wait_steps(max(0, len(found) - len(each.lines)), 60)
        expected, other = (each.lines[: len(found)] for each in (native[kind], again[kind]))
        at = first_other(expected, other)
        if expected != other:
            lengths = f"steps: {len(expected)}, {len(other)}, remote {len(found)}"
            say(kind, f"differs between two native runs, first at step {at}; {lengths}")
            say("   ", *(each[at : at + 1] for each in (expected, other, found)))
            continue
        at = first_other(expected, found)
        if expected == found and len(found) > (TIMES + 1) * steps:
            say(kind, "suspended", TIMES, "times:", len(found), "steps are identical")
        else:
            say(kind, f"DIFFERS at step {at} of {len(found)}, natively {len(expected)}")
            say("   native", expected[at : at + 1], "remote", found[at : at + 1])
            say("   ", *running.other[-5:])
            failed.append(kind)
    for each in (*native.values(), *again.values(), *(case[1] for case in cases)):
        each.process.kill()
    return len(set(failed))


MOVED = ("gpt2", "cupy")


def gpus_of(worker: int) -> dict[str, int]:
    """Return the bytes that a process has on each GPU, as NVML says."""
    fields = "--query-compute-apps=pid,gpu_uuid,used_memory"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(", ") for line in text.splitlines() if line.startswith(f"{worker},")]
    return {uuid: int(size) * MIB for _, uuid, size in rows if int(size) > 0}


def move(pool: RealPool, suspender: Suspender, steps: int) -> int:
    """Move programs between two GPUs in mid-run, and compare them with undisturbed ones."""
    failed = 0
    for kind in MOVED:
        native = start(kind, [sys.executable, PROGRAM, kind, ENDLESS], dict(os.environ))
        options = ["-p", "0.4", "--door", "cuda"]
        before = set(gpu_memory())
        running = start(kind, run_words([PROGRAM, kind, ENDLESS], *options), pool.env)
        try:
            worker = suspender.new_worker(before | {native.process.pid})
            lease = suspender.latest_lease()
            for turn in range(TIMES):
                if not running.wait_steps(steps, 60):
                    raise RuntimeError(f"it does not run (turn {turn})")
                here = gpus_of(worker)
                leases = json.loads(pool.command("gpus", "--json").stdout)
                began = time.monotonic()
                to = str(1 - index_of(leases, next(iter(here))))
                done = pool.command("move", lease, "--to", to)
                took = time.monotonic() - began
                there = gpus_of(worker)
                if done.returncode or not there or here.keys() & there.keys():
                    raise RuntimeError(f"{here} to {there}: {done.stderr.strip()}")
                size = sum(there.values())
                say(kind, f"{size / 1e9:.2f} GB to GPU {to} in {took:.2f} s", done.stderr.strip())
            running.wait_steps(steps, 60)
        except Exception as error:  # noqa: BLE001 - one case, and the other goes on
            failed += 1
            say(kind, "FAILED:", error, *running.other[-8:])
        found = list(running.lines)
        native.wait_steps(max(0, len(found) - len(native.lines)), 60)
        expected = native.lines[: len(found)]
        alike = expected == found and len(found) > (TIMES + 1) * steps
        at = first_other(expected, found)
        say(kind, f"moved: {len(found)} steps, {'identical' if alike else f'DIFFERS at {at}'}")
        failed += not alike
        for each in (native, running):
            each.process.kill()
    return failed


def index_of(view: object, uuid: str) -> int:
    """Return the number of a GPU; ``gpupool gpus --json`` has to list the GPU."""
    text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert uuid in json.dumps(view), f"{uuid} is not in the pool"
    return next(i for i, line in enumerate(text.splitlines()) if uuid in line)


def speed(pool: RealPool, suspender: Suspender, ballast: int) -> int:
    """Measure a training of 20 GiB, natively and behind the CUDA door."""
    failed = 0
    for title in ("native", "remote"):
        before = set(gpu_memory())
        program = [PROGRAM, "gpt2", ENDLESS, str(ballast)]
        if title == "native":
            running = start(title, [sys.executable, *program], dict(os.environ))
            worker, lease = running.process.pid, ""
        else:
            running = start(title, run_words(program, "-p", "0.5", "--door", "cuda"), pool.env)
            worker, lease = suspender.new_worker(before), suspender.latest_lease()
        running.wait_steps(10, 60)
        means = suspender
        if title == "native":
            means = object.__new__(Suspender)
            means.pool, means.direct, means.spills = pool, True, False
        for _ in range(2):
            size = gpu_memory().get(worker, 0)
            out = means.out(lease, worker, size)
            left = gpu_memory().get(worker, 0)
            back = means.back(lease, worker, size)
            goes_on = running.wait_steps(3, 20)
            held = host_memory.resident(worker) // MIB
            good = size / out / 1e9 >= OUT_BAR and size / back / 1e9 >= BACK_BAR
            good = good and left <= LEFT_MAX and goes_on
            say(
                f"{title}: {size / 1e9:.1f} GB, out {size / out / 1e9:.2f} GB/s ({out:.1f} s), "
                f"back {size / back / 1e9:.2f} GB/s ({back:.1f} s), left {left // MIB} MiB, "
                f"{'goes on' if goes_on else 'STANDS STILL'}, {'good' if good else 'BAD'}, "
                f"{held} MiB of the machine's memory afterwards"
            )
            failed += title == "remote" and not good
        running.process.kill()
        running.process.wait()
        time.sleep(2)
    return failed


POLICY = """\
[class.training]
users = ["trainer"]
preemptible = true
min_run_time = "1s"

[class.urgent]
users = ["boss"]
priority = 10
"""


def login(pool: RealPool, user: str) -> dict[str, str]:
    """Return the environment of a user with a separate token."""
    told = pool.command("token", "create", "--user", user, "--json")
    file = pool.folder / f"{user}.json"
    done = pool.command("login", json.loads(told.stdout)["token"], "--credentials", str(file))
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return pool.env | {"GPUPOOL_CREDENTIALS": str(file)}


def preempt(pool: RealPool, ballast: int) -> int:
    """Let an interactive lease of a user with priority take the whole GPU from a training one."""
    policy = pool.folder / "policy.toml"
    policy.write_text(POLICY)
    applied = pool.command("policy", "apply", str(policy))
    if applied.returncode:
        say("preempt FAILED to start:", applied.stderr.strip())
        return 1
    program = [PROGRAM, "gpt2", ENDLESS, str(ballast)]
    whole = ("-p", "1", "--door", "cuda")
    training = start("training", run_words(program, *whole), login(pool, "trainer"))
    if not training.wait_steps(10, 60):
        say("preempt FAILED to start:", *training.other[-5:])
        return 1
    code = "import torch; print('STEP', float(torch.ones(1000, device='cuda').sum()), flush=True)"
    boss = login(pool, "boss")
    began = time.monotonic()
    asking = start("interactive", run_words(["-c", code], *whole), boss)
    came = asking.wait_steps(1, 60)
    took = time.monotonic() - began
    asking.process.wait(30)
    goes_on = training.wait_steps(3, 60)
    back = time.monotonic() - began - took
    good = came and took <= FIRST_BAR_S and goes_on
    say(
        f"preempt: first operation after {took:.1f} s, training goes on: {goes_on}, {back:.1f} s "
        f"after that, {'good' if good else 'BAD'}"
    )
    say(*asking.other[-8:], "|", *training.other[-8:])
    training.process.kill()
    return int(not good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=250.0)
    parser.add_argument("--only", default="same,speed,preempt")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ballast", type=int, default=20, help="GiB; the model takes 4 more")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--spill", default="", help="a folder where anybody may write")
    arguments = parser.parse_args()
    build.ensure()
    folder = Path(tempfile.mkdtemp(prefix="gpupool-suspend-"))
    spill = ("--suspend-memory", "1MiB", "--suspend-spill", arguments.spill)
    pool = RealPool(folder, *(spill if arguments.spill else ()))
    failed = 0
    try:
        suspender = Suspender(pool, direct=arguments.direct, spills=bool(arguments.spill))
        parts: dict[str, Callable[[], int]] = {
            "same": lambda: same(pool, suspender, arguments.steps),
            "move": lambda: move(pool, suspender, arguments.steps),
            "speed": lambda: speed(pool, suspender, arguments.ballast),
            "preempt": lambda: preempt(pool, arguments.ballast - MODEL_GIB),
        }
        for name in arguments.only.split(","):
            if time.monotonic() - BEGAN > arguments.budget - 60:
                say("no time for", name)
            elif name == "preempt" and suspender.direct:
                say("no preemption without gpupool suspend")
            else:
                failed += parts[name]()
    finally:
        say("the server's log:", *pool.log.read_text().splitlines()[-15:])
        pool.stop()
    say(failed, "failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
