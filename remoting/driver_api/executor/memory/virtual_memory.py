"""Virtual memory management: physical memory, charged once, and its mappings."""

from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import Budget
from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, OUT_OF_MEMORY, Api, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import Tokens
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.memory.virtual_addresses import Addresses

OBJECTS_MAX = 1 << 20
"""Pieces of physical memory, and mappings, that one client may have at a time."""


@dataclass(slots=True)
class Physical:
    """Memory of cuMemCreate; CUDA keeps it until it is released and mapped nowhere."""

    handle: int
    device: int
    cost: int
    mappings: int = 0
    released: bool = False
    token: bytes = b""  # once other processes may open it
    opened: bytes = b""  # the token of another process's that this was opened by


class VirtualMemory:
    """The physical memory and the mappings of one client process. Numbers are the client's."""

    def __init__(self, api: Api, budget: Budget, tokens: Tokens) -> None:
        self._api = api
        self._budget = budget
        self._tokens = tokens
        self._physical: dict[int, Physical] = {}
        self._mapped: dict[int, tuple[int, Physical]] = {}  # size and memory, by address

    def create(
        self, number: int, size: int, device: int, ordinal: int, cost: int, *, kinds: int = 0
    ) -> None:
        """Make physical memory of a device and charge ``cost`` for it.

        ``kinds`` is a CUmemAllocationHandleType: how it may be exported.

        Raises:
            CudaError: when the partition or the GPU is full.
        """
        if number in self._physical or len(self._physical) >= OBJECTS_MAX:
            raise CudaError(INVALID_HANDLE, "cuMemCreate")
        if not self._budget.reserve(device, cost):
            raise CudaError(OUT_OF_MEMORY, "cuMemCreate")
        cu = self._api.cu
        properties = cu.CUmemAllocationProp()
        properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        if kinds:
            properties.requestedHandleTypes = self._api.enumerated(
                "CUmemAllocationHandleType", kinds
            )
        try:
            handle = int(self._api.call("cuMemCreate", size, properties, 0))
        except CudaError:
            self._budget.release(device, cost)
            raise
        self._physical[number] = Physical(handle, device, cost)

    def adopt(self, number: int, handle: int, device: int, token: bytes) -> None:
        """Take physical memory of another process, which is charged under its token.

        Raises:
            CudaError: when there is no room for it here; then it is released.
        """
        if number in self._physical or len(self._physical) >= OBJECTS_MAX:
            self._api.call("cuMemRelease", handle)
            raise CudaError(INVALID_HANDLE, "cuMemImportFromShareableHandle")
        self._physical[number] = Physical(handle, device, 0, opened=token)

    def find(self, number: int) -> Physical:
        """Return physical memory by the client's number.

        Raises:
            KeyError: when there is none.
        """
        return self._physical[number]

    def release(self, number: int) -> None:
        """Give up physical memory; it is free once nothing is mapped to it any more."""
        physical = self._physical.pop(number)
        self._api.call("cuMemRelease", physical.handle)
        physical.released = True
        self._settle(physical)

    def map(self, address: int, size: int, number: int) -> None:
        """Map physical memory to reserved addresses."""
        physical = self._physical[number]
        if len(self._mapped) >= OBJECTS_MAX:
            raise RemoteProtocolError("too many mappings")
        self._api.call("cuMemMap", address, size, 0, physical.handle, 0)
        physical.mappings += 1
        self._mapped[address] = (size, physical)

    def unmap(self, address: int, size: int) -> None:
        """Unmap all that is mapped within these addresses."""
        self._api.call("cuMemUnmap", address, size)
        if address in self._mapped and self._mapped[address][0] == size:
            gone = [address]
        else:
            gone = [one for one in self._mapped if address <= one < address + size]
        for one in gone:
            physical = self._mapped.pop(one)[1]
            physical.mappings -= 1
            self._settle(physical)

    def set_access(self, address: int, size: int, ordinal: int, flags: int) -> None:
        """Set a device's access to a mapped range; ``flags`` is a CUmemAccess_flags."""
        cu = self._api.cu
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = ordinal
        access.flags = self._api.enumerated("CUmemAccess_flags", flags)
        self._api.call("cuMemSetAccess", address, size, [access], 1)

    def _settle(self, physical: Physical) -> None:
        if not physical.released or physical.mappings:
            return
        if physical.token:
            # The host's descriptor would keep memory that nobody is charged for.
            self._tokens.forget(physical.token)
        if physical.opened:
            self._tokens.let_go(physical.opened)
        self._tokens.release(physical.token, physical.device, physical.cost)


class Virtual(HandlerGroup):
    """The records of virtual memory management."""

    def __init__(self, client: Client, memory: Memory, addresses: Addresses) -> None:
        super().__init__(client)
        self.memory = memory
        self._addresses = addresses
        self.virtual = VirtualMemory(client.api, client.budget, memory.tokens)
        self.methods = {
            "VIRTUAL_RELEASE": self.virtual.release,
            "VIRTUAL_RETURN": addresses.give_back,
            "VIRTUAL_UNMAP": self.virtual.unmap,
            "VIRTUAL_CREATE": self._virtual_create,
            "VIRTUAL_RESERVE": self._virtual_reserve,
            "VIRTUAL_MAP": self._virtual_map,
            "VIRTUAL_ACCESS": self._virtual_access,
        }

    def _virtual_create(self, number: int, size: int, device: int, kinds: int) -> bytes | None:
        ordinal, cost = self.client.ordinals[self.client.index(device)], charged(size)

        def work() -> bytes:
            self.virtual.create(number, size, device, ordinal, cost, kinds=kinds)
            return b""

        return self.memory.once_freed(work)

    def _virtual_reserve(self, size: int, alignment: int, wish: int) -> bytes:
        return WORDS[1].pack(self._addresses.reserve(size, alignment, wish))

    def _virtual_map(self, address: int, size: int, number: int) -> bytes:
        self.virtual.map(address, size, number)
        return b""

    def _virtual_access(self, address: int, size: int, device: int, flags: int) -> bytes:
        self.virtual.set_access(
            address, size, self.client.ordinals[self.client.index(device)], flags
        )
        return b""
