"""Parameters of graph nodes: CUgraphNodeParams of cuda.h, on the wire and as CUDA takes them.

On the wire, handles are the client's numbers, contexts are devices counted from one (0: the current
one), and the host's memory is a place in a slot. Layouts are those of 64-bit Linux.
"""

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.api import INVALID_VALUE, NOT_SUPPORTED, CudaError
from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.host_functions import HostFunctions
from gpupool.remoting.driver_api.executor.memory.cuda_arrays import Arrays
from gpupool.remoting.driver_api.executor.memory.slots import Slots

PARAMS_SIZE, COPY_SIZE = 256, 200
UNION = 16
KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, WAIT_EVENT, RECORD_EVENT = range(8)
HOST_DATA = 24
ALLOCATE, FREE, BATCH, CONDITIONAL = 10, 11, 12, 13

KERNEL_PARAMETERS, KERNEL_EXTRA, KERNEL_KERN, KERNEL_CONTEXT = 56, 64, 72, 80
MEMCPY_CONTEXT, MEMCPY_COPY = 24, 32
MEMSET_CONTEXT, MEMSET_SIZE = 56, 40
ALLOCATE_DEVICE, ALLOCATE_ACCESS, ALLOCATE_COUNT, ALLOCATE_BYTES = 28, 104, 112, 120
ALLOCATE_ADDRESS, ALLOCATE_SIZE = 128, 120
BATCH_COUNT, BATCH_ARRAY, BATCH_OPERATION = 24, 32, 48
CONDITIONAL_BODIES, CONDITIONAL_CONTEXT = 32, 40

BOX = struct.Struct("<4Qi4xQQQQQQ")
"""Of CUDA_MEMCPY3D: x, y, z, level, type, host, device, array, reserved, pitch, height."""

EXTENT = struct.Struct("<3Q")
BOX_SIZE = 88
ON_HOST, ON_DEVICE, IN_ARRAY = 1, 2, 3
ACCESS = struct.Struct("<iii")
WORD = struct.Struct("<Q")
KERNEL_NODE = struct.Struct("<Q7I4xQQQQ")
"""Of CUDA_KERNEL_NODE_PARAMS_v2: function, grid, block, shared, then four pointers."""

WORD_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Params:
    """Parameters as CUDA takes them, and the memory that they point to."""

    bytes: bytearray
    keep: Any = None

    @property
    def kind(self) -> int:
        """CUgraphNodeType."""
        return struct.unpack_from("<i", self.bytes)[0]

    def pointer(self) -> Any:
        """Return a ctypes object at the address of the parameters."""
        return (ctypes.c_char * PARAMS_SIZE).from_buffer(self.bytes)

    def index(self, at: int) -> int:
        """Return a 32-bit value."""
        return struct.unpack_from("<i", self.bytes, at)[0]

    def word(self, at: int) -> int:
        """Return a 64-bit value."""
        return WORD.unpack_from(self.bytes, at)[0]


