"""Measurements between servers: over real TLS, by members alone, one at a time, never for ever."""

import socket
import ssl
import threading
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from tests.remoting.control.control_kit import make_authority, make_identity

from gpupool.pool.errors import (
    AuthenticationError,
    GpupoolError,
    NotNowError,
    UnreachableError,
)
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.client.check_answers import ask_bandwidth, rounds
from gpupool.remoting.client.server_connections import Connections
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.server.listener.router import ToMeasure, route
from gpupool.remoting.transport import bandwidth
from gpupool.remoting.transport.bandwidth import BandwidthMeter, measure_name
from gpupool.remoting.transport.client_tls import client_context
from gpupool.remoting.transport.pki import Authority, TlsContexts

A, B, C = ServerId("aaaaaaaaaaaa"), ServerId("bbbbbbbbbbbb"), ServerId("cccccccccccc")
MEMBERS = frozenset({A, B, C})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send for less time, and wait for less."""
    monkeypatch.setattr(bandwidth, "SEND_S", 0.02)
    monkeypatch.setattr(bandwidth, "STEP_S", 0.5)


class Door:
    """One dialled server, and the outcome of each connection."""

    def __init__(self, meter: BandwidthMeter, members: frozenset[ServerId] = MEMBERS) -> None:
        self.meter, self.members = meter, members
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self.served: list[ServerId | Exception] = []

    async def run(self) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with listener:
            await self._run(listener)

    async def _run(self, listener: trio.SocketListener) -> None:
        while True:
            sock = _taken(await listener.accept())
            try:
                self.served.append(await self.meter.serve(sock, self.members))
            except (GpupoolError, OSError) as error:
                self.served.append(error)


def _taken(stream: trio.SocketStream) -> socket.socket:
    trio.lowlevel.notify_closing(stream.socket)
    return socket.socket(fileno=stream.socket.detach())


def meter(folder: Path, authority: Authority, server: ServerId) -> BandwidthMeter:
    return BandwidthMeter(TlsContexts(make_identity(folder, authority, server)))


async def test_both_ways_are_measured(tmp_path: Path, nursery: trio.Nursery) -> None:
    authority = make_authority()
    door = Door(meter(tmp_path, authority, B))
    nursery.start_soon(door.run)
    with trio.fail_after(10):
        speeds = await meter(tmp_path, authority, A).measure(B, door.address)
        while not door.served:  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.001)
    assert speeds.there > 1_000_000
    assert speeds.back > 1_000_000
    assert door.served == [A]


async def test_bytes_are_limited(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender for an hour sends no more than the limit; one that sends more is hung up on."""
    monkeypatch.setattr(bandwidth, "SEND_S", 3600.0)
    monkeypatch.setattr(bandwidth, "SIZE_MAX", 8 * bandwidth.BLOCK_SIZE)
    authority = make_authority()
    door = Door(meter(tmp_path, authority, B))
    nursery.start_soon(door.run)
    with trio.fail_after(10):
        speeds = await meter(tmp_path, authority, A).measure(B, door.address)
    assert speeds.there > 0

    near, far = socket.socketpair()

    def send_more() -> None:
        with suppress(OSError):  # it is hung up on
            for _ in range(20):
                far.sendall(bandwidth._MORE)  # pyright: ignore[reportPrivateUsage]

    sender = threading.Thread(target=send_more)
    sender.start()
    with far:
        with near, pytest.raises(TimeoutError, match="no end"):
            bandwidth._receive(near)  # pyright: ignore[reportPrivateUsage]
        sender.join()


