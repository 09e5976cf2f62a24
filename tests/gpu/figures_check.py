"""Check that gpupool's figures of a GPU are those of NVML and of ``nvidia-smi dmon``.

    python tests/gpu/figures_check.py [--seconds 40]

A program behind the CUDA door rests, computes all the time, and computes for half of it. Meanwhile
``/metrics`` and NVML are read once a second, ``nvidia-smi dmon`` prints its line each second, and
``gpupool analyze record`` records. Their means of each phase are compared, without its first and
last seconds, because each of them looks back over a time of its own. Then a program reads where
no memory is: the error must be in ``/metrics``. Needs a real GPU that nobody else uses, PyTorch and
nvcc. The exit status is the number of failures.
"""

import argparse
import contextlib
import importlib
import json
import signal
import sqlite3
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "src")]

from cuda_door_check import compile_program  # noqa: E402
from leasing import GPUPOOL, RealPool  # noqa: E402

PHASES = (0.0, 1.0, 0.5)
EDGE_S = 4.0
"""At both ends of a phase."""
XID_S = 15.0
OFF = {"busy": 0.01, "memory": 0.01, "power": 0.03, "temperature": 1.0}
"""How far a mean may be off: shares of a whole; power and memory of NVML's; degrees."""
HALF = 0.02
"""Of ``busy`` in a phase that does not compute all the time: readings of other moments differ."""
RECORDER_OFF, RECORDER_HALF = 0.02, 0.06
"""The recorder reads once in 10 s, so few of its readings are in a phase."""
FAULT = r"""
#include <cstdio>
__global__ void wrong(int *there) { *there = 1; }
int main() {
    wrong<<<1, 1>>>((int *)0x10);
    printf("RESULT error %d\n", (int)cudaDeviceSynchronize());
}
"""
FAMILIES = {
    "gpupool_gpu_busy_ratio": "busy",
    "gpupool_gpu_memory_used_bytes": "memory",
    "gpupool_gpu_power_watts": "power",
    "gpupool_gpu_temperature_celsius": "temperature",
    "gpupool_gpu_sm_activity_ratio": "sm activity",
}
Row = dict[str, float]


class Scraper:
    """Reads a server's metrics."""

    def __init__(self, pool: RealPool) -> None:
        (server,) = json.loads(pool.command("status", "--json").stdout)["pool"]["servers"]
        self.url = f"https://{server['address']}/metrics"
        self.context = ssl.create_default_context(cafile=str(pool.folder / "state" / "ca.pem"))
        self.context.check_hostname = False
        self.parse = importlib.import_module("prometheus_client.parser")

    def families(self) -> list[Any]:
        with urllib.request.urlopen(self.url, context=self.context, timeout=5) as answer:
            text = answer.read().decode()
        return list(self.parse.text_string_to_metric_families(text))

    def row(self) -> Row:
        return {
            FAMILIES[sample.name]: sample.value
            for family in self.families()
            for sample in family.samples
            if sample.name in FAMILIES
            and sample.labels.get("gpu") == "0"
            and sample.labels.get("sensor", "gpu") != "memory"
        }

    def xids(self) -> dict[str, float]:
        return {
            sample.labels["xid"]: sample.value
            for family in self.families()
            for sample in family.samples
            if sample.name == "gpupool_gpu_xid_errors_total"
        }


class Nvml:
    """Reads the same by NVML."""

    def __init__(self) -> None:
        self.nv: Any = importlib.import_module("pynvml")
        self.nv.nvmlInit()
        self.gpu = self.nv.nvmlDeviceGetHandleByIndex(0)

    def row(self) -> Row:
        nv, gpu = self.nv, self.gpu
        return {
            "busy": nv.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "memory": float(nv.nvmlDeviceGetMemoryInfo(gpu, version=nv.nvmlMemory_v2).used),
            "power": nv.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature": float(nv.nvmlDeviceGetTemperature(gpu, nv.NVML_TEMPERATURE_GPU)),
        }


class Samples:
    """Rows of each source by time, taken once a second by a thread."""

    def __init__(self, **sources: Any) -> None:
        self.rows: dict[str, list[tuple[float, Row]]] = {name: [] for name in sources}
        self._sources = sources
        self._over = threading.Event()

    @contextlib.contextmanager
    def taken(self) -> Generator[None]:
        threads = [threading.Thread(target=self._take, args=(name,)) for name in self._sources]
        for thread in threads:
            thread.start()
        yield
        self._over.set()
        for thread in threads:
            thread.join()

    def _take(self, name: str) -> None:
        while not self._over.wait(1):
            try:
                self.rows[name].append((time.time(), self._sources[name].row()))
            except OSError as error:
                print(f"{name}: {error}", flush=True)

    def mean(self, name: str, figure: str, begin: float, end: float) -> float:
        values = [
            row[figure]
            for at, row in self.rows[name]
            if begin + EDGE_S <= at <= end - EDGE_S and figure in row
        ]
        return statistics.fmean(values) if values else float("nan")


