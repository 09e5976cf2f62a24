"""The CUDA door and a worker that lies: its program gets an error, and is never killed by it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from tests.remoting.driver_api.test_cuda_door import KERNELS, compiled, run


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    return compiled("everything", tmp_path_factory.mktemp("programs"), library)


def lied_to(number: int, library: Path, program: Path, folder: Path) -> None:
    """Run a program with a lying worker; false data may be taken for true, and nothing else."""
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(folder) as control:
        done = run(library, control, [str(program), image], "--lie", str(number))
    # The loopback ends with the program's code; a signal's is negative, and so above 127 here.
    assert done.returncode < 128, f"lie {number}: {done.returncode}\n{done.stderr}"
    assert "\x1b" not in done.stderr


def test_a_killed_program_is_noticed(library: Path, tmp_path: Path) -> None:
    with Control(tmp_path) as control:
        done = run(library, control, ["sh", "-c", "kill -SEGV $$"])
    assert done.returncode >= 128


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 6))]
)
def test_lies(number: int, library: Path, everything: Path, tmp_path: Path) -> None:
    lied_to(number, library, everything, tmp_path)


@pytest.fixture(scope="module")
def host_copies(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    return compiled("host_copies", tmp_path_factory.mktemp("programs"), library)


@pytest.mark.parametrize("number", [6, pytest.param(7, marks=pytest.mark.long)])
def test_lies_about_host_functions(
    number: int, library: Path, host_copies: Path, tmp_path: Path
) -> None:
    lied_to(number, library, host_copies, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_lies(library: Path, everything: Path, host_copies: Path, tmp_path: Path) -> None:
    for number in range(8, 300):
        folder = tmp_path / str(number)
        folder.mkdir()
        lied_to(number, library, everything if number % 2 else host_copies, folder)
