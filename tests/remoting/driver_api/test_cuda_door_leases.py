"""A real server, worker and ``gpupool run`` with the CUDA door, on a driver without a GPU."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_pool import DEADLINE_S, HERE, FakeGpuPool
from tests.shared import Shared

from gpupool.remoting.driver_api import build

IMAGE = HERE / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin"


@contextlib.contextmanager
def running() -> Generator[FakeGpuPool]:
    """Run a pool with one GPU that is a library."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = FakeGpuPool(folder)
    build.ensure()
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[Shared[FakeGpuPool]]:
    shared = Shared(running, FakeGpuPool.wrong)
    yield shared
    shared.end()


@pytest.fixture
def fake_gpu_pool(
    shared_pool: Shared[FakeGpuPool], request: pytest.FixtureRequest
) -> Iterator[FakeGpuPool]:
    yield from shared_pool.lend(request)


@pytest.fixture(scope="module")
def leased(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the C program, against the library that gpupool run puts on the path."""
    build.ensure()
    program = tmp_path_factory.mktemp("programs") / "leased"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    command += [str(HERE / "programs" / "leased.c"), str(build.library_dir() / build.LIBRARY)]
    subprocess.run(command, check=True)
    return str(program)


@pytest.mark.long
@pytest.mark.parametrize("turns", [20, pytest.param(1100, marks=pytest.mark.slow)])
def test_processes_of_a_lease_share_memory_and_those_of_others_do_not(
    turns: int, fake_gpu_pool: FakeGpuPool, tmp_path: Path
) -> None:
    """An allocation, an event, a pool, and physical memory that travels as a descriptor."""
    pool, program, handles = fake_gpu_pool, tmp_path / "sharing", tmp_path / "handles"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"]
    command += [str(program), str(HERE / "programs" / "sharing.c")]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    words = [str(program), "both", str(IMAGE), str(handles), str(turns)]
    first = pool.spawn("run", "-p", "0.25", "--", *words)
    assert first.stdout is not None
    if (said := first.stdout.readline()) != "results right\n":
        handles.unlink(missing_ok=True)
        first.kill()
        raise AssertionError(said + first.communicate(timeout=DEADLINE_S)[1] + pool.logs())
    words[1] = "open"
    other = pool.command("run", "-p", "0.25", "--", *words)
    handles.unlink()
    assert other.stdout == "1 1\n", other.stderr  # CUDA_ERROR_INVALID_VALUE
    _out, err = first.communicate(timeout=DEADLINE_S)
    assert first.returncode == 0, err


@pytest.mark.parametrize(
    "how",
    [
        "owner dies",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("owner frees", "other dies")),
    ],
)
def test_memory_that_another_process_has_opened_is_paid_until_it_lets_go(
    how: str, fake_gpu_pool: FakeGpuPool, tmp_path: Path
) -> None:
    """Physical memory is there as long: an allocation, an exported one, and a pool's."""
    program = tmp_path / "holders"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"]
    command += [str(program), str(HERE / "programs" / "holders.c")]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    done = fake_gpu_pool.command("run", "-p", "0.25", "--", str(program), how)
    assert done.stdout == "results right\n", done.stderr + fake_gpu_pool.logs()


@pytest.mark.long
def test_kernels_of_two_processes_meet_in_memory_of_the_host(
    fake_gpu_pool: FakeGpuPool, tmp_path: Path
) -> None:
    """As NCCL's do between GPUs that have no access to each other's memory."""
    program = tmp_path / "meeting"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"]
    command += [str(program), str(HERE / "programs" / "meeting.c")]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    done = fake_gpu_pool.command("run", "-p", "0.25", "--", str(program), str(IMAGE))
    assert done.stdout == "results right\n", done.stderr + fake_gpu_pool.logs()


@pytest.mark.parametrize(
    "library", ["libssl.so.3", pytest.param("none.so", marks=pytest.mark.long)]
)
def test_a_binary_takes_the_cuda_door_and_its_bytes_are_encrypted(
    library: str, fake_gpu_pool: FakeGpuPool, leased: str
) -> None:
    """By the shim with OpenSSL, or without it by ``gpupool run``."""
    options = ["-v", "-p", "0.5", "--env", f"GPUPOOL_LIBSSL={library}"]
    done = fake_gpu_pool.command("run", *options, "--", leased, str(IMAGE), "compute")
    assert done.returncode == 0, done.stderr + fake_gpu_pool.logs()
    assert re.match(r"results right, (\d+) MiB of \1\n", done.stdout), done.stdout
    assert "door: cuda, because leased is a binary" in done.stderr
    assert ("gpupool run encrypts" in done.stderr) is (library == "none.so")


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the program with large copies."""
    program = tmp_path_factory.mktemp("programs") / "stripes"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]
    command += ["-o", str(program), str(HERE / "programs" / "stripes.c"), str(build.ensure())]
    subprocess.run(command, check=True)
    return str(program)


@pytest.mark.long
@pytest.mark.parametrize("lanes", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_large_copies_go_by_several_connections(
    lanes: int, fake_gpu_pool: FakeGpuPool, stripes: str
) -> None:
    options = ["-v", "-p", "0.25", "--env", f"GPUPOOL_LANES={lanes}"]
    done = fake_gpu_pool.command("run", *options, "--", stripes, "9", "2", "go")
    assert done.stdout.endswith("results right\n"), done.stderr + fake_gpu_pool.logs()
    assert ("3 connections each way for large copies" in done.stderr) is (lanes > 0)


@pytest.mark.parametrize("way", ["up", pytest.param("down", marks=pytest.mark.long)])
def test_a_session_ends_with_one_of_its_connections(
    way: str, fake_gpu_pool: FakeGpuPool, stripes: str
) -> None:
    options = ["-p", "0.25", "--env", "GPUPOOL_LANES=2"]
    done = fake_gpu_pool.command("run", *options, "--", stripes, "9", "1", way)
    assert done.stdout == "connections: 5\nerror 46, then 46\n", done.stderr
    assert done.returncode == 125
    assert done.stderr.count("the GPU is lost") == 1, done.stderr
    assert "broke" in done.stderr
    fake_gpu_pool.until(lambda: fake_gpu_pool.leases() == [])


def test_what_the_driver_reads_at_its_start_reaches_the_server(
    fake_gpu_pool: FakeGpuPool, leased: str
) -> None:
    options = ["--env", "CUDA_DEVICE_MAX_CONNECTIONS=13", "--", leased, str(IMAGE), "compute"]
    done = fake_gpu_pool.command("run", *options)
    assert done.returncode == 0, done.stderr
    fake_gpu_pool.until(lambda: "driver: 13 connections" in fake_gpu_pool.logs())


def wait_for_error(program: "subprocess.Popen[str]") -> tuple[int, str, str, float]:
    """Return the exit code of gpupool run, both outputs, and how long they took to come."""
    started = time.monotonic()
    out, err = program.communicate(timeout=DEADLINE_S)
    return program.returncode, out, err, time.monotonic() - started


@pytest.mark.parametrize(
    ("how", "library"),
    [
        pytest.param("worker killed", "none.so", marks=pytest.mark.long),
        pytest.param("worker killed", "libssl.so.3", marks=pytest.mark.slow),
        ("lease ended", "libssl.so.3"),
        pytest.param("server killed", "libssl.so.3", marks=pytest.mark.long),
    ],
)
def test_a_program_that_waits_for_a_kernel_gets_an_error(
    how: str, library: str, fake_gpu_pool: FakeGpuPool, leased: str
) -> None:
    """Within seconds, by any end of its session; and gpupool run states the cause."""
    pool = fake_gpu_pool
    options = ["--env", f"GPUPOOL_LIBSSL={library}", "--"]
    program = pool.spawn("run", *options, leased, str(IMAGE), "wait")
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    if how == "worker killed":
        pool.server.kill_workers()
        reason = "the connection to the server broke"
    elif how == "lease ended":
        pool.command("kill", pool.lease(), "--reason", "for a test")
        reason = "for a test"
    else:
        pool.server.kill()
        reason = "lost server a"
    code, out, err, _seconds = wait_for_error(program)
    if how == "server killed":
        pool.restart()
    assert out == "error 46, then 46\n", err  # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert code == 125
    assert reason in err.splitlines()[-1], err
    assert "the GPU is lost" in err
    pool.until(lambda: pool.leases() == [])


@pytest.mark.parametrize(
    "how",
    [
        "worker killed",
        pytest.param("lease ended", marks=pytest.mark.slow),
        pytest.param("server killed", marks=pytest.mark.slow),
    ],
)
def test_all_threads_of_a_program_get_the_error_and_so_does_what_they_call_then(
    how: str, fake_gpu_pool: FakeGpuPool
) -> None:
    """In any wait of theirs. No later call waits, no exit handler, and no forked child."""
    pool, program = fake_gpu_pool, fake_gpu_pool.folder / "endings"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-o", str(program), str(HERE / "programs" / "endings.c")]
    subprocess.run([*command, str(build.library_dir() / build.LIBRARY)], check=True)
    process = pool.spawn("run", "--", str(program), str(IMAGE), "all")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines == ["a child before: 3, 3, 3\n", "waiting\n"], lines
    if how == "worker killed":
        pool.server.kill_workers()
    elif how == "lease ended":
        pool.command("kill", pool.lease())
    else:
        pool.server.kill()
    out, err = process.communicate(timeout=2 * DEADLINE_S)
    if how == "server killed":
        pool.restart()
    assert out == "over\na child after: 3, 3, 3\ndone\n", err
    assert process.returncode == 125
    pool.until(lambda: pool.leases() == [])


NVML = """
import ctypes, os, time
import pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
memory = n.nvmlDeviceGetMemoryInfo(d)
assert n.nvmlDeviceGetCount() == 1
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(d))) == 0
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(b"0000:1b:00.0")) == 0
pci = n.nvmlDeviceGetPciInfo(d)
print(n.nvmlDeviceGetName(d), n.nvmlDeviceGetUUID(d), pci.busId, pci.bus)
print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(), memory.total >> 30)
print(n.nvmlDeviceGetCudaComputeCapability(d), n.nvmlDeviceGetComputeRunningProcesses(d))
for refused in (n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetSerial):
    try:
        refused(d)
    except n.NVMLError_NotSupported:
        print("refused")
