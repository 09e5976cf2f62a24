"""Sockets of the drop-in: the agent on this machine, and one connection per GPU server."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from cupy._door.errors import DoorError, NotConnectedError, visible
from cupy._door.locks import AT_ONCE
from cupy._door.transport.tls import TlsStream

HANDSHAKE_S = 10.0
CHECK_S = 15.0
"""`gpupool run` answers a check within 5 s, even if a server is silent and a holder is asked."""
AGENT_LINE_MAX = 1 << 18  # a lease of 256 GPUs on as many servers
PATIENCE_US = 20_000
"""How long the kernel may wait for room or for bytes, before this side checks the other socket."""
ENDED = "`gpupool run` has ended"
SETTINGS = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"),
    *("CUDA_SCALE_LAUNCH_QUEUES", "CUDA_MODULE_DATA_LOADING", "CUDA_BINARY_LOADER_THREAD_COUNT"),
    *("CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_AUTO_BOOST", "CUDA_CACHE_DISABLE"),
    *("CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT", "CUDA_DISABLE_PERF_BOOST"),
    *("CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT", "CUDA_DISABLE_PTX_JIT"),
    *("CUDA_DISABLE_JIT", "CUDA_FORCE_PRELOAD_LIBRARIES", "CUDA_DEVICE_DEFAULT_STACK_SIZE_MAX"),
    *("CUPY_TF32", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
)
"""Variables that the driver, CuPy and its libraries read on the server."""
_MAGIC = b"gpupool\x01"
# Linux refuses more buffers than this in one sendmsg (IOV_MAX).
_IOV_MAX = 512


class ConnectionLostError(DoorError):
    """The worker or the network went away in the middle of the session."""


class AgentLines:
    """Messages of ``gpupool run``, one a line, which come over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def line(self) -> dict[str, Any] | None:
        """Return the next message; None if the socket does not wait and nothing is there.

        The end of the agent is the message of a lost lease.

        Raises:
            DoorError: the agent sent something else.
        """
        while b"\n" not in self._buffer:
            try:
                piece = self.socket.recv(1 << 16)
            except BlockingIOError:
                return None
            if not piece:
                return {"op": "lost", "what": ENDED}
            self._buffer += piece
            if len(self._buffer) > AGENT_LINE_MAX:
                raise DoorError("the agent sent a line that is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: Any = json.loads(line)
        if type(value) not in (dict,):
            raise DoorError("the agent sent something that is not an object")
        return value


class Agent(AgentLines):
    """The connection to ``gpupool run``; it stays open as long as this process lives."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.socket.settimeout(HANDSHAKE_S)
        self.sessions: list[Any] = []  # that are lost when the lease is
        self.lost = ""  # why the lease was lost, for the program; empty while it is held
        self._reading = threading.Lock()  # every session's threads listen here
        try:
            self.socket.connect(path)
        except OSError as error:
            raise NotConnectedError(
                f"cannot reach `gpupool run` at {path} ({error.strerror or error}); "
                "it has ended, or this program was not started by it"
            ) from error

    def open_session(self) -> dict[str, Any]:
        """Ask for a session of the array door; return the agent's answer."""
        request = {
            "op": "session",
            "door": "arrays",
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "program": os.path.basename(sys.argv[0] if sys.argv else "") or "python",
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        }
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        self.socket.settimeout(None)
        while "ok" not in (answer := self.line() or {}):
            self._take(answer)  # what a run that waits for GPUs waits for
            if self.lost:
                raise ConnectionLostError(self.lost)
        if not answer["ok"]:
            words = [visible(answer.get(key, "")) for key in ("what", "why", "hint")]
            raise NotConnectedError("; ".join(word for word in words if word))
        self.socket.setblocking(False)
        return answer

    def hear(self) -> str:
        """Read the agent's pushed messages without blocking; return ``lost``."""
        (reads,) = map(self._reading.acquire, AT_ONCE)
        if reads:
            try:
                while not self.lost and (line := self.line()) is not None:
                    self._take(line)
            except (OSError, ValueError, DoorError) as error:
                self._broken(error)
            finally:
                self._reading.release()
        return self.lost

    def check(self) -> str:
        """Ask the agent whether the lease is lost with a worker that is; return ``lost``.

        A worker that has gone gives no reason, and the agent's message with the reason may still be
        under way. Without this check, the error would depend on which of them arrives first.
        """
        with self._reading:
            if self.lost:
                return self.lost
            try:
                self.socket.settimeout(CHECK_S)
                self.socket.sendall(b'{"op": "check"}\n')
                answer: dict[str, Any] = {}
                while not self.lost and "ok" not in answer:
                    answer = self.line() or {}
                    self._take(answer)
            except socket.timeout:  # TimeoutError itself since Python 3.10
                pass  # the agent is stopped, and will push the loss later
            except (OSError, ValueError, DoorError) as error:
                self._broken(error)
            finally:
                with contextlib.suppress(OSError):
                    self.socket.setblocking(False)
        return self.lost

    def _take(self, line: dict[str, Any]) -> None:
        """Take note of the loss of the lease, whether it was asked for or pushed."""
        if line.get("op") == "notice":
            sys.stderr.write(f"gpupool: {visible(line.get('text', ''))}\n")
        elif line.get("op") == "lost":
            self.lost = visible(line.get("what", "the lease is lost"))
        elif line.get("lost"):
            self.lost = visible(line["lost"])

    def _broken(self, error: Exception) -> None:
        self.lost = self.lost or f"the connection to `gpupool run` broke ({error})"

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS calls the idle time TCP_KEEPALIVE; not every system has every option.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 2),
        (("TCP_KEEPINTVL",), 2),
        (("TCP_KEEPCNT",), 4),
    ):
        for name in names:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionLostError("the server closed the connection during the handshake")
        data += piece
    return data


