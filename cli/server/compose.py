"""One server as a whole: the composition root of consensus, control server, links and host."""

import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import trio

from gpupool import __version__
from gpupool.cli.lib.values import Emulation, parse_listen, size_text
from gpupool.cli.server.audit_file import AuditLog
from gpupool.cli.server.bootstrap import (
    FIRST_COMMIT_S,
    PoolBootstrap,
    bootstrap_pool,
    make_operator,
)
from gpupool.cli.server.state_dir import (
    CA_CERTIFICATE,
    CA_KEY,
    CERTIFICATE,
    KEY,
    Member,
    ServerIdentity,
    StateDir,
    may_be_new,
    open_state_dir,
    remembered_listen,
)
from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.storage.store import Storage, bootstrap, open_storage
from gpupool.pool.errors import GpupoolError, StorageError, UsageError
from gpupool.pool.invariants import InvariantSampler
from gpupool.pool.model.commands import Command, DrainServer, EndLease
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import PartStatus, PoolState, TokenKind
from gpupool.pool.transitions.leases import encryption_of
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.remoting.client.pool_client import SystemClock, SystemRng, join_pool
from gpupool.remoting.devices.nvml import PynvmlNvml
from gpupool.remoting.host.device_lock import DeviceLocks
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.network_speed import has_rdma, link_speed
from gpupool.remoting.host.orphan_reaper import reap_orphans
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address, parse_address
from gpupool.remoting.protocol.token_text import format_token, parse_token
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.server.control_server import ControlServer, ServerSettings
from gpupool.remoting.server.reconciler import Software
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import (
    Authority,
    cluster_id_of,
    create_ca,
    create_key_and_csr,
    sign_server,
)

STOPPING = "it is being stopped"
"""The reason of a drain that a server proposes of itself, and takes back when it starts again."""

ANYWHERE = Address("0.0.0.0", PORT_DEFAULT)  # noqa: S104 - a server is there to be reached

HAND_OVER_S = 1.0
LAST_COMMANDS_S = 2.0
WORKER_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What ``gpupool join`` was told."""

    token: str
    address: Address | None
    listen: Address | None  # None: as last time, or the default
    advertise: Address | None
    state_dir: Path
    name: str
    pool_name: str
    witness: bool
    emulate: Emulation | None
    gpus: tuple[str, ...]  # to offer; empty: all
    data_encryption: str
    ca: Path | None  # of a new pool: the folder of a former pool's CA
    operator_token: bool  # make another one, and print it
    client_timeout_s: float
    drain_timeout_s: float
    labels: tuple[tuple[str, str], ...]


async def serve(options: JoinOptions, log: logging.Logger) -> None:
    """Run one server until it is told to stop.

    Raises:
        GpupoolError: when it cannot start, or must not go on.
    """
    # What makes a start pointless is found out before anything is created, here or in the pool.
    if may_be_new(options.state_dir):
        await _check_options(options)
    remembered = remembered_listen(options.state_dir)
    listen = options.listen or (parse_listen(remembered) if remembered else ANYWHERE)
    listeners = await open_listeners(listen)
    port: int = listeners[0].socket.getsockname()[1]
    listen = replace(listen, port=port)
    try:
        address = advertised_address(options, listen)
        state = open_state_dir(options.state_dir)
        try:
            founded = state.is_new and not options.token
            await _enter_pool(state, options, address, log)
            state.remember_listen(str(listen))
            await _Server(state, options, address, log).run(listeners, founded=founded)
        finally:
            state.close()
    finally:
        for listener in listeners:
            await listener.aclose()


async def _check_options(options: JoinOptions) -> None:
    """Check what a new server needs.

    Raises:
        GpupoolError: when it can be none.
    """
    if options.token and parse_token(options.token).kind is not TokenKind.SERVER:
        raise UsageError(
            "this token lets a user log in, and no server join",
            hint='"gpupool token create --server" makes one for a server',
        )
    if options.ca is not None:
        _read_authority(options.ca)
    if not options.witness and options.emulate is None:
        await trio.to_thread.run_sync(require_gpu, options.gpus)


def require_gpu(only: tuple[str, ...]) -> None:
    """Look for a GPU on this machine, or for all of ``only``; blocks while the driver wakes them.

    Raises:
        GpupoolError: when there is none.
    """
    inventory = Inventory.discover("", PynvmlNvml(), only=only)
    if not inventory.gpus() or (only and inventory.problem):
        raise _no_gpu(inventory)


def _no_gpu(inventory: Inventory) -> GpupoolError:
    return GpupoolError(
        "this machine has no GPU to offer",
        why=inventory.problem,
        hint="--witness joins without GPUs, --emulate 2 offers two emulated ones",
    )


async def open_listeners(listen: Address) -> list[trio.SocketListener]:
    """Listen, with the same port on every address that the host's name stands for.

    Raises:
        GpupoolError: when that is not possible.
    """
    try:
        return await trio.open_tcp_listeners(listen.port, host=listen.host, backlog=1024)
    except OSError as error:
        why = error.strerror or str(error)
        hint = "choose another address with --listen"
        if "in use" in str(error):
            why = "the port is in use"
            hint = "is a server running here already? --listen chooses another port"
        raise GpupoolError(f"cannot listen on {listen}", why=why, hint=hint) from error


def advertised_address(options: JoinOptions, listen: Address) -> str:
    """Return where others reach this server."""
    if options.advertise is not None:
        return str(options.advertise)
    if listen.host in ("0.0.0.0", "::"):  # noqa: S104
        return str(replace(listen, host=own_address(options)))
    return str(listen)


def own_address(options: JoinOptions) -> str:
    """Return this machine's address on the way to the pool, or to the world; sends nothing."""
    target = "192.0.2.1"  # RFC 5737: never assigned, so it takes the default route
    if options.address is not None:
        target = options.address.host
    elif options.token:
        target = parse_token(options.token).addresses[0].host
    try:
        family, kind, _, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"  # no network at all


