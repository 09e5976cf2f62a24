"""NCCL with ranks on several servers: our libnccl.so.2, workers, and an NCCL without GPUs."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import run

from gpupool.remoting.driver_api import build

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "programs" / "nccl_program.py")
FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")

SAID = """\
version 22800 ranks 2
ncclAllReduce 10.0 0.0 10.0 0.0
split 1 2
split 0 2
split 0 1
split none
ncclBroadcast 10.0 0.0 10.0 0.0
ncclReduce 10.0 0.0 10.0 0.0
ncclAllGather 0.0 10.0 0.0 10.0
ncclReduceScatter 10.0 10.0 12.0 10.0
ncclAlltoAll 0.0 10.0 1.0 11.0
ncclAllReduce 30.0 10.0 30.0 11.0
wrong type 4
state 0
state 0
"""


@pytest.fixture(scope="module")
def fake_nccl(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    source = str(HERE / "fake_nccl" / "nccl.c")
    subprocess.run(["gcc", "-std=c11", *FLAGS, "-o", str(made), source], check=True)
    return str(made)


def two_ranks(
    library: Path, folder: Path, nccl: str, *words: str
) -> subprocess.CompletedProcess[str]:
    ranks = folder / "ranks"
    ranks.mkdir()
    more = {"FAKE_NCCL": str(ranks), "GPUPOOL_NCCL": nccl}
    with Control(folder) as control:
        program = ["env", f"LD_PRELOAD={library / build.NCCL}", sys.executable, PROGRAM, *words]
        return run(library, control, program, "--servers", "2", more=more)


def test_a_process_has_a_rank_on_each_of_two_servers(
    fake_nccl: str, library: Path, tmp_path: Path
) -> None:
    """Communicators, collectives, sends and own reductions are the workers' NCCL's."""
    done = two_ranks(library, tmp_path, fake_nccl)
    assert done.stdout == SAID, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_all_ranks_hear_when_a_worker_ends(fake_nccl: str, library: Path, tmp_path: Path) -> None:
    """Both communicators are in ncclRemoteError, and can be aborted."""
    done = two_ranks(library, tmp_path, fake_nccl, "lose")
    assert done.stdout.splitlines()[2:] == ["state 6", "state 6", "abort 0", "abort 0"], done.stderr


@pytest.mark.slow
def test_a_server_without_nccl_says_so(library: Path, tmp_path: Path) -> None:
    done = two_ranks(library, tmp_path, str(tmp_path / "none.so"))
    assert done.stdout == ""
    assert "this server has no NCCL" in done.stderr
