"""Frames from the worker: replies, descriptions of results, errors of earlier calls.

Any thread may read, but one at a time: the thread that holds `Receiver.reading` reads the frames
of all threads, and so may a handler of a signal that comes while it only sleeps. The others wait on
a condition until their own reply is done. Nobody writes to the inbox without that lock. Nothing
here sends: a request of the worker only sets a flag, which the caller answers.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from cupy._door import arrays, cbor, wire
from cupy._door.cuda_errors import exception_named, warning_named
from cupy._door.errors import MALFORMED, DoorError, nonsense
from cupy._door.locks import AT_ONCE
from cupy._door.transport.connection import WORKER_ENDED, Connection
from cupy._door.transport.link import Link, watch

#: How long an answer is awaited awake: sleeping and waking cost about as much.
SPIN_S = 0.00005
#: Waits without spinning after one in which that was in vain: the network is slower than that.
SPIN_PAUSE = 32
WAIT_S = 0.02
"""How long a thread waits for another one that reads: this bounds a wake-up that was lost."""

REST_S = 0.1
"""How long a poll lasts at most: an answer that a handler of a signal has read ends none."""
DEFERRED_MAX = 16
_READ = 1 << 16
IN_THE_MIDDLE = (
    "a signal's handler or a destructor cannot wait for the GPU server at this moment: it has "
    "interrupted a call of cupy; let the handler set a flag, and ask in the program"
)
_INTERRUPTED = "a transfer from the GPU server was interrupted half-way"
#: Bodies of nearly all answers, decoded once; the decoded values are never changed.
_COMMON = {cbor.encode(value): value for value in ({"value": ["w"]}, {"value": None})}

Sink = Callable[[Any, int], memoryview]
"""Gives the memory for the bulk bytes of an answer, from its body and their count."""


class Reply:
    """The answer to one question, and where its bulk bytes go."""

    __slots__ = ("body", "bulk", "done", "first", "request", "sequence", "sink")

    def __init__(self, sink: Sink | None) -> None:
        self.sink = sink
        self.request = self.sequence = 0
        self.first = 0  # of the handles that its results may take
        self.body: Any = None
        self.bulk: memoryview | None = None
        self.done = False


class Receiver:
    """The receiving half of a session."""

    def __init__(self, connection: Connection) -> None:
        #: Questions under way, by the number of the request.
        self.replies: dict[int, Reply] = {}
        #: Arrays that the worker has yet to describe, by handle.
        self.described: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        #: Errors of calls without a waiting thread, each with the number of its call.
        self.deferred: list[tuple[int, BaseException]] = []
        #: Warnings of calls, which the next answer tells.
        self.warned: list[Warning] = []
        #: Calls with a waiting thread, by number, each with the place for its error.
        self.watched: dict[int, list[BaseException]] = {}
        #: The worker is out of memory and waits for this program's garbage.
        self.collect_requested = False
        self.reading = threading.Lock()
        self._connection = connection
        self._link = connection.link
        self._ready: Callable[[float], set[int]] | None = None  # used under `reading` only
        # The thread that has `reading`, and whether it only sleeps: then a handler of a signal,
        # which it runs meanwhile, may read.
        self._reader, self._rests = 0, False
        self._polls = 0  # that this thread has under way: one of its own, and those of handlers
        # Of the threads for which another one reads: each waits for its own lock, which is held.
        # A signal may leave the lock of a Condition held for ever.
        self._waiting: list[Any] = []
        self._inbox = bytearray(wire.MAX_BODY + wire.HEADER.size + _READ)
        self._inbox_view = memoryview(self._inbox)
        self._start = self._end = 0
        self._unparsed = False  # frames may be whole that nobody has handled
        self._bulk: tuple[Reply, memoryview] | None = None
        self._bulk_left = 0
        self._spin_pause = 0 if (os.cpu_count() or 1) > 1 else 1 << 62

    def after_fork(self) -> None:
        """Make locks that no thread of the parent holds."""
        self.reading = threading.Lock()
        self._waiting = []

    def use(self, link: Link) -> None:
        """Read from another connection; nothing is left of the one before. Needs `reading`."""
        assert self._start == self._end and self._bulk is None
        self._link = link
        self._ready = None

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, reply: Reply) -> bool:
        """Wait a moment for a reply; say whether this thread was the one that read."""
        if self._connection.failure is not None:
            raise self._connection.failure
        this_thread = threading.get_ident()
        (reads,) = map(self.reading.acquire, AT_ONCE)
        if reads:
            try:
                self._reader = this_thread
                if not reply.done:
                    self._read_blocking()
            finally:
                self._reader = 0
                self.reading.release()
                self._tell_others()
            return True
        if self._reader == this_thread:  # what runs here has interrupted this thread's own wait
            if self.in_the_middle():
                raise DoorError(IN_THE_MIDDLE)
            try:
                self._rests = False  # what interrupts this reading may not
                if not reply.done:
                    self._read_blocking()
            finally:
                self._rests = True
            self._tell_others()
            return True
        # Another thread reads for all.
        waking = threading.Lock()
        waking.acquire()
        self._waiting.append(waking)
        waking.acquire(timeout=WAIT_S)
        return False

    def in_the_middle(self) -> bool:
        """Say whether this thread has been interrupted while it reads."""
        return self._reader == threading.get_ident() and not self._rests

    def _tell_others(self) -> None:
        if self._waiting:
            # No calls in this line, so each lock is in one list only.
            waiting, self._waiting = self._waiting, []
            for waking in waiting:
                waking.release()

    def listen(self, *, agent: bool = False) -> None:
        """Read everything that has arrived, without waiting."""
        (reads,) = map(self.reading.acquire, AT_ONCE)
        if reads:
            try:
                self._reader = threading.get_ident()
                while self.pump():
                    pass
                if agent and self._connection.agent is not None:
                    self._connection.hear_agent()
            finally:
                self._reader = 0
                self.reading.release()

    def _read_blocking(self) -> None:
        if self._bulk is not None:
            if self._pump_bulk(all_of_it=True):
                return
        elif self.pump() or self._spin():
            return
        ready = self._ready
        if ready is None or self._polls:  # a poller takes one call at a time
            agent = self._connection.agent
            sockets: list[Any] = [self._link.socket, *([] if agent is None else [agent.socket])]
            ready = watch(sockets, [])
            if not self._polls:
                self._ready = ready
        try:
            self._rests = True
            self._polls += 1
            found = ready(REST_S)
        finally:
            self._rests = False
            self._polls -= 1
        if self._connection.agent_is_in(found):
            self._connection.hear_agent()
        self.pump()

    def _spin(self) -> bool:
        """Poll for an answer without sleeping; say whether it came."""
        if self._spin_pause:
            self._spin_pause -= 1
            return False
        until = time.perf_counter() + SPIN_S
        readable = self._link.readable
        while time.perf_counter() < until:
            if readable() and self.pump():
                return True
        self._spin_pause = SPIN_PAUSE
        return False

    # --- bytes ----------------------------------------------------------------------------------

    def pump(self) -> bool:
        """Read once and handle every whole frame; say whether anything came.

        The caller holds `reading`.
        """
        if self._connection.failure is not None:
            raise self._connection.failure
        if self._unparsed:  # a signal's exception came before their end
            self._parse()
            return True
        if self._bulk is not None:
            return self._pump_bulk()
        counts = self._link.counts
        tls = self._link.tls
        if tls is not None and tls.reading is not None and not tls.settle_read():
            raise self._connection.lose(_INTERRUPTED)
        if not counts:
            if len(self._inbox) - self._end < _READ:
                self._inbox[: self._end - self._start] = self._inbox[self._start : self._end]
                self._start, self._end = 0, self._end - self._start
            if not self._link.receive_into(self._inbox_view[self._end : self._end + _READ]):
                return False
        # No calls in these lines, so no signal's exception comes between them. If one came
        # before, the bytes are there already, and were not counted yet.
        count = counts[0]
        self._end += count
        del counts[0]
        self._unparsed = True
        if count == 0:
            raise self._connection.cut_off(WORKER_ENDED)
        self._parse()
        return True

    def _pump_bulk(self, *, all_of_it: bool = False) -> bool:
        assert self._bulk is not None
        reply, target = self._bulk
        counts = self._link.counts
        tls = self._link.tls
        if tls is not None and tls.reading is not None and not tls.settle_read():
            raise self._connection.lose(_INTERRUPTED)
        if not counts:
            dropped = reply.sink is None
            rest = target[: self._bulk_left] if dropped else target[-self._bulk_left :]
            if not self._link.receive_into(rest, all_of_it=all_of_it):
                return False
        count = counts[0]
        self._bulk_left -= count
        del counts[0]
        if count == 0:
            raise self._connection.cut_off(
                "the GPU server closed the connection in the middle of a transfer"
            )
        if not self._bulk_left:
            self._bulk = None
            reply.done = True
        return True

    # --- frames ---------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Handle every whole frame. A frame interrupted by an exception is handled again."""
        size = wire.HEADER.size
        while self._bulk is None and self._end - self._start >= size:
            length, kind, _, _, request, _, bulk = wire.HEADER.unpack_from(self._inbox, self._start)
            if length > wire.MAX_BODY or bulk > wire.MAX_BULK:
                raise self._connection.lose(nonsense(ValueError("a frame that is too large")))
            begin = self._start + size
            after = begin + length
            if after > self._end:
                break
            body = bytes(self._inbox_view[begin:after])
            try:
                known = _COMMON.get(body)
                if known is None and body:
                    known = cbor.decode(body)
                if kind in (wire.REPLY, wire.WELCOME):
                    self._answer(request, known, bulk, after)
                else:
                    self._handle(kind, known)
                    self._start = after
            except MALFORMED as error:
                raise self._connection.lose(nonsense(error)) from error
        if self._start == self._end:
            self._start = self._end = 0
        self._unparsed = False

    def _answer(self, request: int, body: Any, bulk: int, after: int) -> None:
        reply = self.replies.get(request)
        if reply is None:  # its thread was interrupted; the bytes still have to be read
            reply = Reply(None)
        elif bulk and reply.sink is None:
            raise ValueError("bytes that nobody asked for")
        if not isinstance(body, dict):
            raise TypeError(f"an answer that is a {type(body).__name__}")
        reply.body = body
        if bulk:
            self._begin_bulk(reply, body, bulk, after)
        else:
            # No calls in these lines, so no signal's exception comes between them.
            self._start = after
            reply.done = True

    def _handle(self, kind: int, body: Any) -> None:
        if kind == wire.DESCRIBED:
            for handle, dtype, shape, strides in body:
                array = self.described.get(handle)
                if array is not None:
                    arrays.describe(array, dtype, tuple(shape), tuple(strides))
                    self.described.pop(handle, None)
        elif kind == wire.FAILED:
            sequence, name, message, details = body
            if not isinstance(sequence, int):
                raise TypeError("a failure of no call")
            own = self.watched.get(sequence)
            if own is not None:
                own[:] = [exception_named(name, message, details)]
            elif len(self.deferred) < DEFERRED_MAX:
                error = exception_named(name, message, details)
                if not any(sequence == known for known, _ in self.deferred):
                    self.deferred.append((sequence, error))
        elif kind == wire.COLLECT:
            self.collect_requested = True
        elif kind == wire.NOTICE:
            if body.get("warning") and len(self.warned) < DEFERRED_MAX:
                self.warned.append(warning_named(*body["warning"]))
            if body.get("lost"):
                raise self._connection.lose(str(body["lost"]))
        else:
            raise ValueError(f"frame kind {kind}")

    def _begin_bulk(self, reply: Reply, body: Any, bulk: int, after: int) -> None:
        have = min(bulk, self._end - after)
        if reply.sink is None:  # read in pieces, and dropped
            target = memoryview(bytearray(min(bulk, _READ)))
        else:
            target = reply.sink(body, bulk)
            if target.nbytes != bulk:
                raise ValueError("bulk of another size than announced")
            target[:have] = self._inbox_view[after : after + have]
        # No calls in these lines, so no signal's exception comes between them.
        reply.bulk = target
        self._start = after + have
        self._bulk_left = bulk - have
        if self._bulk_left:
            self._bulk = (reply, target)
        else:
            reply.done = True
