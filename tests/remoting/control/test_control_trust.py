"""Admitted and refused peers, over real TLS sockets on loopback."""

import gc
import logging
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.remoting.control.control_cluster import (
    CLUSTER_ID,
    FAR_FUTURE,
    FakeHost,
    FakeLog,
    FakeReplicatedLog,
    make_gpus,
    request,
    secret_of,
    server_id,
    token_id,
)
from tests.remoting.control.control_kit import (
    PeerLog,
    RealClock,
    SeededRng,
    make_authority,
    make_control_server,
    make_identity,
    until,
)

from gpupool.pool.errors import AuthenticationError, DeniedError, GpupoolError, UsageError
from gpupool.pool.fair_access import Item, NetworkTurns
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.state import PoolState, TokenKind
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.enrolment import join_pool, login
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.connection import Connection, End
from gpupool.remoting.protocol.token_text import TokenText, format_token, hash_secret
from gpupool.remoting.server.control_server import ControlServer
from gpupool.remoting.server.listener import accept_queue, router
from gpupool.remoting.server.listener.router import WebDoor, client_hello_name
from gpupool.remoting.server.server_settings import ServerSettings, Software
from gpupool.remoting.transport.authority.certificate_renewal import ServerCertificates
from gpupool.remoting.transport.client_tls import client_context, first_contact_context
from gpupool.remoting.transport.dial import Greeting, connect
from gpupool.remoting.transport.message_stream import MessageStream
from gpupool.remoting.transport.peer_transport import VERSION, PeerTransport
from gpupool.remoting.transport.pki import (
    Authority,
    TlsContexts,
    control_context,
    create_key_and_csr,
    fingerprint,
    peer_client_context,
    server_name,
)

DEADLINE_S = 10.0
"""Time limit for work of milliseconds, on any machine."""


