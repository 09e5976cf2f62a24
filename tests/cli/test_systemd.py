"""The folder of a server's socket: a former run's leftovers of a worker stop no start."""

import os
import socket
from pathlib import Path

import pytest

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.daemon import systemd
from gpupool.remoting.daemon.systemd import await_room, make_runtime_dir


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


def test_a_service_waits_for_room_instead_of_starting_again_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, said, slept = iter([False, False, False, True]), list[str](), list[float]()
    monkeypatch.setattr(systemd.time, "sleep", slept.append)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    await_room(lambda: next(looks), said.append)  # a person is told by the error at once
    assert (said, slept) == ([], [])
    where = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(where))
        monkeypatch.setenv("NOTIFY_SOCKET", str(where))
        await_room(lambda: next(looks), said.append)
        told = [manager.recv(500).decode() for _ in range(3)]
    assert len(said) == 1
    assert "is full" in said[0]
    assert slept == [systemd.ROOM_POLL_S] * 2
    assert "EXTEND_TIMEOUT_USEC=60000000" in told[0]
    assert told[-1] == "STATUS="
