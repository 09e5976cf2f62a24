"""Lupine beside native CUDA and beside gpupool, on this machine's GPU: all three in turns.

    python tests/benchmarks/lupine.py --lupine FOLDER [--nghttp2 FOLDER] [--build FOLDER]
        [--only launches,train] [--rounds 5] [--delay-us 300] [--tls] [--budget 500]
        [--json FILE] [--csv FILE]

Lupine (formerly SCUDA) is another library in the place of ``libcuda.so.1``. Nothing is fetched:
``--lupine`` names a checkout, which is built with CMake into ``--build``. It needs nghttp2 with its
headers, the system's or that of a folder with ``include`` and ``lib``. Its library of NVML is not
built, so programs see the machine's own, and its server listens on all addresses of this machine
without asking for a password while this runs.

Lupine runs over TCP on loopback, and so does gpupool: ``gpupool join`` and ``gpupool run`` with no
Unix socket, unencrypted as Lupine is, or encrypted by ``--tls``. ``--delay-us`` adds so much to
each round trip of both, by our own proxy (``peer.c``). Large copies carry floats like a model's
weights: Lupine compresses what it copies, and these hardly shrink.

Each side is one process per kind of row (``calls.cu``, ``workloads.py``). They take turns round by
round, and a figure is the median of the rounds. A side that fails, or whose result is not the
native one, has its reason in the place of a figure. "ahead" says whether gpupool was at least as
fast as Lupine, which it is also where Lupine alone fails. The exit status is the number of rows in
which it was not ahead.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "src")]

from cuda_door_check import compile_program  # noqa: E402
from leasing import RealPool, results_of  # noqa: E402
from players import Player, Turns, take_turns  # noqa: E402
from results import Results, add_options, commit  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

PROGRAMS = ROOT / "tests" / "gpu" / "cuda_programs"
SIDES = ("native", "Lupine", "gpupool")
BUILD_S = 300.0
START_S = 20.0
ANSWER_S = 45.0
"""For one answer: some programs hang."""
LEAST_S = 12.0
"""Least time left for a row; with less, it is left out."""


@dataclass(frozen=True)
class Row:
    """One row: a workload of a program, and how its milliseconds a step are shown."""

    name: str
    says: str
    unit: str
    amount: float = 1.0
    """Amount of a step, in the unit of the rate."""
    program: str = "workloads"

    @property
    def is_rate(self) -> bool:
        """Return whether more is better."""
        return self.unit.endswith("/s")

    def figure(self, ms: float) -> float:
        """Return the milliseconds of a step in the row's unit."""
        if self.is_rate:
            return self.amount * 1e3 / ms
        return ms * {"us": 1e3, "ms": 1.0}[self.unit]


LARGE_GB = (256 << 20) / 1e9
ROWS = (
    Row("launches", "kernels of one block launched, sustained", "launches/s", 1000, "calls"),
    Row("launch_wait", "a kernel and cudaDeviceSynchronize", "us", 1, "calls"),
    Row("up_4k", "4 KiB to the GPU, pageable", "us", 1, "calls"),
    Row("up_64k_pinned", "64 KiB to the GPU, pinned, asynchronous", "us", 1, "calls"),
    Row("down_4", "4 bytes from the GPU", "us", 1, "calls"),
    Row("down_64k", "64 KiB from the GPU, pageable", "us", 1, "calls"),
    Row("malloc", "cudaMalloc and cudaFree of 1 MiB", "us", 1, "calls"),
    Row("malloc_async", "cudaMallocAsync and cudaFreeAsync", "us", 1, "calls"),
    Row("up_pinned", "256 MiB to the GPU, pinned", "GB/s", LARGE_GB, "calls"),
    Row("up_pageable", "256 MiB to the GPU, pageable", "GB/s", LARGE_GB, "calls"),
    Row("down_pinned", "256 MiB from the GPU, pinned", "GB/s", LARGE_GB, "calls"),
    Row("down_pageable", "256 MiB from the GPU, pageable", "GB/s", LARGE_GB, "calls"),
    Row("train", "PyTorch, a training step of a small transformer, fp32", "ms"),
    Row("infer", "PyTorch, ResNet-50 on one image, fp32, .item()", "ms"),
    Row("rl_loop", "PyTorch, 32 steps with .item(), and an update", "ms"),
    Row("churn", "PyTorch, allocations without its cache", "ms"),
    Row("train16", "the same training step, fp16", "ms"),
)


# --- Lupine ---------------------------------------------------------------------------------------


