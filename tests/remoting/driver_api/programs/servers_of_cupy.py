# The wheels are not in the project's environment, so no checker can know their types.
# type: ignore
"""The real CuPy on two devices of different servers."""

import sys

import cupy as cp
import numpy as np

runtime = cp.cuda.runtime
assert runtime.getDeviceCount() == 2
assert not runtime.deviceCanAccessPeer(0, 1)
host = np.arange(1 << 16, dtype=np.float32)
arrays = []
for device in range(2):
    with cp.cuda.Device(device):
        arrays.append(cp.asarray(host) * (device + 2) + 1)
for device, array in enumerate(arrays):  # whatever device is current
    assert (array.get() == host * (device + 2) + 1).all()
    assert array.device.id == device
    assert (array[100:200].get() == host[100:200] * (device + 2) + 1).all()

# One module, loaded for each device.
module = cp.RawModule(path=f"{sys.argv[1]}/test_kernels.sm_90.cubin")
for device in range(2):
    with cp.cuda.Device(device):
        data = cp.asarray(np.arange(300, dtype=np.int32))
        module.get_function("increment")((3,), (128,), (data, np.int32(300)))
        assert (data.get() == np.arange(1, 301)).all()

with cp.cuda.Device(1):
    copied = cp.asarray(arrays[0])
    assert copied.device.id == 1
    assert (copied.get() == host * 2 + 1).all()
    target = cp.empty_like(copied)
    cp.copyto(target, arrays[0])
    target += arrays[1]
    assert (target.get() == host * 5 + 2).all()
    refused = ""
    try:
        arrays[0] + arrays[1]
    except ValueError as error:
        refused = str(error)
    assert "eer access" in refused, refused

with cp.cuda.Device(0):
    first = cp.cuda.Stream(non_blocking=True)
    with first:
        x = cp.ones((100, 100), cp.float32)
        for _ in range(10):
            x = x * 2
        done = first.record()
with cp.cuda.Device(1):
    second = cp.cuda.Stream(non_blocking=True)
    second.wait_event(done)
    with second:
        y = cp.asarray(x) + 1
    second.synchronize()
    assert (y.get() == 1025).all()
    assert cp.get_default_memory_pool().used_bytes() > 0
with cp.cuda.Device(0):
    runtime.memcpyPeer(arrays[0].data.ptr, 0, arrays[1].data.ptr, 1, arrays[0].nbytes)
    assert (arrays[0].get() == host * 3 + 1).all()
print("results right")
