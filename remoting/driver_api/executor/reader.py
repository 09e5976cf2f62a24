"""The reader of a client's frames, which are read for execution or ahead of it.

The executing thread can block in a call of the driver, for example when a stream's queue is full.
The record that ends the wait may be in a later frame (``out_of_band.py``). So another thread reads
ahead and finds it. The frames that it has read are executed later, in their order.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.schema.layout import FRAME, HEADER
from gpupool.remoting.transport.tally import Tally

FRAME_MAGIC = 0x47504331
STRIPE_MAGIC = 0x47504332
"""Magic number of a frame with its bulk bytes on the lanes."""
BODY_SIZE_MAX = 1 << 20
BULK_SIZE_MAX = 1 << 40

AHEAD_SIZE_MAX = 512 << 20
"""Most bytes that are read ahead. The client sends up to 192 MiB beyond a host function that waits
(``shim/runtime/host.c``), and changes in up to 256 MiB of mapped memory."""

CHUNK_SIZE = 1 << 20


class Stream(Protocol):
    """A connected, authenticated byte stream; blocking."""

    calls: int
    """Number of executed records, for monitoring."""
    tally: Tally

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read at least one byte; 0 at the end of the stream."""
        ...

    def send_buffers(self, buffers: list[bytes | memoryview], /) -> None:
        """Send everything."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class Stripes(Protocol):
    """The further connections on which large uploads come; see ``lanes.py``."""

    def receive(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` with a stripe's bytes from ``offset`` on; 0 begins the next stripe."""
        ...

    def end(self) -> None:
        """End all of them, also for threads that use them."""
        ...


class ClosedError(Exception):
    """The client has closed the connection."""


class Finder(Protocol):
    """A finder, which examines records before they are executed."""

    def begin(self) -> None:
        """Begin again with the present frame."""
        ...

    def record(
        self, op: int, body: memoryview, frame: int, bulk: Callable[[], bytes] | None
    ) -> bool:
        """Look at a record; False: at nothing behind it.

        Args:
            op: which record it is.
            body: its words.
            frame: the number of its frame.
            bulk: gives the bytes behind the frame, with the last record of one that has any; None
                as well if the executor has taken some of them.
        """
        ...


