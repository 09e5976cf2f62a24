"""Large copies to and from a worker of this machine, through memory that both have mapped."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import mmap
import os
import threading
from collections import deque
from typing import Any

import numpy as np

from cupy._door import wire


class Shared:
    """The slots of one session: the first half for uploads, the second for downloads.

    The worker made the memory and has sealed its size. The slots hold array data only, so a write
    by the other side at a wrong time can damage values, and nothing else.
    """

    def __init__(self, session: Any, descriptor: int) -> None:
        size = wire.SHARED_SLOTS * wire.SHARED_SLOT
        self._session = session
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

    def _slot(self, number: int, size: int) -> np.ndarray[Any, Any]:
        start = number * wire.SHARED_SLOT
        return self._bytes[start : start + size]

    def upload(self, target: Any, data: np.ndarray[Any, Any]) -> None:
        """Fill a dense array with ``data``, bytes in the order of its memory.

        Returns once all is on its way, as a copy from pageable memory does. Errors come later.
        """
        session = self._session
        half = wire.SHARED_SLOTS // 2
        with self._uploading:
            for start in range(0, data.nbytes, wire.SHARED_SLOT):
                piece = data[start : start + wire.SHARED_SLOT]
                while len(self._sent) >= half - 1:
                    session.finish(self._sent[0])
                    self._sent.popleft()
                slot = self._turn % half
                self._slot(slot, piece.nbytes)[:] = piece
                arguments = (target._handle, start, slot, piece.nbytes)
                self._sent.append(session.begin("door.fill", arguments))
                self._turn += 1

    def download(self, source: Any, target: np.ndarray[Any, Any]) -> None:
        """Copy a dense array into ``target``, bytes in the order of its memory."""
        session = self._session
        half = wire.SHARED_SLOTS // 2
        asked: deque[tuple[int, Any]] = deque()
        with self._downloading:
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

    def _take(self, target: np.ndarray[Any, Any], start: int, question: Any) -> None:
        self._session.answer(question)
        half = wire.SHARED_SLOTS // 2
        size = min(wire.SHARED_SLOT, target.nbytes - start)
        slot = half + start // wire.SHARED_SLOT % half
        target[start : start + size] = self._slot(slot, size)
