"""How two endless programs can share a GPU's time: an experiment on one real GPU.

Usage: python tests/gpu/share_probe.py [--seconds N]; needs libcuda alone, about 80 s. Two processes
launch kernels of a known amount of work, short ones or long ones. Shares are 0.75 and 0.25.

free   nobody steers: what the hardware's own slices give.
turns  only who has the turn launches; at its end what is under way is waited for. Who wants nothing
       is passed over. Printed for several lengths of a turn.
duty   each launches for a part of each period, and the part follows what was got.

Each line: the share that each got, and the work of both together in parts of one program's alone.
"""

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry burn(.param .u64 n) {
 .reg .u64 %rd<3>; .reg .f32 %f<2>; .reg .pred %q<3>;
 ld.param.u64 %rd1, [n]; cvt.rn.f32.u64 %f1, %rd1;
again: fma.rn.f32 %f1, %f1, %f1, %f1; fma.rn.f32 %f1, %f1, %f1, %f1;
 sub.u64 %rd1, %rd1, 1; setp.ne.u64 %q1, %rd1, 0; @%q1 bra again;
 setp.eq.f32 %q2, %f1, 0f42280000; mov.u64 %rd2, 0; @%q2 st.global.f32 [%rd2], %f1;
 ret; }
\0"""
"""Its store never happens. Without one the driver's compiler leaves an empty kernel."""

U64 = ctypes.c_uint64
SHARES = (0.75, 0.25)
KINDS = {"long": (2112, 700), "short": (1, 10)}  # blocks, and rounds of each kernel
AHEAD = 64  # kernels under way
FREE, TURNS, DUTY, STOP = range(4)
MODE, TURN, CONTENDED = 0, 1, 2  # words of the page
DONE, WANTS, DRAINED, PART = 8, 12, 16, 20  # and arrays in it


