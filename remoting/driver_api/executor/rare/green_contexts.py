"""Green contexts: contexts with a part of a device's multiprocessors.

A resource is a structure of the driver's own, which may hold addresses. It stays here, and the
client has a number and the part that programs look at.
"""

import ctypes
import struct
from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_HANDLE, OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.client_state import (
    GREEN_FIRST,
    WORDS,
    Client,
    Green,
    HandlerGroup,
)
from gpupool.remoting.driver_api.executor.direct import Direct

RESOURCE_SIZE = 144
"""Of CUdevResource."""

SHOWN_AT, SHOWN_SIZE = 96, 48
TOLD = struct.Struct(f"<QI4x{SHOWN_SIZE}s")
"""Resource number, type (0: no resource), and the part visible to programs."""

RESOURCES_MAX, GREENS_MAX, GROUPS_MAX = 1 << 16, 1 << 12, 256


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as the driver wrote it, and the device that it is of."""

    content: bytes
    device: int


class GreenContexts(HandlerGroup):
    """The resources and green contexts of a client process."""

    def __init__(self, client: Client, direct: Direct) -> None:
        super().__init__(client)
        self._direct = direct
        self._resources: dict[int, Resource] = {}
        self._numbers: dict[Resource, int] = {}
        self._descriptions: dict[int, int] = {}
        self.methods = {
            "GREEN_EVENT": self._event,
            "GREEN_RESOURCE": self._resource,
            "GREEN_SPLIT": self._split,
            "GREEN_DESCRIBE": self._describe,
            "GREEN_CREATE": self._create,
            "GREEN_DESTROY": self._destroy,
            "GREEN_STREAM": self._stream,
        }

    # --- resources --------------------------------------------------------------------------------

    def _told(self, content: bytes, device: int) -> bytes:
        """Register a resource; return its description for the client."""
        kind = int.from_bytes(content[:4], "little")
        if kind == 0:
            return TOLD.pack(0, 0, b"")
        resource = Resource(content, device)
        number = self._numbers.get(resource)
        if number is None:
            if len(self._resources) >= RESOURCES_MAX:
                raise CudaError(OUT_OF_MEMORY, "cuDevSmResourceSplitByCount")
            number = len(self._resources) + 1
            self._resources[number] = resource
            self._numbers[resource] = number
        return TOLD.pack(number, kind, content[SHOWN_AT:])

    def _resource(self, device: int, place: int, kind: int) -> bytes:
        """Return a resource of a green context, or of a device where ``place`` is 0."""
        found = ctypes.create_string_buffer(RESOURCE_SIZE)
        if place:
            green = self.client.green_contexts[place]
            self._direct.call("cuGreenCtxGetDevResource", green.handle, found, kind)
            return self._told(found.raw, green.device)
        ordinal = self.client.ordinals[self.client.index(device)]
        self._direct.call("cuDeviceGetDevResource", ordinal, found, kind)
        return self._told(found.raw, device)

    def _split(self, number: int, wanted: int, flags: int, least: int) -> bytes:
        """Return the group count, each group, and the remainder; or the count alone."""
        whole = self._resources[number]
        if wanted > GROUPS_MAX:
            raise RemoteProtocolError("malformed split of a resource")
        count = ctypes.c_uint32(wanted)
        remaining = ctypes.create_string_buffer(RESOURCE_SIZE)
        groups = ctypes.create_string_buffer(RESOURCE_SIZE * wanted) if wanted else None
        self._direct.call(
            "cuDevSmResourceSplitByCount", groups, count, whole.content, remaining, flags, least
        )
        if groups is None:
            return WORDS[1].pack(count.value)
        made = [
            groups.raw[at : at + RESOURCE_SIZE]
            for at in range(0, count.value * RESOURCE_SIZE, RESOURCE_SIZE)
        ]
        told = [self._told(content, whole.device) for content in (*made, remaining.raw)]
        return WORDS[1].pack(count.value) + b"".join(told)

    def _describe(self, number: int, count: int, resources: memoryview) -> bytes:
        if not 0 < count <= GROUPS_MAX or number in self._descriptions:
            raise RemoteProtocolError("malformed description of resources")
        if len(self._descriptions) >= RESOURCES_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuDevResourceGenerateDesc")
        numbers = [found for (found,) in WORDS[1].iter_unpack(resources)]
        contents = b"".join(self._resources[one].content for one in numbers)
        self._descriptions[number] = self._direct.get("cuDevResourceGenerateDesc", contents, count)
        return b""

    # --- contexts ---------------------------------------------------------------------------------

    def _create(self, place: int, description: int, device: int, flags: int) -> bytes:
        green_contexts = self.client.green_contexts
        if place < GREEN_FIRST or place in green_contexts:
            raise RemoteProtocolError("a green context that cannot be made")
        if len(green_contexts) >= GREENS_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuGreenCtxCreate")
        ordinal = self.client.ordinals[self.client.index(device)]
        described = self._descriptions[description]
        primary = self._direct.get("cuDevicePrimaryCtxRetain", ordinal)
        handle = self._direct.get("cuGreenCtxCreate", described, ordinal, flags)
        context = self._direct.get("cuCtxFromGreenCtx", handle)
        green_contexts[place] = Green(handle, context, primary, device)
        return b""

    def _destroy(self, place: int) -> bytes:
        if place not in self.client.green_contexts:
            raise CudaError(INVALID_HANDLE, "cuGreenCtxDestroy")
        if self.client.place == place:
            self.client.select(self.client.device)
        self._direct.call("cuGreenCtxDestroy", self.client.green_contexts.pop(place).handle)
        return b""

    def _stream(self, place: int, number: int, flags: int, priority: int) -> bytes:
        green = self.client.green_contexts[place]
        made = self._direct.get("cuGreenCtxStreamCreate", green.handle, flags, priority)
        self.client.keep("s", number, made)
        return b""

    def _event(self, place: int, event: int, waits: int) -> None:
        name = "cuGreenCtxWaitEvent" if waits else "cuGreenCtxRecordEvent"
        self._direct.call(name, self.client.green_contexts[place].handle, self.objects["e"][event])
