"""Devices, streams, events and memory of remote GPUs."""

import contextlib as _contextlib
import warnings as _warnings
from collections.abc import Generator as _Generator

from cupy._door import absent as _absent
from cupy._door import pool as _pool
from cupy._door.errors import DoorError as _DoorError
from cupy.cuda import compiler as compiler
from cupy.cuda import cufft as cufft
from cupy.cuda import device as device
from cupy.cuda import driver as driver
from cupy.cuda import memory as memory
from cupy.cuda import nvtx as nvtx
from cupy.cuda import profiler as profiler
from cupy.cuda import runtime as runtime
from cupy.cuda import stream as stream
from cupy.cuda import texture as texture
from cupy.cuda.device import Device as Device
from cupy.cuda.device import get_device_id as get_device_id
from cupy.cuda.stream import Event as Event
from cupy.cuda.stream import ExternalStream as ExternalStream
from cupy.cuda.stream import Stream as Stream
from cupy.cuda.stream import get_current_stream as get_current_stream
from cupy.cuda.stream import get_elapsed_time as get_elapsed_time

Memory = memory.Memory
MemoryAsyncPool = memory.MemoryAsyncPool
MemoryPointer = memory.MemoryPointer
MemoryPool = memory.MemoryPool
PinnedMemoryPointer = memory.PinnedMemoryPointer
PinnedMemoryPool = memory.PinnedMemoryPool
alloc = memory.alloc
alloc_pinned_memory = memory.alloc_pinned_memory
get_allocator = memory.get_allocator
malloc_async = memory.malloc_async
malloc_managed = memory.malloc_managed
set_allocator = memory.set_allocator
set_pinned_memory_allocator = memory.set_pinned_memory_allocator
using_allocator = memory.using_allocator


def is_available() -> bool:
    """Say whether there is a GPU session with at least one device."""
    try:
        return bool(_pool.devices())
    except (_DoorError, OSError):
        return False
    except runtime.CUDARuntimeError as error:
        if error.status != 100:  # cudaErrorNoDevice
            raise
        return False


@_contextlib.contextmanager
def profile() -> _Generator[None]:
    """Enable CUDA's profiler for a while; deprecated in CuPy, for `cupyx.profiler.profile`."""
    _warnings.warn(
        "cupy.cuda.profile is deprecated in CuPy: use cupyx.profiler.profile",
        stacklevel=3,
    )
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()


def get_cuda_path() -> None:
    """Return None: CUDA is on the server."""


def get_nvcc_path() -> None:
    """Return None: compilers are where the GPUs are."""


def get_local_runtime_version() -> int:
    """Return the version of the CUDA runtime on the server."""
    return runtime.runtimeGetVersion()


__getattr__ = _absent.lookup(__name__)
