"""A privileged helper within the server's process: leftovers of a failed start, and delays."""

import errno
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from gpupool.remoting.host.privileged_helper import OwnHelper
from gpupool.remoting.host.worker_helper import HelperSettings, WorkerHelper
from gpupool.remoting.protocol.helper_messages import (
    Answered,
    Buried,
    BuryWorker,
    Open,
    Request,
    StartWorker,
)


def no_more_descriptors(_pid: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_worker_that_cannot_be_watched_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start for which the descriptors did not suffice left a directory and a process."""
    helper = WorkerHelper(HelperSettings(tmp_path, None, own_uids=False), print)
    helper.carry_out(Open(False, None), ())
    (workers,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "pidfd_open", no_more_descriptors)
    ours, theirs = socket.socketpair()
    errors, their_errors = os.pipe()
    try:
        with ours, theirs, pytest.raises(OSError, match="Too many open files"):
            helper.carry_out(StartWorker(1), (theirs.fileno(), their_errors))
    finally:
        os.close(their_errors)
    assert not list(workers.iterdir())
    assert not helper.workers
    with os.fdopen(errors, "rb") as said:
        said.read()  # ends when nobody can write there any more
    helper.close()


class SlowHelper(WorkerHelper):
    """Needs long to remove the remains of workers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(HelperSettings(folder, None), print)
        self.goes_on = threading.Event()

    def carry_out(self, asked: Request, descriptors: Sequence[int]) -> Answered:
        self.goes_on.wait(20)
        return Buried(out_of_memory=False), -1


async def test_many_workers_that_end_slowly_hold_nothing_else_up(tmp_path: Path) -> None:
    """All threads of the server waited for them, and the sync of the journal waited for those."""
    slow = SlowHelper(tmp_path)
    helper = OwnHelper(slow)
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(helper.ask, BuryWorker(number))
        await trio.testing.wait_all_tasks_blocked()
        try:
            with trio.move_on_after(1) as waited:
                await trio.to_thread.run_sync(lambda: None)
        finally:
            slow.goes_on.set()
    assert not waited.cancelled_caught
