"""A pool in one process: real control servers over a fake log, fake hosts and memory streams."""

import logging
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio
import trio.testing
from tests.remoting.control.control_kit import SeededRng, VirtualClock, make_control_server

from gpupool.pool.errors import GpupoolError
from gpupool.pool.host_suspension import HostSuspension, SuspensionPhase
from gpupool.pool.invariants import violations
from gpupool.pool.model import commands
from gpupool.pool.model.commands import Command, GpuReading, wrap
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import (
    GpuId,
    LeaseId,
    Milliseconds,
    Plain,
    ServerId,
    TokenId,
)
from gpupool.pool.model.state import Gpu, Lease, Partition, PoolState, Request, TokenKind
from gpupool.pool.ports import Committed, NotCommitted, Outcome, RaftHealth, Role, Unknown
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.policy_versions import Draft
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.pool_client import Pool, connect_pool
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.policy_text import compile_text
from gpupool.remoting.protocol.sessions import NO_MOVES, Departure, SessionDevice, SessionInfo
from gpupool.remoting.protocol.token_text import TokenText, hash_secret
from gpupool.remoting.protocol.view_encoding import MadeView, ViewOrder, make_view_at_once
from gpupool.remoting.server.control_server import BackgroundWork, ControlServer
from gpupool.remoting.server.server_settings import ControllerSettings, Software
from gpupool.remoting.transport.authority.certificate_renewal import ServerCertificates
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import Authority, Identity, TlsContexts, create_ca, fingerprint

MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]

GIB = 1 << 30
LOG = logging.getLogger("test")
FAR_FUTURE = Milliseconds(4_000_000_000_000)
CLUSTER_ID = "cluster-1"


def server_id(number: int) -> ServerId:
    return ServerId(f"{number:012x}")


def token_id(user: str) -> TokenId:
    return TokenId(user.encode().hex().ljust(12, "0")[:12])


def secret_of(user: str) -> bytes:
    return user.encode().ljust(32, b".")


def make_gpus(server: int, count: int, memory: int = 80 * GIB) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(GpuId(f"EMU-{server}-{index}"), index, "Emulated GPU", memory, emulated=True)
        for index in range(count)
    )


class FakeReplicatedLog:
    """One server's front of a shared log."""

    def __init__(self, log: "FakeLog", server: ServerId, machine: PoolMachine) -> None:
        self.log = log
        self.server = server
        self.machine = machine
        self.cut_off_at: float | None = None
        self.is_leader = False
        self.elections = 0
        self.linked: tuple[ServerId, ...] = ()
        log.replicated_logs[server] = self

    async def propose(self, command: Plain, *, timeout_s: float) -> Outcome:
        """Make one attempt, as a ``RaftDriver`` does."""
        with trio.move_on_after(timeout_s):
            await trio.sleep(self.log.latency_s)
            if self.cut_off_at is not None or self.log.leaderless:
                return NotCommitted("no leader is known")
            fault = self.log.faults.popleft() if self.log.faults else ""
            if fault == "refuse":
                return NotCommitted("the leader stepped down")
            if fault == "lose":
                await trio.sleep_forever()
            result = self.log.append(command, self.server)
            if fault == "silence":
                await trio.sleep_forever()
            return Committed(self.machine.state.index, result)
        return Unknown("the leader did not answer in time")

    def submit(self, command: Plain, timeout_s: float, callback: Callable[[Outcome], None]) -> None:
        """Make one attempt, as a ``RaftDriver`` does."""

        async def attempt() -> None:
            callback(await self.propose(command, timeout_s=timeout_s))

        trio.lowlevel.spawn_system_task(attempt)

    def majority_age_s(self) -> float:
        return 0.0 if self.cut_off_at is None else trio.current_time() - self.cut_off_at

    def role(self) -> Role:
        return self.health().role

    def health(self) -> RaftHealth:
        now = trio.current_time()
        ages = {
            server: 0.0 if each.cut_off_at is None else now - each.cut_off_at
            for server, each in self.log.replicated_logs.items()
        }
        leader = self.log.leader()
        cut_off = self.cut_off_at is not None
        return RaftHealth(
            role=Role.LEADER if leader == self.server and not cut_off else Role.FOLLOWER,
            leader=None if cut_off or self.log.leaderless else leader,
            term=1,
            commit_index=self.machine.state.index,
            applied_index=self.machine.state.index,
            voters=tuple(self.log.replicated_logs),
            connected=self.linked,
            majority_age_s=self.majority_age_s(),
            contact_age_s=ages,
            elections=0,
        )


