"""One server as a whole: the composition root of consensus, control server, links and host.

The order of a start: checks that need nothing (``enter_pool.check_options``), the listening socket,
the state directory and its lock, the pool's identity, then the parts from the inside outwards::

    AuditLog, LeaseLog, ObserverLink, PeerTransport, RaftDriver, HostSupervisor, ControlServer

A stop runs the other way: first no new leases (a drain), then the leases' end, then the leadership
goes to another server, and then all parts are cancelled at once.
"""

import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gpupool import __version__
from gpupool.consensus.driver import RaftDriver
from gpupool.consensus.garbage import Exemption
from gpupool.consensus.storage.store import Storage, open_storage
from gpupool.monitoring.exporter_link import ExporterLink
from gpupool.monitoring.health.alert_settings import find_settings
from gpupool.pool.errors import GpupoolError, StorageError
from gpupool.pool.invariants import InvariantSampler
from gpupool.pool.measures import Measures
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import LeaseRecord, PoolState
from gpupool.pool.table_clock import TableClock
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.leases import encryption_of
from gpupool.pool.values import size_text
from gpupool.remoting.daemon.bootstrap import (
    FIRST_COMMIT_S,
    PoolBootstrap,
    bootstrap_pool,
    make_operator,
)
from gpupool.remoting.daemon.enter_pool import check_options, enter_pool, no_gpu_error
from gpupool.remoting.daemon.health_rounds import HealthRounds
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.leaving import Leaving
from gpupool.remoting.daemon.listen_address import (
    ANYWHERE,
    advertised_address,
    advertised_speed,
    open_listeners,
    own_names,
)
from gpupool.remoting.daemon.measuring import measure, processes_of
from gpupool.remoting.daemon.record_files import AuditLog, LeaseLines, LeaseLog, monitoring_folder
from gpupool.remoting.daemon.separate import Separated
from gpupool.remoting.daemon.server_identity import ServerIdentity
from gpupool.remoting.daemon.state_dir import (
    CA_KEY,
    StateDir,
    may_be_new,
    open_state_dir,
    remembered_listen,
)
from gpupool.remoting.daemon.systemd import make_runtime_dir, notify_systemd
from gpupool.remoting.daemon.web_door import WebParts
from gpupool.remoting.host.device_lock import DeviceLocks
from gpupool.remoting.host.inventory import Inventory
from gpupool.remoting.host.isolation.confinement import nccl_networks, nccl_ports, wanted
from gpupool.remoting.host.measuring.network_speed import has_rdma
from gpupool.remoting.host.measuring.nvml import PynvmlNvml
from gpupool.remoting.host.measuring.slow_readings import read_by_others
from gpupool.remoting.host.remove_tree import remove_tree
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.host.worker_helper import HelperSettings
from gpupool.remoting.local.logs import name_servers
from gpupool.remoting.protocol.addresses import parse_listen
from gpupool.remoting.server.committer import Committer
from gpupool.remoting.server.control_server import BackgroundWork, ControlServer
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.server_settings import ServerInstance, ServerSettings, Software
from gpupool.remoting.transport.address_book import AddressBook
from gpupool.remoting.transport.authority.certificate_renewal import ServerCertificates
from gpupool.remoting.transport.authority.server_authorities import ServerAuthorities
from gpupool.remoting.transport.connections import give_back_memory
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import Authority, TlsContexts
from gpupool.remoting.transport.system_clock import SystemClock, SystemRng
from gpupool.remoting.transport.watching import keep_watching, told


def _reads_gpm(wish: str) -> bool:
    return wish == "on" or (wish == "auto" and not read_by_others())


async def find_gpus(
    options: JoinOptions, identity: ServerIdentity, log: logging.Logger
) -> Inventory:
    """Return this machine's GPUs as the options say.

    Raises:
        GpupoolError: when there is none, and this is no witness.
    """
    emulate, witness = options.emulate, identity.witness

    def discover() -> Inventory:
        # Real or emulated, never both: a request for a GPU must not get an emulated one by chance.
        has_nvml = not witness and emulate is None
        return Inventory.discover(
            identity.server,
            PynvmlNvml(gpm=_reads_gpm(options.gpm)) if has_nvml else None,
            emulated_count=emulate.count if emulate else 0,
            emulated_memory=emulate.memory if emulate else 1,
            only=options.gpus,
            device_locks=DeviceLocks(),
            log=logging.getLogger("gpupool.gpus").warning,
        )

    inventory = await trio.to_thread.run_sync(discover)
    for gpu in inventory.gpus():
        log.info("GPU %d: %s, %s, %s", gpu.index, gpu.name, size_text(gpu.capacity), gpu.id)
    if not inventory.gpus() and not witness:
        raise no_gpu_error(inventory)
    if inventory.problem and emulate is None and not witness:
        log.warning("%s", inventory.problem)
    return inventory


