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
any       a second ``Ready``,                the same  it is killed
          ``ContextReady`` or ``Connected``,
          two ``Dial``s at a time, counters
          that fall, broken frames, ``kill``
any       the process ends                   ENDED     see below
========= ================================== ========= =============================================

A claim that is cancelled before the assignment gives the worker back, because it knows of no lease.
The worker ends where there are enough spares, because clients that hang up would leave one each.

An end in order: the process is reaped, its last messages are read for ``LAST_WORDS_TIMEOUT_S``, its
privileged helper removes processes and files that it left, gives its uid back and takes it out of
the record for ``orphan_reaper``, it leaves ``workers``, ``reap`` is called, and then ``ended`` is
set. So nothing of a worker exists any more when somebody who waited for ``ended`` goes on.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import LeaseId
from gpupool.remoting.host.host_parts import HostParts
from gpupool.remoting.host.isolation.confinement import Confinement
from gpupool.remoting.host.shared_handles import Sharing, descriptor_room
from gpupool.remoting.host.spawn import WorkerFailedError
from gpupool.remoting.host.worker_handle import (
    LAST_WORDS_TIMEOUT_S,
    WorkerHandle,
    WorkerProcess,
    WorkerState,
    read_errors,
    read_messages,
    serve_budget,
    wait_exit,
)
from gpupool.remoting.host.worker_helper import CUDA_DOOR, DOORS
from gpupool.remoting.protocol import helper_messages, worker_messages

START_TIMEOUT_S = 60.0
"""Importing CuPy from a cold disk takes tens of seconds."""

WARM_BACKOFF_S, WARM_BACKOFF_MAX_S = 0.5, 30.0
"""Between attempts to start a spare worker that keep failing."""

UNKILLABLE_AFTER_S = 5.0
"""Seconds after which a live killed worker is logged once, and then waited for."""
PF_EXITING = 0x4
"""Flag in ``/proc/PID/stat``: the process is releasing its resources, such as GiB of memory."""


@dataclass(frozen=True, slots=True)
class WorkerPoolSettings:
    """How workers are started, and how many."""

    cuda: bool  # whether any GPU is real
    warm_workers: int = 1
    worker_count_max: int = 256
    doors: frozenset[str] = frozenset(DOORS)
    confinement: Confinement = field(default_factory=Confinement)

    def kinds(self) -> tuple[frozenset[str], ...]:
        """Return the kinds of workers, by the doors that they may serve, the leanest first.

        With real GPUs one kind serves the CUDA door alone. It does not import CuPy, which maps
        CUDA's libraries: they take 180 MB, and the CUDA door's programs bring their own.
        """
        lean = self.doors & {CUDA_DOOR}
        return (lean, self.doors) if self.cuda and lean and lean != self.doors else (self.doors,)


