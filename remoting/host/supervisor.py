"""The host: sessions of leases on this server, their connections, their memory, their end.

Everything here runs on one trio thread. What a client can make it do is bounded: workers per
lease and in all, handshakes at a time, and the time that each step may take.
"""

import os
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError
from gpupool.pool.model.commands import GpuReading
from gpupool.pool.model.ids import GpuId, LeaseId, ServerId, lease_name
from gpupool.pool.model.state import Gpu, Lease, Partition
from gpupool.pool.view import GpuTelemetry, SessionTelemetry
from gpupool.remoting.host import host_memory
from gpupool.remoting.host.budget import Budget, BudgetError
from gpupool.remoting.host.inventory import Inventory, Log, OwnUse
from gpupool.remoting.host.unix_listener import SOCKET_NAME, bind_unix_listener, serve_unix_listener
from gpupool.remoting.host.worker_handle import WorkerFailedError, WorkerHandle, WorkerState
from gpupool.remoting.host.worker_pool import WorkerPool, WorkerPoolSettings
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.sessions import SessionDevice, SessionInfo

ASSIGN_TIMEOUT_S = 5.0
"""A warm worker takes a session within a millisecond."""

PEER_DIAL_TIMEOUT_S = 4.0
"""As for a client's connection to a server."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bounds and intervals of one host; the defaults are meant for everyone."""

    workers_per_lease: int = 64
    workers: int = 256
    connect_timeout_s: float = 60.0  # from a session's opening to its data connection
    sample_interval_s: float = 1.0
    #: Bytes charged for each CUDA context until NVML has measured it. On GPUs from Volta to
    #: Hopper contexts take 300 to 500 MiB (facts: HAMi's issues; CuPy's documentation).
    context_overhead: int = 512 * MIB
    #: Bytes by which NVML may find a lease above its partition before a worker is killed.
    watchdog_slack: int = 256 * MIB
    #: Bytes of the server's memory that any lease may take, and for each of its workers. A larger
    #: lease may take as large a part of it as it has of the GPUs' memory.
    host_memory: int = 16 * 1024 * MIB
    host_memory_each: int = 1024 * MIB


