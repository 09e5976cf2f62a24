"""Where the driver puts managed variables of a PTX module, natively or behind the door.

    python tests/gpu/managed_probe.py
    gpupool run -v --door cuda -- python tests/gpu/managed_probe.py

A line for each variable: its address and size, and the memory that it is said to be in. The door
maps that memory at the same address, which takes whole pages that nothing else has.
"""

import ctypes
import sys

NAMES = ("first", "second", "large")
PTX = b""".version 8.0
.target sm_50
.address_size 64
.visible .global .attribute(.managed) .align 4 .b8 first[16];
.visible .global .attribute(.managed) .align 4 .b8 second[16];
.visible .global .attribute(.managed) .align 4 .b8 large[100000];
"""
IS_MANAGED = 8


def main() -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    statuses = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuModuleLoadData(ctypes.byref(module), PTX),
    ]
    if any(statuses):
        print("no module:", statuses)
        return 1
    failed = 0
    for name in NAMES:
        where, size = ctypes.c_uint64(), ctypes.c_size_t()
        base, whole, managed = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        status = cuda.cuModuleGetGlobal_v2(
            ctypes.byref(where), ctypes.byref(size), module, name.encode()
        )
        cuda.cuPointerGetAttribute(ctypes.byref(managed), IS_MANAGED, where)
        cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(whole), where)
        failed += status != 0
        print(
            f"{name}: status {status}, {size.value} bytes at {where.value:#x}, "
            f"managed {managed.value}, in {whole.value} bytes at {base.value:#x}"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
