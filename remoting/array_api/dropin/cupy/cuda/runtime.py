"""The part of `cupy.cuda.runtime` that makes sense on remote devices."""

from typing import Any

from cupy._door import pool, state
from cupy._door.cuda_errors import CUDARuntimeError as CUDARuntimeError
from cupy.cuda import device as _device

is_hip = False
cudaMemcpyHostToDevice = 1
cudaMemcpyDeviceToHost = 2
cudaMemcpyDeviceToDevice = 3
cudaMemcpyDefault = 4
cudaDevAttrCooperativeLaunch = 95
streamLegacy = 1
streamPerThread = 2
# Of CUDA's driver_types.h and texture_types.h, for textures.
cudaChannelFormatKindSigned = 0
cudaChannelFormatKindUnsigned = 1
cudaChannelFormatKindFloat = 2
cudaChannelFormatKindNone = 3
cudaResourceTypeArray = 0
cudaResourceTypeMipmappedArray = 1
cudaResourceTypeLinear = 2
cudaResourceTypePitch2D = 3
cudaAddressModeWrap = 0
cudaAddressModeClamp = 1
cudaAddressModeMirror = 2
cudaAddressModeBorder = 3
cudaFilterModePoint = 0
cudaFilterModeLinear = 1
cudaReadModeElementType = 0
cudaReadModeNormalizedFloat = 1
cudaArrayDefault = 0
cudaArrayLayered = 1
cudaArraySurfaceLoadStore = 2
cudaArrayCubemap = 4
cudaArrayTextureGather = 8


def getDeviceCount() -> int:
    """Return the number of devices of the lease, over all its servers."""
    return len(pool.devices())


def getDevice() -> int:
    """Return the number of the current device."""
    return state.local.context[0]


def setDevice(device: int) -> None:
    """Make a device current in this thread."""
    _device.set_device(device)


def deviceSynchronize() -> None:
    """Wait until the current device has done everything."""
    _device.Device().synchronize()


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return the device's properties; its memory is that of the partition."""
    with _device.Device(device):
        found: dict[str, Any] = pool.current().ask("cuda.properties")
    texts = {key: each.encode() for key, each in found.items() if isinstance(each, str)}
    return found | texts


def deviceGetAttribute(attrib: int, device: int) -> int:
    """Return one attribute of a device by CUDA's number of it."""
    with _device.Device(device):
        return pool.current().ask("cuda.attribute", (int(attrib),))


def deviceGetPCIBusId(device: int) -> str:
    """Return the bus address of a device on its server."""
    return _device.Device(device).pci_bus_id


def deviceGetByPCIBusId(pci_bus_id: str) -> int:
    """Return the device with a bus address."""
    return _device.from_pci_bus_id(pci_bus_id).id


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    """Say whether two devices are of one server; others have no access, but can be copied from."""
    found = pool.devices()
    return int(device != peerDevice and found[device] is found[peerDevice])


def deviceEnablePeerAccess(peerDevice: int) -> None:
    """Do nothing: the worker has access to all devices that it has."""


def memGetInfo() -> tuple[int, int]:
    """Return the free and total bytes of the current partition."""
    return _device.Device().mem_info


def runtimeGetVersion() -> int:
    """Return the version of the CUDA runtime on the server."""
    return pool.current().ask("cuda.versions")[0]


def driverGetVersion() -> int:
    """Return the version of the CUDA driver on the server."""
    return pool.current().ask("cuda.versions")[1]


def streamSynchronize(stream: int) -> None:
    """Wait for a stream by its number."""
    from cupy.cuda import stream as _stream

    _stream._streams.get(stream, _stream.Stream.null).synchronize()


def profilerStart() -> None:
    """Do nothing: profilers run on the server."""


def profilerStop() -> None:
    """Do nothing: profilers run on the server."""