class TakingHost(FakeHost):
    """A host that knows one session, and takes its connection."""

    session = bytes(range(16))

    def knows_session(self, session: bytes) -> bool:
        return session == self.session

    async def hand_over(self, session: bytes, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        connection.setblocking(True)
        connection.settimeout(5)
        self.taken.append(connection)

    taken: list[socket.socket]


class Lab:
    """Two servers with real sockets over a fake replicated log."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder = folder
        self.authority = authority
        self.log = FakeLog()
        self.log.latency_s = 0.001
        self.clock = RealClock()
        self.ports: list[int] = []
        self.machines: list[PoolMachine] = []
        self.servers: list[ControlServer] = []
        self.contexts: list[TlsContexts] = []
        self.scopes: list[trio.CancelScope] = []
        self.hosts: list[TakingHost] = []
        self.open: list[trio.abc.AsyncResource] = []
        self.web: WebDoor | None = None

    async def tcp(self, number: int = 1) -> trio.SocketStream:
        """Connect to a server; closed with the lab."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.ports[number - 1])
        self.open.append(stream)
        return stream

    async def tls(
        self, context: ssl.SSLContext, name: str | None, number: int = 1
    ) -> "trio.SSLStream[trio.SocketStream]":
        tcp = await self.tcp(number)
        return trio.SSLStream(tcp, context, server_hostname=name, https_compatible=True)

    async def start(
        self, nursery: trio.Nursery, count: int, settings: ServerSettings | None = None
    ) -> None:
        for number in range(1, count + 1):
            await self._start_one(nursery, number, settings)
        self.commit(commands.CreatePool(CLUSTER_ID, "lab", "tls"))
        for number, port in enumerate(self.ports, start=1):
            address = f"127.0.0.1:{port}"
            if number > 1:
                self.token(f"gpu-{number}", TokenKind.SERVER)
            token = token_id(f"gpu-{number}") if number > 1 else None
            self.commit(
                commands.JoinServer(server_id(number), f"gpu-{number}", address, False, token)
            )
        self.token("ada", TokenKind.USER)
        self.token("root", TokenKind.OPERATOR)
        with trio.fail_after(DEADLINE_S):
            await until(
                lambda: all(s.grantable and s.has_keys for s in self.state.servers.values())
            )

    async def _start_one(
        self, nursery: trio.Nursery, number: int, settings: ServerSettings | None
    ) -> None:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        identity = make_identity(self.folder, self.authority, server_id(number))
        machine = PoolMachine(PoolState())
        host = TakingHost(make_gpus(number, 1))
        host.taken = []
        links = PeerTransport(
            identity,
            clock=self.clock,
            rng=SeededRng(number),
            address_of=lambda _peer: None,
            log=logging.getLogger("test"),
        )
        await nursery.start(links.run, PeerLog())
        self.contexts.append(TlsContexts(identity))
        server = make_control_server(
            machine,
            FakeReplicatedLog(self.log, server_id(number), machine),
            host,
            links,
            ServerCertificates(contexts=self.contexts[-1], authority=self.authority),
            Software(f"127.0.0.1:{port}", "0.1.0"),
            clock=self.clock,
            rng=SeededRng(number),
            log=logging.getLogger("test"),
            web=self.web,
            settings=settings,
        )
        scope = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await server.serve([listener], task_status=task_status)

        await nursery.start(serve)
        self.ports.append(port)
        self.machines.append(machine)
        self.servers.append(server)
        self.scopes.append(scope)
        self.hosts.append(host)

    async def stop(self, number: int) -> None:
        replicated_log = self.log.replicated_logs[server_id(number)]
        replicated_log.cut_off_at = trio.current_time()
        self.scopes[number - 1].cancel()
        await trio.sleep(0.02)

    def commit(self, command: commands.Command) -> None:
        leader = self.log.leader()
        assert leader is not None
        plain = commands.wrap(command, at_ms=self.clock.wall_ms(), ttl_ms=0)
        result = self.log.append(plain, leader)
        assert isinstance(result, dict) and result["ok"], result

    @property
    def state(self) -> PoolState:
        leader = self.log.leader()
        assert leader is not None
        return self.log.replicated_logs[leader].machine.state

    def token(self, user: str, kind: TokenKind, expires: Milliseconds = FAR_FUTURE) -> str:
        hashed = hash_secret(secret_of(user))
        self.commit(commands.CreateToken(token_id(user), kind, user, hashed, expires, "root"))
        return self.text(user, kind)

    def text(self, user: str, kind: TokenKind, addresses: Sequence[Address] = ()) -> str:
        return format_token(
            TokenText(
                CLUSTER_ID,
                kind,
                token_id(user),
                secret_of(user),
                fingerprint(self.authority.certificate_pem),
                tuple(addresses) or self.addresses(),
            )
        )

    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address("127.0.0.1", port) for port in self.ports)

    def credentials(self, user: str = "ada") -> Credentials:
        return Credentials(
            CLUSTER_ID,
            "lab",
            user,
            token_id(user),
            secret_of(user),
            self.authority.certificate_pem.decode(),
            self.addresses(),
        )


@asynccontextmanager
async def start_lab(
    folder: Path,
    count: int = 1,
    settings: ServerSettings | None = None,
    web: WebDoor | None = None,
) -> AsyncGenerator[Lab, None]:
    async with trio.open_nursery() as nursery:
        lab = Lab(folder, make_authority())
        lab.web = web
        await lab.start(nursery, count, settings)
        yield lab
        for stream in lab.open:
            await trio.aclose_forcefully(stream)
        for host in lab.hosts:
            for taken in host.taken:
                taken.close()
        nursery.cancel_scope.cancel()


async def refusal_of(credentials: Credentials) -> GpupoolError:
    with pytest.raises(GpupoolError) as caught:
        async with connect_pool(credentials, timeout_s=3):
            pass
    return caught.value


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r"127\.0\.0\.1:\d+", "CLIENT", r.getMessage()) for r in caplog.records]


# --- tokens --------------------------------------------------------------------------------------