for kind in (n.c_nvmlGpuFabricInfo_v2_t, n.c_nvmlGpuFabricInfo_v3_t):
    fabric = kind()
    fabric.state = 3
    n.nvmlDeviceGetGpuFabricInfoV(d, ctypes.byref(fabric))
    assert (fabric.state, fabric.status) == (n.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0)
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
left, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == 0
memory = n.nvmlDeviceGetMemoryInfo(d, version=n.nvmlMemory_v2)
assert (memory.total, memory.free) == (total.value, left.value), memory
assert memory.used >= 1 << 30
end = time.monotonic() + 20
while not (processes := n.nvmlDeviceGetComputeRunningProcesses_v3(d)):
    assert time.monotonic() < end
    time.sleep(0.05)
(process,) = processes
assert (process.pid, process.usedGpuMemory) == (os.getpid(), memory.used), process
n.nvmlShutdown()
"""


@pytest.mark.long
def test_nvml_inside_of_a_lease_shows_the_partition(fake_gpu_pool: FakeGpuPool) -> None:
    """By NVIDIA's own binding, before and after CUDA is in use; and nvidia-smi the same."""
    python = ["--", sys.executable, "-c", NVML]
    number = fake_gpu_pool.server.number
    done = fake_gpu_pool.command("run", "-m", "20G", "--door", "cuda", *python)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:5] == [
        f"NVIDIA H200 GPU-fa4e0000-0000-4000-8000-00000000{number:02x}00 00000000:1B:00.0 27",
        "580.00 13000 20",
        "(9, 0) []",
        "refused",
        "refused",
    ]
    inside = fake_gpu_pool.command("run", "-m", "20G", "--door", "cuda", "--", "nvidia-smi")
    assert re.search(r"NVIDIA H200 +\| a +\| 0B / 20G", inside.stdout), inside.stderr
    assert "lease" in inside.stdout
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    asked = fake_gpu_pool.command("run", "-m", "20G", "--door", "cuda", "--", *query)
    assert asked.stdout == "NVIDIA H200, 20480 MiB\n", asked.stderr


