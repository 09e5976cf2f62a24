"""The real CuPy: elementwise, raw kernels, reductions, cuBLAS, cuFFT, cuSOLVER, sort, random."""

import time

import numpy as np

start = time.perf_counter()
import cupy as cp

x = cp.arange(1000, dtype=cp.float32)
print("RESULT arange", float((x * 2 + 1).sum()))
print(f"RESULT first_s {time.perf_counter() - start:.2f}")
kernel = cp.RawKernel(
    r'extern "C" __global__ void f(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] += 1; }',
    "f",
)
for _ in range(100):
    kernel((1,), (32,), (x, 32))
print("RESULT raw", float(x[0]), float(x[31]), float(x[32]))
rng = np.random.default_rng(0)
a = rng.standard_normal((300, 200)).astype(np.float32)
b = rng.standard_normal((200, 100)).astype(np.float32)
print("RESULT matmul", float(cp.abs(cp.asarray(a) @ cp.asarray(b)).sum()))
print("RESULT fft", float(cp.abs(cp.fft.fft(cp.asarray(a[0]))).sum()))
square = a[:200] @ a[:200].T + 200 * np.eye(200, dtype=np.float32)
print("RESULT solve", float(cp.linalg.solve(cp.asarray(square), cp.ones(200, cp.float32)).sum()))
print("RESULT sort", *cp.sort(cp.asarray(a.ravel()))[:3].get())
print("RESULT cumsum", float(cp.cumsum(cp.asarray(a[0]))[-1]))
cp.random.seed(3)
print("RESULT random", float(cp.random.standard_normal(1000, dtype=cp.float32).sum()))
stream = cp.cuda.Stream(non_blocking=True)
with stream:
    y = cp.ones((1000, 1000), cp.float32)
    for _ in range(50):
        y = y * 1.01
    event = stream.record()
event.synchronize()
print("RESULT stream", float(y[5, 5]))
big = rng.integers(0, 255, 30 << 20, dtype=np.uint8)
print("RESULT bytes", bool((cp.asarray(big).get() == big).all()))
with cp.cuda.Stream() as capturing:
    z = cp.zeros(100, cp.float32)
    z += 1
    capturing.begin_capture()
    z += 1
    graph = capturing.end_capture()
    for _ in range(5):
        graph.launch()
    capturing.synchronize()
print("RESULT graph", float(z[0]))
loop = time.perf_counter()
for _ in range(2000):
    x = x * 1.0
cp.cuda.Device().synchronize()
print(f"RESULT multiply_us {(time.perf_counter() - loop) / 2000 * 1e6:.2f}")
loop = time.perf_counter()
for _ in range(200):
    float(x[0])
print(f"RESULT scalar_us {(time.perf_counter() - loop) / 200 * 1e6:.2f}")