async def test_login_and_use(tmp_path: Path) -> None:
    async with start_lab(tmp_path, 2) as lab:
        credentials = await login(lab.text("ada", TokenKind.USER))
        assert credentials == lab.credentials()
        async with connect_pool(credentials) as pool:
            hold = await pool.allocate(request(pool), wait_s=0)
            await hold.release()
            await until(lambda: len(pool.connections.by_server) == 2)


@pytest.mark.parametrize(
    ("case", "code", "client_line", "server_line"),
    [
        (
            "wrong secret",
            "authentication",
            "the pool does not know this token",
            "hung up on CLIENT: refused: the pool does not know this token",
        ),
        (
            "unknown token",
            "authentication",
            "the pool does not know this token",
            "hung up on CLIENT: refused: the pool does not know this token",
        ),
        (
            "expired",
            "authentication",
            "the token is refused: token 6f6c64000000 has expired",
            "hung up on CLIENT: refused: the token is refused: token 6f6c64000000 has expired",
        ),
        (
            "revoked",
            "authentication",
            "the token is refused: token 616461000000 was revoked",
            "hung up on CLIENT: refused: the token is refused: token 616461000000 was revoked",
        ),
        (
            "other CA",
            "authentication",
            "127.0.0.1:PORT does not prove that it is a server of this pool: its certificate is of "
            "no CA that is trusted here: the pool has exchanged its CA since this login was last "
            "used, or it is another pool",
            "refused CLIENT: it hung up during the TLS handshake; it may know another CA",
        ),
        (
            "other pool, same CA",
            "authentication",
            "the server belongs to another pool: it is one of 'lab'",
            "",
        ),
    ],
)
async def test_refused_with_one_clear_line_on_both_sides(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: str,
    code: str,
    client_line: str,
    server_line: str,
) -> None:
    caplog.set_level(logging.INFO, "test")
    async with start_lab(tmp_path) as lab:
        credentials = lab.credentials()
        if case == "wrong secret":
            credentials = replace(credentials, secret=bytes(32))
        elif case == "unknown token":
            credentials = replace(credentials, token=TokenId("ffffffffffff"))
        elif case == "expired":
            lab.token("old", TokenKind.USER, Milliseconds(1000))
            credentials = lab.credentials("old")
        elif case == "revoked":
            lab.commit(commands.RevokeToken(token_id("ada"), "root"))
        elif case == "other CA":
            credentials = replace(credentials, ca_pem=make_authority().certificate_pem.decode())
        else:
            credentials = replace(credentials, cluster_id="cluster-2")
        error = await refusal_of(credentials)
        if server_line:
            await logged(caplog, re.escape(server_line))
    assert error.code == code
    assert re.fullmatch(client_line.replace("PORT", r"\d+"), str(error))
    assert "\n" not in str(error)


async def test_a_revoked_token_is_cut_off_at_once(tmp_path: Path) -> None:
    async with start_lab(tmp_path, 2) as lab, connect_pool(lab.credentials()) as pool:
        hold = await pool.allocate(request(pool), wait_s=0)
        async with connect_pool(lab.credentials("root")) as root:
            before = trio.current_time()
            await root.operate(m.RevokeToken(token_id("ada")))
            reason = await hold.wait_lost()
            await until(lambda: not pool.connections.by_server)
            await until(lambda: not lab.state.leases)
            assert trio.current_time() - before < 2.0
        assert "revoked" in reason
        with pytest.raises(AuthenticationError, match="was revoked"):
            await _view_once_refused(pool)


async def _view_once_refused(pool: Pool) -> None:
    with trio.fail_after(DEADLINE_S):
        await until(lambda: isinstance(pool.connections.failure(), AuthenticationError))
    await pool.view()


