"""Device memory: allocated and freed against the partition."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpupool.remoting.driver_api.executor.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory import address_slices
from gpupool.remoting.driver_api.executor.memory.ipc_tokens import Tokens
from gpupool.remoting.driver_api.executor.memory.memory_pools import Pools
from gpupool.remoting.driver_api.executor.streams import IDLE_STREAMS_MAX
from gpupool.remoting.driver_api.schema.records import NUMBERS

SMALL_SIZE = 512
LARGE_SIZE = 1 << 20
LARGE_UNIT = 2 << 20


def charged(size: int) -> int:
    """Return the cost of an allocation: small ones share CUDA's pages, large ones fill theirs."""
    unit = LARGE_UNIT if size >= LARGE_SIZE else SMALL_SIZE
    return (size + unit - 1) // unit * unit


Free = tuple[int, Callable[[], None] | None, Callable[[], None]]
"""An address, a callback for after its free, and a wait for the work before it."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A place in a stream, and the memory that is free there."""

    event: int
    device: int
    op: int
    freed: Callable[[], None]


class Memory(HandlerGroup):
    """Allocations of a client process."""

    def __init__(self, client: Client, pools: Pools, tokens: Tokens) -> None:
        super().__init__(client)
        self.pools = pools
        self.tokens = tokens
        self._reached: queue.SimpleQueue[Reached] = queue.SimpleQueue()
        self._reaping = False
        self._frees: dict[int, deque[Free]] = {}  # by device
        self._frees_lock = threading.Lock()
        self.of_graphs: set[int] = set()  # addresses that launches left, of graphs that are no more
        self.methods = {
            "FREE": self.free,
            "FREE_ASYNC": self._free_async,
            "RESET_DEVICE": self._reset_device,
            "ALLOCATE": self._allocate,
            "ALLOCATE_ASYNC": self._allocate_async,
            "MEMORY_INFO": self._memory_info,
        }

    def _allocate(self, size: int) -> bytes | None:
        device = self.client.device
        return self.once_freed(lambda: self._allocate_now(device, size))

    def once_freed(self, work: Callable[[], bytes]) -> bytes | None:
        """Return the result of ``work``; if memory is short, reply after the pending frees."""
        try:
            return work()
        except self.api.errors as error:
            if self.api.status_of(error) != OUT_OF_MEMORY or not self.waiter.freeing.pending:
                raise
        self._after_frees(work)
        return None

    def _allocate_now(self, device: int, size: int) -> bytes:
        cost = charged(size)
        self.reserve(device, cost)
        try:
            address = self.api.runtime.malloc(size)
        except self.api.errors:
            self.client.budget.release(device, cost)
            raise
        if not address_slices.holds(address, size):
            self.api.runtime.free(address)
            self.client.budget.release(device, cost)
            raise self._astray(address)
        self.client.allocations[address] = (device, cost)
        return WORDS[1].pack(address)

    def _astray(self, address: int) -> CudaError:
        """Return the error for memory outside of this server's slice of the address space."""
        self.client.log(f"CUDA session: memory at {address:#x}, outside of this server's part")
        return CudaError(OUT_OF_MEMORY, "cuMemAlloc")

    def reserve(self, device: int, cost: int) -> None:
        """Take ``cost`` bytes from the partition, and if need be free memory from pools.

        Raises:
            CudaError: when it has not so much left.
        """
        budget = self.client.budget
        if cost == 0 or budget.reserve(device, cost):
            return
        # As CUDA does: an allocation gets memory that lies idle in a pool.
        if not (self.pools.squeeze(device) and budget.reserve(device, cost)):
            raise CudaError(OUT_OF_MEMORY, "cuMemAlloc")

    def _after_frees(self, work: Callable[[], bytes]) -> None:
        """Answer the request with the result of ``work``, once no free is under way."""
        request, waiter = self.client.record.request, self.waiter

        def run() -> None:
            waiter.freeing.wait()
            try:
                body = work()
            except self.api.errors as error:
                self.session.reply(request, self.api.status_of(error))
            else:
                self.session.reply(request, 0, body)

        waiter.start(self.client.device, run)

    def _allocate_async(self, size: int, pool: int, stream: int) -> bytes | None:
        device, handle = self.client.device, self.streams[stream]
        self.pools.refuse_capture(handle, "cuMemAllocAsync")

        def work() -> bytes:
            address = self.pools.allocate(device, size, pool, handle)
            if size and not address_slices.holds(address, size):
                self.pools.freed(address)
                self.api.runtime.freeAsync(address, handle)
                raise self._astray(address)
            if size:
                self.client.allocations[address] = (device, 0)
            return WORDS[1].pack(address)

        try:
            return work()
        except self.api.errors as error:
            pending = self.waiter.freeing.pending or self.pools.pending
            if self.api.status_of(error) != OUT_OF_MEMORY or not pending:
                raise

        def work_when_idle() -> bytes:
            # CUDA, too, waits for frees that are under way before it refuses.
            self.api.runtime.deviceSynchronize()
            self.pools.settle()
            return work()

        self._after_frees(work_when_idle)
        return None

    def _mark(self, device: int) -> Callable[[], None]:
        """Return a wait until the GPU has come here, as far as events tell."""
        client, handles = self.client, list(self.streams.values())
        if device != client.device or client.captures or len(handles) > IDLE_STREAMS_MAX:
            return lambda: None
        try:
            return self.waiter.mark(device, handles)
        except self.api.errors:
            return lambda: None

    def free(self, address: int) -> None:
        """Free memory on another thread: CUDA waits for the GPU before it does.

        It keeps other calls meanwhile, one of which a stream may wait for. So it is called once all
        that came before is over.
        """
        if self.pools.imports.outlives(address):
            return
        device, freed = self.take(address)
        reached = self._mark(device)
        self.waiter.freeing.begin(keeps=True)
        with self._frees_lock:
            busy = device in self._frees
            self._frees.setdefault(device, deque()).append((address, freed, reached))
        if not busy:
            self.waiter.start(device, lambda: self._free_all(device))

    def _free_all(self, device: int) -> None:
        """Free all queued memory of a device, one by one: CUDA serialises frees in any case."""
        while True:
            with self._frees_lock:
                if not self._frees[device]:
                    del self._frees[device]
                    return
                address, freed, reached = self._frees[device].popleft()
            try:
                reached()
                self.api.runtime.free(address)
                if self.pools.pending:
                    self.pools.settle()
                # In this order: a waiting allocation must find the memory in the books.
                if freed is not None:
                    freed()
            except self.api.errors as error:  # and CUDA still has the memory
                self.client.fail(NUMBERS["FREE"], self.api.status_of(error))
            finally:
                self.waiter.freeing.end(keeps=True)

    def take(self, address: int) -> tuple[int, Callable[[], None] | None]:
        """Remove an allocation; return its device, and a callback for after the free."""
        device, cost = self.client.allocations.pop(address)
        if self.pools.owns(address):
            self.pools.freed(address)
        token, imported = self.tokens.freed(address), self.pools.imports.take(address)
        if imported is not None:
            return device, lambda: self.pools.import_freed(imported)
        of_graph = address in self.of_graphs
        self.of_graphs.discard(address)
        if not cost:
            return device, None  # a pool's, or a graph's that is charged for it

        def freed() -> None:
            if of_graph:  # CUDA keeps it for graphs
                self.pools.trim_graphs(device)
            self.tokens.release(token, device, cost)

        return device, freed

    def _free_async(self, address: int, stream: int) -> None:
        handle = self.streams[stream]
        self.pools.refuse_capture(handle, "cuMemFreeAsync")
        if self.pools.imports.outlives(address):
            return
        _, freed = self.take(address)
        self.api.runtime.freeAsync(address, handle)
        if freed is not None:
            self.when_reached(handle, NUMBERS["FREE_ASYNC"], freed)

    def when_reached(self, stream: int, op: int, freed: Callable[[], None]) -> None:
        """Call ``freed`` once a stream of CUDA has come to this place."""
        device = self.client.device
        event = self.waiter.event(device)
        self.api.record(event, stream)
        self.waiter.freeing.begin()
        self._reached.put(Reached(event, device, op, freed))
        if not self._reaping:
            self._reaping = True
            self.waiter.start(device, self._reap)

    def _reap(self) -> None:
        """Wait for one place after the other: a thread for each might be more than there are."""
        while True:
            one = self._reached.get()
            try:
                self.api.runtime.eventSynchronize(one.event)
                one.freed()
            except self.api.errors as error:
                self.client.fail(one.op, self.api.status_of(error))
            finally:
                self.waiter.freeing.end()
                self.waiter.give_event(one.device, one.event)

    def _reset_device(self, device: int) -> None:
        self.client.index(device)
        for address, (owner, _) in list(self.client.allocations.items()):
            while owner == device and address in self.client.allocations:
                self.free(address)

    def _memory_info(self) -> bytes | None:
        device = self.client.device
        if self.waiter.freeing.pending:
            self._after_frees(lambda: self._memory_info_now(device))
            return None
        return self._memory_info_now(device)

    def _memory_info_now(self, device: int) -> bytes:
        if self.pools.pending:
            self.pools.settle()
        total = self.client.devices[device].memory
        left = max(0, total - self.client.budget.usage(device))
        free, _ = self.api.runtime.memGetInfo()
        return WORDS[2].pack(min(left, free), total)
