"""Workloads of PyTorch and JAX behind the CUDA door, native beside remote in one run, in turns.

    python tests/benchmarks/cuda_workloads.py [--only jax_jit,timed] [--before FOLDER] [--rounds 3]
        [--delay-us 300] [--trace FOLDER] [--budget 390]

Needs a real GPU, PyTorch with torchvision, and JAX. Remote means one worker over TCP on loopback
(``loopback.py``), which is what a user on a fast network gets without TLS; then the same with a
delay from our own proxy (``peer.c``). ``--before`` names a checkout of another commit, whose
library and worker take turns as well: ``git archive --prefix=before/ COMMIT | tar x`` makes one.
``--trace`` runs each workload once more and writes down which records its steps sent. The last
lines are a table of throughput, in percent of native.
"""

import argparse
import collections
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src")]

from gpupool.remoting.driver_api.executor.reader import FRAME_MAGIC, records_of  # noqa: E402
from gpupool.remoting.driver_api.schema import table  # noqa: E402
from gpupool.remoting.driver_api.schema.layout import FRAME  # noqa: E402
from gpupool.remoting.driver_api.schema.records import NUMBERS  # noqa: E402

PROGRAM = ROOT / "tests" / "gpu" / "cuda_programs" / "workloads.py"
WORKLOADS = {
    "jax": ["jax_jit", "jax_fed", "jax_eager"],
    "torch": [
        *("lstm", "timed", "small_copies", "masks", "state_dict", "churn"),
        *("rl_loop", "infer", "gpt2_train", "waits", "launches"),
    ],
}
ROUND_S = 0.25
LIMIT_S = 100.0
TRACES_MAX = 6
TRACE_LINES = 200
"""Of the records of one step."""

NAMES = {number: name for name, number in NUMBERS.items()} | {
    number: name for number, (name, _, _) in table.CALLS.items()
}


