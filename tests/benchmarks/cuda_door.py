"""The CUDA door against native CUDA, on this machine's GPU: native beside remote in one run.

    python tests/benchmarks/cuda_door.py [--only models,launches,tls,delay,quarters] [--json FILE]

Needs a real GPU, nvcc, PyTorch, torchvision and transformers. Remote means ``gpupool join`` and
``gpupool run`` over loopback: a Unix socket, or TCP where it says so. Every figure is the median of
five rounds (of 2,001 for latencies). The delay is our own proxy's (``peer.c``), half
of it each way. The exit status is the number of budgets that were missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "src")]

from cuda_door_check import LOOPBACK, compile_program  # noqa: E402
from leasing import Outcome, RealPool, results_of, run  # noqa: E402

from gpupool.remoting.driver import build  # noqa: E402

MODELS = [sys.executable, str(ROOT / "tests" / "gpu" / "cuda_programs" / "models.py")]
WORKLOADS = ["resnet_train", "resnet_infer", "gpt2_train", "gpt2_generate"]
SPEED = ROOT / "tests" / "gpu" / "cuda_programs" / "speed.cu"
LIMIT_S = 150

BUDGETS = {"resnet_train": 0.97, "resnet_infer": 0.85, "gpt2_train": 0.97, "gpt2_generate": 0.90}
DELAYED = {"resnet_train": 0.95, "resnet_infer": 0.65, "gpt2_train": 0.95, "gpt2_generate": 0.75}
LAUNCHES, COPIES, QUARTERS, LATENCY_US, START_S = 0.85, 0.85, 0.95, 30.0, 1.0


class Report:
    """Prints rows, keeps them, and counts what missed its budget."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self.missed = 0

    def row(
        self, name: str, native: float, remote: float, unit: str, ratio: float, budget: float
    ) -> None:
        """Record one figure; ``ratio`` is remote throughput over what it is compared with."""
        verdict = "" if not budget else "kept" if ratio >= budget else "MISSED"
        self.missed += verdict == "MISSED"
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


class Bench:
    """All measurements of one run."""

    def __init__(self, folder: Path, end: float) -> None:
        self.folder = folder
        self.end = end
        self.report = Report()
        self.pool = RealPool(folder / "near")
        self.peer = folder / "peer"
        source = HERE / "peer.c"
        command = ["gcc", "-O2", "-pthread", "-o", str(self.peer), str(source)]
        subprocess.run(command, check=True)
        self.native_models = Outcome(1, 0, {}, "")

    def native(self, command: list[str]) -> Outcome:
        return run(command, LIMIT_S, self.folder / "native.log", dict(os.environ))

    def loopback(self, command: list[str], *options: str) -> Outcome:
        """Run with one worker and nothing else of gpupool, over TCP."""
        words = [sys.executable, str(LOOPBACK), "--library", str(build.library_dir()), "--tcp"]
        words += ["--memory", str(100 << 30), *options, "--", *command]
        return run(words, LIMIT_S, self.folder / "loopback.log", dict(os.environ))

    def models(self) -> None:
        """Measure PyTorch, natively and through the pool."""
        native = self.native([*MODELS, *WORKLOADS])
        remote = self.pool.run([*MODELS, *WORKLOADS], "-v", limit=LIMIT_S, name="models")
        self.native_models = native
        waits = [line for line in remote.output.splitlines() if "waited for the server" in line]
        print("\n".join(waits))
        if native.code or remote.code:
            return self.report.failed("models", remote if remote.code else native)
        self._compare_models("", native, remote, BUDGETS)
        before, after = (
            sum(float(outcome.results[key]) for key in ("import_s", "first_s"))
            for outcome in (native, remote)
        )
        self.report.latency("import torch and first operation", before, after, START_S, "s")
        return None

    def _compare_models(
        self, what: str, native: Outcome, remote: Outcome, budgets: dict[str, float]
    ) -> None:
        for name, budget in budgets.items():
            a, b = (float(o.results[f"{name}_ms"]) for o in (native, remote))
            self.report.row(name + what, a, b, "ms", a / b, budget)

    def launches(self) -> None:
        """Measure launches, latency and copies, beside plain sockets."""
        program = [str(compile_program(SPEED, self.folder, False))]
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
        for key in ("launch_us", "launch8_us"):
            a, b = float(native.results[key]), float(unix.results[key])
            self.report.row(f"{key}: sustained", a, b, "us", a / b, LAUNCHES)
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
        return None

    def delay(self) -> None:
        """Measure PyTorch with 0.3 ms more round trip."""
        native = self.native_models
        if native.code:
            native = self.native([*MODELS, *WORKLOADS])
        options = ["--peer", str(self.peer), "--delay-us", "300"]
        remote = self.loopback([*MODELS, *WORKLOADS], *options)
        if native.code or remote.code:
            return self.report.failed("models with delay", remote if remote.code else native)
        self._compare_models(", 0.3 ms added", native, remote, DELAYED)
        return None

    def quarters(self) -> None:
        """Measure four quarter partitions beside one whole GPU, and what CUDA does natively."""
        whole = self._streams(1, "1")
        four = self._streams(4, "0.25")
        native = self._streams(1, "")
        natives = self._streams(4, "")
        name = "ResNet-50 bf16 b32, four "
        if whole and four:
            self.report.row(f"{name}quarters beside one whole", whole, four, "img/s", four / whole,
                            QUARTERS)  # fmt: skip
        if native and natives:
            ratio = natives / native
            self.report.row(f"{name}processes beside one, native", native, natives, "img/s", ratio,
                            0.0)  # fmt: skip

    def _streams(self, count: int, fraction: str) -> float:
        """Return images per second of so many processes together; natively without a fraction."""
        meeting = self.folder / f"meeting{count}{fraction}"
        meeting.mkdir()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="models,launches,quarters,delay,tls")
    parser.add_argument("--json", default="")
    parser.add_argument("--budget", type=float, default=400, help="seconds for all of it")
    options = parser.parse_args()
    build.ensure()
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        bench = Bench(folder, time.monotonic() + options.budget)
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
