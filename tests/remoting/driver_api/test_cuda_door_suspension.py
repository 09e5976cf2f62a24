"""Programs behind the CUDA door, suspended in mid-run by a real server and its helper."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import CHECKPOINTED, Control
from fake_pool import DEADLINE_S, FakeGpuPool
from test_cuda_door import KERNELS, compiled
from test_cuda_door_calls import natively
from test_cuda_door_nccl import fake_nccl as fake_nccl
from tests.pools import view_of

from gpupool.pool.model.suspension import USES_NCCL
from gpupool.remoting.driver_api import build

pytestmark = pytest.mark.long  # a pool of its own: its workers have a driver that is steered

PROGRAM = """
import ctypes, time
cuda, context, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_uint()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
blocks = [ctypes.c_uint64() for _ in range(3)]
for i, block in enumerate(blocks):
    assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 30))
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
def pool(request: pytest.FixtureRequest) -> Generator[FakeGpuPool]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    found = FakeGpuPool(folder, devices=getattr(request, "param", 1))
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
        # Little memory: what is suspended is counted against that of this machine.
        added = f'os.environ["FAKE_CUDA_CONTROL"] = "{found.path}"\n'
        added += 'os.environ["FAKE_CUDA_MEMORY"] = "4g"\n'
        site.write_text(site.read_text() + added)
        pool.start()
        yield found
    shutil.rmtree(folder)


def start(pool: FakeGpuPool) -> tuple["subprocess.Popen[str]", IO[str]]:
    """Start the program; return it and its output, once it computes."""
    python = ["-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", PROGRAM]
    program = pool.spawn("run", *python)
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n", pool.logs()
    return program, program.stdout


def suspend(pool: FakeGpuPool, control: Control) -> None:
    done = pool.command("suspend", pool.lease(), "--reason", "for a test")
    assert done.returncode == 0, done.stderr
    assert CHECKPOINTED in control.states().values()


def test_a_program_gives_its_memory_to_another_and_goes_on(
    pool: FakeGpuPool, control: Control
) -> None:
    program, lines = start(pool)
    lease = pool.lease()
    suspend(pool, control)
    assert control.memory_used() == 0
    code = PROGRAM.replace("while True", "while step < 3")
    other = pool.command("run", "-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", code)
    assert other.stdout == "1\n2\n3\n", other.stderr + pool.logs()
    assert program.poll() is None
    done = pool.command("resume", lease)  # that of the other one may still be on its way out
    assert done.returncode == 0, done.stderr
    for step in range(2, 200):
        assert lines.readline() == f"{step}\n"
    # What ends a lease ends it while it is suspended, too.
    pool.until(lambda: pool.leases() == [lease])
    suspend(pool, control)
    program.kill()
    pool.until(lambda: pool.leases() == [] and control.memory_used() == 0)
    pool.until(lambda: CHECKPOINTED not in control.states().values())


def test_a_second_interrupt_ends_a_lease_whose_calls_wait(
    pool: FakeGpuPool, control: Control
) -> None:
    """A program within a call hears of no signal, and nobody knows when the call returns."""
    program, _lines = start(pool)
    suspend(pool, control)
    assert program.stderr is not None
    program.send_signal(signal.SIGINT)
    while "once more" not in (line := program.stderr.readline()):
        assert line, pool.logs()
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=DEADLINE_S)
    assert program.returncode == -signal.SIGINT
    pool.until(lambda: pool.leases() == [] and control.memory_used() == 0)


@pytest.mark.parametrize("step", ["Lock", "Checkpoint", "Restore", "Unlock"])
def test_a_server_that_is_killed_in_the_middle_leaves_nothing(
    step: str, pool: FakeGpuPool, control: Control
) -> None:
    program, _lines = start(pool)
    if step in ("Restore", "Unlock"):
        suspend(pool, control)
    function = f"cuCheckpointProcess{step}"
    called = control.calls().get(function, 0)
    control.set_fault(function, 0, times=1, delay_us=60_000_000)
    pool.spawn("suspend" if step in ("Lock", "Checkpoint") else "resume", pool.lease())
    pool.until(lambda: control.calls().get(function, 0) > called)
    pool.server.kill()
    assert program.wait(DEADLINE_S) == 125
    pool.restart()
    pool.until(lambda: pool.leases() == [])
    pool.until(lambda: control.memory_used() == 0)
    control.clear_faults()
    code = PROGRAM.replace("while True", "while step < 3")
    other = pool.command("run", "-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", code)
    assert other.stdout == "1\n2\n3\n", other.stderr + pool.logs()


