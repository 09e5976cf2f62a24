"""CUDA as the worker calls it: CuPy's bindings where they are fast, cuda.bindings for the rest."""

import ctypes
import importlib
from typing import Any

from gpupool.remoting.devices.cuda_objects import cupy_bindings

UNKNOWN = 999
OUT_OF_MEMORY = 2
INVALID_VALUE = 1
INVALID_HANDLE = 400
NOT_READY = 600
NOT_FOUND = 500
ILLEGAL_STATE = 401
ASSERT = 710
NOT_SUPPORTED = 801
CAPTURE_UNSUPPORTED = 900

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, ANY_TO_ANY = 1, 2, 3, 4

CONFIGS_MAX = 512
CAPTURE_RELAXED = 2
EVENT_DISABLE_TIMING = 2

ATTRIBUTES_END = 148
"""Behind the last CUdevice_attribute of CUDA 13.0, the newest interface that programs see."""

HIDDEN_ATTRIBUTES = {
    # What this door does not do, by CUdevice_attribute, and a program is told so. The test of them
    # names what shows each of the others. Memory that both sides share, and atomics on it:
    **dict.fromkeys((18, 86, 88, 89, 91, 100, 101, 130, 147), 0),
    131: -1,
    # Handles of Windows, fabrics, dma_buf, RDMA; external semaphores; other graphics interfaces.
    **dict.fromkeys((104, 105, 110, 114, 116, 117, 118, 124, 128, 135, 138, 146), 0),
    # Compression, arrays without memory of their own, multicast.
    **dict.fromkeys((107, 112, 121, 132), 0),
    # Pools of the host's memory, and its sharing between nodes.
    **dict.fromkeys((142, 143, 144), 0),
}

POOL_HANDLES, FILE_DESCRIPTORS = 119, 1
"""CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, and the one kind that this door passes on."""


class CudaError(Exception):
    """A call of CUDA failed; ``status`` is its CUresult."""

    def __init__(self, status: int, name: str) -> None:
        super().__init__(f"{name} failed with {status}")
        self.status = status


class Api:
    """The bindings, with one kind of error. Handles and addresses are integers."""

    def __init__(self) -> None:
        # Imported by name: neither is there on machines without GPUs.
        self.cu: Any = importlib.import_module("cuda.bindings.driver")
        self.runtime, self.driver = cupy_bindings.load()
        # Making one costs 30 us, changing its numbers 2.
        self._configs: dict[bytes, Any] = {}
        self.launch = self.driver.launchKernel
        self.copy = self.runtime.memcpyAsync
        self.record = self.runtime.eventRecord
        self.errors: tuple[type[Exception], ...] = (
            self.runtime.CUDARuntimeError,
            self.driver.CUDADriverError,
            CudaError,
        )

    def status_of(self, error: Exception) -> int:
        """Return the CUresult of one of ``errors``."""
        return int(getattr(error, "status", UNKNOWN))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of cuda.bindings; return its output, or a tuple of several.

        Raises:
            CudaError: when CUDA refuses.
        """
        status, *outputs = getattr(self.cu, name)(*arguments)
        if status:
            raise CudaError(int(status), name)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def enumerated(self, name: str, value: int) -> Any:
        """Return a value of an enumeration of the headers.

        Raises:
            CudaError: when the enumeration has no such value.
        """
        try:
            return getattr(self.cu, name)(value)
        except ValueError:
            raise CudaError(INVALID_VALUE, name) from None

    def done(self, event: int) -> bool:
        """Say whether an event has completed."""
        status = int(self.cu.cuEventQuery(event)[0])
        if status in (0, 600):
            return status == 0
        raise CudaError(status, "cuEventQuery")

    def launch_ex(
        self, function: int, head: tuple[int, ...], attributes: bytes, stream: int, pointers: int
    ) -> None:
        """Launch with attributes (CUlaunchAttribute as they lie in memory, 72 bytes each)."""
        config = self.config(head, attributes, stream)
        self.call("cuLaunchKernelEx", config, function, pointers, 0)

    def config(self, head: tuple[int, ...], attributes: bytes, stream: int) -> Any:
        """Return a CUlaunchConfig, valid until the next call; ``head``: grid, block, shared."""
        config = self._configs.get(attributes)
        if config is None:
            config = self._new_config(attributes)
            if len(self._configs) >= CONFIGS_MAX:
                self._configs.clear()
            self._configs[attributes] = config
        (
            config.gridDimX,
            config.gridDimY,
            config.gridDimZ,
            config.blockDimX,
            config.blockDimY,
            config.blockDimZ,
            config.sharedMemBytes,
        ) = head
        config.hStream = stream
        return config

    def _new_config(self, attributes: bytes) -> Any:
        config = self.cu.CUlaunchConfig()
        found: list[Any] = []
        for start in range(0, len(attributes), 72):
            attribute = self.cu.CUlaunchAttribute()
            ctypes.memmove(attribute.getPtr(), attributes[start : start + 72], 72)
            found.append(attribute)
        config.attrs = found
        config.numAttrs = len(found)
        return config

    def parameters(self, handle: int, *, kernel: bool) -> list[tuple[int, int]]:
        """Return (offset, size) of each parameter of a kernel or function."""
        ask = self.cu.cuKernelGetParamInfo if kernel else self.cu.cuFuncGetParamInfo
        of = self.cu.CUkernel(handle) if kernel else self.cu.CUfunction(handle)
        found: list[tuple[int, int]] = []
        while len(found) < 4096:
            status, offset, size = ask(of, len(found))
            if status:
                if int(status) != INVALID_VALUE:
                    raise CudaError(int(status), "cuFuncGetParamInfo")
                break
            found.append((int(offset), int(size)))
        return found

    def device_attributes(self, ordinal: int) -> dict[int, int]:
        """Return all attributes of a device that the driver knows, as a client is told them."""
        found: dict[int, int] = {}
        for attribute in self.cu.CUdevice_attribute:
            number = int(attribute)
            if 0 < number < ATTRIBUTES_END:
                status, value = self.cu.cuDeviceGetAttribute(attribute, ordinal)
                if not status:
                    found[number] = HIDDEN_ATTRIBUTES.get(number, int(value))
        if POOL_HANDLES in found:
            found[POOL_HANDLES] &= FILE_DESCRIPTORS
        return found

    def error_texts(self) -> list[tuple[int, bytes, bytes]]:
        """Return (code, name, text) of every CUresult."""
        found: list[tuple[int, bytes, bytes]] = []
        for code in self.cu.CUresult:
            status, name = self.cu.cuGetErrorName(code)
            other, text = self.cu.cuGetErrorString(code)
            if not status and not other:
                found.append((int(code), name, text))
        return found
