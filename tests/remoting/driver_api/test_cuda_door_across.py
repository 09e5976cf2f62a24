"""A lease over two real servers, and programs that use all of it by the CUDA door."""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_pool import DEADLINE_S, HERE, FakeGpuPool
from tests.shared import Shared

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.schema.records import NUMBERS

# A pool of two servers of its own; the array door's tests have one in the default run.
pytestmark = pytest.mark.long

IMAGE = str(HERE / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin")
COPIES = 8
"""Those of ``servers.c`` between servers that are larger than a record."""

ACROSS = ("run", "-n", "4", "--across", "--door", "cuda")


@contextlib.contextmanager
def running() -> Generator[FakeGpuPool]:
    """Run a pool of two servers with two GPUs each."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    build.ensure()
    pool = FakeGpuPool(folder, servers=2, devices=2)
    try:
        pool.start()
        yield pool
    finally:
        for server in pool.servers:
            server.kill()  # without the other one it could commit nothing, not even its end
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[Shared[FakeGpuPool]]:
    shared = Shared(running, FakeGpuPool.wrong)
    yield shared
    shared.end()


@pytest.fixture
def two_servers(
    shared_pool: Shared[FakeGpuPool], request: pytest.FixtureRequest
) -> Iterator[FakeGpuPool]:
    yield from shared_pool.lend(request)


def compiled(pool: FakeGpuPool, name: str) -> str:
    program = pool.folder / name
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", "-o", str(program)]
    command += [str(HERE / "programs" / f"{name}.c"), str(build.library_dir() / build.LIBRARY)]
    subprocess.run(command, check=True)
    return str(program)


@pytest.mark.parametrize("direct", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_program_uses_gpus_of_two_servers(direct: bool, two_servers: FakeGpuPool) -> None:
    """By TLS everywhere, or by the relay of ``gpupool run`` to each server.

    What is copied between the servers passes through none but these, unless that is forbidden.
    """
    program = compiled(two_servers, "servers")
    options = ["-vv", "--env", f"GPUPOOL_PEER_COPIES={int(direct)}"]
    options += ["--env", f"GPUPOOL_LIBSSL={'libssl.so.3' if direct else 'none.so'}"]
    done = two_servers.command(*ACROSS, *options, "--", program, IMAGE, "4")
    assert done.returncode == 0, done.stderr + two_servers.logs()
    assert done.stdout == "results right\n"
    waits = re.findall(r"waited for the server (\d+) times: record (\d+) of", done.stderr)
    counts = {int(record): int(times) for times, record in waits}
    assert counts.get(NUMBERS["PEER_SEND"], 0) == counts.get(NUMBERS["PEER_RECEIVE"], 0)
    assert counts.get(NUMBERS["PEER_SEND"], 0) == (COPIES if direct else 0)
    assert re.search(r"2 x H200 .* on (a|b), 2 x H200 .* on (a|b)", done.stderr), done.stderr
    two_servers.until(lambda: two_servers.leases() == [])


ORDER = """
import ctypes, pynvml
cuda, uuid = ctypes.CDLL("libcuda.so.1"), (ctypes.c_ubyte * 16)()
place, places = ctypes.create_string_buffer(20), set()
assert cuda.cuInit(0) == 0
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 4
for at in range(4):
    assert cuda.cuDeviceGetUuid_v2(uuid, at) == 0
    name = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(at))
    assert name.replace("-", "").lower() == "gpu" + bytes(uuid).hex(), (at, name)
    assert cuda.cuDeviceGetPCIBusId(place, 20, at) == 0
    places.add(place.value)
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(place.value)
    assert pynvml.nvmlDeviceGetIndex(handle) == at
assert len(places) == 4, places
"""


@pytest.mark.slow
def test_nvml_has_the_devices_of_all_servers_in_cudas_order(two_servers: FakeGpuPool) -> None:
    done = two_servers.command(*ACROSS, "--", sys.executable, "-c", ORDER)
    assert done.returncode == 0, done.stderr


VISIBLE = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


@pytest.mark.slow
def test_a_process_that_sees_devices_of_one_server_needs_no_other(two_servers: FakeGpuPool) -> None:
    python = ["--env", "CUDA_VISIBLE_DEVICES=3", "--", sys.executable, "-c", VISIBLE]
    done = two_servers.command(*ACROSS, *python)
    assert done.stdout == "1\n", done.stderr


LINKS = """
import ctypes, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
def states():
    try:
        yield pynvml.nvmlDeviceGetNvLinkState(gpu, 17)
        yield pynvml.nvmlDeviceGetNvLinkCapability(gpu, 17, pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED)
        yield pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, 17).busId
        fields = [(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link) for link in (17, 18)]
        for value in pynvml.nvmlDeviceGetFieldValues(gpu, fields):
            yield value.nvmlReturn, value.value.uiVal
        yield pynvml.nvmlDeviceGetNvLinkState(gpu, 18)
    except pynvml.NVMLError as error:
        yield error.value
print(*states())
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
print(*states())
"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_nvml_has_links_among_gpus_of_one_server(count: int, two_servers: FakeGpuPool) -> None:
    """By these NCCL knows that its kernels reach the other GPU's memory; 3 is "not supported"."""
    options = (*ACROSS, "-n", str(count), "--", sys.executable, "-c", LINKS)
    done = two_servers.command(*options)
    links = "1 1 FFFFFFF:FFFF:FF (0, 1) (3, 0) 3" if count == 2 else "3"
    assert done.stdout.splitlines() == ["3", links], done.stderr


WORK = """
import ctypes
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
found = []
for device in (0, 3):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
    found.append((ctypes.c_void_p(context.value), address.value))
def work(context, address):
    assert cuda.cuCtxSetCurrent(context) == 0
    status = cuda.cuMemsetD8_v2(ctypes.c_uint64(address), 1, ctypes.c_size_t(1 << 20))
    return status or cuda.cuCtxSynchronize()
print("working", flush=True)
while (results := [work(*each) for each in found]) == [0, 0]:
    pass
print(sorted(results), sorted(work(*each) for each in found))
raise SystemExit(3)
"""


@pytest.mark.slow
def test_a_worker_that_ends_takes_its_own_devices_alone(two_servers: FakeGpuPool) -> None:
    """And gpupool run names that server."""
    program = two_servers.spawn(*ACROSS, "--", sys.executable, "-c", WORK)
    assert program.stdout is not None
    assert program.stdout.readline() == "working\n"
    two_servers.servers[0].kill_workers()
    out, err = program.communicate(timeout=DEADLINE_S)
    assert out == "[0, 46] [0, 46]\n", err
    assert program.returncode == 125
    assert err.splitlines()[-1] == "gpupool: the connection to the server broke (server a)"
    two_servers.until(lambda: two_servers.leases() == [])


def test_kill_9_of_one_server_of_a_lease_ends_all_of_it(two_servers: FakeGpuPool) -> None:
    pool = two_servers
    program = pool.spawn(*ACROSS, "--", compiled(pool, "leased"), IMAGE, "wait")
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    pool.servers[1].kill()
    out, err = program.communicate(timeout=DEADLINE_S)
    assert out == "error 46, then 46\n", err  # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert program.returncode == 125
    assert "lost server b" in err.splitlines()[-1], err
    pool.servers[1].start()
    pool.until(lambda: pool.idle_servers() == 2)