class FakeLog:
    """The log that all fake replicated logs share; every server in touch applies at once."""

    def __init__(self) -> None:
        self.entries: list[Plain] = []
        self.replicated_logs: dict[ServerId, FakeReplicatedLog] = {}
        self.latency_s = 0.005
        self.leaderless = False
        self.faults: deque[str] = deque()
        """For the next proposals: "" none, "refuse", "lose" (never commits) or "silence"."""

    def leader(self) -> ServerId | None:
        return next(
            (s for s, each in self.replicated_logs.items() if each.cut_off_at is None), None
        )

    def append(self, command: Plain, server: ServerId) -> Plain:
        self.entries.append(command)
        for replicated_log in self.replicated_logs.values():
            if replicated_log.cut_off_at is None and replicated_log.server != server:
                self.catch_up(replicated_log)
        return self.catch_up(self.replicated_logs[server])

    def catch_up(self, replicated_log: FakeReplicatedLog) -> Plain:
        result: Plain = None
        while replicated_log.machine.state.index < len(self.entries):
            index = replicated_log.machine.state.index + 1
            result = replicated_log.machine.apply(index, self.entries[index - 1])
            broken = violations(replicated_log.machine.state)
            assert not broken, broken
        return result


@dataclass
class FakeHost:
    """A ``SessionHost`` with counts in place of workers."""

    devices: tuple[Gpu, ...]
    workers: dict[LeaseId, int] = field(default_factory=dict[LeaseId, int])
    killed: list[tuple[LeaseId, str]] = field(default_factory=list[tuple[LeaseId, str]])
    opened: list[tuple[LeaseId, str, str]] = field(default_factory=list[tuple[LeaseId, str, str]])
    settings: list[dict[str, str]] = field(default_factory=list[dict[str, str]])  # of each
    kill_s: float = 0.05
    before_kill: Callable[[], Awaitable[None]] | None = None
    open_s: float = 0.02
    failure: GpupoolError | None = None
    rng: SeededRng = field(default_factory=SeededRng)
    used: dict[LeaseId, float] = field(default_factory=dict[LeaseId, float])
    orders: dict[LeaseId, HostSuspension] = field(default_factory=dict[LeaseId, HostSuspension])
    refuses: str = ""  # why no lease can be suspended
    moved: list[tuple[LeaseId, dict[GpuId, GpuId]]] = field(
        default_factory=list[tuple[LeaseId, dict[GpuId, GpuId]]]
    )
    weights: dict[LeaseId, float] = field(default_factory=dict[LeaseId, float])
    sessions: dict[LeaseId, bytes] = field(default_factory=dict[LeaseId, bytes])  # the latest
    departing: dict[LeaseId, ServerId] = field(default_factory=dict[LeaseId, ServerId])
    stays: str = ""  # why no lease can go to another server

    def gpus(self) -> tuple[Gpu, ...]:
        return self.devices

    def readings(self) -> dict[GpuId, GpuReading]:
        return {gpu.id: GpuReading(gpu.memory_foreign, gpu.fault) for gpu in self.devices}

    def worker_count(self) -> dict[LeaseId, int]:
        return dict(self.workers)

    def confinement(self) -> tuple[str, ...]:
        return ("fake",)

    def unconfined(self) -> tuple[str, ...]:
        return ("a network (that needs root)",)

    def idle_s(self) -> dict[LeaseId, float]:
        now = trio.current_time()
        return {lease: now - used for lease, used in self.used.items()}

    def use(self, lease: LeaseId) -> None:
        self.used[lease] = trio.current_time()

    def suspend(self, lease: LeaseId, number: int) -> None:
        known = self.orders.get(lease)
        if known is None or known.number < number:
            phase = SuspensionPhase.REFUSED if self.refuses else SuspensionPhase.SUSPENDED
            self.orders[lease] = HostSuspension(number, phase, 1 << 20, self.refuses)

    def resume(self, lease: LeaseId, number: int, moves: Mapping[GpuId, GpuId] = NO_MOVES) -> None:
        known = self.orders.get(lease)
        if known is None or known.number <= number:
            if known is not None and known.phase is SuspensionPhase.SUSPENDED and moves:
                self.moved.append((lease, dict(moves)))
            self.orders[lease] = HostSuspension(number, SuspensionPhase.RUNNING)

    def suspensions(self) -> dict[LeaseId, HostSuspension]:
        return dict(self.orders)

    def depart(self, lease: LeaseId, target: ServerId | None) -> Departure:
        if target is None:
            self.departing.pop(lease, None)
            return Departure()
        self.departing[lease] = target
        session = self.sessions[lease] if self.workers.get(lease) else b""
        return Departure(ready=True, session=session, refusal=self.stays)

    def weigh(self, weights: Mapping[LeaseId, float]) -> None:
        self.weights = dict(weights)

    async def open_session(
        self,
        lease: Lease,
        partitions: Sequence[Partition],
        *,
        door: str,
        program: str,
        settings: Mapping[str, str] | None = None,
    ) -> SessionInfo:
        await trio.sleep(self.open_s)
        if self.failure is not None:
            raise self.failure
        self.workers[lease.id] = self.workers.get(lease.id, 0) + 1
        self.opened.append((lease.id, door, program))
        self.settings.append(dict(settings or {}))
        devices = tuple(
            SessionDevice(index, part.gpu, "Emulated GPU", part.memory, emulated=True)
            for index, part in enumerate(partitions)
        )
        randbytes = self.rng.randbytes
        session = self.sessions[lease.id] = randbytes(16)
        return SessionInfo(session, randbytes(32), randbytes(32), "/run/data.sock", devices)

    def knows_session(self, session: bytes) -> bool:
        return False

    async def hand_over(self, session: bytes, connection: object) -> None:
        raise AssertionError

    async def kill_lease(self, lease: LeaseId, reason: str) -> None:
        if self.before_kill is not None:
            await self.before_kill()
        await trio.sleep(self.kill_s)
        self.workers.pop(lease, None)
        self.orders.pop(lease, None)
        self.killed.append((lease, reason))

    def telemetry(self) -> tuple[tuple[GpuTelemetry, ...], tuple[SessionTelemetry, ...]]:
        return tuple(GpuTelemetry(gpu.id, 0) for gpu in self.devices), ()


