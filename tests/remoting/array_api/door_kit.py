"""A pool of one process for tests: an agent's socket, and workers that serve emulated devices."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.array_api.server.serve import serve
from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.devices.host_kernels import host_compiler
from gpupool.remoting.transport.data_connection import read_exactly
from gpupool.remoting.transport.session_stream import PlainStream, SessionStream, TlsStream
from gpupool.remoting.transport.tally import Tally
from gpupool.remoting.worker.certificate import worker_context
from gpupool.remoting.worker.client_handshake import accept_client, accept_plain
from gpupool.remoting.worker.peer_links import Links
from gpupool.remoting.worker.worker_main import KEEPALIVE_LINK, set_options

DROPIN = Path(__file__).resolve().parents[3] / "remoting" / "array_api" / "dropin"
MIB = 1 << 20
AS_ON_REAL_GPUS = {"GPUPOOL_BLOCKING": "0"}
"""Calls do not wait, as they do by default on emulated GPUs and under pytest."""

HAS_COMPILER = sys.platform == "linux" and any(map(shutil.which, host_compiler.COMPILERS))
STACKS_S = 5.0


class MemoryBudget:
    """A lease's account in this process."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.used = [0] * len(sizes)
        self._lock = threading.Lock()

    def reserve(self, device_index: int, nbytes: int) -> bool:
        with self._lock:
            if self.used[device_index] + nbytes > self.sizes[device_index]:
                return False
            self.used[device_index] += nbytes
            return True

    def release(self, device_index: int, nbytes: int) -> None:
        with self._lock:
            self.used[device_index] -= nbytes
            assert self.used[device_index] >= 0

    def usage(self, device_index: int) -> int:
        return self.used[device_index]


def stream_of(connection: socket.socket) -> SessionStream:
    """Return the session stream that a worker would pass to the door."""
    if isinstance(connection, ssl.SSLSocket):
        return TlsStream(connection)
    return PlainStream(connection)


def emulated(count: int, memory: int) -> list[DeviceSpec]:
    return [
        DeviceSpec(at, f"EMU-{at}", "Emulated GPU", memory, emulated=True, ordinal=None)
        for at in range(count)
    ]


def start_worker(
    connection: socket.socket,
    devices: Sequence[DeviceSpec],
    log: list[str] | None = None,
    links: Links | None = None,
) -> tuple[threading.Thread, MemoryBudget]:
    """Serve one connection in a thread."""
    host_compiler.permit()  # as a confined worker does
    budget = MemoryBudget([spec.memory for spec in devices])
    lines = [] if log is None else log
    stream = stream_of(connection)
    thread = threading.Thread(
        target=serve, args=(stream, devices, budget, lines.append, links), daemon=True
    )
    thread.start()
    return thread, budget