def advertised_speed(address: str) -> int:
    """Return the Mbit/s of the interface behind an advertised address; 0 when not known."""
    host = parse_address(address).host
    try:
        host = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return 0
    return link_speed(host)


# --- entering a pool ------------------------------------------------------------------------------


async def _enter_pool(
    state: StateDir, options: JoinOptions, address: str, log: logging.Logger
) -> None:
    """Create this server's identity, in a new pool or in one that exists; or resume it."""
    if not state.is_new:
        assert state.identity is not None
        if options.token:
            log.info(
                "this server is already in pool %s; the token is not used", state.identity.pool
            )
        return
    name = options.name or os.uname().nodename.split(".")[0][:63] or "server"
    if options.token:
        await _join(state, options, name, address, log)
    else:
        _found(state, options, name, address)


def _found(state: StateDir, options: JoinOptions, name: str, address: str) -> None:
    server = ServerId(secrets.token_hex(6))
    now = datetime.now(UTC)
    # The CA of a former pool goes with its id, by which clients know that it is theirs.
    authority = _read_authority(options.ca) if options.ca is not None else None
    cluster_id = cluster_id_of(authority) if authority else secrets.token_hex(16)
    identity = ServerIdentity(
        server=server,
        cluster_id=cluster_id,
        pool=options.pool_name,
        name=name,
        witness=options.witness,
        founder=True,
        members=(Member(server, address),),
    )
    state.begin(identity)
    authority = authority or create_ca(identity.cluster_id, now)
    key, csr = create_key_and_csr(server)
    state.write(CA_CERTIFICATE, authority.certificate_pem)
    state.write(CA_KEY, authority.key_pem)
    state.write(KEY, key)
    state.write(CERTIFICATE, sign_server(authority, csr, server, now))
    storage = open_storage(state.path, create=True)
    try:
        bootstrap(storage, server)
    finally:
        storage.close()
    state.finish(identity)


def _read_authority(folder: Path) -> Authority:
    try:
        certificate, key = ((folder / name).read_bytes() for name in (CA_CERTIFICATE, CA_KEY))
    except OSError as error:
        raise StorageError(
            f"cannot read the CA in {folder}",
            why=f"{error.filename}: {(error.strerror or str(error)).lower()}",
            hint=f"it must hold {CA_CERTIFICATE} and {CA_KEY} of a server of the former pool",
        ) from error
    return Authority(certificate, key)


