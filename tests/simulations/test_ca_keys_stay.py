"""The last server that has the CA's key stays, so that others can join (seed 10000982)."""

from typing import Any

import pytest

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, Server
from gpupool.remoting.server.reconciler import Reconciler
from gpupool.remoting.server.service_context import ServiceContext
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.simulated_ca import SimulatedCa
from gpupool.simulations.kernel.swarm_options import Options


def _unheard(_ca: SimulatedCa, _peer: ServerId) -> None:
    pass


_report = getattr(Reconciler, "_report")  # noqa: B009 - it is not for others


def _frozen(reconciler: Reconciler, state: PoolState, server: Server) -> None:
    """Report all but whether the server has the keys by now."""
    context: ServiceContext = getattr(reconciler, "_context")  # noqa: B009
    authorities: Any = context.authorities
    own = authorities.has_keys
    authorities.has_keys = lambda: server.has_keys
    _report(reconciler, state, server)
    authorities.has_keys = own


def table(cluster: Cluster) -> PoolState:
    return cluster.environment.checkers.logs.state


def run_for(cluster: Cluster, seconds: float) -> None:
    cluster.scheduler.run_until(cluster.scheduler.now + seconds)


def pool() -> Cluster:
    cluster = Cluster(Options(seed=3, servers=3, clients=0))
    cluster.create()
    while not cluster.complete:
        run_for(cluster, 0.1)
        assert cluster.scheduler.now < 30.0
    run_for(cluster, 2.0)
    return cluster


def holders(cluster: Cluster) -> list[str]:
    """Return the machines with the key, according to the table."""
    machine_of = cluster.environment.machine_of
    return sorted(machine_of[each.id] for each in table(cluster).servers.values() if each.has_keys)


def replaced(cluster: Cluster, name: str) -> bool:
    """Let an operator replace a server; return whether another one has come in its place."""
    before = cluster.environment.machines[name].server
    cluster.replace(name)
    run_for(cluster, 10.0)
    assert cluster.failures.failure is None, cluster.failures.failure
    return before not in table(cluster).servers and cluster.complete


def test_the_last_server_with_the_key_stays_until_another_one_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedCa, "ask_key", _unheard)
        cluster = pool()
        assert holders(cluster) == ["s1"]
        assert not replaced(cluster, "s1")
        assert any("no other server has the key" in str(line) for line in cluster.trace.lines)
        assert replaced(cluster, "s2")
    run_for(cluster, 6.0)
    assert holders(cluster) == ["s1", "s2", "s3"]
    assert replaced(cluster, "s1")
    assert holders(cluster) == ["s1", "s2", "s3"]


def test_servers_of_a_pool_whose_key_is_lost_leave_as_before() -> None:
    cluster = pool()
    for machine in cluster.environment.machines.values():
        machine.authorities.keys.clear()
    run_for(cluster, 2.0)
    assert holders(cluster) == []
    cluster.replace("s1")
    run_for(cluster, 2.0)
    assert len(table(cluster).servers) == 2


def test_a_server_that_joins_anew_orders_its_removal_until_another_one_says_that_it_has_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``gpupool rejoin`` on the server that had the key alone a moment ago."""
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedCa, "ask_key", _unheard)
        cluster = pool()
        machines = cluster.environment.machines
        with monkeypatch.context() as silent:
            silent.setattr(Reconciler, "_report", _frozen)
            machines["s2"].authorities.keys |= machines["s1"].authorities.keys
            former = machines["s1"].server
            cluster.rejoin("s1")
            run_for(cluster, 5.0)
            assert machines["s1"].server != former
            assert former in table(cluster).servers
            assert cluster.replacing
        run_for(cluster, 2.0)
    assert former not in table(cluster).servers
    assert cluster.complete
