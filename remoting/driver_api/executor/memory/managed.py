"""Managed memory: device memory at an address that is the client's as well.

The client keeps both sides coherent (shim/hostmem/managed.c); here is memory that all devices of
the session reach, and copies that wait for no kernel but those that must come first.
"""

from collections.abc import Callable

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import DEVICE_TO_HOST, INVALID_VALUE, CudaError
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.memory.transfers import Transfers
from gpupool.remoting.driver_api.executor.memory.virtual_addresses import Addresses
from gpupool.remoting.driver_api.executor.memory.virtual_memory import VirtualMemory
from gpupool.remoting.driver_api.schema.records import NUMBERS

UNIT = 2 << 20
"""Regions are multiples of it: no device's granularity of mappings is larger."""

READ_SIZE_MAX = 4 << 20
READ_WRITE = 3
LEGACY_STREAM = 0
NON_BLOCKING = 1


class Managed(HandlerGroup):
    """The managed memory of a client process."""

    def __init__(
        self, client: Client, memory: Memory, transfers: Transfers, addresses: Addresses
    ) -> None:
        super().__init__(client)
        self._addresses = addresses
        self._memory = memory
        self._transfers = transfers
        self._virtual = VirtualMemory(client.api, client.budget, memory.tokens)
        self._streams: dict[int, int] = {}  # for copies to the device, by device
        self.methods = {
            "MANAGED_FREE": self._free,
            "MANAGED_WRITE": self._write,
            "MANAGED_ALLOCATE": self._allocate,
            "MANAGED_READ": self._read,
        }

    # --- regions ----------------------------------------------------------------------------------

    def _allocate(self, number: int, size: int, wish: int) -> bytes | None:
        if not size or size % UNIT:
            raise CudaError(INVALID_VALUE, "cuMemAllocManaged")
        device = self.client.device
        return self._memory.once_freed(lambda: self._allocate_now(device, number, size, wish))

    def _allocate_now(self, device: int, number: int, size: int, wish: int) -> bytes:
        """Make memory, where the client wishes it if that is free here, and fill it with zeros."""
        virtual, undo = self._virtual, list[Callable[[], None]]()
        try:
            address = self._addresses.reserve(size, UNIT, wish)
            undo.append(lambda: self._addresses.give_back(address, size))
            virtual.create(number, size, device, self.client.ordinals[device], charged(size))
            undo.append(lambda: virtual.release(number))
            virtual.map(address, size, number)
            undo.append(lambda: virtual.unmap(address, size))
            self._give_access(address, size, device)
            stream = self._stream(device)
            self.api.runtime.memsetAsync(address, 0, size, stream)
            self.api.runtime.streamSynchronize(stream)
        except self.api.errors as error:
            self.client.log(f"CUDA session: managed memory of {size} bytes: {error}")
            for step in reversed(undo):
                step()
            raise
        return WORDS[1].pack(address)

    def _give_access(self, address: int, size: int, device: int) -> None:
        """Let all devices of the session use memory of one of them, if they can."""
        own = self.client.ordinals[device]
        self._virtual.set_access(address, size, own, READ_WRITE)
        for peer in self.client.ordinals:
            if peer == own or not self.api.call("cuDeviceCanAccessPeer", peer, own):
                continue
            try:
                self._virtual.set_access(address, size, peer, READ_WRITE)
            except CudaError as error:
                self.client.log(f"CUDA session: managed memory for device {peer}: {error}")

    def _free(self, number: int, address: int, size: int) -> None:
        """Free a region on a separate thread, as cuMemFree waits for the GPU."""
        freeing, device = self.waiter.freeing, self.client.device
        freeing.begin()

        def run() -> None:
            try:
                self.api.runtime.deviceSynchronize()
                self._virtual.unmap(address, size)
                self._virtual.release(number)
                self._addresses.give_back(address, size)
            except self.api.errors as error:
                self.client.fail(NUMBERS["MANAGED_FREE"], self.api.status_of(error))
            except KeyError:
                self.client.fail(NUMBERS["MANAGED_FREE"], INVALID_VALUE)
            finally:
                freeing.end()

        self.waiter.start(device, run)

    # --- copies -----------------------------------------------------------------------------------

    def _stream(self, device: int) -> int:
        """Return a stream of a device that waits for no other; the device is current."""
        if device not in self._streams:
            self._streams[device] = self.api.runtime.streamCreateWithFlags(NON_BLOCKING)
        return self._streams[device]

    def _write(self, address: int, size: int) -> None:
        """Take over the bytes that the client's program wrote, before all later records.

        This waits for the copy, and for no kernel: those that use the memory are over, or the
        program could not have written there, and those to come may be on any stream.
        """
        if size != self.client.record.bulk:
            raise RemoteProtocolError("malformed write to managed memory")
        stream = self._stream(self.client.device)
        self._transfers.copy_bulk_in(address, size, stream)
        self.api.runtime.streamSynchronize(stream)

    def _read(self, address: int, size: int, device: int, at_once: int) -> None:
        """Reply with the bytes of managed memory, after all earlier work unless ``at_once``.

        Streams that wait for no other are not waited for either: programs synchronise with them.
        """
        if not 0 < size <= READ_SIZE_MAX:
            raise CudaError(INVALID_VALUE, "cuMemAllocManaged")
        request, place, waiter = self.client.record.request, self.client.place, self.waiter
        self.client.select(self.client.index(device))
        try:
            stream = self._stream(device) if at_once else LEGACY_STREAM
            buffer = waiter.take(device, size)
            self.api.copy(buffer.address, address, size, DEVICE_TO_HOST, stream)
            self.api.record(buffer.event, stream)
        finally:
            self.client.select(place)
        waiter.answer(request, device, buffer, size)