async def _join(
    state: StateDir, options: JoinOptions, name: str, address: str, log: logging.Logger
) -> None:
    token = parse_token(options.token)
    if options.address is not None:
        token = replace(token, addresses=(options.address, *token.addresses))
    begun = state.identity
    # An attempt whose answer was lost is repeated under the same id, which is safe.
    server = begun.server if begun is not None else ServerId(secrets.token_hex(6))
    identity = ServerIdentity(
        server=server,
        cluster_id=token.cluster_id,
        pool="",
        name=name,
        witness=options.witness,
        founder=False,
    )
    state.begin(identity)
    key, csr = create_key_and_csr(server)
    joined = await join_pool(
        format_token(token),
        server=server,
        name=name,
        address=parse_address(address),
        witness=options.witness,
        csr_pem=csr,
        version=__version__,
    )
    members = tuple(Member(m.server, m.address) for m in joined.members)
    state.write(CA_CERTIFICATE, joined.ca_pem)
    if joined.ca_key_pem:
        state.write(CA_KEY, joined.ca_key_pem)
    state.write(KEY, key)
    state.write(CERTIFICATE, joined.certificate_pem)
    open_storage(state.path, create=True).close()
    state.finish(replace(identity, pool=joined.pool, members=members))
    log.info("admitted to pool %s as %s (%s)", joined.pool, name, server)


# --- the running server ---------------------------------------------------------------------------


