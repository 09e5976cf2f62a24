"""Measure the cost and the values of NVML's readings on a machine with a real NVIDIA GPU.

Usage: python tests/gpu/nvml_check.py [--sampling TURNS]

It needs nvidia-ml-py, and torch or CuPy; nothing of gpupool. It ends within 150 seconds, and the
table is printed piece by piece, so that what was measured stays when something hangs. With
``--sampling`` it does the last part alone, in so many turns, and takes as long as they do.

1. The time of each call while nothing computes, with one and with eight busy processes.
2. The sum of two busy processes' shares (smUtil) against the GPU's busy time.
3. Whether GPM's figures agree with both, and whether the fields' units are as assumed.
4. What sampling costs a training loop: turns without it, with 1 and with 20 readings a second.
"""

import argparse
import contextlib
import ctypes
import importlib
import math
import multiprocessing as mp
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

nv: Any = importlib.import_module("pynvml")

LIMIT_S = 148
WORKERS = 8
GPU = 0
FIELDS = {
    "throttle power": 74,
    "throttle thermal": 75,
    "throttle sync-boost": 76,
    "throttle sw-thermal": 269,
    "throttle hw-thermal": 270,
    "throttle power-brake": 271,
    "memory temperature": 82,
    "ecc corrected": 3,
    "ecc uncorrected": 4,
    "pcie replays": 94,
    "remapped corrected": 142,
    "remapped uncorrected": 143,
    "remapped pending": 144,
    "remapped failed": 145,
    "nvlink crc flit": 38,
    "nvlink crc data": 45,
    "nvlink replay": 52,
    "nvlink recovery": 59,
    "pcie bytes out": 197,
    "pcie bytes in": 198,
    "recovery action": 230,
    "shutdown limit": 193,
}
VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
TYPES = ("double", "uint", "ulong", "ull", "sll", "int", "ushort")
STAMPS = 200_000
TURN_S, TURNS = 2.0, 8
started = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - started:5.1f}s] {text}", flush=True)


# --- what computes ------------------------------------------------------------------------------


def work(number: int, active: Any, mode: Any, stamps: Any, count: Any, ready: Any) -> None:
    """Compute while ``active`` is above this worker's number; train when ``mode`` says so."""
    try:
        busy, train = _torch_loops(importlib.import_module("torch"))
    except ImportError:
        busy, train = _cupy_loops()
    busy()
    with ready.get_lock():
        ready.value += 1
    while active.value >= 0:
        if number >= active.value:
            time.sleep(0.01)
        elif mode.value:
            train()
            stamps[count.value % STAMPS] = time.monotonic()
            count.value += 1
        else:
            busy()


