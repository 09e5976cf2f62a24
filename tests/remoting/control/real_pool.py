"""Servers of a real pool in this process: real Raft on disk, real TLS on loopback, fake workers."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
from tests.remoting.control.control_cluster import (
    CLUSTER_ID,
    FAR_FUTURE,
    FakeHost,
    make_gpus,
    secret_of,
    server_id,
    token_id,
)
from tests.remoting.control.control_kit import make_control_server, until

from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.storage.store import bootstrap, open_storage
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, TokenKind
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.enrolment import join_pool
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import TokenText, format_token, hash_secret
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.server.control_server import ControlServer
from gpupool.remoting.server.server_settings import Software
from gpupool.remoting.transport.authority.certificate_renewal import (
    RenewalSettings,
    ServerCertificates,
)
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    SERVER_VALID,
    Authority,
    Identity,
    TlsContexts,
    create_ca,
    create_key_and_csr,
    fingerprint,
    sign_server,
)
from gpupool.remoting.transport.system_clock import SystemClock, SystemRng

USERS = (("root", TokenKind.OPERATOR), ("ada", TokenKind.USER))


class RealServer:
    """One server: ``gpupool join`` in all but the worker processes."""

    def __init__(self, folder: Path, number: int, gpu_count: int, port: int = 0) -> None:
        self.id = server_id(number)
        self.number = number
        self.folder = folder / self.id
        self.machine = PoolMachine(PoolState())
        self.host = FakeHost(make_gpus(number, gpu_count))
        self.host.open_s = self.host.kill_s = 0.0
        self.scope = trio.CancelScope()
        self.port = port
        self.starts = 0
        self.known: dict[ServerId, str] = {}
        self.authority: Authority | None = None
        self.has_ca_key = True
        self.valid = SERVER_VALID
        self.renewal = RenewalSettings()
        self.replicated_log: RaftDriver | None = None
        self.control: ControlServer | None = None
        self.links: PeerTransport | None = None

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def listen(self) -> trio.SocketListener:
        listener = (await trio.open_tcp_listeners(self.port, host="127.0.0.1"))[0]
        self.port = listener.socket.getsockname()[1]
        return listener

    def found(self) -> None:
        """Make the identity and the storage of the first server."""
        self.folder.mkdir(parents=True)
        now = datetime.now(UTC)
        self.authority = create_ca(CLUSTER_ID, now)
        key, csr = create_key_and_csr(self.id)
        self._write(key, sign_server(self.authority, csr, self.id, now, valid=self.valid))
        storage = open_storage(self.folder, create=True)
        bootstrap(storage, self.id)
        storage.close()

    async def join(self, token: str) -> None:
        """Be admitted, as ``gpupool join TOKEN`` is."""
        self.folder.mkdir(parents=True)
        key, csr = create_key_and_csr(self.id)
        joined = await join_pool(
            token,
            server=self.id,
            name=f"gpu-{self.number}",
            address=self.address,
            witness=False,
            csr_pem=csr,
        )
        self.known = {member.server: member.address for member in joined.members}
        self.authority = Authority(joined.ca_pem, b"")
        self.has_ca_key = False  # until it has asked a voter
        self._write(key, joined.certificate_pem)
        open_storage(self.folder, create=True).close()

    def _write(self, key: bytes, certificate: bytes) -> None:
        (self.folder / "server.pem").write_bytes(certificate + key)

    def _save_certificate(self, certificate: bytes, key: bytes) -> Identity:
        self._write(key, certificate)
        return self._identity()

    def _identity(self) -> Identity:
        assert self.authority is not None
        path = self.folder / "server.pem"
        return Identity(self.id, CLUSTER_ID, path, path, self.authority.certificate_pem)

    async def run(
        self,
        listener: trio.SocketListener,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until ``scope`` is cancelled, which is as sudden as a crash for all others."""
        assert self.authority is not None
        self.starts += 1
        self.scope = trio.CancelScope()
        self.machine = PoolMachine(PoolState())
        identity = self._identity()
        contexts = TlsContexts(identity)
        clock, rng, log = SystemClock(), SystemRng(), logging.getLogger(f"s{self.number}")
        links = self.links = PeerTransport(
            identity,
            clock=clock,
            rng=rng,
            address_of=self._address_of,
            log=log,
            contexts=contexts,
        )
        storage = open_storage(self.folder)
        replicated_log = self.replicated_log = RaftDriver(
            self.id,
            storage=storage,
            machine=self.machine,
            clock=clock,
            randomness=rng,
            links=links,
        )
        replicated_log.set_servers(tuple(self.machine.state.servers) or tuple(self.known))
        self.control = make_control_server(
            self.machine,
            replicated_log,
            self.host,
            links,
            ServerCertificates(
                contexts=contexts,
                save=self._save_certificate,
                renewal=self.renewal,
                valid=self.valid,
                authority=self.authority if self.has_ca_key else None,
            ),
            Software(str(self.address), "0.1.0"),
            clock=clock,
            rng=rng,
            log=log,
            incarnation=self.starts,
            follow=self._follow,
        )
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(links.run, replicated_log)
                    await nursery.start(replicated_log.run)
                    await nursery.start(self.control.serve, [listener])
                    task_status.started()
        finally:
            replicated_log.close()

    def _address_of(self, server: ServerId) -> str | None:
        known = self.machine.state.servers.get(server)
        return known.address if known else self.known.get(server)

    def _follow(self, servers: object, voters: object) -> None:
        assert self.replicated_log is not None
        state = self.machine.state
        removed = self.id in state.removed
        if self.id in state.servers or removed:
            self.replicated_log.set_servers(tuple(state.servers), removed=removed)
            self.replicated_log.reconcile_voters(state.voters(), stopgaps=state.witnesses())

    async def commit(self, command: Command) -> None:
        """Commit a command by way of this server."""
        assert self.replicated_log is not None
        committer = Committer(
            self.replicated_log,
            TableClock(lambda: self.machine.state, self_id=self.id, clock=SystemClock()),
            SystemRng(),
        )
        decision = await committer.commit(command, timeout_s=10)
        assert decision.result is not None, decision
        assert decision.result.ok, decision

    async def create_pool(self) -> None:
        """Commit the first commands of a pool, with this server and the users in it."""
        await self.commit(commands.CreatePool(CLUSTER_ID, "lab", "tls"))
        name = f"gpu-{self.number}"
        await self.commit(commands.JoinServer(self.id, name, str(self.address), False, None))
        for user, kind in USERS:
            await self._create_token(user, kind)

    async def _create_token(self, user: str, kind: TokenKind) -> None:
        hashed = hash_secret(secret_of(user))
        await self.commit(
            commands.CreateToken(token_id(user), kind, user, hashed, FAR_FUTURE, "root")
        )

    async def invite(self, number: int, addresses: tuple[Address, ...]) -> str:
        """Return a server token for server ``number``."""
        name = f"gpu-{number}"
        await self._create_token(name, TokenKind.SERVER)
        assert self.authority is not None
        ca_sha256 = fingerprint(self.authority.certificate_pem)
        return format_token(
            TokenText(
                CLUSTER_ID,
                TokenKind.SERVER,
                token_id(name),
                secret_of(name),
                ca_sha256,
                addresses,
            )
        )

    def credentials(self, addresses: tuple[Address, ...], user: str = "ada") -> Credentials:
        assert self.authority is not None
        return Credentials(
            CLUSTER_ID,
            "lab",
            user,
            token_id(user),
            secret_of(user),
            self.authority.certificate_pem.decode(),
            addresses,
        )


