"""NCCL with ranks on several servers: our libnccl.so.2, workers, and an NCCL without GPUs."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import run

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor.rare.collectives import (
    OPERATION,
    Collectives,
    Communicator,
)
from gpupool.remoting.driver_api.executor.rare.nccl import ALL_REDUCE

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


def test_an_abort_ends_what_waits_for_other_ranks(
    fake_nccl: str, library: Path, tmp_path: Path
) -> None:
    """NCCL keeps the worker in a group; the abort behind it gets past, and the session goes on."""
    done = two_ranks(library, tmp_path, fake_nccl, "stuck")
    said = ["abort 0 soon True", "goes on 3.0 4.0", "abort 0"]
    assert done.stdout.splitlines()[2:] == said, done.stderr


def test_collectives_are_captured(fake_nccl: str, library: Path, tmp_path: Path) -> None:
    """They come to NCCL while the worker's stream captures, so graphs have NCCL's additions."""
    done = two_ranks(library, tmp_path, fake_nccl, "capture")
    said = ["captured 5.0 6.0 5.0 6.0", "captured 7.0 8.0 7.0 8.0"]
    assert done.stdout.splitlines()[2:] == said, done.stderr


class Calls:
    """NCCL of a worker, with a record of its calls."""

    def __init__(self) -> None:
        self.called: list[tuple[int, ...]] = []

    def operation(self, *words: int) -> Callable[[], None]:
        return lambda: self.called.append(words)

    @contextlib.contextmanager
    def group(self) -> Generator[None]:
        self.called.append((-1,))
        yield


def posted(*operations: tuple[int, ...], count: int = 0, rest: bytes = b"") -> Calls:
    """Return NCCL's calls for a group that came to a worker with communicator 1."""
    nccl = Calls()
    client = SimpleNamespace(api=None, session=None, waiter=None, streams={0: 77}, objects={})
    out_of_band = SimpleNamespace(need=lambda: None, leave=lambda: None)
    made = Collectives(cast("Any", client), cast("Any", out_of_band))
    vars(made).update(_loaded=nccl, _known={1: Communicator(5, 0)})
    data = b"".join(OPERATION.pack(*words) for words in operations) + rest
    post = made.methods.get("NCCL_POST")
    assert post is not None
    post(count or len(operations), memoryview(data))
    return nccl


GOOD = (1, ALL_REDUCE, 16, 32, 4, 7, 0, 0, 0)


def test_a_group_is_one_of_nccl() -> None:
    assert posted(GOOD).called == [(ALL_REDUCE, 16, 32, 4, 7, 0, 0, 5, 77)]
    assert posted(GOOD, GOOD).called == [(-1,), *posted(GOOD).called * 2]


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0, 2, KeyError),  # no such communicator
        (1, 99, RemoteProtocolError),  # nor kind
        (4, 1 << 49, RemoteProtocolError),  # nor so many elements
        (5, 12, RemoteProtocolError),  # of that type
        (6, 5, RemoteProtocolError),  # a reduction that it has not made
        (7, 1 << 16, RemoteProtocolError),  # nor peer
        (8, 3, KeyError),  # nor stream
    ],
)
def test_of_a_malformed_group_nothing_is_executed(
    at: int, value: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[int, ...]] = []

    def operation(_: Calls, *words: int) -> Callable[[], None]:
        return lambda: called.append(words)

    monkeypatch.setattr(Calls, "operation", operation)
    bad = (*GOOD[:at], value, *GOOD[at + 1 :])
    with pytest.raises(error):
        posted(GOOD, bad)
    assert called == []


@pytest.mark.parametrize(("count", "rest"), [(2, b""), (1, b"x"), (4097, b""), (1 << 63, b"")])
def test_a_group_has_as_many_operations_as_it_says(count: int, rest: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        posted(GOOD, count=count, rest=rest)
