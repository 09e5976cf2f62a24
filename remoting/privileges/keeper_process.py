"""The keeper's process: carries out the calls of one server, until that closes its socket.

It holds root's privileges and hears of no stranger. It does what ``keeper_messages`` lists, for the
workers that it has started itself, and nothing else. Workers are its children: the kernel kills
them when it ends, and it ends with its server.
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpupool.pool.errors import GpupoolError, ProtocolError, RemoteProtocolError
from gpupool.pool.model.ids import GpuId, LeaseId
from gpupool.remoting.host.orphan_reaper import DEATH_TIMEOUT_S
from gpupool.remoting.host.worker_keeper import THREAD_COUNT, KeeperSettings, WorkerKeeper
from gpupool.remoting.protocol import keeper_messages
from gpupool.remoting.transport.descriptor_passing import (
    DESCRIPTOR_COUNT_MAX,
    receive_with_descriptors,
)

CALL_COUNT_MAX = 64
"""Calls that wait for a thread; then the next one is read later."""

LOCK = "lock"
_LOCK_POLL_S = 0.02
_NODE = re.compile(r"/dev/(nvidia[0-9]{1,4}|nvidia-caps/nvidia-cap[0-9]{1,6})")
_CANNOT = "the keeper cannot do that"

Log = Callable[[str], None]


def serve(sock: socket.socket, settings: KeeperSettings, log: Log) -> None:
    """Carry out calls until the server has gone; then kill and remove all that it had."""
    # The server closes the socket when this is to stop. A handler is not inherited; SIG_IGN is.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    server = KeeperServer(sock, WorkerKeeper(settings, log), settings.state_dir, log)
    try:
        server.run()
    except RemoteProtocolError as error:
        log(f"the server broke the protocol of its keeper: {error}")
    finally:
        server.close()


class KeeperServer:
    """The keeper's side of its one connection."""

    def __init__(
        self, sock: socket.socket, keeper: WorkerKeeper, state_dir: Path | None, log: Log
    ) -> None:
        self._log = log
        self._socket = sock
        self._keeper = keeper
        self._state_dir = state_dir
        self._threads = ThreadPoolExecutor(THREAD_COUNT, "keeper")
        self._places = threading.BoundedSemaphore(CALL_COUNT_MAX)
        self._sending = threading.Lock()
        self._lock = -1

    def run(self) -> None:
        """Read calls; those that take milliseconds are carried out on this, the first, thread."""
        size = keeper_messages.PACKET_SIZE_MAX + 1
        while True:
            try:
                packet, descriptors = receive_with_descriptors(
                    self._socket, size, DESCRIPTOR_COUNT_MAX
                )
            except OSError:
                return
            try:
                if not packet:
                    return
                call, request = keeper_messages.decode_request(packet)
                self._take(call, request, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _take(
        self, call: int, request: keeper_messages.Request, descriptors: Sequence[int]
    ) -> None:
        if isinstance(request, keeper_messages.KillWorker):
            self._keeper.kill(request.worker)
        elif isinstance(request, keeper_messages.StartWorker):
            self._answer(call, lambda: self._start(request, descriptors))
        elif isinstance(request, keeper_messages.ReapWorker):
            self._answer(
                call, lambda: (keeper_messages.Reaped(self._keeper.reap(request.worker)), -1)
            )
        elif isinstance(request, keeper_messages.LoadFilter):
            self._answer(
                call, lambda: (keeper_messages.Loaded(), self._keeper.load_filter(request.networks))
            )
        else:
            self._places.acquire()
            file = _file_of(request, descriptors)

            def run() -> None:
                try:
                    self._answer(call, lambda: (self._try_slow(request, file), -1))
                finally:
                    if file >= 0:
                        os.close(file)
                    self._places.release()

            self._threads.submit(run)

    def _answer(
        self, call: int, carry_out: Callable[[], tuple[keeper_messages.Answer, int]]
    ) -> None:
        descriptor = -1
        try:
            answer, descriptor = carry_out()
        except GpupoolError as error:
            answer = keeper_messages.Failed(error.what, error.why, error.hint)
        except OSError as error:
            answer = keeper_messages.Failed(_CANNOT, str(error))
        passed = [descriptor] if descriptor >= 0 else []
        try:
            packet = keeper_messages.encode(call, answer)
        except ProtocolError as error:  # an answer comes whatever happens: the server waits for it
            packet = keeper_messages.encode(call, keeper_messages.Failed(_CANNOT, str(error)))
        try:
            with self._sending, contextlib.suppress(OSError):  # The server has gone.
                socket.send_fds(self._socket, [packet], passed)
        finally:
            for each in passed:
                os.close(each)

    def _start(
        self, request: keeper_messages.StartWorker, descriptors: Sequence[int]
    ) -> tuple[keeper_messages.Answer, int]:
        kinds = [stat.S_IFMT(os.fstat(each).st_mode) for each in descriptors]
        if kinds != [stat.S_IFSOCK, stat.S_IFIFO]:
            raise GpupoolError("no worker can be started", why="it has no socket and pipe")
        control, errors = descriptors
        return self._keeper.start(request.worker, control, errors, request.doors)

    def _try_slow(self, request: keeper_messages.Request, file: int) -> keeper_messages.Answer:
        """Carry a call out; a bug gets an answer too, because the server waits whatever comes."""
        try:
            return self._slow(request, file)
        except (GpupoolError, OSError):
            raise
        except Exception as error:  # which a thread would keep to itself
            self._log(f"a {type(request).__name__} failed by a bug of gpupool: {error!r}")
            raise GpupoolError(_CANNOT, why=repr(error)[:200]) from error

    def _slow(self, request: keeper_messages.Request, file: int) -> keeper_messages.Answer:
        keeper = self._keeper
        match request:
            case keeper_messages.Open():
                return self._open(request)
            case keeper_messages.ConfineWorker():
                keeper.confine(request.worker)
            case keeper_messages.AskConfinement():
                return keeper_messages.Confinement(keeper.confinement(request.worker))
            case keeper_messages.AssignWorker():
                gpus = tuple(GpuId(each) for each in request.gpus)
                memory = max(0, request.memory)
                return keeper.assign(
                    request.worker,
                    LeaseId(request.lease),
                    gpus,
                    memory,
                    request.user,
                    across=request.across,
                )
            case keeper_messages.SuspendWorkers():
                return keeper.suspend(request, file)
            case keeper_messages.ResumeWorkers():
                return keeper.resume(request)
            case keeper_messages.BuryWorker():
                return keeper_messages.Buried(keeper.bury(request.worker))
            case keeper_messages.MeasureFiles():
                return keeper.files()
            case keeper_messages.Close():
                keeper.close()
            case _:
                raise GpupoolError(_CANNOT, why=type(request).__name__)
        return keeper_messages.Done()

    def _open(self, request: keeper_messages.Open) -> keeper_messages.Opened:
        for node in (each for nodes in (request.nodes or {}).values() for each in nodes):
            if not _NODE.fullmatch(node):
                raise GpupoolError("workers cannot be prepared", why=f"{node[:99]} is no GPU's")
        if self._state_dir is not None and self._lock < 0:
            self._lock = wait_for_lock(self._state_dir / LOCK)
        nodes = request.nodes
        known = None if nodes is None else {GpuId(gpu): each for gpu, each in nodes.items()}
        return self._keeper.open(cuda=request.cuda, nodes=known)

    def close(self) -> None:
        """Kill and remove all."""
        for number in list(self._keeper.workers):
            self._keeper.kill(number)
        self._threads.shutdown()
        self._keeper.close()


def _file_of(request: keeper_messages.Request, descriptors: Sequence[int]) -> int:
    """Return a descriptor of our own for the file that came with a request; -1: there is none."""
    wanted = isinstance(request, keeper_messages.SuspendWorkers) and request.spill
    if not wanted or len(descriptors) != 1 or not stat.S_ISREG(os.fstat(descriptors[0]).st_mode):
        return -1
    try:
        return os.dup(descriptors[0])
    except OSError:
        return -1


def wait_for_lock(path: Path) -> int:
    """Return a descriptor that holds the lock, once the keeper of a former server has ended.

    Raises:
        GpupoolError: when it does not end.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(lock)
                raise GpupoolError(
                    "the keeper of a former server does not end", why="it holds its lock"
                ) from error
            time.sleep(_LOCK_POLL_S)
        else:
            return lock
