"""The real CuPy on two GPUs, which may be of two servers: arrays, copies, events, streams."""

import cupy as cp
import numpy as np

print("RESULT devices", cp.cuda.runtime.getDeviceCount())
host = np.arange(1 << 20, dtype=np.float32)
arrays = []
for device in range(2):
    with cp.cuda.Device(device):
        arrays.append(cp.asarray(host) * (device + 2) + 1)
print("RESULT sums", *(float(cp.asnumpy(array).sum()) for array in arrays))
with cp.cuda.Device(1):
    copied = cp.asarray(arrays[0])
    print("RESULT asarray", bool((copied.get() == host * 2 + 1).all()), copied.device.id)
    target = cp.empty_like(copied)
    cp.copyto(target, arrays[0])
    target += arrays[1]
    print("RESULT copyto", bool((target.get() == host * 5 + 2).all()))
kernel = cp.RawKernel(
    r'extern "C" __global__ void f(float* x, int n) {'
    r" int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }",
    "f",
)
for device in range(2):
    with cp.cuda.Device(device):
        kernel((4096,), (256,), (arrays[device], 1 << 20))
print("RESULT raw", *(bool((a.get() == host * (d + 2) + 2).all()) for d, a in enumerate(arrays)))
with cp.cuda.Device(0):
    first = cp.cuda.Stream(non_blocking=True)
    with first:
        x = cp.ones((500, 500), cp.float32)
        for _ in range(50):
            x = x * 1.01
        done = first.record()
with cp.cuda.Device(1):
    second = cp.cuda.Stream(non_blocking=True)
    second.wait_event(done)
    with second:
        y = cp.asarray(x) + 1
    second.synchronize()
    print("RESULT ordered", float(y[3, 4]))
    a = cp.asarray(host[: 200 * 200].reshape(200, 200))
    print("RESULT matmul", float((a @ a.T).sum()))
    print("RESULT sort", *cp.sort(cp.asarray(-host))[:3].get())
with cp.cuda.Device(0):
    cp.cuda.runtime.memcpyPeer(arrays[0].data.ptr, 0, arrays[1].data.ptr, 1, arrays[0].nbytes)
    print("RESULT memcpyPeer", bool((arrays[0].get() == host * 3 + 2).all()))
