"""The host's operations on worker processes that may need privileges, and nothing else.

A server that runs as root keeps no privileges itself: this then runs in another process, its
privileged helper (``remoting.privileges``), which hears of no stranger. Otherwise it runs in the
server's process. All methods block. What is in ``QUICK``, and ``kill``, takes milliseconds and
belongs to the thread that lives as long as the host; the rest may run on any thread, and takes up
to seconds.

A worker hears over a socket of its own (``line``) from here how it confines itself and who it
becomes. So nothing that a server could say keeps a worker root, or makes it another lease's user.
"""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from gpupool.pool.errors import GpupoolError, StorageError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.pool.model.suspension import USES_NCCL
from gpupool.remoting.host import host_memory, kernel_cache, orphan_reaper, spawn
from gpupool.remoting.host.isolation import held_sockets
from gpupool.remoting.host.isolation.confinement import PROPERTIES, Confinement
from gpupool.remoting.host.isolation.lease_cgroups import LeaseCgroups
from gpupool.remoting.host.isolation.users import (
    LeaseUsers,
    UidPool,
    clear_user,
    remove_shared_memory,
)
from gpupool.remoting.host.kernel_cache import KernelCache
from gpupool.remoting.host.measuring.worker_files import WorkerFiles
from gpupool.remoting.host.remove_tree import remove_tree
from gpupool.remoting.host.spawn import KeptWorker
from gpupool.remoting.host.suspension import kept_workers
from gpupool.remoting.protocol import helper_messages as m
from gpupool.remoting.protocol import worker_messages

Log = Callable[[str], None]

CUDA_DOOR = "cuda"

DOORS = {
    "arrays": "gpupool.remoting.array_api.server.serve:serve",
    CUDA_DOOR: "gpupool.remoting.driver_api.executor.serve:serve",
}
"""Name of each door, and the function that serves it inside the worker."""

WORKER_COUNT_MAX = 1024
"""Far above the server's own limit (``HostLimits.workers``)."""

THREAD_COUNT = 8
"""Calls that take longer than milliseconds, at a time."""

QUICK = (m.StartWorker, m.ReapWorker, m.LoadFilter)

READY_TIMEOUT_S = 5.0
"""A worker tells the privileged helper first that it is ready, so its message is there already."""


@dataclass(frozen=True, slots=True)
class HelperSettings:
    """How workers are started and confined."""

    base: Path | None  # of the workers' directories, where only this user may write
    state_dir: Path | None  # of the record and the kernels, likewise; None keeps none
    doors: Mapping[str, str] = field(default_factory=lambda: dict(DOORS))
    landlock: bool = True
    own_uids: bool = True  # where possible
    confine: frozenset[str] = frozenset(PROPERTIES)
    ports: tuple[int, ...] = ()  # TCP ports for leases over several servers, first and last
    siblings: frozenset[int] = frozenset()  # pids of the server's other processes in its group


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


