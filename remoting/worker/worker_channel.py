"""The worker's blocking end of its sockets to the host: messages with descriptors, and budget."""

import collections
import os
import socket
import threading
from typing import BinaryIO

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.transport.descriptor_passing import (
    DESCRIPTOR_COUNT_MAX,
    receive_with_descriptors,
)


class HostGoneError(Exception):
    """The host closed its end: it died, or it wants this worker to end."""


class WorkerChannel:
    """The control socket. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = worker_messages.WORKER.reader()
        self._descriptors: collections.deque[int] = collections.deque()
        self._send_lock = threading.Lock()

    def send(self, message: worker_messages.WorkerMessage) -> None:
        """Send one message.

        Raises:
            HostGoneError: when the host has closed its end.
        """
        try:
            with self._send_lock:
                self._socket.sendall(worker_messages.WORKER.encode(message))
        except OSError as error:
            raise HostGoneError(str(error)) from error

    def receive(self) -> worker_messages.HostMessage:
        """Wait for the next message.

        Raises:
            HostGoneError: when the host has closed its end.
        """
        while (frame := self._reader.next()) is None:
            self._read_some()
        return worker_messages.WORKER.decode(worker_messages.HostMessage, frame)

    def take_descriptor(self) -> socket.socket:
        """Return the socket that came with the message just received."""
        return socket.socket(fileno=self._take())

    def take_file(self) -> BinaryIO:
        """Return the file from the message just received, which is no socket."""
        return os.fdopen(self._take(), "rb", buffering=0)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def detach(self) -> int:
        """Return the descriptor of this end, which is the caller's from now on."""
        return self._socket.detach()

    def _take(self) -> int:
        if not self._descriptors:
            raise RemoteProtocolError("message without its descriptor")
        return self._descriptors.popleft()

    def _read_some(self) -> None:
        try:
            data, found = receive_with_descriptors(self._socket, 65536, DESCRIPTOR_COUNT_MAX)
        except OSError as error:
            raise HostGoneError(str(error)) from error
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
        self._descriptors: list[int] = []  # that came with the last answer

    def reserve(self, device_index: int, nbytes: int) -> bool:
        """Reserve ``nbytes`` of the partition if the lease has them left."""
        if nbytes > worker_messages.SIZE_MAX:
            return False  # more than any partition, and than a call can say
        return self._ask(worker_messages.RESERVE, device_index, nbytes)[0] > 0

    def release(self, device_index: int, nbytes: int) -> None:
        """Return ``nbytes`` that were reserved."""
        with self._lock:
            self._send(worker_messages.RELEASE, device_index, nbytes)

    def usage(self, device_index: int) -> int:
        """Return the bytes that the whole lease holds on that GPU."""
        return self._ask(worker_messages.USAGE, device_index, 0)[1]

    def share(self, token: bytes, value: bytes, descriptor: int = -1) -> bool:
        """Let the other workers of the lease find a handle; False if there are too many.

        The descriptor, if any, is passed on, and stays the caller's.
        """
        has = int(descriptor >= 0)
        return self._ask(worker_messages.SHARE, has, token + value, descriptor=descriptor)[0] > 0

    def find(self, token: bytes, *, opens: bool = False) -> tuple[bytes, int] | None:
        """Return a handle of another worker of the lease, and its descriptor or -1.

        The caller closes the descriptor. A caller that ``opens`` memory has a hold on it then.
        """
        with self._lock:
            self._send(worker_messages.FIND, int(opens), token)
            granted, size = self._answer()
            value = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        if len(value) != size:
            raise HostGoneError("closed")
        return (value, self._descriptors.pop() if granted > 1 else -1) if granted else None

    def forget(self, token: bytes) -> None:
        """Withdraw a handle that this worker has shared; it cannot be found after the return."""
        self._ask(worker_messages.FORGET, 0, token)

    def pledge(self, token: bytes, device_index: int, nbytes: int) -> None:
        """Charge reserved bytes for as long as any worker holds the shared memory."""
        payload = token + worker_messages.PLEDGED.pack(nbytes)
        self._ask(worker_messages.PLEDGE, device_index, payload)

    def take_back(self, token: bytes, nbytes: int) -> None:
        """Return pledged bytes, unless other workers hold the shared memory.

        The books have it after the return: another process may be told, and look.
        """
        self._ask(worker_messages.TAKE_BACK, 0, token + worker_messages.PLEDGED.pack(nbytes))

    def let_go(self, token: bytes) -> None:
        """Give up one hold of memory: the pledger's, or an opener's.

        The books have it after the return, as after ``take_back``.
        """
        self._ask(worker_messages.LET_GO, 0, token)

    def _ask(
        self, operation: int, device: int, said: int | bytes, *, descriptor: int = -1
    ) -> tuple[int, int]:
        with self._lock:
            self._send(operation, device, said, descriptor=descriptor)
            return self._answer()

    def _answer(self) -> tuple[int, int]:
        size = worker_messages.BUDGET_ANSWER.size
        answer, descriptors = receive_with_descriptors(self._socket, size, 1, socket.MSG_WAITALL)
        self._descriptors = descriptors
        if len(answer) != size:
            raise HostGoneError("closed")
        return worker_messages.BUDGET_ANSWER.unpack(answer)

    def _send(
        self, operation: int, device: int, said: int | bytes, *, descriptor: int = -1
    ) -> None:
        """Send a call about a size, or with a payload, which has its own size there."""
        size, payload = (said, b"") if isinstance(said, int) else (len(said), said)
        if size < 0:
            raise ValueError("negative size")
        call = worker_messages.BUDGET_CALL.pack(operation, device, size) + payload
        try:
            if descriptor >= 0:
                socket.send_fds(self._socket, [call], [descriptor])
            else:
                self._socket.sendall(call)
        except OSError as error:
            raise HostGoneError(str(error)) from error
