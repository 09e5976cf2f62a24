"""Unmodified clients behind the CUDA door, from their wheels: CUDA's runtimes, CuPy, numba, NCCL.

The worker has the real CuPy and cuda.bindings as well, so that only the driver is a fake. ``make
test-wheels`` runs this, in an environment of its own: the wheels are 300 MB and not among the
project's dependencies.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build as build_driver
from fake_cuda.control import Control, process_environment
from fake_pool import FakeGpuPool
from test_cuda_door import HERE, KERNELS, right
from tests.shared import Shared

pytestmark = pytest.mark.slow
RUNTIMES = ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13", "libcudart_static.a"]
DEVICES = 2


@pytest.fixture(scope="module")
def python() -> str:
    """Give an interpreter that has the wheels."""
    path = os.environ.get("GPUPOOL_CUDA_PYTHON")
    if path is None:
        pytest.skip("GPUPOOL_CUDA_PYTHON names no interpreter with the CUDA wheels")
    return path


@pytest.fixture(scope="module")
def places(python: str) -> list[Path]:
    """Give the folders of the wheels that have CUDA's runtimes."""
    code = "import nvidia; print(*nvidia.__path__, sep='\\n')"
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return [Path(line) for line in found.stdout.splitlines()]


def behind_the_door(
    python: str, library: Path, control: Control, program: list[str], servers: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a program with the shim, and workers of that Python with the fake driver.

    Several servers have the devices among them.
    """
    driver = build_driver()
    values = control.environment(driver, devices=DEVICES // servers)
    del values["LD_LIBRARY_PATH"]
    command = [python, str(HERE / "loopback.py"), "--library", str(library)]
    command += ["--driver", str(driver.parent), "--servers", str(servers)]
    command += ["--devices", str(DEVICES // servers), "--", *program]
    environment = process_environment(values)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_c_program_of_cudas_runtime(
    runtime: str, servers: int, python: str, library: Path, places: list[Path], tmp_path: Path
) -> None:
    found = [file for place in places for file in sorted(place.glob(f"*/lib/{runtime}"))]
    assert found, f"no wheel has {runtime}"
    for number, file in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = folder / "program"
        command = ["gcc", "-std=c11", str(HERE / "programs" / "registered.c"), str(file)]
        command += ["-ldl", "-lpthread", "-lrt", "-lm", f"-Wl,-rpath={file.parent}"]
        subprocess.run([*command, "-o", str(program)], check=True)
        words = [str(program), str(KERNELS / "test_kernels.fatbin"), str(DEVICES)]
        with Control(folder) as control:
            done = behind_the_door(python, library, control, words, servers)
            assert re.fullmatch(r"CUDA 1[123], results right\n", done.stdout), done.stderr
            assert done.stderr == ""
            assert [launch.kernel for launch in control.launches()] == ["saxpy"] * DEVICES
            assert control.missing_calls() == 0


def test_texture_references_of_cuda_11(
    python: str, library: Path, places: list[Path], tmp_path: Path
) -> None:
    """The runtime binds them by the driver's references, with separate settings."""
    (file,) = [file for place in places for file in place.glob("*/lib/libcudart.so.11.0")]
    program = tmp_path / "program"
    command = ["gcc", "-std=c11", str(HERE / "programs" / "referenced.c"), str(file)]
    subprocess.run([*command, f"-Wl,-rpath={file.parent}", "-o", str(program)], check=True)
    words = [str(program), str(KERNELS / "reference_kernels.fatbin")]
    with Control(tmp_path) as control:
        done = behind_the_door(python, library, control, words)
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            *("line 71999800 at 0", "line 180300 at 0", "rows 3243736 at 0", "array 3573260")
        ]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("client", ["cupy", "numba"])
def test_a_python_client(
    client: str, servers: int, python: str, library: Path, tmp_path: Path
) -> None:
    program = HERE / "fake_cuda" / "programs" / f"{client}_program.py"
    words = [python, "-W", "ignore", str(program), str(KERNELS)]
    with Control(tmp_path) as control:
        right(behind_the_door(python, library, control, words, servers))
        assert control.launches()


