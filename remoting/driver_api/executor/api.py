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

HIDDEN_ATTRIBUTES = {
    # What this door does not do, by CUdevice_attribute: concurrent managed access, pageable access
    # and its page tables, host registration by pointer, handles of Windows, arrays without memory
    # of their own, RDMA, multicast.
    **dict.fromkeys((88, 89, 91, 100, 101, 104, 105, 110, 112, 116, 117, 121, 128, 132), 0),
}


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
        """Return all attributes of a device that the driver knows."""
        found: dict[int, int] = {}
        for attribute in self.cu.CUdevice_attribute:
            number = int(attribute)
            if 0 < number < 192:
                status, value = self.cu.cuDeviceGetAttribute(attribute, ordinal)
                if not status:
                    found[number] = int(value)
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
