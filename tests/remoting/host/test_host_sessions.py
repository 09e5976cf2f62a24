"""Sessions of a host with real worker processes: opened, connected, bounded, counted."""

import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from host_kit import GIB, SERVER, HostKit, MakeHost, unix_address, until

from gpupool.pool.errors import AuthenticationError, DeniedError, GpupoolError
from gpupool.pool.fair_access import UserBound
from gpupool.pool.model.ids import GpuId, LeaseId, TokenId
from gpupool.pool.model.state import Partition
from gpupool.remoting.host import unix_listener
from gpupool.remoting.host.host_parts import HostLimits
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.worker_handle import WorkerState
from gpupool.remoting.protocol import handshake
from gpupool.remoting.protocol.sessions import SessionInfo
from gpupool.remoting.transport.data_connection import SessionAddress

TcpPair = Callable[[], tuple[socket.socket, socket.socket]]


class TcpFront:
    """Stands for the control server: accepts on TCP and hands over the accepted connections."""

    def __init__(self, kit: HostKit, session: bytes) -> None:
        self.kit = kit
        self.session = session
        self.listener = socket.create_server(("127.0.0.1", 0))

    async def run(self) -> None:
        listening = trio.socket.from_stdlib_socket(self.listener)
        while True:
            accepted, _address = await listening.accept()
            own = socket.socket(fileno=os.dup(accepted.fileno()))
            accepted.close()
            await self.kit.host.hand_over(self.session, own)

    def address(self, info: SessionInfo, encryption: str) -> SessionAddress:
        return SessionAddress(
            info.session,
            info.ticket,
            info.certificate_sha256,
            address=self.listener.getsockname(),
            encryption=encryption,
        )


async def tcp_front(kit: HostKit) -> tuple[TcpFront, SessionInfo]:
    info = await kit.open(kit.lease())
    front = TcpFront(kit, info.session)
    kit.closers.append(front.listener.close)
    kit.nursery.start_soon(front.run)
    return front, info


@pytest.mark.long
async def test_openings_that_are_cancelled_leave_one_spare(make_host: MakeHost) -> None:
    """A client that hangs up while its worker starts gives it back, and no spares add up."""
    kit = await make_host(warm_workers=1)
    workers = kit.host.worker_pool.workers
    for _ in range(3):
        async with trio.open_nursery() as clients:
            for number in range(2):
                clients.start_soon(kit.open, kit.lease(number + 1))
            await until(lambda: sum(worker.claimed for worker in workers.values()) == 2)
            assert not all(w.ready.is_set() for w in workers.values())
            clients.cancel_scope.cancel()
    await until(lambda: len(workers) == 1)
    (spare,) = workers.values()
    info = await kit.open(kit.lease())
    assert kit.worker_of(info) is spare


async def test_session_opens_with_a_warm_spare(make_host: MakeHost) -> None:
    kit = await make_host(warm_workers=1)
    spare = await kit.warm()
    info = await kit.open(kit.lease())
    assert kit.worker_of(info) is spare
    assert len(info.session) == 16
    assert len(info.ticket) == 32
    assert len(info.certificate_sha256) == 32
    (device,) = info.devices
    assert (device.index, device.memory, device.emulated) == (0, GIB, True)
    assert device.uuid == kit.host.gpus()[0].id
    assert await kit.warm() is not spare  # the next spare follows by itself


@pytest.mark.long
async def test_calls_reach_the_door_over_the_unix_socket(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease(gpus=2))
    assert client.stream.transport == "unix"
    payload = os.urandom(3 << 20)
    assert await client.ask(b"e", payload) == payload
    devices = (await client.ask(b"d")).decode()
    assert devices.count("DeviceSpec(") == 2
    assert f"memory={GIB}, emulated=True, ordinal=0" in devices
    assert worker.state is WorkerState.CONNECTED
    assert not kit.host.knows_session(worker.session.id)
    await client.ask(b"l", b"hello from the door")
    await kit.logged("lease 7f3a: hello from the door")


async def test_calls_reach_the_door_over_tls(make_host: MakeHost) -> None:
    kit = await make_host()
    front, info = await tcp_front(kit)
    client = await kit.dial(front.address(info, "tls"))
    assert client.stream.transport == "tls"
    payload = os.urandom(3 << 20)
    assert await client.ask(b"e", payload) == payload
    client.stream.close()
    await kit.worker_of(info).ended.wait()