def test_graphs_of_cupy(python: str, library: Path, tmp_path: Path) -> None:
    program = [python, str(HERE / "programs" / "graphs_of_cupy.py")]
    with Control(tmp_path) as control:
        right(behind_the_door(python, library, control, program))


def test_cupy_on_two_servers(python: str, library: Path, tmp_path: Path) -> None:
    """Arrays, kernels, copies, events and streams of both, and views of the other's arrays."""
    program = [python, str(HERE / "programs" / "servers_of_cupy.py"), str(KERNELS)]
    with Control(tmp_path) as control:
        right(behind_the_door(python, library, control, program, servers=2))


@contextlib.contextmanager
def running() -> Generator[FakeGpuPool]:
    """Run a pool of one server with two GPUs and an NVML for a lease's programs."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    fake = FakeGpuPool(folder, devices=2)
    try:
        fake.start()
        yield fake
    finally:
        fake.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_pool(library: Path) -> Iterator[Shared[FakeGpuPool]]:
    assert library.exists()
    shared = Shared(running, FakeGpuPool.wrong)
    yield shared
    shared.end()


@pytest.fixture
def pool(shared_pool: Shared[FakeGpuPool], request: pytest.FixtureRequest) -> Iterator[FakeGpuPool]:
    yield from shared_pool.lend(request)


def nccl_of(places: list[Path]) -> Path:
    found = [file for place in places for file in place.glob("nccl/lib/libnccl.so.2")]
    assert found, "no wheel has NCCL"
    return found[0]


@pytest.mark.parametrize(("mode", "way"), [("both", "direct pointer"), ("each", "CUMEM")])
def test_nccl_goes_from_gpu_to_gpu(
    mode: str, way: str, python: str, places: list[Path], pool: FakeGpuPool
) -> None:
    """By NVLink, with as many channels as that has, and never through memory of the host."""
    program = [python, str(HERE / "programs" / "nccl_ranks.py"), str(nccl_of(places)), mode]
    settings = ["--env", "NCCL_DEBUG=INFO", "--env", "NCCL_DEBUG_FILE=/dev/stderr"]
    done = pool.command("run", "-n", "2", "-m", "8G", "--door", "cuda", *settings, "--", *program)
    assert done.stdout == "results right\n", done.stderr + pool.logs()
    ways = re.findall(r" via (\w+)/(.*)", done.stderr)
    assert set(ways) == {("P2P", way)}
    assert set(re.findall(r"(\d+) coll channels", done.stderr)) == {"24"}


@pytest.mark.parametrize("mode", ["both", "each"])
def test_nccl_goes_through_memory_of_the_server(
    mode: str, python: str, places: list[Path], pool: FakeGpuPool
) -> None:
    """As between GPUs without access to each other's memory."""
    program = [python, str(HERE / "programs" / "nccl_ranks.py"), str(nccl_of(places)), mode]
    settings = ["--env", "NCCL_P2P_DISABLE=1", "--env", "NCCL_DEBUG=INFO"]
    settings += ["--env", "NCCL_DEBUG_FILE=/dev/stderr"]
    done = pool.command("run", "-n", "2", "-m", "8G", "--door", "cuda", *settings, "--", *program)
    assert done.stdout == "results right\n", done.stderr + pool.logs()
    assert set(re.findall(r" via (\w+)/", done.stderr)) == {"SHM"}


def test_generated_files_are_current(places: list[Path]) -> None:
    """The headers are those of the newest CUDA with exported functions."""
    include = next(each / "cu13" / "include" for each in places if (each / "cu13").is_dir())
    generate = str(HERE.parents[2] / "packaging" / "driver_api" / "generate.py")
    command = [sys.executable, generate, "--check", "--include"]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[2] / "src")}
    done = subprocess.run(
        [*command, str(include)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
