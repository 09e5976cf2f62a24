"""Kernels and functions: their layouts and attributes, launches that are not plain, occupancy."""

import ctypes
import struct
from collections.abc import Callable

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.client_state import (
    OBJECTS_MAX,
    WORDS,
    Client,
    HandlerGroup,
)
from gpupool.remoting.driver_api.executor.direct import Direct
from gpupool.remoting.driver_api.executor.modules.function import Function
from gpupool.remoting.driver_api.schema.records import BY_NAME, LAUNCH_ATTRIBUTE_SIZE

LAUNCH = BY_NAME["LAUNCH"].struct
LAUNCH_ATTRIBUTES_MAX = 32
Head = tuple[int, int, int, int, int, int, int]
"""Of a launch: its grid, its block and its shared memory."""
TOGETHER = struct.Struct("<Q7I4xQQ")
"""CUDA_LAUNCH_PARAMS."""

TOGETHER_MAX = 64
FUNCTION_ATTRIBUTE_COUNT = 16


def prepare(handle: int, parameters: list[tuple[int, int]], *, kernel: bool) -> Function:
    """Return a function that launches with one copy of its parameters' bytes."""
    size = max((offset + length for offset, length in parameters), default=0)
    values = ctypes.create_string_buffer(max(size, 1))
    base = ctypes.addressof(values)
    addresses = [base + offset for offset, _ in parameters]
    pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
    view = memoryview(values).cast("B")[:size]
    where = ctypes.addressof(pointers)
    offsets = tuple(offset for offset, _ in parameters)
    return Function(handle, kernel, size, view, base, where, (values, pointers), offsets)


