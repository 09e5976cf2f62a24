"""What answers all device queries of a client: everything that it may know, sent once."""

import struct
from collections.abc import Sequence
from uuid import UUID

from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.devices.nvml import count_links
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.schema import table

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
