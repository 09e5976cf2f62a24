"""The session itself: its greeting, its current device, its limits.

A snapshot of the devices is sent once, and answers all device queries of a client.
"""

import struct
from collections.abc import Sequence
from uuid import UUID

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.executor.client_state import WORDS, Client, HandlerGroup
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.records import KNOWN_RECORDS, RECORDS
from gpupool.remoting.host.measuring.nvml import count_links

DEVICE_COUNT_MAX = 16
ATTRIBUTE_COUNT = 192
NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: over NVLink, and not over PCIe."""

DEVICE = struct.Struct("<256s16s3iIQ2Q2i16s192i192s")
HEAD = struct.Struct("<4I")
ERROR = struct.Struct("<iHH")


def encode_device(
    api: Api, spec: DeviceSpec, specs: Sequence[DeviceSpec], priorities: tuple[int, int]
) -> bytes:
    """Return one device as ``struct wire_device`` of shim/runtime/snapshot.c."""
    assert spec.ordinal is not None
    attributes = api.device_attributes(spec.ordinal)
    values = [attributes.get(number, 0) for number in range(ATTRIBUTE_COUNT)]
    known = bytes(number in attributes for number in range(ATTRIBUTE_COUNT))
    peers = bytearray(DEVICE_COUNT_MAX)
    for other in specs:
        if other.index != spec.index and other.ordinal is not None:
            peers[other.index] = bool(
                api.call("cuDeviceCanAccessPeer", spec.ordinal, other.ordinal)
            )
    uuid = bytes(api.call("cuDeviceGetUuid", spec.ordinal).bytes)
    name = api.call("cuDeviceGetName", 255, spec.ordinal).split(b"\0")[0]
    links = _links(api, spec, specs, uuid)
    pci = [attributes.get(number, 0) for number in (50, 33, 34)]
    granularity = _granularity(api, spec.ordinal)
    return DEVICE.pack(
        name,
        uuid,
        *pci,
        links,
        spec.memory,
        *granularity,
        *priorities,
        bytes(peers),
        *values,
        known,
    )


def _links(api: Api, spec: DeviceSpec, specs: Sequence[DeviceSpec], uuid: bytes) -> int:
    """Return how many NVLinks a device has, if it reaches all others of the session by such."""
    others = [other.ordinal for other in specs if other.index != spec.index]
    kind = api.enumerated("CUdevice_P2PAttribute", NATIVE_ATOMICS)
    for other in others:
        if not api.call("cuDeviceGetP2PAttribute", kind, spec.ordinal, other):
            return 0
    return count_links(f"GPU-{UUID(bytes=uuid)}") if others else 0


def _granularity(api: Api, ordinal: int) -> tuple[int, int]:
    cu = api.cu
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    found: list[int] = []
    for option in (0, 1):
        status, size = cu.cuMemGetAllocationGranularity(
            properties, cu.CUmemAllocationGranularity_flags(option)
        )
        found.append(2 << 20 if status else int(size))
    return found[0], found[1]


def encode_snapshot(api: Api, specs: Sequence[DeviceSpec]) -> bytes:
    """Return the snapshot, as ``read_snapshot`` of shim/runtime/snapshot.c reads it."""
    errors = api.error_texts()
    version = int(api.call("cuDriverGetVersion"))
    pieces = [HEAD.pack(table.PROTOCOL, version, len(specs), len(errors))]
    for spec in specs:
        api.runtime.setDevice(spec.ordinal)
        least, greatest = api.call("cuCtxGetStreamPriorityRange")
        pieces.append(encode_device(api, spec, specs, (int(least), int(greatest))))
    for code, name, text in errors:
        pieces += [ERROR.pack(code, len(name), len(text)), name, text]
    return b"".join(pieces)


STACK_SIZE, PRINTF_SIZE, HEAP_SIZE = 0, 1, 2
"""CUlimit values: stack size of a thread, size of the printf FIFO, size of the malloc heap."""

MULTIPROCESSORS, THREADS = 16, 39
"""By CUdevice_attribute: multiprocessors, and the threads that each of them can have."""

SAME_VERSION = "install the same version of gpupool on this machine and on the servers"


class Contexts(HandlerGroup):
    """Executes the records that concern a device as a whole."""

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
