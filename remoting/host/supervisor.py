"""The host supervisor: serves the sessions of leases on this server with worker processes.

Parts, and who calls whom::

    control server ─► HostSupervisor ─► SessionOpener ─► WorkerPool ─► WorkerHandle ─► process
         (SessionHost)      │  ▲                            │ messages       (control socket)
                            │  └──────── _handle ◄──────────┘
                            └─► MemoryWatchdog ─► Inventory (NVML), Budget

A session in order:

1. ``open_session``: the opener claims a worker, enters it in the budget and sends ``Assign``. The
   client gets the session's id, its ticket and the worker's certificate.
2. ``hand_over``: the client's data connection arrives, by TCP through the control server or by
   ``data.sock``. Its descriptor goes to the worker untouched. TLS and the ticket are checked by the
   worker, so this process never reads a byte of a program's data.
3. ``Report`` messages bring totals; each is a sign of use, by which idle leases are found.
4. ``kill_lease``: openings are cancelled first, then all workers of the lease are killed. It
   returns once every process is gone, so that the table may free the GPUs.

What always holds:

* A worker serves one session of one lease, and ends with it.
* The partitions of a lease are in the budget before a worker knows of them, until after the last
  of its workers is gone.
* A worker that breaks the protocol is killed; ``worker_pool`` has the table of its states.
* What a client can cause is bounded: workers per lease and in all, and the time of each step.

Everything here runs on one trio thread, so no lock is needed.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence

import trio

from gpupool.pool.errors import DeniedError, GpupoolError
from gpupool.pool.host_suspension import HostSuspension
from gpupool.pool.measures import Measures, Transport
from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId
from gpupool.pool.model.policy import DataEncryption
from gpupool.pool.model.state import Gpu, Lease, Partition
from gpupool.pool.telemetry import GpuTelemetry, SessionTelemetry
from gpupool.remoting.host import departures, host_memory
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.host_parts import HostLimits, HostParts
from gpupool.remoting.host.inventory import Inventory, Log
from gpupool.remoting.host.isolation.confinement import Confinement
from gpupool.remoting.host.isolation.held_sockets import Network
from gpupool.remoting.host.lease_network import LeaseNetwork
from gpupool.remoting.host.measuring.session_meter import (
    LeaseUse,
    Totals,
    count_states,
    emulated_busy,
    memory_in_use,
    session_telemetry,
    shares_by_lease,
)
from gpupool.remoting.host.memory_watchdog import MemoryWatchdog
from gpupool.remoting.host.privileged_helper import OwnHelper, PrivilegedHelper
from gpupool.remoting.host.session_opener import SessionOpener
from gpupool.remoting.host.sharing.arbiter import Arbiter
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.suspension.room import Room
from gpupool.remoting.host.suspension.suspensions import Means, Suspensions
from gpupool.remoting.host.unix_listener import SOCKET_NAME, bind_unix_listener, serve_unix_listener
from gpupool.remoting.host.worker_handle import GpuTest, WorkerHandle, WorkerState
from gpupool.remoting.host.worker_helper import HelperSettings, WorkerHelper
from gpupool.remoting.host.worker_pool import WorkerPool, WorkerPoolSettings
from gpupool.remoting.protocol import mps_folders, worker_messages
from gpupool.remoting.protocol.sessions import NO_MOVES, Departure, SessionInfo

TEST_GRACE_S = 20.0
"""Seconds for CUDA's work before the first pass of a self-test."""


