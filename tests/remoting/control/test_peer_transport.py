"""Links between servers: order, replacement, back-off, limits, over memory and over real TLS."""

import contextlib
import errno
import itertools
import logging
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_kit import (
    PeerLog,
    RealClock,
    SeededRng,
    VirtualClock,
    make_authority,
    make_identity,
    until,
)

from gpupool.pool.errors import NotNowError
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import ServerId
from gpupool.pool.table_clock import ClockSample
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport import peer_link
from gpupool.remoting.transport import peer_transport as links_module
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.peer_dial import proven_peer
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import peer_server_context

LOG = logging.getLogger("test")
A, B, C = ServerId("aaaaaaaaaaaa"), ServerId("bbbbbbbbbbbb"), ServerId("cccccccccccc")


class MemoryNetwork:
    """Dials from one ``PeerTransport`` to another over memory streams; can refuse and cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = make_authority()
        self.links: dict[ServerId, PeerTransport] = {}
        self.logs: dict[ServerId, PeerLog] = {}
        self.dials: list[tuple[float, ServerId, ServerId]] = []
        self.refused: set[tuple[ServerId, ServerId]] = set()
        self.removed: set[tuple[ServerId, ServerId]] = set()
        self.open: list[trio.abc.AsyncResource] = []
        self.skew_s: dict[ServerId, float] = {}
        self.clocks: dict[ServerId, VirtualClock] = {}

    async def start(self, nursery: trio.Nursery, *servers: ServerId) -> None:
        for server in servers:
            clock = self.clocks[server] = VirtualClock(skew_s=self.skew_s.get(server, 0.0))
            links = PeerTransport(
                make_identity(self.folder, self.authority, server),
                clock=clock,
                rng=SeededRng(len(self.links)),
                address_of=lambda peer: f"{peer}:7470",
                log=LOG,
                dial=self.dial_from(server, nursery),
            )
            self.links[server] = links
            self.logs[server] = PeerLog()
            links.set_peers(servers)
            await nursery.start(links.run, self.logs[server])

    def dial_from(
        self, server: ServerId, nursery: trio.Nursery
    ) -> Callable[[ServerId, Address], Awaitable[trio.abc.Stream]]:
        async def dial(peer: ServerId, _address: Address) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            self.dials.append((trio.current_time(), server, peer))
            if (server, peer) in self.refused or peer not in self.links:
                raise ConnectionRefusedError("refused by the test")
            near, far = trio.testing.memory_stream_pair()
            self.open += [near, far]
            links = self.links[peer]
            take = links.reject if (server, peer) in self.removed else links.accept
            nursery.start_soon(take, far, server)
            return near

        return dial

    async def cut(self) -> None:
        for stream in self.open:
            await trio.aclose_forcefully(stream)
        self.open.clear()


async def test_frames_arrive_in_order(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(1)
    assert [(s, p) for _, s, p in network.dials] == [(A, B)]  # the smaller id dials, once
    for number in range(500):
        assert network.links[A].send(B, b"%d" % number)
        assert network.links[B].send(A, b"%d" % number)
    await trio.sleep(1)
    expected = [b"%d" % number for number in range(500)]
    assert network.logs[B].frames == [(A, frame) for frame in expected]
    assert network.logs[A].frames == [(B, frame) for frame in expected]
    assert network.logs[A].events == [("connected", B)]


async def test_a_cut_is_reported_before_the_new_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(5)
    await network.cut()
    await trio.sleep(5)
    expected = ["connected", "disconnected", "connected"]
    for log in network.logs.values():
        assert [kind for kind, _ in log.events] == expected
    assert network.links[A].send(B, b"again")


async def test_a_frame_that_no_server_sends_ends_the_connection_at_its_header(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(5)
    link = network.links[A].link(B)
    assert link is not None
    link.put(struct.pack(">IB", links_module.FRAME_SIZE_MAX + 1, 1))
    await trio.sleep(0.1)
    assert network.logs[B].events[:2] == [("connected", A), ("disconnected", A)]


async def test_hanging_up_begins_a_new_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(5)
    network.links[A].hang_up(B)
    network.links[A].hang_up(C)  # to which there is no connection
    await trio.sleep(5)
    for server, peer in ((A, B), (B, A)):
        expected = [("connected", peer), ("disconnected", peer), ("connected", peer)]
        assert network.logs[server].events == expected


async def test_the_larger_id_dials_when_the_smaller_cannot(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B)}
    await network.start(nursery, A, B)
    await trio.sleep(10)
    assert network.links[A].connected() == (B,)
    assert network.links[B].connected() == (A,)


REJOIN = "let it join anew (gpupool rejoin)"


@pytest.mark.parametrize(
    ("strangers", "turns", "advised"),
    [((B, C), 1, 1), ((B,), 1, 0), ((), 1, 0), ((B, C), 3, 0)],
    ids=["most", "one", "none", "in turns"],
)
async def test_a_server_that_knows_the_ca_of_no_other_is_told_to_join_anew(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
    strangers: tuple[ServerId, ...],
    turns: int,
    advised: int,
) -> None:
    """Where only one of two is an unauthenticated peer, that one may be the excluded server.

    A server that missed the end of an exchange, and the beginning of the next, finds a certificate
    that it does not know in some turns, and has its link in another.
    """
    dials: Counter[ServerId] = Counter()
    caplog.set_level(logging.INFO, LOG.name)

    async def dial(peer: ServerId, _address: Address) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        dials[peer] += 1
        if peer in strangers and dials[peer] % turns == 0:
            error = ssl.SSLCertVerificationError(1, "")
            error.reason, error.verify_code = "CERTIFICATE_VERIFY_FAILED", 20
            raise trio.BrokenResourceError from error
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused by the test")

    links = PeerTransport(
        make_identity(tmp_path, make_authority(), A),
        clock=VirtualClock(),
        rng=SeededRng(),
        address_of=lambda peer: f"{peer}:7470",
        log=LOG,
        dial=dial,
    )
    links.set_peers((A, B, C))
    await nursery.start(links.run, PeerLog())
    await trio.sleep(60)
    assert sum(REJOIN in record.getMessage() for record in caplog.records) == advised


async def test_failed_dials_back_off(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    await trio.sleep(60)
    dials = [at for at, server, _ in network.dials if server == A]
    gaps = [after - before for before, after in itertools.pairwise(dials)]
    assert gaps[0] <= 0.1
    assert max(gaps) <= 2.0
    assert 30 <= len(dials) <= 80


async def test_a_log_says_why_a_link_is_down(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="test")
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    links = network.links[A]

    async def greet() -> None:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(links.accept, far, B)
        await near.send_all(struct.pack(">IBHQ", 10, 1, VERSION, 0))
        await trio.sleep(1)

    await greet()
    await greet()
    links.hang_up(B)
    await trio.sleep(1)
    await greet()
    links.set_peers([])
    await trio.sleep(1)
    down = [each.getMessage() for each in caplog.records if "is down" in each.getMessage()]
    assert down == [
        f"link to server {B} is down: {why}"
        for why in (
            "a newer link took its place",
            "closed by this server",
            "it is no member of the pool",
        )
    ]


async def test_unwanted_peers_are_disconnected_and_may_come_as_strangers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(1)
    network.links[B].set_peers([])
    assert network.logs[B].events == [("connected", A), ("disconnected", A)]
    assert not network.links[B].wants(A)
    await trio.sleep(1)
    assert network.logs[B].events[2:] == [("connected", A)]


async def test_a_removed_server_is_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(B, A)}
    await network.start(nursery, A, B)
    await trio.sleep(1)
    network.links[B].set_peers([])
    network.removed.add((A, B))
    await network.cut()
    await trio.sleep(10)
    assert network.links[A].removed_by == {B}
    assert network.links[B].connected() == ()


async def test_a_peer_that_reads_nothing_has_a_bounded_queue(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(1)
    frame = bytes(1024 * 1024)
    accepted = sum(network.links[A].send(B, frame) for _ in range(100))
    assert accepted == peer_link.QUEUE_SIZE_MAX // len(frame) - 1


def offset_s(clock: VirtualClock, sample: ClockSample | None) -> float:
    """Return by how much a peer's wall clock is ahead of the right time, with which all begin."""
    assert sample is not None
    assert sample.error_s < 1.0
    mine_ms = clock.wall_ms() - clock.skew_s * 1000
    return (sample.zero_ms + clock.monotonic() * 1000 - mine_ms) / 1000