class WorkerPool:
    """All worker processes. ``run`` must be running for anything to happen."""

    def __init__(
        self,
        settings: WorkerPoolSettings,
        host: HostParts,
        *,
        handle: Callable[[WorkerHandle, worker_messages.WorkerMessage], None],
        reap: Callable[[WorkerHandle], None],
        allowance: Callable[[LeaseId], int],
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            settings: how many workers there are, and for what.
            host: its privileged helper of workers, its budget, its measures and its log.
            handle: takes every message of a worker that is no affair of the worker pool's.
            reap: called once for each worker, when its process is gone.
            allowance: says how much of this machine's memory a lease may have, in bytes.
        """
        self.doors = settings.doors
        self.workers: dict[int, WorkerHandle] = {}
        self._settings = settings
        self._helper, self._budget = host.helper, host.budget
        self._measures, self._log = host.measures, host.log
        self._handle = handle
        self._reap = reap
        self._number = 0
        self._kinds = settings.kinds()
        self._starting = Counter[frozenset[str]]()  # workers that are in the making
        self._nursery: trio.Nursery | None = None
        self.also_holds: tuple[str, ...] = ()  # for all workers, by what this process does
        self._changed = trio.Event()
        self._sharing = Sharing(descriptor_room())
        self._allowance = allowance
        self._exposed: tuple[str, ...] = ()
        self._own_uid = False
        self._said: set[str] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep spare workers warm until cancelled; then kill every worker and wait for it."""
        nodes = self._settings.confinement.nodes
        known = None if nodes is None else dict(nodes)
        opened = await self._helper.ask(helper_messages.Open(self._settings.cuda, known))
        self._own_uid, self._exposed = opened.own_uid, opened.expose
        if opened.killed:
            self._log(f"killed {opened.killed} workers that a former process had left")
        if opened.reason:
            self._log(opened.reason)
        try:
            async with trio.open_nursery() as nursery:
                await self._keep(nursery, task_status)
        finally:
            with trio.CancelScope(shield=True):
                await self._helper.ask(helper_messages.Close())

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

    def count_by_lease(self, known: Iterable[LeaseId] = ()) -> dict[LeaseId, int]:
        """Return how many live workers each lease has, with 0 for those of ``known`` without."""
        leases = (worker.session.lease for worker in self.workers.values())
        living = Counter(lease for lease in leases if lease is not None)
        return dict.fromkeys(known, 0) | dict(living)

    async def claim(self, door: str = "") -> WorkerHandle:
        """Return a warm worker for one session: a spare if there is one, else a new one.

        Args:
            door: that it is to serve; without one it must be able to serve all.

        Raises:
            GpupoolError: when none can be had.
        """
        kind = next((each for each in self._kinds if door in each), self._kinds[-1])
        order = {WorkerState.WARM: 0, WorkerState.STARTING: 1}
        idle = [
            worker
            for worker in self.workers.values()
            if worker.doors >= kind
            and not _lacks_more(worker, kind)
            and not worker.claimed
            and worker.state in order
            and not worker.process.exited.is_set()
        ]
        idle.sort(key=lambda worker: (order[worker.state], len(worker.doors)))
        worker = idle[0] if idle else await self._start(kind)
        worker.claimed = True
        self._wake()
        try:
            await self.until(worker, worker.ready)
        except BaseException:  # A cancellation comes out of a nursery as a group.
            self.give_back(worker)
            raise
        if worker.process.exited.is_set():  # Nobody would take it out of the budget again.
            raise WorkerFailedError("no worker can be started", why=worker.exit_reason())
        if _lacks_more(worker, kind):
            self.give_back(worker)
            return await self.claim(door)
        return worker

    def give_back(self, worker: WorkerHandle) -> None:
        """Keep a claimed worker that knows of no lease for another session, if it is needed."""
        if self._spare_count(worker.doors) < self._settings.warm_workers:
            worker.claimed = False
        else:
            worker.kill("no session needs it", failed=False)

    async def give_user(self, worker: WorkerHandle, user: str) -> tuple[int, tuple[int, ...]]:
        """Prepare a worker for its lease; return the uid and groups that it becomes, or -1.

        Called once the worker can serve nobody else.

        Args:
            worker: has a lease; -1 means that it stays who it is.
            user: the pool's user whose kernels it may load.

        Raises:
            GpupoolError: when there is no uid for it, or it has ended.
        """
        assert worker.session.lease is not None
        if worker.process.exited.is_set():
            raise WorkerFailedError("no session can be opened", why=worker.exit_reason())
        try:
            given = await self._helper.ask(
                helper_messages.AssignWorker(
                    worker.number,
                    worker.session.lease,
                    worker.session.devices,
                    self._allowance(worker.session.lease),
                    user,
                    across=bool(worker.session.peers),
                )
            )
        except OSError as error:
            raise WorkerFailedError("no session can be opened", why=str(error)) from error
        worker.session.uid = given.uid
        return given.uid, given.groups

    async def end(self, workers: Iterable[WorkerHandle], reason: str) -> None:
        """Kill workers, and return once every one of them is gone, however long that takes."""
        terminating = list(workers)
        for worker in terminating:
            worker.kill(reason, failed=False)
        for worker in terminating:
            with trio.move_on_after(UNKILLABLE_AFTER_S):
                await worker.ended.wait()
            if not worker.ended.is_set():
                self._log(f"{worker.label} {why_there(worker.process.pid)}")
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
            lacking = (
                kind
                for kind in self._kinds
                if self._spare_count(kind) < self._settings.warm_workers
            )
            if (kind := next(lacking, None)) is None:
                await changed.wait()
                continue
            try:
                worker = await self._start(kind)
                await self.until(worker, worker.ready)
            except GpupoolError as error:
                self._log(f"no spare worker: {error}; trying again in {backoff_s:.1f} s")
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, WARM_BACKOFF_MAX_S)
            else:
                backoff_s = WARM_BACKOFF_S

    def _spare_count(self, kind: frozenset[str]) -> int:
        idle = (WorkerState.STARTING, WorkerState.WARM)
        alike = (worker for worker in self.workers.values() if worker.doors == kind)
        made = sum(not worker.claimed and worker.state in idle for worker in alike)
        return made + self._starting[kind]

    # --- the life of one worker -----------------------------------------------------------------

    async def _start(self, kind: frozenset[str]) -> WorkerHandle:
        if len(self.workers) + self._starting.total() >= self._settings.worker_count_max:
            raise WorkerFailedError(
                "no worker can be started",
                why=f"this server has {self._settings.worker_count_max} workers, its maximum",
            )
        nursery = self._nursery
        if nursery is None:
            raise WorkerFailedError("no worker can be started", why="the server is not running")
        self._starting[kind] += 1
        began = trio.current_time()
        try:
            worker = await self._spawn(kind)
        except OSError as error:
            self._measures.count("worker_start_failures")
            raise WorkerFailedError("no worker can be started", why=str(error)) from error
        finally:
            self._starting[kind] -= 1
        worker.process.spawned_at = began
        self.workers[worker.number] = worker
        if self._nursery is not nursery:  # The pool has begun to stop meanwhile.
            worker.kill("the server stops", failed=False)
            await self._mind(worker)
            raise WorkerFailedError("no worker can be started", why="the server stops")
        nursery.start_soon(self._mind, worker)
        return worker

    async def _spawn(self, kind: frozenset[str]) -> WorkerHandle:
        """Start a process; a failure closes everything that was opened for it."""
        self._number += 1
        number = self._number
        with contextlib.ExitStack() as undo:
            control, theirs = socket.socketpair()
            undo.callback(control.close)
            control.setblocking(False)
            errors, their_errors = os.pipe()
            undo.callback(os.close, errors)
            try:
                asked = helper_messages.StartWorker(number, tuple(sorted(kind)))
                started, pidfd = await self._helper.ask_for(asked, theirs.fileno(), their_errors)
            finally:
                theirs.close()
                os.close(their_errors)
            undo.pop_all()
        return WorkerHandle(
            number=number,
            process=WorkerProcess(
                started.pid,
                pidfd,
                kill=partial(self._helper.kill, number),
                reap=partial(self._helper.ask, helper_messages.ReapWorker(number)),
            ),
            control=control,
            errors=errors,
            directory=Path(started.directory),
            doors=kind,
        )

    async def _mind(self, worker: WorkerHandle) -> None:
        """Live through a worker's life, and leave nothing of it behind."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as readers:
                readers.start_soon(read_errors, worker, self._log)
                readers.start_soon(read_messages, worker, partial(self._message, worker))
                readers.start_soon(self._answer_budget, worker)
                try:
                    await self._helper.ask(helper_messages.ConfineWorker(worker.number))
                except GpupoolError as error:
                    worker.kill(str(error))
                await self._wait_end(worker)
                # Its last words are in the buffers of its sockets, and these close by themselves
                # unless a child of it lives on.
                readers.cancel_scope.deadline = trio.current_time() + LAST_WORDS_TIMEOUT_S
                worker.assigned.set()
            await self._clean_up(worker)

    async def _await_ready(self, worker: WorkerHandle) -> None:
        """Let a worker serve sessions, once the privileged helper reports its confinement."""
        await worker.said_ready.wait()
        try:
            found = await self._helper.ask(helper_messages.AskConfinement(worker.number))
            worker.confinement = (*found.holds, *self.also_holds)
        except GpupoolError as error:
            worker.kill(str(error))
            return
        if self._own_uid and "own-uid" not in worker.confinement:
            self._say_once(
                "workers run as root: their own uids cannot read "
                f"{self._exposed[0]}, and this system does not let them mount it"
            )
        if lacking := self._settings.confinement.lacking(worker.confinement):
            self._say_once("workers are not confined by: " + "; ".join(lacking))
        if worker.state is WorkerState.STARTING:
            worker.state = WorkerState.WARM
            took_s = trio.current_time() - worker.process.spawned_at
            self._measures.observe("worker_start_seconds", took_s)
        worker.ready.set()
        self._wake()

    async def _wait_end(self, worker: WorkerHandle) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._start_deadline, worker)
            nursery.start_soon(self._await_ready, worker)
            await wait_exit(worker)
            nursery.cancel_scope.cancel()

    async def _start_deadline(self, worker: WorkerHandle) -> None:
        with trio.move_on_after(START_TIMEOUT_S) as scope:
            await worker.ready.wait()
        if scope.cancelled_caught:
            worker.kill(f"it was not ready within {START_TIMEOUT_S:.0f} s")

    async def _answer_budget(self, worker: WorkerHandle) -> None:
        await worker.assigned.wait()
        if worker.session.budget is not None:
            await serve_budget(worker, self._budget, self._sharing)

    async def _clean_up(self, worker: WorkerHandle) -> None:
        self._sharing.end_worker(worker.number)
        try:
            buried = await self._helper.ask(helper_messages.BuryWorker(worker.number))
            worker.ending.out_of_memory = buried.out_of_memory
        except GpupoolError as error:
            self._log(f"{worker.label}: its remains cannot be removed: {error}")
        worker.control.close()
        os.close(worker.process.pidfd)
        if worker.session.budget is not None:
            worker.session.budget.close()
        if worker.state is WorkerState.STARTING and self._nursery is not None:
            self._measures.count("worker_start_failures")
        worker.state = WorkerState.ENDED
        del self.workers[worker.number]
        if worker.ending.failed or (worker.process.returncode and not worker.ending.kill_reason):
            self._log(f"{worker.label} ended: {worker.exit_reason()}")
        self._reap(worker)
        worker.ended.set()
        self._wake()

    def _message(self, worker: WorkerHandle, message: worker_messages.WorkerMessage) -> None:
        if isinstance(message, worker_messages.Ready) and not worker.said.certificate_sha256:
            worker.said = message
            worker.said_ready.set()
        elif isinstance(message, worker_messages.Log):
            worker.say(message.text, self._log)
        elif isinstance(message, worker_messages.Ended):
            worker.ending.said_reason = message.reason
            worker.ending.failed |= message.failed
        else:
            self._handle(worker, message)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._log(text)


def why_there(pid: int) -> str:
    """Return the state of a killed worker that has not gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, flags = fields[0], int(fields[6])
    except (OSError, ValueError, IndexError):  # It was reaped.
        state, flags = "Z", 0
    if state in "ZX":
        return "has ended; what it left is still being removed"
    if flags & PF_EXITING:
        return "is ending: the kernel takes its memory back"
    return "was killed but does not die; it hangs in the kernel"


def _lacks_more(worker: WorkerHandle, kind: frozenset[str]) -> bool:
    """Say whether a worker lacks a part that one for fewer doors may not need, such as CuPy."""
    return bool(worker.said.cuda_problem) and worker.doors != kind
