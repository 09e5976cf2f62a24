"""Renewal of servers' certificates: the rule, a server that asks, and a real pool."""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import Cluster
from tests.remoting.control.control_kit import make_authority, make_identity, until
from tests.remoting.control.real_pool import RealPool, RealServer
from tests.remoting.control.test_peer_transport import A, B, C, MemoryNetwork

from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Request
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.transport.authority.certificate_renewal import (
    CertificateTime,
    Renewal,
    RenewalSettings,
    ServerCertificates,
)
from gpupool.remoting.transport.client_tls import CONTROL_NAME, client_context
from gpupool.remoting.transport.connections import explain
from gpupool.remoting.transport.peer_link import Kind
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    TlsContexts,
    Validity,
    check_server_certificate,
    control_context,
    create_ca,
    create_key_and_csr,
    fingerprint,
    sign_server,
    validity_of,
)

LOG = logging.getLogger("test")
DAY_MS = 86_400_000
YEAR = Validity(0, 365 * DAY_MS)
CA_ENDS_MS = 3650 * DAY_MS

MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


def test_a_certificate_is_renewed_with_a_third_left_and_warned_of_with_a_tenth() -> None:
    times = CertificateTime(YEAR, CA_ENDS_MS)
    due_ms = 365 * DAY_MS * 2 // 3
    assert not times.is_due(due_ms - DAY_MS)
    assert times.is_due(due_ms + DAY_MS)
    assert times.problem(due_ms + DAY_MS, "gpu-1", "nobody signs") == ""
    assert times.problem(355 * DAY_MS, "gpu-1", "nobody signs") == (
        "the certificate of server gpu-1 ends in 10d; not renewed: nobody signs"
    )
    assert "has ended" in times.problem(366 * DAY_MS, "gpu-1", "")


def test_a_certificate_that_ends_with_its_ca_is_not_renewed_again_and_again() -> None:
    last = CertificateTime(Validity(3500 * DAY_MS, CA_ENDS_MS), CA_ENDS_MS)
    assert not last.is_due(3649 * DAY_MS)
    assert "with the pool's CA" in last.problem(3649 * DAY_MS, "gpu-1", "")


def test_a_certificate_of_an_older_build_is_replaced_though_it_lasts_as_long_as_the_ca() -> None:
    old = CertificateTime(Validity(0, CA_ENDS_MS), CA_ENDS_MS)
    assert not old.is_due(6 * 365 * DAY_MS)
    assert old.is_due(7 * 365 * DAY_MS)


def test_retries_back_off() -> None:
    settings = RenewalSettings()
    waits = [settings.retry_s(failures) for failures in range(30)]
    assert waits[:4] == [30, 30, 60, 120]
    assert waits == sorted(waits)
    assert waits[-1] == 6 * 3600


def test_a_certificate_is_good_for_a_year() -> None:
    now = datetime.now(UTC)
    _key, csr = create_key_and_csr(A)
    validity = validity_of(sign_server(make_authority(), csr, A, now))
    assert validity.ends_ms - validity.issued_ms == 365 * DAY_MS


@pytest.mark.parametrize(("days", "said"), [(-500, "has ended"), (500, "not good yet")])
async def test_a_certificate_of_another_time_is_called_that(
    tmp_path: Path, days: int, said: str
) -> None:
    authority = create_ca("cluster-1", datetime.now(UTC) - timedelta(days=1000))
    key, csr = create_key_and_csr(A)
    path = tmp_path / "server.pem"
    path.write_bytes(sign_server(authority, csr, A, datetime.now(UTC) + timedelta(days=days)) + key)
    identity = Identity(A, "cluster-1", path, path, authority.certificate_pem)
    near, far = trio.testing.memory_stream_pair()
    client = trio.SSLStream(
        near, client_context(authority.certificate_pem), server_hostname=CONTROL_NAME
    )
    server = trio.SSLStream(far, control_context(identity), server_side=True)
    failures: list[str] = []

    async def shake(stream: "trio.SSLStream[MemoryStream]") -> None:
        try:
            await stream.do_handshake()
            await stream.receive_some(1)  # the server learns of the refusal after its handshake
        except trio.BrokenResourceError as error:
            failures.append(explain(error))
        await trio.aclose_forcefully(stream.transport_stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shake, client)
        nursery.start_soon(shake, server)
    assert any(said in failure for failure in failures), failures


