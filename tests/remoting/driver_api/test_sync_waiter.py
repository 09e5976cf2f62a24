"""Threads of a worker that wait for the GPU: as many as wait, and few afterwards."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.remoting.driver_api.executor import sync_waiter
from gpupool.remoting.driver_api.executor.sync_waiter import THREADS_KEPT, Waiter

COUNT = 40
DEADLINE_S = 60.0


def make_waiter() -> Waiter:
    runtime = SimpleNamespace(setDevice=abs)  # what it is called with is of no interest here
    return Waiter(cast("Any", SimpleNamespace(runtime=runtime)), cast("Any", None), [0, 1])


def test_threads_end_that_have_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that once waited with 256 threads left a worker with 256 threads."""
    monkeypatch.setattr(sync_waiter, "IDLE_S", 0.01)
    waiter, go, waiting = make_waiter(), threading.Event(), threading.Semaphore(0)
    before = threading.active_count()

    def wait() -> None:
        waiting.release()
        go.wait(DEADLINE_S)

    for _ in range(2):  # those that have ended are missed by nobody
        for number in range(COUNT):
            waiter.start(number % 2, wait)
        for _ in range(COUNT):  # all wait at once
            assert waiting.acquire(timeout=DEADLINE_S)
        go.set()
        end = time.monotonic() + DEADLINE_S
        while threading.active_count() > before + THREADS_KEPT:
            assert time.monotonic() < end
            time.sleep(0.001)
        go.clear()
