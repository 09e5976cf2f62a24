"""A keeper within the server's process: what it leaves when a start fails, and whom it holds up."""

import errno
import os
import socket
from pathlib import Path

import pytest

from gpupool.remoting.host.worker_keeper import KeeperSettings, WorkerKeeper


def no_more_descriptors(_pid: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_worker_that_cannot_be_watched_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start for which the descriptors did not suffice left a directory and a process."""
    keeper = WorkerKeeper(KeeperSettings(tmp_path, None, own_uids=False), print)
    keeper.open(cuda=False, nodes=None)
    (workers,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "pidfd_open", no_more_descriptors)
    ours, theirs = socket.socketpair()
    errors, their_errors = os.pipe()
    try:
        with ours, theirs, pytest.raises(OSError, match="Too many open files"):
            keeper.start(1, theirs.fileno(), their_errors)
    finally:
        os.close(their_errors)
    assert not list(workers.iterdir())
    assert not keeper.workers
    with os.fdopen(errors, "rb") as said:
        said.read()  # ends when nobody can write there any more
    keeper.close()
