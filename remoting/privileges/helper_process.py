"""The privileged helper's process: carries out one server's calls until it closes its socket.

It holds root's privileges and hears of no stranger. It does what ``helper_messages`` lists, for the
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
from contextlib import ExitStack
from pathlib import Path

from gpupool.pool.errors import GpupoolError, ProtocolError, RemoteProtocolError
from gpupool.remoting.host.orphan_reaper import DEATH_TIMEOUT_S
from gpupool.remoting.host.worker_helper import QUICK, THREAD_COUNT, HelperSettings, WorkerHelper
from gpupool.remoting.protocol.helper_messages import (
    HELPER,
    Failed,
    KillWorker,
    Open,
    Request,
    StartWorker,
    SuspendWorkers,
)
from gpupool.remoting.transport.descriptor_passing import (
    DESCRIPTOR_COUNT_MAX,
    receive_with_descriptors,
)

CALL_COUNT_MAX = 64
"""Calls that wait for a thread; then the next one is read later."""

LOCK = "lock"
_LOCK_POLL_S = 0.02
_NODE = re.compile(r"/dev/(nvidia[0-9]{1,4}|nvidia-caps/nvidia-cap[0-9]{1,6})")
_CANNOT = "the privileged helper cannot do that"

Log = Callable[[str], None]


def serve(sock: socket.socket, settings: HelperSettings, log: Log) -> None:
    """Carry out calls until the server has gone; then kill and remove all that it had."""
    # The server closes the socket when this is to stop. A handler is not inherited; SIG_IGN is.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    server = HelperServer(sock, WorkerHelper(settings, log), settings.state_dir, log)
    try:
        server.run()
    except RemoteProtocolError as error:
        log(f"the server broke the protocol of its privileged helper: {error}")
    finally:
        server.close()


class HelperServer:
    """The privileged helper's side of its one connection."""

    def __init__(
        self, sock: socket.socket, helper: WorkerHelper, state_dir: Path | None, log: Log
    ) -> None:
        self._log = log
        self._socket = sock
        self._helper = helper
        self._state_dir = state_dir
        self._threads = ThreadPoolExecutor(THREAD_COUNT, "keeper")
        self._places = threading.BoundedSemaphore(CALL_COUNT_MAX)
        self._sending = threading.Lock()
        self._lock = -1

    def run(self) -> None:
        """Read calls; those that take milliseconds are carried out on this, the first, thread."""
        while True:
            try:
                packet, descriptors = receive_with_descriptors(
                    self._socket, HELPER.size_max + 1, DESCRIPTOR_COUNT_MAX
                )
            except OSError:
                return
            with ExitStack() as received:
                for each in descriptors:
                    received.callback(os.close, each)
                if not packet:
                    return
                call, asked = HELPER.decode(Request, packet)
                if isinstance(asked, KillWorker):
                    self._helper.kill(asked.worker)
                elif isinstance(asked, QUICK):
                    self._answer(call, asked, descriptors)
                else:
                    self._places.acquire()
                    kept = received.pop_all()
                    self._threads.submit(self._answer_later, call, asked, descriptors, kept)

    def _answer_later(
        self, call: int, asked: Request, descriptors: Sequence[int], kept: ExitStack
    ) -> None:
        with kept:
            try:
                self._answer(call, asked, descriptors)
            finally:
                self._places.release()

    def _answer(self, call: int, asked: Request, descriptors: Sequence[int]) -> None:
        """Answer every request, also after an error: the server waits for it."""
        descriptor = -1
        try:
            if isinstance(asked, Open):
                self._prepare(asked)
            answer, descriptor = self._helper.carry_out(asked, _belonging(asked, descriptors))
        except GpupoolError as error:
            answer = Failed(error.what, error.why, error.hint)
        except OSError as error:
            answer = Failed(_CANNOT, str(error))
        except Exception as error:  # noqa: BLE001 - which a thread would keep to itself
            self._log(f"a {type(asked).__name__} failed by a bug of gpupool: {error!r}")
            answer = Failed(_CANNOT, repr(error)[:200])
        passed = [descriptor] if descriptor >= 0 else []
        try:
            packet = HELPER.encode(answer, call)
        except ProtocolError as error:
            packet = HELPER.encode(Failed(_CANNOT, str(error)), call)
        try:
            with self._sending, contextlib.suppress(OSError):  # The server has gone.
                socket.send_fds(self._socket, [packet], passed)
        finally:
            for each in passed:
                os.close(each)

    def _prepare(self, asked: Open) -> None:
        for node in (each for nodes in (asked.nodes or {}).values() for each in nodes):
            if not _NODE.fullmatch(node):
                raise GpupoolError("workers cannot be prepared", why=f"{node[:99]} is no GPU's")
        if self._state_dir is not None and self._lock < 0:
            self._lock = wait_for_lock(self._state_dir / LOCK)

    def close(self) -> None:
        """Kill and remove all."""
        for number in list(self._helper.workers):
            self._helper.kill(number)
        self._threads.shutdown()
        self._helper.close()


def _belonging(asked: Request, descriptors: Sequence[int]) -> Sequence[int]:
    """Return the descriptors that a request may have; another file than is wanted is none.

    Raises:
        GpupoolError: when it lacks what it needs.
    """
    kinds = [stat.S_IFMT(os.fstat(each).st_mode) for each in descriptors]
    if isinstance(asked, StartWorker):
        if kinds != [stat.S_IFSOCK, stat.S_IFIFO]:
            raise GpupoolError("no worker can be started", why="it has no socket and pipe")
        return descriptors
    wanted = isinstance(asked, SuspendWorkers) and asked.spill
    return descriptors if wanted and kinds == [stat.S_IFREG] else ()


def wait_for_lock(path: Path) -> int:
    """Return a descriptor that holds the lock, once a former server's helper has ended.

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
                    "the privileged helper of a former server does not end", why="it holds its lock"
                ) from error
            time.sleep(_LOCK_POLL_S)
        else:
            return lock
