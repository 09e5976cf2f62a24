"""A member that has never been up, and comes up with a program that its pool has left behind."""

import pytest

from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, ServerStatus
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.kernel.swarm_options import Options

LATE = "s3"


def _everybody(_process: ServerProcess, _peer: ServerId) -> bool:
    return True


def _never(_machine: PoolMachine) -> bool:
    return False


def _unheard(_machine: PoolMachine, _value: bool) -> None:
    pass


def table(cluster: Cluster) -> PoolState:
    return cluster.environment.checkers.logs.state


def run_for(cluster: Cluster, seconds: float) -> None:
    cluster.scheduler.run_until(cluster.scheduler.now + seconds)


def status(cluster: Cluster, name: str) -> ServerStatus | None:
    server = table(cluster).servers.get(cluster.environment.machines[name].server)
    return server.status if server is not None else None


def pool_with_an_older_member(version: int = VERSION - 1) -> Cluster:
    """Return a pool of three; the program of one is older, and it was admitted all the same."""
    cluster = Cluster(Options(seed=11, servers=3, clients=6, hold_s=6.0, think_s=0.2))
    cluster.environment.machines[LATE].formats = version
    cluster.create()
    while [status(cluster, each) for each in ("s1", "s2")] != [ServerStatus.UP] * 2:
        if cluster.failures.failure is not None:
            return cluster
        run_for(cluster, 0.1)
        assert cluster.scheduler.now < 30.0
    cluster.start_clients()
    run_for(cluster, 6.0)
    return cluster


def suspended(cluster: Cluster) -> bool:
    """Let an operator suspend a lease; return whether the table then says so."""
    lease = next(each for each in table(cluster).leases.values() if each.held)
    cluster.operator.suspend(lease.id, 20.0)
    run_for(cluster, 2.0)
    return lease.id in table(cluster).leases and table(cluster).leases[lease.id].is_away


def test_a_member_that_is_too_old_holds_nobody_back_and_reads_nothing() -> None:
    cluster = pool_with_an_older_member()
    assert status(cluster, LATE) is ServerStatus.JOINED
    assert table(cluster).formats() == VERSION
    assert suspended(cluster)
    assert cluster.servers[LATE].table.state.index == 0
    run_for(cluster, 5.0)
    assert status(cluster, LATE) is ServerStatus.JOINED
    cluster.environment.machines[LATE].formats = VERSION
    cluster.end_process(cluster.servers[LATE])
    cluster.start_again(LATE)
    run_for(cluster, 5.0)
    assert status(cluster, LATE) is ServerStatus.UP
    assert cluster.complete
    assert cluster.failures.failure is None, cluster.failures.failure


def test_an_older_member_that_is_linked_stops_before_it_misreads_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a link that came up in the moment of the others' last upgrade."""
    monkeypatch.setattr(ServerProcess, "_understands", _everybody)
    cluster = pool_with_an_older_member()
    assert suspended(cluster)
    run_for(cluster, 5.0)
    assert status(cluster, LATE) is ServerStatus.JOINED
    assert any("older than its pool" in line for line in map(str, cluster.trace.lines))
    assert cluster.failures.failure is None, cluster.failures.failure


def test_without_either_rule_the_checker_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProcess, "_understands", _everybody)
    monkeypatch.setattr(PoolMachine, "_is_outdated", property(_never, _unheard))
    cluster = pool_with_an_older_member()
    failure = cluster.failures.failure
    assert failure is not None
    assert failure.checker == "version-known"