@pytest.mark.long
async def test_plain_tcp_needs_the_pools_consent(make_host: MakeHost) -> None:
    policy = ["tls"]

    def encryption_of(_lease: LeaseId) -> str:
        return policy[0]

    kit = await make_host(data_encryption=encryption_of)
    front, info = await tcp_front(kit)
    with pytest.raises(AuthenticationError):
        await kit.dial(front.address(info, "off"))
    await kit.logged("it is not encrypted")
    policy[0] = "off"
    client = await kit.dial(front.address(info, "off"))
    assert client.stream.transport == "tcp"
    assert await client.ask(b"e", b"x") == b"x"


@pytest.mark.parametrize("encryption", ["tls", pytest.param("off", marks=pytest.mark.long)])
async def test_wrong_ticket_is_refused_and_the_session_stays(
    make_host: MakeHost, encryption: str
) -> None:
    def encryption_of(_lease: LeaseId) -> str:
        return encryption

    kit = await make_host(data_encryption=encryption_of)
    front, info = await tcp_front(kit)
    right = front.address(info, encryption)
    with pytest.raises(AuthenticationError):
        await kit.dial(replace(right, ticket=bytes(32)))
    assert kit.host.knows_session(info.session)
    assert await (await kit.dial(right)).ask(b"e", b"x") == b"x"


async def test_client_refuses_another_certificate(make_host: MakeHost) -> None:
    kit = await make_host()
    front, info = await tcp_front(kit)
    with pytest.raises(AuthenticationError, match="certificate"):
        await kit.dial(replace(front.address(info, "tls"), certificate_sha256=bytes(32)))


async def test_workers_speak_tls_1_3_only(make_host: MakeHost) -> None:
    kit = await make_host()
    front, info = await tcp_front(kit)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect() -> None:
        with (
            socket.create_connection(front.listener.getsockname()) as sock,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(sock)

    await trio.to_thread.run_sync(connect)
    assert kit.host.knows_session(info.session)


async def test_second_connection_to_a_session_is_refused(make_host: MakeHost) -> None:
    kit = await make_host()
    info = await kit.open(kit.lease())
    client = await kit.dial(unix_address(info))
    await kit.worker_of(info).connected.wait()
    with pytest.raises(AuthenticationError):
        await kit.dial(unix_address(info))
    assert await client.ask(b"e", b"still there") == b"still there"


async def test_silent_connections_do_not_keep_the_client_out(
    make_host: MakeHost, tcp_pair: TcpPair
) -> None:
    kit = await make_host()
    front, info = await tcp_front(kit)
    pairs = [tcp_pair() for _ in range(8)]
    for _silent, theirs in pairs:
        await kit.host.hand_over(info.session, theirs)
    one_more, theirs = tcp_pair()
    await kit.host.hand_over(info.session, theirs)
    assert await trio.to_thread.run_sync(one_more.recv, 1) == b""
    await kit.logged("too many handshakes")
    # The silent ones give up; meanwhile the session stays. Closing them is as good as waiting.
    pairs[0][0].close()
    while True:
        try:
            client = await kit.dial(front.address(info, "tls"))
            break
        except AuthenticationError:
            await trio.sleep(0.01)
    assert await client.ask(b"e", b"x") == b"x"


# --- the Unix socket ----------------------------------------------------------------------------


async def unix_connection(kit: HostKit) -> trio.SocketStream:
    return await trio.open_unix_socket(str(kit.directory / "data.sock"))


@pytest.mark.parametrize(
    "first",
    [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"gpupool\x02" + bytes(32), b"\x00" * 100],
)
async def test_malformed_preambles_are_closed(make_host: MakeHost, first: bytes) -> None:
    kit = await make_host()
    async with await unix_connection(kit) as stream:
        await stream.send_all(first)
        with pytest.raises(trio.BrokenResourceError):
            # Data that was never read makes the kernel report a reset.
            await stream.receive_some(1)
    await kit.logged("not a data connection")


async def test_unknown_session_is_closed(make_host: MakeHost) -> None:
    kit = await make_host()
    async with await unix_connection(kit) as stream:
        await stream.send_all(handshake.client_hello(bytes(16), bytes(16)))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(1)
    await kit.logged("no session waits for it")


async def test_preamble_may_arrive_in_pieces(make_host: MakeHost) -> None:
    kit = await make_host()
    info = await kit.open(kit.lease())
    nonce = b"n" * 16
    hello = handshake.client_hello(info.session, nonce)
    async with await unix_connection(kit) as stream:
        for byte in hello:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.001)
        answer = b""
        while len(answer) < handshake.SERVER_PROOF_SIZE:
            answer += await stream.receive_some(handshake.SERVER_PROOF_SIZE - len(answer))
        server_nonce = handshake.check_server_proof(info.ticket, nonce, answer)
        await stream.send_all(handshake.client_proof(info.ticket, nonce, server_nonce))
        assert await stream.receive_some(1) == handshake.ACCEPTED


