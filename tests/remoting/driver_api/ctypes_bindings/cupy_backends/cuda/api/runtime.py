"""The part of CuPy's runtime bindings for the worker of the CUDA door, by ctypes."""

import ctypes

from ctypes_driver import DriverError, call, get

CUDARuntimeError = DriverError

CONTEXTS: dict[int, int] = {}


def setDevice(ordinal: int) -> None:
    if ordinal not in CONTEXTS:
        call("cuInit", 0)
        CONTEXTS[ordinal] = get("cuDevicePrimaryCtxRetain", ordinal)
    call("cuCtxSetCurrent", CONTEXTS[ordinal])


def malloc(size: int) -> int:
    return get("cuMemAlloc", size)


def free(address: int) -> None:
    if address:
        call("cuMemFree", address)


def mallocAsync(size: int, stream: int) -> int:
    return get("cuMemAllocAsync", size, stream)


def freeAsync(address: int, stream: int) -> None:
    call("cuMemFreeAsync", address, stream)


def memGetInfo() -> tuple[int, int]:
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def memsetAsync(address: int, value: int, size: int, stream: int) -> None:
    call("cuMemsetD8Async", address, value, size, stream)


def memcpyAsync(target: int, source: int, size: int, kind: int, stream: int) -> None:
    # As CUDA's runtime: what is said to be a device's address is never taken for the host's.
    name = {1: "cuMemcpyHtoDAsync", 2: "cuMemcpyDtoHAsync", 3: "cuMemcpyDtoDAsync"}[kind]
    call(f"{name}_v2", target, source, size, stream)


def hostAlloc(size: int, flags: int) -> int:
    return get("cuMemHostAlloc", size, flags)


def freeHost(address: int) -> None:
    call("cuMemFreeHost", address)


def deviceSynchronize() -> None:
    call("cuCtxSynchronize")


def streamCreateWithFlags(flags: int) -> int:
    return get("cuStreamCreate", flags)


def streamDestroy(stream: int) -> None:
    call("cuStreamDestroy", stream)


def streamSynchronize(stream: int) -> None:
    call("cuStreamSynchronize", stream)


def streamWaitEvent(stream: int, event: int, flags: int) -> None:
    call("cuStreamWaitEvent", stream, event, flags)


def streamBeginCapture(stream: int, mode: int) -> None:
    call("cuStreamBeginCapture", stream, mode)


def streamEndCapture(stream: int) -> int:
    graph = ctypes.c_uint64(0)
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph.value


def eventCreateWithFlags(flags: int) -> int:
    return get("cuEventCreate", flags)


def eventDestroy(event: int) -> None:
    call("cuEventDestroy", event)


def eventRecord(event: int, stream: int) -> None:
    call("cuEventRecord", event, stream)


def eventSynchronize(event: int) -> None:
    call("cuEventSynchronize", event)