async def test_clock_offsets_are_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    network.skew_s = {B: 7.0}
    await network.start(nursery, A, B)
    await trio.sleep(1)
    links, clocks = network.links, network.clocks
    assert offset_s(clocks[A], links[A].clock_sample(B)) == pytest.approx(7.0, abs=0.1)
    assert offset_s(clocks[B], links[B].clock_sample(A)) == pytest.approx(0.0, abs=0.1)
    assert links[A].clock_sample(C) is None


async def test_a_clock_that_is_set_is_measured_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B)
    await trio.sleep(1)
    links, clocks = network.links, network.clocks
    clocks[B].skew_s = 86_400.0
    assert offset_s(clocks[A], links[A].clock_sample(B)) == pytest.approx(0.0, abs=0.1)
    await trio.sleep(1.5)
    assert offset_s(clocks[A], links[A].clock_sample(B)) == pytest.approx(86_400.0, abs=0.1)
    clocks[A].skew_s = -7.0  # what this server measured of others does not depend on its own
    assert offset_s(clocks[A], links[A].clock_sample(B)) == pytest.approx(86_400.0, abs=0.1)
    links[B].set_peers([])
    links[A].set_peers([])
    await trio.sleep(1)
    assert links[A].clock_sample(B) is None


async def test_the_key_is_given_to_whom_the_table_trusts(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    await network.start(nursery, A, B, C)
    await trio.sleep(5)
    network.links[A].takes[Kind.KEY_ASK] = lambda peer, _: b"the key" if peer == B else b""
    taken: list[tuple[str, bytes]] = []
    for server in (B, C):
        network.links[server].takes[Kind.KEY_GIVE] = lambda peer, key: taken.append((peer, key))
        assert network.links[server].tell(A, Kind.KEY_ASK, b"")
    await trio.sleep(1)
    assert taken == [(A, b"the key")]


@pytest.mark.parametrize(
    "opening",
    [
        b"\xff\xff\xff\xff\x01",  # a length beyond the limit
        struct.pack(">IB", 3, 0) + b"abc",  # a Raft frame before the greeting
        struct.pack(">IBHQ", 10, 1, 99, 0),  # another version
        b"",
    ],
)
async def test_strange_greetings_are_dropped(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, opening: bytes
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(network.links[A].accept, far, B)
    await near.send_all(opening)
    await trio.sleep(links_module.GREETING_TIMEOUT_S + 1)
    assert network.logs[A].events == []
    with trio.fail_after(1):
        while await near.receive_some():
            pass


async def test_servers_of_another_version_are_told_apart_once(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    for _ in range(3):
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(network.links[A].accept, far, B)
        await near.send_all(struct.pack(">IBHQ", 10, 1, 99, 0))
        await trio.sleep(1)
    assert network.logs[A].events == []
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == (
        f"server {B} has another version of gpupool: it has version 99 of the formats, "
        f"this server {VERSION}; upgrade the older one"
    )


@pytest.mark.parametrize(("version", "up"), [(-2, False), (-1, True), (1, True), (2, False)])
async def test_servers_link_to_the_versions_beside_their_own(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    version: int,
    up: bool,
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    near, far = trio.testing.memory_stream_pair()
    nursery.start_soon(network.links[A].accept, far, B)
    await near.send_all(struct.pack(">IBHQ", 10, 1, VERSION + version, 0))
    await trio.sleep(1)
    assert (network.logs[A].events == [("connected", B)]) is up
    assert (network.links[A].connected() == (B,)) is up
    if not up:
        return
    unknown = max(peer_link.Kind) + 1
    await near.send_all(struct.pack(">IB", 0, unknown))
    await trio.sleep(1)
    assert (network.links[A].connected() == (B,)) is (version > 0), "only newer servers may"


async def test_an_older_server_is_told_apart_once_the_pool_has_left_it_behind(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A member that has never been up has no say in the version, and may come up too old."""
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A), (A, C), (C, A), (B, C), (C, B)}
    await network.start(nursery, A, B, C)
    links, agreed = network.links[A], VERSION - 1
    links.agreed = lambda: agreed
    far_ends: list[trio.abc.Stream] = []
    for peer, version in ((B, VERSION - 1), (C, VERSION)):
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(links.accept, far, peer)
        await near.send_all(struct.pack(">IBHQ", 10, 1, version, 0))
        far_ends.append(near)
    await trio.sleep(1)
    links.drop_outdated()
    assert set(links.connected()) == {B, C}, "the pool is still being upgraded"
    agreed = VERSION
    links.drop_outdated()
    await trio.sleep(1)
    assert links.connected() == (C,)
    for _ in range(3):
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(links.accept, far, B)
        await near.send_all(struct.pack(">IBHQ", 10, 1, VERSION - 1, 0))
        await trio.sleep(1)
        assert links.connected() == (C,)
    assert links.other_versions() == {B: VERSION - 1}
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == [
        f"server {B} has another version of gpupool: it has version {VERSION - 1} of the formats, "
        f"and the servers of the pool have agreed on {VERSION}; upgrade the older one"
    ]


async def test_a_server_that_newer_ones_leave_behind_says_so_once(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    for version in (VERSION, VERSION + 1, VERSION + 1):
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(network.links[A].accept, far, B)
        await near.send_all(struct.pack(">IBHQ", 10, 1, version, 0))
        await trio.sleep(1)
        assert network.links[A].connected() == (B,)
        await near.aclose()
        await trio.sleep(1)
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == [
        f"server {B} hung up; it has version {VERSION + 1} of the formats, this server {VERSION}: "
        "upgrade it if that goes on"
    ]


async def test_only_linked_servers_are_asked_to_measure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = MemoryNetwork(tmp_path)
    network.refused = {(A, B), (B, A)}
    await network.start(nursery, A, B)
    with pytest.raises(NotNowError, match="no link"):
        await network.links[A].measure(B)


async def test_real_tls_proves_both_sides(tmp_path: Path) -> None:
    authority = make_authority()
    identities = {server: make_identity(tmp_path, authority, server) for server in (A, B)}
    logs = {server: PeerLog() for server in (A, B)}
    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        links = {
            server: PeerTransport(
                identity,
                clock=RealClock(),
                rng=SeededRng(),
                address_of=lambda _peer: f"127.0.0.1:{port}",
                log=LOG,
            )
            for server, identity in identities.items()
        }
        seen: list[ServerId | None] = []

        async def handle(stream: trio.SocketStream) -> None:
            tls = LinkStream.accepted(stream, peer_server_context(identities[B]))
            await tls.do_handshake()
            peer = proven_peer(tls)
            seen.append(peer)
            assert peer is not None
            await links[B].accept(tls, peer)

        nursery.start_soon(trio.serve_listeners, handle, [listener])
        for server in (A, B):
            links[server].set_peers([A, B])
            await nursery.start(links[server].run, logs[server])
        with trio.fail_after(5):
            await until(lambda: links[A].connected() and links[B].connected())
            links[A].send(B, b"x" * 3_000_000)
            await until(lambda: logs[B].frames)
        assert seen == [A]
        assert len(logs[B].frames[0][1]) == 3_000_000
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("case", ["no certificate", "other CA", "TLS 1.2"])
async def test_real_tls_refuses_strangers(tmp_path: Path, case: str) -> None:
    identity = make_identity(tmp_path, make_authority(), B)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if case == "other CA":
        stranger = make_identity(tmp_path / "other", make_authority(), A)
        context.load_cert_chain(stranger.certificate_path, stranger.key_path)
    if case == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    failures: list[str] = []

    async def handle(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, peer_server_context(identity), server_side=True)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await tls.do_handshake()
        failures.append(str(caught.value.__cause__))
        await trio.aclose_forcefully(tls)

    async with trio.open_nursery() as nursery:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        port = listener.socket.getsockname()[1]
        client = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", port), context)
        received = b""
        with trio.fail_after(5), contextlib.suppress(trio.BrokenResourceError):
            # With TLS 1.3 a client learns only while reading that its certificate was refused;
            # CPython 3.11.2 shows it as the end of the stream.
            received = bytes(await client.receive_some())
        assert received == b""
        await trio.aclose_forcefully(client)
        nursery.cancel_scope.cancel()
    assert len(failures) == 1
