"""The connection of a session as its door sees it: blocking, full duplex, plain or TLS.

The stream finds out that the other end is gone while bytes wait to be sent. A worker may wait long
before another one reads its bytes, because that one computes first. The kernel would wait 15
minutes for a machine that is gone. ``TCP_USER_TIMEOUT`` also ends a connection whose other end is
alive and does not read (since Linux 5.11). But a living kernel acknowledges every packet, also the
probes of a full connection, whatever its programs do. So a connection without acknowledgements is
lost.
"""

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpupool.remoting.transport.connections import tcp_info
from gpupool.remoting.transport.tally import Tally

LOOK_EVERY_S = 0.5
PROBE_COUNT_MIN = 2
"""A single probe without an answer proves nothing: it may be lost, and answers are rationed."""

_INFO = struct.Struct("=3x B 4x 4x 4x 4x 4x I 4x 4x 4x 4x 4x 4x 4x I")


@dataclass(frozen=True, slots=True)
class Sent:
    """The state of the bytes that a connection has sent."""

    unanswered: bool  # data is, or several probes are
    heard_ago_s: float  # since the last acknowledgement of any bytes


class PeerLiveness:
    """Judges one wait."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._since: float | None = None

    def is_lost(self, sent: Sent, now: float) -> bool:
        """Return whether nothing has been answered for too long; ask at least once a second."""
        if not sent.unanswered:
            self._since = None
            return False
        # The connection may have been at rest for hours before this wait began.
        since = now if self._since is None else self._since
        self._since = max(since, now - sent.heard_ago_s)
        return now - self._since >= self._lost_after_s


def wait_writable(sock: socket.socket, lost_after_s: float) -> None:
    """Wait until more can be sent.

    A full connection is probed less and less often, every two minutes in the end, so that the loss
    of one that has been full for a time T is noticed after 3 T more at most.

    Raises:
        TimeoutError: when the other end is silent for ``lost_after_s``.
    """
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    silence = PeerLiveness(lost_after_s)
    while not poll.poll(LOOK_EVERY_S * 1000):
        sent = _sent(sock)
        if sent is not None and silence.is_lost(sent, time.monotonic()):
            raise TimeoutError(f"no answer for {lost_after_s:.3g} s")


def _sent(sock: socket.socket) -> Sent | None:
    """Ask the kernel; None where it does not say."""
    found = tcp_info(sock, _INFO)
    if found is None:
        return None
    probes, unacknowledged, heard_ago_ms = found
    return Sent(unacknowledged > 0 or probes >= PROBE_COUNT_MIN, heard_ago_ms / 1000)


IOV_COUNT_MAX = 512
"""Buffers handed to one ``sendmsg``; Linux accepts 1024 (IOV_MAX)."""

COALESCE_SIZE_MAX = 64 * 1024
"""Buffers smaller than this are joined before TLS encrypts them: four full TLS records."""

SEND_SIZE_MAX = 1 << 20
"""Bytes per SSL_write: large enough to amortise the call, short enough to let reads in between."""

RECORD_SIZE = 16 * 1024
"""Bytes of a full TLS record."""

SPIN_S, SPIN_LONG_S = 0.00005, 0.0005
"""How long the next message is awaited awake after one was sent, where sending is mostly
answering: a program that waits for each answer asks again soon, and sleeping and waking would cost
it as much as the rest of the round trip. Longer where there are processors for both sides and
others."""

PROCESSORS_MIN = 8

SPIN_PAUSE = 32
"""Messages after a vain wait of this kind for which there is none."""

Buffer = bytes | bytearray | memoryview


class SessionStream(Protocol):
    """The stream of a session for a door. One thread may receive while others send."""

    transport: str
    tally: Tally
    #: Totals for telemetry. The door adds to ``calls``; the stream counts the bytes.
    calls: int
    bytes_in: int
    bytes_out: int
    #: Whether a thread waits for the client to send, or to receive.
    receiving: bool
    sending: bool

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 means that the client has closed."""
        ...

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send all bytes of all buffers, in order.

        Raises:
            ConnectionError: when the client has gone.
        """
        ...

    def send_descriptor(self, data: bytes, descriptor: int) -> bool:
        """Send ``data`` with a descriptor; False, and nothing sent, where that is impossible."""
        ...

    def hang_up(self) -> None:
        """End the connection for threads that are in the middle of using it; close it later."""
        ...

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        ...


def byte_view(buffer: Buffer) -> memoryview:
    """Return a C-contiguous buffer as a flat view of its bytes."""
    view = memoryview(buffer)
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


class Spinner:
    """Decides when to wait awake: after an answer, while that was worth it lately."""

    def __init__(self) -> None:
        self.answered = False
        processors = os.cpu_count() or 1
        # With one processor, the other side could not do anything meanwhile.
        self._pause = 0 if processors > 1 else 1 << 62
        self._long_s = SPIN_LONG_S if processors >= PROCESSORS_MIN else SPIN_S

    def until(self) -> float:
        """Return the time at which to stop spinning; 0.0 for no spinning."""
        awake_s = self._awake_s()
        return time.perf_counter() + awake_s if awake_s else 0.0

    def awake_ns(self) -> int:
        """Return for how many nanoseconds to wait awake, 0 if not at all."""
        return int(self._awake_s() * 1e9)

    def _awake_s(self) -> float:
        if not self.answered:
            return 0.0
        self.answered = False
        if self._pause:
            self._pause -= 1
            return 0.0
        return self._long_s

    def in_vain(self) -> None:
        """Take note that nothing came in that time."""
        self._pause = SPIN_PAUSE


class PlainStream:
    """A TCP or Unix connection without encryption."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        if sock.family != socket.AF_UNIX:
            # Or the end of a message waits for an acknowledgement, which the client delays.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = "unix" if sock.family == socket.AF_UNIX else "tcp"
        self.tally = Tally()
        self.calls = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.receiving = False
        self.sending = False
        self.lost_after_s = 0.0  # without an acknowledgement of sent bytes; 0: the kernel decides
        self.descriptor = sock.fileno()
        self._socket = sock
        self._send_lock = threading.Lock()
        self._spinner = Spinner()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 means that the client has closed."""
        self.receiving = True
        try:
            count = self._receive_awake(buffer) if self._spinner.answered else None
            if count is None:
                count = self._socket.recv_into(buffer)
        except ConnectionError:
            return 0
        self.receiving = False
        self.bytes_in += count
        return count

    def _receive_awake(self, buffer: memoryview) -> int | None:
        until = self._spinner.until()
        if not until:
            return None
        while True:
            try:
                return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() >= until:
                    self._spinner.in_vain()
                    return None

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send all bytes of all buffers, in order."""
        views = [view for view in map(byte_view, buffers) if len(view)]
        self._spinner.answered = True
        with self._send_lock:
            first = 0
            self.sending = True
            while first < len(views):
                sent = self._send_some(views[first : first + IOV_COUNT_MAX])
                self.bytes_out += sent
                while first < len(views) and sent >= len(views[first]):
                    sent -= len(views[first])
                    first += 1
                if sent:
                    views[first] = views[first][sent:]
            self.sending = False

    def _send_some(self, views: list[memoryview]) -> int:
        if not self.lost_after_s:
            return self._socket.sendmsg(views)
        while True:
            try:
                return self._socket.sendmsg(views, [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                wait_writable(self._socket, self.lost_after_s)

    def send_descriptor(self, data: bytes, descriptor: int) -> bool:
        """Send ``data`` with a descriptor, over a Unix socket only."""
        if self._socket.family != socket.AF_UNIX:
            return False
        with self._send_lock:
            sent = socket.send_fds(self._socket, [data], [descriptor])
            self.bytes_out += sent
        self.send_buffers([data[sent:]])
        return True

    def hang_up(self) -> None:
        """End the connection for threads that are in the middle of using it."""
        _hang_up(self._socket)

    def close(self) -> None:
        """Close the connection."""
        _hang_up(self._socket)
        self._socket.close()


class EncryptedStream:
    """Common part of TLS connections, independent of the encrypting code."""

    def __init__(self, sock: socket.socket) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = "tls"
        self.tally = Tally()
        self.calls = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.receiving = False
        self.sending = False
        self.descriptor = sock.fileno()
        self._socket = sock
        # Held for a whole message: an SSL_write that had to wait must be repeated with the same
        # bytes before any other.
        self._send_lock = threading.Lock()
        self._spinner = Spinner()

    def _send_all(self, view: memoryview) -> None:
        """Encrypt and send some bytes, at least one; raises ConnectionError."""
        raise NotImplementedError  # Python encrypts in one subclass, C in the other

    def send_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Send all bytes of all buffers, in order."""
        small: list[memoryview] = []
        size = 0
        self._spinner.answered = True
        with self._send_lock:
            for view in map(byte_view, buffers):
                if size + len(view) > COALESCE_SIZE_MAX:
                    self._send_small(small)
                    size = 0
                if len(view) >= COALESCE_SIZE_MAX:
                    self._send_all(view)
                else:
                    small.append(view)
                    size += len(view)
            self._send_small(small)

    def send_descriptor(self, data: bytes, descriptor: int) -> bool:
        """Send nothing: TLS carries bytes only."""
        return False

    def hang_up(self) -> None:
        """End the connection for threads that are in the middle of using it."""
        _hang_up(self._socket)

    def close(self) -> None:
        """Close the connection; the client waits for the kernel's FIN."""
        _hang_up(self._socket)
        self._socket.close()

    def _send_small(self, views: list[memoryview]) -> None:
        if len(views) == 1:
            self._send_all(views[0])
        elif views:
            self._send_all(memoryview(b"".join(views)))
        views.clear()


class TlsStream(EncryptedStream):
    """An established TLS connection, encrypted by Python's ``ssl``.

    OpenSSL allows one call at a time on a connection, and a blocking SSL_read would keep every
    writer out. So each call is made under a lock on a non-blocking socket, and waiting for the
    socket happens outside of the lock.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        super().__init__(sock)
        self.lost_after_s = 0.0  # without an acknowledgement of sent bytes; 0: the kernel decides
        self._tls = sock
        self._ssl_lock = threading.Lock()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 means that the client has closed.

        One SSL_read returns at most one record of 16 KiB, so reads go on while records are there.
        """
        view, count = byte_view(buffer), 0
        while count < len(view):
            try:
                with self._ssl_lock:
                    received = self._tls.recv_into(view[count:])
            except ssl.SSLWantReadError:
                if count:
                    break
                self.receiving = True
                self._wait(select.POLLIN, awake=self._spinner.answered)
                self.receiving = False
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
                continue
            except (ssl.SSLError, ConnectionError):
                received = 0
            if not received:
                break
            count += received
            if received < RECORD_SIZE and not self._tls.pending():
                break  # the end of a message, mostly; asking for more costs an exception
        self.bytes_in += count
        return count

    def _send_all(self, view: memoryview) -> None:
        sent = 0
        while sent < len(view):
            try:
                with self._ssl_lock:
                    count = self._socket.send(view[sent : sent + SEND_SIZE_MAX])
            except ssl.SSLWantWriteError:
                self.sending = True
                if self.lost_after_s:
                    wait_writable(self._socket, self.lost_after_s)
                else:
                    self._wait(select.POLLOUT)
                self.sending = False
                continue
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
                continue
            except ssl.SSLError as error:
                # Such as SSLEOFError: to a door, one kind of broken connection is enough.
                raise BrokenPipeError(str(error)) from error
            sent += count
            self.bytes_out += count

    def _wait(self, events: int, *, awake: bool = False) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        until = self._spinner.until() if awake else 0.0
        while time.perf_counter() < until:
            if poll.poll(0):
                return
        if until:
            self._spinner.in_vain()
        poll.poll()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # Not connected any more: closing is all that is left.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