class HostSupervisor:
    """Implements ``remoting.protocol.sessions.SessionHost`` with worker processes."""

    def __init__(
        self,
        inventory: Inventory,
        workers: HelperSettings,
        *,
        warm_workers: int = 1,
        data_encryption: Callable[[LeaseId], str] = lambda _lease: DataEncryption.TLS,
        limits: HostLimits | None = None,
        helper: PrivilegedHelper | None = None,
        measures: Measures | None = None,
        address_of: Callable[[ServerId], str | None] = lambda _server: None,
        networks: Sequence[Network] = (),
        log: Log = lambda _text: None,
    ) -> None:
        """Prepare a host; ``run`` starts it.

        Args:
            inventory: the GPUs of this server.
            workers: how they are started. ``data.sock`` lies in ``base`` too; mode 0711 lets other
                users of the machine reach it.
            warm_workers: warm workers that wait for sessions.
            data_encryption: called for each connection: the ``DataEncryption`` of its lease.
            limits: bounds and intervals.
            helper: starts the workers, by settings of its own; None: this process does.
            measures: takes what is counted here; None: nobody asks.
            address_of: where another server of the pool listens; None when it is not known.
            networks: those of which NCCL's sockets may be, beside the servers' addresses.
            log: takes one line.
        """
        self.inventory, self.budget = inventory, Budget()
        assert workers.base is not None
        self._limits, self._runtime_dir = limits or HostLimits(), workers.base
        self._data_encryption = data_encryption
        self._log, self._measures = log, measures or Measures()
        self._used_at: dict[LeaseId, float] = {}  # trio's time of the last use
        self._totals: dict[LeaseId, Totals] = {}  # of workers that have ended
        self._nursery: trio.Nursery | None = None
        root = helper is not None or os.geteuid() == 0
        nodes = inventory.device_nodes()
        self._confinement = Confinement(workers.confine, nodes, root, workers.ports)
        self.helper = helper or OwnHelper(WorkerHelper(workers, log))
        self._parts = HostParts(
            inventory, self.budget, self.helper, self._limits, self._measures, log
        )
        self._lease_network = LeaseNetwork(self.helper, workers.confine, address_of, networks, log)
        self.worker_pool = self._make_pool(warm_workers, frozenset(workers.doors))
        self._suspensions = self._make_suspensions()
        self.weigh = self._arbiter.weigh
        self.watchdog = self._make_watchdog()
        self._opener = self._make_opener()

    def _make_watchdog(self) -> MemoryWatchdog:
        return MemoryWatchdog(
            self._parts,
            self.worker_pool.workers,
            note_use=self._note_use,
            suspended=self._suspensions.away,
            besides=self._suspensions.memory,
        )

    def _make_pool(self, warm_workers: int, doors: frozenset[str]) -> WorkerPool:
        return WorkerPool(
            WorkerPoolSettings(
                self.inventory.has_real,
                warm_workers,
                self._limits.workers,
                doors,
                self._confinement,
            ),
            self._parts,
            handle=self._handle,
            reap=self._reap,
            allowance=lambda lease: self.watchdog.kernel_limit(lease),
        )

    def _make_suspensions(self) -> Suspensions:
        self._arbiter = Arbiter(self.worker_pool.workers.get)
        machine, part = host_memory.machine_memory(), self._limits.suspend_memory
        means = Means(
            workers=self.worker_pool.workers,
            helper=self.helper,
            budget=self.budget,
            allowance=lambda lease: self.watchdog.lasting_limit(lease),
            sample=lambda: self.inventory.sample(self.watchdog.own_use),
            free_on=self.inventory.free_on,
            instances=lambda: frozenset(gpu.id for gpu in self.gpus() if gpu.parent),
            shared_by_mps=mps_folders.is_used,
            note_use=self._note_lease,
            arbiter=self._arbiter,
            log=self._log,
        )
        room = Room(
            part if part >= 0 else machine // 2,
            lambda: (host_memory.available(), machine),
            self._limits.suspend_spill,
        )
        return Suspensions(means, room)

    def _make_opener(self) -> SessionOpener:
        return SessionOpener(
            self._parts,
            self.worker_pool,
            note_use=self._note_use,
            wait_running=self._suspensions.wait_running,
            arbiter=self._arbiter,
            network=self._lease_network,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; every worker is gone when this returns."""
        listener = bind_unix_listener(self._runtime_dir)
        try:
            self._suspensions.room.check()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._lease_network.run)
                self.worker_pool.also_holds = self._lease_network.holds
                await nursery.start(self.worker_pool.run)
                nursery.start_soon(self.watchdog.run)
                nursery.start_soon(self.watchdog.run_for_files)
                await nursery.start(self._suspensions.run, self._opener)
                if listener is not None:
                    self._opener.unix_path = str(self._runtime_dir / SOCKET_NAME)
                    nursery.start_soon(serve_unix_listener, listener, self.hand_over, self._log)
                else:
                    self._log(f"no {SOCKET_NAME}: the path of {self._runtime_dir} is too long")
                task_status.started()
        finally:
            self._nursery = None
            self._arbiter.close()
            if listener is not None:
                listener.close()
                (self._runtime_dir / SOCKET_NAME).unlink(missing_ok=True)

    # --- what it has ----------------------------------------------------------------------------

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the devices to offer, in nvidia-smi's order."""
        return self.inventory.gpus()

    def readings(self) -> dict[GpuId, GpuReading]:
        """Return the latest foreign memory and fault of every GPU."""
        return self.inventory.readings()

    def worker_count(self) -> dict[LeaseId, int]:
        """Return how many live workers each lease has that this host has anything of."""
        return self.worker_pool.count_by_lease({*self.budget.leases(), *self.suspensions()})

    def idle_s(self) -> dict[LeaseId, float]:
        """Return for each lease with sessions here, seconds since its last use; 0 while in use."""
        now = trio.current_time()
        return {
            lease: 0.0 if self._suspensions.holds(lease) else now - used_at
            for lease, used_at in self._used_at.items()
        }

    def telemetry(self) -> tuple[tuple[GpuTelemetry, ...], tuple[SessionTelemetry, ...]]:
        """Return the latest readings of GPUs and sessions."""
        self._measures.counters |= count_states(self.worker_pool.workers.values())
        accounted = {gpu.id: self.watchdog.used_on(gpu.id) for gpu in self.gpus()}
        totals = {lease: total.copy() for lease, total in self._totals.items()}
        workers: dict[LeaseId, list[WorkerHandle]] = {lease: [] for lease in totals}
        for worker in self.worker_pool.workers.values():
            if worker.session.lease is not None:
                totals.setdefault(worker.session.lease, Totals()).add(worker)
                workers.setdefault(worker.session.lease, []).append(worker)
        now, living = trio.current_time(), self.worker_pool.workers.values()
        busy, emulated = emulated_busy(living, now)
        real, estimates = shares_by_lease(self.inventory, living, now)
        idle_s, turns = self.idle_s(), self._arbiter.got()
        sessions: list[SessionTelemetry] = []
        for lease, total in sorted(totals.items()):
            reserved = sum(self.budget.usage(lease, gpu) for gpu in accounted)
            use = LeaseUse(
                memory_reserved=reserved,
                memory_used=memory_in_use(self.inventory, workers[lease], reserved),
                turns=turns.get(lease, {}),
                idle_s=idle_s.get(lease),
                busy={**emulated.get(lease, {}), **real.get(lease, {})},
                estimated=lease in estimates,
                not_suspendable=self._suspensions.objection(workers[lease]),
            )
            sessions.append(session_telemetry(lease, total, workers[lease], use))
        return self.inventory.telemetry(accounted, busy), tuple(sessions)

    def confinement(self) -> tuple[str, ...]:
        """Return the confinement of the live workers; for ``doctor`` and tests."""
        found = [set(w.confinement) for w in self.worker_pool.workers.values() if w.ready.is_set()]
        return tuple(sorted(found[0].intersection(*found[1:]))) if found else ()

    def unconfined(self) -> tuple[str, ...]:
        """Return the confinement that live workers lack, with reasons; for ``doctor`` and tests."""
        holds = self.confinement()
        return tuple(self._confinement.lacking(holds)) if holds else ()

    # --- suspension -----------------------------------------------------------------------------

    def suspend(self, lease: LeaseId, number: int) -> None:
        """Suspend a lease's workers, which release their GPU memory; return at once.

        An order with a lower ``number`` than an earlier one does nothing.
        """
        self._suspensions.suspend(lease, number)

    def resume(self, lease: LeaseId, number: int, moves: Mapping[GpuId, GpuId] = NO_MOVES) -> None:
        """Resume a lease's workers with all their state; return at once."""
        self._suspensions.resume(lease, number, moves)

    def suspensions(self) -> Mapping[LeaseId, HostSuspension]:
        """Return how far the host is with each lease that it was told to suspend or resume."""
        return self._suspensions.phases()

    def depart(self, lease: LeaseId, target: ServerId | None) -> Departure:
        """Let the one session of a lease connect to the server where it is to go on."""
        return departures.depart(self.worker_pool.workers.values(), lease, target)

    # --- sessions -------------------------------------------------------------------------------

    async def open_session(
        self,
        lease: Lease,
        partitions: Sequence[Partition],
        *,
        door: str,
        program: str,
        settings: Mapping[str, str] | None = None,
    ) -> SessionInfo:
        """Assign a worker to one client process of ``lease``.

        Args:
            lease: as the table of this server holds it.
            partitions: those of the lease on this server, in the program's order.
            door: how the program talks to its worker.
            program: the program's name, shown in views.
            settings: variables for the worker's driver.

        Raises:
            GpupoolError: when no worker can be had; the text says why.
        """
        worker, session = await self._opener.open(
            lease, partitions, door=door, program=program, settings=dict(settings or {})
        )
        if self._nursery is not None:
            self._nursery.start_soon(self._await_client, worker)
        return session

    async def self_test(self, gpu: Gpu, seconds: float) -> worker_messages.GpuChecked:
        """Test a GPU in a separate worker for ``seconds``; an emulated GPU once.

        A cancelled test leaves nothing behind. A worker that dies of it is its result.

        Raises:
            GpupoolError: when no worker can be had, which says nothing of the GPU.
        """
        worker = await self.worker_pool.claim()
        worker.test = test = GpuTest()
        try:
            if worker.said.cuda_problem and not gpu.emulated:
                raise GpupoolError("the GPU cannot be tested", why=worker.said.cuda_problem)
            spoil = gpu.emulated and self.inventory.computes_wrongly(gpu.id)
            length_s = 0.0 if gpu.emulated else seconds
            worker.send(worker_messages.CheckGpu(gpu.id, gpu.emulated, length_s, spoil))
            with trio.move_on_after(length_s + TEST_GRACE_S):
                await self.worker_pool.until(worker, test.over)
        except WorkerFailedError:
            return worker_messages.GpuChecked(0.0, f"its self-test ended: {worker.exit_reason()}")
        finally:
            worker.kill("its self-test is over", failed=False)
        return test.found or worker_messages.GpuChecked(0.0, "its self-test did not end")

    def knows_session(self, session: bytes) -> bool:
        """Return whether ``session`` waits for its data connection, or for other workers'."""
        return self._waiting(session) is not None

    async def hand_over(self, session: bytes, connection: socket.socket) -> None:
        """Give a worker its data connection, untouched; the descriptor is the worker's now.

        Raises:
            GpupoolError: when no worker waits for it; the connection is closed then, too.
        """
        with connection:
            worker = self._waiting(session)
            if worker is None:
                raise DeniedError("data connection refused", why="no session waits for it")
            plain = connection.family == socket.AF_UNIX
            if not plain and worker.session.lease is not None:
                plain = self._data_encryption(worker.session.lease) == DataEncryption.OFF
            try:
                self._lease_network.hold(connection)
            except OSError as error:
                raise DeniedError("data connection refused", why=str(error)) from error
            try:
                lane = session if session in worker.session.lanes else b""
                message = worker_messages.Connection(plain=plain, lane=lane)
                worker.send(message, connection.fileno())
            except WorkerFailedError as error:
                worker.kill(str(error))
                raise
        await trio.lowlevel.checkpoint()

    async def kill_lease(self, lease: LeaseId, reason: str) -> None:
        """Kill every worker of ``lease`` and return once all are gone (waited for)."""
        await trio.lowlevel.checkpoint()
        # After the last look nothing is awaited: an opening that began would lose its books.
        await self._opener.cancel(lease)
        workers = self.worker_pool.workers
        while terminating := [w for w in workers.values() if w.session.lease == lease]:
            await self.worker_pool.end(terminating, reason)
            await self._opener.cancel(lease)
        self._suspensions.forget(lease)
        self.budget.close_lease(lease)
        self._used_at.pop(lease, None)
        self._totals.pop(lease, None)

    def _waiting(self, session: bytes) -> WorkerHandle | None:
        for worker in self.worker_pool.workers.values():
            connected = worker.state is WorkerState.CONNECTED
            if worker.session.id == session and (
                worker.state is WorkerState.WAITING or (connected and worker.session.expects_peers)
            ):
                return worker
            if connected and session in worker.session.lanes:
                return worker
        return None

    async def _await_client(self, worker: WorkerHandle) -> None:
        while not worker.connected.is_set():
            with trio.move_on_after(self._limits.connect_timeout_s):
                try:
                    await self.worker_pool.until(worker, worker.connected)
                except WorkerFailedError:
                    return  # It has ended meanwhile, which was logged.
            if worker.connected.is_set():
                return
            if worker.session.lease is None or not self._suspensions.holds(worker.session.lease):
                worker.kill("its client never connected")
                return
            await self._suspensions.wait_running(worker.session.lease)

    # --- what workers say -----------------------------------------------------------------------

    def _handle(self, worker: WorkerHandle, message: worker_messages.WorkerMessage) -> None:
        if isinstance(message, worker_messages.Assigned):
            worker.assigned.set()
        elif isinstance(message, worker_messages.Connected) and worker.session.transport is None:
            if worker.state is WorkerState.WAITING:
                worker.state = WorkerState.CONNECTED
            worker.session.transport = Transport(message.transport)
            worker.connected.set()
            self._note_use(worker)
        elif isinstance(message, worker_messages.Report):
            # The program's use only: the worker's own allocations change no total.
            self._take_report(worker, message, trio.current_time())
            self._note_use(worker)
        elif isinstance(message, worker_messages.Rejected):
            worker.say(f"a connection was refused: {message.reason}", self._log)
        elif isinstance(message, worker_messages.ContextReady) and not worker.session.contexts:
            worker.session.contexts = True
            if self._nursery is not None:
                self._nursery.start_soon(self.watchdog.measure_contexts, worker)
        elif isinstance(message, worker_messages.Expecting):
            if message.lanes:
                worker.expect_lanes(message.lanes, self.worker_pool.workers.values())
            else:
                worker.session.expects_peers = bool(worker.session.peers)
        elif isinstance(message, worker_messages.Dial) and not worker.session.dialling:
            self._lease_network.dial(worker, ServerId(message.server))
        elif isinstance(message, worker_messages.GpuChecked) and (test := worker.test):
            worker.test, test.found = None, message  # another one would be out of turn
            test.over.set()
        else:
            worker.kill(f"it sent {type(message).__name__} out of turn")

    def _take_report(
        self, worker: WorkerHandle, report: worker_messages.Report, now: float
    ) -> None:
        session, before = worker.session, worker.session.totals
        session.totals, session.reported_at = report, now
        if fault := report.fault_after(before):
            session.totals = before
            worker.kill(fault)
            return
        if report.executed_us is not None:
            session.execution.take(report.executed_us, now)
        path = report.rtt_us, report.rtt_var_us
        if report.rtt_us is not None and path != (before.rtt_us, before.rtt_var_us):
            self._measures.observe("session_rtt_seconds", report.rtt_us / 1e6, session.transport)

    def _note_use(self, worker: WorkerHandle) -> None:
        """Note that a lease is in use."""
        if worker.session.lease is not None:
            self._note_lease(worker.session.lease)

    def _note_lease(self, lease: LeaseId) -> None:
        if self.budget.is_open(lease):  # or it was killed meanwhile, as in a suspension
            self._used_at[lease] = trio.current_time()

    def _reap(self, worker: WorkerHandle) -> None:
        self.budget.end_worker(worker.number)
        self._arbiter.leave(worker.number)
        if worker.session.lease is not None:
            self._totals.setdefault(worker.session.lease, Totals()).add(worker)