class Page:
    """Words that the host and the programs share."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 4096)
        self.words = (ctypes.c_int64 * 64).from_buffer(self._memory)


class Program:
    """Launches kernels without end, as the page lets it."""

    def __init__(self, page: Page, me: int, kind: str) -> None:
        self.words, self.me = page.words, me
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module, function = U64(), U64(), U64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"burn")
        self.function = function
        self.blocks, rounds = KINDS[kind]
        self.rounds = U64(rounds)
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.rounds))
        self.events = [U64() for _ in range(AHEAD)]
        for event in self.events:
            self.call("cuEventCreate", ctypes.byref(event), 2)
        self.launched = self.finished = 0

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} answers {result}")

    def launch(self) -> None:
        if self.launched - self.finished >= AHEAD:
            self.wait_one()
        sizes = (self.blocks, 1, 1, 256, 1, 1, 0)
        self.call("cuLaunchKernel", self.function, *sizes, U64(0), self.parameters, U64(0))
        self.call("cuEventRecord", self.events[self.launched % AHEAD], U64(0))
        self.launched += 1

    def wait_one(self) -> None:
        self.call("cuEventSynchronize", self.events[self.finished % AHEAD])
        self.finished += 1
        self.words[DONE + self.me] = self.finished

    def drain(self) -> None:
        while self.finished < self.launched:
            self.wait_one()

    def run(self) -> None:
        words, me = self.words, self.me
        began = time.monotonic()
        while (mode := words[MODE]) != STOP:
            words[WANTS + me] = time.monotonic_ns()
            if mode == TURNS and words[CONTENDED] and words[TURN] != me:
                self.drain()
                words[DRAINED + me] = 1
                while words[MODE] == TURNS and words[CONTENDED] and words[TURN] != me:
                    words[WANTS + me] = time.monotonic_ns()
                    time.sleep(0.00005)
                continue
            if mode == DUTY and words[CONTENDED]:
                at = (time.monotonic() - began) % 0.02
                if at > 0.02 * words[PART + me] / 1000:
                    self.drain()
                    time.sleep(max(0.0, 0.02 - at))
                    continue
            self.launch()
        self.drain()


def give_turns(page: Page, seconds: float, turn_s: float) -> None:
    """Let waiting processes launch, one after the other, for parts of ``turn_s``."""
    words, end, owner = page.words, time.monotonic() + seconds, 0
    while time.monotonic() < end:
        now = time.monotonic_ns()
        wanting = [i for i in (0, 1) if now - words[WANTS + i] < 5_000_000]
        words[CONTENDED] = int(len(wanting) > 1)
        if len(wanting) > 1:
            other = 1 - owner
            words[DRAINED + owner] = 0
            words[TURN] = -1
            while words[CONTENDED] and not words[DRAINED + owner] and time.monotonic() < end:
                if time.monotonic_ns() - words[WANTS + owner] > 5_000_000:
                    break
            owner, words[TURN] = other, other
        time.sleep(turn_s * 2 * SHARES[owner])
    words[CONTENDED] = 0


def steer_duty(page: Page, seconds: float) -> None:
    """Adjust the parts to the work done by each process, every 100 ms."""
    words, end = page.words, time.monotonic() + seconds
    parts, before = [0.75, 0.25], [words[DONE], words[DONE + 1]]
    words[CONTENDED] = 1
    while time.monotonic() < end:
        words[PART], words[PART + 1] = (int(1000 * part) for part in parts)
        time.sleep(0.1)
        now = [words[DONE], words[DONE + 1]]
        got = [b - a for a, b in zip(before, now, strict=True)]
        before = now
        if sum(got):
            share = got[0] / sum(got)
            parts[1] = min(1.0, max(0.02, parts[1] * (1 + (share - SHARES[0]))))
            parts[0] = min(1.0, max(0.02, parts[0] * (1 - (share - SHARES[0]))))
    words[CONTENDED] = 0


def measure(kinds: tuple[str, ...], seconds: float, mode: int, turn_s: float = 0.0) -> list[float]:
    """Return the kernels a second of each program."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        page = Page(file.name)
        words = [sys.executable, str(Path(__file__).resolve()), "--page", file.name]
        programs = [
            subprocess.Popen([*words, "--program", str(i), kind]) for i, kind in enumerate(kinds)
        ]
        while not all(page.words[DONE + i] for i in range(len(kinds))):
            if any(program.poll() is not None for program in programs):
                raise RuntimeError("a program ended")
            time.sleep(0.01)
        page.words[MODE] = mode
        time.sleep(0.3)
        start = [page.words[DONE + i] for i in range(len(kinds))]
        began = time.monotonic()
        if mode == TURNS:
            give_turns(page, seconds, turn_s)
        elif mode == DUTY:
            steer_duty(page, seconds)
        else:
            time.sleep(seconds)
        took = time.monotonic() - began
        rates = [(page.words[DONE + i] - start[i]) / took for i in range(len(kinds))]
        page.words[MODE] = STOP
        for program in programs:
            program.wait(20)
        return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--page")
    parser.add_argument("--program", nargs=2)
    arguments = parser.parse_args()
    if arguments.program:
        number, kind = arguments.program
        Program(Page(arguments.page), int(number), kind).run()
        return
    print("pid", os.getpid(), "shares due", SHARES, flush=True)
    seconds = arguments.seconds
    alone = {kind: measure((kind,), seconds, FREE)[0] for kind in KINDS}
    for kind, rate in alone.items():
        print(f"{kind} alone: {rate:.0f} kernels/s, {1e6 / rate:.1f} us each", flush=True)
        lone = measure((kind,), seconds, TURNS, 0.02)[0]
        print(f"{kind} alone, steered: {lone / rate:.3f} of that", flush=True)
    for kinds in (("long", "long"), ("short", "short"), ("long", "short"), ("short", "long")):
        for title, mode, turn_s in (
            ("free", FREE, 0.0),
            ("turns of 5 ms", TURNS, 0.005),
            ("turns of 20 ms", TURNS, 0.02),
            ("turns of 50 ms", TURNS, 0.05),
            ("duty", DUTY, 0.0),
        ):
            try:
                rates = measure(kinds, seconds, mode, turn_s)
            except RuntimeError as error:
                print(kinds, title, "broken:", error, flush=True)
                continue
            parts = [rate / alone[kind] for kind, rate in zip(kinds, rates, strict=True)]
            got = ", ".join(f"{part / sum(parts):.3f}" for part in parts)
            print(
                f"{kinds[0]} and {kinds[1]}, {title}: got {got}, sum {sum(parts):.3f}", flush=True
            )


if __name__ == "__main__":
    main()
