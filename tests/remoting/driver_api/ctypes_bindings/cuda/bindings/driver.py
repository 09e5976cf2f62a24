"""The part of cuda.bindings.driver for the CUDA door's worker, by ctypes; see ctypes_driver.py."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ctypes_driver import get, status_of

U, I, F = ctypes.c_uint64, ctypes.c_int, ctypes.c_float  # noqa: E741  one letter per output
# Where the outputs of a function stand, and their types; the others have no output.
FIRST: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (I,),
    "cuDeviceCanAccessPeer": (I,),
    "cuDeviceGetP2PAttribute": (I,),
    "cuDeviceGetAttribute": (I,),
    "cuCtxGetStreamPriorityRange": (I, I),
    "cuCtxGetLimit": (U,),
    "cuEventElapsedTime": (F,),
    "cuMemAddressReserve": (U,),
    "cuMemCreate": (U,),
    "cuMemHostGetDevicePointer": (U,),
    "cuLibraryLoadData": (U,),
    "cuLibraryGetModule": (U,),
    "cuLibraryGetKernel": (U,),
    "cuLibraryGetGlobal": (U, U),
    "cuLibraryGetKernelCount": (I,),
    "cuModuleLoadData": (U,),
    "cuModuleGetFunction": (U,),
    "cuModuleGetGlobal": (U, U),
    "cuModuleGetFunctionCount": (I,),
    "cuKernelGetAttribute": (I,),
    "cuFuncGetAttribute": (I,),
    "cuKernelGetName": (ctypes.c_char_p,),
    "cuFuncGetName": (ctypes.c_char_p,),
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": (I,),
    "cuOccupancyAvailableDynamicSMemPerBlock": (U,),
    "cuOccupancyMaxActiveClusters": (I,),
    "cuOccupancyMaxPotentialClusterSize": (I,),
}
LAST: dict[str, tuple[Any, ...]] = {
    "cuStreamIsCapturing": (ctypes.c_int,),
    "cuGetErrorName": (ctypes.c_char_p,),
    "cuGetErrorString": (ctypes.c_char_p,),
    "cuKernelGetParamInfo": (U, U),
    "cuFuncGetParamInfo": (U, U),
}


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class CUmemAllocationProp(ctypes.Structure):
    """CUmemAllocationProp; its flags are not used here."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("requestedHandleTypes", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


class CUmemAccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class CUlaunchAttribute:
    """CUlaunchAttribute, as bytes."""

    def __init__(self) -> None:
        self.bytes = ctypes.create_string_buffer(72)

    def getPtr(self) -> int:
        return ctypes.addressof(self.bytes)


class CUlaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((f"{kind}Dim{axis}", ctypes.c_uint32) for kind in ("grid", "block") for axis in "XYZ"),
        ("sharedMemBytes", ctypes.c_uint32),
        ("hStream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint32),
    ]

    @property
    def attrs(self) -> list[CUlaunchAttribute]:
        return self._attrs

    @attrs.setter
    def attrs(self, found: list[CUlaunchAttribute]) -> None:
        self._attrs = found
        self._joined = ctypes.create_string_buffer(b"".join(one.bytes.raw for one in found))
        self.attributes = ctypes.addressof(self._joined)


class CUDA_MEMCPY3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        *(
            (f"{side}{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                *((name, ctypes.c_size_t) for name in ("XInBytes", "Y", "Z", "LOD")),
                ("MemoryType", ctypes.c_int),
                *((name, ctypes.c_uint64) for name in ("Host", "Device", "Array", "Reserved")),
                *((name, ctypes.c_size_t) for name in ("Pitch", "Height")),
            )
        ),
        *((name, ctypes.c_size_t) for name in ("WidthInBytes", "Height", "Depth")),
    ]


CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
CUdevice_attribute = range(1, 192)
CUresult = range(1000)
CUmemAllocationGranularity_flags = CUdevice_P2PAttribute = CUfunction_attribute = CUfunc_cache = (
    CUlimit
) = int
CUmemAllocationHandleType = CUmemAccess_flags = CUkernel = CUfunction = CUdeviceptr = int


def cuDeviceGetName(size: int, ordinal: int) -> tuple[int, bytes]:
    name = ctypes.create_string_buffer(size)
    return status_of("cuDeviceGetName", name, size, ordinal), name.raw


def cuDeviceGetUuid(ordinal: int) -> tuple[int, Any]:
    uuid = ctypes.create_string_buffer(16)
    return status_of("cuDeviceGetUuid", uuid, ordinal), SimpleNamespace(bytes=uuid.raw)


def cuMemGetAllocationGranularity(properties: Any, option: int) -> tuple[int, int]:
    return 0, get("cuMemGetAllocationGranularity", properties, option)


def cuMemSetAccess(address: int, size: int, access: list[Any], count: int) -> tuple[int]:
    (one,) = access
    return (status_of("cuMemSetAccess", address, size, one, count),)


def _enumerate(name: str, count: int, owner: int) -> tuple[int, list[int]]:
    found = (ctypes.c_uint64 * count)()
    return status_of(name, found, count, owner), list(found)


def cuLibraryEnumerateKernels(count: int, library: int) -> tuple[int, list[int]]:
    return _enumerate("cuLibraryEnumerateKernels", count, library)


def cuModuleEnumerateFunctions(count: int, module: int) -> tuple[int, list[int]]:
    return _enumerate("cuModuleEnumerateFunctions", count, module)


def __getattr__(name: str) -> Callable[..., tuple[Any, ...]]:
    if not name.startswith("cu"):
        raise AttributeError(name)

    def run(*arguments: Any) -> tuple[Any, ...]:
        first = [kind() for kind in FIRST.get(name, ())]
        last = [kind() for kind in LAST.get(name, ())]
        outputs = [*first, *last]
        pointers = list(map(ctypes.byref, outputs))
        status = status_of(name, *pointers[: len(first)], *arguments, *pointers[len(first) :])
        return status, *(output.value for output in outputs)

    return run