def test_a_worker_that_dies_while_it_is_suspended_is_said(
    pool: FakeGpuPool, control: Control
) -> None:
    program, _lines = start(pool)
    suspend(pool, control)
    pool.server.kill_workers()
    assert program.wait(DEADLINE_S) == 125
    pool.until(lambda: pool.leases() == [] and control.memory_used() == 0)


GIB = 1 << 30
MEMORY = 3 * GIB  # of PROGRAM


def gpu_of(pool: FakeGpuPool) -> int:
    """Return the number of the GPU that the pool has for its only lease."""
    view = view_of(pool.env["GPUPOOL_CREDENTIALS"])
    [part] = view["leases"][0]["partitions"]
    return next(g["index"] for s in view["servers"] for g in s["gpus"] if g["id"] == part["gpu"])


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_program_is_moved_to_another_gpu_and_back_and_loses_nothing(
    pool: FakeGpuPool, control: Control
) -> None:
    program, lines = start(pool)
    for turn, to in enumerate((1, 0, 1)):
        done = pool.command("move", pool.lease(), "--to", str(to))
        assert done.returncode == 0, done.stderr + pool.logs()
        assert f"goes on with GPU {to} of a" in done.stderr
        used = [control.memory_used(device) >= MEMORY for device in (0, 1)]
        assert (used, gpu_of(pool)) == ([to == 0, to == 1], to)
        for step in range(50 * turn + 2, 50 * turn + 52):
            assert lines.readline() == f"{step}\n"
    # What is new there is counted there, and the GPU that was left is another's.
    code = PROGRAM.replace("while True", "while step < 3")
    other = pool.command("run", "-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", code)
    assert other.stdout == "1\n2\n3\n", other.stderr + pool.logs()
    program.kill()


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_driver_that_refuses_the_other_gpu_leaves_a_program_where_it_was(
    pool: FakeGpuPool, control: Control
) -> None:
    program, lines = start(pool)
    control.set_fault("cuCheckpointProcessRestore", 1, times=3)
    done = pool.command("move", pool.lease(), "--to", "1")
    assert done.returncode != 0
    assert "does not restore it on the other GPU" in done.stderr, done.stderr + pool.logs()
    assert (gpu_of(pool), control.memory_used(0) >= MEMORY, control.memory_used(1)) == (0, True, 0)
    for step in range(2, 52):
        assert lines.readline() == f"{step}\n"
    assert program.poll() is None
    # Lost is only what the driver has lost, and it is said.
    control.clear_faults()
    control.set_fault("cuCheckpointProcessRestore", 2, times=1)
    pool.command("move", pool.lease(), "--to", "1")
    assert program.wait(DEADLINE_S) == 125
    assert program.stderr is not None
    assert "not enough memory" in program.stderr.read() + pool.logs()


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_suspended_program_goes_on_with_another_gpu_or_waits_for_its_own(
    pool: FakeGpuPool, control: Control
) -> None:
    """Another user has its GPU by then, so there is no way back from a failed resume."""
    program, lines = start(pool)
    lease = pool.lease()
    suspend(pool, control)
    words = ("run", "-p", "0.9", "--door", "cuda", "--", sys.executable, "-c", PROGRAM)
    other = pool.spawn(*words)
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n", pool.logs()
    assert control.memory_used(0) >= MEMORY
    control.set_fault("cuCheckpointProcessRestore", 1, times=3)
    done = pool.command("move", lease, "--to", "1")
    assert done.returncode == 75, done.stderr
    assert f"lease {lease} was not moved, and stays suspended" in done.stderr
    assert "does not restore it on the other GPU" in done.stderr, done.stderr + pool.logs()
    assert (program.poll(), control.memory_used(1)) == (None, 0)
    control.clear_faults()
    done = pool.command("move", lease, "--to", "1")
    assert f"lease {lease} goes on with GPU 1 of a" in done.stderr, done.stderr + pool.logs()
    for step in range(2, 52):
        assert lines.readline() == f"{step}\n"
    assert control.memory_used(1) >= MEMORY
    program.kill()
    other.kill()