def driver() -> str:
    """Return the path of the libcuda.so.1 that a program here loads.

    Raises:
        SystemExit: when there is none.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"no driver: {error}") from error
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split(maxsplit=5)[5] for line in lines if "libcuda.so" in line)


def built(source: Path, folder: Path, nghttp2: Path | None) -> None:
    """Build Lupine's server and library in a folder.

    Raises:
        SystemExit: with the last lines of what was said, when that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = ["cmake", "-S", str(source), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    first += ["-DBUILD_TESTING=OFF", "-DLUPINE_BUILD_NVML=OFF"]
    first += ["-DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON", f"-DCUDA_cuda_driver_LIBRARY={driver()}"]
    first += [f"-DCMAKE_PREFIX_PATH={nghttp2.resolve()}"] if nghttp2 else []
    first += ["-G", "Ninja"] if shutil.which("ninja") else []
    second = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)]
    second += ["--target", "lupine_cuda_client", "lupine_driver_server"]
    end = time.monotonic() + BUILD_S
    for words in (first, second):
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=end - time.monotonic(),
        )  # fmt: skip
        if done.returncode:
            raise SystemExit("Lupine was not built:\n" + "\n".join(done.stdout.splitlines()[-30:]))


def revision(source: Path) -> str:
    """Return the short hash of a checkout; of a copy without git, that in its file COMMIT."""
    if (source / "COMMIT").is_file():
        return (source / "COMMIT").read_text().strip()
    if not (source / ".git").exists():
        return "unknown"
    words = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


class LupineServer:
    """Lupine's server, started again when it has ended."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def need(self) -> None:
        """Start the Lupine server unless it is running.

        Raises:
            RuntimeError: when it does not start.
        """
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._folder / "lupine_driver_server")], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=os.environ | {"LUPINE_PORT": str(self.port)},
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise RuntimeError("Lupine's server did not start:\n" + self._log.read_text()[-2000:])

    def environment(self, port: int) -> dict[str, str]:
        """Return the environment of a program on it, by some port."""
        older = os.environ.get("LD_LIBRARY_PATH", "")
        return dict(os.environ) | {
            "LD_LIBRARY_PATH": ":".join(filter(None, (str(self._folder), older))),
            "LUPINE_SERVER": f"127.0.0.1:{port}",
            "LUPINE_DISABLE_LOCAL": "1",
            "LUPINE_LOG_LEVEL": "error",
        }

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """One row's outcome: a figure of each side, or in its place why there is none."""

    row: Row
    figures: dict[str, float | str]
    times: dict[str, list[float]]

    @classmethod
    def of(cls, row: Row, turns: Turns) -> "Found":
        """Return the outcome of a row's turns."""
        figures: dict[str, float | str] = {}
        for side in SIDES:
            ms = turns.median(side)
            figures[side] = (
                turns.failures.get(side, "no turn") if ms is None else float(row.figure(ms))
            )
        return cls(row, figures, turns.times)

    def add_to(self, results: Results) -> None:
        """Append the figures of both to a file, each with the native one."""
        native = self.figures["native"]
        for side in SIDES[1:]:
            value = self.figures[side]
            if not isinstance(native, str) and not isinstance(value, str):
                case = f"{self.row.says}: {side}"
                results.add(case, "median", value, self.row.unit, native=native)

    @property
    def ahead(self) -> str:
        """Return ``yes`` where gpupool is at least as fast; ``-`` without a native figure."""
        native, theirs, ours = (self.figures[side] for side in SIDES)
        if isinstance(native, str):
            return "-"
        if isinstance(ours, str):
            return "no"
        if isinstance(theirs, str):
            return "yes"
        return "yes" if (ours >= theirs if self.row.is_rate else ours <= theirs) else "no"


def lines(found: Sequence[Found]) -> Iterator[str]:
    """Return the table, and below it why figures are missing."""
    yield "| row | unit | native | Lupine | gpupool | ahead |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for each in found:
        cells = [
            "fails" if isinstance(value, str) else f"{value:.4g}" for value in each.figures.values()
        ]
        words = [f"{each.row.name}: {each.row.says}", each.row.unit, *cells, each.ahead]
        yield f"| {' | '.join(words)} |"
    for each in found:
        for side, value in each.figures.items():
            if isinstance(value, str):
                yield f"{each.row.name}, {side}: {value}"


