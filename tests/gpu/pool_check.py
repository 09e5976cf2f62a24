"""The whole pool on a machine with a real GPU: join, run, partitions, failures, figures.

Run it on a GPU server:  python tests/gpu/pool_check.py [--skip-native]
It starts a pool of one server in a temporary directory, with everything real: NVML, workers,
CuPy. Each step prints one line; the exit code is 1 when any step failed.
"""

# ruff: noqa: E501 - the small programs in strings are written densely
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GPUPOOL = [sys.executable, "-c", "from gpupool.cli.main import main; main()"]

OUT_OF_MEMORY = """
import cupy as cp
free, total = cp.cuda.runtime.memGetInfo()
print("total GiB", round(total / 2**30, 2), "free GiB", round(free / 2**30, 2))
try:
    cp.zeros(total + 2**30, dtype=cp.uint8)
    print("NOT REFUSED")
except cp.cuda.memory.OutOfMemoryError as error:
    print("refused:", str(error)[:100])
kept = [cp.ones(2**26, dtype=cp.float32) for _ in range(4)]
print("still works:", float(sum(float(k[0]) for k in kept)))
"""

QUARTER = """
import cupy as cp, time, sys
free, total = cp.cuda.runtime.memGetInfo()
a = cp.random.rand(4096, 4096, dtype=cp.float32)
held = cp.zeros(int(free * 0.8), dtype=cp.uint8)
started = time.time()
while time.time() - started < 5:
    b = a @ a
    cp.cuda.Device().synchronize()
print(round(total / 2**30, 1), float(b[0, 0]) > 0)
"""

KERNELS = """
import cupy as cp, numpy as np
add = cp.ElementwiseKernel("T x, T y", "T z", "z = x + 2 * y", "add2")
x = cp.arange(1000, dtype=cp.float32)
assert np.allclose(add(x, x).get(), 3 * np.arange(1000))
total = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")
assert float(total(x)) == 499500.0
raw = cp.RawKernel(r'extern "C" __global__ void twice(float* x, int n) '
                   r'{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }', "twice")
raw((8,), (128,), (x, np.int32(1000)))
assert np.allclose(x.get(), 2 * np.arange(1000))
a = cp.random.rand(512, 512)
assert np.allclose((a @ cp.linalg.inv(a)).get(), np.eye(512), atol=1e-6)
assert np.allclose(cp.fft.ifft(cp.fft.fft(a)).get(), a.get())
assert (cp.sort(a.ravel()).get() == np.sort(a.ravel().get())).all()
print("kernels, linalg, fft, sort: right")
"""

COMPILED = """
import time, cupy as cp
a = cp.arange(1000, dtype=cp.float32)
cp.cuda.Device().synchronize()
t = time.perf_counter()
kernel = cp.ElementwiseKernel("T x", "T y", "y = x * x + 42", "squared42")
results = [kernel(a), cp.sin(a) + cp.exp(-a), cp.hypot(a, a), a.sum(), a.cumsum(), cp.sort(-a), cp.where(a > 3, a, 0.5)]
cp.cuda.Device().synchronize()
print(f"{time.perf_counter() - t:.2f} s for the first use of some kernels")
"""

COUNT = """
import cupy as cp, time, sys
name = sys.argv[1]
x = cp.ones(1000, dtype=cp.float32); y = x + x; cp.cuda.Device().synchronize()
n = 20000
t = time.perf_counter()
for _ in range(n): y = x + x
queued = time.perf_counter() - t
cp.cuda.Device().synchronize()
done = time.perf_counter() - t
t = time.perf_counter()
for _ in range(500): float(x[0])
one = (time.perf_counter() - t) / 500
import numpy as np
h = np.ones(2**28, dtype=np.uint8); d = cp.asarray(h); best_up = best_down = 9e9
for _ in range(3):
    t = time.perf_counter(); d = cp.asarray(h); cp.cuda.Device().synchronize(); best_up = min(best_up, time.perf_counter() - t)
    t = time.perf_counter(); d.get(); best_down = min(best_down, time.perf_counter() - t)
a = cp.random.rand(4096, 4096, dtype=cp.float32); a @ a; cp.cuda.Device().synchronize()
t = time.perf_counter()
for _ in range(50): b = a @ a
cp.cuda.Device().synchronize()
mm = (time.perf_counter() - t) / 50
print(f"{name}: add queued {queued / n * 1e6:.2f} us, done {done / n * 1e6:.2f} us; sync read {one * 1e6:.0f} us; "
      f"up {0.268435 / best_up:.2f} GB/s, down {0.268435 / best_down:.2f} GB/s; matmul 4096 {mm * 1e3:.2f} ms")
"""