class _Server:
    """All parts of one server, wired together."""

    def __init__(
        self, state: StateDir, options: JoinOptions, address: str, log: logging.Logger
    ) -> None:
        assert state.identity is not None
        self._state = state
        self._options = options
        self._address = address
        self._log = log
        self._identity = state.identity
        self._clock = SystemClock()
        self._rng = SystemRng()
        self._members = {m.server: m.address for m in state.identity.members}
        self.audit = AuditLog(state.path, log)
        self.machine = PoolMachine(
            PoolState(), on_acts=self.audit.told, sampler=InvariantSampler(self._on_violation)
        )
        self._stops = 0

    def _on_violation(self, text: str) -> None:
        self._log.error(
            "the pool's table is wrong, which is a bug of gpupool: %s; please report it with "
            "the output of gpupool status --json",
            text,
        )

    async def run(self, listeners: list[trio.SocketListener], *, founded: bool) -> None:
        """Run until told to stop; everything is down when this returns."""
        incarnation = self._state.next_incarnation()
        swept = await trio.to_thread.run_sync(reap_orphans, self._state.path)
        if swept:
            self._log.warning("killed %d workers that a former process had left", swept)
        inventory = await self._discover()
        tls = self._state.tls_identity()
        authority = self._authority(tls.ca_pem)
        storage = open_storage(self._state.path)
        links = PeerTransport(
            tls,
            clock=self._clock,
            rng=self._rng,
            address_of=self._address_of,
            log=logging.getLogger("gpupool.links"),
        )
        replicated_log = self._replicated_log(storage, links)
        runtime_dir = _make_runtime_dir(self._identity.server)
        host = HostSupervisor(
            inventory,
            runtime_dir=runtime_dir,
            state_dir=self._state.path,
            address_of=self._address_of,
            data_encryption=lambda lease: encryption_of(self.machine.state, lease),
            log=logging.getLogger("gpupool.host").info,
        )
        server = ControlServer(
            machine=self.machine,
            replicated_log=replicated_log,
            host=host,
            identity=tls,
            authority=authority,
            links=links,
            incarnation=incarnation,
            software=Software(
                address=self._address,
                version=__version__,
                driver_version=inventory.driver_version,
                cuda_version=inventory.cuda_version,
                labels=self._options.labels,
                link_speed=await trio.to_thread.run_sync(advertised_speed, self._address),
                rdma=has_rdma(),
            ),
            clock=self._clock,
            rng=self._rng,
            log=self._log,
            settings=ServerSettings(client_timeout_s=self._options.client_timeout_s),
            follow=lambda servers, voters: self._follow(replicated_log, servers, voters),
            save_key=lambda pem: self._state.write(CA_KEY, pem),
        )
        try:
            await self._run_parts(listeners, replicated_log, links, host, server, founded=founded)
        finally:
            replicated_log.close()
            shutil.rmtree(runtime_dir, ignore_errors=True)
        self._log.info("stopped")

    async def _run_parts(
        self,
        listeners: list[trio.SocketListener],
        replicated_log: RaftDriver,
        links: PeerTransport,
        host: HostSupervisor,
        server: ControlServer,
        *,
        founded: bool,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                at_once = nursery.cancel_scope
                stop = trio.Event()
                nursery.start_soon(self._take_signals, signals, stop, at_once)
                nursery.start_soon(self.audit.run)
                await nursery.start(links.run, replicated_log)
                await nursery.start(replicated_log.run)
                await nursery.start(host.run)
                founder = PoolBootstrap(
                    self._identity, self._address, self._options.data_encryption, self._log
                )
                if await self._is_unfounded(replicated_log):
                    await bootstrap_pool(founder, self._committer(replicated_log), self._state)
                await nursery.start(server.serve, listeners)
                self._log.info(
                    "%s is listening on %s, as a %s of pool %s",
                    self._identity.name,
                    self._address,
                    "witness" if self._identity.witness else "server",
                    self._identity.pool,
                )
                _tell_systemd("READY=1")
                if founded:
                    founder.print_welcome()
                elif self._options.operator_token:
                    nursery.start_soon(
                        make_operator,
                        founder,
                        replicated_log,
                        self._committer(replicated_log),
                        self.machine,
                        self._state,
                    )
                nursery.start_soon(self._undo_stopping, replicated_log)
                nursery.start_soon(self._stop_when_removed, links)
                await stop.wait()
                _tell_systemd("STOPPING=1")
                await self._wind_down(replicated_log, host)
                nursery.cancel_scope.cancel()

    async def _take_signals(
        self, signals: AsyncIterator[int], stop: trio.Event, at_once: trio.CancelScope
    ) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            if stop.is_set():
                self._log.warning("%s again: stopping at once", name)
                at_once.cancel()
                return
            self._log.info("%s: stopping; once more stops at once", name)
            stop.set()

    async def _is_unfounded(self, replicated_log: RaftDriver) -> bool:
        """Return whether the first commands of the pool that this server makes are missing.

        The table is empty at every start, until the log is known to be committed. With other
        voters in the log the pool has been founded, and they may not be reachable now.
        """
        if not self._identity.founder or replicated_log.health().voters != (self._identity.server,):
            return False
        if not await replicated_log.barrier(timeout_s=FIRST_COMMIT_S):
            raise GpupoolError("this server cannot lead the pool of which it is the only voter")
        return not self.machine.state.cluster_id

    # --- parts ---------------------------------------------------------------------------------

    async def _discover(self) -> Inventory:
        emulate = self._options.emulate
        # Real or emulated: nobody who asks for a GPU should get an emulated one by chance.
        nvml = None if self._identity.witness or emulate is not None else PynvmlNvml()

        def discover() -> Inventory:
            return Inventory.discover(
                self._identity.server,
                nvml,
                emulated_count=emulate.count if emulate else 0,
                emulated_memory=emulate.memory if emulate else 1,
                only=self._options.gpus,
                device_locks=DeviceLocks(),
                log=logging.getLogger("gpupool.gpus").warning,
            )

        inventory = await trio.to_thread.run_sync(discover)
        for gpu in inventory.gpus():
            self._log.info(
                "GPU %d: %s, %s, %s", gpu.index, gpu.name, size_text(gpu.capacity), gpu.id
            )
        if not inventory.gpus() and not self._identity.witness:
            raise _no_gpu(inventory)
        if inventory.problem and emulate is None and not self._identity.witness:
            self._log.warning("%s", inventory.problem)
        return inventory

    def _authority(self, ca_pem: bytes) -> Authority | None:
        key = self._state.read(CA_KEY)
        return Authority(ca_pem, key) if key else None

    def _replicated_log(self, storage: Storage, links: PeerTransport) -> RaftDriver:
        replicated_log = RaftDriver(
            self._identity.server,
            storage=storage,
            machine=self.machine,
            clock=self._clock,
            randomness=self._rng,
            links=links,
        )
        replicated_log.set_servers(tuple(self.machine.state.servers) or tuple(self._members))
        return replicated_log

    def _address_of(self, server: ServerId) -> str | None:
        known = self.machine.state.servers.get(server)
        return known.address if known is not None else self._members.get(server)

    def _follow(
        self, replicated_log: RaftDriver, servers: Sequence[ServerId], voters: Sequence[ServerId]
    ) -> None:
        """Tell consensus who belongs to the pool, once this server's table knows."""
        removed = self._identity.server in self.machine.state.removed
        if self._identity.server not in servers and not removed:
            return  # the table has not reached the point at which this server joined
        replicated_log.set_servers(servers, removed=removed)
        replicated_log.reconcile_voters(voters)
        if self._identity.server in servers:
            # The server that let this one in may be gone at the next start, or have moved.
            known = self.machine.state.servers.values()
            self._state.remember_members(tuple(Member(each.id, each.address) for each in known))

    # --- stopping ------------------------------------------------------------------------------

    def _committer(self, replicated_log: RaftDriver) -> Committer:
        return Committer(replicated_log, self.machine, clock=self._clock, rng=self._rng)

    async def _commit(self, replicated_log: RaftDriver, command: Command) -> None:
        await self._committer(replicated_log).commit(command, timeout_s=LAST_COMMANDS_S)

    def _held_here(self) -> list[LeaseId]:
        me = self._identity.server
        return [
            lease.id
            for lease in self.machine.state.leases.values()
            if lease.parts.get(me, PartStatus.FREED) is not PartStatus.FREED
        ]

    async def _undo_stopping(self, replicated_log: RaftDriver) -> None:
        """Take back the drain with which this server's former process ended."""
        while True:
            server = self.machine.state.servers.get(self._identity.server)
            if server is not None and server.drain_reason != STOPPING:
                return
            if server is not None:
                command = DrainServer(server.id, None, "the server itself")
                await self._commit(replicated_log, command)
            await trio.sleep(0.5)

    async def _stop_when_removed(self, links: PeerTransport) -> None:
        """End this server once it is no longer in the pool; its workers end with it.

        Raises:
            GpupoolError: then.
        """
        me = self._identity.server
        # Removal is for good and peers are authenticated, so the word of one is enough: a server
        # that was away cannot read the table any more.
        await _until(lambda: me in self.machine.state.removed or bool(links.removed_by))
        raise GpupoolError(
            f"{self._identity.name} was removed from pool {self._identity.pool}",
            hint="to come back it needs a new token and an empty --state-dir",
        )

    async def _wind_down(self, replicated_log: RaftDriver, host: HostSupervisor) -> None:
        """Let programs end, then end their leases, then let another server lead."""
        me = self._identity.server
        if self._held_here():
            await self._commit(replicated_log, DrainServer(me, STOPPING, "the server itself"))
            count = len(self._held_here())
            self._log.info(
                "%d leases are held here; they have %.0f s", count, self._options.drain_timeout_s
            )
            with trio.move_on_after(self._options.drain_timeout_s):
                await _until(lambda: not self._held_here())
            for lease in self._held_here():
                self._log.warning("lease %04x is ended: the server stops", lease)
                await self._commit(replicated_log, EndLease(lease, "the server stops"))
            with trio.move_on_after(LAST_COMMANDS_S):
                await _until(lambda: not self._held_here() and not host.worker_count())
        if len(self.machine.state.voters()) > 1:
            await replicated_log.hand_over(timeout_s=HAND_OVER_S)


async def _until(done: Callable[[], bool]) -> None:
    """Wait until the table and the workers, which share no event, look as they should."""
    while not done():  # noqa: ASYNC110
        await trio.sleep(WORKER_POLL_S)


def _make_runtime_dir(server: ServerId) -> Path:
    """Make the folder of this server's socket for programs on the same machine.

    Workers have other uids than the server, so it cannot be in the state directory.
    """
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    path = Path(given or tempfile.gettempdir()) / f"gpupool-{server}"
    try:
        path.mkdir(mode=0o711)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            # Somebody else's, in a folder where everybody may write.
            path = Path(tempfile.mkdtemp(prefix="gpupool-"))
        else:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(mode=0o711, exist_ok=True)
    except OSError as error:
        raise GpupoolError(f"cannot make {path}", why=error.strerror or str(error)) from error
    path.chmod(0o711)
    return path


def _tell_systemd(state: str) -> None:
    """Tell the service manager how we are (sd_notify(3)); nothing without one."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    if where.startswith("@"):
        where = "\0" + where[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), where)
        except OSError:
            return  # it is the manager's loss; the server works without it
