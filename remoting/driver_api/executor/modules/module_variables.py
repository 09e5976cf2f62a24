"""The memory of variables of loaded modules, and the output of kernels.

CUDA writes the output to the standard streams of this process, and the client gets it.
"""

import ctypes
import faulthandler
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpupool.remoting.driver_api.executor.api import CudaError
from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.modules.image_contents import contents_of

OUTPUT, ERRORS = 1, 2
"""``printf`` writes to standard output, a failed ``assert`` to standard error."""

PIECE_SIZE = 64 << 10
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)


class Printed:
    """A standard stream as a file in memory; its new output is sent now and then.

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
        """Redirect the stream for good; Python's own stderr keeps its former target."""
        if self._descriptor == ERRORS:
            sys.stderr = os.fdopen(os.dup(ERRORS), "w", buffering=1)
            faulthandler.enable()
        else:
            sys.stdout.flush()
        self._file = os.memfd_create("gpupool-printed", os.MFD_CLOEXEC)
        os.dup2(self._file, self._descriptor)

    def push(self) -> None:
        """Send the output since the last call; CUDA prints at synchronisation."""
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


NAMES_MAX = 4096
"""Variables of one compressed module that are counted one by one."""


@dataclass(slots=True)
class Loaded:
    """A module or library, and the charge for its variables."""

    device: int
    cost: int
    seen: bool  # whether its image could be read; else its variables count as they are asked for
    names: set[bytes] = field(default_factory=set[bytes])


class Variables:
    """The variables of a client process's modules, by the client's numbers."""

    def __init__(self, client: Client, memory: Memory) -> None:
        self._client = client
        self._memory = memory
        self._loaded: dict[int, Loaded] = {}
        self._printed = Printed(client.session, OUTPUT)
        self._asserted = Printed(client.session, ERRORS)

    @contextmanager
    def charged(self, number: int, image: bytes | bytearray) -> Generator[None]:
        """Charge an image's variables during its load; keep the charge if it is loaded.

        Raises:
            CudaError: when the partition has not so much left.
        """
        contents, device = contents_of(image), self._client.device
        cost = charged(contents.variables)
        self._memory.reserve(device, cost)
        try:
            if contents.prints and not self._printed.started:
                self._printed.start()
                self._client.waiter.after.append(self._printed.push)
            if contents.asserts and not self._asserted.started:
                self._asserted.start()
                self._client.session.before_assert = self._asserted.push
            yield
        except BaseException:
            if cost:
                self._client.budget.release(device, cost)
            raise
        self._loaded[number] = Loaded(device, cost, contents.seen)

    def found(self, number: int, name: bytes, size: int) -> None:
        """Count a variable that the client asked for, if its image could not be read."""
        loaded = self._loaded.get(number)
        if loaded is None or loaded.seen or name in loaded.names or len(loaded.names) >= NAMES_MAX:
            return
        loaded.names.add(name)
        # It exists already, so an excess is left to the comparison of the books with NVML.
        try:
            self._memory.reserve(loaded.device, charged(size))
        except CudaError:
            return
        loaded.cost += charged(size)

    def release(self, number: int) -> None:
        """Release the charge of a module's variables."""
        loaded = self._loaded.pop(number, None)
        if loaded is not None and loaded.cost:
            self._client.budget.release(loaded.device, loaded.cost)
