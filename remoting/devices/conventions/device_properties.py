"""Description of an emulated GPU: CUDA's attributes and properties, of one small processor."""

from typing import Any

_ATTRIBUTES = """
    MaxThreadsPerBlock:1=1024 MaxBlockDimX:2=1024 MaxBlockDimY:3=1024 MaxBlockDimZ:4=64
    MaxGridDimX:5=2147483647 MaxGridDimY:6=65535 MaxGridDimZ:7=65535
    MaxSharedMemoryPerBlock:8=49152 TotalConstantMemory:9=65536 WarpSize:10=32
    MaxRegistersPerBlock:12=65536 ClockRate:13=1000000 MultiProcessorCount:16=1
    MaxThreadsPerMultiProcessor:39=2048 ComputeCapabilityMajor:75=9 ComputeCapabilityMinor:76=0
    MaxSharedMemoryPerMultiprocessor:81=49152 MaxRegistersPerMultiprocessor:82=65536
    CooperativeLaunch:95=0 MaxSharedMemoryPerBlockOptin:97=49152
"""
_PROPERTIES = """
    sharedMemPerBlock=49152 regsPerBlock=65536 warpSize=32 maxThreadsPerBlock=1024
    clockRate=1000000 totalConstMem=65536 major=9 textureAlignment=512 texturePitchAlignment=32
    multiProcessorCount=1 maxThreadsPerMultiProcessor=2048 sharedMemPerMultiprocessor=49152
    regsPerMultiprocessor=65536 sharedMemPerBlockOptin=49152 maxBlocksPerMultiProcessor=32
    surfaceAlignment=512 maxThreadsDim=1024,1024,64 maxGridSize=2147483647,65535,65535
    maxTexture1D=32768 maxTexture1DMipmap=32768 maxTexture1DLinear=32768 maxSurface1D=32768
    maxTextureCubemap=32768 maxSurfaceCubemap=32768 maxTexture2D=32768,2048
    maxTexture2DMipmap=32768,2048 maxTexture2DGather=32768,2048 maxTexture1DLayered=32768,2048
    maxSurface2D=32768,2048 maxSurface1DLayered=32768,2048 maxTextureCubemapLayered=32768,2048
    maxSurfaceCubemapLayered=32768,2048 maxTexture3D=16384,16384,2048
    maxTexture3DAlt=16384,16384,2048 maxTexture2DLinear=16384,16384,2048
    maxTexture2DLayered=16384,16384,2048 maxSurface2DLayered=16384,16384,2048
    maxSurface3D=16384,16384,2048
"""
_NOUGHT = """
    minor kernelExecTimeoutEnabled integrated canMapHostMemory computeMode concurrentKernels
    ECCEnabled pciBusID pciDeviceID pciDomainID tccDriver memoryClockRate memoryBusWidth
    l2CacheSize isMultiGpuBoard cooperativeLaunch cooperativeMultiDeviceLaunch asyncEngineCount
    unifiedAddressing streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported
    managedMemory multiGpuBoardGroupID hostNativeAtomicSupported pageableMemoryAccess
    concurrentManagedAccess computePreemptionSupported canUseHostPointerForRegisteredMem
    pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost luidDeviceNodeMask
    persistingL2CacheMaxSize accessPolicyMaxWindowSize reservedSharedMemPerBlock deviceOverlap
    singleToDoublePrecisionPerfRatio
"""


def _read(text: str) -> dict[str, Any]:
    """Return numbers by the words before them, and several as a tuple."""
    found: dict[str, Any] = {}
    for word in text.split():
        name, _, values = word.partition("=")
        numbers = [int(each) for each in values.split(",")]
        found[name] = tuple(numbers) if len(numbers) > 1 else numbers[0]
    return found


_PAIRS = [(name.split(":"), value) for name, value in _read(_ATTRIBUTES).items()]
ATTRIBUTES = [(name, int(number), value) for (name, number), value in _PAIRS]
"""CuPy's name, CUDA's number (`cudaDeviceAttr` of driver_types.h) and the value of attributes."""


def properties(name: str, uuid: str, memory: int) -> dict[str, Any]:
    """Return all properties that CuPy has of a device."""
    described = {"name": name, "uuid": uuid, "luid": "", "totalGlobalMem": memory}
    return described | _read(_PROPERTIES) | dict.fromkeys(_NOUGHT.split(), 0)
