"""The cost of recording before adoption, by script and by command: processor and memory.

    python tests/benchmarks/recorder.py [--minutes 4] [--every 10] [--gpus 8] [--processes 20]

They have the same GPUs, which do not exist: NVML is a library of this program's. The processes on
them are those of this machine. So the driver's own work is not among the figures; on a real machine
that is what NVML's calls take (docs/results/gpu.md).
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "monitoring" / "analysis" / "portable_recorder.py"
COMMAND = ["-c", "import sys; from gpupool.cli.main import main; main()"]
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
struct share { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; };
static char gpus[64];
static unsigned count(void) { return (unsigned)atoi(getenv("BENCH_GPUS")); }
static unsigned pids(void *device, unsigned *found) {
    unsigned at = 0, gpu = (unsigned)((char *)device - gpus), number = 0;
    for (char *text = getenv("BENCH_PIDS"); *text; number++) {
        unsigned pid = (unsigned)strtoul(text, &text, 10);
        if (number % count() == gpu) found[at++] = pid;
        if (*text) text++;
    }
    return at;
}
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &gpus[index];
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%d", (int)((char *)device - gpus));
    return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    (void)device;
    strncpy(text, "NVIDIA H200", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    (void)device;
    memory->total = 140ull << 30, memory->used = 60ull << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    (void)device;
    rates[0] = (unsigned)(rand() % 100), rates[1] = 5;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *found, struct process *rows) {
    unsigned list[256], length = pids(device, list);
    for (unsigned at = 0; at < length; at++)
        rows[at] = (struct process){.pid = list[at], .used = 9ull << 30};
    *found = length;
    return 0;
}
int nvmlDeviceGetProcessUtilization(void *device, struct share *rows, unsigned *found,
                                    unsigned long long since) {
    unsigned list[256], length = pids(device, list);
    for (unsigned at = 0; at < length; at++)
        rows[at] = (struct share){.pid = list[at], .time_us = since + 1, .sm = 40};
    *found = length;
    return 0;
}
"""


@dataclass(frozen=True)
class Cost:
    """The resource use of one recorder."""

    cpu_s: float  # from its first sample on, without its start
    resident: int
    samples: int
    size: int


def watch(command: list[str], environment: dict[str, str], out: Path, seconds: float) -> Cost:
    """Run a recorder to its end, and return its resource use after its first sample."""
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    place = Path(f"/proc/{process.pid}")
    begun, first, last, resident = time.monotonic(), 0.0, 0.0, 0
    try:
        while process.poll() is None:
            if time.monotonic() > begun + seconds + 60:
                raise TimeoutError("the recorder does not end")
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                pages = int((place / "statm").read_text().split()[1])
            except (OSError, IndexError):
                break
            last = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if not first and _rows(out):
                first = last
            resident = max(resident, pages * resource.getpagesize())
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    return Cost(last - first, resident, _rows(out), out.stat().st_size)


def _rows(out: Path) -> int:
    import sqlite3

    if not out.exists():
        return 0
    try:
        db = sqlite3.connect(f"file:{out}?mode=ro", uri=True)
        try:
            return int(db.execute("SELECT count(DISTINCT t) FROM gpu_sample").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=20)
    given = parser.parse_args()
    seconds = 60 * given.minutes
    found = sorted(int(each) for each in os.listdir("/proc") if each.isdecimal())
    pids = ",".join(str(each) for each in (found * given.processes)[: given.processes])
    compiler = shutil.which("cc") or "gcc"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "nvml.c").write_text(LIBRARY)
        library = folder / "libnvidia-ml.so.1"
        build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "nvml.c")]
        subprocess.run(build, check=True)
        environment = {
            **os.environ, "BENCH_GPUS": str(given.gpus), "BENCH_PIDS": pids,
        }  # fmt: skip
        environment["LD_LIBRARY_PATH"] = str(folder)
        commands = {
            "the script": [str(SCRIPT), "--every", str(given.every)],
            "gpupool analyze record": [*COMMAND, "analyze", "record"],
        }
        print(f"{given.gpus} GPUs, {given.processes} processes, every {given.every} s, "
              f"{given.minutes:g} minutes each")  # fmt: skip
        print(f"{'':24}{'of a core':>12}{'a sample':>12}{'memory':>10}{'samples':>9}{'file':>10}")
        for name, command in commands.items():
            out = folder / f"{len(name)}.db"
            command += ["--for", f"{seconds:.0f}s", "--out", str(out)]
            cost = watch([sys.executable, *command], environment, out, seconds)
            each = 1000 * cost.cpu_s / max(1, cost.samples - 1)
            print(f"{name:24}{100 * cost.cpu_s / seconds:>10.3f} %{each:>9.2f} ms"
                  f"{cost.resident / 2**20:>6.1f} MiB{cost.samples:>9}"
                  f"{cost.size / 1000:>7.0f} kB")  # fmt: skip


if __name__ == "__main__":
    main()
