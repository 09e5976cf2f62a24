"""Servers that come back with other addresses, and a pair of servers that is cut for long."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from gpupool.pool.model.state import ServerStatus
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import ClusterFaults
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.tools.runner import run
from gpupool.simulations.tools.scenarios import options_of


def run_for(cluster: Cluster, seconds: float) -> None:
    cluster.scheduler.run_until(cluster.scheduler.now + seconds)
    assert cluster.failures.failure is None


def is_whole(cluster: Cluster) -> bool:
    """Return whether a leader's table has all servers, each up, where it is now."""
    leader = cluster.leader_name()
    if leader is None:
        return False
    known = cluster.servers[leader].table.state.servers.values()
    machines = {each.server: each for each in cluster.environment.machines.values()}
    return len(known) == len(machines) and all(
        each.status is ServerStatus.UP and each.address == machines[each.id].address
        for each in known
    )


def pool(servers: int) -> Cluster:
    """Return a pool that is whole, with clients."""
    faults = (("readdress", 1e9),)
    cluster = Cluster(Options(seed=11, servers=servers, clients=6, think_s=0.2, faults=faults))
    cluster.create()
    while not is_whole(cluster):
        run_for(cluster, 0.1)
        assert cluster.scheduler.now < 30.0
    cluster.start_clients()
    run_for(cluster, 5.0)
    return cluster


@pytest.mark.parametrize("draw", range(4))
def test_servers_that_moved_find_each_other_within_30_s(draw: int) -> None:
    cluster = pool(3 + draw % 2 * 2)
    faults, random = ClusterFaults(cluster), Random(draw)
    for _ in range(3):
        faults.readdress(random)
        run_for(cluster, 2.5)
        began = cluster.scheduler.now
        while not is_whole(cluster):
            run_for(cluster, 0.5)
            assert cluster.scheduler.now < began + 30.0


def cut(cluster: Cluster, *pairs: tuple[str, str]) -> None:
    for one, other in pairs:
        cluster.network.block(one, other)
        cluster.network.block(other, one)


def calls_for_votes(cluster: Cluster) -> Counter[str]:
    """Count from now on how often each server asks for votes."""
    found: Counter[str] = Counter()
    for name, process in cluster.servers.items():
        assert process.replicated_log is not None
        core = process.replicated_log.node.core
        before = core._before_election  # pyright: ignore[reportPrivateUsage]

        def asks(name: str = name, before: Callable[[], None] = before) -> None:
            found[name] += 1
            before()

        core.__dict__["_before_election"] = asks
    return found


@pytest.mark.parametrize("servers", [3, 5])
def test_a_cut_pair_costs_the_pool_no_server(servers: int) -> None:
    cluster = pool(servers)
    leader = cluster.leader_name()
    assert leader is not None
    victim = next(name for name in cluster.server_names() if name != leader)
    cut(cluster, (leader, victim))
    calls = calls_for_votes(cluster)
    run_for(cluster, 25.0)
    assert is_whole(cluster)
    assert cluster.leader_name() not in (leader, victim)
    calls.clear()
    for _ in range(40):
        run_for(cluster, 1.0)
        assert is_whole(cluster)
    assert not calls, "all hear a leader"


def test_where_nobody_reaches_more_the_leader_stays_and_votes_are_seldom_asked_for() -> None:
    cluster = pool(4)
    leader = cluster.leader_name()
    assert leader is not None
    others = [name for name in cluster.server_names() if name != leader]
    cut(cluster, (leader, others[0]), (others[1], others[2]))
    run_for(cluster, 35.0)
    calls, now = calls_for_votes(cluster), cluster.leader_name()
    run_for(cluster, 30.0)
    assert cluster.leader_name() == now
    assert 0 < sum(calls.values()) <= 33, "one server has no leader, and asks each 1 to 2 s"


def test_a_server_that_reaches_one_other_alone_asks_for_votes_ever_more_seldom() -> None:
    cluster = pool(5)
    names = cluster.server_names()
    leader = cluster.leader_name()
    lone, other = [name for name in names if name != leader][:2]
    rest = [name for name in names if name not in (lone, other)]
    cut(cluster, *[(one, far) for one in (lone, other) for far in rest])
    run_for(cluster, 20.0)
    calls = calls_for_votes(cluster)
    run_for(cluster, 30.0)
    assert 0 < sum(calls.values()) <= 2 * 33
    assert set(calls) <= {lone, other}


@pytest.mark.parametrize("seed", [10100002])
def test_pools_heal_whatever_addresses_their_servers_get(seed: int) -> None:
    report = run(options_of("moved-addresses", seed, fault_s=20.0))
    assert report.failure is None
