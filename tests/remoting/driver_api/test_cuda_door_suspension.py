"""Programs behind the CUDA door that are suspended in mid-run, by a real server and its keeper."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import CHECKPOINTED, Control
from fake_pool import DEADLINE_S, FakeGpuPool

from gpupool.remoting.driver_api import build

pytestmark = pytest.mark.slow  # a pool of its own: its workers have a driver that is steered
GIB = 1 << 30

PROGRAM = """
import ctypes, time
cuda, context, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_uint()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
blocks = [ctypes.c_uint64() for _ in range(3)]
for i, block in enumerate(blocks):
    assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(30 << 30))
step = 0
while True:
    for i, block in enumerate(blocks):
        value = ctypes.c_uint(1000 * i + step)
        assert not cuda.cuMemsetD32_v2(block, value, ctypes.c_size_t(1))
    for i, block in enumerate(blocks):
        assert not cuda.cuMemcpyDtoH_v2(ctypes.byref(word), block, ctypes.c_size_t(4))
        assert word.value == 1000 * i + step, (word.value, i, step)
    step += 1
    print(step, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def pool() -> Generator[FakeGpuPool]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    found = FakeGpuPool(folder)
    build.ensure()
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def control(pool: FakeGpuPool) -> Generator[Control]:
    """Steer the driver of the server's workers, and of the process that suspends them."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-", dir="/dev/shm"))
    folder.chmod(0o711)
    with Control(folder) as found:
        found.path.chmod(0o666)
        site = pool.server.folder / "bindings" / "sitecustomize.py"
        added = f'os.environ["FAKE_CUDA_CONTROL"] = "{found.path}"\n'
        site.write_text(site.read_text() + added)
        pool.start()
        yield found
    shutil.rmtree(folder)


def test_a_program_gives_its_memory_to_another_and_goes_on(
    pool: FakeGpuPool, control: Control
) -> None:
    python = ["-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", PROGRAM]
    program = pool.spawn("run", *python)
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n", program.stderr
    lease = pool.lease()
    done = pool.command("suspend", lease, "--why", "for a test")
    assert done.returncode == 0, done.stderr
    pool.until(lambda: CHECKPOINTED in control.states().values())
    assert control.memory_used() == 0
    code = PROGRAM.replace("while True", "while step < 3")
    other = pool.command("run", "-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", code)
    assert other.stdout == "1\n2\n3\n", other.stderr + pool.logs()
    time.sleep(0.5)
    os.set_blocking(program.stdout.fileno(), False)
    before = program.stdout.read() or ""
    assert program.poll() is None
    done = pool.command("resume", lease)
    assert done.returncode == 0, done.stderr
    os.set_blocking(program.stdout.fileno(), True)
    count = before.count("\n") + 1
    for step in range(count + 1, count + 20):
        assert program.stdout.readline() == f"{step}\n"
    program.terminate()
    program.wait(DEADLINE_S)
    pool.until(lambda: pool.leases() == [])
