"""Thirty workloads of PyTorch, JAX and CuPy behind the CUDA door, native beside remote, in turns.

    python tests/benchmarks/cuda_workloads.py [--only jax_jit,timed] [--rounds 5]
        [--delay-us 0,300,2000,10000] [--tls] [--before FOLDER] [--trace FOLDER] [--budget 390]
        [--json FILE] [--csv FILE]

Needs a real GPU, PyTorch with torchvision, transformers, JAX and CuPy; a workload that lacks one of
them fails alone. Weights are random, so nothing is fetched. Remote means one worker over TCP on
loopback (``loopback.py``), and the same with each delay, which our own proxy (``peer.c``) adds to
each round trip. ``--tls`` plays all of it a second time, encrypted. ``--before`` names a checkout
of another commit, whose library and worker take turns as well: ``git archive --prefix=before/
COMMIT | tar x`` makes one. ``--trace`` runs each workload once more and writes down which records
its steps sent.

The last lines are a table of throughput, in percent of native, each a median of the rounds; below
its bar, a figure has a ``!``. The exit status is 1 when a workload failed, gave another result than
the native one, had no time, or missed a bar.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src")]

from players import LIMIT_S, Player, Turns, take_turns  # noqa: E402
from results import Results, add_options  # noqa: E402

from gpupool.remoting.driver_api.executor.reader import FRAME_MAGIC, records_of  # noqa: E402
from gpupool.remoting.driver_api.schema.layout import FRAME  # noqa: E402
from gpupool.remoting.driver_api.schema.table import NAMES  # noqa: E402

LOOPBACK = ROOT / "tests" / "remoting" / "driver_api" / "loopback.py"
PROGRAM = ROOT / "tests" / "gpu" / "cuda_programs" / "workloads.py"
WORKLOADS = {
    "jax": ["jax_jit", "jax_fed", "jax_eager"],
    "torch": [
        *("rl_loop", "infer", "gpt2_train", "lstm", "timed", "small_copies", "masks", "state_dict"),
        *("churn", "unique", "resnet_train", "unet", "gpt2_generate", "compiled", "waits"),
        *("launches", "graph_served", "graph_replay", "pinned_copies", "streams", "dataloader"),
        *("state_save", "solve", "eigh", "svd", "resnet_train32"),
    ],
    "cupy": ["cupy_kernels"],
}
"""By the processes that play them, the most telling first."""
ALONE = {*WORKLOADS["jax"], *WORKLOADS["cupy"], "compiled"}
"""Those that compile: by one process after another, which measure kernels or share a cache."""
BARS: dict[str, tuple[float, ...]] = {
    "jax_jit": (95, 90, 75),
    "jax_fed": (90, 80, 60),
    "jax_eager": (75, 40),
    "lstm": (97, 95, 95),
    "timed": (60, 20),
    "small_copies": (90, 80, 70),
    "masks": (75, 25),
    "unique": (75, 25),
    "state_dict": (80, 70, 60),
    "churn": (85, 80, 75),
    "rl_loop": (95, 45, 15),
    "infer": (98, 90),
    "gpt2_train": (98, 98, 97),
    "gpt2_generate": (98, 85),
    "resnet_train": (98, 98, 97),
    "resnet_train32": (98, 98, 97),
    "compiled": (98, 98),
    "unet": (98, 98),
}
"""Percent of native, for each delay of ``BAR_DELAYS`` that has one."""
BAR_DELAYS: tuple[int, ...] = (0, 300, 2000)
LEAST_S = 15.0
"""Least time left for a workload; with less, it is left out."""
TRACES_MAX = 6
TRACE_LINES = 200
"""Of the records of one step."""


@dataclass(frozen=True)
class Mode:
    """A run mode of programs: the checkout of the door, its added delay, and its encryption."""

    root: str
    delay_us: int
    is_tls: bool = False

    @property
    def says(self) -> str:
        """The mode's delay and encryption, as a row of figures shows them."""
        delay = f", {self.delay_us} us added" if self.delay_us else ""
        return delay + (", TLS" if self.is_tls else "")

    @property
    def name(self) -> str:
        """Return the heading of its column."""
        delay = f"+{self.delay_us}" if self.delay_us else ""
        kind = "" if not self.is_tls else "tls" if self.root == "now" else f"{self.root}-tls"
        return f"{kind or self.root}{delay}"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    workload: str
    native_ms: float | None
    percent: dict[str, float]
    """Of native throughput, by mode."""
    missed: tuple[str, ...]
    """Modes below their bars."""

    @classmethod
    def of(cls, turns: Turns, modes: Sequence[Mode]) -> "Result":
        """Return the table's line for a workload's turns."""
        native = turns.median("native")
        percent: dict[str, float] = {}
        missed: list[str] = []
        for mode in modes:
            ms = turns.median(mode.name)
            if native is None or ms is None:
                continue
            percent[mode.name] = native / ms * 100
            bar = bar_of(turns.workload, mode.delay_us)
            if mode.root == "now" and bar is not None and percent[mode.name] < bar:
                missed.append(mode.name)
        return cls(turns.workload, native, percent, tuple(missed))


