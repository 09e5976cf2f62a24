"""Arrays, arrays of arrays, copies from and to them, textures and surfaces."""

import ctypes
import struct
from dataclasses import dataclass

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import (
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    CudaError,
)
from gpupool.remoting.driver_api.executor.client_state import (
    OBJECTS_MAX,
    WORDS,
    Client,
    HandlerGroup,
)
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.memory.memory import Memory, charged
from gpupool.remoting.driver_api.executor.memory.staging_buffers import RING_SIZE
from gpupool.remoting.driver_api.schema.records import NUMBERS

ELEMENT_SIZES = {1: 1, 2: 2, 3: 4, 8: 1, 9: 2, 10: 4, 16: 2, 32: 4, 0xB0: 1}
"""Bytes of one channel, by CUarray_format; formats of later versions count as 4."""

LAYERED, CUBEMAP = 1, 4
TILE_WIDTH, TILE_HEIGHT = 64, 8
"""Of arrays of more than one dimension: bytes and rows that lie together, and come together."""

LEVELS_MAX = 32
PIECE_SIZE_MAX = 16 << 20
"""Of a copy between the client and an array: the client sends 4 MiB, or one row, at a time."""

DESCRIPTOR = struct.Struct("<QQQIII4x")
COPY = struct.Struct("<4QI4x6Q4QI4x6Q3Q")
HOST, DEVICE, ARRAY = 1, 2, 3

END_WORDS = 7
"""Of an end of a copy: kind, address or array, x, y, z, pitch, height."""

RESOURCE_SIZE, TEXTURE_SIZE, VIEW_SIZE = 144, 104, 112
MEMORY = 0
"""Query of an array's memory requirements; any other number queries its sparse properties."""

MEMORY_SIZE, SPARSE_SIZE = 32, 48
"""Of CUDA_ARRAY_MEMORY_REQUIREMENTS and CUDA_ARRAY_SPARSE_PROPERTIES."""

HANDLE = struct.Struct("<Q")
HANDLE_AT = 8
"""Where CUDA_RESOURCE_DESC has the handle of an array."""

OF_ARRAY, OF_MIPMAP = 0, 1


@dataclass(slots=True)
class Array:
    """An array, or an array of arrays; ``owner`` is the latter's number for one of its levels."""

    handle: int
    device: int
    cost: int
    levels: int
    owner: int = 0


