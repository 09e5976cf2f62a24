"""Memory pools: their charge to the partition, and allocations from them.

A pool keeps memory that was freed into it, so not allocations are counted but what CUDA says that
the pool has reserved. That shrinks when a stream or a device is synchronised, a pool is trimmed, or
memory is short.
"""

import ctypes
import struct
import threading
from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import (
    CAPTURE_UNSUPPORTED,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    CudaError,
)
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import FILE_DESCRIPTOR, Tokens

POOLS_MAX = 4096
THRESHOLD, RESERVED_NOW, USED_NOW = 4, 5, 7
"""Of CUmemPool_attribute: bytes that stay beyond a synchronisation, that it has, that are used."""

NARROW_MAX = 3
"""Attributes up to this one are 4 bytes, later ones 8."""

LOOKS = 16
"""A free is over after the synchronisation of its stream, and each may be of another stream."""

ON_DEVICE, PINNED = 1, 1
PROPERTIES = struct.Struct("<iiiiQQ56s")
ACCESS = struct.Struct("<iii")


@dataclass(slots=True)
class Pool:
    """A memory pool; ``held``: its bytes reserved from the partition; ``pledged``: those shared."""

    handle: int
    device: int
    held: int = 0
    pledged: int = 0
    used: int = 0  # by allocations that the client has not freed
    count: int = 0  # of such allocations
    imported: bool = False  # another process's, charged under its token
    token: bytes = b""  # once other processes may open it
    destroyed: bool = False  # by the client


class Imports:
    """Allocations of other processes that a client has imported, some several times."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, ...], int] = {}  # by pool and token
        self._counts: dict[int, tuple[tuple[int, ...], int]] = {}  # and pool and token, by address
        self._pools: dict[int, Pool] = {}  # by address

    def __len__(self) -> int:
        return len(self._counts)

    def find(self, key: tuple[int, ...]) -> int | None:
        """Return the address of a live import by pool and token, or None."""
        return self._addresses.get(key)

    def add(self, key: tuple[int, ...], address: int, pool: Pool) -> None:
        """Note an import, the first of an allocation or one more."""
        self._pools[address] = pool
        self._addresses[key] = address
        self._counts[address] = (key, self._counts.get(address, (key, 0))[1] + 1)

    def outlives(self, address: int) -> bool:
        """Note a free; say whether the memory stays, as it was imported more often."""
        key, count = self._counts.pop(address, ((), 1))
        if count > 1:
            self._counts[address] = (key, count - 1)
            return True
        self._addresses.pop(key, None)
        return False

    def take(self, address: int) -> Pool | None:
        """Return the pool of an import that is being freed for the last time; None: it is none."""
        return self._pools.pop(address, None)

    def forget(self, pool: Pool) -> None:
        """Drop the keys of a pool's imports, since a new pool may reuse its number."""
        for address in [address for address, one in self._pools.items() if one is pool]:
            self._addresses.pop(self._counts[address][0], None)