class Pool:
    """One server with a real GPU, and programs run on it."""

    def __init__(self, directory: Path, encryption: str) -> None:
        self.environment = os.environ | {
            "HOME": str(directory),
            "XDG_RUNTIME_DIR": "",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        self.log = (directory / "server.log").open("w+")
        self.server = subprocess.Popen(
            [*GPUPOOL, "join", "--listen", "127.0.0.1:7477", "--state-dir", str(directory / "s"),
             "--data-encryption", encryption],
            stdout=self.log, stderr=subprocess.STDOUT, env=self.environment,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while self.command("status").returncode != 0:
            if time.monotonic() > deadline or self.server.poll() is not None:
                raise SystemExit("the server did not start:\n" + self.log_text())
            time.sleep(0.3)

    def log_text(self) -> str:
        """Return the server's log."""
        self.log.flush()
        return Path(self.log.name).read_text()

    def command(self, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run one gpupool command."""
        return subprocess.run([*GPUPOOL, *words], capture_output=True, text=True, check=False,
                              env=self.environment, timeout=timeout_s)  # fmt: skip

    def start(self, options: list[str], program: list[str]) -> subprocess.Popen[str]:
        """Start a program on the pool."""
        return subprocess.Popen(
            [*GPUPOOL, "run", "--door", "arrays", *options, "--", *program], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment,
        )  # fmt: skip

    def leases(self) -> int:
        """Return how many leases there are."""
        return len(json.loads(self.command("leases", "--json").stdout)["leases"])


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip-native", action="store_true")
    parser.add_argument("--encryption", default="off")
    options = parser.parse_args()
    failed: list[str] = []

    def step(name: str, action: Callable[[], str]) -> None:
        started = time.monotonic()
        try:
            text = action()
        except Exception as error:  # noqa: BLE001 - every step runs, whatever one of them does
            failed.append(name)
            text = f"FAILED {type(error).__name__}: {str(error)[-1500:]}"
        print(f"[{time.monotonic() - started:5.1f} s] {name}: {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        pool = Pool(Path(name), options.encryption)
        try:
            steps(pool, step, native=not options.skip_native)
        finally:
            pool.server.send_signal(signal.SIGTERM)
            pool.server.wait(30)
            print(pool.log_text()[-3000:])
    print("FAILED: " + ", ".join(failed) if failed else "all steps passed")
    sys.exit(1 if failed else 0)


def steps(pool: Pool, step: Callable[[str, Callable[[], str]], None], *, native: bool) -> None:
    """Run the steps, native beside remote."""
    python = sys.executable

    def finish(process: subprocess.Popen[str], timeout_s: float = 120) -> str:
        out, err = process.communicate(timeout=timeout_s)
        if process.returncode:
            raise RuntimeError(f"exit {process.returncode}: {out}{err}")
        return out.strip().replace("\n", " | ") + (f" [{err.strip()[-300:]}]" if err else "")

    def run(*words: str, options: tuple[str, ...] = ()) -> str:
        return finish(pool.start(["-n", "1", *options], [python, *words]))

    def plain(*words: str) -> str:
        done = subprocess.run([python, *words], capture_output=True, text=True, timeout=120,
                              check=True)  # fmt: skip
        return done.stdout.strip().replace("\n", " | ")

    step("status", lambda: pool.command("gpus").stdout)
    for example in ("solver", "kmeans", "image_filter"):
        path = str(ROOT / "examples" / f"{example}.py")
        if native:
            step(f"{example} native", lambda path=path: plain(path))
        step(f"{example} on half a GPU", lambda path=path: run(path, options=("-p", "0.5")))
    step("kernels", lambda: run("-c", KERNELS, options=("-p", "0.5")))
    step("kernels compiled", lambda: run("-c", COMPILED, options=("-p", "0.5")))
    step("the same in the user's next session", lambda: run("-c", COMPILED, options=("-p", "0.5")))
    step("out of memory", lambda: run("-c", OUT_OF_MEMORY, options=("-p", "0.25")))

    def quarters() -> str:
        four = [pool.start(["-n", "1", "-p", "0.25"], [python, "-c", QUARTER]) for _ in range(4)]
        return " ; ".join(finish(each) for each in four)

    step("four quarters at once", quarters)

    def killed_client() -> str:
        process = pool.start(["-n", "1"], [python, "-c", QUARTER])
        while not pool.leases():
            time.sleep(0.1)
        time.sleep(3)
        process.kill()
        started = time.monotonic()
        while pool.leases():
            time.sleep(0.02)
        return f"lease gone {time.monotonic() - started:.2f} s after kill -9 (with one poll)"

    step("kill -9 of the client", killed_client)

    def killed_worker() -> str:
        process = pool.start(["-n", "1"], [python, "-c", QUARTER])
        while not pool.leases():
            time.sleep(0.1)
        time.sleep(3)
        found = subprocess.run(["pgrep", "-f", "gpupool.remoting.worker.worker_main"],
                               capture_output=True, text=True, check=True)  # fmt: skip
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        started = time.monotonic()
        _out, err = process.communicate(timeout=60)
        waited = time.monotonic() - started
        return f"exit {process.returncode} after {waited:.2f} s: {err.strip()[-400:]}"

    step("kill -9 of the worker", killed_worker)
    if native:
        step("figures", lambda: plain("-c", COUNT, "native"))
    step("figures", lambda: run("-c", COUNT, "remote", options=("-p", "0.5")))


if __name__ == "__main__":
    main()
