"""Sessions on emulated GPUs of this machine, without a pool: the server of ``gpupool emulate``.

One process answers the program's processes, as the agent of ``gpupool run`` does
(``remoting/program/agent.py``). It imports NumPy once. Each session is a worker that it forks when
the client's data connection arrives, at the same socket. So a session costs a few milliseconds, and
a kernel that writes out of bounds ends its own session alone.

The server is confined before it has a client, and so are its workers. All end with the program:
its end wakes the server, and the kernel ends the workers with the server.
"""

import contextlib
import fcntl
import importlib
import json
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.devices.host_kernels import host_compiler
from gpupool.remoting.protocol import handshake
from gpupool.remoting.protocol.driver_variables import visible_devices
from gpupool.remoting.transport.session_stream import PlainStream
from gpupool.remoting.worker import namespaces, sandbox, syscall_filter
from gpupool.remoting.worker.client_handshake import (
    HANDSHAKE_TIMEOUT_S,
    accept_plain,
    wait_hangup,
)

SESSIONS_MAX = 256
LINE_LENGTH_MAX = 64 * 1024
END_S = 1.0
DOOR = "gpupool.remoting.array_api.server.serve"
PRELOADED = (DOOR, "gpupool.remoting.devices.emulated", "numpy.random", "numpy.fft")


@dataclass(frozen=True, slots=True)
class Settings:
    """The descriptors, folders and GPUs of the server."""

    listener: int
    program: int  # of its process: readable once it has ended
    folder: str  # of the socket, and for temporary files
    kernels: str  # where compiled kernels are kept
    readable: tuple[str, ...]  # beside the operating system
    unreadable: tuple[str, ...]
    count: int
    memory: int  # bytes of each GPU


class Accounts:
    """Memory that each session holds of each GPU, as the server and all workers see it.

    A worker that dies in the middle of a call holds no lock: the kernel has released it.
    """

    def __init__(self, count: int, memory: int) -> None:
        """Make accounts of ``count`` GPUs of ``memory`` bytes each."""
        self.count, self._memory = count, memory
        self._held = memoryview(mmap.mmap(-1, 8 * count * SESSIONS_MAX)).cast("q")
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._thread_lock = threading.Lock()

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with self._thread_lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def usage(self, gpu: int) -> int:
        """Return the bytes that all sessions hold of a GPU."""
        return sum(self._held[gpu :: self.count])

    def reserve(self, session: int, gpu: int, nbytes: int) -> bool:
        """Add bytes to an account; False if the GPU has not that many left."""
        with self._locked():
            if self.usage(gpu) + nbytes > self._memory:
                return False
            self._held[session * self.count + gpu] += nbytes
            return True

    def release(self, session: int, gpu: int, nbytes: int) -> None:
        """Take bytes off an account."""
        with self._locked():
            self._held[session * self.count + gpu] -= nbytes

    def close(self, session: int) -> None:
        """Empty the accounts of a session that has ended."""
        with self._locked():
            for gpu in range(self.count):
                self._held[session * self.count + gpu] = 0


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """The ``budget`` of one session's door; its GPUs are some of the server's."""

    accounts: Accounts
    session: int
    gpus: tuple[int, ...]

    def reserve(self, device_index: int, nbytes: int) -> bool:
        """Take ``nbytes``; False if the GPU has not that much left."""
        return self.accounts.reserve(self.session, self.gpus[device_index], nbytes)

    def release(self, device_index: int, nbytes: int) -> None:
        """Give ``nbytes`` back."""
        self.accounts.release(self.session, self.gpus[device_index], nbytes)

    def usage(self, device_index: int) -> int:
        """Return the bytes that all processes of the program hold."""
        return self.accounts.usage(self.gpus[device_index])


@dataclass(frozen=True, slots=True)
class Offer:
    """A session that a process was offered, until its data connection comes."""

    ticket: bytes = field(repr=False)
    gpus: tuple[int, ...]
    client: socket.socket  # on which it asked


