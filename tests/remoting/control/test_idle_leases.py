"""Leases that nobody uses, from the host's books to the words that the client hears."""

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, Node, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import UsageError
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool

Clock = trio.testing.MockClock


async def one_hold(pool: Pool, count: int = 1, *, across: bool = False) -> LeaseHandle:
    return await pool.allocate(request(pool, count, idle_timeout_s=60.0, across=across), wait_s=0)


def node_of(cluster: Cluster, server: str) -> Node:
    return next(node for node in cluster.nodes if node.id == server)


async def test_an_idle_lease_ends_after_a_notice(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await one_hold(pool)
        assert hold.granted.idle_timeout_s == 60
        told: list[tuple[float, str]] = []
        start = trio.current_time()
        hold.on_notice = lambda text: told.append((trio.current_time() - start, text))
        reason = await hold.wait_lost()
        assert reason == "it was not used for 1 min, its idle timeout"
        assert 60 <= trio.current_time() - start < 62
        [(told_at, text)] = told
        assert 54 <= told_at < 56
        assert text == "it has not been used for 54 s, and ends in 6 s unless it is"
        await until(lambda: not cluster.granted())


async def test_use_puts_the_end_off(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await one_hold(pool)
        [node] = cluster.nodes
        told: list[str] = []
        hold.on_notice = told.append
        start = trio.current_time()
        for pause_s in (50, 50, 57, 57):
            await trio.sleep(pause_s)
            node.host.use(hold.lease)
        assert not hold.lost
        assert len(told) == 2  # in each of the long pauses
        last_use = trio.current_time() - start
        await hold.wait_lost()
        assert 60 <= trio.current_time() - start - last_use < 62


async def test_a_lease_across_servers_lives_while_one_of_them_is_used(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await one_hold(pool, 2, across=True)
        assert len(hold.servers) == 2
        told: list[str] = []
        hold.on_notice = told.append
        used = node_of(cluster, hold.servers[1])
        for _ in range(4):
            await trio.sleep(40)
            used.host.use(hold.lease)
        assert (hold.lost, told) == ("", [])
        last_use = trio.current_time()
        await hold.wait_lost()
        assert 60 <= trio.current_time() - last_use < 63
        assert len(told) == 1  # though both servers said so
        await until(lambda: not cluster.granted())


async def test_a_session_that_takes_long_to_open_is_use(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    [node] = cluster.nodes
    node.host.open_s = 55.0  # a cold worker on a busy server
    async with cluster.client() as pool:
        hold = await one_hold(pool)
        for _ in range(2):
            await trio.sleep(10)
            await hold.open_session("arrays", "x.py")
        opened_at = trio.current_time()
        await hold.wait_lost()
        assert 59 < trio.current_time() - opened_at < 62


async def test_no_timeout_is_no_end(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        assert hold.granted.idle_timeout_s == 0
        await trio.sleep(500)
        assert not hold.lost


async def test_a_timeout_too_short_to_measure_is_refused(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        for bad in (0.5, -1.0, float("inf"), float("nan")):
            with pytest.raises(UsageError, match="an idle timeout is at least 2 s"):
                await pool.allocate(request(pool, idle_timeout_s=bad), wait_s=0)
