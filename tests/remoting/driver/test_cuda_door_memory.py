"""The CUDA door's memory: pools, arrays, textures, managed memory, sharing, and what is counted."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import compiled, run

from gpupool.remoting.driver import build


@pytest.fixture(scope="session")
def library() -> Path:
    """Give the folder with the shim, and with what the worker loads, as an installation has it."""
    return build.ensure().parent


def right(done: subprocess.CompletedProcess[str]) -> None:
    assert done.stdout == "results right\n", done.stderr
    assert done.stderr == ""


def test_memory_pools(library: Path, tmp_path: Path) -> None:
    """A pool's memory counts while the pool holds it, whoever has freed it."""
    program = compiled("pools", tmp_path, library)
    with Control(tmp_path) as control:
        right(run(library, control, [str(program)], devices=2))