class Translator:
    """Puts CUDA's handles and addresses in place of the client's, and the other way round."""

    def __init__(
        self, client: Client, direct: Direct, slots: Slots, arrays: Arrays, hosts: HostFunctions
    ) -> None:
        self._client = client
        self._direct = direct
        self._slots = slots
        self._arrays = arrays
        self._hosts = hosts
        self._contexts: dict[int, int] = {}

    def context(self, word: int) -> int:
        """Return the context of a device counted from one; 0 stays the current one.

        Raises:
            ProtocolError: when there is no such device.
        """
        if word == 0:
            word = self._client.device + 1
        device = self._client.index(word - 1)
        if device not in self._contexts:
            ordinal = self._client.ordinals[device]
            made = self._direct.get("cuDevicePrimaryCtxRetain", ordinal)
            self._contexts[device] = made
            if self._client.launcher is not None:
                self._client.launcher.keep("c", device + 1, made)
        return self._contexts[device]

    # --- to CUDA ----------------------------------------------------------------------------------

    def to_cuda(self, params: bytes, data: bytes) -> Params:
        """Return parameters that came from the client, and the bytes behind them, for CUDA.

        Raises:
            ProtocolError: when they are not what a shim sends.
            CudaError: when CUDA would refuse them.
            KeyError: when they name what is not there.
        """
        made = Params(bytearray(params))
        kind = made.kind
        if kind == KERNEL:
            self._kernel(made, data)
        elif kind == MEMCPY:
            self._context(made, MEMCPY_CONTEXT)
            copy = self.copy_to_cuda(params[MEMCPY_COPY : MEMCPY_COPY + COPY_SIZE])
            made.bytes[MEMCPY_COPY : MEMCPY_COPY + COPY_SIZE] = copy
        elif kind == MEMSET:
            self._context(made, MEMSET_CONTEXT)
        elif kind == HOST:
            self._hosts.begin()
            words = (self._hosts.function, made.word(UNION))
            struct.pack_into("<2Q", made.bytes, UNION, *words)
        elif kind in (WAIT_EVENT, RECORD_EVENT):
            WORD.pack_into(made.bytes, UNION, self._client.objects["e"][made.word(UNION)])
        elif kind == GRAPH:
            WORD.pack_into(made.bytes, UNION, self._client.objects["g"][made.word(UNION)])
        elif kind == ALLOCATE:
            self._allocation(made, data)
        elif kind == BATCH:
            self._batch(made, data)
        elif kind == CONDITIONAL:
            self._context(made, CONDITIONAL_CONTEXT)
            WORD.pack_into(made.bytes, CONDITIONAL_BODIES, 0)
        elif kind not in (EMPTY, FREE):
            raise CudaError(NOT_SUPPORTED, "cuGraphAddNode")
        return made

    def _context(self, made: Params, at: int) -> None:
        WORD.pack_into(made.bytes, at, self.context(made.word(at)))

    def _kernel(self, made: Params, data: bytes) -> None:
        function = self._client.functions[made.word(UNION)]
        if len(data) != function.size:
            raise RemoteProtocolError("malformed parameters of a kernel node")
        function.view[:] = data
        context = self.context(made.word(KERNEL_CONTEXT))
        plain, kernel = (0, function.handle) if function.kernel else (function.handle, 0)
        WORD.pack_into(made.bytes, UNION, plain)
        words = (function.pointers, 0, kernel, context)
        struct.pack_into("<4Q", made.bytes, KERNEL_PARAMETERS, *words)

    def copy_to_cuda(self, copy: bytes) -> bytes:
        """Return a CUDA_MEMCPY3D with slots' addresses in place of slots."""
        made = bytearray(copy)
        extent = EXTENT.unpack_from(copy, 2 * BOX_SIZE)
        for at in (0, BOX_SIZE):
            box = list(BOX.unpack_from(copy, at))
            if box[4] == ON_HOST:
                self._host_side(box, extent)
            elif box[4] == IN_ARRAY:
                box[7] = self._arrays.handle(box[7])
            elif box[4] != ON_DEVICE:
                raise CudaError(NOT_SUPPORTED, "cuGraphAddMemcpyNode")
            BOX.pack_into(made, at, *box)
        return bytes(made)

    def _host_side(self, box: list[int], extent: tuple[int, int, int]) -> None:
        width, height, depth = extent
        number, offset, pitch, rows = box[5], box[6], box[9], box[10]
        if any(box[:4]) or not (width and height and depth):
            raise CudaError(INVALID_VALUE, "cuGraphAddMemcpyNode")
        span = (depth - 1) * pitch * rows + (height - 1) * pitch + width
        box[5] = self._slots.address(number, offset, span)
        box[6] = 0

    def _allocation(self, made: Params, data: bytes) -> None:
        count = made.word(ALLOCATE_COUNT)
        if len(data) != count * ACCESS.size:
            raise RemoteProtocolError("malformed parameters of an allocation node")
        client = self._client
        (device,) = struct.unpack_from("<i", made.bytes, ALLOCATE_DEVICE)
        ordinal = client.ordinals[client.index(device)]
        struct.pack_into("<i", made.bytes, ALLOCATE_DEVICE, ordinal)
        access = bytearray(data)
        for at in range(0, len(data), ACCESS.size):
            kind, device, flags = ACCESS.unpack_from(data, at)
            ACCESS.pack_into(access, at, kind, client.ordinals[client.index(device)], flags)
        self._point(made, ALLOCATE_ACCESS, access)

    def _batch(self, made: Params, data: bytes) -> None:
        (count,) = struct.unpack_from("<I", made.bytes, BATCH_COUNT)
        if len(data) != count * BATCH_OPERATION:
            raise RemoteProtocolError("malformed parameters of a batch node")
        self._context(made, UNION)
        self._point(made, BATCH_ARRAY, bytearray(data))

    def _point(self, made: Params, at: int, data: bytearray) -> None:
        """Store the address of bytes that live as long as the parameters."""
        made.keep = (ctypes.c_char * len(data)).from_buffer(data) if data else None
        WORD.pack_into(made.bytes, at, ctypes.addressof(made.keep) if data else 0)

    # --- from CUDA --------------------------------------------------------------------------------

    def from_cuda(self, kind: int, node: int) -> tuple[bytes, bytes]:
        """Return parameters and the bytes behind them of a node that a capture or a clone made.

        What the client cannot be told, such as an event's number, is 0.
        """
        made, data = bytearray(PARAMS_SIZE), b""
        struct.pack_into("<i", made, 0, kind)
        if kind == KERNEL:
            data = self._read_kernel(node, made)
        elif kind == MEMCPY:
            copy = ctypes.create_string_buffer(COPY_SIZE)
            self._direct.call("cuGraphMemcpyNodeGetParams", node, copy)
            made[MEMCPY_COPY : MEMCPY_COPY + COPY_SIZE] = self._copy_from_cuda(copy.raw)
        elif kind == MEMSET:
            fill = ctypes.create_string_buffer(MEMSET_SIZE)
            self._direct.call("cuGraphMemsetNodeGetParams", node, fill)
            made[UNION : UNION + MEMSET_SIZE] = fill.raw
        elif kind == HOST:
            words = (ctypes.c_uint64 * 2)()
            self._direct.call("cuGraphHostNodeGetParams", node, words)
            WORD.pack_into(made, UNION, words[1])
        elif kind == ALLOCATE:
            memory = ctypes.create_string_buffer(ALLOCATE_SIZE)
            self._direct.call("cuGraphMemAllocNodeGetParams", node, memory)
            made[UNION : UNION + ALLOCATE_SIZE] = memory.raw
            (ordinal,) = struct.unpack_from("<i", made, ALLOCATE_DEVICE)
            struct.pack_into("<i", made, ALLOCATE_DEVICE, self._client.ordinals.index(ordinal))
            struct.pack_into("<2Q", made, ALLOCATE_ACCESS, 0, 0)
        elif kind == FREE:
            address = ctypes.c_uint64(0)
            self._direct.call("cuGraphMemFreeNodeGetParams", node, address)
            WORD.pack_into(made, UNION, address.value)
        return bytes(made), data

    def _read_kernel(self, node: int, made: bytearray) -> bytes:
        raw = ctypes.create_string_buffer(KERNEL_NODE.size)
        self._direct.call("cuGraphKernelNodeGetParams_v2", node, raw)
        handle, *shape, parameters, _, kernel, _ = KERNEL_NODE.unpack(raw.raw)
        number = self._number_of(handle, kernel)
        KERNEL_NODE.pack_into(made, UNION, number, *shape, 0, 0, 0, 0)
        if not number:
            return b""
        function = self._client.functions[number]
        data = bytearray(function.size)
        layout = self._client.api.parameters(function.handle, kernel=function.kernel)
        if parameters and layout:
            pointers = (ctypes.c_uint64 * len(layout)).from_address(parameters)
            for (offset, size), address in zip(layout, pointers, strict=True):
                data[offset : offset + size] = ctypes.string_at(address, size)
        return bytes(data)

    def _number_of(self, handle: int, kernel: int) -> int:
        """Return the client's number of a function, which it may know as a kernel of a library."""
        for number, function in self._client.functions.items():
            if function.handle in (handle, kernel):
                return number
        for number, function in self._client.functions.items():
            if function.kernel:
                found = ctypes.c_uint64(0)
                status = self._direct.status("cuKernelGetFunction", found, function.handle)
                if status == 0 and found.value == handle:
                    return number
        return 0

    def _copy_from_cuda(self, copy: bytes) -> bytes:
        made = bytearray(copy)
        for at in (0, BOX_SIZE):
            x, y, z, level, kind, host, device, array, _, pitch, height = BOX.unpack_from(copy, at)
            if kind == IN_ARRAY:
                BOX.pack_into(made, at, x, y, z, level, kind, 0, 0, 0, 0, pitch, height)
                continue
            start = (host if kind == ON_HOST else device) + z * pitch * height + y * pitch + x
            found = self._slots.find(start & WORD_MASK)
            words = (*found, 0, 0) if found else (0, start & WORD_MASK, array, 0)
            side = ON_HOST if found else ON_DEVICE
            BOX.pack_into(made, at, 0, 0, 0, 0, side, *words, pitch, height)
        return bytes(made)