class Bench:
    """All modes of one run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.end = time.monotonic() + options.budget
        self.peer = folder / "peer"
        subprocess.run(
            ["gcc", "-O2", "-pthread", "-o", str(self.peer), str(HERE / "peer.c")], check=True
        )
        delays: list[int] = options.delay_us
        self.pings_us = {
            delay: self.ping_us("proxied", str(delay)) if delay else self.ping_us("tcp")
            for delay in sorted({0, *delays})
        }
        self.roots = {"now": ROOT}
        if options.before:
            self.roots["before"] = Path(options.before).resolve()
        for root in self.roots.values():
            words = [sys.executable, "-m", "gpupool.remoting.driver_api.build"]
            subprocess.run(words, env=self.environment(root), check=True, capture_output=True)
        self.with_lanes = {
            name
            for name, root in self.roots.items()
            if '"--lanes"' in (root / LOOPBACK.relative_to(ROOT)).read_text()
        }
        self.modes = [Mode(root, delay) for root in self.roots for delay in delays]
        if options.tls:
            self.modes += [
                Mode(root, delay, is_tls=True) for root in self.roots for delay in delays
            ]
        self.turns: list[Turns] = []
        self.notes: list[str] = []

    def ping_us(self, *kind: str) -> float:
        """Return the round-trip time between plain sockets on this machine."""
        words = [str(self.peer), "measure", *kind]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
        rows = [line.split() for line in said.splitlines()]
        return next(float(row[2]) for row in rows if row[1].endswith("pingpong_us"))

    def environment(self, root: Path) -> dict[str, str]:
        """Return the environment for a checkout's own code, with the packages of this one."""
        own = str(ROOT / "src")
        others = [part for part in os.environ.get("PYTHONPATH", "").split(":") if part != own]
        path = ":".join([*filter(None, others), str(root / "src")])
        return dict(os.environ) | {
            "PYTHONPATH": path,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_PLATFORMS": "cuda",  # else it goes on without a GPU
        }

    def player(self, name: str, mode: Mode | None, *options: str) -> Player:
        """Return a player behind the door of a checkout, or natively."""
        command = [sys.executable, str(PROGRAM)]
        log = self.folder / f"{name}.log"
        if mode is None:
            return Player(name, command, self.environment(ROOT), log)
        root = self.roots[mode.root]
        library = root / "remoting" / "driver_api" / "library"
        words = [sys.executable, str(LOOPBACK), "--library", str(library), "--tcp"]
        words += ["--root", str(root), "--memory", str(100 << 30), *options]
        words += ["--lanes"] if mode.root in self.with_lanes else []
        words += ["--tls"] if mode.is_tls else []
        if mode.delay_us:
            words += ["--peer", str(self.peer), "--delay-us", str(mode.delay_us)]
        return Player(name, [*words, "--", *command], self.environment(root), log)

    def left(self) -> float:
        """Return how many seconds are left."""
        return self.end - time.monotonic()

    def run(self, workloads: list[str]) -> None:
        """Play workloads of one kind, each in all modes in turns."""
        players = [self.player("native", None)]
        players += [self.player(mode.name, mode) for mode in self.modes]
        try:
            for workload in workloads:
                if self.left() < LEAST_S:
                    self.notes.append(f"{workload}: no time left")
                    continue
                turns = take_turns(
                    workload, players, self.options.rounds, self.left,
                    at_once=workload not in ALONE,
                )  # fmt: skip
                self.turns.append(turns)
                self.notes += [f"{workload} {name}: {why}" for name, why in turns.failures.items()]
                shown = (
                    f"{name} {' '.join(f'{ms:.3f}' for ms in times)}"
                    for name, times in turns.times.items()
                )
                print(f"{workload}: {'  '.join(shown)}", flush=True)
        finally:
            for player in players:
                player.stop()

    def trace(self, workload: str, folder: Path, steps: int = 20) -> None:
        """Record the names of the records that a workload's steps send."""
        tap = self.folder / f"tap-{workload}"
        tap.mkdir()
        player = self.player(f"trace-{workload}", Mode("now", 0), "--tap", str(tap))
        try:
            player.make(workload, min(LIMIT_S, self.left()))
            if player.failed:
                self.notes.append(f"trace of {workload}: {player.failed}")
                return
            time.sleep(0.2)
            before = {path: path.stat().st_size for path in tap.iterdir()}
            player.ask(f"play {workload} {steps}", min(LIMIT_S, self.left()))
            time.sleep(0.2)
        finally:
            player.stop()
        names: list[str] = []
        for path, size in before.items():
            with path.open("rb") as file:
                file.seek(size)
                names += names_in(file.read())
        counts = collections.Counter(names)
        shown = " ".join(f"{name} {count / steps:.2f}" for name, count in counts.most_common(30))
        if len(list(folder.iterdir())) < TRACES_MAX:
            lines = [shown, *names[: len(names) // steps][:TRACE_LINES]]
            (folder / f"{workload}.txt").write_text("\n".join(lines) + "\n")
        print(f"trace {workload}, a step: {shown}", flush=True)

    def rows(self) -> list[Result]:
        """Return the measurements in the order of the table."""
        return [Result.of(turns, self.modes) for turns in self.turns]

    def show(self) -> None:
        """Print the table."""
        for note in self.notes:
            print("note:", note)
        for line in table_lines(self.rows(), self.modes):
            print(line)
        pings = ", ".join(f"{delay} us: {found:.1f} us" for delay, found in self.pings_us.items())
        print(f"% of native throughput; ping-pong of plain sockets by delay, {pings}")


def add_rows(rows: Sequence[Result], modes: Sequence[Mode], results: Results) -> None:
    """Append figures to a file, but for those of another commit."""
    for row in rows:
        for mode in modes:
            if mode.root == "now" and mode.name in row.percent:
                bar = bar_of(row.workload, mode.delay_us)
                budget = "" if bar is None else f"{bar:.0f} %"
                case, percent = row.workload + mode.says, row.percent[mode.name]
                results.add(case, "of native", percent, "%", budget=budget)


def bar_of(workload: str, delay_us: int) -> float | None:
    """Return the percent that a workload is to reach with a delay; None without such a bar."""
    bars = dict(zip(BAR_DELAYS, BARS.get(workload, ()), strict=False))
    return bars.get(delay_us)


def table_lines(results: Sequence[Result], modes: Sequence[Mode]) -> list[str]:
    """Return the table, with bars behind the figures that have one."""
    heads = "".join(f" {mode.name} |" for mode in modes)
    lines = [f"| workload | native, ms |{heads}", "| --- |" + " --- |" * (len(modes) + 1)]
    for result in results:
        native = "-" if result.native_ms is None else f"{result.native_ms:.3f}"
        line = f"| {result.workload} | {native} |"
        for mode in modes:
            percent, bar = result.percent.get(mode.name), bar_of(result.workload, mode.delay_us)
            cell = "-" if percent is None else f"{percent:.0f}"
            cell += "" if bar is None else f" of {bar:.0f}"
            line += f" {cell}{'!' * (mode.name in result.missed)} |"
        lines.append(line)
    return lines


def names_in(data: bytes) -> list[str]:
    """Return the record names in a worker's received bytes; a request's name ends with ``?``."""
    names: list[str] = []
    at = 0
    while len(data) - at >= FRAME.size:
        magic, size, bulk = FRAME.unpack_from(data, at)
        if magic != FRAME_MAGIC:
            return [*names, "malformed"]
        body = data[at + FRAME.size : at + FRAME.size + size]
        position = 0
        for op, content, _ in records_of(body):
            flags = int.from_bytes(body[position + 2 : position + 4], "little")
            position += len(content) + 8
            names.append(NAMES.get(op, str(op)) + ("?" if flags & 1 else ""))
        at += FRAME.size + size + bulk
    return names


def chosen(only: str) -> dict[str, list[str]]:
    """Return the workloads that ``--only`` names, by the processes that play them; all, if none.

    Raises:
        ValueError: when there is no such workload.
    """
    wanted = {name for name in only.split(",") if name}
    if unknown := wanted - {name for names in WORKLOADS.values() for name in names}:
        raise ValueError(f"no such workload: {', '.join(sorted(unknown))}")
    return {
        kind: [name for name in names if not wanted or name in wanted]
        for kind, names in WORKLOADS.items()
    }


def delays(text: str) -> list[int]:
    """Return the delays of a list with commas."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="workloads, with commas between")
    parser.add_argument("--before", default="", help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-us", type=delays, default=[0, 300], help="with commas between")
    parser.add_argument("--tls", action="store_true", help="encrypted as well")
    parser.add_argument("--trace", default="", help="a folder for the records that were sent")
    parser.add_argument("--budget", type=float, default=390, help="seconds for all of it")
    parser.add_argument("--json", type=Path)
    add_options(parser)
    options = parser.parse_args()
    try:
        wanted = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as name:
        bench = Bench(Path(name), options)
        try:
            for names in wanted.values():
                if names:
                    bench.run(names)
            for workload in (w for names in wanted.values() for w in names if options.trace):
                if bench.left() > 25:
                    Path(options.trace).mkdir(parents=True, exist_ok=True)
                    bench.trace(workload, Path(options.trace))
        finally:
            bench.show()
            add_rows(bench.rows(), bench.modes, Results.of("cuda_workloads.py", options))
            if options.json:
                found = {"pings_us": bench.pings_us, "notes": bench.notes}
                rows = [asdict(row) for row in bench.rows()]
                turns = [asdict(turns) for turns in bench.turns]
                text = json.dumps(found | {"rows": rows, "turns": turns}, indent=1)
                options.json.write_text(text + "\n")
            for log in sorted(Path(name).glob("*.log")):
                text = log.read_text()
                if bench.notes and text.strip():
                    print(f"{log.name}:", *text.splitlines()[-4:], sep="\n    ", file=sys.stderr)
    return bool(bench.notes) or any(row.missed for row in bench.rows())


if __name__ == "__main__":
    sys.exit(main())
