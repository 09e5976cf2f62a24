"""Reads and writes of a TLS connection, of which a signal's exception hides none.

Python looks for signals after each call of OpenSSL, so that KeyboardInterrupt can take the place of
a count: the bytes have left, or have come, and nobody knows how many. The kernel does. It counts
the bytes of a connection (TCP_INFO of Linux), and a record of TLS 1.3 is 22 bytes longer than its
content: 5 of a header, one for its type and 16 that authenticate it (RFC 8446, 5.2), where nothing
is padded. OpenSSL takes one record at a time out of the kernel. So what was counted before says how
much a call has moved that an exception ended.

No garbage is collected meanwhile. A destructor that computes waits for the lock of the sender, and
the thread that has it may wait for the one that is held here.

Groups of lines without calls run as a whole or not at all (see `sender`).
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable

from cupy._door.locks import WAIT

RECORD_MAX = 1 << 14
"""Bytes of content of one record (RFC 8446, 5.1); OpenSSL fills each but the last of a write."""

OVERHEAD = 22
"""Bytes of a record beside its content, as above."""

_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
"""Where tcp_info has tcpi_bytes_acked and tcpi_bytes_received (linux/tcp.h)."""

_TRIES = 100  # of a look at the counters during which none moved
_CHECK_EACH = 256  # reads, after which the kernel's count and this side's are compared
_PROBE = 16
_UNTOUCHED = secrets.token_bytes(_PROBE)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError)


if sys.platform == "linux":
    import fcntl
    import termios

    def _counters(connection: socket.socket) -> tuple[int, int]:
        """Return the bytes that the other end has acknowledged, and those that have come."""
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return _COUNTERS.unpack_from(info, _COUNTERS_AT)

    def _queued(connection: socket.socket, request: int) -> int:
        return struct.unpack("i", fcntl.ioctl(connection, request, bytes(4)))[0]

    def _moved(connection: socket.socket) -> tuple[int, int] | None:
        for _ in range(_TRIES):
            before = _counters(connection)
            unread = _queued(connection, termios.FIONREAD)
            unacknowledged = _queued(connection, termios.TIOCOUTQ)
            if before == _counters(connection):
                return before[1] - unread, before[0] + unacknowledged
        return None
else:

    def _moved(connection: socket.socket) -> tuple[int, int] | None:
        return None


class _Collection:
    """Whether garbage is collected, and how many calls of all connections keep it from that."""

    kept_off = 0
    enabled = True


def _enable_in_child() -> None:
    """Let a child process collect garbage, even if a parent's thread was in a call."""
    if _Collection.kept_off:
        _Collection.kept_off = 0
        if _Collection.enabled:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_enable_in_child)