class Pools(HandlerGroup):
    """The pools of a client process, and the stream-ordered allocations from them."""

    def __init__(self, client: Client, direct: Direct, tokens: Tokens) -> None:
        super().__init__(client)
        self._direct = direct
        self._tokens = tokens
        self._pools: dict[int, Pool] = {}
        self._default: dict[int, Pool] = {}  # by device
        self._current: dict[int, Pool] = {}
        self._ending: list[Pool] = []  # destroyed by the client, while some of it is in use
        self._owner: dict[int, tuple[Pool, int]] = {}  # and the size, by address
        self.imports = Imports()
        self._lock = threading.RLock()  # threads that have waited for the GPU settle as well
        self._looks = 0  # synchronisations that check for memory that the last frees returned
        self.waiter.after.append(self._look)
        self.methods = {
            "POOL_DESTROY": self._destroy,
            "POOL_TRIM": self._trim,
            "POOL_DEFAULT": self._find_default,
            "POOL_CREATE": self._create,
            "POOL_USE": self._use,
            "POOL_GET": self._get,
            "POOL_SET": self._set,
            "POOL_SET_ACCESS": self._set_access,
            "POOL_GET_ACCESS": self._get_access,
        }

    # --- which pools there are --------------------------------------------------------------------

    def find(self, number: int) -> Pool:
        """Return a pool by the client's number.

        Raises:
            KeyError: when there is none.
        """
        return self._pools[number]

    def keep(self, number: int, pool: Pool) -> None:
        """Remember a pool under the client's number."""
        if number in self._pools or len(self._pools) >= POOLS_MAX:
            raise RemoteProtocolError("a pool that cannot be made")
        self._pools[number] = pool

    def _default_of(self, device: int) -> Pool:
        if device not in self._default:
            ordinal = self.client.ordinals[device]
            handle = self._direct.get("cuDeviceGetDefaultMemPool", ordinal)
            self._default[device] = Pool(handle, device)
        return self._default[device]

    def _find_default(self, number: int, device: int) -> bytes:
        self.keep(number, self._default_of(self.client.index(device)))
        return b""

    def _create(self, number: int, device: int, size_max: int, kinds: int) -> bytes:
        if kinds not in (0, FILE_DESCRIPTOR):
            raise CudaError(NOT_SUPPORTED, "cuMemPoolCreate")
        ordinal = self.client.ordinals[self.client.index(device)]
        properties = PROPERTIES.pack(PINNED, kinds, ON_DEVICE, ordinal, 0, size_max, b"")
        self.keep(number, Pool(self._direct.get("cuMemPoolCreate", properties), device))
        return b""

    def _destroy(self, number: int) -> None:
        pool = self._pools[number]
        if pool is self._default.get(pool.device):
            raise CudaError(INVALID_VALUE, "cuMemPoolDestroy")
        if pool.token and not pool.imported:
            self._tokens.forget(pool.token)
        with self._lock:
            del self._pools[number]
            pool.destroyed = True
            if self._current.get(pool.device) is pool:
                del self._current[pool.device]
                default = self._default_of(pool.device).handle
                self._direct.call("cuDeviceSetMemPool", self.client.ordinals[pool.device], default)
            if pool.imported:
                self.imports.forget(pool)
                self._direct.call("cuMemPoolDestroy", pool.handle)
                self._let_go(pool)
            else:
                # While some of its memory is in use it stays, which nobody can tell: a driver was
                # seen to crash in a synchronisation behind the free of the last of a pool's memory.
                nothing = ctypes.c_uint64(0)
                self._direct.call("cuMemPoolSetAttribute", pool.handle, THRESHOLD, nothing)
                self._ending.append(pool)
                self._looks = LOOKS
                self._end_unused()

    def _let_go(self, pool: Pool) -> None:
        """Let go of another process's pool, once the client has of it and of all memory in it."""
        if pool.destroyed and not pool.count:
            self._tokens.let_go(pool.token)

    def import_freed(self, pool: Pool) -> None:
        """Note that memory of another process's pool is free here."""
        with self._lock:
            pool.count -= 1
            self._let_go(pool)

    def _end_unused(self) -> None:
        """Destroy the pools that the client has destroyed and of which nothing is in use."""
        for pool in list(self._ending):
            if not pool.count and not self._attribute(pool, USED_NOW):
                self._direct.call("cuMemPoolDestroy", pool.handle)
                self._ending.remove(pool)
                self.client.budget.release(pool.device, pool.held - pool.pledged)
                if pool.token:
                    self._tokens.let_go(pool.token)

    def _use(self, device: int, number: int) -> bytes:
        pool = self._pools[number]
        if pool.device != self.client.index(device):
            raise CudaError(INVALID_VALUE, "cuDeviceSetMemPool")
        self._direct.call("cuDeviceSetMemPool", self.client.ordinals[device], pool.handle)
        self._current[device] = pool
        return b""

    # --- what they are like -----------------------------------------------------------------------

    def _get(self, number: int, attribute: int) -> bytes:
        return WORDS[1].pack(self._attribute(self._pools[number], attribute))

    def _attribute(self, pool: Pool, attribute: int) -> int:
        value = ctypes.c_uint64(0)
        self._direct.call("cuMemPoolGetAttribute", pool.handle, attribute, value)
        return value.value

    def _set(self, number: int, attribute: int, value: int) -> bytes:
        kind = ctypes.c_int if attribute <= NARROW_MAX else ctypes.c_uint64
        handle = self._pools[number].handle
        self._direct.call("cuMemPoolSetAttribute", handle, attribute, kind(value))
        return b""

    def _set_access(self, number: int, device: int, flags: int) -> bytes:
        ordinal = self.client.ordinals[self.client.index(device)]
        access = ACCESS.pack(ON_DEVICE, ordinal, flags)
        self._direct.call("cuMemPoolSetAccess", self._pools[number].handle, access, 1)
        return b""

    def _get_access(self, number: int, device: int) -> bytes:
        ordinal = self.client.ordinals[self.client.index(device)]
        location = struct.pack("<ii", ON_DEVICE, ordinal)
        handle = self._pools[number].handle
        return WORDS[1].pack(self._direct.get("cuMemPoolGetAccess", handle, location))

    def _trim(self, number: int, size: int) -> None:
        pool = self._pools[number]
        self._direct.call("cuMemPoolTrimTo", pool.handle, size)
        if pool.imported:
            return
        with self._lock:
            self._settle(pool)

    # --- memory from them -------------------------------------------------------------------------

    def allocate(self, device: int, size: int, number: int, stream: int) -> int:
        """Return the address of ``size`` bytes of a pool, 0 for the device's current one.

        ``stream`` is CUDA's handle.

        Raises:
            CudaError: when the partition, the pool or the GPU is full.
        """
        if number:
            pool = self._pools[number]
        else:
            pool = self._current.get(device) or self._default_of(device)
        if pool.imported:
            # CUDA itself says that there is nothing to be had.
            address = self._direct.get("cuMemAllocFromPoolAsync", size, pool.handle, stream)
            self._direct.call("cuMemFreeAsync", address, stream)
            raise CudaError(INVALID_VALUE, "cuMemAllocFromPoolAsync")
        with self._lock:
            self._make_room(pool, size)
            try:
                address = self._direct.get("cuMemAllocFromPoolAsync", size, pool.handle, stream)
            except CudaError:
                self._settle(pool)
                raise
            if not self._settle(pool):
                # It grew by more than it seemed to need: by whole blocks, or as frees are pending.
                self._direct.call("cuMemFreeAsync", address, stream)
                self._looks = LOOKS
                raise CudaError(OUT_OF_MEMORY, "cuMemAllocFromPoolAsync")
            if size:
                pool.used += size
                pool.count += 1
                self._owner[address] = (pool, size)
        return address

    def refuse_capture(self, stream: int, name: str) -> None:
        """Refuse to execute during stream capture: a graph's memory is counted apart.

        Raises:
            CudaError: when a stream of CUDA is capturing.
        """
        status = ctypes.c_int(0)
        self._direct.call("cuStreamIsCapturing", stream, status)
        if status.value:
            raise CudaError(CAPTURE_UNSUPPORTED, name)

    def _make_room(self, pool: Pool, size: int) -> None:
        """Reserve the pool's least growth for ``size`` more bytes from the partition."""
        reserved, budget = self._attribute(pool, RESERVED_NOW), self.client.budget
        missing = reserved + max(0, size - max(0, reserved - pool.used)) - pool.held
        if missing <= 0:
            return
        granted = budget.reserve(pool.device, missing)
        if not granted and self.squeeze(pool.device):
            granted = budget.reserve(pool.device, missing)
        if not granted:
            raise CudaError(OUT_OF_MEMORY, "cuMemAllocFromPoolAsync")
        pool.held += missing

    def owns(self, address: int) -> bool:
        """Say whether memory is a pool's."""
        return address in self._owner

    def owner(self, address: int) -> tuple[Pool, int]:
        """Return the pool and the size of memory at an address.

        Raises:
            CudaError: when it is no pool's.
        """
        if address not in self._owner:
            raise CudaError(INVALID_VALUE, "cuMemPoolExportPointer")
        return self._owner[address]

    def freed(self, address: int) -> None:
        """Note that memory of a pool was freed, or will be when its stream comes to it."""
        with self._lock:
            pool, size = self._owner.pop(address)
            pool.used -= size
            pool.count -= 1
            self._looks = LOOKS

    def squeeze(self, device: int) -> bool:
        """Release the free memory of a device's pools; return whether there was any."""
        with self._lock:
            before = sum(pool.held for pool in self._all())
            for pool in self._all():
                if pool.device == device:
                    self._direct.call("cuMemPoolTrimTo", pool.handle, 0)
                    self._settle(pool)
            return sum(pool.held for pool in self._all()) < before

    @property
    def pending(self) -> bool:
        """Whether frees may be on their way that return memory to the partition."""
        return self._looks > 0

    def settle(self) -> None:
        """Bring the books in line with the pools' present memory."""
        with self._lock:
            self._end_unused()
            for pool in self._all():
                self._settle(pool)

    def trim_graphs(self, device: int) -> None:
        """Trim the memory that CUDA keeps for graphs on a device."""
        self._direct.call("cuDeviceGraphMemTrim", self.client.ordinals[device])

    # --- the books --------------------------------------------------------------------------------

    def _all(self) -> list[Pool]:
        every = (*self._pools.values(), *self._default.values(), *self._ending)
        found = {id(pool): pool for pool in every}
        return [pool for pool in found.values() if not pool.imported]

    def _look(self) -> None:
        """Settle after a synchronisation, as long as the last frees may not be over."""
        if self._looks:
            self._looks -= 1
            self.settle()

    def _settle(self, pool: Pool) -> bool:
        """Reserve or release the difference to the pool's size; return whether it may have it."""
        now = self._attribute(pool, RESERVED_NOW)
        if now > pool.held and not self.client.budget.reserve(pool.device, now - pool.held):
            return False
        if now < pool.held:
            shared = min(pool.pledged, pool.held - now)
            self._tokens.take_back(pool.token, shared)
            pool.pledged -= shared
            self.client.budget.release(pool.device, pool.held - now - shared)
        pool.held = now
        return True

    def pledge(self, pool: Pool) -> None:
        """Pledge a pool's present memory: it stays charged while any process has the pool."""
        with self._lock:
            if pool.token and pool.held > pool.pledged:
                self._tokens.pledge(pool.token, pool.device, pool.held - pool.pledged)
                pool.pledged = pool.held