def dmon_rows(lines: Sequence[str]) -> list[tuple[float, Row]]:
    """Return the rows of ``nvidia-smi dmon``, each with the time at which its line was read."""
    names: list[str] = []
    rows: list[tuple[float, Row]] = []
    known = {
        "pwr": ("power", 1.0),
        "gtemp": ("temperature", 1.0),
        "sm": ("busy", 0.01),
        "fb": ("memory", float(1 << 20)),
    }
    for line in lines:
        at, _, words = line.partition(" ")
        if "gpu" in words and words.startswith("#"):
            names = words.removeprefix("#").split()
        if words.startswith("#") or not names:
            continue
        cells = dict(zip(names, words.split(), strict=False))
        rows.append(
            (
                float(at),
                {
                    figure: float(cells[name]) * scale
                    for name, (figure, scale) in known.items()
                    if cells.get(name, "-") != "-"
                },
            )
        )
    return rows


@contextlib.contextmanager
def dmon(lines: list[str]) -> Generator[None]:
    """Keep the lines of ``nvidia-smi dmon`` with their times."""
    process = subprocess.Popen(
        ["nvidia-smi", "dmon", "-i", "0", "-s", "pum", "-d", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout

    def read() -> None:
        lines.extend(f"{time.time()} {line.strip()}" for line in output)

    thread = threading.Thread(target=read)
    thread.start()
    yield
    process.terminate()
    process.wait()
    thread.join()


def recorded_busy(path: Path, begin: float, end: float) -> float:
    """Return the mean busy share of a recording's rows within a phase."""
    with contextlib.closing(sqlite3.connect(path)) as store:
        total, count = store.execute(
            "SELECT sum(busy_sum), sum(busy_count) FROM gpu_sample WHERE t >= ? AND t <= ?",
            (begin + EDGE_S, end - EDGE_S),
        ).fetchone()
    return total / count / 1000 if count else float("nan")


class Report:
    """Prints comparisons, and counts differences."""

    def __init__(self) -> None:
        self.failed = 0

    def same(self, what: str, ours: float, theirs: float, off: float) -> None:
        good = abs(ours - theirs) <= off
        self.failed += not good
        word = "pass" if good else "FAIL"
        print(f"{word}  {what:44} {ours:16.4f} {theirs:16.4f}  may differ by {off:.4f}", flush=True)


def compare(samples: Samples, recording: Path, phases: list[tuple[float, ...]]) -> int:
    """Compare the means of each phase, and return the number of failures."""
    report = Report()
    for share, begin, end in phases:
        whole = share in (0.0, 1.0)
        name = f"{share:.0%} busy"
        for figure in ("busy", "memory", "power", "temperature"):
            ours = samples.mean("metrics", figure, begin, end)
            for source in ("nvml", "dmon"):
                theirs = samples.mean(source, figure, begin, end)
                off = OFF[figure] if whole or figure != "busy" else HALF
                off *= theirs if figure in ("memory", "power") else 1
                report.same(f"{name}: {figure}, metrics and {source}", ours, theirs, off)
        busy = samples.mean("dmon", "busy", begin, end)
        recorded = recorded_busy(recording, begin, end)
        off = RECORDER_OFF if whole else RECORDER_HALF
        report.same(f"{name}: busy, recorder and dmon", recorded, busy, off)
        activity = samples.mean("metrics", "sm activity", begin, end)
        print(f"      {name}: SM activity {activity:.3f}")
    return report.failed


def check_fault(pool: RealPool, scraper: Scraper, folder: Path) -> int:
    """Run a program that reads where no memory is; return the number of failures."""
    source = folder / "fault.cu"
    source.write_text(FAULT)
    program = compile_program(source, folder, shared=False)
    before = scraper.xids()
    done = pool.run([str(program)], "-p", "0.1", limit=60, name="fault")
    end = time.monotonic() + XID_S
    while (xids := scraper.xids()) == before and time.monotonic() < end:
        time.sleep(0.5)
    good = xids != before
    print(f"{'pass' if good else 'FAIL'}  errors of the driver {before} -> {xids}; {done.results}")
    print(pool.command("health").stdout.strip())
    return not good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="of each phase")
    options = parser.parse_args()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpupool-figures-") as made:
        folder = Path(made)
        pool = RealPool(folder, "--metrics-open", "127.0.0.0/8")
        recording = folder / "recording.db"
        try:
            scraper = Scraper(pool)
            samples = Samples(metrics=scraper, nvml=Nvml())
            recorder = subprocess.Popen(
                [*GPUPOOL, "analyze", "record", "--for", "1h", "--out", str(recording)],
                env=pool.env,
            )
            words = [f"{share}:{options.seconds}" for share in PHASES]
            program = [sys.executable, str(HERE / "cuda_programs" / "phases.py"), *words]
            limit = 60 + options.seconds * len(PHASES)
            with samples.taken(), dmon(lines):
                done = pool.run(program, "-p", "0.5", limit=limit, name="phases")
            recorder.send_signal(signal.SIGTERM)
            recorder.wait(20)
            samples.rows["dmon"] = dmon_rows(lines)
            phases = [
                tuple(float(word) for word in line.split()[1:])
                for line in done.output.splitlines()
                if line.startswith("PHASE")
            ]
            if len(phases) != len(PHASES):
                raise SystemExit(f"the program did not end:\n{done.output}")
            failed = compare(samples, recording, phases)
            failed += check_fault(pool, scraper, folder)
        finally:
            pool.stop()
    print(failed, "failed")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
