"""Clients and control servers against each other: from a request to a lease and its end."""

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import GIB, Cluster, request
from tests.remoting.control.control_kit import until

from gpupool.pool.errors import (
    DeniedError,
    LeaseLostError,
    NeverFitsError,
    NoQuorumError,
    NotNowError,
    UnreachableError,
)
from gpupool.pool.model import commands
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Incarnation, RequestId
from gpupool.pool.model.state import Placement, TokenKind
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.server_connections import ServerConnection
from gpupool.remoting.client.session_answer import OpenedSession
from gpupool.remoting.program.program_run import lease_text
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.server.reconciler import LaterStartError

Clock = trio.testing.MockClock


async def test_lease_session_and_release(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 2, 2])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, 0.5), wait_s=0)
        assert cluster.granted() == 80 * GIB
        assert len(hold.servers) == 1
        # What is shown where the view is late: servers by their names, in any case.
        text = f"2 x GPU (40G) on {hold.server_names()[0]}, lease {hold.name}"
        assert lease_text(hold, None) == text
        [session] = await hold.open_session("arrays", "train.py")
        assert isinstance(session, OpenedSession)
        assert session.encryption == "tls"
        assert session.address == Address(hold.server_names()[0], 7470)
        assert [device.memory for device in session.devices] == [40 * GIB] * 2
        await hold.release()
        await trio.sleep(0.5)
    assert cluster.granted() == 0
    assert hold.lost == ""


async def test_the_end_of_the_client_frees_within_a_second(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        settings = {"CUDA_AUTO_BOOST": "1", "CUDA_DISABLE_PERF_BOOST": "a b", "LD_PRELOAD": "x"}
        await hold.open_session("arrays", "train.py", None, settings)
        node = next(n for n in cluster.nodes if n.id == hold.servers[0])
        # The server believes no client what its agent should have left out.
        assert node.host.settings == [{"CUDA_AUTO_BOOST": "1"}]
        before = trio.current_time()
        await cluster.cut(node.name)
        reason = await hold.wait_lost()
    assert node.name in reason
    await until(lambda: not cluster.granted())
    assert trio.current_time() - before < 1.0
    assert node.host.killed == [(hold.lease, "its client disconnected")]


@pytest.mark.parametrize("wait_s", [0.0, 10.0])
async def test_never_fits(autojump_clock: Clock, nursery: trio.Nursery, wait_s: float) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 1])
    before = trio.current_time()
    async with cluster.client() as pool:
        with pytest.raises(NeverFitsError, match="gpu-1, has 2 GPUs; with --across there are 3"):
            await pool.allocate(request(pool, 3), wait_s=wait_s)
        with pytest.raises(NeverFitsError, match=r"the largest GPU of the pool has 80\.0 GiB"):
            await pool.allocate(request(pool, 1, 0.0, memory=81 * GIB), wait_s=wait_s)
        with pytest.raises(NeverFitsError, match="no server named gpu-9"):
            await pool.allocate(request(pool, 1, servers=("gpu-9",)), wait_s=wait_s)
        assert trio.current_time() - before < 1