NCCL = """
import ctypes, sys
nccl, version = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
assert not nccl.ncclGetVersion(ctypes.byref(version)), "no NCCL on the server"
"""


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_program_that_uses_nccl_is_neither_suspended_nor_moved_and_says_so_before(
    pool: FakeGpuPool, control: Control, fake_nccl: str
) -> None:
    """Its connections to others in memory would be lost (two H100s, 2026-11-25)."""
    library = pool.server.folder / "lib" / "libnccl.so.2"
    shutil.copy(fake_nccl, library)
    site = pool.server.folder / "bindings" / "sitecustomize.py"
    site.write_text(site.read_text() + f'os.environ["GPUPOOL_NCCL"] = "{library}"\n')
    pool.server.kill_workers(noticed_s=5.0)  # the warm ones do not know it
    words = [sys.executable, "-c", PROGRAM.replace("step = 0", f"{NCCL}\nstep = 0")]
    client_nccl = str(build.library_dir() / build.NCCL)
    program = pool.spawn("run", "-p", "0.9", "--door", "cuda", "--", *words, client_nccl)
    lines = further(pool, program, 1)

    def said() -> str:
        leases = pool.command("leases", "--json")
        return str(json.loads(leases.stdout)["leases"][0]["not_suspendable"])

    pool.until(lambda: said() == USES_NCCL)
    assert f"cannot be suspended: {USES_NCCL}" in pool.command("leases", "--wide").stdout
    for order in (["suspend", pool.lease()], ["move", pool.lease(), "--to", "1"]):
        done = pool.command(*order)
        assert done.returncode == 75, done.stderr
        assert USES_NCCL in done.stderr
    assert CHECKPOINTED not in control.states().values()
    lines += further(pool, program, 20)
    assert lines == [f"{step}\n" for step in range(1, 22)]
    program.kill()


# --- what a program uses --------------------------------------------------------------------------

STEPS_MAX = 100_000
IMAGES = [str(KERNELS / f"{name}_kernels.sm_90.cubin") for name in ("test", "memory")]
NOT_SUSPENDED = "was not suspended, and runs on"


@pytest.fixture
def suspended(tmp_path: Path) -> Callable[[str, int], list[str]]:
    """Return the words that start programs/suspended.c, one way or another, for so many steps."""
    program = compiled("suspended", tmp_path, build.ensure().parent)
    end = str(tmp_path / "end")
    return lambda mode, steps: [str(program), IMAGES[0], str(steps), mode, IMAGES[1], end]


def begun(pool: FakeGpuPool, words: list[str]) -> tuple["subprocess.Popen[str]", list[str]]:
    """Start a program; return it and its first lines, once it computes."""
    program = pool.spawn("run", "-p", "0.9", "--door", "cuda", "--", *words)
    return program, further(pool, program, 5)


def further(pool: FakeGpuPool, program: "subprocess.Popen[str]", count: int) -> list[str]:
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(count)]
    assert all(lines), program.communicate(timeout=DEADLINE_S)[1] + pool.logs()
    return lines


def finished(
    pool: FakeGpuPool, program: "subprocess.Popen[str]", lines: list[str], folder: Path
) -> str:
    """Tell a program to end, and return all its output."""
    (folder / "end").touch()
    assert program.stdout is not None
    rest = program.stdout.read()
    assert program.wait(DEADLINE_S) == 0, program.communicate()[1] + pool.logs()
    (folder / "end").unlink()
    return "".join(lines) + rest


def test_graphs_streams_and_memory_of_all_kinds_have_the_same_bits_afterwards(
    pool: FakeGpuPool,
    control: Control,
    suspended: Callable[[str, int], list[str]],
    tmp_path: Path,
) -> None:
    """Events, pinned and mapped memory, and the door's managed memory, which the driver has not."""
    program, lines = begun(pool, suspended("kinds", STEPS_MAX))
    for _ in range(4):
        suspend(pool, control)
        assert control.memory_used() == 0
        assert pool.command("resume", pool.lease()).returncode == 0
        lines += further(pool, program, 10)
    printed = finished(pool, program, lines, tmp_path)
    assert natively(tmp_path, suspended("kinds", printed.count("\n"))) == printed


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("variable", "cannot suspend a program that uses the GPU like this one, for instance with"),
        ("shares", "its processes share GPU memory with each other, which cannot be suspended"),
    ],
)
def test_what_cannot_be_suspended_is_refused_and_goes_on_as_if_nothing_had_been_asked(
    mode: str,
    why: str,
    pool: FakeGpuPool,
    control: Control,
    suspended: Callable[[str, int], list[str]],
    tmp_path: Path,
) -> None:
    program, lines = begun(pool, suspended(mode, STEPS_MAX))
    for _ in range(2):
        done = pool.command("suspend", pool.lease())
        assert done.returncode == 75, done.stderr
        assert NOT_SUSPENDED in done.stderr
        assert why in done.stderr
        lines += further(pool, program, 10)
    assert CHECKPOINTED not in control.states().values()
    printed = finished(pool, program, lines, tmp_path)
    assert natively(tmp_path, suspended(mode, printed.count("\n"))) == printed
