"""Mutants of server rules that an audit had not judged: each test fails with its mutant."""

from hashlib import sha256

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, request

from gpupool.pool.errors import LeaseLostError
from gpupool.pool.reconcile import UNATTACHED_MAX_S
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock

TWO_BY_DAY = """
[[window]]
from = "22:20"
to = "23:00"
[window.defaults]
max_gpus = 1
"""


def connection_of(pool: Pool) -> ServerConnection:
    return next(iter(pool.connections.by_server.values()))


async def test_no_session_is_opened_for_a_lease_that_is_ending(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Its workers are being killed: one that began now would be missed, or die at once."""
    cluster = Cluster(nursery)
    await cluster.start([1])
    [node] = cluster.nodes
    node.host.kill_s = 5.0
    async with cluster.client() as pool, cluster.client("root") as root:
        hold = await pool.allocate(request(pool), wait_s=0)
        own = connection_of(pool)
        await hold.open_session("arrays", "train.py")
        await root.operate(m.EndLease(hold.lease, "maintenance"))
        for _ in range(3):
            with pytest.raises(LeaseLostError, match="has ended: maintenance"):
                await own.call(m.OpenSession(hold.lease, "arrays", "train.py"), timeout_s=5)
            await trio.sleep(1)
        assert cluster.state.leases[hold.lease].end_reason, "it is ending all the while"
        assert len(node.host.opened) == 1


async def test_a_grant_whose_client_died_meanwhile_ends_at_once(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Nobody cancels it. Without that it would be held until it counts as left alone."""
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        own, wanted = connection_of(pool), request(pool)
        offered = await own.call(m.Ask(wanted), timeout_s=5)
        assert offered.offer is not None
        best = rank([offered.offer], wanted)[0]
        cluster.log.latency_s = 0.5
        claim = m.Claim(wanted, sha256(b"").digest(), best.partitions, best.incarnations)
        with trio.move_on_after(0.3):
            await own.call(claim, timeout_s=5)
        cluster.unreachable.add("gpu-1")
        await cluster.cut("gpu-1")
        await trio.sleep(2.0)
        assert cluster.state.closed[wanted.id]
        assert not cluster.state.leases
        assert UNATTACHED_MAX_S > 5.0


async def test_offers_are_judged_by_the_time_of_now(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """A window has opened, and nothing was committed since: the table's own time is of before."""
    cluster = Cluster(nursery)
    await cluster.start([2])
    async with cluster.client() as pool, cluster.client("root") as root:
        await root.put_policy(pack_text(TWO_BY_DAY), 0)
        own, both = connection_of(pool), request(pool, 2)
        before = await own.call(m.Ask(both), timeout_s=5)
        assert before.offer is not None
        count = len(cluster.log.entries)
        await trio.sleep(600)
        after = await own.call(m.Ask(both), timeout_s=5)
        assert after.refusal is not None
        assert len(cluster.log.entries) == count
