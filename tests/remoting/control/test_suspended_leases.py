"""Suspended leases over a whole cluster in virtual time: order, let go, take again, tell."""

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster, Node, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import (
    DeniedError,
    GpupoolError,
    NotNowError,
    UnknownNameError,
    UsageError,
)
from gpupool.pool.host_suspension import SuspensionPhase
from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.protocol import messages as m

Clock = trio.testing.MockClock


async def state_of(pool: Pool, lease: LeaseId) -> str:
    return next((each.state for each in (await pool.view()).leases if each.id == lease), "")


async def until_state(pool: Pool, lease: LeaseId, state: str) -> None:
    with trio.fail_after(10):
        while await state_of(pool, lease) != state:  # noqa: ASYNC110 - views have no event
            await trio.sleep(0.05)


def phases(nodes: list[Node], lease: LeaseId) -> list[SuspensionPhase]:
    return [node.host.suspensions()[lease].phase for node in nodes]


async def refused(asking: Pool, order: m.Order, error: type[GpupoolError]) -> str:
    with pytest.raises(error) as found:
        await asking.operate(order)
    return str(found.value)


async def test_others_get_the_gpus_of_a_suspended_lease_and_it_comes_back(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1], users=("ada", "bob"))
    notices: list[str] = []
    async with cluster.client() as pool, cluster.client("bob") as other:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        hold.on_notice = notices.append
        await hold.open_session("arrays", "train.py")
        nursery.start_soon(hold.wait_lost)
        await pool.operate(m.SuspendLease(hold.lease, "for bob"))
        await until_state(pool, hold.lease, "suspended")
        assert phases(cluster.nodes, hold.lease) == [SuspensionPhase.SUSPENDED] * 2
        taken = await other.allocate(request(other, 2, across=True), wait_s=0)
        said = await pool.operate(m.ResumeLease(hold.lease))
        assert said.startswith(f"lease {hold.lease:04x}: it goes on when there is room: GPU 0 of")
        await trio.sleep(3)
        assert await state_of(pool, hold.lease) == "suspended"
        await taken.release()
        await until_state(pool, hold.lease, "held")
        assert phases(cluster.nodes, hold.lease) == [SuspensionPhase.RUNNING] * 2
        await until(lambda: len(notices) == 2)
        assert notices == ["it is suspended by ada: for bob; its calls wait", "it goes on"]
        assert all(node.host.workers[hold.lease] for node in cluster.nodes)


