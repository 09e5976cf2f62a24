"""Answers to host functions that get past an executor which stands still.

The driver keeps its caller when a stream's queue is full, and a stream stands still in a host
function until the client has answered. The client bounds what it sends ahead of an answer
(``shim/host.c``), but one launch of a graph with many host functions is more than any queue holds,
and what a call takes of a queue, or which streams share one, is the driver's secret.
"""

import threading
import time
from collections.abc import Callable

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver import table
from gpupool.remoting.driver.client import WORDS
from gpupool.remoting.driver.reader import Reader
from gpupool.remoting.driver.waiting import Waiter

PATIENCE_S = 0.005
"""So long an executor has not moved before anybody looks at what it has not read."""


class Overtaker:
    """Executes answers before their turn, and the writes to mapped memory that precede them.

    Neither calls the driver. A write comes too early at most for kernels that are launched between
    the two and could have run before it as well.
    """

    def __init__(
        self,
        reader: Reader,
        waiter: Waiter,
        *,
        some_wait: threading.Event,
        waits: Callable[[int], bool],
        let_go: Callable[[int], None],
    ) -> None:
        """Prepare; ``run`` does the work, on a thread of its own.

        Args:
            reader: that the executor reads from.
            waiter: has the mirrors of mapped memory.
            some_wait: set while a host function waits for its answer.
            waits: says whether that with a ticket does.
            let_go: ends its waiting.
        """
        self._reader = reader
        self._waiter = waiter
        self._some_wait = some_wait
        self._waits = waits
        self._let_go = let_go
        self._writes: list[tuple[int, tuple[int, ...], Callable[[], bytes]]] = []

    def run(self) -> None:
        """Look after the executor until the client has gone."""
        going = True
        while going:
            self._some_wait.wait()
            steps = self._reader.steps()
            time.sleep(PATIENCE_S)
            if self._some_wait.is_set():
                going = self._reader.read_ahead(steps, self)

    def begin(self) -> None:
        """Begin anew, with the frame at hand."""
        self._writes = []

    def record(
        self, op: int, body: memoryview, frame: int, bulk: Callable[[], bytes] | None
    ) -> bool:
        """Look at a record; False when what is behind it cannot be executed before it."""
        if op == table.MANAGED_WRITE:
            return False  # that needs the driver
        if op == table.MAP_WRITE:
            if bulk is None or len(body) < 24:
                return False
            self._writes.append((frame, WORDS[3].unpack_from(body), bulk))
        if op == table.HOST_DONE and len(body) >= 8:
            (ticket,) = WORDS[1].unpack_from(body)
            if self._waits(ticket):
                if not self._write():
                    return False
                self._let_go(ticket)
        return True

    def _write(self) -> bool:
        """Execute the writes that were found, unless that was done before."""
        for frame, (number, first, size), bulk in self._writes:
            data = bulk()
            if size != len(data):
                return False
            try:
                self._waiter.overtake_mirror(frame, number, first, memoryview(data))
            except (KeyError, RemoteProtocolError):
                return False  # the memory is not mapped yet, or the client will hear what is wrong
        self._writes = []
        return True
