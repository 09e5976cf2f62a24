"""Opens sessions: a worker of the pool is claimed, bound to a lease, and waits for its client.

Each call of ``open`` either returns with an assigned worker or leaves nothing behind: a worker
that knows of no lease goes back to the pool, any other one is killed.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from gpupool.pool.errors import GpupoolError, LeaseLostError, LeaseSuspendedError
from gpupool.pool.fair_access import Holder
from gpupool.pool.model.ids import GpuId, LeaseId, lease_name
from gpupool.pool.model.sizes import SHARE_MIN
from gpupool.pool.model.state import Gpu, Lease, Partition
from gpupool.pool.model.units import MIB
from gpupool.remoting.host.budget import BudgetError
from gpupool.remoting.host.departures import origin_of, servers_of
from gpupool.remoting.host.host_parts import HostParts
from gpupool.remoting.host.lease_network import LeaseNetwork
from gpupool.remoting.host.sharing.arbiter import Arbiter
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.worker_handle import WorkerHandle, WorkerState
from gpupool.remoting.host.worker_pool import WorkerPool
from gpupool.remoting.protocol import mps_folders, worker_messages
from gpupool.remoting.protocol.driver_variables import VISIBLE
from gpupool.remoting.protocol.sessions import SessionDevice, SessionInfo

SUSPENDED_ANSWER_S = 20.0
"""After this long, a client is told that its lease is suspended, and asks again."""

ASSIGN_TIMEOUT_S = 5.0
"""A warm worker takes a session within a millisecond."""


@dataclass(slots=True, eq=False)
class _Opening:
    """A call of ``open`` that has not returned yet."""

    holder: Holder
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    waits: bool = True  # for a suspended lease to run again; nothing has been done for it
    stale: bool = False  # the lease has other GPUs by now than this was asked for
    done: trio.Event = field(default_factory=trio.Event)


def due_share(lease: Lease, partition: Partition, gpu: Gpu) -> float:
    """Return the share of a GPU's time that a lease is due when others want theirs."""
    part = lease.share or partition.memory / max(1, gpu.capacity)
    return min(1.0, max(SHARE_MIN, part))


def _assigned_devices(
    gpus: Sequence[Gpu], partitions: Sequence[Partition], every: Sequence[Partition]
) -> tuple[worker_messages.AssignedDevice, ...]:
    return tuple(
        worker_messages.AssignedDevice(
            index=index,
            uuid=gpu.id,
            name=gpu.name,
            memory=partition.memory,
            emulated=gpu.emulated,
            ordinal=every.index(partition) if gpu.emulated else index,
        )
        for index, (gpu, partition) in enumerate(zip(gpus, partitions, strict=True))
    )


def _seen(partitions: Sequence[Partition], numbers: str) -> list[Partition]:
    """Return those of a server's partitions that a program sees, in its order."""
    places = [int(number) for number in numbers.split(",")]
    return [partitions[at] for at in places if at < len(partitions)]