def _prove(connection: socket.socket, session: bytes, ticket: bytes) -> None:
    client_nonce = secrets.token_bytes(16)
    connection.sendall(_MAGIC + session + client_nonce)
    answer = _receive_exactly(connection, 48)
    server_nonce, proof = answer[:16], answer[16:]
    nonces = client_nonce + server_nonce
    if not hmac.compare_digest(proof, hmac.digest(ticket, b"server" + nonces, "sha256")):
        raise DoorError("the server could not prove that it knows this lease's ticket")
    connection.sendall(hmac.digest(ticket, b"client" + nonces, "sha256"))
    if _receive_exactly(connection, 1) != b"\x01":
        raise DoorError("the server refused this lease's ticket")


def _secure(connection: socket.socket, offer: dict[str, Any]) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate is the worker's own; its fingerprint came over the authenticated control
    # connection and is compared below, which is stronger than any chain.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    secured = context.wrap_socket(connection, server_hostname=offer["server_name"])
    certificate = secured.getpeercert(binary_form=True) or b""
    found = hashlib.sha256(certificate).hexdigest()
    if not hmac.compare_digest(found, offer["certificate_sha256"]):
        raise DoorError("the server's certificate is not the one that the lease names")
    secured.sendall(bytes.fromhex(offer["ticket"]))
    if _receive_exactly(secured, 1) != b"\x01":
        raise DoorError("the server refused this lease's ticket")
    return secured


def connect(offer: dict[str, Any]) -> socket.socket:
    """Connect to the worker that one entry of the agent's ``sessions`` names, and authenticate."""
    session, ticket = bytes.fromhex(offer["session"]), bytes.fromhex(offer["ticket"])
    path = offer.get("unix")
    if path and hasattr(socket, "AF_UNIX") and os.path.exists(path):
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(HANDSHAKE_S)
        try:
            local.connect(path)
        except OSError:
            local.close()  # a path of another host or container; TCP reaches the server itself
        else:
            _prove(local, session, ticket)
            return local
    host, port = offer["address"]
    try:
        remote = socket.create_connection((host, port), timeout=HANDSHAKE_S)
    except OSError as error:
        raise ConnectionLostError(
            f"cannot reach {offer['server']} at {host}:{port}: {error}"
        ) from error
    _keep_alive(remote)
    if offer["encryption"] == "tls":
        return _secure(remote, offer)
    _prove(remote, session, ticket)
    return remote


