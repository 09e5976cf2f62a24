"""What kernels print: CUDA writes it to the standard streams here, and the client wants it."""

import ctypes
import faulthandler
import os
import sys
from typing import Any

OUTPUT, ERRORS = 1, 2
"""``printf`` writes to standard output, a failed ``assert`` to standard error."""

PIECE_SIZE = 64 << 10
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)


class Printed:
    """A standard stream as a file in memory, of which what is new is sent now and then.

    A pipe would not do: CUDA writes all that has been printed at once, and waits for a reader.
    """

    def __init__(self, session: Any, descriptor: int) -> None:
        self._session = session
        self._descriptor = descriptor
        self._libc = ctypes.CDLL(None)
        self._flush = ctypes.PyDLL(None).fflush
        self._file = -1
        self._sent = 0

    @property
    def started(self) -> bool:
        """Whether the stream is taken."""
        return self._file >= 0

    def start(self) -> None:
        """Take the stream, for good; what Python itself says of errors goes where it went."""
        if self._descriptor == ERRORS:
            sys.stderr = os.fdopen(os.dup(ERRORS), "w", buffering=1)
            faulthandler.enable()
        else:
            sys.stdout.flush()
        self._file = os.memfd_create("gpupool-printed", os.MFD_CLOEXEC)
        os.dup2(self._file, self._descriptor)

    def push(self) -> None:
        """Send what was printed since the last time. CUDA prints when it is synchronised."""
        self._flush(None)
        end = os.fstat(self._file).st_size
        if end <= self._sent:
            return
        # Two threads that wait may both come here.
        with self._session.sending:
            start = self._sent
            while self._sent < end:
                piece = os.pread(self._file, min(PIECE_SIZE, end - self._sent), self._sent)
                self._session.printed(self._descriptor, piece)
                self._sent += len(piece)
        # Others may write meanwhile, so the file only loses its pages and is never shortened.
        self._libc.fallocate(
            self._file,
            PUNCH_HOLE | KEEP_SIZE,
            ctypes.c_int64(start),
            ctypes.c_int64(end - start),
        )
