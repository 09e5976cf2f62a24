"""Shares of one real GPU's time through a pool of this machine; root, one H200, 125 s a round.

    python tests/gpu/share_check.py [--rounds N] [--seconds N]

Endless programs with shares 0.75 and 0.25 launch kernels: "short" is bound by its launches, "long"
by the GPU with kernels of 0.1 ms, "large" by the GPU with kernels of 2 ms. Each round runs each
kind with the whole GPU, with a share, with that share beside a lease that does nothing, and each
pair of kinds, natively and through the pool. What counts is the median of the rounds; sums are in
parts of one program alone. The exit status is the number of bars missed.
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from leasing import RealPool  # noqa: E402
from share_probe import PTX, U64  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

SHARES = (0.75, 0.25)
KINDS = {"short": (1, 10, 64), "long": (2112, 700, 64), "large": (2112, 14_000, 16)}
"""Blocks and rounds of a kernel, and how many of them between two events."""

PAIRS = (
    *(("long", "long"), ("large", "large"), ("short", "short")),
    *(("long", "short"), ("short", "long"), ("large", "short")),
)
POINTS, SUM_BAR, IDLE_BAR, COST_BAR = 0.05, 0.95, 0.97, 0.99
SETTLE_S = 1.0
MORE_S = 2.0  # for each of two at once
SIZE = ("-p", "0.4")


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
        self.blocks, rounds, self.ahead = KINDS[kind]
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
            for _ in range(self.ahead):
                self.call("cuLaunchKernel", self.function, *sizes, U64(0), self.parameters, U64(0))
            self.call("cuEventRecord", self.events[turn % 2], U64(0))
            turn += 1
            if turn > 1:  # One batch is always under way while the next is launched.
                self.call("cuEventSynchronize", self.events[turn % 2])
                done += self.ahead
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


class Check:
    """Runs programs in rounds, and prints the medians of their figures."""

    def __init__(self, pool: RealPool, seconds: float) -> None:
        self.pool, self.seconds = pool, seconds
        self.missed = 0
        self.found: dict[tuple[str, ...], list[list[float]]] = {}
        self.asked = [(*SIZE, "--share", str(share)) for share in SHARES]

    def program(self, kind: str, more_s: float = 0.0) -> list[str]:
        words = [sys.executable, str(Path(__file__).resolve()), "--program", kind]
        return [*words, "--seconds", str(self.seconds + more_s)]

    def remote(self, kind: str, options: tuple[str, ...], more_s: float = 0.0) -> list[str]:
        return self.pool.words(self.program(kind, more_s), *options)

    def note(self, case: tuple[str, ...], got: list[float]) -> None:
        self.found.setdefault(case, []).append(got)
        print(*case, [round(rate) for rate in got], "kernels/s", flush=True)

    def round(self) -> None:
        """Run each case once."""
        for kind in KINDS:
            self.note(("native", kind), rates([self.program(kind)], None))
            for name, options in (("whole", ("-p", "1")), ("share", self.asked[0])):
                self.note((name, kind), rates([self.remote(kind, options)], self.pool.env))
            idle = subprocess.Popen(
                self.remote("idle", self.asked[1], MORE_S),
                env=self.pool.env,
                stdout=subprocess.PIPE,
            )
            assert idle.stdout is not None
            idle.stdout.readline()  # It holds its lease, and has a context.
            self.note(("beside", kind), rates([self.remote(kind, self.asked[0])], self.pool.env))
            idle.communicate(timeout=60)
        for kinds in PAIRS:
            self.note(
                ("native", *kinds), rates([self.program(kind, MORE_S) for kind in kinds], None)
            )
            words = [
                self.remote(kind, options, MORE_S)
                for kind, options in zip(kinds, self.asked, strict=True)
            ]
            self.note(("share", *kinds), rates(words, self.pool.env))

    def middle(self, *case: str) -> list[float]:
        return [statistics.median(each) for each in zip(*self.found[case], strict=True)]

    def tell(self, text: str, *, good: bool = True) -> None:
        self.missed += not good
        print(text if good else f"{text}  MISSED", flush=True)

    def tell_all(self) -> None:
        for kind in KINDS:
            native, whole, share, beside = (
                self.middle(name, kind)[0] for name in ("native", "whole", "share", "beside")
            )
            self.tell(f"{kind} alone: {1e6 / native:.1f} us each, pool {whole / native:.3f} of it")
            cost = share / whole
            self.tell(f"{kind} with a share, alone: {cost:.3f} of that", good=cost >= COST_BAR)
            part = beside / share
            self.tell(f"{kind} beside an idle lease: {part:.3f} of that", good=part >= IDLE_BAR)
        for kinds in PAIRS:
            for name in ("native", "share"):
                alone = [self.middle(name, kind)[0] for kind in kinds]
                got = self.middle(name, *kinds)
                parts = [a / b for a, b in zip(got, alone, strict=True)]
                total = sum(parts)
                good = abs(parts[0] / total - SHARES[0]) <= POINTS and total >= SUM_BAR
                shown = ", ".join(f"{each / total:.3f}" for each in parts)
                self.tell(
                    f"{name}, {' and '.join(kinds)}: got {shown}, sum {total:.3f}",
                    good=good or name == "native",
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program")
    arguments = parser.parse_args()
    if arguments.program == "idle":
        Program("long")
        print("ready", flush=True)
        time.sleep(arguments.seconds)
        return 0
    if arguments.program:
        Program(arguments.program).run(arguments.seconds)
        return 0
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-share-") as made:
        pool = RealPool(Path(made))
        check = Check(pool, arguments.seconds)
        try:
            for _ in range(arguments.rounds):
                check.round()
        finally:
            pool.stop()
    check.tell_all()
    return check.missed


if __name__ == "__main__":
    sys.exit(main())
