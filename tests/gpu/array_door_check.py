"""Tries the array door on real GPUs: run it where CuPy and at least one GPU are.

    python tests/gpu/array_door_check.py [--memory GIB] [--quick]

Three kinds of processes: a *worker* that has CuPy and serves its GPUs over a socket, *clients* that
have the drop-in first on their path, and a *native* one that measures CuPy itself. Exit status 0
means that everything that could be compared was equal.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import contextlib
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "remoting" / "array_api"
DROPIN = ROOT / "remoting" / "array_api" / "dropin"
MIB = 1 << 20

# --- the worker -----------------------------------------------------------------------------------


def worker(memory: int) -> None:
    """Serve all GPUs of this machine, each as a partition of ``memory`` bytes."""
    sys.path[:0] = [str(KIT), str(ROOT / "src")]
    cupy: Any = importlib.import_module("cupy")
    door_kit: Any = importlib.import_module("door_kit")

    from gpupool.remoting.devices.base import DeviceSpec

    devices: list[Any] = []
    for ordinal in range(min(2, cupy.cuda.runtime.getDeviceCount())):
        name = cupy.cuda.runtime.getDeviceProperties(ordinal)["name"].decode()
        devices.append(
            DeviceSpec(ordinal, f"GPU-{ordinal}", name, memory, emulated=False, ordinal=ordinal)
        )
    with tempfile.TemporaryDirectory() as folder:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = door_kit.Server("here", listener, devices)
        agent = door_kit.Agent(Path(folder), [server])
        print(agent.path, flush=True)
        for _ in sys.stdin:
            for line in server.log:
                print("worker:", line, file=sys.stderr)
            for budget in server.budgets:
                print("worker: budget in use", budget.used, file=sys.stderr)
        agent.close()


# --- the checks, in a client ----------------------------------------------------------------------


def check_looks(cp: Any, memory: int) -> None:
    """See that the partition looks like a whole device."""
    assert "dropin" in cp.__file__
    free, total = cp.cuda.runtime.memGetInfo()
    properties = cp.cuda.runtime.getDeviceProperties(0)
    print(
        f"  {properties['name'].decode()}: total {total:,}, free {free:,}, "
        f"compute capability {cp.cuda.Device(0).compute_capability}"
    )
    assert total == memory == properties["totalGlobalMem"]
    assert 0 < free < total
    assert properties["multiProcessorCount"] > 1
    assert cp.cuda.runtime.runtimeGetVersion() >= 12000
    assert cp.cuda.Device(0).attributes["WarpSize"] == 32


GPU_DIFFERS = {
    "roots": "CuPy finds roots of Hermitian companion matrices only",
    "linalg.qr": "the columns that complete a basis are not unique",
}
"""Calls of the table in which CuPy on a GPU rightly gives something else than NumPy."""


def check_functions(cp: Any, memory: int) -> None:
    """Every function gives NumPy's result, and matches the client's inference."""
    door_calls: Any = importlib.import_module("door_calls")

    wrong: list[str] = []
    for table in (door_calls.CALLS, door_calls.METHODS):
        for name, call in table.items():
            try:
                with np.errstate(all="ignore"):
                    wanted = call(np, door_calls.arrays(np))
                found = call(cp, door_calls.arrays(cp))
                text = door_calls.difference(found, wanted)
            except Exception as error:  # noqa: BLE001 - all of them are to be listed
                text = f"{type(error).__name__}: {str(error)[:160]}"
                with contextlib.suppress(Exception):
                    cp.cuda.Device().synchronize()
            if text and name not in GPU_DIFFERS:
                wrong.append(f"{name}: {text}")
    for name, call in door_calls.DRAWS.items():
        try:
            call(cp.random, None).get()
        except Exception as error:  # noqa: BLE001 - all of them are to be listed
            wrong.append(f"random.{name}: {type(error).__name__}: {str(error)[:160]}")
            with contextlib.suppress(Exception):
                cp.cuda.Device().synchronize()
    calls, live, copied = cp.arange(1)._gp_session.ask("door.stats")
    print(f"  {calls:,} calls, {live} live handles, {copied} results copied to the inferred layout")
    for line in wrong:
        print("  WRONG", line)
    assert not wrong, f"{len(wrong)} functions differ"


def check_kernels(cp: Any, memory: int) -> None:
    """All four kinds of kernels compile and compute."""
    x = cp.arange(10, dtype=cp.float32)
    squared = cp.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_difference")
    assert np.array_equal(squared(x, 2.0).get(), (np.arange(10, dtype="f") - 2) ** 2)
    out = cp.empty_like(x)
    squared(x, x[::-1], out)
    assert np.array_equal(out.get(), (np.arange(10.0) - np.arange(10.0)[::-1]) ** 2)
    pair = cp.ElementwiseKernel(
        "raw T x",
        "T y, int32 k",
        "y = x[i0(i)]; k = 7",
        "pair",
        preamble="__device__ int i0(int i) { return 0; }",
    )
    y, i = pair(x, size=4)
    assert y.shape == i.shape == (4,)
    assert i.dtype == cp.int32
    l2 = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    matrix = cp.arange(12, dtype=cp.float32).reshape(3, 4)
    assert np.allclose(l2(matrix, axis=1).get(), np.linalg.norm(matrix.get(), axis=1))
    source = r"""
    extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] += a * x[i];
    }
    extern "C" __global__ void fill(double* y, long long n, double v) {
        for (long long i = threadIdx.x; i < n; i += blockDim.x) y[i] = v;
    }
    __constant__ float table[4];
    """
    axpy = cp.RawKernel(source, "axpy", options=("-std=c++17",))
    y = cp.ones(10, cp.float32)
    axpy((1,), (32,), (np.float32(2), x, y, np.int32(10)))
    assert np.array_equal(y.get(), 1 + 2 * np.arange(10))
    assert axpy.num_regs > 0
    assert axpy.attributes["max_threads_per_block"] >= 32
    module = cp.RawModule(code=source)
    doubles = cp.zeros(100)
    module.get_function("fill")((1,), (64,), (doubles, 100, 2.5))
    assert float(doubles.sum()) == 250
    for bad, kind in (
        ('#include "/etc/passwd"\n', NotImplementedError),
        ("#include <../../etc/passwd>\n", NotImplementedError),
        ("this is no C++", cp.compile_error),
    ):
        with_error = None
        try:
            cp.RawKernel(bad + source, "axpy").compile()
        except kind as error:
            with_error = error
        assert with_error is not None, bad
    axpy((1,), (32,), (np.float32(1), x, y, np.int32(10)))
    assert float(y[1]) == 4  # the session goes on after errors


def check_memory(cp: Any, memory: int) -> None:
    """Numbers of the pool, out of memory, garbage, and memory that comes back."""
    pool = cp.get_default_memory_pool()
    # The errors of the check before hold its arrays in a cycle; a collection at any later time,
    # that is to say between the two figures, would give those back.
    gc.collect()
    pool.free_all_blocks()
    used = pool.used_bytes()
    array = cp.zeros(64 * MIB, cp.uint8)
    assert pool.used_bytes() == used + 64 * MIB, (pool.used_bytes(), used)
    assert pool.total_bytes() >= pool.used_bytes()
    free_before = cp.cuda.runtime.memGetInfo()[0]
    del array
    assert pool.used_bytes() == used
    assert pool.free_bytes() >= 64 * MIB
    pool.free_all_blocks()
    assert cp.cuda.runtime.memGetInfo()[0] >= free_before + 64 * MIB
    try:
        cp.zeros(memory + 1, cp.uint8).sum().get()
    except cp.cuda.memory.OutOfMemoryError as error:
        said = str(error)
        print("  ", said)
    else:
        raise AssertionError("more than the partition could be allocated")
    assert "Out of memory allocating" in said

    class Cycle:
        array: Any
        me: Any

    gc.disable()
    cycle = Cycle()
    for _ in range(12):
        cycle = Cycle()
        cycle.me = cycle
        cycle.array = cp.zeros(memory // 5, cp.uint8)
    gc.enable()
    assert int(cp.ones(memory // 5, cp.uint8)[:9].sum()) == 9
    del cycle
    gc.collect()
    array = cp.zeros(memory // 3 // 8)
    for _ in range(50):
        array = array + 1
    assert float(array[-1]) == 50
    del array
    pool.free_all_blocks()  # what the pool holds already may be used whatever the limit
    pool.set_limit(size=8 * MIB)
    try:
        cp.zeros(32 * MIB, cp.uint8).get()
    except cp.cuda.memory.OutOfMemoryError:
        pool.set_limit(size=0)
    else:
        raise AssertionError("the limit did not hold")


def check_transfers(cp: Any, memory: int) -> None:
    """Arrays of all sizes and orders arrive as they left."""
    random = np.random.default_rng(1)
    for size in (0, 1, 100, 4096, 65536, 65537, 5_000_001, 40_000_003):
        host = random.integers(0, 255, size, np.uint8)
        assert np.array_equal(cp.asarray(host).get(), host), size
    host = random.random((300, 200, 5))
    for order in "CF":
        array = cp.asarray(np.array(host, order="F" if order == "F" else "C"))
        assert array.flags.f_contiguous == (order == "F")
        for back in "CFA":
            assert np.array_equal(array.get(order=back), host)
        assert np.array_equal(array[::2, ::-3].get(), host[::2, ::-3])
    out = np.empty_like(host)
    cp.asarray(host).get(out=out)
    assert np.array_equal(out, host)


def check_streams(cp: Any, memory: int) -> None:
    """Streams, events and times."""
    stream = cp.cuda.Stream(non_blocking=True)
    start, end = cp.cuda.Event(), cp.cuda.Event()
    with stream:
        a = cp.random.rand(2000, 2000)
        start.record()
        for _ in range(5):
            a = a @ a
            a /= a.max()
        end.record()
    end.synchronize()
    took = cp.cuda.get_elapsed_time(start, end)
    assert took > 0
    assert stream.done
    cp.cuda.Stream.null.wait_event(end)
    assert float(a.max()) == 1


def check_extensions(cp: Any, memory: int) -> None:
    """Functions of `cupyx.scipy` run whole on the worker; SciPy gives the expected results."""
    host = np.random.RandomState(3).rand(48, 48)
    device = cp.asarray(host)
    calls: list[tuple[str, Any]] = [
        ("ndimage", lambda m, a: m.gaussian_filter(a, 2)),
        ("ndimage", lambda m, a: m.label(a > 0.5)),
        ("ndimage", lambda m, a: m.center_of_mass(a)),
        ("ndimage", lambda m, a: m.zoom(a, 2, order=1)),
        ("signal", lambda m, a: m.convolve(a.ravel(), a[0], mode="same")),
        ("signal", lambda m, a: m.convolve2d(a, a[:3, :3], mode="same")),
        ("signal", lambda m, a: m.butter(4, 0.2)),
        ("signal", lambda m, a: m.sosfiltfilt(m.butter(4, 0.2, output="sos"), a.ravel())),
        ("signal", lambda m, a: m.find_peaks(a.ravel())[0]),
        ("signal.windows", lambda m, a: m.hann(9)),
        ("special", lambda m, a: m.erf(a)),
        ("special", lambda m, a: m.sici(a)),
        ("fft", lambda m, a: m.dctn(a, norm="ortho")),
        ("linalg", lambda m, a: m.lu(a)),
        ("linalg", lambda m, a: m.solve_triangular(a, a[0], lower=True)),
        ("stats", lambda m, a: m.zscore(a)),
    ]
    for path, call in calls:
        wanted = call(importlib.import_module(f"scipy.{path}"), host)
        made = call(importlib.import_module(f"cupyx.scipy.{path}"), device)
        pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else [(made, wanted)]
        for one, other in pairs:
            assert np.allclose(cp.asnumpy(one), other, rtol=1e-6, atol=1e-9), path
    print(f"  {len(calls)} calls of cupyx.scipy")


def check_errors(cp: Any, memory: int) -> None:
    """Errors keep their classes, and results that depend on them fail too."""
    kinds: list[tuple[Callable[[], Any], Any]] = [
        (lambda: cp.linalg.cholesky(-cp.eye(3)).get(), (np.linalg.LinAlgError, AssertionError)),
        (lambda: cp.arange(3).reshape(2, 2), ValueError),
        (lambda: cp.arange(3) + np.arange(3), TypeError),
        (lambda: cp.cuda.Device(99).use(), cp.cuda.runtime.CUDARuntimeError),
    ]
    for call, kind in kinds:
        try:
            value = call()
            assert not np.isfinite(value).all()
        except kind:
            continue


def check_two_devices(cp: Any, memory: int) -> None:
    """Arrays on two GPUs, and copies between them."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        print("  only one GPU: skipped")
        return
    with cp.cuda.Device(1):
        b = cp.arange(1000.0)
        assert b.device.id == 1
    a = cp.asarray(b)
    assert a.device.id == 0
    assert np.array_equal((a * 2).get(), np.arange(1000.0) * 2)