class SessionOpener:
    """Opens sessions on the workers of one host."""

    def __init__(
        self,
        host: HostParts,
        worker_pool: WorkerPool,
        *,
        note_use: Callable[[WorkerHandle], None],
        wait_running: Callable[[LeaseId], Awaitable[None]],
        arbiter: Arbiter,
        network: LeaseNetwork,
    ) -> None:
        """Prepare.

        Args:
            host: its GPUs, the budget where leases and workers are entered, and the limits.
            worker_pool: where workers come from.
            note_use: called for each worker that gets a lease.
            wait_running: returns once a lease is not suspended.
            arbiter: gives turns on GPUs that several leases use.
            network: makes the sockets of workers whose leases have other servers.
        """
        self.unix_path = ""  # of the socket for clients on this machine; empty: there is none
        self._inventory, self._budget, self._limits = host.inventory, host.budget, host.limits
        self._worker_pool = worker_pool
        self._note_use = note_use
        self._wait_running = wait_running
        self._arbiter, self._network = arbiter, network
        self._openings: dict[LeaseId, list[_Opening]] = {}

    async def open(
        self,
        lease: Lease,
        partitions: Sequence[Partition],
        *,
        door: str,
        program: str,
        settings: dict[str, str],
    ) -> tuple[WorkerHandle, SessionInfo]:
        """Return a worker that is assigned to one client process of ``lease``, and its session.

        Raises:
            GpupoolError: when no worker can be had; the text says why.
        """
        every = partitions
        if door == "arrays" and VISIBLE in settings:
            partitions = _seen(partitions, settings[VISIBLE])
        gpus = self._check(lease, partitions, door)
        with self._opening(lease) as opening:
            with trio.move_on_after(SUSPENDED_ANSWER_S) as patience:
                await self._wait_running(lease.id)
            if patience.cancelled_caught or opening.stale:
                raise LeaseSuspendedError(
                    "no session can be opened yet", why="its lease is suspended"
                )
            opening.waits = False
            try:
                self._budget.open_lease(lease.id, {p.gpu: p.memory for p in every})
            except BudgetError as error:
                raise GpupoolError("no session can be opened", why=str(error)) from error
            self._check_context_room(lease.id, gpus)
            worker = await self._worker_pool.claim(door)
            try:
                here = partitions[0].server
                worker.session.peers = frozenset(servers_of(lease, here)) - {here}
                info = await self._assign(
                    worker, lease, partitions, every, gpus, door, program, settings
                )
                # Not before: NCCL's sockets are for the servers of its lease.
                worker.session.peers |= origin_of(lease, here)
                return worker, info
            except BaseException as error:  # A cancellation may come as a group.
                if worker.session.lease is None:
                    self._worker_pool.give_back(worker)
                else:
                    why = error if isinstance(error, GpupoolError) else "nobody waits for it"
                    worker.kill(f"it could not be assigned: {why}")
                raise
        raise LeaseLostError("no session can be opened", why="the lease has ended")

    def are_under_way(self, lease: LeaseId) -> bool:
        """Return whether sessions are being opened for ``lease``."""
        return any(not opening.waits for opening in self._openings.get(lease, ()))

    def refuse_waiting(self, lease: LeaseId) -> None:
        """Refuse the openings that wait for ``lease`` to run: their clients ask again."""
        for opening in self._openings.get(lease, ()):
            opening.stale = opening.stale or opening.waits

    async def cancel(self, lease: LeaseId) -> None:
        """Cancel the openings for ``lease``; none is under way at the moment of the return."""
        while openings := list(self._openings.get(lease, ())):
            for opening in openings:
                opening.scope.cancel()
            for opening in openings:
                await opening.done.wait()

    def _check(self, lease: Lease, partitions: Sequence[Partition], door: str) -> list[Gpu]:
        """Return the devices of ``partitions``, or raise if they can never be opened."""
        what = f"no session of lease {lease_name(lease.id)} can be opened"
        gpus: list[Gpu] = []
        for partition in partitions:
            gpu = self._inventory.gpu(partition.gpu)
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
        if door not in self._worker_pool.doors:
            known = ", ".join(sorted(self._worker_pool.doors))
            raise GpupoolError(what, why=f"this server has no door {door!r}, only {known}")
        self._check_count(lease)
        return gpus

    def _check_count(self, lease: Lease) -> None:
        """Raise when this server has as many workers of a lease, its user or token as it may."""
        sessions = [each.session for each in self._worker_pool.workers.values()]
        opened = [(each.lease, each.holder) for each in sessions]
        opened += [(name, each.holder) for name, found in self._openings.items() for each in found]
        of_lease = sum(found == lease.id for found, _ in opened)
        what = f"no session of lease {lease_name(lease.id)} can be opened"
        if of_lease >= self._limits.workers_per_lease:
            raise GpupoolError(
                what,
                why=f"{self._limits.workers_per_lease} processes of it use this server already",
                hint="start fewer processes, or give each its own gpupool run",
            )
        held = (holder for found, holder in opened if found is not None and holder is not None)
        if has := self._limits.workers_per_user.reached(Holder(lease.user, lease.token), held):
            raise GpupoolError(
                what,
                why=f"{has} processes that use this server already",
                hint="start fewer processes, or spread them over several servers",
            )

    @contextmanager
    def _opening(self, lease: Lease) -> Generator[_Opening]:
        """Let ``cancel`` end the block."""
        opening = _Opening(Holder(lease.user, lease.token))
        self._openings.setdefault(lease.id, []).append(opening)
        try:
            with opening.scope:
                yield opening
        finally:
            self._openings[lease.id].remove(opening)
            if not self._openings[lease.id]:
                del self._openings[lease.id]
            opening.done.set()

    async def _assign(
        self,
        worker: WorkerHandle,
        lease: Lease,
        partitions: Sequence[Partition],
        every: Sequence[Partition],
        gpus: Sequence[Gpu],
        door: str,
        program: str,
        settings: dict[str, str],
    ) -> SessionInfo:
        real = tuple(gpu.id for gpu in gpus if not gpu.emulated)
        if real and worker.said.cuda_problem:
            raise GpupoolError("no session can be opened", why=worker.said.cuda_problem)
        self._check_context_room(lease.id, gpus)  # Another session may have taken it meanwhile.
        session, holder = worker.session, Holder(lease.user, lease.token)
        session.lease, session.real, session.holder = lease.id, real, holder
        self._note_use(worker)
        session.devices = tuple(gpu.id for gpu in gpus)
        session.id, session.door = os.urandom(16), door
        worker.state = WorkerState.WAITING
        self._budget.add_worker(worker.number, lease.id)
        for gpu in real:
            self._budget.charge(worker.number, gpu, self._limits.context_overhead)
        await self._network.make_sockets(worker)
        uid, groups = await self._worker_pool.give_user(worker, lease.user)
        ticket = os.urandom(32)
        devices = _assigned_devices(gpus, partitions, every)
        servers = servers_of(lease, partitions[0].server)
        assign = worker_messages.Assign(
            lease=lease.id,
            session=session.id,
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
        session.budget, theirs = socket.socketpair()
        session.budget.setblocking(False)
        with theirs:
            worker.send(assign, theirs.fileno())
        self._have_turns(worker, lease, partitions, gpus)
        with trio.move_on_after(ASSIGN_TIMEOUT_S):
            await self._worker_pool.until(worker, worker.assigned)
        if worker.process.exited.is_set():
            raise WorkerFailedError("no session can be opened", why=worker.exit_reason())
        if not worker.assigned.is_set():
            raise WorkerFailedError("no session can be opened", why="the worker does not answer")
        return SessionInfo(
            session=session.id,
            certificate_sha256=worker.said.certificate_sha256,
            ticket=ticket,
            unix_path=self.unix_path,
            devices=tuple(
                SessionDevice(d.index, GpuId(d.uuid), d.name, d.memory, d.emulated) for d in devices
            ),
        )

    def _have_turns(
        self,
        worker: WorkerHandle,
        lease: Lease,
        partitions: Sequence[Partition],
        gpus: Sequence[Gpu],
    ) -> None:
        """Add a worker to its GPUs' turns, unless NVIDIA's MPS daemon mixes the leases' work."""
        if worker.session.real and mps_folders.is_used():
            return
        pairs = zip(gpus, partitions, strict=True)
        shares = [(gpu.id, due_share(lease, partition, gpu)) for gpu, partition in pairs]
        self._arbiter.join(worker.number, lease.id, shares)

    def _check_context_room(self, lease: LeaseId, gpus: Sequence[Gpu]) -> None:
        """Raise unless each partition of a real GPU still has room for a CUDA context."""
        overhead = self._limits.context_overhead
        for gpu in gpus:
            partition = self._budget.partition(lease, gpu.id)
            left = max(0, partition - self._budget.usage(lease, gpu.id))
            if overhead > left and not gpu.emulated:
                raise GpupoolError(
                    "no session can be opened",
                    why=f"a process takes up to {overhead // MIB} MiB of a GPU for its CUDA "
                    f"context, and {left // MIB} MiB of the partition's {partition // MIB} MiB "
                    "are left",
                    hint="ask for a larger partition, or free memory in the other processes",
                )
