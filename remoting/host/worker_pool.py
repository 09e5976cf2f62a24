"""The worker pool: starts worker processes, keeps some warm, watches all, and cleans up after each.

A worker is started before anybody asks for it, because importing CuPy takes seconds. It serves one
session and ends. States of a worker, and what moves it on:

========= ================================== ========= =============================================
state     event                              next      what happens
========= ================================== ========= =============================================
(none)    too few spares, or ``claim``       STARTING  a process is started and gets ``Start``
STARTING  message ``Ready``                  WARM      waiting claims and ``until`` go on
STARTING  ``START_TIMEOUT_S`` is over        STARTING  it is killed
STARTING, ``claim``                          the same  no other session gets it (``claimed``)
WARM
WARM      ``SessionOpener`` assigns a lease  WAITING   budget, uid and kernels; it gets ``Assign``
WAITING   message ``Assigned``               WAITING   the client learns of the session
WAITING   message ``Connected``              CONNECTED the program may compute
WAITING   ``connect_timeout_s`` is over      WAITING   it is killed
CONNECTED message ``Connected``              CONNECTED another connection of the same session
any       a second ``Ready`` or              the same  it is killed
          ``ContextReady``, two ``Dial``s
          at a time, broken frames, ``kill``
any       the process ends                   ENDED     see below
========= ================================== ========= =============================================

A claim that is cancelled before the assignment gives the worker back, because it knows of no lease.

An end in order: the process is reaped, its last messages are read for ``LAST_WORDS_TIMEOUT_S``,
processes and files that it left are removed, its uid is given back, it leaves ``workers`` and the
record for ``orphan_reaper``, ``reap`` is called, and then ``ended`` is set. So nothing of a worker
exists any more when somebody who waited for ``ended`` goes on.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError, StorageError
from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host import kernel_cache, orphan_reaper, spawn
from gpupool.remoting.host.budget import Budget
from gpupool.remoting.host.confinement import Confinement
from gpupool.remoting.host.kernel_cache import KernelCache
from gpupool.remoting.host.lease_cgroups import LeaseCgroups
from gpupool.remoting.host.remove_tree import remove_tree
from gpupool.remoting.host.shared_handles import Sharing, descriptor_room
from gpupool.remoting.host.users import LeaseUsers, UidPool, remove_shared_memory
from gpupool.remoting.host.worker_handle import (
    LAST_WORDS_TIMEOUT_S,
    WorkerFailedError,
    WorkerHandle,
    WorkerState,
    read_errors,
    read_messages,
    serve_budget,
    wait_exit,
)
from gpupool.remoting.protocol import worker_messages

Log = Callable[[str], None]

DOORS = {
    "arrays": "gpupool.remoting.array_api.server.serve:serve",
    "cuda": "gpupool.remoting.driver_api.executor.serve:serve",
}
"""Name of each door, and the function that serves it inside the worker."""

START_TIMEOUT_S = 60.0
"""Importing CuPy from a cold disk takes tens of seconds."""

WARM_BACKOFF_S, WARM_BACKOFF_MAX_S = 0.5, 30.0
"""Between attempts to start a spare worker that keep failing."""

UNKILLABLE_AFTER_S = 5.0
"""A killed process that lives on hangs in the kernel; said once, then waited for."""


@dataclass(frozen=True, slots=True)
class WorkerPoolSettings:
    """How workers are started, and how many."""

    runtime_dir: Path
    state_dir: Path | None  # where live workers are recorded; None keeps no record
    cuda: bool  # whether any GPU is real
    warm_workers: int = 1
    worker_count_max: int = 256
    doors: Mapping[str, str] | None = None
    landlock: bool = True
    own_uids: bool = True  # where possible
    confinement: Confinement = field(default_factory=Confinement)


class WorkerPool:
    """All worker processes. ``run`` must be running for anything to happen."""

    def __init__(
        self,
        settings: WorkerPoolSettings,
        *,
        handle: Callable[[WorkerHandle, worker_messages.WorkerMessage], None],
        reap: Callable[[WorkerHandle], None],
        budget: Budget,
        allowance: Callable[[LeaseId], int],
        log: Log,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            settings: how to start workers.
            handle: takes every message of a worker that is no affair of the worker pool's.
            reap: called once for each worker, when its process is gone.
            budget: answers the workers' calls.
            allowance: says how much of this machine's memory a lease may have, in bytes.
            log: takes one line.
        """
        self.doors = dict(DOORS if settings.doors is None else settings.doors)
        self.workers: dict[int, WorkerHandle] = {}
        self._settings = settings
        self._handle = handle
        self._reap = reap
        self._log = log
        self._number = 0
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()
        self._budget = budget
        self._sharing = Sharing(descriptor_room())
        self._groups: LeaseCgroups | None = None
        self._allowance = allowance
        self._uids = UidPool()
        self._users = LeaseUsers(self._uids)
        self._isolation = spawn.Isolation(False, "not chosen yet")
        self._directory = Path()
        self._said: set[str] = set()
        self._kernels: KernelCache | None = None
        self._images: KernelCache | None = None
        if settings.state_dir is not None:
            self._kernels = KernelCache(settings.state_dir / kernel_cache.DIRECTORY_NAME, log)
            images = settings.state_dir / kernel_cache.IMAGE_DIRECTORY_NAME
            self._images = KernelCache(images, log, kernel_cache.IMAGES)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep spare workers warm until cancelled; then kill every worker and wait for it."""
        self._isolation = spawn.isolation_for(
            cuda=self._settings.cuda, wanted=self._settings.own_uids, uids=self._uids
        )
        if self._isolation.reason:
            self._log(self._isolation.reason)
        if "cgroup" in self._settings.confinement.properties:
            self._groups = await trio.to_thread.run_sync(LeaseCgroups.make)
        self._directory = spawn.make_worker_directories(
            self._settings.runtime_dir, self._log, own_uid=self._isolation.own_uid
        )
        self._record()
        try:
            async with trio.open_nursery() as nursery:
                await self._keep(nursery, task_status)
        finally:
            remove_tree(self._directory, self._log)
            if self._groups is not None:
                self._groups.close()

    async def _keep(self, nursery: trio.Nursery, task_status: trio.TaskStatus[None]) -> None:
        self._nursery = nursery
        try:
            task_status.started()
            await self._keep_spares()
        finally:
            # What minds a worker is shielded, so the nursery stays until all have ended.
            self._nursery = None
            for worker in self.workers.values():
                worker.kill("the server stops", failed=False)

    def count_by_lease(self) -> dict[LeaseId, int]:
        """Return how many live workers each lease has."""
        return dict(Counter(w.lease for w in self.workers.values() if w.lease is not None))

    async def claim(self) -> WorkerHandle:
        """Return a warm worker for one session: a spare if there is one, else a new one.

        Raises:
            GpupoolError: when none can be had.
        """
        order = {WorkerState.WARM: 0, WorkerState.STARTING: 1}
        idle = [w for w in self.workers.values() if not w.claimed and w.state in order]
        worker = min(idle, key=lambda w: order[w.state]) if idle else self._start()
        worker.claimed = True
        self._wake()
        try:
            await self.until(worker, worker.ready)
        except trio.Cancelled:
            worker.claimed = False  # Nobody has told it anything: it is as good as new.
            raise
        return worker

    async def give_user(self, worker: WorkerHandle, user: str) -> tuple[int, tuple[int, ...]]:
        """Prepare a worker for its lease; return the uid and groups that it becomes, or -1.

        Called once the worker can serve nobody else. The order matters: other workers of the lease
        have the same uid, and may enter the directory only when root writes there no more.

        Args:
            worker: has a lease; -1 means that it stays who it is.
            user: the pool's user whose kernels it may load.

        Raises:
            GpupoolError: when there is no uid for it, or it has ended.
        """
        uid, groups = await self._take_user(worker)
        await self._narrow(worker)
        await self._give_kernels(worker, user)
        if uid >= 0:
            try:
                spawn.give_directory(worker.directory, uid)
            except OSError as error:
                raise WorkerFailedError("no session can be opened", why=str(error)) from error
        return uid, groups

    async def _take_user(self, worker: WorkerHandle) -> tuple[int, tuple[int, ...]]:
        if "own-uid" not in worker.confinement or worker.lease is None:
            return -1, ()
        if worker.exited.is_set():  # Then it may be cleaned up already, and would keep the uid.
            raise WorkerFailedError("no session can be opened", why=worker.exit_reason())
        try:
            user = worker.user = self._users.take(worker.lease, worker.process.pid)
            if self._settings.confinement.shares_memory(worker.confinement):
                user.own_memory()
            if "no-network" in worker.confinement:
                user.own_network(worker.process.pid)
            await trio.to_thread.run_sync(spawn.give_contents, worker.directory, worker.uid)
        except OSError as error:
            raise WorkerFailedError("no session can be opened", why=str(error)) from error
        return worker.uid, self._isolation.groups

    async def _narrow(self, worker: WorkerHandle) -> None:
        """Bound a worker's lease, and hide devices and files of other leases from the worker."""
        memory = worker.user.memory if worker.user is not None else None
        narrow = self._settings.confinement.narrow
        pid, holds = worker.process.pid, worker.confinement
        try:
            if self._groups is not None and worker.group is not None and worker.lease is not None:
                may, join = self._allowance(worker.lease), self._groups.join
                await trio.to_thread.run_sync(join, worker.lease, worker.group, may)
            await trio.to_thread.run_sync(narrow, pid, holds, worker.devices, memory)
        except OSError as error:
            raise WorkerFailedError("no session can be opened", why=str(error)) from error

    async def _give_kernels(self, worker: WorkerHandle, user: str) -> None:
        """Let a worker load what the workers of ``user`` have compiled, or got from its clients.

        A worker that could write where others load from, being confined by neither its uid nor
        Landlock, gets none and leaves none.
        """
        if self._kernels is None or not {"own-uid", "landlock"}.intersection(worker.confinement):
            return
        worker.user_name = user
        cache, uid = spawn.kernel_directory(worker.directory), worker.uid
        await trio.to_thread.run_sync(self._kernels.give, user, cache, uid)
        if self._images is not None:
            images = spawn.image_directory(worker.directory)
            await trio.to_thread.run_sync(self._images.give, user, images, uid)

    async def end(self, workers: Iterable[WorkerHandle], reason: str) -> None:
        """Kill workers, and return once every one of them is gone, however long that takes."""
        terminating = list(workers)
        for worker in terminating:
            worker.kill(reason, failed=False)
        for worker in terminating:
            with trio.move_on_after(UNKILLABLE_AFTER_S):
                await worker.ended.wait()
            if not worker.ended.is_set():
                self._log(f"{worker.label} was killed but does not die; it hangs in the kernel")
                await worker.ended.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, worker: WorkerHandle, event: trio.Event) -> None:
        """Wait for ``event``, or raise when the worker ends before."""
        async with trio.open_nursery() as nursery:

            async def either(one: trio.Event) -> None:
                await one.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(either, event)
            nursery.start_soon(either, worker.ended)
        if not event.is_set():
            raise WorkerFailedError("no worker can be started", why=worker.exit_reason())

    # --- spares ---------------------------------------------------------------------------------

    async def _keep_spares(self) -> None:
        backoff_s = WARM_BACKOFF_S
        while True:
            changed = self._changed
            if self._spare_count() >= self._settings.warm_workers:
                await changed.wait()
                continue
            try:
                worker = self._start()
                await self.until(worker, worker.ready)
            except GpupoolError as error:
                self._log(f"no spare worker: {error}; trying again in {backoff_s:.1f} s")
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, WARM_BACKOFF_MAX_S)
            else:
                backoff_s = WARM_BACKOFF_S

    def _spare_count(self) -> int:
        idle = (WorkerState.STARTING, WorkerState.WARM)
        return sum(not w.claimed and w.state in idle for w in self.workers.values())

    # --- the life of one worker -----------------------------------------------------------------

    def _start(self) -> WorkerHandle:
        if self._nursery is None:
            raise WorkerFailedError("no worker can be started", why="the server is not running")
        if len(self.workers) >= self._settings.worker_count_max:
            raise WorkerFailedError(
                "no worker can be started",
                why=f"this server has {self._settings.worker_count_max} workers, its maximum",
            )
        try:
            worker = self._spawn()
        except OSError as error:
            raise WorkerFailedError("no worker can be started", why=str(error)) from error
        self.workers[worker.number] = worker
        self._nursery.start_soon(self._mind, worker)
        return worker

    def _spawn(self) -> WorkerHandle:
        """Start a process; a failure closes everything that was opened for it."""
        self._number += 1
        with contextlib.ExitStack() as undo:
            directory = spawn.make_directory(self._directory, self._number)
            undo.callback(remove_tree, directory, self._log)
            control, theirs = socket.socketpair()
            undo.callback(control.close)
            control.setblocking(False)
            errors, their_errors = os.pipe()
            undo.callback(os.close, errors)
            try:
                process = spawn.start_process(theirs, their_errors, directory)
            finally:
                theirs.close()
                os.close(their_errors)
            undo.pop_all()
        return WorkerHandle(
            number=self._number,
            process=process,
            pidfd=os.pidfd_open(process.pid),
            control=control,
            errors=errors,
            directory=directory,
            start_time=orphan_reaper.start_time_of(process.pid) or 0,
        )

    async def _mind(self, worker: WorkerHandle) -> None:
        """Live through a worker's life, and leave nothing of it behind."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as readers:
                readers.start_soon(read_errors, worker, self._log)
                readers.start_soon(read_messages, worker, partial(self._message, worker))
                readers.start_soon(self._answer_budget, worker)
                try:
                    self._record()
                    if self._groups is not None:
                        pid = worker.process.pid
                        worker.group = await trio.to_thread.run_sync(self._groups.hold, pid)
                    worker.send(self._settings.confinement.message())
                    worker.send(self._start_message(worker))
                except GpupoolError as error:
                    worker.kill(str(error))
                await self._wait_end(worker)
                # Its last words are in the buffers of its sockets, and these close by themselves
                # unless a child of it lives on.
                readers.cancel_scope.deadline = trio.current_time() + LAST_WORDS_TIMEOUT_S
                worker.assigned.set()
            await self._clean_up(worker)

    async def _wait_end(self, worker: WorkerHandle) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._start_deadline, worker)
            await wait_exit(worker)
            nursery.cancel_scope.cancel()

    async def _start_deadline(self, worker: WorkerHandle) -> None:
        with trio.move_on_after(START_TIMEOUT_S) as scope:
            await worker.ready.wait()
        if scope.cancelled_caught:
            worker.kill(f"it was not ready within {START_TIMEOUT_S:.0f} s")

    async def _answer_budget(self, worker: WorkerHandle) -> None:
        await worker.assigned.wait()
        if worker.budget is not None:
            await serve_budget(worker, self._budget, self._sharing)

    async def _clean_up(self, worker: WorkerHandle) -> None:
        self._sharing.end_worker(worker.number)
        if worker.user is not None:
            self._users.ended(worker.user, worker.process.pid)
        try:
            gone = await trio.to_thread.run_sync(self._remove_remains, worker)
        except Exception as error:  # noqa: BLE001 - one worker must not end all others
            self._log(f"{worker.label}: its remains cannot be removed: {error!r}")
            gone = False
        worker.control.close()
        os.close(worker.pidfd)
        if worker.budget is not None:
            worker.budget.close()
        if worker.user is not None:
            self._users.give_back(worker.user, gone=gone)
        worker.state = WorkerState.ENDED
        del self.workers[worker.number]
        try:
            self._record()
        except StorageError as error:
            self._log(str(error))  # A record too many does no harm: it names a dead process.
        if worker.failed or (worker.process.returncode and not worker.kill_reason):
            self._log(f"{worker.label} ended: {worker.exit_reason()}")
        self._reap(worker)
        worker.ended.set()
        self._wake()

    def _remove_remains(self, worker: WorkerHandle) -> bool:
        """Kill its processes and remove its files; return whether all are gone. Blocks."""
        killed = False
        if worker.group is not None:
            worker.out_of_memory = worker.group.ran_out_of_memory()
            killed = worker.group.kill()
        if worker.user is not None:
            gone = worker.user.clean_up(worker.process.pid, killed=killed)
        else:
            gone = killed or worker.group is None
            remove_shared_memory(os.geteuid(), worker.process.pid)
        if not gone:
            self._log(f"{worker.label}: processes that it started cannot be killed")
        elif self._kernels is not None and worker.user_name:
            cache = spawn.kernel_directory(worker.directory)
            self._kernels.take(worker.user_name, cache, worker.uid)
            if self._images is not None:
                images = spawn.image_directory(worker.directory)
                self._images.take_later(worker.user_name, images, worker.uid)
        remove_tree(worker.directory, self._log)
        return gone

    def _message(self, worker: WorkerHandle, message: worker_messages.WorkerMessage) -> None:
        if isinstance(message, worker_messages.Ready) and worker.state is WorkerState.STARTING:
            worker.certificate_sha256 = message.certificate_sha256
            worker.confinement = self._settings.confinement.complete(
                message.confinement, worker.process.pid, self._groups if worker.group else None
            )
            worker.cuda_problem = message.cuda_problem
            if self._isolation.own_uid and "own-uid" not in worker.confinement:
                self._say_once(
                    "workers run as root: their own uids cannot read "
                    f"{self._isolation.expose[0]}, and this system does not let them mount it"
                )
            if lacking := self._settings.confinement.lacking(worker.confinement):
                self._say_once("workers are not confined by: " + "; ".join(lacking))
            worker.state = WorkerState.WARM
            worker.ready.set()
            self._wake()
        elif isinstance(message, worker_messages.Log):
            worker.say(message.text, self._log)
        elif isinstance(message, worker_messages.Ended):
            worker.said_reason = message.reason
            worker.failed = worker.failed or message.failed
        else:
            self._handle(worker, message)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log(text)

    def _start_message(self, worker: WorkerHandle) -> worker_messages.Start:
        own = self._isolation.own_uid
        return worker_messages.Start(
            own_uid=own,
            cuda=self._settings.cuda,
            landlock=self._settings.landlock,
            directory=str(worker.directory),
            readable=tuple(str(path.resolve()) for path in spawn.installation_paths()),
            expose=tuple(str(path) for path in self._isolation.expose) if own else (),
            doors=self.doors,
        )

    def _record(self) -> None:
        if self._settings.state_dir is None:
            return
        live = {w.process.pid: w.start_time for w in self.workers.values()}
        orphan_reaper.write_record(self._settings.state_dir, live, self._directory)
