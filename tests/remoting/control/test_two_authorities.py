"""While two CAs are trusted: the trust of clients and servers, and their own certificates."""

import logging
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from tests.remoting.control.control_kit import RealClock, SeededRng, make_authority, make_identity

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.state import PoolState, Server, TokenKind
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.server_connections import Connections, ServerConnection
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.sealed_key import public_of
from gpupool.remoting.protocol.signer_messages import CreateCa
from gpupool.remoting.protocol.token_text import TokenText
from gpupool.remoting.transport.authority.ca_bundle import ders_of, numbers_of, shows_one_of
from gpupool.remoting.transport.authority.ca_exchange import CaExchange
from gpupool.remoting.transport.authority.ca_key import CaKey
from gpupool.remoting.transport.authority.ca_vault import CaVault, make_request
from gpupool.remoting.transport.client_tls import CONTROL_NAME, NEWEST_CONTROL_NAME
from gpupool.remoting.transport.dial import Greeting, fetch_ca
from gpupool.remoting.transport.message_stream import MessageStream
from gpupool.remoting.transport.peer_dial import TlsDialler
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    Authority,
    Identity,
    TlsContexts,
    create_ca,
    create_key_and_csr,
    fingerprint,
    sign_server,
)

LOG = logging.getLogger("test")
A, B = ServerId("a" * 12), ServerId("b" * 12)
HERE = Address("10.0.0.4", 7470)


def second() -> Authority:
    return create_ca("cluster-1", datetime.now(UTC), number=2)


def token_of(authority: Authority) -> TokenText:
    sha256 = fingerprint(authority.certificate_pem)
    return TokenText("cluster-1", TokenKind.USER, TokenId("t"), bytes(32), sha256, (HERE,))


async def fetched(token: TokenText, shown: bytes) -> tuple[bytes, str, int]:
    """Return a first contact's CA certificate, server name and CA count, for a shown bundle."""

    async def dial(_address: Address, _context: object) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(serve, far)
        return near

    async def serve(far: trio.abc.Stream) -> None:
        stream = MessageStream(far, Connection(End.SERVER))
        await stream.receive()
        await stream.send(1, m.CaCertificate(shown))

    async with trio.open_nursery() as nursery:
        ca_pem, context = await fetch_ca(token, HERE, dial=dial)
    return ca_pem, context.server_name, context.cert_store_stats()["x509_ca"]


async def test_a_first_contact_trusts_the_certificate_that_its_token_names_alone() -> None:
    """Before, a man in the middle could put another CA behind the pool's."""
    mine, his = make_authority(), make_authority()
    shown = mine.certificate_pem + his.certificate_pem
    assert await fetched(token_of(mine), shown) == (mine.certificate_pem, CONTROL_NAME, 1)
    stranger = token_of(make_authority())
    with pytest.raises(BaseExceptionGroup) as caught:
        await fetched(stranger, shown)
    assert caught.group_contains(AuthenticationError, match="another fingerprint", depth=1)


async def test_a_token_that_names_the_newer_ca_asks_for_its_certificate() -> None:
    old, new = make_authority(), second()
    shown = old.certificate_pem + new.certificate_pem
    assert await fetched(token_of(old), shown) == (old.certificate_pem, CONTROL_NAME, 1)
    assert await fetched(token_of(new), shown) == (new.certificate_pem, NEWEST_CONTROL_NAME, 1)
    after = await fetched(token_of(new), new.certificate_pem)
    assert after == (new.certificate_pem, CONTROL_NAME, 1)


class Shown(trio.abc.Stream):
    """A connection with a certificate of the other end."""

    def __init__(self, authority: Authority) -> None:
        _key, csr = create_key_and_csr(A)
        pem = sign_server(authority, csr, A, datetime.now(UTC))
        (self._der,) = ders_of(pem)

    def getpeercert(self, _binary: bool) -> bytes:
        return self._der

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


