"""Handles records past a stalled executor: memory writes, host function answers, NCCL ends.

The driver keeps its caller when a stream's queue is full, and while memory is freed it keeps most
callers until all kernels are over (seen on an H200). A kernel may wait for what the client writes
to mapped memory, though, and a stream for the client's answer to a host function. Both lie behind,
and nothing goes on without them. The client sends little ahead of an answer that comes soon
(``shim/runtime/host.c``), but a function may wait for what the program calls next, and one launch
of a graph with many functions is more than any queue holds. NCCL keeps its caller until other ranks
have come, which may never be, and then only the end of the communicator ends that.
"""

import threading
import time
from collections.abc import Callable

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.memory.mirrors import Write
from gpupool.remoting.driver_api.executor.reader import Reader
from gpupool.remoting.driver_api.executor.sync_waiter import Waiter
from gpupool.remoting.driver_api.schema.records import BY_NAME, NUMBERS

MAP_WRITE, HOST_DONE = BY_NAME["MAP_WRITE"].struct, BY_NAME["HOST_DONE"].struct
NCCL_ASK = BY_NAME["NCCL_ASK"].struct

PATIENCE_S = 0.005
"""Seconds without progress of an executor before its unread records are examined."""

IDLE_PATIENCE_S = 0.02
"""The same while it waits for the client."""


def _never(_ticket: int) -> bool:
    return False


def _nothing(_what: int, _communicator: int) -> None:
    pass


class OutOfBandReplies:
    """Executes writes to mapped memory and answers to host functions before their turn.

    Neither calls the driver. What is asked of NCCL is shown to whom it concerns. A write comes
    too early for no kernel: with CUDA, it would be there as soon as the program makes it.
    """

    def __init__(self, reader: Reader, waiter: Waiter) -> None:
        """Prepare.

        Args:
            reader: that the executor reads from.
            waiter: has the mirrors of mapped memory.
        """
        self._reader = reader
        self._waiter = waiter
        self._reasons = 0
        self._needed = threading.Event()
        self._lock = threading.Lock()
        self._started = False
        self._waits: Callable[[int], bool] = _never
        self._let_go: Callable[[int], object] = _never
        self._asks_nccl: Callable[[int, int], None] = _nothing

    def start(self) -> None:
        """Get ready to look after the executor; called by the thread that executes."""
        if not self._started:
            self._started = True
            self._reader.share()
            threading.Thread(target=self._run, daemon=True).start()

    def answer(self, waits: Callable[[int], bool], let_go: Callable[[int], object]) -> None:
        """Look for answers to host functions.

        Args:
            waits: says whether that with a ticket does.
            let_go: ends its waiting.
        """
        self._waits, self._let_go = waits, let_go

    def show_nccl(self, show: Callable[[int, int], None]) -> None:
        """Set the callback for NCCL requests: ``show`` gets the request and the communicator."""
        self._asks_nccl = show

    def need(self) -> None:
        """Look after the executor: there is one thing more that may have to get past it."""
        with self._lock:
            self._reasons += 1
            self._needed.set()

    def leave(self) -> None:
        """Take a ``need`` back."""
        with self._lock:
            self._reasons -= 1
            if not self._reasons:
                self._needed.clear()

    def _run(self) -> None:
        """Look after the executor until the client has gone."""
        going = True
        while going:
            self._needed.wait()
            steps = self._reader.steps()
            time.sleep(IDLE_PATIENCE_S if self._reader.receiving else PATIENCE_S)
            if self._needed.is_set():
                going = self._reader.read_ahead(steps, self)

    def begin(self) -> None:
        """Begin anew, with the frame at hand."""

    def record(
        self, op: int, body: memoryview, frame: int, bulk: Callable[[], bytes] | None
    ) -> bool:
        """Examine a record; False if later records cannot be executed before it."""
        if op == NUMBERS["MANAGED_WRITE"]:
            return False  # that needs the driver
        if op == NUMBERS["MAP_WRITE"]:
            if bulk is None or len(body) < MAP_WRITE.size:
                return False
            return self._write(frame, body, bulk())
        if op == NUMBERS["HOST_DONE"] and len(body) >= HOST_DONE.size:
            (ticket,) = HOST_DONE.unpack_from(body)
            if self._waits(ticket):
                self._let_go(ticket)
        if op == NUMBERS["NCCL_ASK"] and len(body) >= NCCL_ASK.size:
            _request, what, communicator, *_ = NCCL_ASK.unpack_from(body)
            self._asks_nccl(what, communicator)
        return True

    def _write(self, frame: int, body: memoryview, data: bytes) -> bool:
        """Execute a write, unless that was done before; say whether it can be."""
        number, first, size, masked = MAP_WRITE.unpack_from(body)
        try:
            self._waiter.overtake_mirror(frame, number, Write.of(first, size, masked, data))
        except (KeyError, RemoteProtocolError):
            return False  # the memory is not mapped yet, or the client will hear what is wrong
        return True