class WorkerHelper:
    """Starts, narrows, kills and buries workers."""

    def __init__(self, settings: HelperSettings, log: Log) -> None:
        """Prepare; nothing is made before ``open``."""
        self.workers: dict[int, KeptWorker] = {}
        self._settings = settings
        self._log = log
        self._lock, self._record_lock, self._files_lock = (threading.Lock() for _ in range(3))
        self._uids = UidPool()
        self._users = LeaseUsers(self._uids)
        self._isolation = spawn.Isolation(False, "not chosen yet")
        self._confinement = Confinement(settings.confine)
        self._groups: LeaseCgroups | None = None
        self._directory: Path | None = None
        self._files: WorkerFiles | None = None
        self._cuda = False
        self._kernels: KernelCache | None = None
        self._images: KernelCache | None = None
        if settings.state_dir is not None:
            self._kernels = KernelCache(settings.state_dir / kernel_cache.DIRECTORY_NAME, log)
            images = settings.state_dir / kernel_cache.IMAGE_DIRECTORY_NAME
            self._images = KernelCache(images, log, kernel_cache.IMAGES)

    def carry_out(self, asked: m.Request, descriptors: Sequence[int]) -> m.Answered:
        """Carry out a request; return the answer, and the descriptor with it or -1.

        Args:
            asked: all but ``KillWorker``, which nobody waits for.
            descriptors: those that came with it; they stay the caller's.

        Raises:
            GpupoolError, OSError: when it cannot be done.
        """
        answer: m.Answer = m.Done()
        match asked:
            case m.StartWorker():
                return self._start(asked, *descriptors)
            case m.LoadFilter():
                return m.Loaded(), self._load_filter(asked.networks)
            case m.Open():
                answer = self._open(asked)
            case m.ReapWorker():
                answer = m.Reaped(self._reap(asked.worker))
            case m.ConfineWorker():
                self._confine(asked.worker)
            case m.AskConfinement():
                answer = m.Confinement(self._confined(asked.worker))
            case m.AssignWorker():
                answer = self._assign(asked)
            case m.SuspendWorkers():
                answer = self._suspend(asked, *descriptors)
            case m.ResumeWorkers():
                answer = self._resume(asked)
            case m.BuryWorker():
                answer = m.Buried(self._bury(asked.worker))
            case m.MeasureFiles():
                answer = self._measure()
            case m.Close():
                self.close()
            case _:
                raise GpupoolError("the privileged helper cannot do that", why=type(asked).__name__)
        return answer, -1

    def _open(self, asked: m.Open) -> m.Opened:
        if self._directory is not None:
            raise GpupoolError("the privileged helper is open already")
        state_dir = self._settings.state_dir
        killed = 0 if state_dir is None else orphan_reaper.reap_orphans(state_dir)
        self._cuda = asked.cuda
        self._confinement = Confinement(
            self._settings.confine,
            asked.nodes,
            ports=self._settings.ports,
            loads=held_sockets.can_load(),
        )
        isolation = self._isolation = spawn.isolation_for(
            cuda=asked.cuda, wanted=self._settings.own_uids, uids=self._uids
        )
        if isolation.own_uid:
            with contextlib.suppress(OSError):  # It is only litter.
                self._uids.sweep(clear_user)
        if "cgroup" in self._settings.confine:
            self._groups = LeaseCgroups.make(siblings=self._settings.siblings)
        self._directory = spawn.make_worker_directories(
            self._settings.base, self._log, own_uid=isolation.own_uid
        )
        self._files = WorkerFiles(self._directory)
        self._record()
        expose = tuple(str(path) for path in isolation.expose) if isolation.own_uid else ()
        return m.Opened(isolation.own_uid, isolation.reason, expose, killed)

    def _start(self, asked: m.StartWorker, control: int, errors: int) -> tuple[m.Started, int]:
        number, doors = asked.worker, frozenset[str](asked.doors)
        if self._directory is None or number in self.workers or number < 0:
            raise GpupoolError("no worker can be started", why="its number is in use")
        if len(self.workers) >= WORKER_COUNT_MAX:
            raise GpupoolError("no worker can be started", why="there are too many")
        with contextlib.ExitStack() as undo:
            directory = spawn.make_directory(self._directory, number)
            undo.callback(remove_tree, directory, self._log)
            line, theirs = socket.socketpair()
            undo.callback(line.close)
            with theirs:
                pipes = (control, theirs.fileno(), errors)
                # The CUDA door has no use for the threads by which NumPy multiplies matrices.
                threads = 1 if doors == frozenset((CUDA_DOOR,)) else spawn.BLAS_THREAD_COUNT_MAX
                process = spawn.start_process(*pipes, directory, threads)
            undo.callback(_end, process)
            # Opened before anything could reap the process; readable once it has ended.
            pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
        start_time = orphan_reaper.start_time_of(process.pid) or 0
        with self._lock:
            worker = KeptWorker(number, process, line, directory, start_time, doors)
            self.workers[number] = worker
        return m.Started(process.pid, start_time, str(directory)), pidfd

    def kill(self, number: int) -> None:
        """Kill a worker, if it lives."""
        worker = self.workers.get(number)
        if worker is not None:
            # Popen looks first whether the process was reaped, so this hits no stranger's pid.
            worker.process.kill()

    def _reap(self, number: int) -> int:
        code = self._of(number).process.poll()
        if code is None:
            raise GpupoolError("a worker that lives cannot be reaped")
        return code

    def _confine(self, number: int) -> None:
        worker = self._of(number)
        self._record()
        if self._groups is not None:
            worker.group = self._groups.hold(worker.process.pid)
        groups = self._groups if worker.group else None
        spawn.send(worker.line, self._confinement.message(groups))
        spawn.send(worker.line, self._start_message(worker))

    def _confined(self, number: int) -> tuple[str, ...]:
        worker = self._of(number)
        if worker.ready:
            return worker.holds
        ready = spawn.ready_of(worker.line, READY_TIMEOUT_S)
        groups = self._groups if worker.group else None
        worker.holds = self._confinement.complete(ready.confinement, worker.process.pid, groups)
        worker.ready = True
        return worker.holds

    def _assign(self, asked: m.AssignWorker) -> m.AssignedUser:
        """Give a worker to a lease, once it can serve nobody else.

        The order matters: other workers of the lease have the same uid, and may enter the directory
        only when root writes there no more.
        """
        worker = self._of(asked.worker)
        if worker.assigned or not worker.ready:
            raise GpupoolError("no session can be opened", why="a worker serves one lease")
        worker.assigned = True
        if "own-uid" in worker.holds:
            across = asked.across and bool(self._settings.ports)
            self._take_user(worker, asked.lease, across=across)
        if self._groups is not None and worker.group is not None:
            self._groups.join(asked.lease, worker.group, max(0, asked.memory))
        shared = worker.user.memory if worker.user is not None else None
        self._confinement.narrow(worker.process.pid, worker.holds, asked.gpus, shared)
        self._give_kernels(worker, asked.user)
        if worker.user is None:
            return m.AssignedUser(-1, ())
        spawn.give_directory(worker.directory, worker.uid)
        if worker.user.network >= 0:
            spawn.send(worker.line, worker_messages.JoinNetwork(), worker.user.network)
        groups = self._isolation.groups
        spawn.send(worker.line, worker_messages.Become(worker.uid, groups))
        return m.AssignedUser(worker.uid, groups)

    def _load_filter(self, networks: Sequence[str] | None) -> int:
        if networks is None:
            return held_sockets.load(held_sockets.connection_program())
        if len(networks) > held_sockets.NETWORK_COUNT_MAX:
            raise GpupoolError("no filter can be loaded", why=f"{len(networks)} networks")
        try:
            allowed = [ip_network(each) for each in networks]
        except ValueError as error:
            raise GpupoolError("no filter can be loaded", why=str(error)) from error
        return held_sockets.load(held_sockets.lease_program(allowed))

    def _suspend(self, request: m.SuspendWorkers, file: int = -1) -> m.Moved:
        """Take workers of a lease off their GPUs; their memory goes to the file, if it is to."""
        stopped = [self._of(number) for number in request.stop]
        saved = [self._of(number) for number in request.save]
        # A worker's report of it may be a second late.
        if _any_uses_nccl(saved):
            return m.Moved(USES_NCCL)
        if request.spill and file < 0:
            raise GpupoolError("nothing can be suspended", why="there is no file for it")
        self._bound(stopped + saved, request.memory)
        to = file if request.spill else -1
        moved = kept_workers.suspend(stopped, saved, request.size, to)
        if moved.problem:
            self._bound(stopped + saved, request.memory_after)
        return moved

    def _resume(self, request: m.ResumeWorkers) -> m.Moved:
        stopped = [self._of(number) for number in request.stopped]
        saved = [self._of(number) for number in request.saved]
        moves = request.moves
        # One of another version may have suspended it.
        if moves and _any_uses_nccl(saved):
            return m.Moved(USES_NCCL, unmoved=True)
        tried = {new for each in saved for new in each.saved_on.values()}
        tried -= {old for each in saved for old in each.saved_on}
        # A worker sees its own GPUs alone, and the driver opens the new ones from inside of it.
        try:
            for worker in saved if moves else ():
                self._confinement.widen(worker.process.pid, worker.holds, moves.values())
        except OSError as error:
            self._leave(saved, moves.values(), moves)
            why = f"the other GPU's device file cannot be put into a worker's /dev: {error}"
            return m.Moved(why, unmoved=True)
        moved = kept_workers.resume(stopped, saved, request.size, moves)
        if moved.unmoved:
            # One that would come back there sees both until it has gone back.
            self._leave([each for each in saved if not each.saved_on], moves.values(), moves)
        elif not moved.problem:
            self._leave(saved, {*moves, *tried} - {*moves.values()}, moves.values())
            self._bound(stopped + saved, request.memory_after)
        return moved

    def _bury(self, number: int) -> bool:
        """Kill and remove a worker's remains; return whether it ran out of memory."""
        worker = self._of(number)
        self._reap(number)
        if worker.user is not None:
            with self._lock:
                self._users.ended(worker.user, worker.process.pid)
        out_of_memory = worker.group is not None and worker.group.ran_out_of_memory()
        gone = False
        try:
            gone = self._remove_remains(worker)
        except Exception as error:  # noqa: BLE001 - one worker must not end all others
            self._log(f"{worker.label}: its remains cannot be removed: {error!r}")
        worker.line.close()
        if worker.spilled is not None:
            worker.spilled.close()
        with self._lock:
            if worker.user is not None:
                self._users.give_back(worker.user, gone=gone)
            del self.workers[number]
        try:
            self._record()
        except StorageError as error:
            self._log(str(error))  # A record too many does no harm: it names a dead process.
        return out_of_memory

    def _measure(self) -> m.Files:
        """Return how much of the disk assigned workers take, and of memory besides their own."""
        with self._lock:
            workers = [worker for worker in self.workers.values() if worker.assigned]
        with self._files_lock:
            if self._files is None:
                return m.Files({}, 0)
            memory, unnamed = spawn.held_besides(workers, self._files.device())
            sizes, whole, left = self._files.measure([each.place() for each in workers], unnamed)
        return m.Files(sizes, whole, memory, left)

    def close(self) -> None:
        """Kill the live workers, and remove the directories of all workers."""
        for worker in list(self.workers.values()):
            worker.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(orphan_reaper.DEATH_TIMEOUT_S)
                self._bury(worker.number)
        with self._files_lock:
            self._files = None  # Somebody may be about to measure what goes now.
            if self._directory is not None:
                remove_tree(self._directory, self._log)
        if self._groups is not None:
            self._groups.close()

    # --- parts ----------------------------------------------------------------------------------

    def _leave(
        self, workers: Sequence[KeptWorker], gpus: Collection[GpuId], kept: Collection[GpuId]
    ) -> None:
        """Take the nodes of GPUs that workers have no more out of their ``/dev``."""
        for worker in workers:
            try:
                self._confinement.leave(worker.process.pid, worker.holds, gpus, kept)
            except OSError as error:
                if worker.process.returncode is None:
                    self._log(f"{worker.label}: it sees a GPU that it has no more: {error}")

    def _bound(self, workers: Sequence[KeptWorker], memory: int) -> None:
        """Bound the memory of a lease's workers anew."""
        groups = [worker.group for worker in workers if worker.group is not None]
        if self._groups is not None and groups:
            self._groups.bound(groups[0], memory)

    def _of(self, number: int) -> KeptWorker:
        worker = self.workers.get(number)
        if worker is None:
            raise GpupoolError(f"there is no worker {number}")
        return worker

    def _start_message(self, worker: KeptWorker) -> worker_messages.Start:
        own = self._isolation.own_uid
        private = spawn.private_paths(self._settings.state_dir)
        return worker_messages.Start(
            own_uid=own,
            cuda=self._cuda,
            landlock=self._settings.landlock,
            directory=str(worker.directory),
            readable=tuple(str(path.resolve()) for path in spawn.installation_paths(private)),
            expose=tuple(str(path) for path in self._isolation.expose) if own else (),
            doors=worker.serves(self._settings.doors),
            unreadable=tuple(map(str, private)),
        )

    def _take_user(self, worker: KeptWorker, lease: LeaseId, *, across: bool) -> None:
        with self._lock:
            if worker.process.poll() is not None:
                raise GpupoolError("no session can be opened", why="the worker has ended")
            user = worker.user = self._users.take(lease, worker.process.pid)
            if self._confinement.shares_memory(worker.holds):
                user.own_memory()
            if "no-network" in worker.holds:
                user.own_network("self" if across else worker.process.pid)
        spawn.give_contents(worker.directory, worker.uid)

    def _give_kernels(self, worker: KeptWorker, user: str) -> None:
        """Let a worker load kernels that ``user``'s workers compiled, or got from their clients.

        A worker that could write where others load from, being confined by neither its uid nor
        Landlock, gets none and leaves none.
        """
        if self._kernels is None or not {"own-uid", "landlock"}.intersection(worker.holds):
            return
        worker.user_name = user
        self._kernels.give(user, spawn.kernel_directory(worker.directory), worker.uid)
        if self._images is not None:
            self._images.give(user, spawn.image_directory(worker.directory), worker.uid)

    def _remove_remains(self, worker: KeptWorker) -> bool:
        """Kill a worker's processes and remove its files; return whether that succeeded."""
        killed = worker.group is not None and worker.group.kill()
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

    def _record(self) -> None:
        if self._settings.state_dir is None or self._directory is None:
            return
        with self._record_lock:
            live = {w.process.pid: w.start_time for w in list(self.workers.values())}
            orphan_reaper.write_record(self._settings.state_dir, live, self._directory)


def _any_uses_nccl(workers: Iterable[KeptWorker]) -> bool:
    return any(host_memory.maps(each.process.pid, "/libnccl.so") for each in workers)