class PlayedStream:
    """A session's stream that plays bytes in pieces, and keeps the sent ones."""

    def __init__(self, data: bytes, piece: int = MIB) -> None:
        self.rest, self.piece = memoryview(data), piece
        self.sent, self.calls, self.tally = b"", 0, Tally()

    def recv_into(self, buffer: memoryview, /) -> int:
        count = min(self.piece, buffer.nbytes, len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        self.sent += b"".join(map(bytes, buffers))

    def send_descriptor(self, _data: bytes, _descriptor: int, /) -> bool:
        return False

    def close(self) -> None:
        self.rest = memoryview(b"")


@dataclass
class Server:
    """One GPU server: its listener and its devices."""

    name: str
    listener: socket.socket
    devices: list[DeviceSpec]
    session: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    ticket: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    tls: tuple[ssl.SSLContext, str] | None = None  # with the fingerprint of its certificate
    proxy: int | None = None  # the port by which clients come, where it is not the listener's
    connections: list[socket.socket] = field(default_factory=list[socket.socket])
    budgets: list[MemoryBudget] = field(default_factory=list[MemoryBudget])
    log: list[str] = field(default_factory=list[str])
    # Where the workers of other servers connect; one client process at a time then.
    peer_listener: socket.socket | None = None
    make_links: Callable[[], Links] | None = None
    links: Links | None = None  # of the latest session

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            try:
                connection = self._authenticate(connection)
            except (GpupoolError, OSError):
                connection.close()  # the client did not like this server
                continue
            self.connections.append(connection)
            if self.make_links is not None:
                self.links = self.make_links()
            _thread, budget = start_worker(connection, self.devices, self.log, self.links)
            self.budgets.append(budget)

    def serve_peers(self) -> None:
        """Take the links of other servers' workers."""
        assert self.peer_listener is not None
        while True:
            try:
                connection, _ = self.peer_listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            set_options(connection, KEEPALIVE_LINK)
            assert self.links is not None
            with contextlib.suppress(GpupoolError, OSError):
                accept_plain(connection, self.session, self.links.key)
                connection.sendall(b"\x01")
                index = int.from_bytes(read_exactly(connection, 4), "little")
                self.links.accept(index, PlainStream(connection))

    def _authenticate(self, connection: socket.socket) -> socket.socket:
        context, me = self.tls[0] if self.tls else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self
        made = accept_client(connection, context, cast("Any", me), plain=self.tls is None)
        made.settimeout(None)
        made.sendall(b"\x01")
        return made

    def offer(self) -> dict[str, Any]:
        unix = self.listener.family == socket.AF_UNIX
        port = 1 if unix else self.proxy or self.listener.getsockname()[1]
        return {
            "server": self.name,
            "server_id": self.name,
            "address": ["127.0.0.1", port],
            "unix": self.listener.getsockname() if unix else None,
            "session": self.session.hex(),
            "server_name": f"{self.session.hex()}.session.gpupool",
            "certificate_sha256": self.tls[1] if self.tls else "0" * 64,
            "ticket": self.ticket.hex(),
            "encryption": "tls" if self.tls else "off",
            "devices": [
                {key: getattr(spec, key) for key in ("index", "name", "uuid", "memory", "emulated")}
                for spec in self.devices
            ],
        }


class Agent:
    """The agent of ``gpupool run`` for a program: one Unix socket that hands out sessions."""

    def __init__(self, folder: Path, servers: list[Server]) -> None:
        self.path = str(folder / "agent.sock")
        self.servers = servers
        self.clients: list[socket.socket] = []
        self.requests: list[dict[str, Any]] = []
        self.refusal: dict[str, Any] | None = None
        self.lost = ""  # what a program is told that asks whether the lease is lost
        self.checks = 0
        self.known_moves, self.stays = True, ""
        self.said: list[dict[str, Any]] = []  # by processes that follow their lease
        self.followers: list[socket.socket] = []
        self.gone: list[socket.socket] = []  # those that have ended
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        for target in (self._accept, *(server.serve for server in servers)):
            threading.Thread(target=target, daemon=True).start()
        for server in servers:
            if server.peer_listener is not None:
                threading.Thread(target=server.serve_peers, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        # A program may end with words whose answer it does not await.
        with contextlib.suppress(OSError):
            self._answer_all(client)
        self.gone.append(client)

    def _answer_all(self, client: socket.socket) -> None:
        for line in self._lines(client):
            request = json.loads(line)
            if request["op"] == "check":
                self.checks += 1
                client.sendall(json.dumps({"ok": True, "lost": self.lost}).encode() + b"\n")
                continue
            if request["op"] != "session":
                client.sendall(json.dumps(self.followed(request, client)).encode() + b"\n")
                continue
            self.requests.append(request)
            sessions = [server.offer() for server in self.servers]
            answer = {"ok": True, "lease": "7f3a", "notices": [], "sessions": sessions}
            client.sendall(json.dumps(self.refusal or answer).encode() + b"\n")

    def followed(self, request: dict[str, Any], client: socket.socket) -> dict[str, Any]:
        """Answer a process that follows its lease; record its request."""
        self.said.append(request)
        if request["op"] == "follow":
            self.followers.append(client)
            return {"ok": self.known_moves}
        if request["op"] == "go-on":
            return {"ok": True, "stays": self.stays}
        return {"ok": True}

    def order(self, offer: dict[str, Any]) -> None:
        """Tell the process to go on with the worker of an offer."""
        line = json.dumps({"op": "move", "offer": offer}).encode() + b"\n"
        self.followers[-1].sendall(line)

    def _lines(self, client: socket.socket) -> Iterator[bytes]:
        with contextlib.suppress(OSError), client.makefile("rb") as lines:
            yield from lines

    def push(self, message: dict[str, Any]) -> None:
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        peers = [s.peer_listener for s in self.servers if s.peer_listener is not None]
        for item in (self._listener, *peers, *(server.listener for server in self.servers)):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
        for item in (*self.clients, *(c for server in self.servers for c in server.connections)):
            item.close()


def certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return a worker's TLS context, and the fingerprint of its certificate."""
    context, digest = worker_context(folder)
    return context, digest.hex()


@contextlib.contextmanager
def pool(
    *counts: int,
    memory: int = 256 * MIB,
    transport: str = "unix",
    devices: list[DeviceSpec] | None = None,
    linked: bool = False,
    listen: Callable[[int], socket.socket] | None = None,
) -> Generator[Agent]:
    """Run an agent with one server per count of emulated devices, or with the given devices.

    The workers of ``linked`` servers can connect to one another, where ``listen`` says.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers: list[Server] = []
        for at, count in enumerate(counts or (1,)):
            if transport == "unix":
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(str(folder / f"server{at}.sock"))
            else:
                listener = socket.socket()
                listener.bind(("127.0.0.1", 0))
            listener.listen()
            tls = certificate(folder) if transport == "tls" else None
            own = devices or emulated(count, memory)
            servers.append(Server(f"server{at}", listener, own, tls=tls))
        if linked:
            link(servers, listen or (lambda _: socket.create_server(("127.0.0.1", 0))))
        agent = Agent(folder, servers)
        try:
            yield agent
        finally:
            agent.close()


def link(servers: list[Server], listen: Callable[[int], socket.socket]) -> None:
    """Let the workers of these servers connect to one another."""
    by_name = {server.name: server for server in servers}

    def dial(name: str) -> socket.socket:
        listener = by_name[name].peer_listener
        assert listener is not None
        connection = socket.create_connection(listener.getsockname())
        set_options(connection, KEEPALIVE_LINK)
        return connection

    for at, server in enumerate(servers):
        server.peer_listener = listen(at)
        server.make_links = lambda: Links(dial, lambda _numbers: None)


def program_environment(agent: Agent | None, **environment: str) -> dict[str, str]:
    """Return the environment of a user's program, with the drop-in first on its path."""
    variables = {**os.environ, "PYTHONPATH": str(DROPIN), "PYTHONFAULTHANDLER": "1"}
    variables |= {**AS_ON_REAL_GPUS, **environment}
    variables.pop("GPUPOOL_AGENT", None)
    if agent is not None:
        variables["GPUPOOL_AGENT"] = agent.path
    return variables


def run_program(
    agent: Agent | None, source: str, *arguments: str, timeout_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python source as a user's program would run.

    One that takes longer says where each of its threads is.
    """
    argv = [sys.executable, "-c", source, *arguments]
    with subprocess.Popen(
        argv,
        env=program_environment(agent, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            try:
                said = process.communicate(timeout=STACKS_S)
            except subprocess.TimeoutExpired as late:  # a child of its own has the pipes as well
                said = (late.output, late.stderr)
            raise AssertionError(f"no end after {timeout_s} s: {said}") from None
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def output(agent: Agent | None, source: str, *arguments: str, **environment: str) -> str:
    """Return the output of a program, which must end well."""
    done = run_program(agent, source, *arguments, timeout_s=100, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def program(agent: Agent, source: str, first_line: str) -> Generator[subprocess.Popen[str]]:
    """Run Python source beside the test; yield the process once it has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env=program_environment(agent),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == first_line + "\n"
        yield process


def main() -> None:
    """Serve until standard input ends; print where the agent's socket is."""
    words = sys.argv[1:]
    transport = next((word for word in words if not word.isdigit()), "unix")
    counts = [int(word) for word in words if word.isdigit()] or [1]
    with pool(*counts, memory=4096 * MIB, transport=transport) as agent:
        sys.stdout.write(agent.path + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        for server in agent.servers:
            for line in server.log:
                sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