async def test_first_contact_refuses_another_ca(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        good = lab.text("ada", TokenKind.USER)
        lab.authority = make_authority()
        bad = lab.text("ada", TokenKind.USER)
        assert good != bad
        with pytest.raises(AuthenticationError, match="does not belong to the pool of this token"):
            await login(bad)


async def test_tokens_are_made_and_listed_by_operators_only(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        async with connect_pool(lab.credentials("root")) as root:
            text = await root.create_token(TokenKind.USER, "bob", 3600)
            credentials = await login(text)
            assert credentials.user == "bob"
            states = {t.user: t.state for t in await root.list_tokens()}
            assert states == {"ada": "valid", "root": "valid", "bob": "valid"}
        async with connect_pool(credentials) as bob:
            with pytest.raises(DeniedError, match="operator"):
                await bob.create_token(TokenKind.OPERATOR, "bob", 3600)
            with pytest.raises(DeniedError, match="operator"):
                await bob.list_tokens()


# --- joining -------------------------------------------------------------------------------------


async def join(token: str, number: int, name: str = "") -> object:
    _key, csr = create_key_and_csr(server_id(number))
    return await join_pool(
        token,
        server=server_id(number),
        name=name or f"gpu-{number}",
        address=Address("127.0.0.1", 1000 + number),
        witness=False,
        csr_pem=csr,
    )


async def test_joining_works_after_the_first_server_is_dead(tmp_path: Path) -> None:
    async with start_lab(tmp_path, 2) as lab:
        token = lab.token("new", TokenKind.SERVER)
        await lab.stop(1)
        key, csr = create_key_and_csr(server_id(3))
        joined = await join_pool(
            token,
            server=server_id(3),
            name="gpu-3",
            address=Address("127.0.0.1", 1003),
            witness=False,
            csr_pem=csr,
        )
        assert joined.voter
        assert joined.ca_pem == lab.authority.certificate_pem
        assert joined.ca_key_pem == b"", "its signer asks a voter's for it"
        assert [member.name for member in joined.members] == ["gpu-1", "gpu-2", "gpu-3"]
        # The certificate is good for a link.
        identity = make_identity(tmp_path, lab.authority, server_id(3))
        identity.certificate_path.write_bytes(joined.certificate_pem)
        identity.key_path.write_bytes(key)
        context = peer_client_context(identity)
        tls = await lab.tls(context, server_name(server_id(2)), 2)
        await tls.send_all(struct.pack(">IBHQ", 10, 1, VERSION, 0))
        with trio.fail_after(DEADLINE_S):
            assert await tls.receive_some()


async def test_a_server_token_lets_one_server_in(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        token = lab.token("new", TokenKind.SERVER)
        await join(token, 3)
        await join(token, 3)  # the same server again: its answer was lost
        with pytest.raises(AuthenticationError, match="each lets one server in"):
            await join(token, 4)
        with pytest.raises(AuthenticationError, match="has server 000000000003 already"):
            await join(lab.token("thief", TokenKind.SERVER), 3)
        with pytest.raises(UsageError, match="a server named gpu-3 already"):
            await join(lab.token("twin", TokenKind.SERVER), 5, "gpu-3")
        with pytest.raises(DeniedError, match="takes a server token"):
            await join(lab.text("ada", TokenKind.USER), 6)
        # A server's token is good for nothing else.
        async with connect_pool(lab.credentials("twin")) as pool:
            with pytest.raises(DeniedError, match='good for "gpupool join" only'):
                await pool.view()


async def test_only_voters_get_the_key(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        for number in range(2, 8):
            await join(lab.token(f"s{number}", TokenKind.SERVER), number)
        joined = await join(lab.token("s8", TokenKind.SERVER), 8)
        assert getattr(joined, "voter") is False  # noqa: B009
        assert getattr(joined, "ca_key_pem") == b""  # noqa: B009


# --- strangers -----------------------------------------------------------------------------------

QUICK = ServerSettings(unauthenticated_timeout_s=0.3)


async def received_to_the_end(
    stream: trio.abc.ReceiveStream, within_s: float = DEADLINE_S
) -> bytes:
    """Return the bytes received before the other end closed."""
    received = b""
    with trio.fail_after(within_s):
        try:
            while data := await stream.receive_some():
                received += bytes(data)
        except trio.BrokenResourceError:
            pass
    return received


async def logged(caplog: pytest.LogCaptureFixture, pattern: str) -> None:
    """Wait until a line of the log is such; a connection may end before that is logged."""
    with trio.fail_after(DEADLINE_S):
        await until(lambda: any(re.fullmatch(pattern, line) for line in lines(caplog)))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", r"not a gpupool connection: it begins with \"GET / HT\""),
        (b"", "timed out"),
        (b"g", "timed out"),
        (b"\x16\x03\x01", "timed out"),
        (b"\x16" + bytes(100), "malformed TLS.*"),
        (b"gpupool\x01" + bytes(16), "no session waits for it"),
    ],
)
async def test_strangers_are_hung_up_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, line: str
) -> None:
    caplog.set_level(logging.INFO, "test")
    async with start_lab(tmp_path, 1, QUICK) as lab:
        stream = await lab.tcp()
        if data:
            await stream.send_all(data)
        assert await received_to_the_end(stream) == b""
        await logged(caplog, f"refused CLIENT: {line}")