class Server:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        """Prepare; the process is confined, and has imported the modules of its workers."""
        self._settings, self._pid = settings, os.getpid()
        self._path = str(Path(settings.folder) / "agent.sock")
        self._accounts = Accounts(settings.count, settings.memory)
        self._selector = selectors.DefaultSelector()
        self._lines: dict[socket.socket, bytes] = {}  # of each client, as far as they have come
        self._offers: dict[bytes, Offer] = {}
        self._workers: dict[int, tuple[int, socket.socket]] = {}  # account and client by process
        self._ended = False

    def run(self) -> None:
        """Answer until the program has ended."""
        listener = socket.socket(fileno=self._settings.listener)
        listener.setblocking(False)
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        signal.signal(signal.SIGCHLD, _wake)
        self._on(listener, lambda: self._accept(listener))
        self._on(ours, lambda: (ours.recv(4096), self._reap()))
        self._on(self._settings.program, self._end)
        while not self._ended:
            for key, _ in self._selector.select():
                key.data()

    def _on(self, what: socket.socket | int, act: Callable[[], object]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)

    def _end(self) -> None:
        self._ended = True

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        client.settimeout(HANDSHAKE_TIMEOUT_S)
        self._on(client, lambda: self._first(client))

    def _first(self, client: socket.socket) -> None:
        """Tell a data connection by its first bytes from a process that asks."""
        size = len(handshake.PREAMBLE) + handshake.SESSION_SIZE
        first = client.recv(size, socket.MSG_PEEK)
        try:
            session = handshake.session_of_preamble(first) or b""
        except RemoteProtocolError:
            self._lines[client] = b""
            self._selector.modify(client, selectors.EVENT_READ, lambda: self._read(client))
            return
        self._selector.unregister(client)
        offer = self._offers.pop(session, None)
        if offer is not None:
            self._fork(client, session, offer)
        client.close()

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(4096)
            *lines, rest = (self._lines[client] + data).split(b"\n")
            if not data or len(rest) > LINE_LENGTH_MAX:
                raise ConnectionError
            self._lines[client] = rest
            for line in lines:
                client.sendall(json.dumps(self._answer(json.loads(line), client)).encode() + b"\n")
        except (OSError, ValueError, AttributeError):
            self._selector.unregister(client)
            del self._lines[client]
            gone = [name for name, offer in self._offers.items() if offer.client is client]
            for name in gone:
                del self._offers[name]
            client.close()

    def _answer(self, request: dict[str, Any], client: socket.socket) -> dict[str, Any]:
        if request.get("op") == "check":
            for pid, (_, owner) in self._workers.items():
                if owner is client:
                    _await_end(pid)
            self._reap()  # so that the process reads first why its worker has ended
            return {"ok": True, "lost": ""}
        if request.get("op") != "session":
            return {"ok": False}
        if request.get("door") != "arrays":
            what, why = "no session can be opened", "emulated GPUs run programs of cupy alone"
            return {"ok": False, "what": what, "why": why}
        if len(self._workers) + len(self._offers) >= SESSIONS_MAX:
            why = f"{SESSIONS_MAX} processes of the program have one"
            return {"ok": False, "what": "no session can be opened", "why": why}
        names = [f"EMU-{at}" for at in range(self._settings.count)]
        visible = request.get("visible")
        gpus = [*range(len(names))]
        if isinstance(visible, str):
            chosen = visible_devices(visible, names)
            if not chosen:  # as `cupy` reads it: two times the same device, or none
                sessions = [] if chosen is None else [{"server": "emulated"}]
                return {"ok": True, "lease": "", "notices": [], "sessions": sessions}
            gpus = chosen
        session, offer = os.urandom(16), Offer(os.urandom(32), tuple(gpus), client)
        self._offers[session] = offer
        return {"ok": True, "lease": "", "notices": [], "sessions": [self._plain(session, offer)]}

    def _plain(self, session: bytes, offer: Offer) -> dict[str, Any]:
        """Return an offer as ``cupy`` reads it."""
        shown = ("index", "uuid", "name", "memory", "emulated")
        return {
            "server": "emulated",
            "server_id": "emulated",
            "address": ["127.0.0.1", 1],
            "unix": self._path,
            "session": session.hex(),
            "server_name": handshake.server_name(session),
            "certificate_sha256": "0" * 64,
            "ticket": offer.ticket.hex(),
            "encryption": "off",
            "devices": [{n: getattr(each, n) for n in shown} for each in self._specs(offer)],
        }

    def _specs(self, offer: Offer) -> list[DeviceSpec]:
        memory = self._settings.memory
        return [
            DeviceSpec(at, f"EMU-{gpu}", "Emulated GPU", memory, emulated=True, ordinal=gpu)
            for at, gpu in enumerate(offer.gpus)
        ]

    def _fork(self, connection: socket.socket, session: bytes, offer: Offer) -> None:
        """Start the worker of a session; it has the connection."""
        used = {account for account, _ in self._workers.values()}
        account = next(at for at in range(SESSIONS_MAX) if at not in used)
        pid = os.fork()
        if pid:
            self._workers[pid] = (account, offer.client)
            return
        try:
            self._serve(connection, session, offer, account)
        except BaseException:  # noqa: BLE001 - the last place where it can be told
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _serve(self, connection: socket.socket, session: bytes, offer: Offer, account: int) -> None:
        """Serve one client, in its worker."""
        sandbox.die_with_parent(self._pid)
        signal.set_wakeup_fd(-1)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        if syscall_filter.available():
            syscall_filter.install(few=True, tcp=False, listener_to=None)
        sandbox.limit_data(len(offer.gpus) * self._settings.memory)
        accept_plain(connection, session, offer.ticket)
        connection.sendall(handshake.ACCEPTED)
        connection.setblocking(True)
        threading.Thread(target=_end_with_client, args=(connection.dup(),), daemon=True).start()
        budget = SessionBudget(self._accounts, account, offer.gpus)
        door: Any = importlib.import_module(DOOR)
        door.serve(PlainStream(connection), self._specs(offer), budget, _log)

    def _reap(self) -> None:
        """Close the accounts of workers that have ended; tell a client if its worker failed."""
        for pid in list(self._workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            account, client = self._workers.pop(pid)
            self._accounts.close(account)
            code = os.waitstatus_to_exitcode(status)
            if code:
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
                text = f"the worker of this process's GPUs has ended {how}"
                with contextlib.suppress(OSError):  # the client is gone as well
                    client.sendall(json.dumps({"op": "notice", "text": text}).encode() + b"\n")


def _await_end(pid: int) -> None:
    """Wait for a worker: it has closed its connection, which comes before its end."""
    end = os.pidfd_open(pid)
    select.select([end], [], [], END_S)
    os.close(end)


def _wake(_number: int, _frame: object) -> None:
    """Let the kernel write to the wakeup descriptor; without a handler it drops the signal."""


def _end_with_client(connection: socket.socket) -> NoReturn:
    wait_hangup(connection.fileno())
    os._exit(0)


def _log(text: str) -> None:
    sys.stderr.write(f"gpupool: {text}\n")


def confine(settings: Settings) -> None:
    """Give up rights as far as an ordinary user can; before the first thread."""
    sandbox.set_oom_score(sandbox.OOM_SCORE_OF_WORKERS)
    sandbox.forbid_new_privileges()
    sandbox.restrict_files(
        settings.readable,
        (settings.folder, settings.kernels),
        namespaces.STANDARD_DEVICES,
        private=settings.unreadable,
        cuda=False,
    )
    sandbox.limit_resources(own_uid=False)
    if os.geteuid() == 0:
        sandbox.drop_capabilities()


def main(text: str) -> NoReturn:
    """Run the server with its settings as JSON; never returns."""
    settings = Settings(**json.loads(text))
    confine(settings)
    # The user's own program is no less: no sandbox has to hold what it compiles here.
    host_compiler.permit(Path(settings.kernels))
    for name in PRELOADED:
        importlib.import_module(name)
    Server(settings).run()
    os._exit(0)