CHECKS = [
    check_looks,
    check_transfers,
    check_functions,
    check_extensions,
    check_kernels,
    check_memory,
    check_streams,
    check_errors,
    check_two_devices,
]


def client(memory: int) -> int:
    """Run all checks; return how many failed."""
    sys.path[:0] = [str(KIT), str(ROOT / "src")]
    cp: Any = importlib.import_module("cupy")

    cp.compile_error = cp.cuda.compiler.CompileException
    failed = 0
    for check in CHECKS:
        print(check.__name__, flush=True)
        try:
            check(cp, memory)
        except Exception:  # noqa: BLE001 - the other checks are worth running
            traceback.print_exc()
            failed += 1
            with contextlib.suppress(Exception):
                cp.cuda.Device().synchronize()
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed")
    return failed


# --- figures --------------------------------------------------------------------------------------


def measure(name: str, quick: bool) -> dict[str, float]:
    """Return figures of the `cupy` that this process imports; the same code for both."""
    cp: Any = importlib.import_module("cupy")

    figures: dict[str, float] = {}
    n = 2000 if quick else 20000
    small = cp.ones((16, 16), cp.float32)
    other = cp.ones((16, 16), cp.float32)
    operations: dict[str, Callable[[], Any]] = {
        "a + b": lambda: small + other,
        "a * 2.0": lambda: small * 2.0,
        "a.sum()": small.sum,
        "a[1]": lambda: small[1],
        "a += b": lambda: small.__iadd__(other),
        "a @ b": lambda: small @ other,
        "where": lambda: cp.where(small, small, other),
    }
    for label, operation in operations.items():
        for _ in range(200):
            operation()
        cp.cuda.Device().synchronize()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(n):
            operation()
        issued, cpu = time.perf_counter() - began, time.process_time() - cpu
        cp.cuda.Device().synchronize()
        done = time.perf_counter() - began
        figures[f"{label}: us of this process per call"] = cpu / n * 1e6
        figures[f"{label}: us to issue"] = issued / n * 1e6
        figures[f"{label}: us per call until done"] = done / n * 1e6
    began = time.perf_counter()
    for _ in range(n // 10):
        float(small[0, 0])
    figures["float(a[0, 0]): us"] = (time.perf_counter() - began) / (n // 10) * 1e6
    for mib in (1, 64, 512):
        host = np.ones(mib * MIB, np.uint8)
        device = cp.asarray(host)
        cp.cuda.Device().synchronize()
        times = 2 if quick else 5
        began = time.perf_counter()
        for _ in range(times):
            device.set(host)
        cp.cuda.Device().synchronize()
        figures[f"upload {mib} MiB: GB/s"] = (
            times * host.nbytes / (time.perf_counter() - began) / 1e9
        )
        began = time.perf_counter()
        for _ in range(times):
            device.get(out=host)
        figures[f"download {mib} MiB: GB/s"] = (
            times * host.nbytes / (time.perf_counter() - began) / 1e9
        )
        del device
    big = cp.random.rand(4096, 4096).astype(cp.float32)
    cp.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(20):
        big = big @ big / 4096
    cp.cuda.Device().synchronize()
    figures["4096 x 4096 float32 matmul: ms"] = (time.perf_counter() - began) / 20 * 1e3
    print(json.dumps({"name": name, "figures": figures}))
    return figures


def plain_socket() -> float:
    """Return the GB/s of a plain TCP socket on this machine, 64 MiB at a time."""
    import threading

    listener = socket.create_server(("127.0.0.1", 0))
    data = bytes(64 * MIB)

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as out:
            for _ in range(8):
                out.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    connection, _ = listener.accept()
    target = memoryview(bytearray(64 * MIB))
    total = 0
    began = time.perf_counter()
    while got := connection.recv_into(target):
        total += got
    took = time.perf_counter() - began
    thread.join()
    connection.close()
    listener.close()
    return total / took / 1e9


# --- all together ---------------------------------------------------------------------------------


def run(mode: str, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this script in another mode."""
    return subprocess.run(
        [sys.executable, __file__, "--mode", mode, *arguments],
        env={**os.environ, **environment},
        text=True,
        check=False,
        stdout=subprocess.PIPE if mode == "measure" else None,
    )


def main() -> int:
    """Start a worker, run the checks, the examples and the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=float, default=4.0, help="GiB of each partition")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mode", default="all")
    options = parser.parse_args()
    memory = int(options.memory * 1024) * MIB
    if options.mode == "worker":
        worker(memory)
        return 0
    if options.mode == "client":
        return 1 if client(memory) else 0
    if options.mode == "measure":
        measure(os.environ.get("MEASURED", "?"), options.quick)
        return 0
    shared = ["--memory", str(options.memory), *(["--quick"] if options.quick else [])]
    process = subprocess.Popen(
        [sys.executable, __file__, "--mode", "worker", *shared],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        agent = process.stdout.readline().strip()
        assert agent, "the worker did not start"
        paths = os.pathsep.join([str(DROPIN), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        door = {"GPUPOOL_AGENT": agent, "PYTHONPATH": paths}
        failed = run("client", shared, **door).returncode
        for example in ("solver", "kmeans", "image_filter"):
            done = subprocess.run(
                [sys.executable, str(ROOT / "examples" / f"{example}.py")],
                env={**os.environ, **door},
                check=False,
            )
            print(f"examples/{example}.py: exit {done.returncode}", flush=True)
            failed += done.returncode
        remote = run("measure", shared, MEASURED="remote", **door)
        native = run("measure", shared, MEASURED="native")
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdin.close()
    figures: dict[str, dict[str, float]] = {}
    for done in (remote, native):
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                value = json.loads(line)
                figures[value["name"]] = value["figures"]
    print(f"{'':44}{'remote':>10}{'native':>10}")
    for label in figures.get("remote", {}):
        pair = [figures.get(name, {}).get(label, float("nan")) for name in ("remote", "native")]
        print(f"{label:44}{pair[0]:10.2f}{pair[1]:10.2f}")
    print(f"{'plain TCP socket, loopback: GB/s':44}{plain_socket():10.2f}")
    print("FAILED" if failed or remote.returncode else "PASSED")
    return 1 if failed or remote.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