async def test_connections_that_are_gone_are_not_noted_while_it_is_suspended(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """A suspension may last for days, and clients connect anew."""
    cluster = Cluster(nursery)
    await cluster.start([1])
    (node,) = cluster.nodes
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        await pool.operate(m.SuspendLease(hold.lease, "for bob"))
        await until_state(pool, hold.lease, "suspended")
        attach = m.Attach(hold.lease, hold._ticket)  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            async with cluster.client() as other:
                (connection,) = other.connections.by_server.values()
                assert await connection.call(attach, timeout_s=2) == m.Done()
                await trio.sleep(2)
        await trio.sleep(2)
        leases = node.server.controller._leases  # pyright: ignore[reportPrivateUsage]
        assert len(leases._told_of_suspension) == 1  # pyright: ignore[reportPrivateUsage]


async def test_a_server_that_cannot_suspend_it_lets_all_go_on(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool, cluster.client("root") as root:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        cluster.nodes[1].host.refuses = "its GPU is in MIG mode"
        await root.operate(m.SuspendLease(hold.lease, ""))
        await trio.sleep(3)
        [lease] = (await pool.view()).leases
        assert (lease.state, lease.not_suspended) == ("held", "its GPU is in MIG mode")
        assert phases(cluster.nodes, hold.lease) == [SuspensionPhase.RUNNING] * 2


async def test_a_suspended_lease_ends_as_any_other(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool, cluster.client("root") as root:
        for end in ("release", "operator"):
            hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
            await hold.open_session("arrays", "train.py")
            await pool.operate(m.SuspendLease(hold.lease, ""))
            await until_state(pool, hold.lease, "suspended")
            if end == "release":
                await hold.release()
            else:
                await root.operate(m.EndLease(hold.lease, "maintenance"))
            await until_state(pool, hold.lease, "")
            assert not any(node.host.workers for node in cluster.nodes)


async def test_who_may_suspend_what(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1], users=("ada", "bob"))
    async with cluster.client() as pool, cluster.client("bob") as other:
        hold = await pool.allocate(request(pool, 1), wait_s=0)

        order = m.SuspendLease(hold.lease, "")
        assert "belongs to ada" in await refused(other, order, DeniedError)
        unknown = m.SuspendLease(LeaseId(1), "")
        assert "has no lease" in await refused(pool, unknown, UnknownNameError)
        said = await pool.operate(m.ResumeLease(hold.lease))
        assert said == f"lease {hold.lease:04x}: it is not suspended"
        await pool.operate(order)
        said = await pool.operate(order)
        assert said == f"lease {hold.lease:04x}: it is suspended already"


async def test_a_session_of_a_suspended_lease_waits(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    opened: list[str] = []
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 1), wait_s=0)
        await pool.operate(m.SuspendLease(hold.lease, ""))
        await until_state(pool, hold.lease, "suspended")

        async def open_one(handle: LeaseHandle) -> None:
            await handle.open_session("arrays", "train.py")
            opened.append("session")

        nursery.start_soon(open_one, hold)
        await trio.sleep(50)
        assert not opened
        await pool.operate(m.ResumeLease(hold.lease))
        await until(lambda: len(opened) == 1)


async def test_a_lease_is_moved_to_another_gpu_of_its_server(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 2], users=("ada", "bob"))
    async with cluster.client() as pool, cluster.client("bob") as other:
        hold = await pool.allocate(request(pool, 1), wait_s=0)
        notices: list[str] = []
        hold.on_notice = notices.append
        nursery.start_soon(hold.wait_lost)
        [part] = hold.partitions
        node = next(each for each in cluster.nodes if each.id == part.server)
        gpus = [gpu.id for gpu in node.host.devices]
        [target] = [gpu for gpu in gpus if gpu != part.gpu]
        order = m.MoveLease(hold.lease, part.server, (), (target,))
        assert "belongs to ada" in await refused(other, order, DeniedError)
        too_many = m.MoveLease(hold.lease, part.server, (target,) * 257)
        assert "at most 256 GPUs" in await refused(pool, too_many, UsageError)
        said = await pool.operate(order)
        assert said.startswith(f"lease {hold.lease:04x}: it is being moved from GPU ")
        await until_state(pool, hold.lease, "held")
        assert node.host.moved == [(hold.lease, {part.gpu: target})]
        [lease] = (await pool.view()).leases
        assert [each.gpu for each in lease.partitions] == [target]
        # A session that is opened now is one on the other GPU.
        await hold.open_session("arrays", "train.py")
        node.host.refuses = "its GPU is in MIG mode"
        await pool.operate(m.MoveLease(hold.lease, part.server, (), (part.gpu,)))
        await trio.sleep(3)
        [lease] = (await pool.view()).leases
        assert (lease.state, lease.not_suspended) == ("held", "its GPU is in MIG mode")
        assert [each.gpu for each in lease.partitions] == [target]
        assert lease.not_moved == lease.not_suspended
        assert [event.kind for event in (await pool.view()).events][-2:] == ["not-moved", "resumed"]
        here, there = (f"GPU {gpus.index(each)} of {node.name}" for each in (part.gpu, target))
        assert notices == [
            f"it is suspended by ada: to move it from {here[:5]} to {there}; its calls wait",
            f"it goes on with {there}",
            f"it is suspended by ada: to move it from {there[:5]} to {here}; its calls wait",
            f"it could not be moved (its GPU is in MIG mode), and goes on with {there}",
        ]


async def test_an_order_that_is_refused_says_where_the_lease_is(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 1), wait_s=0)
        [part] = hold.partitions
        name, order = f"lease {hold.lease:04x}", m.MoveLease(hold.lease, part.server)
        said = await refused(pool, order, NotNowError)
        assert said.startswith(f"{name} was not moved, and runs on with GPU 0 of ")
        await pool.operate(m.SuspendLease(hold.lease, ""))
        await until_state(pool, hold.lease, "suspended")
        said = await refused(pool, order, NotNowError)
        what = f"{name} was not moved, and stays suspended"
        assert said.startswith(f"{what}: no other GPU of ")


async def test_a_suspended_lease_goes_on_with_another_gpu(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2], users=("ada", "bob"))
    async with cluster.client() as pool, cluster.client("bob") as other:
        hold = await pool.allocate(request(pool, 1), wait_s=0)
        [part] = hold.partitions
        [node] = cluster.nodes
        [target] = [gpu.id for gpu in node.host.devices if gpu.id != part.gpu]
        notices: list[str] = []
        hold.on_notice = notices.append
        nursery.start_soon(hold.wait_lost)
        await pool.operate(m.SuspendLease(hold.lease, ""))
        await until_state(pool, hold.lease, "suspended")
        order = m.MoveLease(hold.lease, part.server, (), (target,))
        said = await pool.operate(order)
        assert said.startswith(f"lease {hold.lease:04x}: it is resumed, and moved from GPU ")
        await until_state(pool, hold.lease, "held")
        assert node.host.moved == [(hold.lease, {part.gpu: target})]
        [lease] = (await pool.view()).leases
        assert [each.gpu for each in lease.partitions] == [target]
        where = f"GPU {[gpu.id for gpu in node.host.devices].index(target)}"
        assert notices == [
            "it is suspended by ada; its calls wait",
            f"it goes on with {where} of {node.name}",
        ]
        await other.allocate(request(other, 1), wait_s=0)  # the GPU that it had
