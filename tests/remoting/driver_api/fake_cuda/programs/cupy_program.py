# The wheels are not in the project's environment, so no checker can know their types.
# type: ignore
"""The real CuPy on the fake driver: memory, streams, events, modules, capture, results."""

import sys

import cupy as cp
import numpy as np

kernels = sys.argv[1]
runtime = cp.cuda.runtime
assert runtime.getDeviceCount() == 2
assert cp.cuda.Device(1).compute_capability == "90"

# Bytes go up and down, contiguous and not.
host = np.arange(24, dtype=np.float64).reshape(4, 6)
assert (cp.asarray(host).get() == host).all()
assert (cp.asarray(np.asfortranarray(host)).get() == host).all()

# Prebuilt images, whose kernels the fake knows.
for name in ("sm_90.cubin", "ptx", "fatbin", "lz4.fatbin"):
    module = cp.RawModule(path=f"{kernels}/test_kernels.{name}")
    data = cp.asarray(np.arange(300, dtype=np.int32))
    module.get_function("increment")((3,), (128,), (data, np.int32(300)))
    assert (data.get() == np.arange(1, 301)).all(), name
    coefficient = module.get_global("coefficient")
    memory = cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(coefficient.ptr, 16, module), 0)
    assert cp.ndarray((4,), np.float32, memory).get().tolist() == [1, 2, 3, 4]

# CuPy's own element-wise kernels, compiled by NVRTC, over contiguous and strided arrays.
a = cp.arange(12, dtype=cp.float32).reshape(3, 4)
h = np.arange(12, dtype=np.float32).reshape(3, 4)
assert (((a * 2 + 1) / (a + 1) - a).get() == (h * 2 + 1) / (h + 1) - h).all()
assert (a.T.copy().get() == h.T).all()
assert ((a[::2] * a[:2]).get() == h[::2] * h[:2]).all()
assert ((a > 5).get() == (h > 5)).all()
assert (cp.where(a > 5, a, 0).get() == np.where(h > 5, h, 0)).all()
assert (cp.sqrt(a.astype(cp.float64)).get() == np.sqrt(h.astype(np.float64))).all()
counts = cp.full(5, 3, dtype=cp.int64)
counts += 2**40
assert counts.get().tolist() == [3 + 2**40] * 5

# Streams, events, pinned memory.
stream = cp.cuda.Stream(non_blocking=True)
start, end = cp.cuda.Event(), cp.cuda.Event()
with stream:
    start.record()
    module.get_function("sleep_us")((1,), (1,), (np.int64(5000),))
    end.record()
end.synchronize()
assert cp.cuda.get_elapsed_time(start, end) >= 5
pinned = cp.cuda.alloc_pinned_memory(1200)
target = np.frombuffer(pinned, np.int32, 300)
data.get(stream=stream, out=target)
stream.synchronize()
assert target[7] == 8

# A captured graph runs at each launch.
stream.begin_capture()
with stream:
    module.get_function("increment")((3,), (128,), (data, np.int32(300)))
graph = stream.end_capture()
for _ in range(3):
    graph.launch(stream)
stream.synchronize()
assert (data.get() == np.arange(4, 304)).all()

# Other allocators, two devices, textures' arrays.
with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
    assert not cp.zeros(1000).get().any()
with cp.cuda.using_allocator(cp.cuda.malloc_managed):
    assert not cp.zeros(1000).get().any()
with cp.cuda.Device(1):
    other = cp.empty_like(data)
    other.data.copy_from_device_async(data.data, data.nbytes, cp.cuda.get_current_stream())
    assert (other.get() == data.get()).all()
channel = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
array = cp.cuda.texture.CUDAarray(channel, 16, 8)
image = np.random.default_rng(1).random((8, 16), np.float32)
array.copy_from(image)
back = np.zeros_like(image)
array.copy_to(back)
assert (back == image).all()

# Out of memory is an ordinary error.
try:
    cp.cuda.runtime.malloc(1 << 40)
except cp.cuda.runtime.CUDARuntimeError as error:
    refusal = str(error)
else:
    refusal = "none"
assert "out of memory" in refusal, refusal
print("results right")
