"""Large copies to and from a worker of this machine, through memory that both have mapped."""

# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any

import numpy as np

from cupy._door import wire
from cupy._door.locks import WAIT

MOVE_POLL_S = 0.005
"""How often a copy looks whether the move that it waits for is over."""


def _bytes_of(data: Any) -> memoryview:
    return memoryview(data)


class Shared:
    """The slots of one session: the first half for uploads, the second for downloads.

    The worker made the memory and has sealed its size. The slots hold array data only, so a write
    by the other side at a wrong time can damage values, and nothing else.
    """

    def __init__(self, session: Any, descriptor: int) -> None:
        size = wire.SHARED_SLOTS * wire.SHARED_SLOT
        self._gp_session = session
        self._is_there = True
        self._stands_still = False  # while the session is being moved
        try:
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._bytes = np.frombuffer(memory, np.uint8)
        self._uploading = threading.Lock()
        self._downloading = threading.Lock()
        # The questions of the latest pieces that were sent. An answer frees the slot of the piece
        # before.
        self._sent: deque[Any] = deque()
        self._turn = 0

    @contextlib.contextmanager
    def still(self, timeout_s: float) -> Generator[bool]:
        """Keep all copies waiting; give False if one that is under way takes too long."""
        until = time.monotonic() + timeout_s
        locks = (self._uploading, self._downloading)
        held: list[Any] = []
        # Threads that copy all the time would take the locks again before this one wakes up.
        self._stands_still = True
        try:
            held += [
                lock for lock in locks if lock.acquire(timeout=max(0.0, until - time.monotonic()))
            ]
            yield len(held) == len(locks)
        finally:
            for lock in held:
                lock.release()
            self._stands_still = False

    def serve(self, session: Any) -> None:
        """Belong to another session, which has taken over this one's connection."""
        self._gp_session = session

    def move(self, other: Shared | None) -> None:
        """Use the memory in common with another worker; None: there is none. Needs both locks."""
        self._is_there = other is not None
        if other is not None:
            self._bytes = other._bytes
        self._sent.clear()

    def _await_move(self) -> None:
        while self._stands_still:  # an Event's lock may stay held after a signal
            time.sleep(MOVE_POLL_S)

    def _slot(self, number: int, size: int) -> np.ndarray[Any, Any]:
        start = number * wire.SHARED_SLOT
        return self._bytes[start : start + size]

    def upload(self, target: Any, data: np.ndarray[Any, Any]) -> None:
        """Fill a dense array with ``data``, bytes in the order of its memory.

        Returns once all is on its way, as a copy from pageable memory does. Errors come later.
        """
        session = self._gp_session
        half = wire.SHARED_SLOTS // 2
        self._await_move()
        (_,) = map(self._uploading.acquire, WAIT)
        try:
            if not self._is_there:
                session.put(target._gp_handle, target._gp_meta, _bytes_of(data), existing=True)
                return
            for start in range(0, data.nbytes, wire.SHARED_SLOT):
                piece = data[start : start + wire.SHARED_SLOT]
                while len(self._sent) >= half - 1:
                    session.finish(self._sent[0])
                    self._sent.popleft()
                slot = self._turn % half
                self._slot(slot, piece.nbytes)[:] = piece
                arguments = (target._gp_handle, start, slot, piece.nbytes)
                self._sent.append(session.begin("door.fill", arguments))
                self._turn += 1
        finally:
            self._uploading.release()

    def download(self, source: Any, target: np.ndarray[Any, Any]) -> None:
        """Copy a dense array into ``target``, bytes in the order of its memory."""
        session = self._gp_session
        half = wire.SHARED_SLOTS // 2
        asked: deque[tuple[int, Any]] = deque()
        self._await_move()
        (_,) = map(self._downloading.acquire, WAIT)
        try:
            if not self._is_there:
                letter = "C" if source._gp_meta.contiguity[0] else "F"
                session.ask("door.get", (source, letter), sink=lambda *_: _bytes_of(target))
                return
            try:
                for start in range(0, target.nbytes, wire.SHARED_SLOT):
                    if len(asked) == half:
                        self._take(target, *asked[0])
                        asked.popleft()
                    size = min(wire.SHARED_SLOT, target.nbytes - start)
                    slot = half + start // wire.SHARED_SLOT % half
                    question = session.begin("door.fetch", (source, start, slot, size))
                    asked.append((start, question))
                while asked:
                    self._take(target, *asked[0])
                    asked.popleft()
            finally:
                # Interrupted: the slots are free again once the worker has answered.
                for _, question in asked:
                    session.forget(question)
        finally:
            self._downloading.release()

    def _take(self, target: np.ndarray[Any, Any], start: int, question: Any) -> None:
        self._gp_session.answer(question)
        half = wire.SHARED_SLOTS // 2
        size = min(wire.SHARED_SLOT, target.nbytes - start)
        slot = half + start // wire.SHARED_SLOT % half
        target[start : start + size] = self._slot(slot, size)