class RealPool:
    """Several of them in one process."""

    def __init__(
        self,
        folder: Path,
        nursery: trio.Nursery,
        *,
        valid: timedelta = SERVER_VALID,
        renewal: RenewalSettings | None = None,
    ) -> None:
        self.valid = valid
        self.renewal = renewal or RenewalSettings()
        self.folder = folder
        self.nursery = nursery
        self.servers: list[RealServer] = []

    async def start(self, gpu_counts: list[int]) -> None:
        for number, gpu_count in enumerate(gpu_counts, start=1):
            server = RealServer(self.folder, number, gpu_count)
            server.valid, server.renewal = self.valid, self.renewal
            listener = await server.listen()
            if number == 1:
                server.found()
            else:
                token = await self.servers[0].invite(number, self.addresses())
                await server.join(token)
            await self.nursery.start(server.run, listener)
            self.servers.append(server)
            if number == 1:
                await server.create_pool()
        await self.settled()

    async def settled(self) -> None:
        """Return once every server is up, in every table, and a voter."""
        count = len(self.servers)
        await until(lambda: all(self._is_settled(server, count) for server in self.servers))

    def _is_settled(self, server: RealServer, count: int) -> bool:
        assert server.replicated_log is not None
        grantable = [each.grantable for each in server.machine.state.servers.values()]
        return grantable == [True] * count and len(server.replicated_log.health().voters) == count

    async def restart(self, server: RealServer) -> None:
        listener = await server.listen()
        await self.nursery.start(server.run, listener)

    def addresses(self) -> tuple[Address, ...]:
        return tuple(server.address for server in self.servers)

    def credentials(self, user: str = "ada") -> Credentials:
        return self.servers[0].credentials(self.addresses(), user)

    def leader(self) -> RealServer:
        for server in self.servers:
            if server.replicated_log is not None and not server.scope.cancel_called:
                leader = server.replicated_log.health().leader
                found = [s for s in self.servers if s.id == leader]
                if found and not found[0].scope.cancel_called:
                    return found[0]
        raise AssertionError("no leader")

    def others(self, server: RealServer) -> list[RealServer]:
        return [each for each in self.servers if each is not server]