async def test_busy_without_waiting(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool, cluster.client() as other:
        await pool.allocate(request(pool), wait_s=0)
        with pytest.raises(NotNowError, match="1 GPU cannot be had now: gpu-1: 0 of 1 GPUs"):
            await other.allocate(request(other), wait_s=0)
        assert not cluster.state.waiting


async def test_waiting_ends_by_a_hint_and_not_by_the_backoff(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    told: list[str] = []
    async with cluster.client() as pool, cluster.client() as other:
        holds = [await pool.allocate(request(pool), wait_s=0) for _ in range(2)]
        released_at = 0.0

        async def release_later() -> None:
            nonlocal released_at
            await trio.sleep(100)
            released_at = trio.current_time()
            await holds[0].release()

        nursery.start_soon(release_later)
        hold = await other.allocate(request(other), wait_s=None, on_status=told.append)
        assert trio.current_time() - released_at < 0.5
        assert hold.servers == holds[0].servers
    assert told[0].startswith("waiting for 1 GPU, 0 ahead (2 servers: ")


async def test_waiting_is_given_up_in_time(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool, cluster.client() as other:
        await pool.allocate(request(pool), wait_s=0)
        before = trio.current_time()
        with pytest.raises(NotNowError, match="could not be had within"):
            await other.allocate(request(other), wait_s=30)
        assert 30 <= trio.current_time() - before < 31
        assert not cluster.state.waiting  # the place in the line was given back


async def test_a_cancelled_wait_gives_its_place_back(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool, cluster.client() as other:
        await pool.allocate(request(pool), wait_s=0)
        with trio.move_on_after(8):
            await other.allocate(request(other), wait_s=None)
        assert not cluster.state.waiting
        assert trio.current_time() < 20


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_place_is_given_back_by_another_server_than_one_that_cannot(
    number: int, autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool, cluster.client() as other:
        for _ in range(3):
            await pool.allocate(request(pool), wait_s=0)
        with trio.CancelScope() as scope:

            async def give_up() -> None:
                await trio.sleep(8)
                assert cluster.state.waiting
                cluster.cut_off(cluster.nodes[number])
                scope.cancel()

            nursery.start_soon(give_up)
            await other.allocate(request(other), wait_s=None)
        assert not cluster.state.waiting


async def test_one_try_without_a_server_ends(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        await cluster.crash(cluster.nodes[0])
        await trio.sleep(1)
        assert not pool.connections.by_server
        with trio.fail_after(60), pytest.raises(UnreachableError):
            await pool.allocate(request(pool), wait_s=0)


@pytest.mark.parametrize("fault", ["refuse", "lose", "silence"])
async def test_leader_loss_during_a_claim(
    autojump_clock: Clock, nursery: trio.Nursery, fault: str
) -> None:
    """The server proposes the grant again; the client sees nothing of it but the delay."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        cluster.log.faults.append(fault)
        before = trio.current_time()
        hold = await pool.allocate(request(pool), wait_s=0)
        assert trio.current_time() - before < 1.5
        assert list(cluster.state.leases) == [hold.lease]


@pytest.mark.parametrize("fault", ["lose", "silence"])
async def test_uncertain_claims_are_cancelled_before_another_is_made(
    autojump_clock: Clock, nursery: trio.Nursery, fault: str
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        cluster.log.faults.extend([fault] * 2)
        wanted = request(pool)
        hold = await pool.allocate(wanted, wait_s=0)
        assert hold.granted.request.id != wanted.id
        await trio.sleep(2)
        assert list(cluster.state.leases) == [hold.lease]
        assert wanted.id in cluster.state.closed


async def test_a_claim_whose_server_dies_is_cancelled_elsewhere(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        cluster.log.latency_s = 0.2
        wanted = request(pool)

        async def crash() -> None:
            await trio.sleep(0.1)
            victim = next(
                n
                for n in cluster.nodes
                if any(c.pending_calls for c in n.server.controller.context.clients.welcomed())
            )
            await cluster.crash(victim)

        nursery.start_soon(crash)
        hold = await pool.allocate(wanted, wait_s=0)
        assert wanted.id in cluster.state.closed
        assert list(cluster.state.leases) == [hold.lease]


async def test_a_grant_that_nobody_waits_for_is_released_at_once(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    cluster.log.latency_s = 0.5
    async with cluster.client() as pool:
        with trio.move_on_after(0.3):
            await pool.allocate(request(pool), wait_s=0)
        await trio.sleep(3)
        assert cluster.granted() == 0
    async with cluster.client() as pool, trio.open_nursery() as inner:
        inner.start_soon(pool.allocate, request(pool))
        await trio.sleep(0.3)
        await cluster.cut("gpu-1")
        await trio.sleep(0.1)
        inner.cancel_scope.cancel()
    await trio.sleep(3)
    assert cluster.granted() == 0
    assert not cluster.state.leases


async def test_no_cancel_no_next_offer(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    """While the pool has no leader, an uncertain claim is followed by nothing but words."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool:
        cluster.log.faults.append("lose")
        count = len(cluster.log.entries)

        async def lose_leader() -> None:
            await trio.sleep(0.1)
            cluster.log.leaderless = True

        nursery.start_soon(lose_leader)
        with pytest.raises(NoQuorumError, match="its cancel could not be confirmed"):
            await pool.allocate(request(pool), wait_s=0)
        assert len(cluster.log.entries) == count


async def test_a_grant_after_a_cancel_that_could_not_be_confirmed_ends_by_itself(
    autojump_clock: Clock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swarm seed 20101: the client lives on, and with it the connection that holds the lease."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    call = ServerConnection.call

    async def call_late(
        connection: ServerConnection, message: m.CallFor[m.Answer], *, timeout_s: float
    ) -> m.Message:
        answer = await call(connection, message, timeout_s=timeout_s)
        if isinstance(message, m.Claim):
            cluster.log.leaderless = True
            raise UnreachableError("no answer in time")
        return answer

    async with cluster.client() as pool:
        monkeypatch.setattr(ServerConnection, "call", call_late)
        with pytest.raises(NoQuorumError, match="its cancel could not be confirmed"):
            await pool.allocate(request(pool), wait_s=0)
        monkeypatch.undo()
        assert cluster.state.leases, "it was granted after all"
        cluster.log.leaderless = False
        await trio.sleep(3)
        assert not cluster.state.leases
        await pool.allocate(request(pool), wait_s=10)


async def test_a_minority_refuses_within_two_seconds(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client("root", servers=["gpu-1"]) as pool:
        held = await pool.allocate(request(pool, fraction=0.5, servers=("gpu-1",)), wait_s=0)
        cluster.unreachable = {"gpu-2", "gpu-3"}
        await cluster.cut("gpu-2")
        await cluster.cut("gpu-3")
        cluster.cut_off(cluster.nodes[0])
        for after_s in (0.0, 1.0, 30.0):
            await trio.sleep(after_s)
            before = trio.current_time()
            with pytest.raises(NoQuorumError) as caught:
                await pool.allocate(request(pool, fraction=0.1), wait_s=0)
            if after_s:
                assert trio.current_time() - before < 2.0
                assert "majority" in str(caught.value)
            with pytest.raises(NoQuorumError, match="gpu-1 is not in touch with a majority"):
                await pool.create_token(TokenKind.USER, "eve", 60)
        with pytest.raises(NoQuorumError, match="gpu-1 is not in touch"):
            await held.open_session("arrays", "train.py")
        view = await pool.view()
        assert not view.raft.quorum
        assert view.raft.majority_age_s > 30
        assert not held.lost  # what runs goes on
        cluster.unreachable.clear()
        cluster.heal(cluster.nodes[0])
        await pool.allocate(request(pool), wait_s=10)


async def test_one_client_holds_several_leases_at_once(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 2])
    async with cluster.client() as pool:
        holds: list[LeaseHandle] = []

        async def take(fraction: float, placement: Placement) -> None:
            wanted = request(pool, 1, fraction, placement=placement)
            holds.append(await pool.allocate(wanted, wait_s=10))

        # Halves first: claimed beside them, quarters may leave two GPUs with a quarter each.
        async with trio.open_nursery() as inner:
            for _ in range(4):
                inner.start_soon(take, 0.5, Placement.PACK)
        async with trio.open_nursery() as inner:
            for _ in range(4):
                inner.start_soon(take, 0.25, Placement.SPREAD)
                inner.start_soon(take, 0.25, Placement.NEAR)
        assert len({hold.lease for hold in holds}) == 12
        assert cluster.granted() == 4 * 80 * GIB
        for hold in holds:
            await hold.release()
        await trio.sleep(0.5)
        assert cluster.granted() == 0


async def test_across_servers(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 2, 1])
    async with cluster.client() as pool:
        with pytest.raises(NeverFitsError):
            await pool.allocate(request(pool, 4), wait_s=0)
        hold = await pool.allocate(request(pool, 4, across=True), wait_s=0)
        assert len(hold.servers) == 2
        sessions = await hold.open_session("arrays", "train.py")
        assert [each.server for each in sessions] == list(hold.server_names())
        await hold.release()
        await trio.sleep(0.5)
        assert cluster.granted() == 0
        with pytest.raises(NeverFitsError, match=r"all servers together have 5 GPU"):
            await pool.allocate(request(pool, 6, across=True), wait_s=0)


async def test_across_does_without_a_server_that_does_not_attach(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2, 2, 2])
    async with cluster.client() as pool:
        await trio.sleep(0.5)
        bad = cluster.nodes[1]
        cluster.cut_off(bad)  # it offers for two seconds more, and never learns of the lease
        before = trio.current_time()
        hold = await pool.allocate(request(pool, 4, across=True), wait_s=20)
        assert bad.id not in hold.servers
        assert trio.current_time() - before < 10
        await trio.sleep(0.5)
        assert cluster.granted() == sum(p.memory for p in hold.partitions) + sum(
            p.memory for lease in cluster.state.leases.values() if lease.id != hold.lease
            for p in lease.partitions if p.server == bad.id
        )  # fmt: skip


async def test_losing_one_server_of_an_across_lease_ends_it(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        other = next(n for n in cluster.nodes if n.id == hold.servers[1])
        await cluster.crash(other)
        assert "lost server" in await hold.wait_lost()
        with pytest.raises(LeaseLostError):
            await hold.open_session("arrays", "train.py")
        await hold.release()
        await trio.sleep(30)
        # Its part stays charged on the server that is gone, and nowhere else.
        assert cluster.granted() == 80 * GIB


@pytest.mark.parametrize(("hears", "speaks"), [(False, False), (True, False), (False, True)])
async def test_a_server_that_falls_silent_is_lost_within_5_s(
    autojump_clock: Clock, nursery: trio.Nursery, hears: bool, speaks: bool
) -> None:
    """In either direction that the network cuts; and a server's actions while it stands still."""
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool, 2, across=True), wait_s=0)
        ended: list[float] = []

        async def wait() -> None:
            await hold.wait_lost()
            ended.append(trio.current_time())

        nursery.start_soon(wait)
        await trio.sleep(60.3)
        assert not ended
        name, before = hold.server_names()[1], trio.current_time()
        cluster.fall_silent(name, hears=hears, speaks=speaks)
        await until(lambda: ended)
        assert 3 < ended[0] - before < 4.01
        assert hold.lost == f"lost server {name}: no answer for 4 s"


async def test_a_server_may_stand_still_for_3_s_and_a_client_for_a_minute(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        nursery.start_soon(hold.wait_lost)
        for tenths in range(20, 30):
            cluster.fall_silent(node := hold.server_names()[0])
            await trio.sleep(tenths / 10 + 0.2)
            await cluster.resume(node)
            await trio.sleep(tenths / 10)
        assert not hold.lost
        autojump_clock.jump(
            60
        )  # as for a process that was stopped: all its timers are over at once
        await trio.sleep(10)
        assert not hold.lost


async def test_a_restarted_server_frees_what_it_held(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1, 1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        node = next(n for n in cluster.nodes if n.id == hold.servers[0])
        await cluster.crash(node)
        await hold.wait_lost()
        await trio.sleep(15)
        assert cluster.granted() == 80 * GIB
        cluster.nodes.remove(node)
        await cluster.add(int(node.id, 16), 1, incarnation=2)
        await trio.sleep(1)
        assert cluster.granted() == 0


async def test_a_server_stops_when_the_pool_knows_a_later_start_of_it(
    autojump_clock: Clock,
) -> None:
    """Seed 56: a copy of a server was taken for its restart, and the original waited for ever."""

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(nursery)
            await cluster.start([1, 1, 1])
            copy = cluster.state.servers[cluster.nodes[1].id]
            gpus = tuple(copy.gpus.values())
            later = Incarnation(2)
            address = "elsewhere:7470"
            cluster.commit(
                commands.ServerUp(copy.id, later, address, "", "", "", gpus, formats=VERSION)
            )
            await trio.sleep(5)

    with pytest.raises(BaseExceptionGroup) as raised:
        await live()
    assert raised.group_contains(LaterStartError, match="start 2 at elsewhere:7470")


async def test_an_operator_ends_a_lease(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    async with cluster.client() as pool, cluster.client("root") as root:
        hold = await pool.allocate(request(pool), wait_s=0)
        await root.operate(m.EndLease(hold.lease, "maintenance"))
        assert await hold.wait_lost() == "maintenance (by root)"
        await trio.sleep(0.5)
        assert cluster.granted() == 0


async def test_unused_leases_end(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    """A grant without a client's connection, as after a crash between claim and answer."""
    cluster = Cluster(nursery)
    await cluster.start([1])
    async with cluster.client() as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        lease = cluster.state.leases[hold.lease]
        await hold.release()
        await trio.sleep(1)
        orphan = request(pool)
        cluster.commit(
            commands.Grant(
                orphan,
                "ada",
                lease.token,
                lease.ticket_hash,
                lease.partitions,
                {s.id: s.incarnation for s in cluster.state.servers.values()},
            )
        )
        assert cluster.granted()
        await trio.sleep(11)
        assert not cluster.granted()


async def test_the_oldest_waiter_goes_first(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    """A request for both GPUs is not starved by a stream of requests for one."""
    cluster = Cluster(nursery)
    await cluster.start([2], users=["ada", "bob"])
    done: list[float] = []

    async def take_one_after_another() -> None:
        async with cluster.client("bob") as pool:
            while not done:
                async with await pool.allocate(request(pool)):
                    await trio.sleep(7)

    async def want_both() -> None:
        async with cluster.client("ada") as pool:
            await trio.sleep(5)
            hold = await pool.allocate(request(pool, 2))
            done.append(trio.current_time())
            await hold.release()

    async with trio.open_nursery() as inner:
        for delay in (0.0, 3.5):
            await trio.sleep(delay)
            inner.start_soon(take_one_after_another)
        inner.start_soon(want_both)
    assert done[0] < 100


async def test_request_ids_of_others_are_of_no_use(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1], users=["ada", "eve"])
    async with cluster.client("ada") as ada, cluster.client("eve") as eve:
        hold = await ada.allocate(request(ada), wait_s=0)
        connection = next(iter(eve.connections.by_server.values()))
        with pytest.raises(DeniedError, match="not yours"):
            await connection.call(m.Attach(hold.lease, bytes(32)), timeout_s=5)
        with pytest.raises(DeniedError, match="request is another user's"):
            await connection.call(
                m.Cancel(RequestId(hold.granted.request.id), "mine now"), timeout_s=5
            )
        with pytest.raises(DeniedError, match="belongs to ada"):
            await eve.operate(m.EndLease(hold.lease, "mine now"))
        with pytest.raises(DeniedError, match="operator"):
            await eve.operate(m.DrainServer("gpu-1", "mine now"))
        assert not hold.lost


async def test_unreachable_pool(autojump_clock: Clock, nursery: trio.Nursery) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1, 1])
    cluster.unreachable = {"gpu-1", "gpu-2"}
    with pytest.raises(UnreachableError, match="connection refused; tried gpu-1:7470, gpu-2:7470"):
        async with cluster.client():
            pass


@pytest.mark.long
async def test_twenty_clients_race_for_seven_slots(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([3, 2, 2])
    hold_s = 2.0
    waits: list[float] = []
    held = most = 0

    async def one_client() -> None:
        nonlocal held, most
        async with cluster.client() as pool:
            for _ in range(5):
                before = trio.current_time()
                async with await pool.allocate(request(pool)):
                    waits.append(trio.current_time() - before)
                    held += 1
                    most = max(most, held)
                    assert held <= 7
                    await trio.sleep(hold_s)
                    held -= 1

    before = trio.current_time()
    async with trio.open_nursery() as inner:
        for _ in range(20):
            inner.start_soon(one_client)
    waits.sort()
    assert most == 7
    assert len(waits) == 100
    assert waits[98] <= 3 * hold_s + 5
    # Every slot is in use nearly all the time.
    assert trio.current_time() - before < 1.25 * 100 * hold_s / 7


@pytest.mark.long
async def test_more_servers_are_asked_when_the_first_have_no_room(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """A client connects to 32 servers at first, and to more when these have nothing for it."""
    cluster = Cluster(nursery)
    await cluster.start([1] * 40)
    async with cluster.client("root", servers=["gpu-1"]) as pool:
        await trio.sleep(1)
        near = list(pool.connections.by_server)
        assert len(near) == 32
        for server in near:
            await pool.operate(m.DrainServer(server, "full"))
        before = trio.current_time()
        report: list[str] = []
        hold = await pool.allocate(request(pool), wait_s=0, on_choice=report.extend)
        assert hold.servers[0] not in near
        assert trio.current_time() - before < 2
        [name] = hold.server_names()
        assert report[0].startswith(f"{name}: chosen: 0.0 GiB left over, 0% of the server granted")
        assert "gpu-1: busy: grants nothing now: full" in report
    async with cluster.client("root", servers=["gpu-1"]) as pool:
        only = (parse_filter(f"server.name = {name}"),)
        hold = await pool.allocate(request(pool, filters=only), wait_s=5)
        assert hold.server_names() == (name,)
