"""The outcome of each flag, kind and attribute of CUDA's calls, a line each; argument: a cubin.

    python promises.py test_kernels.sm_90.cubin

Run natively and behind the door: the lines must be the same, but for those that an attribute or a
page tells of.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
CU: Any = ctypes.CDLL("libcuda.so.1")
U64: Any = ctypes.c_uint64


def call(name: str, *arguments: Any) -> int:
    """Call a function; integers are 64 bits wide."""
    given = [U64(one) if isinstance(one, int) else one for one in arguments]
    return int(getattr(CU, name)(*given))


def must(name: str, *arguments: Any) -> None:
    """Make a call outside of this program's subject; exit when it fails."""
    if status := call(name, *arguments):
        sys.exit(f"{name} gave {status}")


def out() -> Any:
    """Return room for the results of a call."""
    return (U64 * 32)()


def words(*values: int) -> Any:
    """Return a structure of 32-bit values with zeros behind."""
    return (ctypes.c_int32 * 64)(*values)


def say(name: str, value: object, status: int) -> None:
    """Print a line."""
    print(name, value, status, flush=True)


def walk(name: str, last: int, once: Callable[[int], int]) -> None:
    """Print the status of each value up to one behind the last; flags are powers of two."""
    for value in range(last + 2):
        say(name, value, once(value))


def memory(_image: bytes, _context: int) -> None:
    """Allocate and register in each way, advise, ask."""
    room = ctypes.create_string_buffer(3 * 4096)
    page = (ctypes.addressof(room) + 4095) & -4096

    def allocated(flags: int) -> int:
        made = out()
        status = call("cuMemHostAlloc", made, 4096, flags)
        return status or call("cuMemFreeHost", made[0])

    def registered(flags: int) -> int:
        status = call("cuMemHostRegister_v2", page, 4096, flags)
        return status or call("cuMemHostUnregister", page)

    walk("cuMemHostAlloc", 7, allocated)
    for flags in (0, 1, 2, 3):
        say("cuMemHostRegister", flags, registered(flags))
    device, host, managed = out(), out(), out()
    must("cuMemAlloc_v2", device, MIB)
    must("cuMemHostAlloc", host, 4096, 2)
    must("cuMemAllocManaged", managed, 4 * MIB, 1)
    for flags in (0, 2, 3, 5):
        made = out()
        status = call("cuMemAllocManaged", made, MIB, flags)
        say("cuMemAllocManaged", flags, status or call("cuMemFree_v2", made[0]))
    for kind in range(6):
        place = ctypes.c_uint64(kind)  # of id 0, by value
        for advice in range(8):
            status = call("cuMemAdvise_v2", managed[0], 2 * MIB, advice, place)
            say("cuMemAdvise", (kind, advice), status)
        say("cuMemPrefetchAsync", kind, call("cuMemPrefetchAsync_v2", managed[0], MIB, place, 0, 0))
    for name, address in (("device", device), ("host", host), ("managed", managed)):
        for attribute in range(25):
            status = call("cuPointerGetAttribute", out(), attribute, address[0])
            say("cuPointerGetAttribute", (name, attribute), status)
    walk(
        "cuMemRangeGetAttribute",
        8,
        lambda a: call("cuMemRangeGetAttribute", out(), 4, a, managed[0], MIB),
    )
    for kind in range(6):
        for handles in (0, 1, 2, 4, 8) if kind == 1 else (0,):
            made, asked = out(), words(1, handles, kind, 0)
            status = call("cuMemCreate", made, 2 * MIB, asked, 0)
            say("cuMemCreate", (kind, handles), status or call("cuMemRelease", made[0]))
            pool = out()
            status = call("cuMemPoolCreate", pool, asked)
            say("cuMemPoolCreate", (kind, handles), status or call("cuMemPoolDestroy", pool[0]))
    pool = out()
    must("cuMemPoolCreate", pool, words(1, 0, 1, 0))
    walk("cuMemPoolGetAttribute", 12, lambda a: call("cuMemPoolGetAttribute", pool[0], a, out()))
    for attribute in range(1, 9):
        say(
            "cuMemPoolSetAttribute",
            attribute,
            call("cuMemPoolSetAttribute", pool[0], attribute, out()),
        )