@pytest.mark.parametrize("name", ["", "elsewhere.gpupool", server_name(server_id(9))])
async def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    async with start_lab(tmp_path, 1, QUICK) as lab:
        context = first_contact_context()
        tls = await lab.tls(context, name or None)
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(DEADLINE_S):
            await tls.do_handshake()


async def test_a_client_without_a_certificate_is_no_peer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "test")
    async with start_lab(tmp_path, 1, QUICK) as lab:
        context = client_context(lab.authority.certificate_pem)
        tls = await lab.tls(context, server_name(server_id(1)))
        assert await received_to_the_end(tls) == b""
        await logged(caplog, "refused CLIENT: it shows no certificate")


@pytest.mark.parametrize(
    "data",
    [
        b"",  # says nothing
        struct.pack(">IB", 100, 1),  # announces and does not send
        struct.pack(">IB", 4097, 1) + bytes(100),  # more than a stranger may send
        struct.pack(">IB", 2, 1) + b"\xff\xff",  # no CBOR
        struct.pack(">IB", 2, 16) + b"\x82\x01",  # a call before the greeting
        struct.pack(">IB", 2, 77) + b"\x82\x01",  # no message
    ],
)
async def test_malformed_greetings_are_hung_up_on(tmp_path: Path, data: bytes) -> None:
    async with start_lab(tmp_path, 1, QUICK) as lab:
        tls = await open_control(lab)
        if data:
            await tls.send_all(data)
        assert await received_to_the_end(tls) == b""
        async with connect_pool(lab.credentials()) as pool:
            await pool.view()


async def open_control(lab: Lab) -> "trio.SSLStream[trio.SocketStream]":
    tls = await lab.tls(client_context(lab.authority.certificate_pem), "control.gpupool")
    await tls.do_handshake()
    return tls


@pytest.mark.parametrize("limit", ["unauthenticated_count_max", "unauthenticated_per_address_max"])
async def test_silent_strangers_keep_nobody_out(tmp_path: Path, limit: str) -> None:
    """A full house refused every login; now the oldest silent connection goes for a new one."""
    settings = replace(ServerSettings(unauthenticated_timeout_s=20.0), **{limit: 4})
    async with start_lab(tmp_path, 1, settings) as lab:
        silent = [await lab.tcp() for _ in range(4)]
        async with connect_pool(lab.credentials()) as pool:
            await pool.view()
            assert await received_to_the_end(silent[0], 1.0) == b""
            silent += [await lab.tcp() for _ in range(20)]
            await pool.view()
        for stream in silent:
            await trio.aclose_forcefully(stream)


