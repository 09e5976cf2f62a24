"""Shares of one real GPU's time through a pool of this machine; root, one H200, about 110 s.

    python tests/gpu/share_check.py [--seconds N]

Two endless programs with shares 0.75 and 0.25 launch long kernels or short ones, alone, together,
natively and through the pool; and one beside a lease that does nothing. Each line says what each
got, and the sum in parts of one program alone. The exit status is the number of bars missed.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from leasing import RealPool  # noqa: E402
from share_probe import KINDS, PTX, U64  # noqa: E402

SHARES = (0.75, 0.25)
AHEAD = 64
POINTS, SUM_BAR, IDLE_BAR = 0.05, 0.95, 0.97
SETTLE_S = 1.0


class Program:
    """Launches kernels without end, and prints the time and how many are over."""

    def __init__(self, kind: str) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self.function = U64(), U64(), U64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"burn")
        self.blocks, rounds = KINDS[kind]
        self.rounds = U64(rounds)
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.rounds))
        self.events = [U64(), U64()]
        for event in self.events:
            self.call("cuEventCreate", ctypes.byref(event), 2)

    def call(self, name: str, *arguments: object) -> None:
        if result := getattr(self.cuda, name)(*arguments):
            raise RuntimeError(f"{name} answers {result}")

    def run(self, seconds: float) -> None:
        sizes, done, turn, shown = (self.blocks, 1, 1, 256, 1, 1, 0), 0, 0, 0.0
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for _ in range(AHEAD):
                self.call("cuLaunchKernel", self.function, *sizes, U64(0), self.parameters, U64(0))
            self.call("cuEventRecord", self.events[turn % 2], U64(0))
            turn += 1
            if turn > 1:  # One batch is always under way while the next is launched.
                self.call("cuEventSynchronize", self.events[turn % 2])
                done += AHEAD
            if now - shown > 0.1:
                shown = now
                print(now, done, flush=True)


def rates(commands: list[list[str]], env: dict[str, str] | None) -> list[float]:
    """Return the kernels a second of each program, while all of them run."""
    pipe = subprocess.PIPE
    started = [subprocess.Popen(each, stdout=pipe, text=True, env=env) for each in commands]
    told = [process.communicate(timeout=90)[0] for process in started]
    lines = [[tuple(map(float, line.split())) for line in text.splitlines()] for text in told]
    if not all(lines):
        raise SystemExit("a program printed nothing")
    first = max(each[0][0] for each in lines) + SETTLE_S
    last = min(each[-1][0] for each in lines)
    found: list[float] = []
    for each in lines:
        inside = [(at, done) for at, done in each if first <= at <= last]
        found.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--program")
    arguments = parser.parse_args()
    if arguments.program == "idle":
        Program("long")
        time.sleep(arguments.seconds)
        return 0
    if arguments.program:
        Program(arguments.program).run(arguments.seconds)
        return 0
    return check(arguments.seconds)


def check(seconds: float) -> int:
    missed = 0

    def program(kind: str, more_s: float = 0.0) -> list[str]:
        words = [sys.executable, str(Path(__file__).resolve()), "--program", kind]
        return [*words, "--seconds", str(seconds + more_s)]

    def tell(text: str, *, good: bool = True) -> None:
        nonlocal missed
        missed += not good
        print(text if good else f"{text}  MISSED", flush=True)

    native = {kind: rates([program(kind)], None)[0] for kind in KINDS}
    for kind, rate in native.items():
        tell(f"native, {kind} alone: {rate:.0f} kernels/s")
    with tempfile.TemporaryDirectory(prefix="gpupool-share-") as made:
        pool = RealPool(Path(made))
        try:
            sizes = ("-p", "0.4", "--share")
            asked = [(*sizes, str(share)) for share in SHARES]
            alone: dict[str, float] = {}
            for kind in KINDS:
                alone[kind] = rates([pool.words(program(kind), *asked[0])], pool.env)[0]
                tell(f"pool, {kind} alone: {alone[kind] / native[kind]:.3f} of native")
            idle = subprocess.Popen(pool.words(program("idle", 20), *asked[1]), env=pool.env)
            time.sleep(5)
            part = rates([pool.words(program("long"), *asked[0])], pool.env)[0] / alone["long"]
            tell(f"pool, long beside an idle lease: {part:.3f} of alone", good=part >= IDLE_BAR)
            idle.wait(60)
            for kinds in (("long", "long"), ("short", "short"), ("long", "short")):
                bare = rates([program(kind) for kind in kinds], None)
                parts = [r / native[k] for r, k in zip(bare, kinds, strict=True)]
                got = ", ".join(f"{each / sum(parts):.3f}" for each in parts)
                tell(f"native, {' and '.join(kinds)}: got {got}, sum {sum(parts):.3f}")
                words = [pool.words(program(k), *a) for k, a in zip(kinds, asked, strict=True)]
                found = rates(words, pool.env)
                parts = [r / alone[k] for r, k in zip(found, kinds, strict=True)]
                off = abs(parts[0] / sum(parts) - SHARES[0])
                got = ", ".join(f"{each / sum(parts):.3f}" for each in parts)
                text = f"pool, {' and '.join(kinds)}: got {got}, sum {sum(parts):.3f}"
                tell(text, good=off <= POINTS and sum(parts) >= SUM_BAR)
        finally:
            pool.stop()
    return missed


if __name__ == "__main__":
    sys.exit(main())
