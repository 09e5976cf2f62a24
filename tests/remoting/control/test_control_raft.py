"""Three servers with real Raft and real TLS on loopback, and clients of them."""

from pathlib import Path

import pytest
import trio
from tests.remoting.control.control_cluster import request
from tests.remoting.control.control_kit import until
from tests.remoting.control.real_pool import RealPool

from gpupool.pool.errors import NoQuorumError
from gpupool.pool.invariants import violations
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.protocol import messages as m


async def test_leases_survive_the_loss_of_a_leader(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pool = RealPool(tmp_path, nursery)
        with trio.fail_after(20):
            await pool.start([1, 1, 1])
            leader = pool.leader()
            follower = pool.others(leader)[0]
            name = f"gpu-{follower.number}"
            async with connect_pool(pool.credentials()) as client:
                await until(lambda: len(client.connections.by_server) == 3)
                # On a busy machine the server may be out of touch for a moment.
                hold = await client.allocate(request(client, servers=(name,)), wait_s=5)
                [session] = await hold.open_session("arrays", "train.py")
                assert session.server == name

                leader.scope.cancel()
                before = trio.current_time()
                other = pool.others(leader)[1]
                wanted = request(client, servers=(f"gpu-{other.number}",))
                second = await client.allocate(wanted, wait_s=5)
                assert trio.current_time() - before < 3
                assert not hold.lost
                await second.release()
                await hold.release()
            await until(lambda: not follower.machine.state.leases)

            await pool.restart(leader)
            await pool.settled()
            states = [server.machine.state for server in pool.servers]
            assert not any(violations(state) for state in states)
        nursery.cancel_scope.cancel()


async def test_a_killed_client_frees_its_memory_at_once(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pool = RealPool(tmp_path, nursery)
        with trio.fail_after(20):
            await pool.start([1, 1, 1])
            async with connect_pool(pool.credentials()) as client:
                hold = await client.allocate(request(client), wait_s=0)
                await hold.open_session("arrays", "train.py")
                state = pool.servers[0].machine.state
                assert state.leases
                before = trio.current_time()
                for connection in list(client.connections.by_server.values()):
                    await connection.aclose()
                await until(lambda: not any(s.machine.state.leases for s in pool.servers))
                # Not by the limit of 10 s for silent clients.
                assert trio.current_time() - before < 5
        nursery.cancel_scope.cancel()


async def test_without_a_majority_everything_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        pool = RealPool(tmp_path, nursery)
        with trio.fail_after(60):
            await pool.start([1, 1, 1])
            async with connect_pool(pool.credentials("root")) as client:
                await until(lambda: len(client.connections.by_server) == 3)
                for server in pool.servers[1:]:
                    server.scope.cancel()
                await trio.sleep(2.5)
                before = trio.current_time()
                with pytest.raises(NoQuorumError, match="majority"):
                    await client.allocate(request(client), wait_s=0)
                with pytest.raises(NoQuorumError, match="gpu-1 is not in touch with a majority"):
                    await client.operate(m.DrainServer("gpu-1", "test"))
                assert trio.current_time() - before < 2
                view = await client.view()
                assert not view.raft.quorum
                assert view.warnings
                for server in pool.servers[1:]:
                    await pool.restart(server)
                hold = await client.allocate(request(client), wait_s=40)
                await hold.release()
        nursery.cancel_scope.cancel()
