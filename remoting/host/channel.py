"""The worker's blocking end of its sockets to the host: messages with descriptors, and budget."""

import array
import collections
import os
import socket
import threading

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.host import messages

DESCRIPTOR_COUNT_MAX = 8
"""Descriptors that one read takes; the host sends one with a message."""

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class HostGoneError(Exception):
    """The host closed its end: it died, or it wants this worker to end."""


class WorkerChannel:
    """The control socket. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = messages.frame_reader()
        self._descriptors: collections.deque[int] = collections.deque()
        self._send_lock = threading.Lock()

    def send(self, message: messages.WorkerMessage) -> None:
        """Send one message.

        Raises:
            HostGoneError: when nobody listens any more.
        """
        try:
            with self._send_lock:
                self._socket.sendall(messages.encode(message))
        except OSError as error:
            raise HostGoneError(str(error)) from error

    def receive(self) -> messages.HostMessage:
        """Wait for the next message.

        Raises:
            HostGoneError: when the host has closed its end.
        """
        while (frame := self._reader.next()) is None:
            self._read_some()
        return messages.decode_from_host(frame)

    def take_descriptor(self) -> socket.socket:
        """Return the socket that came with the message just received."""
        if not self._descriptors:
            raise RemoteProtocolError("message without its descriptor")
        return socket.socket(fileno=self._descriptors.popleft())

    def _read_some(self) -> None:
        space = socket.CMSG_SPACE(DESCRIPTOR_COUNT_MAX * array.array("i").itemsize)
        try:
            data, ancillary, _flags, _address = self._socket.recvmsg(65536, space, _CLOEXEC)
        except OSError as error:
            raise HostGoneError(str(error)) from error
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                for descriptor in found:
                    os.set_inheritable(descriptor, False)
                self._descriptors.extend(found)
        if not data:
            raise HostGoneError("closed")
        self._reader.feed(data)


class BudgetClient:
    """The ``budget`` of a door: each call asks the host, which holds the books.

    Thread-safe; callers take turns, so that the host has at most one call of a worker in hand.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()

    def reserve(self, device_index: int, nbytes: int) -> bool:
        """Reserve ``nbytes`` of the partition if the lease has them left."""
        return self._ask(messages.RESERVE, device_index, nbytes)[0]

    def release(self, device_index: int, nbytes: int) -> None:
        """Return ``nbytes`` that were reserved."""
        with self._lock:
            self._send(messages.RELEASE, device_index, nbytes)

    def usage(self, device_index: int) -> int:
        """Return the bytes that the whole lease holds on that GPU."""
        return self._ask(messages.USAGE, device_index, 0)[1]

    def _ask(self, operation: int, device: int, size: int) -> tuple[bool, int]:
        with self._lock:
            self._send(operation, device, size)
            answer = self._socket.recv(messages.BUDGET_ANSWER.size, socket.MSG_WAITALL)
        if len(answer) != messages.BUDGET_ANSWER.size:
            raise HostGoneError("closed")
        granted, usage = messages.BUDGET_ANSWER.unpack(answer)
        return bool(granted), usage

    def _send(self, operation: int, device: int, size: int) -> None:
        if size < 0:
            raise ValueError("negative size")
        try:
            self._socket.sendall(messages.BUDGET_CALL.pack(operation, device, size))
        except OSError as error:
            raise HostGoneError(str(error)) from error
