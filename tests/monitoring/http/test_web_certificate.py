"""The certificate of a server's exporter: its names, its signers, its renewal."""

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.monitoring.samples import ME, table
from tests.remoting.control.control_kit import until

from gpupool.monitoring.http.http_door import tls_context
from gpupool.monitoring.http.http_frames import WebSetup
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, Server
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.transport.authority.ca_key import CaKey
from gpupool.remoting.transport.authority.ca_vault import CaVault, sign_web
from gpupool.remoting.transport.authority.web_certificate import (
    ANSWER_TIMEOUT_S,
    SiteFiles,
    WebCertificate,
    WebCertificates,
)
from gpupool.remoting.transport.peer_link import Kind, Take
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    TlsContexts,
    create_ca,
    create_key_and_csr,
    sign_server,
)

DAY_S = 86_400
BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
LOG = logging.getLogger("test")
OTHER = ServerId("b" * 12)


def names_of(certificate_pem: bytes) -> set[str]:
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in found}


def server(name: str = "gpu-a", address: str = "10.0.0.4:7470") -> Server:
    return replace(table(gpus=1, leases=0).servers[ME], name=name, address=address)


@pytest.mark.parametrize(
    ("name", "address", "names"),
    [
        ("gpu-a", "10.0.0.4:7470", {"10.0.0.4", "gpu-a"}),
        ("GPU-A", "gpu-a.example.org:7470", {"gpu-a.example.org", "gpu-a"}),
        ("gpu-a", "[fd00::1]:7470", {"fd00::1", "gpu-a"}),
        # A server that calls itself so would pass for the pool.
        ("control.gpupool", "x.server.gpupool:7470", set[str]()),
        ("gpupool", "10.0.0.4:7470", {"10.0.0.4"}),
        ("with space", "10.0.0.4:7470", {"10.0.0.4"}),
    ],
)
def test_it_is_for_the_servers_names_and_no_other(name: str, address: str, names: set[str]) -> None:
    authority = create_ca("cluster-1", BEGAN)
    key, csr = create_key_and_csr(ME)
    made = sign_web(authority, csr, server(name, address), BEGAN)
    if names:
        assert names_of(made) == names
    else:
        assert b"gpupool" not in names_of(made)
        assert names_of(made) == set()
    certificate = x509.load_pem_x509_certificate(made)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert certificate.not_valid_after_utc - BEGAN <= timedelta(days=397)
    tls_context(WebSetup(made, key))


class Peers:
    """The links of one server; its requests come to the signer of another one."""

    def __init__(self) -> None:
        self.takes: dict[int, Take] = {}
        self.asked: list[ServerId] = []
        self.others: WebCertificates | None = None

    def tell(self, peer: ServerId, kind: Kind, body: bytes) -> bool:
        assert kind is Kind.WEB_ASK
        self.asked.append(peer)
        if self.others is not None:
            self.takes[Kind.WEB_GIVE](peer, self.others.sign_for(ME, body))
        return True


class Site:
    """One server that gets certificates, in virtual time."""

    def __init__(
        self, folder: Path, *, has_key: bool = True, files: SiteFiles | None = None
    ) -> None:
        self.authority = create_ca("cluster-1", BEGAN)
        (mine,) = table(gpus=1, leases=0).servers.values()
        other = replace(mine, id=OTHER, name="gpu-b", address="gpu-b:7470")
        servers = table(gpus=1, leases=0).servers
        self.state = PoolState(servers=servers.set(OTHER, other))
        self.links, self.shown = Peers(), list[WebCertificate]()
        self.folder = folder
        self.pace = 1  # seconds of the pool's time in one of this test's
        self.certificates = self._make(self.links, self.authority if has_key else None, files)

    def _make(
        self, links: Peers, authority: Authority | None, files: SiteFiles | None = None
    ) -> WebCertificates:
        key, csr = create_key_and_csr(ME)
        path = self.folder / "server.pem"
        path.write_bytes(sign_server(self.authority, csr, ME, BEGAN) + key)
        identity = Identity(ME, "cluster-1", path, path, self.authority.certificate_pem)
        machine = PoolMachine(self.state)
        ca_key = CaKey(
            TlsContexts(identity),
            authority,
            vault=CaVault.of_this_process(time.monotonic),
            machine=machine,
            now_ms=self.now_ms,
            log=LOG,
            save=lambda _pem: None,
        )
        return WebCertificates(
            ME,
            state=lambda: self.state,
            ca_key=ca_key,
            links=links,
            now_ms=self.now_ms,
            log=LOG,
            site=files,
        )

    def voter(self) -> WebCertificates:
        return self._make(Peers(), self.authority)

    def now_ms(self) -> int:
        return int(BEGAN.timestamp() * 1000 + trio.current_time() * 1000 * self.pace)

    async def run_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.certificates.run(self.shown.append)


