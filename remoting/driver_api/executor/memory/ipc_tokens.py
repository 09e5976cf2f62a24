"""Tokens that clients pass to each other in place of CUDA's own handles, which the host keeps.

Memory is charged under its token until all who have it have let go: CUDA keeps it as long.
"""

import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gpupool.remoting.driver_api.executor.api import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    CudaError,
)
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client

TOKEN_SIZE, TOKEN_WORDS = 32, 4
HANDLE_SIZE = 64
MEMORY, PHYSICAL, POOL = b"m", b"p", b"o"
"""Kinds of objects that are charged, and opened; other shared objects cost nothing."""

FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
VALUE = struct.Struct("<cQ64s")
"""Value that the host keeps: kind, size and CUDA's handle; the GPU's UUID follows."""


@runtime_checkable
class Sharer(Protocol):
    """Budget that also passes handles between the workers of a lease, through the host."""

    def share(self, token: bytes, value: bytes, descriptor: int = -1) -> bool:
        """Let the other workers find a handle; False if there are too many."""
        ...

    def find(self, token: bytes, *, opens: bool = False) -> tuple[bytes, int] | None:
        """Return a handle, and its descriptor or -1; one that ``opens`` memory then holds it."""
        ...

    def forget(self, token: bytes) -> None:
        """Withdraw a handle that this worker has shared; it cannot be found any more."""
        ...

    def pledge(self, token: bytes, device_index: int, nbytes: int) -> None:
        """Charge reserved bytes for as long as any worker holds the shared memory."""
        ...

    def take_back(self, token: bytes, nbytes: int) -> None:
        """Return pledged bytes, unless other workers hold the shared memory."""
        ...

    def let_go(self, token: bytes) -> None:
        """Give up one hold."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """The shared object behind a token; the caller closes ``file``, a descriptor or -1."""

    size: int
    handle: bytes
    device: int
    file: int
    token: bytes


class Tokens:
    """Handles that a client process's worker shares with its lease's other workers, and finds."""

    def __init__(self, client: Client) -> None:
        self._devices = client.devices
        self._budget = client.budget
        self._sharer = client.budget if isinstance(client.budget, Sharer) else None
        self._allocations: dict[int, bytes] = {}  # tokens by address

    def share(
        self,
        kind: bytes,
        size: int,
        handle: bytes,
        device: int,
        *,
        file: int = -1,
        cost: int | None = None,
    ) -> bytes:
        """Return a new token for a handle of CUDA's, or for a descriptor, which stays the caller's.

        ``cost`` is what has been reserved for memory: it is for the token to be released then.

        Raises:
            CudaError: when there is nobody to share it with, or there are too many.
        """
        if self._sharer is None:
            raise CudaError(NOT_SUPPORTED, "sharing with other processes")
        value = VALUE.pack(kind, size, handle) + self._devices[device].uuid.encode()
        token = os.urandom(TOKEN_SIZE)
        if not self._sharer.share(token, value, file):
            raise CudaError(OUT_OF_MEMORY, "sharing with other processes")
        if cost is not None:
            self._sharer.pledge(token, device, cost)
        return token

    def pledge(self, token: bytes, device: int, cost: int) -> None:
        """Charge more reserved bytes for as long as any worker holds the shared memory."""
        if self._sharer is not None and cost:
            self._sharer.pledge(token, device, cost)

    def take_back(self, token: bytes, cost: int) -> None:
        """Return some charged bytes, unless other workers hold the shared memory."""
        if self._sharer is not None and cost:
            self._sharer.take_back(token, cost)

    def release(self, token: bytes, device: int, cost: int) -> None:
        """Return the bytes of freed memory; of shared memory once all workers have let go."""
        if token:
            self.let_go(token)
        else:
            self._budget.release(device, cost)

    def let_go(self, token: bytes) -> None:
        """Give up memory that was shared or opened."""
        if self._sharer is not None:
            self._sharer.let_go(token)

    def common(self, kind: bytes, words: tuple[int, ...], size: int) -> tuple[int, bytes]:
        """Return memory common to all that know a key; the first of them makes it, zeroed.

        Returns:
            A descriptor, the caller's to close, and the token to ``forget``; empty for all but the
            first.

        Raises:
            CudaError: as ``share``, and when the others' is of another size.
        """
        if self._sharer is None:
            raise CudaError(NOT_SUPPORTED, "sharing with other processes")
        token = WORDS[TOKEN_WORDS].pack(*words)
        for _ in range(2):  # somebody else may be the first in between
            found = self._sharer.find(token)
            if found is not None:
                value, file = found
                if VALUE.unpack_from(value)[:2] == (kind, size):
                    return file, b""
                if file >= 0:
                    os.close(file)
                raise CudaError(INVALID_VALUE, "sharing with other processes")
            file = os.memfd_create("gpupool-shared", os.MFD_CLOEXEC)
            os.ftruncate(file, size)
            if self._sharer.share(token, VALUE.pack(kind, size, b""), file):
                return file, token
            os.close(file)
        raise CudaError(OUT_OF_MEMORY, "sharing with other processes")

    def share_allocation(
        self,
        kind: bytes,
        address: int,
        size: int,
        handle: bytes,
        device: int,
        *,
        cost: int | None = None,
    ) -> bytes:
        """Return the token of an allocation, the same one each time until it is ``freed``.

        Raises:
            CudaError: as ``share``.
        """
        if address not in self._allocations:
            token = self.share(kind, size, handle, device, cost=cost)
            self._allocations[address] = token
        return self._allocations[address]

    def freed(self, address: int) -> bytes:
        """Note that an allocation is being freed; return its token, or nothing."""
        token = self._allocations.pop(address, b"")
        if token:
            self.forget(token)
        return token

    @contextmanager
    def opened(self, kind: bytes, words: tuple[int, ...]) -> Generator[Found]:
        """Yield the object behind a token, and hold it unless the block raises.

        The descriptor is closed behind the block.

        Raises:
            CudaError: as ``find``.
        """
        found = self._find(kind, words, opens=True)
        try:
            yield found
        except BaseException:
            self._close(found.file)
            self.let_go(found.token)
            raise
        self._close(found.file)

    def find(self, kind: bytes, words: tuple[int, ...]) -> Found:
        """Return the object behind a token, given as words.

        Raises:
            CudaError: when it is none of this kind, or of a device that this session has not.
        """
        return self._find(kind, words, opens=False)

    def _find(self, kind: bytes, words: tuple[int, ...], *, opens: bool) -> Found:
        if self._sharer is None:
            raise CudaError(NOT_SUPPORTED, "sharing with other processes")
        token = WORDS[TOKEN_WORDS].pack(*words)
        found = self._sharer.find(token, opens=opens)
        if found is None:
            raise CudaError(INVALID_VALUE, "sharing with other processes")
        value, file = found
        has, size, handle = VALUE.unpack_from(value)
        uuid = value[VALUE.size :].decode()
        devices = [device.index for device in self._devices if device.uuid == uuid]
        if has != kind or not devices:
            self._close(file)
            if opens and has in (MEMORY, PHYSICAL, POOL):
                self.let_go(token)
            raise CudaError(INVALID_VALUE, "sharing with other processes")
        return Found(size, handle, devices[0], file, token)

    @staticmethod
    def _close(file: int) -> None:
        if file >= 0:
            os.close(file)

    def forget(self, token: bytes) -> None:
        """Withdraw the handle under this token; it cannot be found any more."""
        if self._sharer is not None:
            self._sharer.forget(token)
