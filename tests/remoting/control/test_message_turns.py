"""The order of handled messages: users in turn, and other tasks in between."""

from collections.abc import Callable

import pytest
import trio

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.server.control_server import PART, STEP_S, Turns

COST_S = STEP_S / 4


class Work:
    """Messages that take a quarter of a step each, by a clock that only they move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(lambda: self.now)
        self.done: list[str] = []

    def message(self, name: str) -> Callable[[], bool]:
        def work() -> bool:
            self.now += COST_S
            self.done.append(name)
            return True

        return work

    async def flood(self, user: str, count: int) -> None:
        """Be one connection of a user, which has sent so many messages."""
        for _ in range(count):
            assert await self.turns.take(user, self.message(user))


async def begin(nursery: trio.Nursery, work: Work) -> None:
    nursery.start_soon(work.turns.give)
    await trio.testing.wait_all_tasks_blocked()


async def test_messages_of_an_idle_server_are_handled_at_once() -> None:
    work = Work()
    with trio.fail_after(5):  # nobody gives turns, so one that waited would wait for ever
        for _ in range(100):
            await work.flood("ada", 1)
            work.now += COST_S / PART
    assert len(work.done) == 100


async def test_users_take_turns_however_many_connections_they_have(
    nursery: trio.Nursery,
) -> None:
    work = Work()
    await begin(nursery, work)
    async with trio.open_nursery() as flooding:
        for _ in range(50):
            flooding.start_soon(work.flood, "eve", 20)
        await trio.lowlevel.checkpoint()
        before = len(work.done)
        await work.flood("ada", 10)
        between = work.done[before:]
        # She asks again after each answer, two steps later if tasks run in that order.
        assert between.count("eve") <= 11 * 2 * (STEP_S / COST_S + 1)
        flooding.cancel_scope.cancel()


async def test_other_tasks_run_between_steps(nursery: trio.Nursery) -> None:
    work = Work()
    await begin(nursery, work)
    longest = 0.0
    async with trio.open_nursery() as flooding:
        for _ in range(50):
            flooding.start_soon(work.flood, "eve", 20)
        while len(work.done) < 900:
            before = work.now
            await trio.lowlevel.checkpoint()
            longest = max(longest, work.now - before)
        flooding.cancel_scope.cancel()
    # Two tasks run in any order: this one may miss a step of the other.
    assert 0 < longest <= 3 * STEP_S


async def test_an_error_that_is_no_connections_ends_the_server() -> None:
    work = Work()

    def broken() -> bool:
        raise AssertionError("a fault of ours")

    with pytest.RaisesGroup(AssertionError):
        async with trio.open_nursery() as serving:
            await begin(serving, work)
            await work.flood("ada", 5)  # from here on messages wait
            serving.start_soon(work.turns.take, "eve", broken)


async def test_errors_are_those_of_the_connection_and_a_lost_one_is_not_handled(
    nursery: trio.Nursery,
) -> None:
    work = Work()
    await begin(nursery, work)

    def malformed() -> bool:
        raise RemoteProtocolError("malformed message")

    with pytest.raises(RemoteProtocolError):
        await work.turns.take("eve", malformed)
    await work.flood("ada", 5)  # from here on messages wait
    with pytest.raises(RemoteProtocolError):
        await work.turns.take("eve", malformed)
    await work.flood("ada", 5)
    async with trio.open_nursery() as flooding:
        flooding.start_soon(work.flood, "ada", 1)
        flooding.start_soon(work.turns.take, "eve", work.message("lost"))
        flooding.cancel_scope.cancel()
    work.now += 1
    await trio.testing.wait_all_tasks_blocked()
    assert "lost" not in work.done