class Bench:
    """The links of three servers in memory, of which ``A`` renews its certificate."""

    def __init__(self, folder: Path) -> None:
        self.network = MemoryNetwork(folder)
        self.folder = folder
        self.now = datetime.now(UTC)
        self.zero = trio.current_time()
        self.days = 0  # by which the pool's time is moved on
        self.saved: list[bytes] = []
        self.asked: list[tuple[float, ServerId, ServerId]] = []

    @property
    def authority(self) -> Authority:
        return self.network.authority

    def now_ms(self) -> int:
        elapsed = trio.current_time() - self.zero + self.days * 86_400
        return int((self.now.timestamp() + elapsed) * 1000)

    def save(self, certificate: bytes, key: bytes) -> Identity:
        path = self.folder / "renewed.pem"
        path.write_bytes(certificate + key)
        self.saved.append(certificate)
        return Identity(A, "cluster-1", path, path, self.authority.certificate_pem)

    async def written(self, clock: trio.testing.MockClock) -> None:
        """Wait for the thread that writes the file; a clock that jumps at once outruns it."""
        clock.autojump_threshold = 0.01
        await until(lambda: self.saved)

    def signs(self, server: ServerId, authority: Authority | None) -> None:
        def sign(peer: ServerId, csr: bytes) -> bytes:
            self.asked.append((trio.current_time() - self.zero, server, peer))
            if authority is None:
                return b""
            now = datetime.fromtimestamp(self.now_ms() / 1000, UTC)
            return sign_server(authority, csr, peer, now)

        self.network.links[server].takes[Kind.CERTIFICATE_ASK] = sign

    def renewal(self) -> Renewal:
        links = self.network.links[A]
        renewal = Renewal(
            ServerCertificates(
                contexts=TlsContexts(make_identity(self.folder, self.authority, A)),
                save=self.save,
                renewal=RenewalSettings(retry_max_s=300),
            ),
            now_ms=self.now_ms,
            name=lambda: "gpu-1",
            signer=lambda: None,
            voters=lambda: [B, C],
            ask=lambda peer, csr: links.tell(peer, Kind.CERTIFICATE_ASK, csr),
            log=LOG,
        )
        links.takes[Kind.CERTIFICATE_GIVE] = renewal.answered
        return renewal


async def test_a_server_asks_one_voter_after_the_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(tmp_path)
    await bench.network.start(nursery, A, B, C)
    await trio.sleep(5)
    bench.signs(B, None)
    bench.signs(C, bench.authority)
    nursery.start_soon(bench.renewal().run)
    bench.days = 243
    await trio.sleep(610)
    assert bench.asked == []
    bench.days = 244
    await trio.sleep(610)
    await bench.written(autojump_clock)
    assert [(server, peer) for _at, server, peer in bench.asked] == [(B, A), (C, A)]
    assert len(bench.saved) == 1
    left_ms = validity_of(bench.saved[0]).ends_ms - bench.now_ms()
    assert left_ms == pytest.approx(365 * DAY_MS, abs=DAY_MS)


async def test_a_voter_signs_for_servers_in_the_table_alone(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1])
    node = await cluster.add(2, 1)
    key, csr = create_key_and_csr(ServerId("another name"))
    ca_key = cluster.nodes[0].server.authorities.key
    assert ca_key.sign_for(node.id, csr) == b""
    cluster.admit(node)
    signed = ca_key.sign_for(node.id, csr)
    ca_pem, now_ms = cluster.authority.certificate_pem, cluster.clock.wall_ms()
    check_server_certificate(signed, key, node.id, ca_pem, now_ms)
    assert ca_key.sign_for(node.id, b"nonsense") == b""


