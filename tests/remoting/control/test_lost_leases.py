"""A client that asks whether its lease is lost: servers answer by their knowledge of it."""

from functools import partial

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import UnreachableError
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock


async def test_a_lease_that_is_held_is_not_lost(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        for _ in range(3):
            assert await hold.check() == ""
        await hold.open_session("arrays", "train.py")


async def test_a_server_that_has_just_died_is_the_reason(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        other = next(n for n in cluster.nodes if n.id == hold.servers[1])
        await cluster.crash(other)
        why = await hold.check()
        assert why.startswith(f"lost server {other.name}")
        assert why == await hold.wait_lost() == await hold.check()


async def test_a_server_says_that_a_lease_has_ended_before_it_ends_its_workers(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    known: list[str] = []
    async with cluster.client() as pool, cluster.client("root") as root:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        await hold.open_session("arrays", "train.py")

        async def look() -> None:
            known.append(await hold.check())

        for node in cluster.nodes:
            node.host.before_kill = look
        await root.operate(m.EndLease(hold.lease, "maintenance"))
        await until(lambda: len(known) == 2)
    assert known == ["maintenance (by root)"] * 2


@pytest.mark.parametrize("watched", [False, True])
async def test_a_silent_server_keeps_nobody_waiting_for_ever(
    autojump_clock: Clock, nursery: trio.Nursery, watched: bool
) -> None:
    """The watcher of the lease gives the server up meanwhile, and that is the answer."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        if watched:
            nursery.start_soon(hold.wait_lost)
        name = hold.server_names()[1]
        await trio.sleep(1)
        cluster.fall_silent(name)
        before = trio.current_time()
        why = await hold.check()
        assert why == (f"lost server {name}: no answer for 4 s" if watched else "")
        assert trio.current_time() - before < 5.5
        await cluster.resume(name)


@pytest.mark.parametrize("ticks", range(4))
async def test_a_call_that_is_given_up_takes_no_lease_with_it(
    autojump_clock: Clock, nursery: trio.Nursery, ticks: int
) -> None:
    """A program that was killed while its session was asked for ended the whole lease.

    A call that was cancelled while it was written closed the connection, on which the lease lives.
    """
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 1), wait_s=0)
        (connection,) = hold.connections().values()
        async with trio.open_nursery() as asking:
            asking.start_soon(partial(connection.call, m.Ping(), timeout_s=9.0))
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            asking.cancel_scope.cancel()
        with pytest.raises(UnreachableError, match="no answer within 0 s"):
            await connection.call(m.Ping(), timeout_s=0.0)
        assert await hold.check() == ""
        assert not connection.closed.is_set()
