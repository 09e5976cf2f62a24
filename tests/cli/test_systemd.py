"""The folder of a server's socket: what a former run's worker left there stops no start."""

import os
from pathlib import Path

import pytest

from gpupool.cli.server.systemd import make_runtime_dir
from gpupool.pool.model.ids import ServerId


def test_a_former_runs_deep_directories_stop_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recursive removal ended the start with a RecursionError until somebody removed them."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    top = make_runtime_dir(ServerId("me"))
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert make_runtime_dir(ServerId("me")) == top
    assert list(top.iterdir()) == []
