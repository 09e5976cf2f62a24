"""The library keeps NVRTC's results in a process, and finds them for the same input again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.remoting.driver_api import build

PROGRAM = Path(__file__).resolve().parent / "programs" / "compiled.py"


def run(library: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(library / build.LIBRARY)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("value", ["0", ""])
def test_what_was_compiled_is_found_again(value: str, library: Path) -> None:
    done = run(library, CUDA_CACHE_DISABLE=value)
    assert (done.stdout, done.stderr, done.returncode) == ("right\n", "", 0)


def test_nothing_is_kept_where_the_program_wants_no_cache(library: Path) -> None:
    done = run(library, CUDA_CACHE_DISABLE="1")
    assert (done.stderr, done.returncode) == ("the table is refused: 1\n", 1)
