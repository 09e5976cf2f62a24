"""All figures of consensus at the same time, each on cores of its own, on a machine that is idle.

    python tests/benchmarks/quiet_machine.py --seconds 540 --out DIR [--etcd PATH] [--only LANES]

A lane is a row of programs, one after the other, on cores that no other lane has: ``etcd`` (4),
``failover`` (4), ``consensus`` (3; grants too), ``leaders`` (2), ``scale`` (1), and ``swarm``,
which gets the rest, and the cores of each lane that is done. With fewer cores than that lanes share
them, and the figures mean little. Each program is asked for as much as fits its share of
``--seconds``; one that is not done is ended.

``DIR`` gets ``swarm.jsonl`` (see ``many_cores.py``; a later run goes on with it), ``results.csv``
and ``output.txt``, written anew whenever a program ends. Nothing need be installed but the packages
that gpupool imports, ``grpcio`` for etcd's client, a C compiler for ``leaders``, and etcd.
"""

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "benchmarks"
CORES = {"etcd": 4, "failover": 4, "consensus": 3, "leaders": 2, "scale": 1, "swarm": 1}
END_S = 8.0
"""Kept at the end for programs that are interrupted and what they started."""


@dataclass(frozen=True, slots=True)
class Step:
    """One program."""

    name: str
    words: Sequence[str]
    share: float  # of the lane's time; what is left goes to the next step


@dataclass(slots=True)
class Lane:
    """Programs one after the other, on some cores."""

    name: str
    steps: list[Step]
    cores: set[int] = field(default_factory=set[int])
    number: int = 0  # of the step that runs
    process: subprocess.Popen[bytes] | None = None


def steps_of(lane: str, seconds: float, options: argparse.Namespace) -> list[Step]:
    """Return the programs of a lane, with counts that fit ``seconds``."""

    def program(name: str, *words: object) -> list[str]:
        return [str(HERE / f"{name}.py"), *map(str, words)]

    match lane:
        case "etcd":
            # 20 loads, and 12 s for each failover of both sides by both signals.
            load_s = max(0.2, min(5.0, seconds / 80))
            failovers = max(1, min(20, int((seconds - 25 - 22 * load_s) / 14)))
            words = program("etcd", "--rounds", 5, "--seconds", f"{load_s:.2g}")
            words += ["--failovers", str(failovers)]
            words += ["--etcd", options.etcd] if options.etcd else []
            return [Step("etcd", words, 1.0)]
        case "failover":
            half, idle_s, pools = seconds / 2, min(5.0, seconds / 40), 2
            rounds = max(1, int((half - 30) / (idle_s + 4)))
            words = ["--idle", f"{idle_s:g}", "--pools", str(pools), "--kills", str(rounds * pools)]
            return [
                Step("failover-kill", program("failover", *words), 0.5),
                Step("failover-stop", program("failover", *words, "--signal", "STOP"), 1.0),
            ]
        case "consensus":
            row_s = max(0.2, min(3.0, seconds / 120))
            failovers = max(1, min(10, int(seconds / 40)))
            words = ["--seconds", f"{row_s:.2g}", "--failovers", str(failovers)]
            return [
                Step("grants", program("grants", "--rounds", max(2, int(seconds / 4))), 0.5),
                Step("consensus", program("consensus", "--voters", "3,5", *words), 1.0),
            ]
        case "leaders":
            minutes = max(5.0, seconds - 40) / 60
            return [Step("leaders", program("leaders", "--minutes", f"{minutes:.2f}"), 1.0)]
        case "scale":
            counts = ["7", "100", "1000"] if seconds >= 120 else ["7"]
            return [Step("scale", ["-m", "tests.benchmarks.scale", *counts], 1.0)]
        case _:
            words = program("many_cores", "--out", options.out / "swarm.jsonl")
            # The slowest seed takes some seconds.
            words += ["--first", str(options.first), "--seconds", f"{max(3, seconds - 20):g}"]
            words += ["--jobs", str(len(os.sched_getaffinity(0)))]
            return [Step("swarm", words, 1.0)]