class Kernels(HandlerGroup):
    """The kernels of a client process that it has looked up."""

    def __init__(self, client: Client, direct: Direct) -> None:
        super().__init__(client)
        self._direct = direct
        self.methods = {
            "SET_FUNCTION_ATTRIBUTE": self._set_function_attribute,
            "FUNCTION_ATTRIBUTES": self._function_attributes,
            "OCCUPANCY": self._occupancy,
            "OCCUPANCY_SHARED": self._occupancy_shared,
            "OCCUPANCY_CLUSTERS": self._occupancy_clusters,
            "LAUNCH_TOGETHER": self._launch_together,
            "LAUNCH": self._launch_cooperative,
            "LAUNCH_EX": self._launch_ex,
        }

    def replaced(self) -> dict[str, Callable[..., None]]:
        """Return, by name, calls that CUDA has under another name for kernels."""
        return {"cuFuncSetCacheConfig": self._set_cache_config}

    def _set_cache_config(self, number: int, config: int) -> None:
        function, wish = self.client.functions[number], self.api.enumerated("CUfunc_cache", config)
        if function.kernel:
            ordinal = self.client.ordinals[self.client.device]
            self.api.call("cuKernelSetCacheConfig", function.handle, wish, ordinal)
        else:
            self.api.call("cuFuncSetCacheConfig", function.handle, wish)

    def keep(self, number: int, handle: int, *, kernel: bool) -> bytes:
        """Prepare launches of a kernel; return the layout of its parameters."""
        if number in self.client.functions or len(self.client.functions) >= OBJECTS_MAX:
            raise RemoteProtocolError("a function that cannot be made")
        parameters = self.api.parameters(handle, kernel=kernel)
        made = prepare(handle, parameters, kernel=kernel)
        self.client.functions[number] = made
        if self.client.launcher is not None:
            self.client.launcher.function(number, made)
        flat = [value for pair in parameters for value in pair]
        return struct.pack(f"<II{len(flat)}I", len(parameters), 0, *flat)

    def _function_attributes(self, number: int, device: int) -> bytes:
        function = self.client.functions[number]
        ordinal = self.client.ordinals[self.client.index(device)]
        cu = self.api.cu
        statuses: list[int] = []
        values: list[int] = []
        for attribute in range(FUNCTION_ATTRIBUTE_COUNT):
            name = cu.CUfunction_attribute(attribute)
            if function.kernel:
                status, value = cu.cuKernelGetAttribute(name, function.handle, ordinal)
            else:
                status, value = cu.cuFuncGetAttribute(name, function.handle)
            statuses.append(int(status))
            values.append(0 if status else int(value))
        return struct.pack("<32i", *statuses, *values)

    def _set_function_attribute(self, number: int, device: int, attribute: int, value: int) -> None:
        function = self.client.functions[number]
        ordinal = self.client.ordinals[self.client.index(device)]
        name = self.api.enumerated("CUfunction_attribute", attribute)
        if function.kernel:
            self.api.call("cuKernelSetAttribute", name, value, function.handle, ordinal)
        else:
            self.api.call("cuFuncSetAttribute", function.handle, name, value)

    def _launch_together(self, count: int, flags: int, given: memoryview) -> bytes:
        """Launch kernels on several devices that wait for each other."""
        if count > TOGETHER_MAX:
            raise RemoteProtocolError("malformed launch")
        launches, keep, at = b"", list[object](), 0
        for _ in range(count):
            if at + LAUNCH.size > len(given):
                raise RemoteProtocolError("malformed launch")
            number, stream, *head, length = LAUNCH.unpack_from(given, at)
            function, start = self.client.functions[number], at + LAUNCH.size
            if length != function.size or start + length > len(given):
                raise RemoteProtocolError("malformed launch")
            values, pointers = function.parameters_of(bytes(given[start : start + length]))
            keep += (values, pointers)
            where = ctypes.addressof(pointers)
            launches += TOGETHER.pack(function.handle, *head, self.streams[stream], where)
            at += LAUNCH.size + (length + 7 & ~7)
        self._direct.call("cuLaunchCooperativeKernelMultiDevice", launches, count, flags)
        return b""

    def _function(self, number: int, length: int) -> Function:
        function = self.client.functions[number]
        if length != function.size:
            raise RemoteProtocolError("malformed launch")
        return function

    def _launch_cooperative(
        self, number: int, stream: int, *given: *tuple[*Head, int, memoryview]
    ) -> None:
        *head, length, parameters = given
        function, handle = self._function(number, length), self.streams[stream]
        function.view[:] = parameters
        self.api.driver.launchCooperativeKernel(function.handle, *head, handle, function.pointers)

    def _launch_ex(
        self, number: int, stream: int, *given: *tuple[*Head, int, int, memoryview]
    ) -> None:
        *head, length, count, rest = given
        function, handle = self._function(number, length), self.streams[stream]
        if count > LAUNCH_ATTRIBUTES_MAX:
            raise RemoteProtocolError("malformed launch")
        start = count * LAUNCH_ATTRIBUTE_SIZE
        function.view[:] = rest[start:]
        attributes = bytes(rest[:start])
        self.api.launch_ex(function.handle, tuple(head), attributes, handle, function.pointers)

    def _occupancy(self, number: int, *values: int) -> bytes:
        block, shared, flags, _ = values
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
        handle = self.client.functions[number].handle
        return WORDS[1].pack(int(self.api.call(name, handle, block, shared, flags)))

    def _occupancy_shared(self, number: int, *values: int) -> bytes:
        blocks, block, _, _ = values
        name = "cuOccupancyAvailableDynamicSMemPerBlock"
        handle = self.client.functions[number].handle
        return WORDS[1].pack(int(self.api.call(name, handle, blocks, block)))

    def _occupancy_clusters(
        self, number: int, stream: int, *given: *tuple[*Head, int, int, int, memoryview]
    ) -> bytes:
        *head, _, potential, count, attributes = given
        if count > LAUNCH_ATTRIBUTES_MAX:
            raise RemoteProtocolError("malformed launch")
        config = self.api.config(tuple(head), bytes(attributes), self.streams[stream])
        name = "cuOccupancyMaxPotentialClusterSize" if potential else "cuOccupancyMaxActiveClusters"
        return WORDS[1].pack(int(self.api.call(name, self.client.functions[number].handle, config)))
