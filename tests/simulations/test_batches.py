"""A whole pool in which commands end few leases each: they follow each other at once."""

import pytest

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions import leases
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.kernel.swarm_options import Options

AT_ONCE_S = 0.4
"""For half a dozen commits, one after the other."""


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE_MAX", 1)


def table(cluster: Cluster) -> PoolState:
    return cluster.environment.checkers.logs.state


def run_for(cluster: Cluster, seconds: float) -> None:
    cluster.scheduler.run_until(cluster.scheduler.now + seconds)


def busy_pool() -> Cluster:
    """Return a pool of clients that hold leases for long, a tenth of a GPU each or more."""
    cluster = Cluster(Options(seed=5, servers=3, clients=20, gpus=4, hold_s=60.0, think_s=0.1))
    cluster.create()
    while not cluster.complete:
        run_for(cluster, 0.1)
    cluster.start_clients()
    run_for(cluster, 5.0)
    return cluster


def busiest(cluster: Cluster) -> ServerId:
    state = table(cluster)
    return max(state.servers, key=lambda each: len(state.leases.at(each)))


def test_the_leases_of_a_token_end_one_command_after_the_other() -> None:
    cluster = busy_pool()
    leases = table(cluster).leases.values()
    tokens = [lease.token for lease in leases]
    token = max(sorted(set(tokens)), key=tokens.count)
    mine = {lease.id for lease in leases if lease.token == token}
    assert len(mine) >= 4
    cluster.operator.revoke(token)
    run_for(cluster, AT_ONCE_S)
    state = table(cluster)
    assert state.tokens[token].revoked_at
    assert state.revoking == ()
    assert not any(state.leases[each].held for each in mine if each in state.leases)
    assert cluster.failures.failure is None, cluster.failures.failure


def test_a_server_that_starts_again_frees_its_former_leases_one_after_the_other() -> None:
    cluster = busy_pool()
    server = busiest(cluster)
    former = set(table(cluster).leases.at(server))
    assert len(former) >= 4
    name = next(n for n, each in cluster.environment.machines.items() if each.server == server)
    before = table(cluster).servers[server].incarnation
    cluster.end_process(cluster.servers[name])
    cluster.start_again(name)
    while table(cluster).servers[server].incarnation == before:
        run_for(cluster, 0.05)
    run_for(cluster, AT_ONCE_S)
    state = table(cluster)
    assert not state.servers[server].freeing
    assert not former & set(state.leases.at(server))
    assert cluster.failures.failure is None, cluster.failures.failure


def test_a_server_that_is_removed_goes_with_its_last_lease() -> None:
    cluster = busy_pool()
    server = busiest(cluster)
    assert len(table(cluster).leases.at(server)) >= 4
    confirmed: list[bool] = []
    cluster.operator.remove(server, confirmed.append)
    run_for(cluster, AT_ONCE_S)
    assert confirmed == [True]
    assert server not in table(cluster).servers
    assert not table(cluster).leases.at(server)
    assert cluster.failures.failure is None, cluster.failures.failure