async def test_handshakes_that_came_to_nothing_leave_no_tls_behind(tmp_path: Path) -> None:
    """Trio's stream refers to itself: 50 KiB of each waited for the garbage collector."""

    def counted() -> int:
        return sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())

    # Long enough for all eight on a busy machine.
    settings = ServerSettings(unauthenticated_timeout_s=3.0)
    async with start_lab(tmp_path, 1, settings) as lab:
        gc.collect()
        before = counted()
        gc.disable()
        try:
            for _ in range(8):
                stream = await lab.tcp()
                await stream.send_all(first_flight("control.gpupool"))
                assert await stream.receive_some()
            assert counted() == before + 8
            for stream in lab.open:
                assert isinstance(stream, trio.SocketStream)
                await received_to_the_end(stream)
            with trio.fail_after(DEADLINE_S):
                await until(lambda: counted() == before)
        finally:
            gc.enable()


async def test_a_stranger_that_has_hung_up_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind one byte that nobody reads, the end of a connection was not seen in time."""
    caplog.set_level(logging.INFO, "test")
    settings = ServerSettings(unauthenticated_timeout_s=30.0)
    async with start_lab(tmp_path, 1, settings) as lab:
        stream = await lab.tcp()
        await stream.send_all(b"\x16")
        await trio.sleep(0.05)
        await stream.send_eof()
        assert await received_to_the_end(stream, 2.0) == b""


async def test_an_opening_is_parsed_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dripped byte by byte, it was parsed at each byte, which silenced a server for 20 seconds."""
    parsed: list[int] = []

    def count(data: bytes) -> str | None:
        parsed.append(len(data))
        return client_hello_name(data)

    monkeypatch.setattr(router, "client_hello_name", count)
    opening = first_flight("control.gpupool")
    async with start_lab(tmp_path) as lab:
        stream = await lab.tcp()
        for byte in opening:
            await stream.send_all(bytes([byte]))
            await trio.lowlevel.checkpoint()
        assert await stream.receive_some()
        await trio.aclose_forcefully(stream)
        assert 1 <= len(parsed) <= 2
        parsed.clear()
        # The same in records of one byte, each of them whole.
        fragmented = b"".join(b"\x16\x03\x01\x00\x01" + bytes([byte]) for byte in opening[5:])
        stream = await lab.tcp()
        await stream.send_all(fragmented)
        assert await received_to_the_end(stream, 2.0) == b""
        assert 1 <= len(parsed) <= 2


@pytest.mark.parametrize("mode", ["plain", "tls"])
async def test_data_connections_are_handed_over_untouched(tmp_path: Path, mode: str) -> None:
    async with start_lab(tmp_path) as lab:
        host = lab.hosts[0]
        tcp = await lab.tcp()
        if mode == "plain":
            opening = b"gpupool\x01" + TakingHost.session + b"the rest of the handshake"
        else:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            name = TakingHost.session.hex() + ".session.gpupool"
            tls = first_contact_context().wrap_bio(incoming, outgoing, server_hostname=name)
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            opening = outgoing.read()
        await tcp.send_all(opening)
        with trio.fail_after(DEADLINE_S):
            await until(lambda: host.taken)
        [taken] = host.taken
        assert await trio.to_thread.run_sync(taken.recv, 4096) == opening
        taken.sendall(b"welcome")
        assert await tcp.receive_some() == b"welcome"
        taken.close()


async def test_as_many_clients_as_there_may_be_keep_no_peer_and_no_session_out(
    tmp_path: Path,
) -> None:
    async with start_lab(tmp_path, 1, ServerSettings(client_count_max=1)) as lab:
        lab.token("gpu-2", TokenKind.SERVER)
        lab.commit(
            commands.JoinServer(server_id(2), "gpu-2", "127.0.0.1:1", False, token_id("gpu-2"))
        )
        async with connect_pool(lab.credentials()) as pool:
            assert (await refusal_of(lab.credentials())).code == "unreachable"
            identity = make_identity(tmp_path, lab.authority, server_id(2))
            peer = await lab.tls(peer_client_context(identity), server_name(server_id(1)))
            tcp = await lab.tcp()
            opening = b"gpupool\x01" + TakingHost.session
            with trio.fail_after(DEADLINE_S):
                await peer.send_all(struct.pack(">IBHQ", 10, 1, VERSION, 0))
                assert await peer.receive_some()
                await tcp.send_all(opening)
                await until(lambda: lab.hosts[0].taken)
            [taken] = lab.hosts[0].taken
            assert await trio.to_thread.run_sync(taken.recv, 4096) == opening
            await pool.view()


