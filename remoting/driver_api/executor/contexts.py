"""The session itself: its greeting, its current device, its limits."""

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.device_snapshot import encode_snapshot
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import KNOWN_RECORDS, RECORDS

STACK_SIZE, PRINTF_SIZE, HEAP_SIZE = 0, 1, 2
"""By CUlimit: a thread's stack, what kernels may print between synchronisations, and allocate."""

MULTIPROCESSORS, THREADS = 16, 39
"""By CUdevice_attribute: multiprocessors, and the threads that each of them can have."""

SAME_VERSION = "install the same version of gpupool on this machine and on the servers"


class Contexts(HandlerGroup):
    """What concerns a device as a whole."""

    def __init__(self, client: Client, memory: Memory, images: Images) -> None:
        super().__init__(client)
        self.memory = memory
        self.images = images
        self._initial: dict[tuple[int, int], int] = {}  # limits, by device and CUlimit
        self._held: dict[tuple[int, int], int] = {}  # bytes that those above cost
        self.methods = {
            "SET_DEVICE": self._set_device,
            "HELLO": self._hello,
            "GET_LIMIT": self._get_limit,
            "SET_LIMIT": self._set_limit,
        }

    def _hello(self, protocol: int, _version: int) -> bytes:
        if protocol != table.PROTOCOL:
            self.session.notice(f"this server has another version of the CUDA door: {SAME_VERSION}")
            raise RemoteProtocolError("the client has another version of the CUDA door")
        snapshot = encode_snapshot(self.api, self.client.devices)
        self.api.runtime.setDevice(self.client.ordinals[self.client.device])
        return snapshot + self.images.encoded()

    def _set_device(self, device: int) -> None:
        self.client.select(device)

    def _get_limit(self, limit: int) -> bytes:
        if limit == KNOWN_RECORDS:
            return WORDS[1].pack(len(RECORDS) | len(table.CALLS) << 32)
        name = self.api.enumerated("CUlimit", limit)
        return WORDS[1].pack(int(self.api.call("cuCtxGetLimit", name)))

    def _set_limit(self, limit: int, value: int) -> bytes:
        name, device = self.api.enumerated("CUlimit", limit), self.client.device
        if limit not in (STACK_SIZE, PRINTF_SIZE, HEAP_SIZE):
            self.api.call("cuCtxSetLimit", name, value)
            return b""
        unit = self._stacks(device) if limit == STACK_SIZE else 1
        # The driver's own sizes are a part of the context, which is charged already.
        initial = self._initial.setdefault(
            (device, limit), int(self.api.call("cuCtxGetLimit", name))
        )
        held = self._held.get((device, limit), 0)
        cost = charged(max(0, value - initial) * unit)
        if limit == STACK_SIZE:
            cost = max(cost, held)  # nobody has seen the driver give stacks back
        if cost > held:
            self.memory.reserve(device, cost - held)
        try:
            self.api.call("cuCtxSetLimit", name, value)
        except self.api.errors:
            if cost > held:
                self.client.budget.release(device, cost - held)
            raise
        if cost < held:
            self.client.budget.release(device, held - cost)
        self._held[device, limit] = cost
        return b""

    def _stacks(self, device: int) -> int:
        """Return how many stacks a device has: all its threads', at once (seen on an H200)."""
        found = self.api.device_attributes(self.client.ordinals[device])
        return found[MULTIPROCESSORS] * found[THREADS]