async def test_silence_on_the_unix_socket_is_bounded(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_listener, "PREAMBLE_TIMEOUT_S", 0.05)
    kit = await make_host()
    async with await unix_connection(kit) as silent, await unix_connection(kit) as slow:
        await slow.send_all(b"gpu")
        assert await silent.receive_some(1) == b""
        with pytest.raises(trio.BrokenResourceError):
            await slow.receive_some(1)


async def test_unix_socket_is_open_to_all_users_and_goes_with_the_host(
    make_host: MakeHost,
) -> None:
    kit = await make_host()
    path = kit.directory / "data.sock"
    assert path.stat().st_mode & 0o777 == 0o666


def test_path_that_is_too_long_gives_no_socket(tmp_path: Path) -> None:
    assert unix_listener.bind_unix_listener(tmp_path / ("x" * 100)) is None


# --- the budget ---------------------------------------------------------------------------------


async def test_partition_bounds_all_workers_of_the_lease(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease(gpus=2)
    first, _ = await kit.connect(lease)
    second, _ = await kit.connect(lease)
    other, _ = await kit.connect(kit.lease(0x7F3B))
    assert await first.reserve(GIB - 100)
    assert not await second.reserve(101)
    assert await second.reserve(100)
    assert await second.reserve(GIB, device=1)
    assert await first.usage() == GIB
    assert await other.usage() == 0
    assert await other.reserve(GIB)
    await first.release(GIB - 100)
    assert await second.reserve(GIB - 100)
    gpu = kit.host.gpus()[0].id
    assert kit.host.budget.used_on(gpu) == 2 * GIB


@pytest.mark.long
async def test_no_budget_call_of_many_goes_unanswered(make_host: MakeHost) -> None:
    kit = await make_host()
    client, _ = await kit.connect(kit.lease())
    assert await client.ask(b"T") == b"1000"
    assert await client.usage() == 1000 * 512


async def test_worker_that_returns_too_much_is_killed(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    assert await client.reserve(10)
    await client.send(b"f", struct.pack(">HQ", 0, 11))
    await worker.ended.wait()
    assert "rules of the budget" in worker.exit_reason()
    assert kit.host.budget.used_on(kit.host.gpus()[0].id) == 0


async def test_worker_that_asks_for_another_device_is_killed(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease(gpus=1))
    await client.send(b"r", struct.pack(">HQ", 1, 1))
    await worker.ended.wait()
    assert "no device 1" in worker.exit_reason()


# --- what is refused ----------------------------------------------------------------------------


async def test_sessions_that_cannot_be(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    with pytest.raises(GpupoolError, match="no door 'back'"):
        await kit.open(lease, door="back")
    unknown = Partition(SERVER, GpuId("GPU-elsewhere"), GIB)
    for partitions, why in (
        ((unknown,), "no GPU GPU-elsewhere"),
        ((), "no partitions"),
        (lease.partitions * 2, "one GPU twice"),
    ):
        with pytest.raises(GpupoolError, match=why):
            await kit.host.open_session(lease, partitions, door="echo", program="x")
    await kit.open(lease)
    larger = replace(lease.partitions[0], memory=2 * GIB)
    with pytest.raises(GpupoolError, match="other partitions"):
        await kit.host.open_session(lease, (larger,), door="echo", program="x")


async def test_workers_of_a_lease_are_limited(make_host: MakeHost) -> None:
    kit = await make_host(limits=HostLimits(workers_per_lease=2))
    lease = kit.lease()
    await kit.open(lease)
    refused: list[GpupoolError] = []

    async def attempt() -> None:
        try:
            await kit.open(lease)
        except GpupoolError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(attempt)
    assert len(refused) == 2
    assert "2 processes of it" in refused[0].why
    assert kit.host.worker_count() == {lease.id: 2}
    await kit.open(kit.lease(0x7F3B))  # other leases are not concerned


@pytest.mark.long
async def test_workers_of_a_user_are_limited(make_host: MakeHost) -> None:
    """One user with many small leases took all of a server's workers."""
    kit = await make_host(limits=HostLimits(workers_per_user=UserBound(user=3, token=2)))
    for number in (1, 2):
        await kit.open(kit.lease(number))
    with pytest.raises(GpupoolError, match=r"token .* of ada has 2 processes that use this server"):
        await kit.open(kit.lease(3))
    await kit.open(replace(kit.lease(4), token=TokenId("another")))
    with pytest.raises(GpupoolError, match="ada has 3 processes that use this server already"):
        await kit.open(replace(kit.lease(5), token=TokenId("another")))
    await kit.open(replace(kit.lease(6), user="bob"))


async def test_workers_of_a_host_are_limited(make_host: MakeHost) -> None:
    kit = await make_host(limits=HostLimits(workers=1))
    await kit.open(kit.lease())
    with pytest.raises(GpupoolError, match="its maximum"):
        await kit.open(kit.lease(0x7F3B))


async def test_interpreter_that_does_not_start(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    kit = await make_host(warm_workers=1)
    with pytest.raises(GpupoolError, match="exited with code 1"):
        await kit.open(kit.lease())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(GpupoolError, match="No such file"):
        await kit.open(kit.lease())
    await kit.logged("no spare worker")
    assert kit.host.worker_count() == {kit.lease().id: 0}


async def test_unclaimed_connection_of_no_session_is_closed(
    make_host: MakeHost, tcp_pair: TcpPair
) -> None:
    kit = await make_host(warm_workers=0)
    ours, theirs = tcp_pair()
    with pytest.raises(DeniedError):
        await kit.host.hand_over(bytes(16), theirs)
    assert ours.recv(1) == b""


@pytest.mark.long
async def test_telemetry_adds_up_over_the_workers_of_a_lease(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    for _ in range(2):
        client, worker = await kit.connect(lease)
        await client.ask(b"e", bytes(1000))
        assert await client.reserve(5000)
        client.stream.close()
        await worker.ended.wait()
    client, _ = await kit.connect(lease)
    assert await client.reserve(7000)
    gpus, (session,) = kit.host.telemetry()
    assert (session.lease, session.workers, session.calls) == (lease.id, 1, 4)
    assert session.memory_reserved == 7000
    assert 2000 < session.bytes_in < 2200
    assert 2000 < session.bytes_out < 2200
    assert gpus[0].memory_used == 7000
    await kit.host.kill_lease(lease.id, "done")
    assert kit.host.telemetry()[1] == ()


async def test_running_worker_reports_about_once_a_second(make_host: MakeHost) -> None:
    kit = await make_host()
    client, worker = await kit.connect(kit.lease())
    with trio.fail_after(10):
        while not worker.session.totals.calls:
            await client.ask(b"e", b"x")


async def test_emulated_gpus_keep_their_names(make_host: MakeHost) -> None:
    kit = await make_host()
    again = Inventory.discover(SERVER, None, emulated_count=4, emulated_memory=8 * GIB)
    assert [gpu.id for gpu in again.gpus()] == [gpu.id for gpu in kit.host.gpus()]
    assert all(reading.fault == "" for reading in kit.host.readings().values())


async def test_use_is_what_a_session_does(make_host: MakeHost) -> None:
    """Calls count, and so does one that takes long; an open session alone does not."""
    kit = await make_host(warm_workers=0)
    lease = kit.lease()
    assert kit.host.idle_s() == {}
    client, worker = await kit.connect(lease)
    opened_s = kit.host.idle_s()[lease.id]
    await client.ask(b"e", b"hello")
    await until(lambda: worker.session.totals.calls == 1)  # reported once a second
    assert not worker.session.totals.busy
    first = worker.session.totals
    quiet_s = kit.host.idle_s()[lease.id]
    await client.send(b"z")  # a call that never returns
    await until(lambda: worker.session.totals.busy)
    totals = worker.session.totals
    assert totals.calls == first.calls + 1
    await until(lambda: worker.session.totals is not totals)  # once more: it is still busy
    assert worker.session.totals == totals
    await kit.host.kill_lease(lease.id, "over")
    assert kit.host.idle_s() == {}
    assert min(opened_s, quiet_s) >= 0