@dataclass
class Node:
    """One server of the fake pool."""

    id: ServerId
    name: str
    machine: PoolMachine
    replicated_log: FakeReplicatedLog
    host: FakeHost
    server: ControlServer
    scope: trio.CancelScope
    keys: list[bytes]
    followed: list[tuple[tuple[ServerId, ...], tuple[ServerId, ...]]]
    up: bool = True


async def compile_here(packed: bytes, now_ms: int) -> Draft:
    """Compile a policy in this process: a child knows nothing of virtual time."""
    return compile_text(packed, now_ms)


async def view_at_once(order: ViewOrder) -> MadeView:
    """Make a view in this thread: another one knows nothing of virtual time."""
    return make_view_at_once(order)


class Cluster:
    """Servers, and clients that reach them over memory streams."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.log = FakeLog()
        self.nodes: list[Node] = []
        self.clock = VirtualClock()
        self.authority: Authority = create_ca(CLUSTER_ID, datetime.now(UTC))
        self.streams: list[tuple[str, MemoryStream, MemoryStream]] = []
        self.unreachable: set[str] = set()
        self.compile_policy: Callable[[bytes, int], Awaitable[Draft]] = compile_here
        self.make_view: Callable[[ViewOrder], Awaitable[MadeView]] = view_at_once
        self.settings = ControllerSettings()
        self.formats = VERSION  # of the programs of servers that are added
        self._seed = 100

    # --- servers ---------------------------------------------------------------------------------

    async def start(self, gpu_counts: Sequence[int], users: Sequence[str] = ("ada",)) -> None:
        for number, count in enumerate(gpu_counts, start=1):
            await self.add(number, count)
        self.commit(commands.CreatePool(CLUSTER_ID, "lab", "tls"))
        first, *others = self.nodes
        self.commit(commands.JoinServer(first.id, first.name, f"{first.name}:7470", False, None))
        for node in others:
            self.admit(node)
        self.create_token("root", TokenKind.OPERATOR)
        for user in users:
            self.create_token(user, TokenKind.USER)
        await trio.sleep(1)
        for node in self.nodes:
            assert node.machine.state.servers[node.id].grantable

    async def add(self, number: int, gpu_count: int, incarnation: int = 1) -> Node:
        name = f"gpu-{number}"
        machine = PoolMachine(PoolState())
        replicated_log = FakeReplicatedLog(self.log, server_id(number), machine)
        identity = Identity(
            server_id(number), CLUSTER_ID, Path("none"), Path("none"),
            self.authority.certificate_pem,
        )  # fmt: skip
        links = PeerTransport(
            identity,
            clock=self.clock,
            rng=SeededRng(number),
            address_of=lambda _peer: None,
            log=LOG,
        )
        host = FakeHost(make_gpus(number, gpu_count))
        keys: list[bytes] = []
        followed: list[tuple[tuple[ServerId, ...], tuple[ServerId, ...]]] = []

        def follow(servers: Sequence[ServerId], voters: Sequence[ServerId]) -> None:
            followed.append((tuple(servers), tuple(voters)))

        server = make_control_server(
            machine,
            replicated_log,
            host,
            links,
            ServerCertificates(
                contexts=TlsContexts(identity), authority=self.authority, save_key=keys.append
            ),
            Software(f"{name}:7470", "0.1.0", formats=self.formats),
            clock=self.clock,
            rng=SeededRng(number),
            log=LOG,
            incarnation=incarnation,
            controller_settings=self.settings,
            background=BackgroundWork(
                compile_policy=lambda packed, now_ms: self.compile_policy(packed, now_ms),
                make_view=lambda order: self.make_view(order),
            ),
            follow=follow,
        )
        scope = trio.CancelScope()
        node = Node(
            server_id(number), name, machine, replicated_log, host, server, scope, keys, followed
        )  # fmt: skip
        self.nodes.append(node)
        self.log.catch_up(replicated_log)

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await server.serve([], task_status=task_status)

        await self.nursery.start(serve)
        return node

    def admit(self, node: Node) -> None:
        token = token_id(node.name)
        secret_hash = hash_secret(secret_of(node.name))
        self.commit(
            commands.CreateToken(
                token, TokenKind.SERVER, node.name, secret_hash, FAR_FUTURE, "root"
            )
        )
        self.commit(commands.JoinServer(node.id, node.name, f"{node.name}:7470", False, token))

    def create_token(self, user: str, kind: TokenKind, expires: Milliseconds = FAR_FUTURE) -> None:
        secret_hash = hash_secret(secret_of(user))
        self.commit(commands.CreateToken(token_id(user), kind, user, secret_hash, expires, "root"))

    def commit(self, command: Command) -> Plain:
        leader = self.log.leader()
        assert leader is not None
        plain = wrap(command, at_ms=self.clock.wall_ms(), ttl_ms=0)
        result = self.log.append(plain, leader)
        assert isinstance(result, dict) and result["ok"], result
        return result

    async def crash(self, node: Node) -> None:
        """Stop a server as ``kill -9`` does: its connections break, its table is gone."""
        node.up = False
        node.replicated_log.cut_off_at = trio.current_time()
        node.scope.cancel()
        await self.cut(node.name)

    def cut_off(self, node: Node) -> None:
        """Put a server into a minority; clients still reach it."""
        node.replicated_log.cut_off_at = trio.current_time()

    def heal(self, node: Node, *, late: bool = False) -> None:
        """Bring a server back into touch; ``late`` when it knows of nothing new yet."""
        node.replicated_log.cut_off_at = None
        if not late:
            self.log.catch_up(node.replicated_log)

    def fall_silent(self, name: str, *, hears: bool = False, speaks: bool = False) -> None:
        """Hold back a server's incoming and outgoing data in the network, until ``resume``."""
        for server, near, far in self.streams:
            if server == name:
                for stream, passes in ((near, hears), (far, speaks)):
                    if not passes:
                        stream.send_stream.send_all_hook = None

    async def resume(self, name: str) -> None:
        """Deliver the data that was held back."""
        for server, near, far in self.streams:
            for sender, receiver in ((near, far), (far, near)) if server == name else ():
                hook = partial(_deliver, sender, receiver)
                sender.send_stream.send_all_hook = hook
                await hook()

    async def cut(self, name: str) -> None:
        """Break all connections to a server."""
        for server, *streams in list(self.streams):
            for stream in streams if server == name else ():
                await trio.aclose_forcefully(stream)

    @property
    def state(self) -> PoolState:
        leader = self.log.leader()
        assert leader is not None
        return self.log.replicated_logs[leader].machine.state

    def granted(self) -> int:
        """Return all memory that is charged, in bytes."""
        return sum(
            gpu.memory_granted for s in self.state.servers.values() for gpu in s.gpus.values()
        )

    # --- clients ---------------------------------------------------------------------------------

    async def dial(self, address: Address, _context: ssl.SSLContext) -> trio.abc.Stream:
        await trio.sleep(0.001)
        node = next((n for n in self.nodes if n.name == address.host), None)
        if node is None or not node.up or address.host in self.unreachable:
            raise ConnectionRefusedError(111, "Connection refused")
        near, far = trio.testing.memory_stream_pair()
        self.streams.append((node.name, near, far))
        self.nursery.start_soon(node.server.streams.serve, far, "test client")
        return near

    def addresses(self) -> tuple[Address, ...]:
        return tuple(Address(node.name, 7470) for node in self.nodes)

    def credentials(self, user: str = "ada") -> Credentials:
        return Credentials(
            cluster_id=CLUSTER_ID,
            pool="lab",
            user=user,
            token=token_id(user),
            secret=secret_of(user),
            ca_pem=self.authority.certificate_pem.decode(),
            addresses=self.addresses(),
        )

    def token_text(self, user: str, kind: TokenKind = TokenKind.USER) -> TokenText:
        return TokenText(
            CLUSTER_ID,
            kind,
            token_id(user),
            secret_of(user),
            fingerprint(self.authority.certificate_pem),
            self.addresses(),
        )

    @asynccontextmanager
    async def client(
        self, user: str = "ada", servers: Sequence[str] = (), client: str = ""
    ) -> AsyncGenerator[Pool, None]:
        self._seed += 1
        credentials = self.credentials(user)
        if servers:
            addresses = tuple(Address(name, 7470) for name in servers)
            credentials = replace(credentials, addresses=addresses)
        async with connect_pool(
            credentials,
            dial=self.dial,
            clock=self.clock,
            rng=SeededRng(self._seed),
            client=client or f"{user}@test",
        ) as pool:
            yield pool


async def _deliver(sender: MemoryStream, receiver: MemoryStream) -> None:
    with suppress(trio.BrokenResourceError):  # as a network loses what comes behind a close
        trio.testing.memory_stream_pump(sender.send_stream, receiver.receive_stream)


def request(pool: Pool, count: int = 1, fraction: float = 1.0, **more: object) -> Request:
    base = Request(pool.new_request_id(), count, fraction, program="train.py")
    return replace(base, **more)  # pyright: ignore[reportArgumentType]