READ = """
import pynvml as n
n.nvmlInit()
known, unknown = (n.nvmlDeviceGetHandleByIndex(at) for at in range(2))
reads = {
    "sm": lambda d: n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM),
    "graphics": lambda d: n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_GRAPHICS),
    "now": lambda d: n.nvmlDeviceGetClock(d, n.NVML_CLOCK_SM, n.NVML_CLOCK_ID_CURRENT),
    "limit": n.nvmlDeviceGetPowerManagementLimit,
    "enforced": n.nvmlDeviceGetEnforcedPowerLimit,
    "width": n.nvmlDeviceGetCurrPcieLinkWidth,
    "widest": n.nvmlDeviceGetMaxPcieLinkWidth,
    "generation": n.nvmlDeviceGetCurrPcieLinkGeneration,
    "last": n.nvmlDeviceGetMaxPcieLinkGeneration,
}
for name, read in reads.items():
    print(name, read(known))
    try:
        read(unknown)
    except n.NVMLError_NotSupported:
        continue
    print("made up", name)
try:
    n.nvmlDeviceGetClockInfo(known, n.NVML_CLOCK_MEM)
except n.NVMLError_NotSupported:
    print("memory unknown")
"""


def test_nvml_tells_what_a_server_measures(tmp_path: Path) -> None:
    """As PyTorch's clock_rate() and monitoring tools ask; unmeasured values are not supported."""
    about = {"name": "H200", "server": "a", "memory": 1, "used": 0, "capability": "9.0"}
    read = {"sm_clock_hz": 1.98e9, "power_limit_w": 700.0, "pcie_width": 8, "pcie_width_max": 16}
    read |= {"pcie_generation": 3, "pcie_generation_max": 5}
    devices = [about | read | {"uuid": "GPU-0", "bus_id": "0:1:0"}]
    devices += [about | dict.fromkeys(read) | {"uuid": "GPU-1", "bus_id": "0:2:0"}]
    line = {"ok": True, "driver": "580.1", "cuda": "13.0", "processes": [], "devices": devices}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()

        def answer() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, sock.makefile("rwb") as lines:
                        lines.readline()
                        lines.write(json.dumps(line).encode() + b"\n")

        threading.Thread(target=answer, daemon=True).start()
        env = os.environ | {"GPUPOOL_AGENT": str(tmp_path / "agent")}
        env["LD_LIBRARY_PATH"] = str(build.library_dir())
        command = [sys.executable, "-c", READ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        listener.shutdown(socket.SHUT_RDWR)
    assert done.stdout.split("\n")[:-1] == [
        *("sm 1980", "graphics 1980", "now 1980", "limit 700000", "enforced 700000"),
        *("width 8", "widest 16", "generation 3", "last 5", "memory unknown"),
    ], done.stderr


def test_nvml_outside_of_a_lease_finds_no_driver(fake_gpu_pool: FakeGpuPool) -> None:
    code = "import pynvml; pynvml.nvmlInit()"
    env = fake_gpu_pool.env | {"LD_LIBRARY_PATH": str(build.library_dir())}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "NVMLError_DriverNotLoaded" in done.stderr
