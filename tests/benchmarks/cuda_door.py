"""The CUDA door against native CUDA, on this machine's GPU: native beside remote in one run.

    python tests/benchmarks/cuda_door.py [--only start,models,launches,quarters,tls,bulk]
        [--json FILE] [--csv FILE]
    unshare -rn python tests/benchmarks/cuda_door.py --veth

Needs a real GPU, nvcc, PyTorch, torchvision and transformers. Remote means ``gpupool join`` and
``gpupool run`` over loopback: a Unix socket, or TCP where it says so. Every figure is the median of
seven rounds (five of starts and launches, 2,001 of latencies), in which native and remote processes
take turns. The delay is our own proxy's (``peer.c``), half of it each way. The exit status is the
number of budgets missed.

``cuda_workloads.py`` has thirty workloads, with delays that you name and with TLS.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "src")]

from cuda_door_check import LOOPBACK, compile_program  # noqa: E402
from leasing import Outcome, RealPool, results_of, run  # noqa: E402
from results import Results, add_options  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

MODELS = [sys.executable, str(ROOT / "tests" / "gpu" / "cuda_programs" / "models.py")]
WORKLOADS = ["resnet_train", "resnet_infer", "gpt2_train", "gpt2_generate"]
SPEED = ROOT / "tests" / "gpu" / "cuda_programs" / "speed.cu"
DRIVER = ROOT / "tests" / "remoting" / "driver_api"
STRIPES = DRIVER / "programs" / "stripes.c"
BULK_ROUNDS, BULK_TLS = 3, 0.9  # of one plain connection
LIMIT_S = 150
ROUNDS = 7  # as in models.py
START_ROUNDS = 5

BUDGETS = {"resnet_train": 0.97, "resnet_infer": 0.85, "gpt2_train": 0.97, "gpt2_generate": 0.90}
DELAYED = {"resnet_train": 0.95, "resnet_infer": 0.65, "gpt2_train": 0.95, "gpt2_generate": 0.75}
LAUNCHES, COPIES, QUARTERS, LATENCY_US, START_S = 0.85, 0.85, 0.95, 30.0, 1.0


class Report:
    """Prints rows, keeps them, and counts missed budgets."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.rows: list[dict[str, object]] = []
        self.missed = 0

    def row(
        self, name: str, native: float, remote: float, unit: str, ratio: float, budget: float
    ) -> None:
        """Record one figure; ``ratio`` is remote throughput over the reference's throughput."""
        verdict = "" if not budget else "kept" if ratio >= budget else "MISSED"
        self.missed += verdict == "MISSED"
        promised = f"{budget * 100:g} %" if budget else ""
        self.results.add(name, "median", remote, unit, native=native or None, budget=promised)
        self.rows.append(
            {
                "name": name,
                "compared_with": native,
                "remote": remote,
                "unit": unit,
                "ratio": ratio,
                "budget": budget,
                "verdict": verdict,
            }
        )
        print(
            f"{name:44} {native:10.3f} {remote:10.3f} {unit:5} {ratio * 100:7.1f} %"
            + (f"  of {budget * 100:.0f} %: {verdict}" if budget else ""),
            flush=True,
        )

    def latency(self, name: str, base: float, remote: float, budget: float, unit: str) -> None:
        """Record one time that may be so much above another."""
        verdict = "kept" if remote - base <= budget else "MISSED"
        self.missed += verdict == "MISSED"
        promised = f"{budget:g} {unit} more"
        self.results.add(name, "median", remote, unit, native=base, budget=promised)
        self.rows.append(
            {
                "name": name,
                "compared_with": base,
                "remote": remote,
                "unit": unit,
                "budget": budget,
                "verdict": verdict,
            }
        )  # fmt: skip
        print(
            f"{name:44} {base:10.2f} {remote:10.2f} {unit:5} {remote - base:+7.2f} {unit}"
            f"  of +{budget:g}: {verdict}",
            flush=True,
        )

    def failed(self, name: str, outcome: Outcome) -> None:
        """Say that a program gave no figures."""
        self.missed += 1
        self.rows.append({"name": name, "failed": outcome.code})
        print(f"{name}: exit {outcome.code}\n" + "\n".join(outcome.output.splitlines()[-25:]))