def partition(lanes: Sequence[Lane], cores: Sequence[int]) -> None:
    """Give each lane its cores, and those that are left to the swarm; share them if too few."""
    supply = itertools.cycle(cores)
    for lane in lanes:
        lane.cores = {next(supply) for _ in range(CORES[lane.name])}
    taken = {core for lane in lanes for core in lane.cores}
    for lane in lanes:
        if lane.name == "swarm" or len(lanes) == 1:
            lane.cores |= set(cores) - taken


def start(lane: Lane, folder: Path, note: str) -> None:
    """Start the lane's next program."""
    step = lane.steps[lane.number]
    words = [sys.executable, *step.words]
    if lane.name not in ("swarm", "scale"):
        words += ["--csv", str(folder / f"{step.name}.csv"), "--note", note]
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    path = os.pathsep.join(paths)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    # A child inherits the cores of the thread that starts it.
    os.sched_setaffinity(0, lane.cores)
    with (folder / f"{step.name}.txt").open("wb") as log:
        lane.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def hand_over(cores: set[int], lane: Lane) -> None:
    """Give a lane that runs the cores of one that is done."""
    lane.cores |= cores
    if lane.process is not None:
        for pid in family(lane.process.pid):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(pid, lane.cores)


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        return [pid, *(each for child in children for each in family(int(child)))]
    return []


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program that has used up its time, and what it started."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_S / 2)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def collect(folder: Path, out: Path) -> None:
    """Write what all programs have said so far into two files."""
    tables = [each.read_text(encoding="utf-8") for each in sorted(folder.glob("*.csv"))]
    rows = [line for table in tables for line in table.splitlines()[1:]]
    heading = [tables[0].splitlines()[0]] if tables else []
    (out / "results.csv").write_text("\n".join([*heading, *rows, ""]), encoding="utf-8")
    texts = [
        f"--- {each.stem}\n{each.read_text(encoding='utf-8', errors='replace')}\n"
        for each in sorted(folder.glob("*.txt"))
    ]
    (out / "output.txt").write_text("".join(texts), encoding="utf-8")


def run(lanes: Sequence[Lane], folder: Path, options: argparse.Namespace) -> None:
    """Run all lanes side by side until they are done or the time is over."""
    began = time.monotonic()
    last = began + options.seconds - END_S
    deadlines: dict[str, float] = {}
    running = list(lanes)
    while running:
        for lane in list(running):
            now = time.monotonic()
            if lane.process is None:
                share = lane.steps[lane.number].share
                deadlines[lane.name] = now + share * (last - now)
                start(lane, folder, f"{len(lane.cores)} cores of its own, {options.note}")
                continue
            if lane.process.poll() is None and now < deadlines[lane.name]:
                continue
            how = "ended by the clock" if lane.process.poll() is None else "done"
            end(lane.process)
            step, status = lane.steps[lane.number], lane.process.returncode
            print(f"{now - began:6.1f} s {step.name}: {how}, status {status}", flush=True)
            lane.process, lane.number = None, lane.number + 1
            collect(folder, options.out)
            if lane.number == len(lane.steps):
                running.remove(lane)
                for other in running:
                    if other.name == "swarm":
                        hand_over(lane.cores, other)
        time.sleep(0.25)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--etcd", default=shutil.which("etcd") or "", help="the program")
    parser.add_argument("--only", default=",".join(CORES), help="lanes, with commas between")
    parser.add_argument("--first", type=int, default=1_000_000, help="seed of the swarm")
    parser.add_argument("--note", default="nothing else ran", help="for the rows of results")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    usable = options.seconds - END_S
    names = [name for name in CORES if name in options.only.split(",")]
    lanes = [Lane(name, steps_of(name, usable, options)) for name in names]
    partition(lanes, sorted(os.sched_getaffinity(0)))
    for lane in lanes:
        print(f"{lane.name}: cores {', '.join(map(str, sorted(lane.cores)))}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        try:
            run(lanes, Path(name), options)
        finally:
            for lane in lanes:
                if lane.process is not None:
                    end(lane.process)
            collect(Path(name), options.out)
    print((options.out / "output.txt").read_text(encoding="utf-8")[-6000:])


if __name__ == "__main__":
    main()