def streams(_image: bytes, _context: int) -> None:
    """Streams, events, captures."""
    for flags in range(3):
        say("cuStreamCreate", flags, call("cuStreamCreate", out(), flags))
    walk("cuEventCreate", 7, lambda flags: call("cuEventCreate", out(), flags))
    stream, event = out(), out()
    must("cuStreamCreate", stream, 1)
    must("cuEventCreate", event, 0)
    for flags in range(3):
        say("cuStreamWaitEvent", flags, call("cuStreamWaitEvent", stream[0], event[0], flags))
    for flags in range(2):
        say(
            "cuEventRecordWithFlags",
            flags,
            call("cuEventRecordWithFlags", event[0], stream[0], flags),
        )
    walk("cuStreamGetAttribute", 18, lambda a: call("cuStreamGetAttribute", stream[0], a, out()))
    for mode in range(4):
        graph = out()
        status = call("cuStreamBeginCapture_v2", stream[0], mode)
        say("cuStreamBeginCapture", mode, status or call("cuStreamEndCapture", stream[0], graph))
    must("cuCtxSynchronize")


def contexts(image: bytes, context: int) -> None:
    """Limits, functions, modules, occupancy."""
    walk("cuCtxGetLimit", 9, lambda a: call("cuCtxGetLimit", out(), a))
    walk(
        "cuDeviceGetGraphMemAttribute",
        3,
        lambda a: call("cuDeviceGetGraphMemAttribute", 0, a, out()),
    )
    module, function = out(), out()
    must("cuModuleLoadData", module, image)
    must("cuModuleGetFunction", function, module[0], b"increment")
    walk("cuFuncGetAttribute", 15, lambda a: call("cuFuncGetAttribute", out(), a, function[0]))
    walk("cuFuncSetCacheConfig", 3, lambda a: call("cuFuncSetCacheConfig", function[0], a))
    walk("cuCtxSetCacheConfig", 3, lambda a: call("cuCtxSetCacheConfig", a))
    for flags in range(2):
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
        say(name, flags, call(name, out(), function[0], 128, 0, flags))
    for option in (*range(3), *range(7, 17), *range(20, 25), *range(29, 35)):
        # Without threads NVIDIA's driver divides by zero; 9 is the target.
        given = {0: 32, 1: 128, 9: 90}.get(option, 0)
        options, values, loaded = words(option), (U64 * 1)(given), out()
        status = call("cuModuleLoadDataEx", loaded, image, 1, options, values)
        say("cuModuleLoadDataEx", option, status or call("cuModuleUnload", loaded[0]))
    for option in range(1, 3):  # 0 is a pointer to a table of the host's
        options, values, made = words(option), (U64 * 1)(1), out()
        status = call("cuLibraryLoadData", made, image, 0, 0, 0, options, values, 1)
        say("cuLibraryLoadData", option, status or call("cuLibraryUnload", made[0]))
    settings(function[0])
    library, kernel = out(), out()
    must("cuLibraryLoadData", library, image, 0, 0, 0, 0, 0, 0)
    must("cuLibraryGetKernel", kernel, library[0], b"increment")
    for attribute in range(17):
        status = call("cuKernelSetAttribute", attribute, 0, kernel[0], 0)
        say("cuKernelSetAttribute", attribute, status)
    for flags in (*range(6), 8, 16, 32, 64, 128, 256):
        made = out()
        status = call("cuCtxCreate_v2", made, flags, 0)
        say("cuCtxCreate", flags, status or call("cuCtxDestroy_v2", made[0]))
        must("cuCtxSetCurrent", context)


