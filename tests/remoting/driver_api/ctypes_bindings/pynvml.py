"""NVML as a server asks it, for the fake driver's H200s; see fake_cuda/device.c."""

import os
from collections.abc import Callable
from types import SimpleNamespace

nvmlMemory_v2 = 0x2000028
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_DEVICE_MIG_ENABLE = 1
NVML_COMPUTEMODE_DEFAULT = 0
NVML_CLOCK_SM = 1
NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
NVML_GPM_METRICS_GET_VERSION = 1
NVML_ERROR_GPU_IS_LOST = 15
NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 0, 3, 6
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_FEATURE_ENABLED, NVML_NVLINK_CAP_P2P_SUPPORTED = 1, 0
MEMORY = 150754820096
LINK_COUNT = 18


class NVMLError(Exception):
    """An unsupported reading of this GPU."""

    value = NVML_ERROR_NOT_SUPPORTED


def nvmlInit() -> None:
    """Do nothing."""


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13000


def nvmlSystemGetDriverVersion() -> str:
    return "580.00"


def nvmlDeviceGetCount() -> int:
    return int(os.environ.get("FAKE_CUDA_DEVICES", "1"))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetMemoryInfo(_handle: int, version: int) -> SimpleNamespace:
    assert version == nvmlMemory_v2
    return SimpleNamespace(total=MEMORY, reserved=0, used=0, free=MEMORY)


def nvmlDeviceGetCudaComputeCapability(_handle: int) -> tuple[int, int]:
    return 9, 0


def nvmlDeviceGetUUID(handle: int) -> str:
    server = int(os.environ.get("FAKE_CUDA_SERVER", "0"))
    return f"GPU-fa4e0000-0000-4000-8000-{server << 8 | handle:012x}"


def nvmlDeviceGetName(_handle: int) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetPciInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(busId=f"00000000:{0x1B + 0x10 * handle:02X}:00.0")


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    return int(uuid[-2:], 16)


def nvmlDeviceGetNvLinkState(_handle: int, link: int) -> int:
    if link >= LINK_COUNT:
        raise NVMLError
    return NVML_FEATURE_ENABLED


def nvmlDeviceGetNvLinkCapability(_handle: int, _link: int, capability: int) -> int:
    return int(capability == NVML_NVLINK_CAP_P2P_SUPPORTED)


def _unsupported(*_: object) -> None:
    raise NVMLError


def __getattr__(name: str) -> Callable[..., None]:
    """Return a function that refuses, for every other NVML call."""
    if not name.startswith("nvml"):
        raise AttributeError(name)
    return _unsupported
