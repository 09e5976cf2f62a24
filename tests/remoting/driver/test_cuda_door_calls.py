"""Programs that print the same behind the CUDA door as on the driver itself."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.build import build as build_driver
from fake_cuda.control import Control, process_environment
from test_cuda_door import compiled, run

from gpupool.remoting.driver import build


@pytest.fixture(scope="session")
def library() -> Path:
    """Give the folder with the shim, and with what the worker loads, as an installation has it."""
    return build.ensure().parent


def natively(control: Control, program: list[str]) -> str:
    """Return what a program prints on the fake driver, without the door."""
    values = process_environment(control.environment(build_driver()))
    done = subprocess.run(
        program, env=values, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def both(name: str, library: Path, tmp_path: Path, *arguments: str) -> str:
    """Return what a program prints, which is the same natively and behind the door."""
    program = [str(compiled(name, tmp_path, library)), *arguments]
    (tmp_path / "native").mkdir()
    with Control(tmp_path / "native") as control:
        expected = natively(control, program)
    with Control(tmp_path) as control:
        done = run(library, control, program)
        assert done.stdout == expected, done.stderr
        assert done.stderr == ""
        assert control.missing_calls() == 0
    return expected


def test_tensor_maps(library: Path, tmp_path: Path) -> None:
    """Of every rank: rank 1 has no strides, and the driver still wants an address for them."""
    printed = both("tensors", library, tmp_path)
    assert printed.count("tiled") == 5
    assert printed.endswith("refused 1 1\n")
