"""Unmodified clients on the fake driver: CUDA's runtime, CuPy and numba-cuda, from their wheels.

Slow, and apart: the wheels are 200 MB and not among the project's own dependencies. ``make
test-wheels`` makes an environment with them and runs this.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import FLAGS, HERE, WARNINGS, build, sources
from fake_cuda.control import Control, process_environment

pytestmark = pytest.mark.slow
PROGRAMS = HERE / "programs"
KERNELS = HERE / "kernels"


@pytest.fixture(scope="module")
def python() -> str:
    """Give an interpreter that has the wheels."""
    path = os.environ.get("GPUPOOL_CUDA_PYTHON")
    if path is None:
        pytest.skip("GPUPOOL_CUDA_PYTHON names no interpreter with the CUDA wheels; see this file")
    return path


@pytest.fixture(scope="module")
def toolkit(python: str) -> Path:
    """Give the folder of the nvidia-cuda-runtime wheel, with include and lib."""
    code = "import nvidia.cu13; print(list(nvidia.cu13.__path__)[0])"
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip())


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with Control(tmp_path) as made:
        yield made


def run(command: list[str], control: Control, *, path: str = "", devices: int = 2) -> str:
    values = control.environment(build(), devices=devices)
    values["LD_LIBRARY_PATH"] += path and f":{path}"
    done = subprocess.run(
        command,
        env=process_environment(values),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert control.missing_calls() == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("linking", ["shared", "static"])
@pytest.mark.parametrize("image", ["sm_90.cubin", "fatbin", "zstd.fatbin", "ptx"])
def test_a_c_program_of_cudas_runtime(
    linking: str, image: str, toolkit: Path, tmp_path: Path, control: Control
) -> None:
    library = toolkit / "lib" / ("libcudart.so.13" if linking == "shared" else "libcudart_static.a")
    program = tmp_path / "program"
    command = ["gcc", "-std=c11", str(PROGRAMS / "runtime_program.c"), str(library)]
    command += ["-ldl", "-lpthread", "-lrt", "-lm", "-o", str(program)]
    subprocess.run(command, check=True)
    image_path = str(KERNELS / f"test_kernels.{image}")
    output = run([str(program), image_path], control, path=str(library.parent))
    assert output == "2 devices, results right\n"
    assert [launch.kernel for launch in control.launches()] == ["saxpy"] * 3
    assert control.launches()[0].grid == (4, 1, 1)


@pytest.mark.parametrize("client", ["cupy", "numba"])
def test_a_python_client(client: str, python: str, control: Control) -> None:
    command = [python, "-W", "ignore", str(PROGRAMS / f"{client}_program.py"), str(KERNELS)]
    assert run(command, control) == "results right\n"
    assert control.launches()


# ---- the types and prototypes of abi.h are those of the real header ----


@pytest.mark.parametrize("source", [path.name for path in sources() if path.name != "stubs.c"])
def test_sources_agree_with_the_real_header(source: str, toolkit: Path) -> None:
    """Compile against cuda.h, which knows every prototype, layout field and constant in use."""
    command = ["gcc", *FLAGS, *WARNINGS, "-fsyntax-only", "-DFAKE_CUDA_REAL_HEADER"]
    command += ["-I", str(toolkit / "include"), str(HERE / source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_layouts_and_values_are_those_of_the_real_header(toolkit: Path, tmp_path: Path) -> None:
    output: list[str] = []
    for options in ([], ["-DFAKE_CUDA_REAL_HEADER", "-I", str(toolkit / "include")]):
        program = tmp_path / f"layout-{len(options)}"
        source = str(PROGRAMS / "layouts.c")
        command = ["gcc", "-std=c11", *options, "-I", str(HERE), source, "-o", str(program)]
        subprocess.run(command, check=True)
        done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
        output.append(done.stdout)
    assert output[0] == output[1]
    assert len(output[0].splitlines()) > 100


def test_exported_names_are_those_of_the_header(toolkit: Path, tmp_path: Path) -> None:
    """Every name of cuda.h is exported, so that a raw dlsym never fails."""
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(build())], check=True, capture_output=True, text=True
    )
    ours = {line.split()[-1] for line in done.stdout.splitlines()}
    written = (HERE / "exports.inc").read_text()
    copy = tmp_path / "generate_exports.py"
    copy.write_text((HERE / "generate_exports.py").read_text())
    subprocess.run([sys.executable, str(copy), str(toolkit / "include")], check=True)
    fresh = (tmp_path / "exports.inc").read_text()
    names = {line[7:-1] for line in fresh.splitlines() if line.startswith("EXPORT(")}
    assert len(names) > 600
    # A newer header may have more; what it has must be ours, up to the committed version.
    committed = {line[7:-1] for line in written.splitlines() if line.startswith("EXPORT(")}
    assert committed <= ours
    assert committed & names == committed, sorted(committed - names)