class TlsStream:
    """Both directions of a TLS connection; counts of moved bytes go into the lists given."""

    def __init__(self, connection: ssl.SSLSocket, counts: list[int], sent: list[int]) -> None:
        self._socket = connection
        self._counts = counts
        self._sent = sent
        # OpenSSL takes one call at a time on a connection, and older Pythons let two through: what
        # one thread hears as "nothing there yet", the other one then hears as a broken connection.
        self._lock = threading.Lock()
        #: Of a call that has begun and is not booked: where it reads to; what it writes.
        self.reading: memoryview | None = None
        self.writing: memoryview | None = None
        self._wire = 0  # the bytes of the latest write on the wire
        self._left = connection.pending()  # of the record that was read last
        measured = self._measure()
        self._measures = measured is not None
        self._taken, self._written = measured or (0, 0)  # on the wire, with whole records and calls
        self._reads = _CHECK_EACH - 1  # so that the first one is compared

    def _measure(self) -> tuple[int, int] | None:
        """Return the bytes that came out of the kernel and went into it; None if it cannot say."""
        try:
            return _moved(self._socket)
        except (OSError, struct.error):
            return None

    def _alone(self, step: Callable[[memoryview], bool], piece: memoryview) -> bool:
        """Run `step` alone on the connection, without garbage collection; return its result."""
        held: list[bool] = []
        enabled = _Collection.enabled if _Collection.kept_off else gc.isenabled()
        try:
            # No calls in these lines, so no other thread runs between them.
            _Collection.enabled = enabled
            _Collection.kept_off += 1
            gc.disable()
            held += map(self._lock.acquire, WAIT)
            return step(piece)
        finally:
            try:
                if held:
                    self._lock.release()
            finally:
                _Collection.kept_off -= 1
                if enabled and not _Collection.kept_off:
                    gc.enable()

    # --- reading --------------------------------------------------------------------------------

    def read(self, target: memoryview) -> bool:
        """Read the bytes that are there, of one record; False if nothing is.

        The count goes into the list, 0 for a closed end. Call `settle_read` first.
        """
        return self._alone(self._read, target)

    def _read(self, target: memoryview) -> bool:
        room = target.nbytes
        try:
            if not self._left:
                target[:_PROBE] = _UNTOUCHED if room >= _PROBE else _UNTOUCHED[:room]
            reading = map(self._socket.recv_into, (target,))
            self.reading = target
            self._counts.extend(reading)
            rest = self._socket.pending() if self._counts[-1] == room else 0
            # No calls in these lines, so no signal's exception comes between them.
            if not self._left:
                self._taken += self._counts[-1] + rest + OVERHEAD
            self._left = rest
            self.reading = None
            self._reads += 1
            if self._reads == _CHECK_EACH:
                self._check()
        except _NOT_NOW:
            self.reading = None
            return False
        except OSError:  # of TLS too
            self._counts.append(0)
            self.reading = None
        return True

    def _check(self) -> None:
        """Measure no more where a record had other bytes than its content; none of ours has."""
        self._reads = 0
        measured = self._measure()
        if self._counts[-1] and (measured is None or measured[0] != self._taken):
            self._measures = False

    def settle_read(self) -> bool:
        """Count the bytes of a read that a signal's exception ended; False if not known."""
        target = self.reading
        return target is None or self._alone(self._settle_read, target)

    def _settle_read(self, target: memoryview) -> bool:
        counts, rest = self._counts, self._socket.pending()
        count = counts[-1] if counts else self._moved_in(target, rest)
        if count is None:
            return False
        # No calls in these lines, so no signal's exception comes between them.
        if count and not counts:
            self._counts += (count,)
        if count and not self._left:
            self._taken += count + rest + OVERHEAD
        self._left = rest
        self.reading = None
        return True

    def _moved_in(self, target: memoryview, rest: int) -> int | None:
        """Return how many bytes a read put into ``target``, none of which were counted."""
        if self._left:
            return self._left - rest
        probe = bytes(target[:_PROBE])
        touched = probe != _UNTOUCHED[: len(probe)]
        if not touched and len(probe) == _PROBE:
            return 0  # a part of a record may have come
        measured = self._measure() if self._measures else None
        if measured is None:
            return None
        if measured[0] == self._taken:
            return 0
        count = measured[0] - self._taken - OVERHEAD - rest
        # Untouched, so few bytes may be those of before, and a part of a record has come, or not.
        return count if touched and 0 < count <= target.nbytes else None

    # --- writing --------------------------------------------------------------------------------

    def write(self, piece: memoryview) -> bool:
        """Write these bytes, all or none, and put their count into the list; False if none fits.

        One that was refused must be written again with the same bytes, from which OpenSSL goes on.
        Call `settle_write` first.

        Raises:
            OSError: the connection is gone.
        """
        return self._alone(self._write, piece)

    def _write(self, piece: memoryview) -> bool:
        wire = piece.nbytes + OVERHEAD * -(-piece.nbytes // RECORD_MAX)
        try:
            writing = map(self._socket.send, (piece,))
            self._wire = wire
            self.writing = piece
            self._sent.extend(writing)
            # No calls in these lines, so no signal's exception comes between them.
            self._written += wire
            self.writing = None
        except _NOT_NOW:
            self.writing = None
            return False
        return True

    def settle_write(self) -> bool:
        """Count the bytes of a write that a signal's exception ended; False if not known."""
        piece = self.writing
        return piece is None or self._alone(self._settle_write, piece)

    def _settle_write(self, piece: memoryview) -> bool:
        size, moved = piece.nbytes, self._wire
        if not self._sent:
            measured = self._measure() if self._measures else None
            if measured is None:
                return False
            moved = measured[1] - self._written
            if not 0 <= moved <= self._wire:
                return False
        # No calls in these lines, so no signal's exception comes between them.
        if moved == self._wire:
            if not self._sent:
                self._sent += (size,)
            self._written += moved
        self.writing = None
        return True
