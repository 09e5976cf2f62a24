"""Memory that a worker shares with a client of the same machine, for large copies."""

import fcntl
import mmap
import os
import sys
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_results import DependsOnFailureError
from gpupool.remoting.array_api.server.session_calls import Calls

# From linux/fcntl.h; Python names them since 3.12 only on some builds.
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4


def make_region() -> tuple[int, mmap.mmap] | None:
    """Return a descriptor for the client and the mapped memory; None where there is none such.

    No page exists before it is used. The seals keep the client from cutting the memory off under
    the worker, which would kill it.
    """
    if sys.platform != "linux":
        return None
    size = array_wire.SHARED_SLOTS * array_wire.SHARED_SLOT
    descriptor = -1
    try:
        descriptor = os.memfd_create("gpupool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
        return descriptor, mmap.mmap(descriptor, size)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None


def check_piece(nbytes: int | None, slots: int, offset: Any, slot: Any, size: Any) -> None:
    """Raise unless a copy stays inside a dense array and inside a slot.

    Args:
        nbytes: of the array; None if it is no dense array.
        slots: how many the session has.
        offset: of the copy in the array, in bytes.
        slot: its number.
        size: of the copy, in bytes.
    """
    numbers = all(type(number) is int for number in (offset, slot, size))
    if not numbers or not 0 <= slot < slots or not 0 < size <= array_wire.SHARED_SLOT:
        raise RemoteProtocolError("malformed copy", why=f"slot {slot}, {size} bytes")
    if nbytes is None:
        raise RemoteProtocolError("malformed copy", why="not a dense array")
    if not 0 <= offset <= nbytes - size:
        raise RemoteProtocolError("malformed copy", why=f"{size} bytes at {offset}")


class Slots:
    """Copies between arrays and the slots of the memory in common."""

    def __init__(self, executor: Calls) -> None:
        self._executor = executor
        self._count = 0

    def share(self, memory: mmap.mmap) -> None:
        """Use memory that the client has mapped as well, for `fill` and `fetch`."""
        self._count = len(memory) // array_wire.SHARED_SLOT
        self._executor.backend.share(memory)

    def fill(self, handle: Any, offset: Any, slot: Any, size: Any) -> None:
        """Start to copy a slot into a dense array; the copy from the slot before has ended then."""
        backend = self._executor.backend
        try:
            array = self._executor.find(handle)
            self._check_piece(array, offset, slot, size)
            backend.fill(array, offset, slot * array_wire.SHARED_SLOT, size)
        except DependsOnFailureError:
            backend.synchronize()  # no copy starts here, and the one before must have ended
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - not the question's: nobody waits for it
            self._executor.fail("upload", (), error)

    def fetch(self, array: Any, offset: Any, slot: Any, size: Any) -> None:
        """Copy part of a dense array into a slot."""
        self._check_piece(array, offset, slot, size)
        self._executor.backend.fetch(array, offset, slot * array_wire.SHARED_SLOT, size)

    def _check_piece(self, array: Any, offset: Any, slot: Any, size: Any) -> None:
        dense = self._executor.backend.is_array(array) and array.flags.forc
        check_piece(array.nbytes if dense else None, self._count, offset, slot, size)
