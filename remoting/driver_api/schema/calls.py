"""The table of the calls: functions of CUDA that are remoted as they are, parameter by parameter.

An entry is ``async`` or ``sync``, then one token per parameter of the C function:

- ``v`` an integer, ``=NAME`` one of an enumeration; ``z`` one that must be zero, and is not sent;
  ``a`` an address: of a device, or of pinned memory, which is then mapped;
- ``s`` stream, ``e`` event, ``g`` graph, ``x`` executable graph, ``d`` device, ``f`` function or
  kernel: a handle that the client made;
- ``+s`` and so on: an output, a new handle made by the client; ``!s``: a handle that ends here;
- ``>`` an output that the worker's reply carries.

``async`` calls have no reply: their errors surface at the next synchronising call. A row is added
at the end, because its number is its place. The library's end is generated, with CUDA's headers:
see ``packaging/driver_api/generate.py``.
"""

CALLS: dict[str, str] = {
    # Streams and events.
    "cuStreamCreate": "async +s v",
    "cuStreamCreateWithPriority": "async +s v v",
    "cuStreamDestroy_v2": "async !s",
    "cuEventCreate": "async +e v",
    "cuEventDestroy_v2": "async !e",
    "cuEventElapsedTime_v2": "sync > e e",
    # Values in memory.
    "cuStreamWaitValue32_v2": "async s a v v",
    "cuStreamWaitValue64_v2": "async s a v v",
    "cuStreamWriteValue32_v2": "async s a v v",
    "cuStreamWriteValue64_v2": "async s a v v",
    # Memory.
    "cuMemcpyDtoD_v2": "async a a v",
    "cuMemcpyDtoDAsync_v2": "async a a v s",
    "cuMemsetD8_v2": "async a v v",
    "cuMemsetD16_v2": "async a v v",
    "cuMemsetD32_v2": "async a v v",
    "cuMemsetD2D8_v2": "async a v v v v",
    "cuMemsetD2D16_v2": "async a v v v v",
    "cuMemsetD2D32_v2": "async a v v v v",
    "cuMemsetD8Async": "async a v v s",
    "cuMemsetD16Async": "async a v v s",
    "cuMemsetD32Async": "async a v v s",
    "cuMemsetD2D8Async": "async a v v v v s",
    "cuMemsetD2D16Async": "async a v v v v s",
    "cuMemsetD2D32Async": "async a v v v v s",
    # Contexts.
    "cuCtxGetCacheConfig": "sync >",
    "cuCtxSetCacheConfig": "sync =CUfunc_cache",
    "cuCtxResetPersistingL2Cache": "async",
    "cuFuncSetCacheConfig": "async f =CUfunc_cache",
    # Graphs.
    "cuGraphUpload": "async x s",
}

BASE_CALLS = 29
"""Number of calls that every worker of today knows. Later calls are sent to workers that know them;
elsewhere the call returns CUDA_ERROR_NOT_SUPPORTED."""

WAIT_FOR_VALUE = "cuStreamWaitValue"
"""Begins the calls behind which a stream may wait for a later call of the program, which CUDA holds
while it frees. So all that the program has freed is free before."""

ALIASES = {
    "cuEventDestroy": "cuEventDestroy_v2",
    "cuEventElapsedTime": "cuEventElapsedTime_v2",
    "cuStreamDestroy": "cuStreamDestroy_v2",
    "cuStreamWaitValue32": "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64": "cuStreamWaitValue64_v2",
    "cuStreamWriteValue32": "cuStreamWriteValue32_v2",
    "cuStreamWriteValue64": "cuStreamWriteValue64_v2",
}
"""Other names of functions of ``CALLS``; those of functions by hand are aliases in their C."""