class Player:
    """A process of ``models.py`` that takes turns with others."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        self.times: dict[str, list[float]] = {}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=env | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    def until(self, start: str) -> str:
        """Read lines up to one that starts so, and return it.

        Raises:
            RuntimeError: with what the process said, when it ended before that.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for name, value in results_of(line).items():
                self.times.setdefault(name, []).append(float(value))
            if line.startswith(start):
                return line
        raise RuntimeError(f"ended before {start}:\n{self.log.read_text()[-3000:]}")

    def play(self, workload: str) -> None:
        """Run one round of a workload."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.until(f"RESULT {workload}_ms")

    def stop(self) -> None:
        """Wait for the process, or end it when it should have ended."""
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def median(self, name: str) -> float:
        """Return the median of the program's measurements under a name."""
        return statistics.median(self.times[name])


class Bench:
    """All measurements of one run."""

    def __init__(self, folder: Path, end: float, results: Results) -> None:
        self.folder = folder
        self.end = end
        self.report = Report(results)
        self.pool = RealPool(folder / "near")
        self.peer = folder / "peer"
        source = HERE / "peer.c"
        command = ["gcc", "-O2", "-pthread", "-o", str(self.peer), str(source)]
        subprocess.run(command, check=True)

    def native(self, command: list[str]) -> Outcome:
        return run(command, LIMIT_S, self.folder / "native.log", dict(os.environ))

    def _loopback_words(self, command: list[str], *options: str) -> list[str]:
        """Return how to run with one worker and nothing else of gpupool, over TCP."""
        words = [sys.executable, str(LOOPBACK), "--library", str(build.library_dir()), "--tcp"]
        return [*words, "--memory", str(60 << 30), *options, "--", *command]

    def loopback(self, command: list[str]) -> Outcome:
        """Run so, and wait for it."""
        log = self.folder / "loopback.log"
        return run(self._loopback_words(command), LIMIT_S, log, dict(os.environ))

    def models(self) -> None:
        """Measure PyTorch natively and through the pool, in turns, and then with 0.3 ms added."""
        command = [*MODELS, *WORKLOADS]
        words = {"native": command, "remote": self.pool.words(command, "-v", "-p", "0.5")}
        options = ["--peer", str(self.peer), "--delay-us", "300"]
        try:
            near = self._play(words)
            far = self._play({"delayed": self._loopback_words(command, *options)})["delayed"]
        except RuntimeError as error:
            return self.report.failed("models", Outcome(1, 0, {}, str(error)))
        native, remote = near["native"], near["remote"]
        for what, other, budgets in (("", remote, BUDGETS), (", 0.3 ms added", far, DELAYED)):
            for name, budget in budgets.items():
                a, b = native.median(f"{name}_ms"), other.median(f"{name}_ms")
                self.report.row(name + what, a, b, "ms", a / b, budget)
                both = [
                    " ".join(f"{t:.2f}" for t in p.times[f"{name}_ms"]) for p in (native, other)
                ]
                print(f"    native {both[0]}, remote {both[1]}", flush=True)
        return None

    def start(self) -> None:
        """Measure how long a process needs until PyTorch has done its first operation."""
        times: dict[str, list[float]] = {"native": [], "remote": []}
        for _ in range(START_ROUNDS):
            for kind, found in times.items():
                outcome = (
                    self.native(MODELS)
                    if kind == "native"
                    else self.pool.run(MODELS, "-p", "0.5", limit=LIMIT_S, name="start")
                )
                if outcome.code:
                    return self.report.failed("import torch", outcome)
                found.append(sum(float(outcome.results[name]) for name in ("import_s", "first_s")))
        before, after = map(statistics.median, times.values())
        self.report.latency("import torch and first operation", before, after, START_S, "s")
        for kind, found in times.items():
            print(f"    {kind}", *(f"{value:.2f}" for value in found), flush=True)
        return None

    def _play(self, words: dict[str, list[str]]) -> dict[str, Player]:
        """Let processes take turns at every workload.

        Raises:
            RuntimeError: when one of them ended too early.
        """
        players: dict[str, Player] = {}
        try:
            for name, word in words.items():
                env = self.pool.env if name == "remote" else dict(os.environ)
                players[name] = Player(word, env, self.folder / f"{name}.log")
                players[name].until("READY")  # its start is timed, so that it is alone
            for workload in WORKLOADS:
                for player in players.values() if workload != WORKLOADS[0] else ():
                    player.until(f"READY {workload}")
                for number in range(ROUNDS):
                    for player in list(players.values())[:: 1 if number % 2 else -1]:
                        player.play(workload)
        finally:
            for player in players.values():
                player.stop()
        return players

    def launches(self) -> None:
        """Measure launches, latency and copies, beside plain sockets."""
        program = [str(compile_program(SPEED, self.folder, False))]
        self._sustained([*program, "launches"])
        native = self.native(program)
        unix = self.pool.run(program, limit=LIMIT_S, name="speed")
        tcp = self.loopback(program)
        sockets: dict[str, float] = {}
        for kind in ("unix", "tcp"):
            done = subprocess.run([str(self.peer), "measure", kind], capture_output=True, text=True,
                                  check=True)  # fmt: skip
            sockets |= {k: float(v) for k, v in results_of(done.stdout).items()}
        for outcome in (native, unix, tcp):
            if outcome.code:
                return self.report.failed("speed.cu", outcome)
        for kind, outcome in (("unix", unix), ("tcp", tcp)):
            base = sockets[f"{kind}_pingpong_us"]
            copy4 = float(outcome.results["copy4_us"])
            self.report.latency(f"4-byte copy beside ping-pong, {kind}", base, copy4, LATENCY_US,
                                "us")  # fmt: skip
            for key, way in (("h2d", "out"), ("d2h", "in")):
                base = sockets[f"{kind}_{way}_GBps"]
                for memory in ("pinned", "pageable"):
                    found = float(outcome.results[f"{key}_{memory}_GBps"])
                    name = f"{key} 256 MiB {memory} beside a {kind} socket"
                    self.report.row(name, base, found, "GB/s", found / base, COPIES)
        return None

    def _sustained(self, program: list[str]) -> None:
        """Measure launches in turns, because a process keeps its processor for a while."""
        times: dict[str, list[list[float]]] = {"launch_us": [[], []], "launch8_us": [[], []]}
        for _ in range(START_ROUNDS):
            both = self.native(program), self.pool.run(program, limit=LIMIT_S, name="launches")
            for outcome in both:
                if outcome.code:
                    return self.report.failed("speed.cu", outcome)
            for key, found in times.items():
                for values, outcome in zip(found, both, strict=True):
                    values.append(float(outcome.results[key]))
        for key, found in times.items():
            a, b = map(statistics.median, found)
            self.report.row(f"{key}: sustained", a, b, "us", a / b, LAUNCHES)
            shown = [" ".join(f"{value:.2f}" for value in values) for values in found]
            print(f"    native {shown[0]}, remote {shown[1]}", flush=True)
        return None

    def tls(self) -> None:
        """Measure the same with TLS over TCP, for information."""
        self.pool.stop()  # a GPU is offered by one server at a time
        pool = RealPool(self.folder / "far", encryption="tls", remote=True)
        try:
            program = [str(compile_program(SPEED, self.folder, False))]
            outcome = pool.run(program, limit=LIMIT_S, name="tls")
            if outcome.code:
                return self.report.failed("speed.cu over TLS", outcome)
            for key, value in outcome.results.items():
                if key.endswith(("_us", "_GBps")):
                    unit = "us" if key.endswith("_us") else "GB/s"
                    self.report.row(f"TLS: {key}", 0.0, float(value), unit, 0.0, 0.0)
        finally:
            pool.stop()
            self.pool = RealPool(self.folder / "near-again")
        return None

    def bulk(self) -> None:
        """Measure large copies over TCP and TLS, by one connection and by several each way."""
        self.pool.stop()
        program, found = self.folder / "stripes", dict[tuple[str, int, str], float]()
        command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", str(program), str(STRIPES)]
        subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
        for encryption in ("off", "tls"):
            pool = RealPool(self.folder / f"bulk-{encryption}", encryption=encryption, remote=True)
            times: dict[tuple[int, str], list[float]] = {}
            try:
                for lanes in (0, 2, 4, 8) * BULK_ROUNDS:
                    options = ["-p", "0.5", "--env", f"GPUPOOL_LANES={lanes}"]
                    words = [str(program), "256", "8", "go"]
                    outcome = pool.run(words, *options, limit=LIMIT_S, name="stripes")
                    if outcome.code:
                        return self.report.failed("stripes.c", outcome)
                    for key, value in outcome.results.items():
                        times.setdefault((lanes, key), []).append(float(value))
            finally:
                pool.stop()
            for (lanes, key), values in times.items():
                found[encryption, lanes, key] = statistics.median(values)
        for key in ("up_GBps", "up_cpu_ns", "down_GBps", "down_cpu_ns"):
            plain = found["off", 0, key]
            for (encryption, lanes, name), value in found.items():
                if name == key:
                    unit = "GB/s" if "GBps" in key else "ns"  # for each KiB, of all processors
                    bar = BULK_TLS if (encryption, lanes, unit) == ("tls", 4, "GB/s") else 0.0
                    label = f"{key}: {encryption}, {lanes or 1} connections"
                    self.report.row(label, plain, value, unit, value / plain, bar)
        self.pool = RealPool(self.folder / "near-bulk")
        return None

    def quarters(self) -> None:
        """Measure four quarter partitions beside one whole GPU, and native processes likewise."""
        for fraction, whole, what, budget in (
            ("0.25", "1", "quarters beside one whole", QUARTERS),
            ("", "", "processes beside one, native", 0.0),
        ):
            # One before and one after, because the machine may become faster or slower.
            ones = [self._streams(1, whole)]
            four = self._streams(4, fraction)
            ones.append(self._streams(1, whole))
            if four and all(ones):
                one = statistics.mean(ones)
                name = f"ResNet-50 bf16 b32, four {what}"
                self.report.row(name, one, four, "img/s", four / one, budget)

    def _streams(self, count: int, fraction: str) -> float:
        """Return images per second of so many processes together; natively without a fraction."""
        meeting = Path(tempfile.mkdtemp(dir=self.folder))
        command = [*MODELS, f"resnet_stream:{meeting}:{count}"]
        if fraction:
            command = self.pool.words(command, "-p", fraction)
        logs = [self.folder / f"stream{count}-{fraction}-{at}.log" for at in range(count)]
        processes = [
            subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT,
                             env=self.pool.env)
            for log in logs
        ]  # fmt: skip
        end = time.monotonic() + LIMIT_S
        for process in processes:
            try:
                process.wait(max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        found = [results_of(log.read_text()).get("images_per_s") for log in logs]
        if None in found:
            text = logs[found.index(None)].read_text()
            self.report.failed(f"{count} streams", Outcome(1, 0, {}, text))
            return 0.0
        return sum(map(float, filter(None, found)))


def veth(report: Report, folder: Path) -> None:
    """Measure large copies between two networks, with the driver without a GPU.

    The processor's time of the client alone: other work on the machine does not count into it.
    """
    sys.path.append(str(DRIVER))
    from cut_pool import ADDRESSES, Net
    from fake_pool import FakeGpuPool

    program = folder / "stripes"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", str(program), str(STRIPES)]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    net: Any = None
    for encryption in ("off", "tls"):
        (place := folder / encryption).mkdir()
        pool = FakeGpuPool(place)
        net = net or Net(pool)
        pool.server.prefix = ["nsenter", "--net", f"--target={net.places[0].pid}"]
        pool.server.listen = f"{ADDRESSES[0]}:7470"
        try:
            pool.server.start("--data-encryption", encryption)
            pool.until(lambda pool=pool: pool.idle_servers() == 1)
            for lanes in (0, 2, 4):
                options = ["-p", "0.5", "--env", f"GPUPOOL_LANES={lanes}", "--"]
                done = pool.command("run", *options, str(program), "64", "8", "go")
                found = results_of(done.stdout)
                for key in ("up_GBps", "up_own_cpu_ns", "down_GBps", "down_own_cpu_ns"):
                    unit = "GB/s" if "GBps" in key else "ns"  # for each KiB
                    label = f"veth {encryption}, {lanes or 1} connections: {key}"
                    report.row(label, 0.0, float(found[key]), unit, 0.0, 0.0)
        finally:
            pool.stop()
    for each in net.places:
        each.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="start,models,launches,quarters,tls,bulk")
    parser.add_argument("--json", default="")
    parser.add_argument("--budget", type=float, default=400, help="seconds for all of it")
    parser.add_argument("--veth", action="store_true", help="under unshare -rn; needs no GPU")
    add_options(parser)
    options = parser.parse_args()
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        results = Results.of("cuda_door.py", options)
        if options.veth:
            veth(Report(results), folder)
            return 0
        bench = Bench(folder, time.monotonic() + options.budget, results)
        try:
            print(f"{'':44} {'native':>10} {'remote':>10}")
            for part in options.only.split(","):
                if time.monotonic() > bench.end - 20:
                    print(f"skip {part}: no time left")
                    continue
                getattr(bench, part)()
        finally:
            bench.pool.stop()
            log = bench.pool.log.read_text()
            print(log[-1500:] if bench.report.missed else "")
    if options.json:
        Path(options.json).write_text(json.dumps(bench.report.rows, indent=1) + "\n")
    return bench.report.missed


if __name__ == "__main__":
    sys.exit(main())