def array_size(
    width: int, height: int, depth: int, element: int, *, levels: int, flags: int
) -> int:
    """Return the bytes of all levels of an array; extents of 0 count as 1.

    Layers, and the faces of a cube, are as many at each level.
    """
    total, layered = 0, bool(flags & (LAYERED | CUBEMAP))
    for level in range(max(1, levels)):
        columns, rows = max(1, width >> level), max(1, height >> level)
        planes = max(1, depth if layered else depth >> level)
        line = columns * element
        if height:
            line, rows = -(-line // TILE_WIDTH) * TILE_WIDTH, -(-rows // TILE_HEIGHT) * TILE_HEIGHT
        total += line * rows * planes
    return total


class Arrays(HandlerGroup):
    """The arrays, textures and surfaces of a client process."""

    def __init__(self, client: Client, direct: Direct, memory: Memory) -> None:
        super().__init__(client)
        self._direct = direct
        self._memory = memory
        self._arrays: dict[int, Array] = {}
        self._objects: set[tuple[bool, int]] = set()  # surface or texture, value
        self.methods = {
            "ARRAY_DESTROY": self._destroy,
            "ARRAY_COPY": self._copy,
            "ARRAY_WRITE": self._write,
            "TEXTURE_DESTROY": self._destroy_object,
            "ARRAY_CREATE": self._create,
            "ARRAY_LEVEL": self._level,
            "ARRAY_PLANE": self._plane,
            "ARRAY_ASK": self._ask,
            "ARRAY_READ": self._read,
            "TEXTURE_CREATE": self._create_object,
        }

    # --- arrays -----------------------------------------------------------------------------------

    def _create(self, number: int, *wanted: int) -> bytes | None:
        if number in self._arrays or len(self._arrays) >= OBJECTS_MAX:
            raise RemoteProtocolError("an array that cannot be made")
        width, height, depth, kind, channels, flags, levels = wanted
        if levels > LEVELS_MAX:
            raise CudaError(INVALID_VALUE, "cuMipmappedArrayCreate")
        device = self.client.device
        element = ELEMENT_SIZES.get(kind, 4) * channels
        size = array_size(width, height, depth, element, levels=levels, flags=flags)
        try:
            descriptor = DESCRIPTOR.pack(width, height, depth, kind, channels, flags)
        except struct.error:
            raise CudaError(INVALID_VALUE, "cuArray3DCreate") from None

        def work() -> bytes:
            cost = charged(size)
            self._memory.reserve(device, cost)
            try:
                if levels:
                    handle = self._direct.get("cuMipmappedArrayCreate", descriptor, levels)
                else:
                    handle = self._direct.get("cuArray3DCreate_v2", descriptor)
            except CudaError:
                self.client.budget.release(device, cost)
                raise
            self._arrays[number] = Array(handle, device, cost, levels)
            return b""

        return self._memory.once_freed(work)

    def _level(self, number: int, owner: int, level: int) -> bytes:
        whole = self._arrays[owner]
        if number in self._arrays or len(self._arrays) >= OBJECTS_MAX:
            raise RemoteProtocolError("an array that cannot be made")
        if level >= whole.levels:
            raise CudaError(INVALID_VALUE, "cuMipmappedArrayGetLevel")
        handle = self._direct.get("cuMipmappedArrayGetLevel", whole.handle, level)
        self._arrays[number] = Array(handle, whole.device, 0, 0, owner)
        return b""

    def _plane(self, number: int, owner: int, plane: int) -> bytes:
        whole = self._arrays[owner]
        if number in self._arrays or len(self._arrays) >= OBJECTS_MAX:
            raise RemoteProtocolError("an array that cannot be made")
        handle = self._direct.get("cuArrayGetPlane", self.handle(owner), plane)
        described = ctypes.create_string_buffer(DESCRIPTOR.size)
        self._direct.call("cuArray3DGetDescriptor_v2", described, handle)
        self._arrays[number] = Array(handle, whole.device, 0, 0, owner)
        return described.raw

    def _ask(self, number: int, what: int, device: int) -> bytes:
        array = self._arrays[number]
        kind = "MipmappedArray" if array.levels else "Array"
        if what == MEMORY:
            found = ctypes.create_string_buffer(MEMORY_SIZE)
            ordinal = self.client.ordinals[self.client.index(device)]
            self._direct.call(f"cu{kind}GetMemoryRequirements", found, array.handle, ordinal)
        else:
            found = ctypes.create_string_buffer(SPARSE_SIZE)
            self._direct.call(f"cu{kind}GetSparseProperties", found, array.handle)
        return found.raw

    def _destroy(self, number: int) -> None:
        """Destroy an array on a separate thread, since CUDA may wait for the GPU."""
        array = self._arrays[number]
        if array.owner:
            raise CudaError(INVALID_HANDLE, "cuArrayDestroy")
        gone = [one for one, level in self._arrays.items() if level.owner == number]
        for one in (number, *gone):
            del self._arrays[one]
        symbol = "cuMipmappedArrayDestroy" if array.levels else "cuArrayDestroy"
        freeing = self.waiter.freeing
        freeing.begin(keeps=True)

        def run() -> None:
            try:
                self._direct.call(symbol, array.handle)
            except CudaError as error:
                self.client.fail(NUMBERS["ARRAY_DESTROY"], error.status)
            finally:
                self.client.budget.release(array.device, array.cost)
                freeing.end(keeps=True)

        self.waiter.start(array.device, run)

    # --- copies -----------------------------------------------------------------------------------

    def handle(self, number: int) -> int:
        """Return CUDA's handle of an array, or of one level of several.

        Raises:
            CudaError: when it is an array of arrays.
        """
        array = self._arrays[number]
        if array.levels:
            raise CudaError(INVALID_HANDLE, "cuMemcpy3D")
        return array.handle

    def mipmap(self, number: int) -> int:
        """Return CUDA's handle of an array of arrays.

        Raises:
            CudaError: when it is no such array.
        """
        array = self._arrays[number]
        if not array.levels:
            raise CudaError(INVALID_HANDLE, "cuMipmappedArrayGetLevel")
        return array.handle

    def _end(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """Return an end as CUDA_MEMCPY3D has it."""
        kind, what, x, y, z, pitch, height = words
        if kind == ARRAY:
            return (x, y, z, 0, ARRAY, 0, 0, self.handle(what), 0, pitch, height)
        if kind != DEVICE:
            raise RemoteProtocolError("malformed copy of an array")
        return (x, y, z, 0, DEVICE, 0, what, 0, 0, pitch, height)

    def _copy(self, *words: int) -> None:
        target, source = self._end(words[:END_WORDS]), self._end(words[END_WORDS:-4])
        *extents, stream = words[-4:]
        copy = COPY.pack(*source, *target, *extents)
        self._direct.call("cuMemcpy3DAsync_v2", copy, self.streams[stream])

    def _write(self, *words: int) -> None:
        width, rows, stream = words[END_WORDS:]
        size, client = width * rows, self.client
        if size != client.record.bulk or size > PIECE_SIZE_MAX:
            raise RemoteProtocolError("malformed copy to an array")
        data = staging = None
        # Read before anything can fail, so that the next frame is found.
        if size <= RING_SIZE:
            staging = self.waiter.staging.upload(client.device)
            self.session.reader.into(staging.view[:size])
            client.record.bulk, address = 0, staging.address
        else:
            # A single row. CUDA copies pageable bytes before it returns, so they need not stay.
            data = client.read_bulk(size, PIECE_SIZE_MAX)
            address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        handle = self.streams[stream]
        source = (0, 0, 0, 0, HOST, address, 0, 0, 0, width, rows)
        copy = COPY.pack(*source, *self._end(words[:END_WORDS]), width, rows, 1)
        self._direct.call("cuMemcpy3DAsync_v2", copy, handle)
        if staging is not None:
            self.api.record(staging.event, handle)

    def _read(self, *words: int) -> bytes | None:
        width, rows, stream = words[END_WORDS:]
        client, handle = self.client, self.streams[stream]
        size, waiter = width * rows, self.waiter
        if not 0 < size <= PIECE_SIZE_MAX:
            raise CudaError(INVALID_VALUE, "cuMemcpy3D")
        if client.take_failure():
            return None
        source = self._end(words[:END_WORDS])
        buffer = waiter.take(client.device, size)
        target = (0, 0, 0, 0, HOST, buffer.address, 0, 0, 0, width, rows)
        self._direct.call("cuMemcpy3DAsync_v2", COPY.pack(*source, *target, width, rows, 1), handle)
        self.api.record(buffer.event, handle)
        waiter.answer(client.record.request, client.device, buffer, size)
        return None

    # --- textures and surfaces --------------------------------------------------------------------

    def _create_object(
        self, surface: int, number: int, viewed: int, description: memoryview
    ) -> bytes:
        if len(description) < RESOURCE_SIZE + TEXTURE_SIZE + VIEW_SIZE:
            raise RemoteProtocolError("malformed texture")
        if len(self._objects) >= OBJECTS_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuTexObjectCreate")
        data = bytes(description[: RESOURCE_SIZE + TEXTURE_SIZE + VIEW_SIZE])
        resource = bytearray(data[:RESOURCE_SIZE])
        kind = int.from_bytes(resource[:4], "little")
        if kind in (OF_ARRAY, OF_MIPMAP):
            array = self._arrays[number]
            if bool(array.levels) != (kind == OF_MIPMAP):
                raise CudaError(INVALID_HANDLE, "cuTexObjectCreate")
            HANDLE.pack_into(resource, HANDLE_AT, array.handle)
        if surface:
            value = self._direct.get("cuSurfObjectCreate", bytes(resource))
        else:
            texture = data[RESOURCE_SIZE : RESOURCE_SIZE + TEXTURE_SIZE]
            view = data[RESOURCE_SIZE + TEXTURE_SIZE :] if viewed else None
            value = self._direct.get("cuTexObjectCreate", bytes(resource), texture, view)
        self._objects.add((bool(surface), value))
        return WORDS[1].pack(value)

    def _destroy_object(self, surface: int, value: int) -> None:
        # Only what this client has made: another value would be taken for an address.
        self._objects.remove((bool(surface), value))
        self._direct.call("cuSurfObjectDestroy" if surface else "cuTexObjectDestroy", value)