def settings(function: int) -> None:
    """Limits, settings of functions and streams; each is set to its present value, or to zero."""
    for limit in range(11):
        value = out()
        if call("cuCtxGetLimit", value, limit) == 0:
            say("cuCtxSetLimit", limit, call("cuCtxSetLimit", limit, value[0]))
    for attribute in range(17):
        status = call("cuFuncSetAttribute", function, attribute, 0)
        say("cuFuncSetAttribute", attribute, status)
    stream = out()
    must("cuStreamCreate", stream, 1)
    for attribute in range(20):
        value = out()
        if call("cuStreamGetAttribute", stream[0], attribute, value) == 0:
            status = call("cuStreamSetAttribute", stream[0], attribute, value)
            say("cuStreamSetAttribute", attribute, status)
    must("cuStreamSynchronize", stream[0])


def launches(image: bytes, _context: int) -> None:
    """Attributes of launches and of graphs' kernels, each with the value that asks for nothing."""
    module, function, memory, stream = out(), out(), out(), out()
    must("cuModuleLoadData", module, image)
    must("cuModuleGetFunction", function, module[0], b"increment")
    must("cuMemAlloc_v2", memory, 4096)
    must("cuStreamCreate", stream, 1)
    given = (U64 * 2)(memory[0], 1)
    at = ctypes.addressof(given)
    parameters = (U64 * 2)(at, at + 8)
    ones = (1 | 1 << 32, 1)
    quiet, timed, shared = out(), out(), out()
    must("cuEventCreate", quiet, 2)
    must("cuEventCreate", timed, 0)
    must("cuEventCreate", shared, 6)

    def launched(attribute: int, *value: int, waits: bool = True) -> int:
        attributes = (U64 * 9)(attribute, *value)
        place = ctypes.addressof(attributes)
        config = (U64 * 7)(ones[0], ones[0], ones[0], 0, stream[0], place, 1)
        status = call("cuLaunchKernelEx", config, function[0], parameters, 0)
        return status or (call("cuStreamSynchronize", stream[0]) if waits else 0)

    values = {4: ones, 9: (1 << 8,), 11: ones}
    for attribute in (*range(7), *range(8, 12), *range(13, 20)):
        say("cuLaunchKernelEx", attribute, launched(attribute, *values.get(attribute, (0,))))
    for attribute in (7, 12):
        for name, event in (("quiet", quiet), ("timed", timed), ("shared", shared)):
            say("cuLaunchKernelEx", (attribute, name), launched(attribute, event[0]))
        say("cuLaunchKernelEx", (attribute, "external"), launched(attribute, quiet[0], 1))
        must("cuStreamWaitEvent", 0, quiet[0], 0)
        must("cuEventSynchronize", quiet[0])
    must("cuStreamSynchronize", stream[0])
    graph, node, second = out(), out(), out()
    must("cuStreamCreate", second, 1)
    must("cuStreamBeginCapture_v2", stream[0], 2)
    say("cuLaunchKernelEx", (7, "captured"), launched(7, quiet[0], waits=False))
    must("cuStreamWaitEvent", second[0], quiet[0], 0)
    must("cuEventRecord", quiet[0], second[0])
    must("cuStreamWaitEvent", stream[0], quiet[0], 0)
    must("cuStreamEndCapture", stream[0], graph)
    must("cuGraphInstantiateWithFlags", node, graph[0], 0)
    must("cuGraphLaunch", node[0], stream[0])
    must("cuStreamSynchronize", stream[0])
    must("cuGraphCreate", graph, 0)
    asked = (U64 * 9)(function[0], ones[0], ones[0], ones[0], 0, ctypes.addressof(parameters))
    must("cuGraphAddKernelNode_v2", node, graph[0], 0, 0, asked)
    for flags in range(2):
        value = (U64 * 8)(flags)
        status = call("cuGraphKernelNodeSetAttribute", node[0], 13, value)
        say("cuGraphKernelNodeSetAttribute", (13, flags), status)
    for attribute in range(20):
        value = (U64 * 8)(*values.get(attribute, (0,)))
        status = call("cuGraphKernelNodeSetAttribute", node[0], attribute, value)
        say("cuGraphKernelNodeSetAttribute", attribute, status)