def _torch_loops(torch: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    device = torch.device("cuda", GPU)
    square = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(12)]
    model = torch.nn.Sequential(*(m for each in layers for m in (each, torch.nn.GELU()))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(2048, 1024, device=device)

    def busy() -> None:
        for _ in range(20):
            torch.mm(square, square)
        torch.cuda.synchronize()

    def train() -> None:
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return busy, train


def _cupy_loops() -> tuple[Callable[[], None], Callable[[], None]]:
    cupy: Any = importlib.import_module("cupy")
    large = cupy.random.random((4096, 4096), dtype=cupy.float32)
    small = cupy.random.random((1024, 1024), dtype=cupy.float32)

    def busy() -> None:
        for _ in range(10):
            cupy.matmul(large, large)
        cupy.cuda.Device().synchronize()

    def train() -> None:
        value = small
        for _ in range(40):
            value = cupy.tanh(value @ small * 0.01)
        float(value.sum())

    return busy, train


# --- what is read -------------------------------------------------------------------------------


class Gpm:
    """Two samples of NVML's GPM, and the metrics between them."""

    IDS = (1, 2, 5, 10)

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.samples = [nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()]

    def take(self) -> None:
        self.samples.reverse()
        nv.nvmlGpmSampleGet(self.handle, self.samples[1])

    def values(self) -> list[float]:
        ask = nv.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(self.IDS)
        ask.sample1, ask.sample2 = self.samples
        for at, number in enumerate(self.IDS):
            ask.metrics[at].metricId = number
        nv.nvmlGpmMetricsGet(ask)
        return [
            ask.metrics[at].value if not ask.metrics[at].nvmlReturn else math.nan
            for at in range(len(self.IDS))
        ]


class Calls:
    """Every call that a server makes: each second, and each ten seconds."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.seen = handle, 0
        self.shares: dict[int, list[int]] = {}
        self.gpm: Gpm | None = None
        try:
            if nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self.gpm = Gpm(handle)
                self.gpm.take()
        except nv.NVMLError as error:
            say(f"GPM: {error}")
        h = handle
        self.events = nv.nvmlEventSetCreate()
        nv.nvmlDeviceRegisterEvents(h, nv.nvmlEventTypeXidCriticalError, self.events)
        self.fast: dict[str, Callable[[], Any]] = {
            "memory info": lambda: nv.nvmlDeviceGetMemoryInfo(h, version=nv.nvmlMemory_v2),
            "compute processes": lambda: nv.nvmlDeviceGetComputeRunningProcesses(h),
            "graphics processes": lambda: nv.nvmlDeviceGetGraphicsRunningProcesses(h),
            "utilization": lambda: nv.nvmlDeviceGetUtilizationRates(h),
            "process utilization": self.process_utilization,
            "temperature": lambda: nv.nvmlDeviceGetTemperature(h, nv.NVML_TEMPERATURE_GPU),
            "power": lambda: nv.nvmlDeviceGetPowerUsage(h),
            "energy": lambda: nv.nvmlDeviceGetTotalEnergyConsumption(h),
            "ecc total": lambda: nv.nvmlDeviceGetTotalEccErrors(h, 1, 0),
            "compute mode": lambda: nv.nvmlDeviceGetComputeMode(h),
            "remapped rows": lambda: nv.nvmlDeviceGetRemappedRows(h),
            "event wait 0": lambda: nv.nvmlEventSetWait_v2(self.events, 0),
        }
        self.slow: dict[str, Callable[[], Any]] = {
            "field values, all": lambda: self.fields(list(FIELDS.values())),
            "power limit": lambda: nv.nvmlDeviceGetEnforcedPowerLimit(h),
            "sm clock": lambda: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM),
            "shutdown temperature": lambda: nv.nvmlDeviceGetTemperatureThreshold(h, 0),
        }
        if self.gpm is not None:
            self.slow |= {"gpm sample": self.gpm.take, "gpm metrics": self.gpm.values}

    def process_utilization(self) -> None:
        try:
            rows = nv.nvmlDeviceGetProcessUtilization(self.handle, self.seen)
        except nv.NVMLError as error:
            if error.value in (nv.NVML_SUCCESS, nv.NVML_ERROR_NOT_FOUND):
                return
            raise
        for row in rows:
            if row.timeStamp > self.seen:
                self.shares.setdefault(int(row.pid), []).append(int(row.smUtil))
        self.seen = max([self.seen, *(int(row.timeStamp) for row in rows)])

    def fields(self, ids: list[int]) -> Any:
        return nv.nvmlDeviceGetFieldValues(self.handle, ids)

    def all(self, *, slow: bool) -> None:
        for call in [*self.fast.values(), *(self.slow.values() if slow else ())]:
            with contextlib.suppress(nv.NVMLError):
                call()

    def times(self, count: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, call in (self.fast | self.slow).items():
            took: list[float] = []
            why = ""
            for _ in range(count):
                begun = time.perf_counter()
                try:
                    call()
                except nv.NVMLError as error:
                    why = "" if error.value == nv.NVML_ERROR_TIMEOUT else f" {error}"
                took.append((time.perf_counter() - begun) * 1e3)
                time.sleep(0.005)
            found[name] = f"{statistics.median(took):7.3f} {max(took):8.3f}{why}"
        return found


def field_line(calls: Calls) -> str:
    texts: list[str] = []
    rows: list[Any] = list(calls.fields(list(FIELDS.values())))
    for name, row in zip(FIELDS, rows, strict=True):
        if row.nvmlReturn:
            texts.append(f"{name}: code {row.nvmlReturn}")
        else:
            value = getattr(row.value, VALUE[int(row.valueType)])
            texts.append(f"{name}: {value} ({TYPES[row.valueType]}, {row.latencyUsec} us)")
    return "; ".join(texts)


def one_field(calls: Calls, name: str) -> int | None:
    row: Any = calls.fields([FIELDS[name]])[0]
    return None if row.nvmlReturn else int(getattr(row.value, VALUE[int(row.valueType)]))


# --- the measurements ---------------------------------------------------------------------------


def shares(calls: Calls, active: Any, count: int, pids: list[int], seconds: int = 8) -> None:
    """Compare the processes' shares with the GPU's busy time, once a second."""
    active.value = count
    time.sleep(2.5)
    calls.process_utilization()
    if calls.gpm is not None:
        calls.gpm.take()
    sums: list[float] = []
    busy: list[int] = []
    rows = 0
    by_pid: dict[int, list[float]] = {}
    for _ in range(seconds):
        calls.shares = {}
        time.sleep(1)
        calls.process_utilization()
        busy.append(nv.nvmlDeviceGetUtilizationRates(calls.handle).gpu)
        means = {pid: statistics.mean(each) for pid, each in calls.shares.items()}
        rows += sum(map(len, calls.shares.values()))
        for pid, value in means.items():
            by_pid.setdefault(pid, []).append(value)
        sums.append(sum(means.values()))
    text = "none"
    if calls.gpm is not None:
        calls.gpm.take()
        text = ", ".join(f"{value:.1f}" for value in calls.gpm.values())
    known = sum(pid in pids for pid in by_pid)
    each = " ".join(f"{statistics.mean(values):.0f}" for values in by_pid.values())
    say(
        f"{count} busy: GPU {statistics.mean(busy):.1f} %; sum of smUtil"
        f" {statistics.mean(sums):.1f} (min {min(sums):.0f}, max {max(sums):.0f});"
        f" by process: {each}; {rows / seconds:.1f} rows a second;"
        f" pids known {known} of {len(by_pid)}; GPM graphics, SM, tensor, DRAM: {text}"
    )


def transfers(calls: Calls) -> None:
    """Compare the PCIe counters with 4 GiB to the GPU and 2 GiB back, by the driver's own calls."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        say("PCIe counters: not compared, torch is missing")
        return
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    before = [one_field(calls, name) for name in ("pcie bytes in", "pcie bytes out")]
    for _ in range(4):
        there.copy_(host)
    for _ in range(2):
        host.copy_(there)
    torch.cuda.synchronize()
    time.sleep(0.2)
    after = [one_field(calls, name) for name in ("pcie bytes in", "pcie bytes out")]
    moved = [None if a is None or b is None else b - a for a, b in zip(before, after, strict=True)]
    say(f"PCIe counters over 4 GiB in, 2 GiB out: {moved[0]} in, {moved[1]} out (bytes?)")


def smi(calls: Calls) -> None:
    """Put the throttle counters beside nvidia-smi's, which are microseconds."""
    ours = {name: one_field(calls, name) for name in FIELDS if name.startswith("throttle")}
    try:
        text = subprocess.run(
            ["nvidia-smi", "-q", "-d", "PERFORMANCE", "-i", str(GPU)],
            capture_output=True, text=True, timeout=10, check=False,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    lines = [line.strip() for line in text.splitlines() if " us" in line]
    say(f"throttle fields: {ours}; nvidia-smi: {lines}")


def cost(calls: Calls, active: Any, mode: Any, stamps: Any, count: Any, turns: int) -> None:
    """Train in turns: without readings, with 1 a second, with 20 a second and 2 of GPM."""
    active.value, mode.value = 0, 1
    time.sleep(0.5)
    active.value = 1
    time.sleep(3)
    arms = {"none": 0.0, "1 Hz, slow ones too": 1.0, "20 Hz, slow ones too": 0.05}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns):
        names = list(arms) if turn % 2 else list(arms)[::-1]
        for name in names:
            rates[name].append(_turn(calls, arms[name], stamps, count))
        if turns == TURNS and time.monotonic() - started > LIMIT_S - 10:
            break
    active.value = 0
    base = rates["none"]
    say(f"training: {statistics.mean(base):.1f} steps/s without readings, {len(base)} turns each")
    for name, found in rates.items():
        change = [100 * (a / b - 1) for a, b in zip(found, base, strict=True)]
        error = statistics.stdev(change) / math.sqrt(len(change)) if len(change) > 1 else 0.0
        say(f"  {name:22} {statistics.mean(change):+.3f} % +- {error:.3f}")


def _turn(calls: Calls, every_s: float, stamps: Any, count: Any) -> float:
    stop = threading.Event()

    def sample() -> None:
        pause = every_s / 2  # so that as many readings lie in a turn as its seconds ask for
        while not stop.wait(pause):
            calls.all(slow=True)
            pause = every_s

    thread = threading.Thread(target=sample)
    if every_s:
        thread.start()
    time.sleep(0.1)
    first, begun = count.value, time.monotonic()
    time.sleep(TURN_S - 0.1)
    last = count.value
    stop.set()
    if every_s:
        thread.join()
    assert last - first < STAMPS and time.monotonic() > begun
    # From the end of one step to the end of another: no step is cut at the turn's edges.
    span = stamps[(last - 1) % STAMPS] - stamps[(first - 1) % STAMPS]
    return (last - first) / span


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampling", type=int, default=0, metavar="TURNS")
    turns = parser.parse_args().sampling
    limit_s = LIMIT_S + turns * (TURN_S + 0.5) * 3
    context = mp.get_context("spawn")
    active, mode = context.Value(ctypes.c_int, 0), context.Value(ctypes.c_int, 0)
    ready, count = context.Value(ctypes.c_int, 0), context.Value(ctypes.c_longlong, 0)
    stamps = context.Array(ctypes.c_double, STAMPS, lock=False)
    nv.nvmlInit()
    handle = nv.nvmlDeviceGetHandleByIndex(GPU)
    say(f"{nv.nvmlDeviceGetName(handle)}, driver {nv.nvmlSystemGetDriverVersion()}")
    listed = subprocess.run(["ps", "-eo", "comm"], capture_output=True, text=True, check=False)
    say(f"nv-hostengine runs: {'nv-hostengine' in listed.stdout}")
    calls = Calls(handle)
    idle = {} if turns else calls.times(20)
    say(f"fields: {field_line(calls)}")
    processes = [
        context.Process(target=work, args=(n, active, mode, stamps, count, ready), daemon=True)
        for n in range(WORKERS)
    ]

    def give_up(_signal: int, _frame: Any) -> None:
        say("time is over")
        for each in processes:
            if each.pid is not None:
                each.kill()
        os._exit(2)

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(limit_s - (time.monotonic() - started)))
    for each in processes:
        each.start()
    while ready.value < WORKERS:
        if not all(each.is_alive() for each in processes):
            say("a worker has failed")
            give_up(0, None)
        time.sleep(0.1)
    pids = [each.pid for each in processes if each.pid is not None]
    seen = {int(row.pid) for row in nv.nvmlDeviceGetComputeRunningProcesses(handle)}
    say(f"{WORKERS} workers ready; NVML lists {len(seen)} processes, {len(seen & set(pids))} known")
    if not turns:
        tables(calls, idle, active, pids)
    cost(calls, active, mode, stamps, count, turns or TURNS)
    active.value = -1
    for each in processes:
        each.join(5)
        each.kill()
    say("done")


def tables(calls: Calls, idle: Any, active: Any, pids: list[int]) -> None:
    """Print the calls' times and results while processes compute."""
    found = {}
    for busy in (1, WORKERS):
        active.value = busy
        time.sleep(1.5)
        found[busy] = calls.times(20)
    say("milliseconds, median and max of 20: idle | 1 busy | 8 busy")
    for name in idle:
        print(f"    {name:22} {idle[name]} | {found[1][name]} | {found[WORKERS][name]}")
    smi(calls)
    for busy in (1, 2, WORKERS):
        shares(calls, active, busy, pids)
    active.value = 0
    transfers(calls)


if __name__ == "__main__":
    main()