class Link:
    """One connected socket, read and written without ever blocking in the kernel for long.

    Both directions are polled together, so that two ends that both have much to send cannot
    wait for each other for ever.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        #: Counts of bytes that were read, for the reading thread to take. A list, because a
        #: signal's exception may take the place of a call's result, never of a list's item.
        self.counts: list[int] = []
        #: The same of bytes that were written.
        self.sent: list[int] = []
        # TLS is written in Python, where that holds for no call.
        secured = isinstance(connection, ssl.SSLSocket)
        self.tls = TlsStream(connection, self.counts, self.sent) if secured else None
        # On Linux the kernel itself waits for room, which takes far fewer system calls than
        # polling, and gives up after a while, so that this side can read what the other sends.
        self._patient = sys.platform == "linux" and not self.tls
        connection.setblocking(self._patient)
        if self._patient:
            limit = struct.pack("ll", 0, PATIENCE_US)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._descriptors: list[int] | None = None
        self._poller: Any = None
        if self.tls and hasattr(select, "poll"):
            self._poller = select.poll()
            self._poller.register(connection, select.POLLIN)
        self._glance = socket.MSG_DONTWAIT if self._patient else 0
        self._stare = socket.MSG_WAITALL if self._patient else 0

    def receive_into(self, target: memoryview, *, all_of_it: bool = False) -> bool:
        """Read the bytes that are there, and put their count into ``counts``; 0 for a closed end.

        Args:
            target: where to.
            all_of_it: wait a moment for the whole of ``target``, where that is possible.

        Returns:
            False if nothing is there.
        """
        if self.tls is not None:
            return self.tls.read(target)
        flags = self._stare if all_of_it else self._glance
        try:
            if self._descriptors is not None:
                self._receive_message(target, flags, self._descriptors)
            else:
                # Both calls are made by the list, between which no signal is handled.
                self.counts.extend(map(self.socket.recv_into, (target,), (0,), (flags,)))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.counts.append(0)
        return True

    def readable(self) -> bool:
        """Say whether a read may find something; with TLS, a vain one costs more than asking."""
        if self._poller is None:
            return True
        return bool(self._poller.poll(0))

    def expect_descriptor(self) -> bool:
        """Look for a descriptor beside the bytes from now on; False where none can come."""
        if sys.platform == "linux" and self.socket.family == socket.AF_UNIX and not self.tls:
            self._descriptors = []
        return self._descriptors is not None

    def take_descriptor(self) -> int | None:
        """Return the descriptor that came, if one did, and expect none from now on."""
        found, self._descriptors = self._descriptors, None
        for unwanted in (found or [])[1:]:
            os.close(unwanted)
        return found[0] if found else None

    def _receive_message(self, target: memoryview, flags: int, found: list[int]) -> None:
        room = socket.CMSG_SPACE(4 * struct.calcsize("i"))
        flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        count, ancillary, _, _ = self.socket.recvmsg_into([target], room, flags)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        self.counts.append(count)

    def send_some(self, buffers: list[memoryview]) -> bool:
        """Write the part of ``buffers`` that fits, and put its count into ``sent``; False if none.

        Raises:
            OSError: the connection is gone.
        """
        if self.tls is not None:
            # 1 MiB at a time, because OpenSSL repeats a refused write from its start.
            return self.tls.write(buffers[0][: 1 << 20])
        if hasattr(self.socket, "sendmsg"):
            writing = map(self.socket.sendmsg, (buffers[:_IOV_MAX],))
        else:
            writing = map(self.socket.send, (buffers[0][: 1 << 20],))
        try:
            self.sent.extend(writing)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def shut_down(self) -> None:
        """End the stream in both directions, which wakes the threads that wait for it."""
        with contextlib.suppress(OSError):  # it has ended already
            # The method of `SSLSocket` would drop the keys while another thread uses them.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; the worker sees the end of the stream."""
        self.socket.close()


def watch(read: list[socket.socket], write: list[socket.socket]) -> Callable[[float], set[int]]:
    """Return a function that returns the descriptors that are ready, none after so many seconds."""
    # Another thread may have lost the session meanwhile, or may lose it between these lines.
    reading = [number for item in read if (number := item.fileno()) >= 0]
    writing = [number for item in write if (number := item.fileno()) >= 0]
    if not hasattr(select, "poll"):

        def choose(timeout_s: float) -> set[int]:
            ready = select.select(reading, writing, [], timeout_s)
            return {*ready[0], *ready[1]}

        return choose
    poller = select.poll()
    for number in reading:
        poller.register(number, select.POLLIN | select.POLLHUP)
    for number in writing:
        if number in reading:
            poller.modify(number, select.POLLIN | select.POLLHUP | select.POLLOUT)
        else:
            poller.register(number, select.POLLOUT)
    return lambda timeout_s: {found for found, _ in poller.poll(timeout_s * 1000)}