class Player:
    """A process of ``workloads.py``, natively or behind a door."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.times: dict[str, list[float]] = {}
        self.failed = ""
        self.steps = 1
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=env,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, line: str, limit: float) -> str:
        """Return the answer to a line, or what went wrong."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return self._lines.get(timeout=max(limit, 1)).strip() or "FAILED: it ended"
        except (OSError, queue.Empty):
            return "FAILED: no answer"

    def make(self, workload: str, limit: float) -> None:
        """Have a workload made, and find out how many steps a round takes."""
        self.failed = ""
        said = self.ask(f"make {workload}", limit)
        if said.startswith("READY"):
            self.value = float(said.split()[1])
            said = self.ask(f"play {workload} 2", limit)
        if not said.startswith("MS"):
            self.failed = said
            return
        self.steps = max(1, min(500, round(ROUND_S * 1e3 / float(said.split()[1]))))

    def play(self, workload: str, limit: float) -> None:
        """Run one round."""
        said = self.ask(f"play {workload} {self.steps}", limit)
        if said.startswith("MS"):
            self.times.setdefault(workload, []).append(float(said.split()[1]))
        else:
            self.failed = said

    def stop(self) -> None:
        """End the process, and what it started."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


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
        self.plain_us = self.pings("tcp").get("tcp_pingpong_us", 0.0)
        self.delayed_us = 0.0
        if options.delay_us:
            found = self.pings("proxied", str(options.delay_us))
            self.delayed_us = found.get("proxied_pingpong_us", 0.0)
        self.roots = {"after": ROOT}
        if options.before:
            self.roots["before"] = Path(options.before).resolve()
        for root in self.roots.values():
            words = [sys.executable, "-m", "gpupool.remoting.driver_api.build"]
            subprocess.run(words, env=self.environment(root), check=True, capture_output=True)
        self.medians: dict[str, dict[str, float]] = {}
        self.notes: list[str] = []

    def pings(self, *kind: str) -> dict[str, float]:
        """Return what plain sockets do on this machine."""
        words = [str(self.peer), "measure", *kind]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
        rows = [line.split() for line in said.splitlines()]
        return {row[1]: float(row[2]) for row in rows if row[0] == "RESULT"}

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

    def player(self, name: str, root: Path | None, *options: str) -> Player:
        """Start a player behind the door of a checkout, or natively."""
        command = [sys.executable, str(PROGRAM)]
        if root is None:
            return Player(name, command, self.environment(ROOT), self.folder / f"{name}.log")
        loopback = ROOT / "tests" / "remoting" / "driver_api" / "loopback.py"
        library = root / "remoting" / "driver_api" / "library"
        words = [sys.executable, str(loopback), "--library", str(library), "--tcp"]
        words += ["--root", str(root)]
        words += ["--memory", str(100 << 30), *options, "--", *command]
        return Player(name, words, self.environment(root), self.folder / f"{name}.log")

    def players(self) -> list[Player]:
        """Start one of each mode."""
        made = [self.player("native", None)]
        far = ["--peer", str(self.peer), "--delay-us", str(self.options.delay_us)]
        for name, root in self.roots.items():
            made.append(self.player(name, root))
            if self.options.delay_us:
                made.append(self.player(f"{name}+", root, *far))
        return made

    def left(self) -> float:
        """Return how many seconds are left."""
        return self.end - time.monotonic()

    def run(self, workloads: list[str], *, at_once: bool) -> None:
        """Play workloads, each in all modes in turns; ``at_once``: prepare in all at a time."""
        players = self.players()
        try:
            for workload in workloads:
                if self.left() < 15:
                    self.notes.append(f"{workload}: no time left")
                    continue
                self.measure(workload, players, at_once=at_once)
        finally:
            for player in players:
                player.stop()

    def measure(self, workload: str, players: list[Player], *, at_once: bool) -> None:
        """Play one workload in all modes."""
        makers: list[threading.Thread] = []
        for player in players:
            limit = min(LIMIT_S, self.left())
            maker = threading.Thread(target=player.make, args=(workload, limit))
            maker.start()
            makers.append(maker)
            if not at_once:
                maker.join()
        for maker in makers:
            maker.join()
        for number in range(self.options.rounds):
            for player in players[:: 1 if number % 2 else -1]:
                if not player.failed and self.left() > 5:
                    player.play(workload, min(LIMIT_S, self.left()))
        found = self.medians[workload] = {
            player.name: statistics.median(player.times[workload])
            for player in players
            if player.times.get(workload)
        }
        line = "  ".join(
            f"{player.name} {' '.join(f'{ms:.3f}' for ms in player.times.get(workload, []))}"
            for player in players
        )
        print(f"{workload}: {line}", flush=True)
        values = {player.name: player.value for player in players if not player.failed}
        for player in players:
            if player.failed:
                self.notes.append(f"{workload} {player.name}: {player.failed}")
            elif "native" in values:
                expected = values["native"]
                if abs(player.value - expected) > 0.02 * abs(expected) + 1e-6:
                    self.notes.append(
                        f"{workload} {player.name}: gives {player.value:g}, not {expected:g}"
                    )
        if not found:
            self.notes.append(f"{workload}: nothing measured")

    def trace(self, workload: str, folder: Path, steps: int = 20) -> None:
        """Write down which records a workload's steps send."""
        tap = self.folder / f"tap-{workload}"
        tap.mkdir()
        player = self.player(f"trace-{workload}", ROOT, "--tap", str(tap))
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

    def show(self) -> None:
        """Print the table."""
        for note in self.notes:
            print("note:", note)
        modes = [
            name + delayed for name in self.roots for delayed in ("", "+")[: 1 + bool(self.delayed)]
        ]
        print(f"{'workload':14}{'native ms':>11}" + "".join(f"{mode:>10}" for mode in modes))
        for workload, found in self.medians.items():
            native = found.get("native")
            cells = [
                f"{native / found[mode] * 100:8.0f} %" if native and mode in found else f"{'-':>10}"
                for mode in modes
            ]
            print(f"{workload:14}{native or 0:11.3f}" + "".join(cells))
        print(f"% of native throughput; +: {self.options.delay_us} us added to each round trip")
        print(
            f"ping-pong of plain sockets: {self.plain_us} us; with the delay {self.delayed_us} us"
        )

    @property
    def delayed(self) -> bool:
        """Return whether there are modes with a delay."""
        return bool(self.options.delay_us)


def names_in(data: bytes) -> list[str]:
    """Return the names of the records in what a worker received; a request's ends with ``?``."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="workloads, with commas between")
    parser.add_argument("--before", default="", help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-us", type=int, default=300)
    parser.add_argument("--trace", default="", help="a folder for the records that were sent")
    parser.add_argument("--budget", type=float, default=390, help="seconds for all of it")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [*WORKLOADS["jax"], *WORKLOADS["torch"]]
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as name:
        bench = Bench(Path(name), options)
        try:
            for kind, names in WORKLOADS.items():
                chosen = [workload for workload in names if workload in wanted]
                if chosen:
                    # XLA measures kernels to choose among them, so it is alone then.
                    bench.run(chosen, at_once=kind == "torch")
            for workload in wanted if options.trace else ():
                if bench.left() > 25:
                    Path(options.trace).mkdir(parents=True, exist_ok=True)
                    bench.trace(workload, Path(options.trace))
        finally:
            bench.show()
            for log in sorted(Path(name).glob("*.log")):
                text = log.read_text()
                if bench.notes and text.strip():
                    print(f"{log.name}:", *text.splitlines()[-4:], sep="\n    ", file=sys.stderr)
    return bool(bench.notes)


if __name__ == "__main__":
    sys.exit(main())