def told(known: bytes, by: Authority, said: bytes) -> bytes:
    """Return a client's trusted CAs after it knew ``known``, and is told ``said``."""
    token = TokenId("t")
    mine = Credentials("cluster-1", "lab", "ada", token, bytes(32), known.decode(), (HERE,))
    greeting = Greeting(token, bytes(32), "", "ada@test")

    async def dial(_address: Address, _context: object) -> trio.abc.Stream:
        raise NotImplementedError

    connections = Connections(mine, greeting, dial=dial, rng=SeededRng(), log=LOG)
    welcome = m.Welcome(5, "", A, "a", "cluster-1", "lab", "ada", TokenKind.USER, ())
    stream = MessageStream(Shown(by), Connection(End.CLIENT))
    connection = ServerConnection(stream, welcome, HERE)
    connections.pushed(connection, m.Members((), said))
    return connections.ca_pem


def test_a_client_takes_a_second_ca_and_drops_the_first_on_the_word_of_the_second() -> None:
    old, new = make_authority(), second()
    both = old.certificate_pem + new.certificate_pem
    assert told(old.certificate_pem, old, both) == both
    assert told(both, old, b"") == both
    assert told(both, new, new.certificate_pem) == new.certificate_pem
    # Whoever has stolen the old key can say what he likes.
    assert told(both, old, new.certificate_pem) == both
    assert told(both, new, old.certificate_pem) == both
    assert told(both, old, b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----") == both


def test_a_connection_that_has_just_failed_has_shown_nothing() -> None:
    """OpenSSL refuses to tell the certificate, which ended a server when it cut its links."""

    class Failed:
        def getpeercert(self, _binary: bool) -> bytes:
            raise ValueError("handshake not done yet")

    assert not shows_one_of(Failed(), make_authority().certificate_pem)
    assert shows_one_of(object(), make_authority().certificate_pem)


def test_a_server_that_dials_tries_each_certificate_with_each(tmp_path: Path) -> None:
    old, new = make_authority(), second()
    first = make_identity(tmp_path, old, A)
    turn = TlsDialler(TlsContexts(first))._turn  # pyright: ignore[reportPrivateUsage]
    assert turn(B, HERE) == (False, False)
    both = old.certificate_pem + new.certificate_pem
    identity = Identity(A, "cluster-1", first.certificate_path, first.key_path, both)
    dialler = TlsDialler(TlsContexts(identity))
    turns: set[tuple[bool, bool]] = set()
    for _ in range(4):
        turns.add(dialler._turn(B, HERE))  # pyright: ignore[reportPrivateUsage]
        attempts = dialler._attempts  # pyright: ignore[reportPrivateUsage]
        attempts[B, HERE] = attempts.get((B, HERE), 0) + 1
    assert len(turns) == 4


class Disk:
    """A ``CaStore`` in memory."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.kept: list[Authority] = []

    def next_authority(self) -> Authority | None:
        return self.kept[-1] if self.kept else None

    def keep_next(self, authority: Authority) -> None:
        self.kept.append(authority)

    def trust(self, ca_pem: bytes, key_pem: bytes) -> tuple[Identity, Identity | None]:
        before = self.identity
        files = before.certificate_path, before.key_path
        self.identity = Identity(A, "cluster-1", *files, ca_pem)
        return self.identity, None


class Lab:
    """The exchange of one voter of two."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = make_authority(), second()
        identity = make_identity(folder, self.old, A)
        self.disk = Disk(identity)
        self.contexts = TlsContexts(identity)
        servers = {each: Server(each, each[:1], f"{each[:1]}:1", voter=True) for each in (A, B)}
        state = PoolState(cluster_id="cluster-1")
        for server in servers.values():
            state = PoolState(cluster_id="cluster-1", servers=state.servers.set(server.id, server))
        self.machine = PoolMachine(state)
        self.ca_key = CaKey(
            self.contexts,
            self.old,
            vault=CaVault.of_this_process(time.monotonic),
            machine=self.machine,
            now_ms=RealClock().wall_ms,
            log=LOG,
            save=lambda _key: None,
            save_next=self.disk.keep_next,
        )
        links = PeerTransport(
            identity, clock=RealClock(), rng=SeededRng(), address_of=lambda _s: None, log=LOG
        )
        self.exchange = CaExchange(
            self.contexts,
            self.ca_key,
            self.disk,
            machine=self.machine,
            links=links,
            now_ms=RealClock().wall_ms,
            log=LOG,
        )

    def trusts(self, *authorities: Authority) -> None:
        ders = ders_of(b"".join(each.certificate_pem for each in authorities))
        state = self.machine.state
        self.machine.state = PoolState(
            cluster_id="cluster-1", servers=state.servers, authorities=ders
        )


async def test_no_ca_is_made_whose_key_one_voter_of_two_keeps(
    tmp_path: Path, autojump_clock: object
) -> None:
    lab = Lab(tmp_path)
    with pytest.raises(Exception, match="1 of 2 voters do not have the next CA's key"):
        await lab.exchange.make()
    assert numbers_of(lab.contexts.identity.ca_pem) == (1,)


async def test_a_voter_keeps_the_next_ca_of_its_pool_alone(
    tmp_path: Path, autojump_clock: object
) -> None:
    lab = Lab(tmp_path)
    other = create_ca("cluster-2", datetime.now(UTC), number=2)
    body = lab.new.certificate_pem + lab.new.key_pem
    take = lab.exchange.take_next
    assert take(B, other.certificate_pem + other.key_pem) == b""
    assert take(B, lab.new.certificate_pem + lab.old.key_pem) == b""
    assert take(B, b"nonsense") == b""
    assert take(ServerId("stranger"), body) == b""
    assert take(B, body) == fingerprint(lab.new.certificate_pem)
    assert [public_of(each.key_pem) for each in lab.disk.kept] == [public_of(lab.new.key_pem)]
    assert b"PRIVATE KEY" not in lab.disk.kept[0].key_pem
    assert lab.ca_key.signer is not None
    assert lab.ca_key.signer.authority.key_pem == lab.old.key_pem  # nobody trusts the new one yet
    lab.trusts(lab.old, lab.new)
    assert lab.exchange.is_behind()
    await lab.exchange.follow()
    assert (lab.ca_key.joiner, lab.ca_key.signer) != (None, None)
    assert lab.ca_key.signer.authority.certificate_pem == lab.new.certificate_pem
    assert take(B, body) == b""  # two are trusted
    lab.trusts(lab.old)
    assert not lab.exchange.is_behind()  # of a table that was left behind
    lab.trusts(lab.new)
    await lab.exchange.follow()
    assert lab.ca_key.is_whole
    assert numbers_of(lab.contexts.identity.ca_pem) == (2,)


def test_voters_of_a_pool_whose_key_is_lost_are_given_that_of_the_next_ca(tmp_path: Path) -> None:
    """Without it, the pool could not exchange its CA, and servers could not join again."""
    lab = Lab(tmp_path)
    theirs = CaVault.of_this_process(time.monotonic)
    key, csr = create_key_and_csr(B)
    certificate = sign_server(lab.old, csr, B, datetime.now(UTC))
    lab.ca_key._signers.clear()  # pyright: ignore[reportPrivateUsage]
    request = make_request(theirs.public(), certificate, key)
    assert lab.ca_key.give(B, request) == b""
    now_ms = RealClock().wall_ms()
    _, made = lab.ca_key.vault.ask(CreateCa("cluster-1", now_ms, 2, lab.old.certificate_pem))
    lab.ca_key.next_key = made
    assert public_of(theirs.keep(lab.ca_key.give(B, request))) == public_of(made)


async def test_a_table_with_what_is_no_ca_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lab = Lab(tmp_path)
    state = lab.machine.state
    lab.machine.state = PoolState(servers=state.servers, authorities=(b"no", b"certificate"))
    assert not lab.exchange.is_behind()
    assert not lab.exchange.is_behind()
    assert caplog.text.count("has a CA that is none") == 1


def test_a_serial_number_that_no_ca_gives_makes_no_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(x509, "random_serial_number", lambda: 5)
    der = ssl.PEM_cert_to_DER_cert(create_ca("c", datetime.now(UTC)).certificate_pem.decode())
    version_and_serial = bytes.fromhex("a003020102 0201")
    forged = der.replace(version_and_serial + b"\x05", version_and_serial + b"\x00")
    assert forged != der
    with pytest.raises(AuthenticationError, match="no certificate"):
        fingerprint(ssl.DER_cert_to_PEM_cert(forged).encode())
