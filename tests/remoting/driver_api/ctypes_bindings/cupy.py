"""What the worker of the CUDA door uses of CuPy, by ctypes; see ctypes_driver.py."""

import ctypes
from typing import Any

from ctypes_driver import DriverError, call, get

CONTEXTS: dict[int, int] = {}


class Runtime:
    """cupy.cuda.runtime."""

    CUDARuntimeError = DriverError

    def setDevice(self, ordinal: int) -> None:
        if ordinal not in CONTEXTS:
            call("cuInit", 0)
            CONTEXTS[ordinal] = get("cuDevicePrimaryCtxRetain", ordinal)
        call("cuCtxSetCurrent", CONTEXTS[ordinal])

    def malloc(self, size: int) -> int:
        return get("cuMemAlloc", size)

    def free(self, address: int) -> None:
        if address:
            call("cuMemFree", address)

    def mallocAsync(self, size: int, stream: int) -> int:
        return get("cuMemAllocAsync", size, stream)

    def freeAsync(self, address: int, stream: int) -> None:
        call("cuMemFreeAsync", address, stream)

    def memGetInfo(self) -> tuple[int, int]:
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def memsetAsync(self, address: int, value: int, size: int, stream: int) -> None:
        call("cuMemsetD8Async", address, value, size, stream)

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        # As CUDA's runtime: what is said to be a device's address is never taken for the host's.
        name = {1: "cuMemcpyHtoDAsync", 2: "cuMemcpyDtoHAsync", 3: "cuMemcpyDtoDAsync"}[kind]
        call(f"{name}_v2", target, source, size, stream)

    def hostAlloc(self, size: int, flags: int) -> int:
        return get("cuMemHostAlloc", size, flags)

    def freeHost(self, address: int) -> None:
        call("cuMemFreeHost", address)

    def deviceSynchronize(self) -> None:
        call("cuCtxSynchronize")

    def streamCreateWithFlags(self, flags: int) -> int:
        return get("cuStreamCreate", flags)

    def streamDestroy(self, stream: int) -> None:
        call("cuStreamDestroy", stream)

    def streamSynchronize(self, stream: int) -> None:
        call("cuStreamSynchronize", stream)

    def streamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        call("cuStreamWaitEvent", stream, event, flags)

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        call("cuStreamBeginCapture", stream, mode)

    def streamEndCapture(self, stream: int) -> int:
        graph = ctypes.c_uint64(0)
        call("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value

    def eventCreateWithFlags(self, flags: int) -> int:
        return get("cuEventCreate", flags)

    def eventDestroy(self, event: int) -> None:
        call("cuEventDestroy", event)

    def eventRecord(self, event: int, stream: int) -> None:
        call("cuEventRecord", event, stream)

    def eventSynchronize(self, event: int) -> None:
        call("cuEventSynchronize", event)


class Driver:
    """cupy.cuda.driver."""

    CUDADriverError = DriverError

    def launchKernel(self, *arguments: int) -> None:
        call("cuLaunchKernel", *arguments)

    def launchCooperativeKernel(self, *arguments: int) -> None:
        call("cuLaunchCooperativeKernel", *arguments)


class Cuda:
    """cupy.cuda."""

    runtime = Runtime()
    driver = Driver()

    def alloc_pinned_memory(self, size: int) -> Any:
        address = self.runtime.hostAlloc(size, 0)
        # An array type of its own for each block, so that it carries its address.
        kind: Any = type("PinnedMemory", (ctypes.c_uint8 * size,), {"ptr": address})
        return kind.from_address(address)


cuda = Cuda()