async def test_a_removed_server_gets_no_link(tmp_path: Path) -> None:
    async with start_lab(tmp_path, 2) as lab:
        lab.commit(commands.RemoveServer(server_id(2), "root"))
        identity = make_identity(tmp_path, lab.authority, server_id(2))
        tls = await lab.tls(peer_client_context(identity), server_name(server_id(1)))
        with trio.fail_after(DEADLINE_S):
            received = bytes(await tls.receive_some())
        assert received.endswith(struct.pack(">IB", 0, 4))
        # Its clients are sent away as well.
        with pytest.raises(AuthenticationError, match="not a member"):
            async with connect_pool(
                lab.credentials(), [Address("127.0.0.1", lab.ports[1])], timeout_s=2
            ):
                pass


async def test_calls_out_of_turn_end_the_connection(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        tls = await open_control(lab)
        secret = secret_of("ada")
        hello = m.Hello(m.PROTOCOL, "0", token_id("ada"), secret, "test")
        await tls.send_all(m.to_frame(1, hello, size_max=4096))
        assert await tls.receive_some()
        await tls.send_all(m.to_frame(2, hello, size_max=4096))
        assert await received_to_the_end(tls) == b""


async def test_old_protocols_are_told(tmp_path: Path) -> None:
    async with start_lab(tmp_path) as lab:
        tls = await open_control(lab)
        hello = m.Hello(99, "9.9", token_id("ada"), secret_of("ada"), "test")
        await tls.send_all(m.to_frame(1, hello, size_max=4096))
        assert (
            f"speaks version {m.PROTOCOL} of the protocol, not 99".encode()
            in await received_to_the_end(tls)
        )


async def test_handshakes_leave_the_loop_alone(tmp_path: Path) -> None:
    """On a busy machine 100 of them a second made each step of the loop wait for a processor.

    The second one comes from an address that is known by then, which an attacker may share.
    """
    threads: list[bool] = []

    def named(*_words: object) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    async with start_lab(tmp_path) as lab:
        lab.contexts[0].control().sni_callback = named
        for _ in range(2):
            async with connect_pool(lab.credentials()):
                pass
    assert threads == [False, False]


async def test_a_stranger_who_leaves_the_answer_alone_gets_no_task_and_no_parser_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks and parsers for 150 of them a second took a seventh of the loop's core."""
    served: list[router.Admitted] = []
    on_loop: list[bool] = []
    serve = router.Router.serve

    async def count(self: router.Router, admitted: router.Admitted) -> None:
        served.append(admitted)
        await serve(self, admitted)

    def parse(data: bytes) -> str | None:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return client_hello_name(data)

    monkeypatch.setattr(router.Router, "serve", count)
    monkeypatch.setattr(router, "client_hello_name", parse)
    opening = first_flight("control.gpupool")
    async with start_lab(tmp_path) as lab:
        stream = await lab.tcp()
        await stream.send_all(opening)
        assert await stream.receive_some()
        assert (on_loop, served) == ([False], [])
        await stream.send_all(b"\x16\x03\x03\x00\x01x")  # what no handshake goes on with
        await received_to_the_end(stream)
        assert len(served) == 1


async def test_the_openings_of_one_known_address_keep_no_other_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads them all, and a known address may begin hundreds at once."""
    names: list[str | None] = []
    go_on, waiting = threading.Event(), list[str]()

    class Noting(NetworkTurns[Item]):
        def add(self, network: str, item: Item) -> None:
            waiting.append(network)
            super().add(network, item)

    def parse(data: bytes) -> str | None:
        assert go_on.wait(DEADLINE_S)
        names.append(client_hello_name(data))
        return names[-1]

    monkeypatch.setattr(accept_queue, "NetworkTurns", Noting)
    monkeypatch.setattr(accept_queue, "BEGIN_BATCH", 8)
    async with start_lab(tmp_path) as lab:
        async with connect_pool(lab.credentials()):
            waiting.clear()
        monkeypatch.setattr(router, "client_hello_name", parse)
        try:
            for number in range(1 + 3 * accept_queue.BEGIN_BATCH):
                await (await lab.tcp()).send_all(first_flight(f"one{number}.gpupool"))
            await until(lambda: len(waiting) > 3 * accept_queue.BEGIN_BATCH)
            other = trio.socket.socket()
            await other.bind(("127.0.0.2", 0))
            await other.connect(("127.0.0.1", lab.ports[0]))
            lab.open.append(trio.SocketStream(other))
            await other.send(first_flight("another.gpupool"))
            await until(lambda: "127.0.0.2" in waiting)
        finally:
            go_on.set()
        with trio.fail_after(DEADLINE_S):
            await until(lambda: "another.gpupool" in names)
    assert names.index("another.gpupool") <= 2 * accept_queue.BEGIN_BATCH


async def test_a_stranger_who_must_go_while_his_opening_is_read_is_closed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His socket is the other thread's meanwhile, and its number must not become another's."""
    reads, go_on = threading.Semaphore(0), threading.Event()

    def parse(data: bytes) -> str | None:
        reads.release()
        assert go_on.wait(DEADLINE_S)
        return client_hello_name(data)

    monkeypatch.setattr(router, "client_hello_name", parse)
    settings = ServerSettings(unauthenticated_timeout_s=20.0, unauthenticated_count_max=2)
    async with start_lab(tmp_path, 1, settings) as lab:
        streams: list[trio.SocketStream] = []
        try:
            for _ in range(4):
                streams.append(await lab.tcp())
                await streams[-1].send_all(first_flight("control.gpupool"))
                await trio.sleep(0.05)
            assert reads.acquire(timeout=DEADLINE_S)
        finally:
            go_on.set()
        for stream in streams[:2]:
            await received_to_the_end(stream)
        for stream in streams[2:]:
            assert await stream.receive_some()


def first_flight(name: str) -> bytes:
    """Return the ClientHello of a client that trusts every certificate."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = first_contact_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_a_server_that_says_it_is_another_is_refused(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Every server answers as ``control.gpupool``, so the name alone does not tell them apart."""
    authority = make_authority()
    identity = make_identity(tmp_path, authority, server_id(1))
    says = server_id(1)

    async def serve(far: trio.abc.Stream) -> None:
        tls = trio.SSLStream(far, control_context(identity), server_side=True)
        stream = MessageStream(tls, Connection(End.SERVER))
        await stream.receive()
        kind = TokenKind.USER
        await stream.send(
            1, m.Welcome(m.PROTOCOL, "0", says, "gpu-1", CLUSTER_ID, "lab", "ada", kind, ())
        )

    async def dial(_address: Address, context: ssl.SSLContext) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(serve, far)
        return trio.SSLStream(near, context, server_hostname="control.gpupool")

    async def welcomed() -> m.Welcome:
        greeting = Greeting(token_id("ada"), secret_of("ada"), "0", "test")
        context = client_context(authority.certificate_pem)
        found = await connect(
            Address("10.0.0.4", 7470), context, greeting, cluster_id=CLUSTER_ID, dial=dial
        )
        return found[1]

    assert (await welcomed()).server == says
    says = server_id(2)
    with pytest.raises(AuthenticationError, match="the server is not the one that it says"):
        await welcomed()


def test_ids_of_servers_are_what_certificates_say() -> None:
    assert server_name(ServerId("abc")) == "abc.server.gpupool"