class Bench:
    """One run: the server of each side, and the players."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        self.options = options
        self.end = time.monotonic() + options.budget
        self.found: list[Found] = []
        self.peer = folder / "peer"
        command = ["gcc", "-O2", "-pthread", "-o", str(self.peer), str(HERE / "peer.c")]
        subprocess.run(command, check=True)
        self.calls = compile_program(PROGRAMS / "calls.cu", folder, shared=False)
        self._proxies: list[subprocess.Popen[str]] = []
        place: Path = options.build or folder / "lupine"
        built(options.lupine, place, options.nghttp2)
        self.lupine = LupineServer(place, folder / "lupine.log")
        self.pool: RealPool | None = None

    def start(self) -> None:
        """Start the servers of both."""
        self.lupine.need()
        self.pool = self._pool()

    def _pool(self) -> RealPool:
        """Start gpupool; with a delay, others reach its one port by way of the proxy."""
        words: list[str] = []
        if self.options.delay_us:
            port = free_port()
            words = ["--listen", f"127.0.0.1:{port}"]
            words += ["--advertise", f"127.0.0.1:{self.through(port)}"]
        encryption = "tls" if self.options.tls else "off"
        return RealPool(self.folder / "pool", *words, encryption=encryption, remote=True)

    def through(self, port: int) -> int:
        """Return a port that leads to another one, with the delay if there is one."""
        if not self.options.delay_us:
            return port
        words = [str(self.peer), "proxy", str(port), str(self.options.delay_us)]
        proxy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._proxies.append(proxy)
        assert proxy.stdout is not None
        return int(proxy.stdout.readline())

    def ping_us(self) -> float:
        """Return the round-trip time between plain sockets here, with the delay if any."""
        delay = self.options.delay_us
        words = ["proxied", str(delay)] if delay else ["tcp"]
        said = subprocess.run(
            [str(self.peer), "measure", *words], capture_output=True, text=True, check=True
        ).stdout
        return float(results_of(said)["proxied_pingpong_us" if delay else "tcp_pingpong_us"])

    def left(self) -> float:
        """Return how many seconds are left."""
        return self.end - time.monotonic()

    def players(self, program: str) -> list[Player]:
        """Return a player of each side, for the rows of one program."""
        command = {
            "calls": [str(self.calls)],
            "workloads": [sys.executable, str(PROGRAMS / "workloads.py")],
        }[program]
        port = self.through(self.lupine.port)
        assert self.pool is not None
        sides = {
            "native": (command, dict(os.environ)),
            "Lupine": (command, self.lupine.environment(port)),
            "gpupool": (self.pool.words(command, "-p", "0.5"), self.pool.env),
        }
        return [
            Player(name, words, env, self.folder / f"{program}-{name}.log")
            for name, (words, env) in sides.items()
        ]

    def run(self, rows: Sequence[Row]) -> None:
        """Play the rows, those of one program after those of another."""
        for program in ("calls", "workloads"):
            chosen = [row for row in rows if row.program == program]
            players = self.players(program) if chosen else []
            try:
                for row in chosen:
                    if self.left() < LEAST_S:
                        print(f"{row.name}: no time left", flush=True)
                        continue
                    self.lupine.need()
                    turns = take_turns(
                        row.name, players, self.options.rounds, self.left, limit_s=ANSWER_S
                    )
                    self.found.append(found := Found.of(row, turns))
                    print(row.name, found.figures, flush=True)
            finally:
                for player in players:
                    player.stop()

    def show_logs(self) -> None:
        """Print the logs, if a side failed."""
        if any(isinstance(value, str) for each in self.found for value in each.figures.values()):
            for log in sorted(self.folder.glob("*.log")):
                if text := log.read_text(errors="replace").strip():
                    print(f"{log.name}:", *text.splitlines()[-6:], sep="\n    ", file=sys.stderr)

    def stop(self) -> None:
        """End everything."""
        if self.pool is not None:
            self.pool.stop()
        self.lupine.stop()
        for proxy in self._proxies:
            proxy.kill()
            proxy.wait()


def machine() -> str:
    """Return the GPU and its driver, in words."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.splitlines()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lupine", type=Path, required=True, help="a checkout of Lupine")
    parser.add_argument("--nghttp2", type=Path, help="a folder with its include and lib")
    parser.add_argument("--build", type=Path, help="where Lupine is built, and stays")
    parser.add_argument("--only", default="", help="rows, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-us", type=int, default=0, help="added to each round trip")
    parser.add_argument("--tls", action="store_true", help="encrypt gpupool's data")
    parser.add_argument("--budget", type=float, default=500, help="seconds for all of it")
    parser.add_argument("--json", type=Path)
    add_options(parser)
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-lupine-") as name:
        Path(name).chmod(0o711)
        bench = Bench(Path(name), options)
        about: dict[str, object] = {
            "machine": machine(),
            "gpupool": commit(),
            "lupine": revision(options.lupine),
            "delay_us": options.delay_us,
            "encryption": "tls" if options.tls else "off",
            "rounds": options.rounds,
        }
        try:
            bench.start()
            about["pingpong_us"] = bench.ping_us()
            bench.run([row for row in ROWS if not wanted or row.name in wanted])
        finally:
            bench.stop()
            print(", ".join(f"{key} {value}" for key, value in about.items()))
            print(*lines(bench.found), sep="\n")
            bench.show_logs()
            results = Results.of("lupine.py", options)
            for each in bench.found:
                each.add_to(results)
            if options.json:
                rows = [asdict(each) | {"ahead": each.ahead} for each in bench.found]
                options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    return sum(each.ahead == "no" for each in bench.found)


if __name__ == "__main__":
    sys.exit(main())
