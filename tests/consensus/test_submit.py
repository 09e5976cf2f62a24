"""Proposals without a task: each callback gets one outcome, even if the server ends."""

import math
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from lone_node import ME
from raft_world import Register
from tests.remoting.control.control_kit import VirtualClock

from gpupool.consensus.driver import GRACE_S, RaftDriver, SyncPlace
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Refusal, Unknown

HANGING_S = 100.0
"""A sync that takes so long has the next one run on a thread."""


class _NoLinks:
    def set_peers(self, peers: object) -> None:
        del peers

    def send(self, peer: ServerId, frame: bytes) -> bool:
        del peer, frame
        return False

    def hang_up(self, peer: ServerId) -> None:
        del peer


class Quick(SyncPlace):
    """A busy machine's syncs stay on the loop's thread: virtual time runs away from a thread."""

    def synced_inline(self, sync_s: float) -> None:
        if sync_s >= HANGING_S:
            super().synced_inline(sync_s)


def make(directory: Path) -> RaftDriver:
    storage = open_storage(directory, create=True)
    bootstrap(storage, ME)
    driver = RaftDriver(
        ME,
        storage=storage,
        machine=Register(),
        clock=VirtualClock(),
        randomness=Random(1),
        links=_NoLinks(),
    )
    inside: Any = driver
    inside._sync_place = Quick()
    return driver


@asynccontextmanager
async def running(driver: RaftDriver) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        assert await driver.barrier(timeout_s=20)
        yield
        nursery.cancel_scope.cancel()


class Hanging:
    """A sync of the disk that ends when the test says so."""

    def __init__(self, driver: RaftDriver) -> None:
        self.goes_on = threading.Event()
        self.began = trio.Event()
        self.token = trio.lowlevel.current_trio_token()
        self.sync = driver.node.sync
        self.failure: Exception | None = None
        inside: Any = driver
        inside.node.sync = self
        inside._sync_place.synced_inline(HANGING_S)  # It is slow: the next one runs on a thread.

    def __call__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.token.run_sync_soon(self.began.set)
            self.goes_on.wait(30)
        if self.failure is not None:
            raise self.failure
        self.sync()


async def test_each_submitted_command_gets_its_outcome_later(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    driver, outcomes = make(tmp_path), list[Outcome]()
    async with running(driver):
        for number in range(5):
            driver.submit(f"c{number}", 5.0, outcomes.append)
        assert not outcomes, "never from within the call"
        assert isinstance(await driver.propose("last", timeout_s=5.0), Committed)
        assert [isinstance(each, Committed) for each in outcomes] == [True] * 5
    driver.close()


async def test_a_command_alone_is_written_in_its_call_and_those_that_come_together_share_a_sync(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    driver, outcomes, writes = make(tmp_path), list[Outcome](), 0
    inside: Any = driver
    sync, journal = driver.node.sync, driver.node.storage.journal

    def counted() -> None:
        nonlocal writes
        writes += journal.dirty
        sync()

    async def burst(count: int) -> tuple[int, int]:
        """Submit so many; return how often was written within the calls, and after them."""
        before = writes
        for number in range(count):
            driver.submit(f"c{number}", 5.0, outcomes.append)
        within = writes - before
        await trio.sleep(0.01)
        return within, writes - before - within

    async with running(driver):
        inside.node.sync = counted
        await trio.sleep(0.01)
        assert await burst(1) == (1, 0)
        assert await burst(3) == (1, 1), "the first of them came alone"
        assert await burst(3) == (0, 1)
        assert await burst(1) == (0, 1)
        assert await burst(1) == (1, 0)
        assert [isinstance(each, Committed) for each in outcomes] == [True] * 9
    driver.close()


async def test_a_command_alone_gets_one_outcome_of_a_server_that_stops(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    driver, outcomes = make(tmp_path), list[Outcome]()
    async with running(driver):
        driver.submit("c", 5.0, outcomes.append)
        assert not driver.node.storage.journal.dirty
        assert not outcomes
    assert len(outcomes) == 1
    driver.close()


async def test_a_server_that_has_stopped_refuses_later_too(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    driver, outcomes = make(tmp_path), list[Outcome]()
    async with running(driver):
        pass
    driver.close()
    driver.submit("c", 5.0, outcomes.append)
    assert not outcomes
    await trio.sleep(0.1)
    (outcome,) = outcomes
    assert isinstance(outcome, NotCommitted)
    assert outcome.kind is Refusal.STOPPED
    assert await driver.propose("c", timeout_s=5.0) == outcome


async def test_a_disk_that_hangs_delays_no_outcome(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    driver, outcomes = make(tmp_path), list[tuple[float, Outcome]]()
    async with running(driver):
        autojump_clock.autojump_threshold = math.inf  # It would run on while the disk hangs.
        disk, began = Hanging(driver), trio.current_time()
        for timeout_s in (0.5, 2.0):
            driver.submit(
                "c", timeout_s, lambda outcome: outcomes.append((trio.current_time(), outcome))
            )
        await disk.began.wait()
        for _ in range(10):
            autojump_clock.jump((0.5 + 2 * GRACE_S) / 10)
            await trio.testing.wait_all_tasks_blocked()
        ((at, outcome),) = outcomes
        assert isinstance(outcome, Unknown)
        assert 0.5 <= at - began <= 0.5 + 2 * GRACE_S
        disk.goes_on.set()
        autojump_clock.autojump_threshold = 0.01
        assert isinstance(await driver.propose("after", timeout_s=20.0), Committed)
    assert len(outcomes) == 2, "and each gets one only"
    driver.close()


async def test_a_server_that_ends_leaves_no_callback_behind(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    driver, outcomes = make(tmp_path), list[Outcome]()
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the server is what raises
        async with running(driver):
            disk = Hanging(driver)
            disk.failure = StorageError("the disk is gone")
            driver.submit("c", 5.0, outcomes.append)
            await disk.began.wait()
            disk.goes_on.set()
            await trio.sleep_forever()
    assert [type(each) for each in caught.value.exceptions] == [StorageError]
    assert [type(each) for each in outcomes] == [Unknown]
    driver.close()