def graphs(_image: bytes, context: int) -> None:
    """Nodes of each kind that need nothing but zeros, and ways to make a graph executable."""
    graph, child = out(), out()
    must("cuGraphCreate", graph, 0)
    must("cuGraphCreate", child, 0)
    for kind in (4, 5, 13):
        for ownership in (0, 1) if kind == 4 else (0, 1, 2):
            given = (U64 * 32)(kind, 0)
            if kind == 4:
                made = out()
                must("cuGraphCreate", made, 0)
                given[2], given[3] = made[0], ownership
            if kind == 13:
                handle = out()
                must("cuGraphConditionalHandleCreate", handle, graph[0], context, 1, 1)
                given[2], given[3] = handle[0], ownership | (1 + (ownership == 2)) << 32
            status = call("cuGraphAddNode_v2", out(), graph[0], 0, 0, 0, given)
            say("cuGraphAddNode", (kind, ownership), status)
    for flags in range(2):
        say(
            "cuGraphConditionalHandleCreate",
            flags,
            call("cuGraphConditionalHandleCreate", out(), graph[0], context, 0, flags),
        )
    for flags in (0, 1, 8, 9):
        say(
            "cuGraphInstantiate", flags, call("cuGraphInstantiateWithFlags", out(), child[0], flags)
        )
    for flags in (0, 1, 2, 3, 8, 9, 10):
        given = (U64 * 4)(flags, 0)
        status = call("cuGraphInstantiateWithParams", out(), child[0], given)
        say("cuGraphInstantiateWithParams", flags, status)


def tensors(_image: bytes, _context: int) -> None:
    """Tensor maps of each type of elements, interleave, swizzle, promotion and fill."""
    room = out()
    must("cuMemAlloc_v2", room, MIB)
    sizes, strides = (U64 * 2)(256, 64), (U64 * 1)(4096)
    box, steps = (ctypes.c_uint32 * 2)(8, 8), (ctypes.c_uint32 * 2)(1, 1)
    for field, last in enumerate((15, 2, 6, 3, 1)):
        for value in range(last + 1):
            given = [6, 0, 0, 0, 0]
            given[field] = value
            kind, interleave, swizzle, promotion, fill = given
            made = (ctypes.c_char * 256)()
            at = ctypes.c_void_p((ctypes.addressof(made) + 127) & -128)
            status = call(
                "cuTensorMapEncodeTiled", at, kind, ctypes.c_uint32(2), room[0], sizes, strides,
                box, steps, interleave, swizzle, promotion, fill,
            )  # fmt: skip
            say("cuTensorMapEncodeTiled", (field, value), status)


def attributes(_image: bytes, _context: int) -> None:
    """Print each attribute of the device, or -1000 less the status."""
    for attribute in range(1, 163):
        value = ctypes.c_int(-99)
        status = call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        say("attribute", attribute, value.value if status == 0 else -1000 - status)


def main() -> None:
    """Walk all, each part in a separate process: some drivers end a process for one request."""
    with open(sys.argv[1], "rb") as file:
        image = file.read()
    ended = {}
    for part in (attributes, memory, streams, contexts, launches, graphs, tensors):
        if process := os.fork():
            ended[part.__name__] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            continue
        context = out()
        must("cuInit", 0)
        must("cuDevicePrimaryCtxRetain", context, 0)
        must("cuCtxSetCurrent", context[0])
        part(image, context[0])
        must("cuCtxSynchronize")
        sys.exit()
    print(ended if any(ended.values()) else "walked")


if __name__ == "__main__":
    main()