async def serve(separated: Separated, log: logging.Logger) -> None:
    """Run one server until a signal or the pool stops it.

    Raises:
        GpupoolError: when it cannot start, or must not go on.
    """
    options, helper = separated.options, separated.helper
    # Options that cannot work are refused before anything is created, here or in the pool.
    if may_be_new(options.state_dir):
        await check_options(options)
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
            await enter_pool(state, options, address, separated.signer(), log)
            state.remember_listen(str(listen))
            server = _Server(state, separated, address, log)
            async with helper.running() if helper else nullcontext():
                await server.run(listeners, founded=founded)
        finally:
            state.close()
    finally:
        for listener in listeners:
            await listener.aclose()


class _Server:
    """All parts of one server, wired together."""

    def __init__(
        self, state: StateDir, separated: Separated, address: str, log: logging.Logger
    ) -> None:
        assert state.identity is not None
        self._state = state
        self._options = separated.options
        self._separated = separated
        self._address = address
        self._log = log
        self._identity = state.identity
        self._clock, self._rng = SystemClock(), SystemRng()
        self._members = [each.server for each in state.identity.members]
        self.audit = AuditLog(state.path, log)
        self.web = WebParts(separated.options.web, lambda: self.machine.state)
        self.exporter = ExporterLink(
            monitoring_folder(state.path),
            lambda: self.machine.state,
            logging.getLogger("gpupool.observer"),
            self._options.history,
            web=self.web.link,
        )
        self.leases = LeaseLog(state.path, log, self.exporter)
        drain_for, has_signer = self._options.drain_for, self._separated.has_signer
        self.health = HealthRounds(drain_for, state, log, self.web, self.exporter, has_signer)
        lines = LeaseLines(log, lambda: self.machine.state)
        self.machine = PoolMachine(
            PoolState(),
            on_acts=told("the audit", self.audit.record, log.warning),
            on_records=told("the file of leases", self._record, log.warning),
            on_events=told("the log of leases", lines.record, log.warning),
            sampler=InvariantSampler(self._on_violation),
        )
        self.measures, self._began_ms = Measures(), self._clock.wall_ms()
        name_servers(self._server_name)

    def _server_name(self, server: str) -> str | None:
        found = self.machine.state.servers.get(ServerId(server))
        return found.name if found is not None else self._state.name_of(ServerId(server))

    def _on_violation(self, text: str) -> None:
        self._log.error(
            "the pool's table is wrong, which is a bug of gpupool: %s; please report it with "
            "the output of gpupool status --json",
            text,
        )

    async def run(self, listeners: list[trio.SocketListener], *, founded: bool) -> None:
        """Run until told to stop; everything is down when this returns."""
        if self._separated.helper is not None:
            self._log.info(
                "this server runs as user %d, and its privileged helper as root", os.geteuid()
            )
        self._incarnation = self._state.next_incarnation()
        inventory = await find_gpus(self._options, self._identity, self._log)
        contexts = TlsContexts(*self._state.tls_identities())
        software = await describe(self._address, inventory, self._options)
        storage = self._open_storage()
        me, own = self._identity.server, (self._address, *software.names)
        links = PeerTransport(
            contexts.identity,
            clock=self._clock,
            rng=self._rng,
            log=logging.getLogger("gpupool.links"),
            contexts=contexts,
            book=AddressBook(me, (self._incarnation, own), self._addresses_of),
            places=[str(each) for each in (self._options.address,) if each],
        )
        self._table_clock = TableClock(
            lambda: self.machine.state,
            self_id=self._identity.server,
            clock=self._clock,
            sample=links.clock_sample,
        )
        replicated_log = self._replicated_log(storage, links)
        runtime_dir = make_runtime_dir(self._identity.server)
        host = self._host(inventory, runtime_dir)
        server = self._control_server(contexts, replicated_log, links, host, software)
        try:
            await self._run_parts(
                listeners, storage, replicated_log, links, host, server, founded=founded
            )
        finally:
            replicated_log.close()
            remove_tree(runtime_dir)
        self._log.info("stopped")

    async def _run_parts(
        self,
        listeners: list[trio.SocketListener],
        storage: Storage,
        replicated_log: RaftDriver,
        links: PeerTransport,
        host: HostSupervisor,
        server: ControlServer,
        *,
        founded: bool,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                at_once, stop = nursery.cancel_scope, trio.Event()
                nursery.start_soon(self._take_signals, signals, stop, at_once)
                nursery.start_soon(give_back_memory)
                begin, say = nursery.start_soon, self._log.warning
                begin(keep_watching, say, "the audit", self.audit.run)
                begin(keep_watching, say, "the file of leases", self.leases.run)
                begin(keep_watching, say, "what starts the exporter", self.exporter.run)
                begin(keep_watching, say, "what measures", partial(self._measure, links, host))
                await nursery.start(links.run, replicated_log)
                await nursery.start(replicated_log.run)
                await nursery.start(host.run)
                committer = Committer(replicated_log, self._table_clock, self._rng)
                founder = await self._found(replicated_log, committer)
                await nursery.start(server.serve, listeners)
                controller, health = server.controller, replicated_log.health
                now_ms = self._table_clock.now_ms
                samples = partial(self.exporter.send_samples, controller.telemetry, health, now_ms)
                web = partial(self.web.run, server, links)
                checks = partial(self.health.run, controller, host, links)
                begin(keep_watching, say, "what takes samples", samples)
                begin(keep_watching, say, "the web", web)
                begin(keep_watching, say, "what checks", checks)
                self._log.info(
                    "%s is listening on %s, as a %s of pool %s",
                    self._identity.name,
                    self._address,
                    "witness" if self._identity.witness else "server",
                    self._identity.pool,
                )
                notify_systemd("READY=1")
                if founded:
                    founder.print_welcome(self._state)
                elif self._options.operator_token:
                    nursery.start_soon(
                        make_operator,
                        founder,
                        replicated_log,
                        committer,
                        self.machine,
                        self._state,
                    )
                leaving = Leaving(self._state, self.machine, committer, self._log)
                nursery.start_soon(leaving.undo_stopping, self._incarnation)
                nursery.start_soon(leaving.remove_former)
                nursery.start_soon(leaving.stop_when_removed, links, storage)
                await stop.wait()
                notify_systemd("STOPPING=1")
                await leaving.wind_down(replicated_log, host, self._options.drain_timeout_s)
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

    async def _found(self, replicated_log: RaftDriver, committer: Committer) -> PoolBootstrap:
        """Create the pool, unless it exists; return the bootstrap with the new tokens."""
        founder = PoolBootstrap(
            self._identity,
            self._address,
            self._options.data_encryption,
            self._log,
            save_login=self._separated.save_login,
        )
        if await self._is_unfounded(replicated_log):
            await bootstrap_pool(founder, committer, self._state)
        return founder

    async def _is_unfounded(self, replicated_log: RaftDriver) -> bool:
        """Return whether the first commands of the pool that this server makes are missing.

        The table is empty at every start, until the log is known to be committed. With other
        voters in the log the pool has been founded, and they may not be reachable now.
        """
        health, me = replicated_log.health(), self._identity.server
        if not self._identity.founder or health.voters != (me,) or me in health.unfit:
            return False
        if not await replicated_log.barrier(timeout_s=FIRST_COMMIT_S):
            raise GpupoolError("this server cannot lead the pool of which it is the only voter")
        return not self.machine.state.cluster_id

    def _open_storage(self) -> Storage:
        """Open it; a person decides about lost entries when no other server has them.

        Raises:
            StorageError: when the journal lost its end, and there is no other server.
        """
        storage = open_storage(self._state.path)
        floor = storage.superblock.floor
        if floor is None or {*self._members} - {self._identity.server}:
            return storage
        storage.close()
        raise StorageError(
            "the end of this server's journal is missing or damaged",
            why=f"entries up to {floor.index} may have been acknowledged, and no other server of "
            "the pool has them",
            hint='restore the directory; or go on without them: "gpupool recover --force"',
        )

    # --- parts ---------------------------------------------------------------------------------

    async def _measure(self, links: PeerTransport, host: HostSupervisor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links.finder.meet, links.connected, self._address_of)
            await measure(
                self.measures,
                folder=self._state.path,
                address=self._address,
                processes=lambda: processes_of(host, self._separated.helper, self.exporter.process),
                peers=lambda: self.machine.state.servers,
                links=links,
                table_clock=self._table_clock,
                away=links.finder.away,
            )

    def _record(self, records: tuple[LeaseRecord, ...]) -> None:
        self.leases.record(records)
        for record in records:
            # At a start, the table tells of the latest ends before it, too.
            if record.server == self._identity.server and record.freed_at >= self._began_ms:
                self.measures.ended(record)

    def _certificates(self, contexts: TlsContexts) -> ServerCertificates:
        state, key = self._state, self._state.read(CA_KEY)
        return ServerCertificates(
            contexts=contexts,
            save=state.keep_certificate,
            store=state,
            authority=Authority(contexts.identity.ca_pem, key) if key else None,
            save_key=state.keep_key,
            vault=self._separated.signer(),
        )

    def _replicated_log(self, storage: Storage, links: PeerTransport) -> RaftDriver:
        exempt = Exemption()
        exempt()
        replicated_log = RaftDriver(
            self._identity.server,
            storage=storage,
            machine=self.machine,
            clock=self._clock,
            randomness=self._rng,
            links=links,
            after_work=exempt,
            clock_refusal=self._table_clock.refusal,
            measures=self.measures,
        )
        replicated_log.set_servers(tuple(self.machine.state.servers) or self._members)
        return replicated_log

    def _host(self, inventory: Inventory, runtime_dir: Path) -> HostSupervisor:
        return HostSupervisor(
            inventory,
            HelperSettings(
                runtime_dir,
                self._state.path,
                confine=wanted(os.environ),
                ports=nccl_ports(os.environ),
            ),
            address_of=self._address_of,
            data_encryption=lambda lease: encryption_of(self.machine.state, lease),
            limits=self._options.host_limits(),
            networks=nccl_networks(os.environ),
            helper=self._separated.helper,
            measures=self.measures,
            log=logging.getLogger("gpupool.host").info,
        )

    def _control_server(
        self,
        contexts: TlsContexts,
        replicated_log: RaftDriver,
        links: PeerTransport,
        host: HostSupervisor,
        software: Software,
    ) -> ControlServer:
        authorities = ServerAuthorities(
            self._certificates(contexts),
            machine=self.machine,
            links=links,
            table_clock=self._table_clock,
            log=self._log,
        )
        controller = Controller(
            self.machine,
            me=ServerInstance(self._identity.server, self._incarnation, software, self.measures),
            consensus=replicated_log,
            authorities=authorities,
            host=host,
            table_clock=self._table_clock,
            rng=self._rng,
        )
        return ControlServer(
            controller,
            replicated_log,
            authorities=authorities,
            links=links,
            log=self._log,
            settings=ServerSettings(client_timeout_s=self._options.client_timeout_s),
            background=BackgroundWork(ask_records=self.health.answer),
            follow=partial(self._follow, replicated_log),
            web=self.web.link,
        )

    def _address_of(self, server: ServerId) -> str | None:
        return next(iter(self._addresses_of(server)), None)

    def _addresses_of(self, server: ServerId) -> list[str]:
        return self._state.addresses_of(server, self.machine.state.servers.get(server))

    def _follow(
        self, replicated_log: RaftDriver, servers: Sequence[ServerId], voters: Sequence[ServerId]
    ) -> None:
        """Tell consensus the pool's members, once this server's table is up to date."""
        removed = self._identity.server in self.machine.state.removed
        if self._identity.server not in servers and not removed:
            return  # the table has not reached the point at which this server joined
        replicated_log.set_servers(servers, removed=removed)
        replicated_log.reconcile_voters(voters, stopgaps=self.machine.state.witnesses())
        if self._identity.server in servers:
            # The server that let this one in may be gone at the next start, or have moved.
            self._state.remember_members(self.machine.state.servers.values())


async def describe(address: str, inventory: Inventory, options: JoinOptions) -> Software:
    """Return the description of the server that is reached at ``address``."""
    return Software(
        address=address,
        version=__version__,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        labels=options.labels,
        link_speed=await trio.to_thread.run_sync(advertised_speed, address),
        rdma=has_rdma(),
        alerts=find_settings(options.state_dir) is not None,
        names=await trio.to_thread.run_sync(own_names, address),
    )
