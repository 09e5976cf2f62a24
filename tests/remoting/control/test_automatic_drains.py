"""A server drains its failing GPU, and a person's undrain holds, however slow the leader is."""

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, FakeReplicatedLog
from tests.remoting.control.control_kit import until

from gpupool.pool.model.commands import unwrap
from gpupool.pool.model.ids import Plain
from gpupool.pool.ports import NotCommitted, Outcome, Refusal
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock


async def test_an_undrain_holds_though_the_leader_refused_the_time_of_the_sign(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 710287 and 710587: the drain had the table's time, and its sign a later onset."""
    cluster = Cluster(nursery)
    await cluster.start([2])
    [node] = cluster.nodes
    gpu = next(iter(cluster.state.servers[node.id].gpus))
    propose, agrees_at = FakeReplicatedLog.propose, trio.current_time() + 1.0

    async def refuse_ahead(log: FakeReplicatedLog, command: Plain, *, timeout_s: float) -> Outcome:
        if trio.current_time() < agrees_at and unwrap(command).at > log.machine.state.now:
            return NotCommitted("its time is ahead", Refusal.CLOCK)
        return await propose(log, command, timeout_s=timeout_s)

    def is_drained() -> bool:
        return bool(cluster.state.servers[node.id].gpus[gpu].drain_reason)

    monkeypatch.setattr(FakeReplicatedLog, "propose", refuse_ahead)
    await trio.sleep(0.3)
    node.server.controller.context.me.checks.signs = {(gpu, "thermal"): "at 96 C"}
    async with cluster.client("root") as root:
        await until(is_drained)
        await root.operate(m.DrainGpu("gpu-1", "0", None))
        await trio.sleep(3)
        assert not is_drained()
        node.server.controller.context.me.checks.signs = {}
        await trio.sleep(1)
        node.server.controller.context.me.checks.signs = {(gpu, "thermal"): "at 97 C"}
        await until(is_drained)
