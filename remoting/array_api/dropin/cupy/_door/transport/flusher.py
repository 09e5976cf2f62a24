"""The thread that sends the records of a program that pauses.

A program that queues a few calls and then computes on the CPU asks nothing for a while. Its calls
should run meanwhile. This thread sends them once the program has sent nothing for one tick, and
sleeps once the program has been quiet for `IDLE_TICKS` of them. While answers are due it also
listens, because the worker may have run out of memory and wait for this program's garbage.
"""

from __future__ import annotations

import contextlib
import threading
import time
from queue import Empty

from cupy._door.transport.connection import Connection
from cupy._door.transport.sender import POLL_S, Sender

IDLE_S, IDLE_MAX_S = 0.0003, 0.002
IDLE_TICKS = 16
HOLD_S = 0.02
"""So long a function of `fuse` has its calls kept together. An interrupt may leave it open."""


class Flusher:
    """The flushing thread of one session, started at the first queued call."""

    def __init__(self, connection: Connection, sender: Sender) -> None:
        self.awake = False  # written under the sender's lock
        self._connection = connection
        self._sender = sender
        self._thread: threading.Thread | None = None

    def arm(self) -> None:
        """Wake the thread, because a record waits. The caller holds the sender's lock."""
        if self._thread is None:
            # Interrupted, it may run already: then there are two, which does no harm.
            thread = threading.Thread(target=self._run, name="cupy-flush", daemon=True)
            thread.start()
            self._thread = thread
        self._connection.wakes.put(None)
        self.awake = True

    def _run(self) -> None:
        while self._connection.failure is None:
            while not self._is_woken(POLL_S if self._sender.unfinished else None):
                with contextlib.suppress(Exception):
                    self._sender.listen(agent=True)
            self._flush_until_quiet()

    def _is_woken(self, timeout_s: float | None) -> bool:
        try:
            self._connection.wakes.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def _flush_until_quiet(self) -> None:
        """Flush for a program that pauses; return once it has been quiet for some ticks."""
        sender = self._sender
        quiet, pause_s = 0, IDLE_S
        while self._connection.failure is None:
            seen = sender.flushes
            time.sleep(pause_s)
            if sender.flushes != seen:
                # It flushes by itself: each turn of this thread would cost it a thread switch.
                quiet, pause_s = 0, min(2 * pause_s, IDLE_MAX_S)
                continue
            pause_s = IDLE_S
            if sender.held_since and time.monotonic() < sender.held_since + HOLD_S:
                continue
            with contextlib.suppress(Exception):  # raised again by the next call
                sender.flush()
            quiet = quiet + 1 if sender.flushes == seen else 0
            with sender.lock:
                if quiet >= IDLE_TICKS and not sender.parts:
                    self.awake = False
                    return
