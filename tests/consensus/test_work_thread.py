"""Long work on its thread: its pauses, its end, and its exceptions."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing

from gpupool.consensus.driver import WORK_PAUSE_S, WorkThread
from gpupool.consensus.snapshot_transfer import Work
from gpupool.pool.errors import StorageError


async def _until(is_so: Any) -> None:
    """Turn the loop without a sleep, by which virtual time would pass beside a busy thread."""
    while not is_so():
        await trio.lowlevel.checkpoint()


class LongWork:
    """Steps that record their observations, and wait at the first one if ``held``."""

    def __init__(self, count: int, *, held: bool = False) -> None:
        self.count, self.goes_on, self.began = count, threading.Event(), threading.Event()
        self.steps_done = self.step_thread = 0
        self.collects: list[bool] = []
        self.is_done: list[float] = []
        self.events: list[Any] = []
        self.ended = 0
        self.thread = WorkThread(self.events.append, self._done, self._after)
        if not held:
            self.goes_on.set()

    def _done(self, _work: Work, now: float) -> None:
        self.is_done.append(now)

    def _after(self) -> None:
        self.ended += 1
        self.collects.append(gc.isenabled())

    def steps(self) -> Iterator[None]:
        self.step_thread = threading.get_ident()
        for _ in range(self.count):
            self.began.set()
            self.goes_on.wait(30)
            self.steps_done += 1
            self.collects.append(gc.isenabled())
            yield

    def start(self) -> None:
        self.thread.run(Work(self.steps(), lambda: None))


async def test_long_work_pauses_after_each_step_and_collects_no_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() == work.step_thread:
            pauses.append(seconds)
        else:
            sleep(seconds)  # a thread that an earlier test has left

    monkeypatch.setattr(time, "sleep", pause)
    work = LongWork(4)
    work.start()
    await _until(lambda: work.events)
    assert pauses == [WORK_PAUSE_S] * 4
    assert work.collects == [False] * 5
    assert gc.isenabled()
    assert work.ended == 1
    (event,) = work.events
    event(3.5)
    assert work.is_done == [3.5]


async def test_long_work_that_is_stopped_ends_after_the_step_that_runs() -> None:
    work = LongWork(4, held=True)
    work.start()
    await _until(work.began.is_set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.thread.stop)
        await trio.testing.wait_all_tasks_blocked()
        assert work.ended == 0, "it waits for the step"
        work.goes_on.set()
    assert (work.steps_done, work.ended, work.events) == (1, 1, [])


async def test_what_a_step_of_long_work_raises_is_raised_by_its_event() -> None:
    def fails() -> Iterator[None]:
        yield
        raise StorageError("no room")

    work = LongWork(0)
    work.thread.run(Work(fails(), lambda: None))
    await _until(lambda: work.events)
    with pytest.raises(StorageError, match="no room"):
        work.events[0](1.0)
    assert (work.is_done, work.ended) == ([], 1)
    await work.thread.stop()


async def test_without_work_there_is_nothing_to_wait_for_at_the_end() -> None:
    work = LongWork(0)
    with trio.fail_after(5):
        await work.thread.stop()
    assert work.ended == 0
