"""Call the fake driver from Python by ctypes: enough for the tests of the fake itself."""

import ctypes
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parent / "kernels"


class CudaError(Exception):
    """A driver function returned something else than 0."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


class LaunchRecord(ctypes.Structure):
    """struct launch_record of launch.c."""

    _fields_ = [
        ("kernel", ctypes.c_char * 256),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
    ]


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D of cuda.h; type 1 is host memory, 2 device memory, 3 an array."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("srcX", "srcY", "srcZ", "srcLOD")),
        ("srcType", ctypes.c_uint),
        *((name, ctypes.c_uint64) for name in ("srcHost", "srcDevice", "srcArray", "reserved0")),
        *((name, ctypes.c_size_t) for name in ("srcPitch", "srcHeight")),
        *((name, ctypes.c_size_t) for name in ("dstX", "dstY", "dstZ", "dstLOD")),
        ("dstType", ctypes.c_uint),
        *((name, ctypes.c_uint64) for name in ("dstHost", "dstDevice", "dstArray", "reserved1")),
        *((name, ctypes.c_size_t) for name in ("dstPitch", "dstHeight")),
        *((name, ctypes.c_size_t) for name in ("width", "height", "depth")),
    ]


def _argument(value: Any) -> Any:
    # Integers are passed as 64 bits: a callee that wants 32 takes the lower half.
    return ctypes.c_uint64(value & 0xFFFFFFFFFFFFFFFF) if isinstance(value, int) else value


class Driver:
    """One instance of the fake driver in this process, apart from all others."""

    def __init__(self, library: Path, scratch: Path) -> None:
        # The loader gives the same instance for the same file, so each driver gets a copy.
        own = scratch / f"libcuda-{len(list(scratch.iterdir()))}.so.1"
        shutil.copyfile(library, own)
        self.library = ctypes.CDLL(str(own))

    def code(self, function: str, *arguments: Any) -> int:
        """Call a function and give its result code."""
        result: int = self.library[function](*map(_argument, arguments))
        return result

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that must succeed."""
        code = self.code(function, *arguments)
        if code != 0:
            raise CudaError(function, code)

    def get(self, function: str, *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
        """Call a function that writes its answer to its first argument; return the answer."""
        answer = kind(0)
        self.call(function, ctypes.byref(answer), *arguments)
        return answer.value

    def start(self, device: int = 0) -> int:
        """Initialise, and make the primary context of a device current."""
        self.call("cuInit", 0)
        context = self.get("cuDevicePrimaryCtxRetain", device)
        self.call("cuCtxSetCurrent", context)
        return context

    # ---- memory ----

    def allocate(self, size: int) -> int:
        return self.get("cuMemAlloc_v2", size)

    def upload(self, data: bytes) -> int:
        """Allocate device memory that holds `data`."""
        pointer = self.allocate(len(data))
        self.call("cuMemcpyHtoD_v2", pointer, data, len(data))
        return pointer

    def download(self, pointer: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, pointer, size)
        return buffer.raw

    def pinned(self, size: int) -> tuple[int, Any]:
        """Allocate pinned host memory; give its address and a buffer over it."""
        address = self.get("cuMemHostAlloc", size, 0)
        return address, (ctypes.c_char * size).from_address(address)

    # ---- kernels ----

    def module(self, image: bytes | str = "test_kernels.sm_90.cubin") -> int:
        """Load an image: its bytes, or the name of one beside test_kernels.cu."""
        data = (KERNELS / image).read_bytes() if isinstance(image, str) else image
        return self.get("cuModuleLoadData", data + b"\0")

    def function(self, module: int, name: str) -> int:
        return self.get("cuModuleGetFunction", module, name.encode())

    def launch(
        self, function: int, *arguments: Any, grid: int = 1, block: int = 256, stream: int = 0
    ) -> None:
        """Launch with arguments given as ctypes values."""
        self.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, pointers(arguments), 0
        )

    def launches(self) -> list[tuple[LaunchRecord, bytes]]:
        found: list[tuple[LaunchRecord, bytes]] = []
        self.library.fakeCudaLaunchCount.restype = ctypes.c_uint64
        for number in range(self.library.fakeCudaLaunchCount()):
            record = LaunchRecord()
            params = ctypes.create_string_buffer(16384)
            where = (ctypes.c_uint64(number), ctypes.byref(record), params)
            assert self.library.fakeCudaLaunchGet(*where, ctypes.c_size_t(16384)) == 0
            found.append((record, params.raw[: record.param_bytes]))
        return found

    @contextmanager
    def paused(self) -> Generator[None]:
        """Keep streams from beginning any work inside the block."""
        self.library.fakeCudaPause(1)
        try:
            yield
        finally:
            self.library.fakeCudaPause(0)


def pointers(arguments: tuple[Any, ...]) -> Any:
    """Give the void ** that a launch takes; it keeps the values alive."""
    array: Any = (ctypes.c_void_p * max(1, len(arguments)))()
    array.kept = arguments
    for index, argument in enumerate(arguments):
        array[index] = ctypes.addressof(argument)
    return array