Clock = trio.testing.MockClock


async def test_a_server_with_the_key_signs_for_itself_and_renews_30_days_before(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    site.pace = DAY_S // 60
    await site.run_for(800 * 60)
    ends = [
        x509.load_pem_x509_certificate(each.certificate_pem).not_valid_after_utc
        for each in site.shown
    ]
    assert len(site.shown) == 3
    assert [round((end - BEGAN) / timedelta(days=1)) for end in ends] == [397, 764, 1131]
    assert len({each.key_pem for each in site.shown}) == 3
    assert site.links.asked == []


async def test_another_server_asks_the_voters(autojump_clock: Clock, tmp_path: Path) -> None:
    site = Site(tmp_path, has_key=False)
    await site.run_for(20)
    assert site.shown == []  # nobody answers, and it goes on asking
    asked = len(site.links.asked)
    assert asked >= 2
    site.links.others = site.voter()
    await site.run_for(2 * ANSWER_TIMEOUT_S)
    assert [names_of(each.certificate_pem) for each in site.shown] == [{"gpu-a"}]


async def test_a_server_that_has_just_started_does_not_wait_for_seconds(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    known, site.state = site.state, PoolState()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.run_for, 10)
        await trio.sleep(0.6)  # until its own entry has come to it
        site.state = known
        await trio.sleep(0.6)
        assert len(site.shown) == 1
        nursery.cancel_scope.cancel()


async def test_a_late_answer_is_not_taken_for_that_of_another_key(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    """A voter that was slow left the exporter with a certificate that fits no key, for a year."""
    site = Site(tmp_path, has_key=False)
    voter, requests = site.voter(), list[bytes]()

    def ask(peer: ServerId, kind: Kind, body: bytes) -> bool:
        if requests:
            site.links.takes[Kind.WEB_GIVE](peer, voter.sign_for(ME, requests[0]))
        requests.append(body)
        if len(requests) > 2:
            site.links.takes[Kind.WEB_GIVE](peer, voter.sign_for(ME, body))
        return kind is Kind.WEB_ASK

    site.links.tell = ask
    await site.run_for(10 * ANSWER_TIMEOUT_S)
    (shown,) = site.shown
    tls_context(WebSetup(shown.certificate_pem, shown.key_pem))


async def test_a_server_that_moves_gets_another_one(autojump_clock: Clock, tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.run_for(10)
    moved = replace(site.state.servers[ME], address="10.0.0.9:7470")
    site.state = replace(site.state, servers=site.state.servers.set(ME, moved))
    await site.run_for(100)
    assert [names_of(each.certificate_pem) for each in site.shown] == [
        {"gpu-a"},
        {"gpu-a", "10.0.0.9"},
    ]


def test_a_stranger_gets_none(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path)
        _, csr = create_key_and_csr(ME)
        assert site.certificates.sign_for(ServerId("c" * 12), csr) == b""
        assert site.certificates.sign_for(ME, b"nonsense") == b""
        assert site.certificates.sign_for(ME, csr)

    trio.run(main, clock=trio.testing.MockClock())


async def test_a_sites_own_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("FILES_READ_EVERY_S", "RETRIED_AFTER_MIN_S"):
        monkeypatch.setattr(f"gpupool.remoting.transport.authority.web_certificate.{name}", 0.01)
    files = SiteFiles(tmp_path / "web.pem", tmp_path / "web.key")
    files.certificate.write_bytes(b"one")
    files.key.write_bytes(b"key")
    site = Site(tmp_path, files=files)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(site.run_for, 60)
        await until(lambda: len(site.shown) == 1)
        files.certificate.write_bytes(b"two")
        await until(lambda: len(site.shown) == 2)
        files.certificate.unlink()  # it goes on with the one it has
        await until(lambda: "cannot be read" in caplog.text)
        nursery.cancel_scope.cancel()
    assert [each.certificate_pem for each in site.shown] == [b"one", b"two"]
    assert "key" not in repr(site.shown[0])