class Reader:
    """Reads frames with few system calls, and bulk bytes without a copy.

    One thread executes: it alone calls ``next_frame`` and ``into``. Another one may ``read_ahead``,
    once ``share`` was called; until then nothing here takes a lock.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.buffer = bytearray(BODY_SIZE_MAX + (1 << 18))
        self.view = memoryview(self.buffer)
        self._start: int = 0
        self._end: int = 0
        self.frame = 0
        """The number of the frame at hand."""
        self._body = (0, 0, 0)  # of that frame: where it lies, and the bytes behind it
        self._left = 0  # of those bytes
        self.lanes: Stripes | None = None
        self._striped = -1  # bytes that were read of those that come by the lanes; -1: none do
        # For two threads:
        self._changed = threading.Condition(threading.Lock())
        self._shared = False
        self._steps = 0  # of the thread that executes
        self.receiving = False
        """The thread that executes waits for the stream."""
        self._reading_ahead = False
        self._ahead = bytearray()
        self._used = 0  # bytes at its start that are in the buffer, or executed
        self._ended = False

    # --- for the thread that executes -------------------------------------------------------------

    def next_frame(self) -> tuple[int, int, int]:
        """Return where the body of the next frame starts and ends, and how many bytes follow it.

        Raises:
            ClosedError: when the client has closed.
            RemoteProtocolError: when it sends something else.
        """
        if self._shared:
            with self._changed:
                return self._next_frame()
        return self._next_frame()

    def into(self, target: memoryview) -> None:
        """Fill ``target`` with bytes behind the frame, mostly straight from the stream."""
        if self._shared:
            with self._changed:
                self._into(target)
        else:
            self._into(target)

    def has_more(self) -> bool:
        """Say whether something lies behind the frame at hand."""
        return self._start != self._end or len(self._ahead) != self._used

    def share(self) -> None:
        """Let another thread read ahead; called by the one that executes."""
        self._shared = True

    def _next_frame(self) -> tuple[int, int, int]:
        at = self._locate(FRAME.size)
        magic, size, bulk = FRAME.unpack_from(self.buffer, at)
        if size > BODY_SIZE_MAX or bulk > BULK_SIZE_MAX or not self._is_frame(magic, bulk):
            raise RemoteProtocolError("malformed frame")
        start = self._locate(size)
        self.frame += 1
        self._striped = 0 if magic == STRIPE_MAGIC else -1
        self._left = on_line = bulk if self._striped < 0 else 0
        self._body = (start, start + size, on_line)
        return start, start + size, bulk

    def _is_frame(self, magic: int, bulk: int) -> bool:
        if magic == STRIPE_MAGIC:
            return bulk > 0 and self.lanes is not None
        return magic == FRAME_MAGIC

    def _locate(self, count: int) -> int:
        """Return where ``count`` bytes lie in ``buffer``; they stay until the next call."""
        self._steps += 1
        if self._start == self._end:
            self._start = self._end = 0
        if count > len(self.buffer) - self._start:
            have = self._end - self._start
            self.buffer[:have] = bytes(self.view[self._start : self._end])
            self._start, self._end = 0, have
        while self._end - self._start < count:
            self._end += self._receive(self.view[self._end :])
        found = self._start
        self._start += count
        return found

    def _into(self, target: memoryview) -> None:
        self._steps += 1
        if self._striped >= 0 and self.lanes is not None:
            self.lanes.receive(target, self._striped)
            self._striped += len(target)
            self._stream.tally.lane_bytes_in += len(target)
            return
        have = min(len(target), self._end - self._start)
        target[:have] = self.view[self._start : self._start + have]
        self._start += have
        while have < len(target):
            have += self._receive(target[have:])
        self._left -= len(target)

    def _receive(self, target: memoryview) -> int:
        count = self._receive_shared(target) if self._shared else self._stream.recv_into(target)
        if not count:
            raise ClosedError
        return count

    def _receive_shared(self, target: memoryview) -> int:
        while True:
            count = min(len(target), len(self._ahead) - self._used)
            if count:
                target[:count] = self._ahead[self._used : self._used + count]
                self._used += count
                if self._used == len(self._ahead) and not self._reading_ahead:
                    self._ahead, self._used = bytearray(), 0
                return count
            if self._ended:
                return 0
            if not self._reading_ahead:
                break
            self._changed.wait()
        self.receiving = True
        self._changed.release()
        try:
            return self._stream.recv_into(target)
        finally:
            self._changed.acquire()
            self.receiving = False

    # --- for another thread -----------------------------------------------------------------------

    def steps(self) -> int:
        """Return a number that stays the same while the thread that executes stands still."""
        return self._steps

    def read_ahead(self, steps: int, finder: Finder) -> bool:
        """Show a finder the unread records, while the other thread stands still at ``steps``.

        Blocks until it goes on, and then until something more has come.

        Returns:
            False when nothing more comes.
        """
        with self._changed:
            full = len(self._ahead) - self._used > AHEAD_SIZE_MAX
            if self._steps != steps or self.receiving or self._ended or full:
                return not self._ended
            # All that is unread lies in one piece.
            rest = self.view[self._start : self._end]
            self._ahead = bytearray().join((rest, memoryview(self._ahead)[self._used :]))
            self._used, self._start = 0, self._end
            self._reading_ahead = True
            try:
                return self._show(steps, finder)
            finally:
                self._reading_ahead = False
                self._changed.notify_all()

    def _show(self, steps: int, finder: Finder) -> bool:
        chunk = memoryview(bytearray(CHUNK_SIZE))
        shown = self._shown(finder)
        useful = True
        while self._steps == steps:
            useful = useful and next(shown, False)
            if len(self._ahead) > AHEAD_SIZE_MAX:
                return True
            self._changed.release()
            try:
                count = self._stream.recv_into(chunk)
            except OSError:
                count = 0  # it broke, which the executor takes for an end
            finally:
                self._changed.acquire()
            self._ended = not count
            self._ahead += chunk[:count]
            self._changed.notify_all()
            if self._ended:
                return False
        return True

    def _piece(self, at: int, size: int) -> bytes:
        return bytes(memoryview(self._ahead)[at : at + size])

    def _shown(self, finder: Finder) -> Iterator[bool]:
        """Show all that is there; yields whenever there is no more of it yet."""
        finder.begin()
        frame, at = self.frame, 0
        start, end, bulk = self._body
        body = bytes(self.view[start:end])
        while True:
            whole = frame > self.frame or self._left == bulk
            for op, content, last in records_of(body):
                behind: Callable[[], bytes] | None = None
                if last and bulk and whole:
                    while len(self._ahead) < at + bulk:
                        yield True
                    behind = partial(self._piece, at, bulk)
                if not finder.record(op, content, frame, behind):
                    return
            at += bulk if frame > self.frame else self._left
            while len(self._ahead) < at + FRAME.size:
                yield True
            magic, size, bulk = FRAME.unpack_from(self._ahead, at)
            if size > BODY_SIZE_MAX or bulk > BULK_SIZE_MAX or not self._is_frame(magic, bulk):
                return  # the executor will say so
            bulk = 0 if magic == STRIPE_MAGIC else bulk
            at += FRAME.size
            while len(self._ahead) < at + size:
                yield True
            body = bytes(self._ahead[at : at + size])
            at += size
            frame += 1


def records_of(body: bytes) -> Iterator[tuple[int, memoryview, bool]]:
    """Return the records of a frame, up to a malformed one: each with whether it is the last."""
    view, at = memoryview(body), 0
    while len(body) - at >= HEADER.size:
        op, _flags, size = HEADER.unpack_from(body, at)
        if size < HEADER.size or size > len(body) - at:
            return
        yield op, view[at + HEADER.size : at + size], at + size == len(body)
        at += size
