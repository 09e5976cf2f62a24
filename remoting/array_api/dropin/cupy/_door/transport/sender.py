"""Records that wait, and frames to the worker.

Calls do not travel one by one. Their records wait in `Sender.parts` until the batch is full, a
question is asked, or the program pauses (`flusher`). One frame then carries them all.

`Sender.lock` protects everything here. A frame that began to leave is finished before the next
one: bytes of two frames never mix. The lock is held while a frame leaves, and the frame may have
to wait for room in the socket. The worker may wait for room as well, so this side reads meanwhile.

A signal's exception (KeyboardInterrupt) may come at any call. Groups of lines without calls are
therefore marked: such a group runs as a whole or not at all, and what it says about the frame, the
batch and the sequence number stays true together. Locks are taken as `locks` says.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import struct
import threading
from typing import Any

from cupy._door import wire
from cupy._door.errors import DoorError
from cupy._door.locks import AT_ONCE, alone
from cupy._door.transport.connection import WORKER_ENDED, Connection
from cupy._door.transport.link import Link, watch
from cupy._door.transport.receiver import IN_THE_MIDDLE, Receiver, Reply

BATCH_CALLS = 64
#: How long a wait for room in the socket, the worker's frames or another thread lasts at most.
POLL_S = 0.05
#: Bytes from which a frame that TLS encrypts is worth a thread of its own.
ASIDE_MIN = 1 << 20
SWEEP_MAX = 1024  # handles of one part of a batch
_INTERRUPTED = "a transfer to the GPU server was interrupted half-way"
_FREE = wire.FREE_RECORD.pack
_FREES = itertools.repeat(wire.FREE)


class Sender:
    """The sending half of a session."""

    def __init__(self, connection: Connection, receiver: Receiver) -> None:
        self.lock = threading.RLock()
        #: Records that wait, in the program's order, and bytes of those that are no short calls.
        self.parts: list[bytes] = []
        self.size = 0
        #: The number of the call that fills the batch.
        self.full_at = BATCH_CALLS
        #: Handles that the program dropped; destructors append to it without a lock.
        self.garbage: list[int] = []
        #: The number of the latest call or question; the worker counts the same.
        self.sequence = 0
        #: Calls were sent, and no answer has covered them yet.
        self.unfinished = False
        #: When the latest group began that is open, for whose end the flusher waits; 0.0 if none.
        self.held_since = 0.0
        #: Frames that were begun.
        self.flushes = 0
        self._connection = connection
        self._link = connection.link
        self._receiver = receiver
        self._sending = False
        # Of the frame that leaves at this moment, or that an interrupt stopped half-way.
        self._unsent: list[memoryview] = []
        self._stop = False  # asks the thread that sends to leave it at that for now
        self._aside: list[bool] | None = None  # empty while such a thread runs

    def after_fork(self) -> None:
        """Make a lock that no thread of the parent holds."""
        self.lock = threading.RLock()

    def use(self, link: Link) -> None:
        """Send by another connection; the caller holds the lock, and no frame is unfinished."""
        assert not self._unsent
        self._link = link

    @property
    def interrupted(self) -> bool:
        """Whether a frame has left in part, and its rest waits."""
        return bool(self._unsent)

    # --- the batch ------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Queue a record for each handle that the program dropped."""
        while self.garbage:
            handles = self.garbage[:SWEEP_MAX]
            # They leave the list last: to free a handle twice is harmless, to forget one is not.
            self.parts.append(b"".join(map(_FREE, _FREES, handles)))
            self.size += wire.FREE_RECORD.size * len(handles)
            del self.garbage[: len(handles)]
            if self.size >= wire.MAX_BATCH and not self._is_busy():
                self._send_parts()

    def flush(self) -> None:
        """Send the queued records."""
        if self._flush():
            self.listen()

    @alone
    def _flush(self) -> bool:
        if self._is_busy() or not self.parts:
            return False
        self.sweep()
        self._send_parts()
        return True

    def weigh(self, size: int) -> None:
        """Count the bytes of a record; if the batch has enough of them, the next call fills it."""
        self.size += size
        if self.size >= wire.MAX_BATCH:
            self.full_at = 0

    def _is_busy(self) -> bool:
        """Return whether the current code has interrupted the sending or reading of a frame."""
        return self._sending or self._receiver.in_the_middle()

    def _send_parts(self) -> None:
        self.transmit(wire.CALLS, b"", None, batch=True)

    def listen(self, *, agent: bool = False) -> None:
        """Read everything that has arrived, without waiting, and answer a request for garbage."""
        self._receiver.listen(agent=agent)
        if self._receiver.collect_requested and not self._sending:
            self._answer_collect()

    def await_reply(self, reply: Reply) -> None:
        """Wait until a reply is there; answer requests for garbage meanwhile."""
        while not reply.done:
            if self._receiver.wait(reply) and self._receiver.collect_requested:
                self._answer_collect()

    def _answer_collect(self) -> None:
        """Drop this program's garbage, because the worker has no memory left, and say so."""
        self._receiver.collect_requested = False
        gc.collect()
        self._send_collected()

    @alone
    def _send_collected(self) -> None:
        if self._sending:
            self._receiver.collect_requested = True
            return
        handles = self.garbage[: wire.MAX_BODY // 8]
        del self.garbage[: len(handles)]
        body = struct.pack(f"<{len(handles)}Q", *handles)
        # Calls queued here may still use what is freed, so they go first.
        self.flush()
        self.transmit(wire.COLLECTED, body, None)

    # --- one frame ------------------------------------------------------------------------------

    def transmit(
        self,
        kind: int,
        body: bytes,
        bulk: memoryview | None,
        *,
        batch: bool = False,
        reply: Reply | None = None,
    ) -> None:
        """Send one frame whole; read the worker's frames meanwhile.

        A signal's exception, such as KeyboardInterrupt, leaves the frame either unsent as a
        whole, or to be continued before the next one. With ``batch`` the queued records come first
        in it, before ``body``. ``reply`` is where the answer to its question goes.
        """
        if self._connection.failure is not None:
            raise self._connection.failure
        if self._is_busy():
            # Only a handler of a signal, or a destructor of garbage, that has interrupted it.
            raise DoorError(IN_THE_MIDDLE)
        if self._unsent:
            self._send()
        size = bulk.nbytes if bulk is not None else 0
        request = 0 if reply is None else reply.request
        while True:
            began, parts = self.flushes, (*self.parts,) if batch else ()
            queued, whole = len(parts), b"".join((*parts, body))
            header = wire.HEADER.pack(len(whole), kind, 0, 0, request, queued, size)
            frame = [memoryview(header + whole)]
            if bulk is not None and size:
                frame.append(bulk)
            # A handler of a signal, or a destructor of garbage, may have sent the batch meanwhile.
            if self.flushes == began:
                break
        # No calls in these lines, so no signal's exception comes between them.
        self.flushes += 1
        self._unsent = frame
        if queued:
            self.unfinished = True
            del self.parts[:queued]
            self.size = 0
        if reply is not None:
            self._receiver.replies[request] = reply
            self.sequence += 1
            reply.sequence = self.sequence
        self.full_at = self.sequence + BATCH_CALLS
        self._send()

    def _send(self) -> None:
        """Send the bytes in ``_unsent``."""
        aside = (
            self._link.tls is not None
            and sum(part.nbytes for part in self._unsent) >= ASIDE_MIN
            and threading.current_thread() is threading.main_thread()
        )
        self._sending = True
        try:
            if aside:
                self._send_aside()
            else:
                self._send_here()
        except ConnectionError as error:
            with contextlib.suppress(Exception):
                self.listen()  # the worker may have said why before it went
            raise self._connection.cut_off(WORKER_ENDED) from error
        except OSError as error:
            reason = f"the connection to the GPU server broke ({error})"
            raise self._connection.cut_off(reason) from error
        finally:
            self._sending = False
            if (self._stop or self._aside == []) and self._connection.failure is None:
                self._connection.lose(_INTERRUPTED)

    def _send_here(self) -> None:
        sent = self._link.sent
        while self._unsent and not self._stop:
            tls = self._link.tls
            if tls is not None and tls.writing is not None and not tls.settle_write():
                raise self._connection.lose(_INTERRUPTED)
            if not sent and not self._link.send_some(self._unsent):
                self._wait_to_send()
                continue
            left, rest = sent[0], list(self._unsent)
            while rest and left >= rest[0].nbytes:
                left -= rest.pop(0).nbytes
            if left:
                rest[0] = rest[0][left:]
            # No calls in these lines, so no signal's exception comes between them.
            self._unsent = rest
            del sent[0]

    def _send_aside(self) -> None:
        """Send from another thread, for signals' exceptions are raised in the main thread only.

        One in the middle of OpenSSL's work would hide how much it has taken.
        """
        failures: list[BaseException] = []
        # Thread.join takes a thread for dead once it was interrupted, and an Event may break.
        ended: list[bool] = []
        waking = _thread.allocate_lock()
        waking.acquire()

        def send() -> None:
            try:
                self._send_here()
            except BaseException as error:  # noqa: BLE001 - raised below
                failures.append(error)
            finally:
                ended.append(True)
                waking.release()

        begun: list[int] = []
        self._aside = ended
        try:
            # One call from C: an interrupt comes before the thread has begun, or when it is known.
            begun.extend(map(_thread.start_new_thread, (send,), ((),)))
            while not ended:
                waking.acquire(timeout=POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised, or a later one
            raise self._stop_aside(error, begun, ended, waking) from None
        if failures:
            raise failures[0]

    def _stop_aside(
        self, error: BaseException, begun: list[int], ended: list[bool], waking: _thread.LockType
    ) -> BaseException:
        """Wait for the piece of 1 MiB that leaves at this moment; return the latest interrupt."""
        while begun and not ended:
            try:
                self._stop = True
                waking.acquire(timeout=POLL_S)
            except BaseException as later:  # noqa: BLE001 - raised in its place
                error = later
        self._stop, self._aside = False, None
        return error

    def _wait_to_send(self) -> None:
        """Wait until the socket takes more, or the worker has sent; read in the second case."""
        connection = self._connection
        (reading,) = map(self._receiver.reading.acquire, AT_ONCE)  # no signal before `try`
        try:
            readers: list[Any] = [self._link.socket] if reading else []
            if connection.agent is not None:
                readers.append(connection.agent.socket)
            if connection.agent_is_in(watch(readers, [self._link.socket])(POLL_S)):
                connection.hear_agent()
            if reading:
                self._receiver.pump()
        finally:
            if reading:
                self._receiver.reading.release()