@pytest.mark.parametrize("end", ["_receive", "_send"])
def test_one_who_trickles_is_hung_up_on(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes, or is taken, in time, and all of them would take hours."""
    monkeypatch.setattr(bandwidth, "LIMIT_S", 0.3)
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.settimeout(bandwidth.STEP_S)
    over = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            while not over.wait(0.01):
                if end == "_receive":
                    far.send(b"\x01")
                else:
                    far.recv(1)

    other = threading.Thread(target=trickle)
    other.start()
    began = time.monotonic()
    with near, far:
        with pytest.raises(TimeoutError):
            getattr(bandwidth, end)(near)
        over.set()
        other.join()
    assert time.monotonic() - began < 5


async def test_a_stranger_is_refused(tmp_path: Path, nursery: trio.Nursery) -> None:
    """One with a certificate of another CA, one that was removed, and one in another's place."""
    authority = make_authority()
    door = Door(meter(tmp_path, authority, B), frozenset({B, C}))
    nursery.start_soon(door.run)
    stranger = meter(tmp_path / "other", make_authority(), A)
    with trio.fail_after(20):
        with pytest.raises(UnreachableError):
            await stranger.measure(B, door.address)
        with pytest.raises(UnreachableError):  # A is no member any more
            await meter(tmp_path, authority, A).measure(B, door.address)
        with pytest.raises(AuthenticationError, match="another server"):
            await meter(tmp_path, authority, C).measure(A, door.address)
        while len(door.served) < 3:  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.001)
    assert not any(isinstance(each, str) for each in door.served)


async def test_a_server_is_in_one_measurement_at_a_time(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority()
    at_b, at_a = meter(tmp_path, authority, B), meter(tmp_path, authority, A)
    door = Door(at_b)
    nursery.start_soon(door.run)
    monkeypatch.setattr(at_b, "_one", held := threading.Lock())
    assert held.acquire(blocking=False)
    with trio.fail_after(10):
        with pytest.raises(NotNowError, match="under way there"):
            await at_a.measure(B, door.address)
        with pytest.raises(NotNowError, match="under way on this server"):
            await at_b.measure(A, door.address)
        held.release()
        assert (await at_a.measure(B, door.address)).there > 0


async def test_one_who_says_nothing_holds_nobody(tmp_path: Path, nursery: trio.Nursery) -> None:
    door = Door(meter(tmp_path, make_authority(), B))
    nursery.start_soon(door.run)
    with trio.fail_after(10), socket.create_connection((door.address.host, door.address.port)):
        while not door.served:  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)
    assert isinstance(door.served[0], TimeoutError)


def test_a_server_is_told_by_the_name_that_this_is_no_link() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(make_authority().certificate_pem)
    tls = context.wrap_bio(incoming, outgoing, server_hostname=measure_name(B))
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert route(outgoing.read()) == ToMeasure(B)


# --- who asks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(9))
def test_each_pair_is_in_one_round_and_each_server_once_in_a_round(count: int) -> None:
    servers = [ServerId(f"{number:012x}") for number in range(count)]
    planned = rounds(servers)
    pairs = [frozenset(pair) for each in planned for pair in each]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {frozenset(pair) for pair in combinations(servers, 2)}
    for each in planned:
        busy = [server for pair in each for server in pair]
        assert len(busy) == len(set(busy))
    assert len(planned) <= max(count, 0)


class FakeServers:
    """Stands in for ``Connections``: three servers, of which one is old and one does not answer."""

    def __init__(self, **protocols: int) -> None:
        self.protocols = {ServerId(name): number for name, number in protocols.items()}
        self.members = dict.fromkeys([*self.protocols, ServerId("away")])
        self.by_server = dict[ServerId, object]()
        self.asked: list[tuple[str, str]] = []

    def widen(self, _count: int) -> None:
        """Know all already."""

    async def reach(self, server: ServerId, _timeout_s: float) -> Any:
        await trio.lowlevel.checkpoint()
        if server not in self.protocols:
            raise UnreachableError(f"cannot reach server {server}")

        async def call(message: m.MeasureBandwidth, *, timeout_s: float) -> m.Message:
            await trio.sleep(timeout_s / 100)
            self.asked.append((server, message.peer))
            if message.peer == "c":
                raise NotNowError("it is busy", why="with another")
            return m.BandwidthIs(2_000, 1_000)

        welcome = SimpleNamespace(protocol=self.protocols[server])
        return SimpleNamespace(welcome=welcome, call=call)


async def test_a_large_pool_is_measured_in_part(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.remoting.client.check_answers.ROUND_COUNT_MAX", 3)
    servers = FakeServers(**{f"s{number}": 8 for number in range(10)})
    answer = await ask_bandwidth(cast("Connections", servers))
    assert len(answer.ways) == 2 * 3 * 5
    assert answer.pairs_left == 45 - 15
