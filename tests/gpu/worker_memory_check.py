"""Memory and threads of a worker of the CUDA door, beside a native process of the program.

    PYTHONPATH=src python tests/gpu/worker_memory_check.py

Needs a GPU, and PyTorch for its second program. A pool of one server runs each program until it
has used the GPU; then resident memory and threads of all workers are read from /proc. The bar is
250 MiB for a worker whose program is trivial.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from leasing import RealPool  # noqa: E402

LARGEST_COUNT = 6
TRIVIAL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20) == 0
assert cuda.cuMemsetD8_v2(memory, 1, 1 << 20) == 0
"""
TORCH = """
import torch
print(float((torch.ones(1000, device="cuda") * 2).sum()))
"""
WAIT = """
print("ready", flush=True)
input()
"""


def uses_gpu(pid: int) -> bool:
    """Say whether a process has a context of CUDA."""
    return "/dev/nvidiactl" in Path(f"/proc/{pid}/maps").read_text()


def told(pid: int) -> str:
    """Return resident memory and threads of a process, and the files that take most of it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    files: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split(None, 5)
        if "-" in words[0]:
            name = Path(words[5]).name if len(words) > 5 else "anonymous"
        elif words[0] == "Rss:":
            files[name] += int(words[1])
    parts = ", ".join(f"{each} {kib // 1024}" for each, kib in files.most_common(LARGEST_COUNT))
    resident = int(status["VmRSS"].split()[0]) / 1024
    return f"{resident:.0f} MiB, {status['Threads'].strip()} threads; in MiB: {parts}"


def workers() -> list[int]:
    """Return the pids of all workers on this machine."""
    found = Path("/proc").glob("[0-9]*/comm")
    return [int(path.parent.name) for path in found if path.read_text() == "gpupool-worker\n"]


def measure(label: str, words: list[str], env: dict[str, str], *, native: bool) -> None:
    """Run a program until it waits, and print the memory of the program or its worker."""
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in ("ready\n", ""):
            pass
        if native:
            print(f"{label}, natively: {told(process.pid)}")
        for pid in [] if native else sorted(workers(), key=uses_gpu, reverse=True):
            print(f"{label}, {'worker' if uses_gpu(pid) else 'spare worker'}: {told(pid)}")
        process.communicate("\n", timeout=60)


def main() -> None:
    """Measure both programs natively and behind the door."""
    with tempfile.TemporaryDirectory(prefix="gpupool-memory-") as name:
        folder = Path(name)
        pool = RealPool(folder, remote=True)
        try:
            for label, text in (("trivial", TRIVIAL), ("PyTorch", TORCH)):
                program = folder / f"{label}.py"
                program.write_text(text + WAIT)
                words = [sys.executable, str(program)]
                measure(label, words, dict(os.environ), native=True)
                measure(label, pool.words(words, "-p", "0.1"), pool.env, native=False)
        finally:
            pool.stop()


if __name__ == "__main__":
    main()