async def test_failures_are_retried_and_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench(tmp_path)
    await bench.network.start(nursery, A, B, C)
    await trio.sleep(5)
    bench.signs(B, make_authority())  # of another pool
    bench.signs(C, make_authority())
    renewal = bench.renewal()
    nursery.start_soon(renewal.run)
    bench.days = 244
    await trio.sleep(1000)
    assert renewal.problems() == ()
    first, second, third = [at for at, server, _peer in bench.asked if server == B][:3]
    assert second - first == pytest.approx(30, abs=1)
    assert third - second == pytest.approx(60, abs=1)
    bench.days = 335
    (problem,) = renewal.problems()
    assert "no certificate of the pool's CA" in problem
    assert bench.saved == []
    bench.signs(B, bench.authority)
    await trio.sleep(310)
    await bench.written(autojump_clock)
    assert len(bench.saved) == 1
    assert renewal.problems() == ()


async def shown_certificate(server: RealServer) -> bytes:
    """Return the certificate that a server shows to a client of now."""
    assert server.authority is not None
    context = client_context(server.authority.certificate_pem)
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with trio.SSLStream(tcp, context, server_hostname=CONTROL_NAME) as stream:
        await stream.do_handshake()
        der = stream.getpeercert(binary_form=True)
        return fingerprint(ssl.DER_cert_to_PEM_cert(der).encode())


@pytest.mark.slow
async def test_servers_outlive_their_certificates(tmp_path: Path) -> None:
    """Certificates of 8 s: leases go on, new clients and new links are served after they ended."""
    settings = RenewalSettings(check_every_s=0.2, retry_base_s=0.2)
    async with trio.open_nursery() as nursery:
        pool = RealPool(tmp_path, nursery, valid=timedelta(seconds=8), renewal=settings)
        await pool.start([1, 1, 1])
        keyless = pool.servers[2]
        await without_ca_key(pool, keyless)
        async with connect_pool(pool.credentials()) as client:
            lease = await client.allocate(Request(client.new_request_id(), 1, 0.5), wait_s=0)
            before = [await shown_certificate(server) for server in pool.servers]
            await trio.sleep(9)
            after = [await shown_certificate(server) for server in pool.servers]
            assert not set(before) & set(after)
            assert lease.lease in pool.servers[0].machine.state.leases
            first, second = pool.servers[0], pool.servers[1]
            assert first.links is not None
            first.links.hang_up(second.id)
            first.links.hang_up(keyless.id)
            links = first.links
            await until(lambda: {second.id, keyless.id} <= set(links.connected()), within_s=10)
        async with connect_pool(pool.credentials()) as client:
            await client.view()
        assert keyless.control is not None
        assert keyless.control.authorities.key.signer is None
        nursery.cancel_scope.cancel()


async def without_ca_key(pool: RealPool, server: RealServer) -> None:
    """Start a server again that never gets the CA's key, and so has to ask for certificates."""

    def refuse(_peer: ServerId, _request: bytes) -> bytes:
        return b""

    for other in pool.others(server):
        assert other.links is not None
        other.links.takes[Kind.KEY_ASK] = refuse
    server.scope.cancel()
    await trio.sleep(0.2)
    server.has_ca_key = False
    await pool.restart(server)
    await pool.settled()


@pytest.mark.long
async def test_a_certificate_that_nobody_renews_is_warned_of_in_views(tmp_path: Path) -> None:
    settings = RenewalSettings(check_every_s=0.2, retry_base_s=0.2)
    async with trio.open_nursery() as nursery:
        pool = RealPool(tmp_path, nursery, valid=timedelta(seconds=6), renewal=settings)
        await pool.start([1])
        await without_ca_key(pool, pool.servers[0])
        async with connect_pool(pool.credentials()) as client:
            while not (first := (await client.view()).warnings):  # noqa: ASYNC110 - no event
                await trio.sleep(0.1)
            assert [each.partition(" has ")[0] for each in first] == ["no server"]
            with trio.fail_after(15):
                while (said := (await client.view()).warnings) == first:  # noqa: ASYNC110 - no event
                    await trio.sleep(0.1)
        (warning,) = set(said) - set(first)
        assert warning.startswith("the certificate of server gpu-1 ")
        assert "no voter that holds the CA's key has signed it" in warning
        nursery.cancel_scope.cancel()