@dataclass(slots=True, eq=False)
class _Opening:
    """A call of ``open_session`` that has not returned yet."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


class HostSupervisor:
    """Implements ``remoting.sessions.SessionHost`` with worker processes."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        runtime_dir: Path,
        state_dir: Path | None = None,
        warm_workers: int = 1,
        data_encryption: Callable[[LeaseId], str] = lambda _lease: "tls",
        limits: HostLimits | None = None,
        doors: Mapping[str, str] | None = None,
        own_uids: bool = True,
        landlock: bool = True,
        address_of: Callable[[ServerId], str | None] = lambda _server: None,
        log: Log = lambda _text: None,
    ) -> None:
        """Prepare a host; ``run`` starts it.

        Args:
            inventory: the GPUs of this server.
            runtime_dir: an existing directory for ``data.sock`` and the workers' files; mode 0711
                lets other users of the machine reach the socket.
            state_dir: where live workers are recorded, for ``reap_orphans``.
            warm_workers: warm workers that wait for sessions.
            data_encryption: asked for each connection: what holds for its lease, "tls" or "off".
            limits: bounds and intervals.
            doors: name of each door to its "module:function"; by default the array door.
            own_uids: whether workers get uids of their own where that is possible.
            landlock: whether workers are confined to a few directories where that is possible.
            address_of: where another server of the pool listens; None when it is not known.
            log: takes one line.
        """
        self.inventory = inventory
        self.budget = Budget()
        self._limits = limits or HostLimits()
        self._runtime_dir = runtime_dir
        self._data_encryption = data_encryption
        self._address_of = address_of
        self._log = log
        self._unix_path = ""
        self._machine = host_memory.machine_memory()
        self._openings: dict[LeaseId, list[_Opening]] = {}
        self._used_at: dict[LeaseId, float] = {}  # trio's time of the last use
        self._totals: dict[LeaseId, worker_messages.Report] = {}  # of workers that have ended
        self._nursery: trio.Nursery | None = None
        self.worker_pool = WorkerPool(
            WorkerPoolSettings(
                runtime_dir=runtime_dir,
                state_dir=state_dir,
                cuda=inventory.has_real,
                warm_workers=warm_workers,
                worker_count_max=self._limits.workers,
                doors=doors,
                landlock=landlock,
                own_uids=own_uids,
            ),
            handle=self._handle,
            reap=self._reap,
            budget=self.budget,
            log=log,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; every worker is gone when this returns."""
        listener = bind_unix_listener(self._runtime_dir)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self.worker_pool.run)
                nursery.start_soon(self._sample_for_ever)
                if listener is not None:
                    self._unix_path = str(self._runtime_dir / SOCKET_NAME)
                    nursery.start_soon(serve_unix_listener, listener, self.hand_over, self._log)
                else:
                    self._log(f"no {SOCKET_NAME}: the path of {self._runtime_dir} is too long")
                task_status.started()
        finally:
            self._nursery = None
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
        """Return how many live workers each lease has."""
        count: dict[LeaseId, int] = {}
        for worker in self.worker_pool.workers.values():
            if worker.lease is not None:
                count[worker.lease] = count.get(worker.lease, 0) + 1
        return count

    def idle_s(self) -> dict[LeaseId, float]:
        """Return for each lease with sessions here, seconds since its last use; 0 while in use."""
        now = trio.current_time()
        return {lease: now - used_at for lease, used_at in self._used_at.items()}

    def telemetry(self) -> tuple[tuple[GpuTelemetry, ...], tuple[SessionTelemetry, ...]]:
        """Return the latest readings of GPUs and sessions."""
        accounted = {gpu.id: self.budget.used_on(gpu.id) for gpu in self.gpus()}
        workers = self.worker_count()
        totals = dict(self._totals)
        for worker in self.worker_pool.workers.values():
            if worker.lease is not None:
                totals[worker.lease] = _sum(totals.get(worker.lease), worker.totals)
        sessions = tuple(
            SessionTelemetry(
                lease=lease,
                workers=workers.get(lease, 0),
                calls=total.calls,
                bytes_in=total.bytes_in,
                bytes_out=total.bytes_out,
                memory_reserved=sum(self.budget.usage(lease, gpu) for gpu in accounted),
            )
            for lease, total in sorted(totals.items())
        )
        return self.inventory.telemetry(accounted), sessions

    def confinement(self) -> tuple[str, ...]:
        """Return what separates the live workers from this server; for ``doctor`` and tests."""
        found = [set(w.confinement) for w in self.worker_pool.workers.values() if w.ready.is_set()]
        return tuple(sorted(found[0].intersection(*found[1:]))) if found else ()

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
            program: what runs, for people.
            settings: variables for the worker's driver.

        Raises:
            GpupoolError: when no worker can be had; the text says why.
        """
        gpus = self._check(lease, partitions, door)
        with self._opening(lease.id):
            try:
                self.budget.open_lease(lease.id, {p.gpu: p.memory for p in partitions})
            except BudgetError as error:
                raise GpupoolError("no session can be opened", why=str(error)) from error
            self._check_context_room(lease.id, gpus)
            worker = await self.worker_pool.claim()
            try:
                others = {p.server for p in lease.partitions} - {p.server for p in partitions}
                worker.peers = frozenset(others)
                return await self._assign(
                    worker, lease, partitions, gpus, door, program, dict(settings or {})
                )
            except (GpupoolError, trio.Cancelled) as error:
                if worker.lease is None:
                    worker.claimed = False  # It knows of nothing yet, and can serve another.
                else:
                    worker.kill(f"it could not be assigned: {error}")
                raise
        raise LeaseLostError("no session can be opened", why="the lease has ended")

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
            if not plain and worker.lease is not None:
                plain = self._data_encryption(worker.lease) == "off"
            try:
                worker.send(worker_messages.Connection(plain=plain), connection.fileno())
            except WorkerFailedError as error:
                worker.kill(str(error))
                raise
        await trio.lowlevel.checkpoint()

    async def kill_lease(self, lease: LeaseId, reason: str) -> None:
        """Kill every worker of ``lease`` and return once all are gone (waited for)."""
        # Openings of sessions first: they may be about to assign a worker.
        for opening in list(self._openings.get(lease, ())):
            opening.scope.cancel()
            await opening.done.wait()
        while terminating := [w for w in self.worker_pool.workers.values() if w.lease == lease]:
            await self.worker_pool.end(terminating, reason)
        await trio.lowlevel.checkpoint()
        self.budget.close_lease(lease)
        self._used_at.pop(lease, None)
        self._totals.pop(lease, None)

    # --- opening --------------------------------------------------------------------------------

    def _check(self, lease: Lease, partitions: Sequence[Partition], door: str) -> list[Gpu]:
        """Return the devices of ``partitions``, or raise for what can never be opened."""
        what = f"no session of lease {lease_name(lease.id)} can be opened"
        gpus: list[Gpu] = []
        for partition in partitions:
            gpu = self.inventory.gpu(partition.gpu)
            if gpu is None:
                raise GpupoolError(what, why=f"this server has no GPU {partition.gpu}")
            if gpu.fault:
                raise GpupoolError(what, why=f"GPU {gpu.index}: {gpu.fault}")
            gpus.append(gpu)
        if not gpus or len({gpu.id for gpu in gpus}) != len(gpus):
            raise GpupoolError(what, why="it has no partitions here, or one GPU twice")
        if len({gpu.emulated for gpu in gpus}) != 1:
            raise GpupoolError(what, why="one session cannot mix emulated and real GPUs")
        if len(gpus) > 1 and any(gpu.parent for gpu in gpus):
            raise GpupoolError(what, why="CUDA shows a process one MIG instance at most")
        if door not in self.worker_pool.doors:
            known = ", ".join(sorted(self.worker_pool.doors))
            raise GpupoolError(what, why=f"this server has no door {door!r}, only {known}")
        opening = len(self._openings.get(lease.id, ()))
        if self.worker_count().get(lease.id, 0) + opening >= self._limits.workers_per_lease:
            raise GpupoolError(
                what,
                why=f"{self._limits.workers_per_lease} processes of it use this server already",
                hint="start fewer processes, or give each its own gpupool run",
            )
        return gpus

    @contextmanager
    def _opening(self, lease: LeaseId) -> Generator[None]:
        """Let ``kill_lease`` cancel what happens inside."""
        opening = _Opening()
        self._openings.setdefault(lease, []).append(opening)
        try:
            with opening.scope:
                yield
        finally:
            self._openings[lease].remove(opening)
            if not self._openings[lease]:
                del self._openings[lease]
            opening.done.set()

    async def _assign(
        self,
        worker: WorkerHandle,
        lease: Lease,
        partitions: Sequence[Partition],
        gpus: Sequence[Gpu],
        door: str,
        program: str,
        settings: dict[str, str],
    ) -> SessionInfo:
        real = tuple(gpu.id for gpu in gpus if not gpu.emulated)
        if real and worker.cuda_problem:
            raise GpupoolError("no session can be opened", why=worker.cuda_problem)
        self._check_context_room(lease.id, gpus)  # Another session may have taken it meanwhile.
        worker.lease, worker.real = lease.id, real
        self._use(worker)
        worker.devices = tuple(gpu.id for gpu in gpus)
        worker.session = os.urandom(16)
        worker.state = WorkerState.WAITING
        self.budget.add_worker(worker.number, lease.id)
        for gpu in real:
            self.budget.charge(worker.number, gpu, self._limits.context_overhead)
        uid, groups = await self.worker_pool.give_user(worker)
        await self.worker_pool.give_kernels(worker, lease.user)
        ticket = os.urandom(32)
        devices = tuple(
            worker_messages.AssignedDevice(
                index=index,
                uuid=gpu.id,
                name=gpu.name,
                memory=partition.memory,
                emulated=gpu.emulated,
                ordinal=-1 if gpu.emulated else index,
            )
            for index, (gpu, partition) in enumerate(zip(gpus, partitions, strict=True))
        )
        servers = tuple(dict.fromkeys(partition.server for partition in lease.partitions))
        assign = worker_messages.Assign(
            lease=lease.id,
            session=worker.session,
            ticket=ticket,
            door=door,
            program=worker_messages.shortened(program),
            cuda_visible=",".join(real),
            settings=settings,
            devices=devices,
            place=servers.index(partitions[0].server),
            servers=len(servers),
            uid=uid,
            groups=groups,
        )
        worker.budget, theirs = socket.socketpair()
        worker.budget.setblocking(False)
        with theirs:
            worker.send(assign, theirs.fileno())
        with trio.move_on_after(ASSIGN_TIMEOUT_S):
            await self.worker_pool.until(worker, worker.assigned)
        if not worker.assigned.is_set():
            raise WorkerFailedError("no session can be opened", why="the worker does not answer")
        assert self._nursery is not None
        self._nursery.start_soon(self._await_client, worker)
        return SessionInfo(
            session=worker.session,
            certificate_sha256=worker.certificate_sha256,
            ticket=ticket,
            unix_path=self._unix_path,
            devices=tuple(
                SessionDevice(d.index, GpuId(d.uuid), d.name, d.memory, d.emulated) for d in devices
            ),
        )

    def _check_context_room(self, lease: LeaseId, gpus: Sequence[Gpu]) -> None:
        """Raise unless each partition of a real GPU still has room for a CUDA context."""
        overhead = self._limits.context_overhead
        for gpu in gpus:
            partition = self.budget.partition(lease, gpu.id)
            left = max(0, partition - self.budget.usage(lease, gpu.id))
            if overhead > left and not gpu.emulated:
                raise GpupoolError(
                    "no session can be opened",
                    why=f"a process takes up to {overhead // MIB} MiB of a GPU for its CUDA "
                    f"context, and {left // MIB} MiB of the partition's {partition // MIB} MiB "
                    "are left",
                    hint="ask for a larger partition, or free memory in the other processes",
                )

    def _waiting(self, session: bytes) -> WorkerHandle | None:
        for worker in self.worker_pool.workers.values():
            if worker.session == session and (
                worker.state is WorkerState.WAITING
                or (worker.state is WorkerState.CONNECTED and worker.expects_peers)
            ):
                return worker
        return None

    async def _await_client(self, worker: WorkerHandle) -> None:
        with trio.move_on_after(self._limits.connect_timeout_s):
            try:
                await self.worker_pool.until(worker, worker.connected)
            except WorkerFailedError:
                return  # It has ended meanwhile, which was logged.
        if not worker.connected.is_set():
            worker.kill("its client never connected")

    # --- what workers say -----------------------------------------------------------------------

    def _handle(self, worker: WorkerHandle, message: worker_messages.WorkerMessage) -> None:
        if isinstance(message, worker_messages.Assigned):
            worker.assigned.set()
        elif isinstance(message, worker_messages.Connected):
            if worker.state is WorkerState.WAITING:
                worker.state = WorkerState.CONNECTED
            worker.connected.set()
            self._use(worker)
        elif isinstance(message, worker_messages.Report):
            # Sent for use only: what the worker does by itself changes no total.
            worker.totals = message
            self._use(worker)
        elif isinstance(message, worker_messages.Rejected):
            worker.say(f"a connection was refused: {message.reason}", self._log)
        elif isinstance(message, worker_messages.ContextReady) and not worker.contexts:
            worker.contexts = True
            if self._nursery is not None:
                self._nursery.start_soon(self._measure_contexts, worker)
        elif isinstance(message, worker_messages.Expecting):
            worker.expects_peers = bool(worker.peers)
        elif isinstance(message, worker_messages.Dial) and not worker.dialling:
            worker.dialling = True
            if self._nursery is not None:
                self._nursery.start_soon(self._dial, worker, ServerId(message.server))
        else:
            worker.kill(f"it sent {type(message).__name__} out of turn")

    def _use(self, worker: WorkerHandle) -> None:
        """Note that a lease is in use."""
        if worker.lease is not None:
            self._used_at[worker.lease] = trio.current_time()

    def _reap(self, worker: WorkerHandle) -> None:
        self.budget.end_worker(worker.number)
        if worker.lease is not None:
            self._totals[worker.lease] = _sum(self._totals.get(worker.lease), worker.totals)

    async def _dial(self, worker: WorkerHandle, server: ServerId) -> None:
        """Connect a worker to another server of its lease, which is all that it may reach."""
        address = self._address_of(server) if server in worker.peers else None
        reason = f"server {server[:32]} is none of this lease" if address is None else ""
        connection: trio.SocketStream | None = None
        try:
            if address is not None:
                target = parse_address(address)
                with trio.fail_after(PEER_DIAL_TIMEOUT_S):
                    connection = await trio.open_tcp_stream(target.host, target.port)
        except (OSError, GpupoolError, trio.TooSlowError) as error:
            reason = worker_messages.shortened(str(error) or "no answer in time")
        worker.dialling = False
        try:
            descriptor = None if connection is None else connection.socket.fileno()
            worker.send(worker_messages.Dialled(reason), descriptor)
        except WorkerFailedError as error:
            worker.kill(str(error))
        finally:
            if connection is not None:
                connection.socket.close()

    # --- NVML against the books -----------------------------------------------------------------

    def own_use(self) -> dict[GpuId, OwnUse]:
        """Return what our workers hold, by which a sample is told apart."""
        pids = frozenset(worker.process.pid for worker in self.worker_pool.workers.values())
        return {gpu.id: OwnUse(pids, self.budget.used_on(gpu.id)) for gpu in self.gpus()}

    async def _sample_for_ever(self) -> None:
        while True:
            await self.inventory.sample(self.own_use)
            self._reconcile()
            self._watch_host_memory()
            await trio.sleep(self._limits.sample_interval_s)

    async def _measure_contexts(self, worker: WorkerHandle) -> None:
        """Charge what the worker's contexts take while it has allocated nothing."""
        await self.inventory.sample(self.own_use)
        if worker.state is WorkerState.ENDED:
            return
        for gpu in worker.real:
            used = (self.inventory.own_processes(gpu) or {}).get(worker.process.pid)
            if used is not None:
                self.budget.charge(worker.number, gpu, used)
        try:
            worker.send(worker_messages.Proceed())
        except WorkerFailedError as error:
            worker.kill(str(error))

    def _reconcile(self) -> None:
        """Charge what NVML finds beyond the reservations; kill who is far over the partition."""
        over: dict[tuple[LeaseId, GpuId], list[tuple[int, WorkerHandle]]] = {}
        found: dict[tuple[LeaseId, GpuId], int] = {}
        for worker in self.worker_pool.workers.values():
            if worker.lease is None or not worker.contexts:
                continue
            for gpu in worker.real:
                if worker.process.pid in self.inventory.computing(gpu):
                    self._use(worker)
                used = (self.inventory.own_processes(gpu) or {}).get(worker.process.pid)
                if used is None:
                    continue
                reserved, charged = self.budget.held(worker.number, gpu)
                if used - reserved > charged:
                    self.budget.charge(worker.number, gpu, used - reserved)
                key = (worker.lease, gpu)
                found[key] = found.get(key, 0) + used
                over.setdefault(key, []).append((used - reserved, worker))
        for (lease, gpu), used in found.items():
            partition = self.budget.partition(lease, gpu)
            if used > partition + self._limits.watchdog_slack:
                _most, worker = max(over[lease, gpu], key=lambda each: each[0])
                worker.kill(
                    f"its lease used {used // MIB} MiB of GPU memory, "
                    f"its partition has {partition // MIB} MiB"
                )

    def _watch_host_memory(self) -> None:
        """Kill the largest worker of a lease that takes too much of this server's memory."""
        found: dict[LeaseId, list[tuple[int, WorkerHandle]]] = {}
        for worker in self.worker_pool.workers.values():
            if worker.lease is not None:
                used = host_memory.resident(worker.process.pid)
                found.setdefault(worker.lease, []).append((used, worker))
        whole = sum(gpu.memory_total for gpu in self.gpus())
        for lease, each in found.items():
            used = sum(size for size, _ in each)
            has = {gpu: self.budget.partition(lease, gpu.id) for gpu in self.gpus()}
            floor = self._limits.host_memory + len(each) * self._limits.host_memory_each
            may = host_memory.allowance(self._machine, sum(has.values()), whole, floor)
            may += sum(size for gpu, size in has.items() if gpu.emulated)  # which is memory of ours
            if used > may:
                max(each, key=lambda one: one[0])[1].kill(
                    f"its lease used {used // MIB} MiB of this server's memory, "
                    f"and may have {may // MIB} MiB"
                )


def _sum(
    left: worker_messages.Report | None, right: worker_messages.Report
) -> worker_messages.Report:
    if left is None:
        return right
    return worker_messages.Report(
        left.calls + right.calls,
        left.bytes_in + right.bytes_in,
        left.bytes_out + right.bytes_out,
    )
