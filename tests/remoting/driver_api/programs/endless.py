"""Launches kernels that take a time each, without end; the count of those that are over goes out.

Arguments: an image with the kernel ``sleep_us``, microseconds for each, how many may be under way,
and for how many seconds. Each second a line has the number of kernels.
"""

import ctypes
import sys
import time

image, length, ahead, seconds = sys.argv[1], *map(int, sys.argv[2:])
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
assert not cuda.cuModuleLoad(ctypes.byref(module), image.encode())
assert not cuda.cuModuleGetFunction(ctypes.byref(function), module, b"sleep_us")
value = ctypes.c_longlong(length)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
sizes = (1, 1, 1, 1, 1, 1, 0)
done, shown, began = 0, 0, time.monotonic()
while True:
    for _ in range(ahead):
        assert not cuda.cuLaunchKernel(function, *sizes, None, parameters, None)
    assert not cuda.cuCtxSynchronize()
    done += ahead
    if time.monotonic() - began > shown + 1:
        shown += 1
        print(done, flush=True)
        if shown >= seconds:
            break
