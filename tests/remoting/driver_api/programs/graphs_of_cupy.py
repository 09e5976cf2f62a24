"""Graphs of the real CuPy and cuda.bindings: captured, and built node by node."""

import importlib
from typing import Any

import numpy as np

cp: Any = importlib.import_module("cupy")
cu: Any = importlib.import_module("cuda.bindings.driver")
N, BYTES = 1000, 4000


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the outputs of a call, which must succeed."""
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


x = cp.zeros(N, cp.float32)
given, got = np.zeros(N, np.float32), np.zeros(N, np.float32)
stream = cp.cuda.Stream(non_blocking=True)
copy = cp.cuda.runtime.memcpyAsync
with stream:
    x += 0  # compiled before the capture
    stream.synchronize()
    stream.begin_capture()
    copy(x.data.ptr, given.ctypes.data, BYTES, 1, stream.ptr)
    x += 1
    copy(got.ctypes.data, x.data.ptr, BYTES, 2, stream.ptr)
    graph = stream.end_capture()
    for turn in range(3):
        given[:] = turn * 5
        graph.launch(stream)
        stream.synchronize()
        assert (got == turn * 5 + 1).all(), got
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(cu.cuStreamBeginCapture(stream.ptr, mode))
    x += 2
    captured = ok(cu.cuStreamEndCapture(stream.ptr))
nodes, count = ok(cu.cuGraphGetNodes(captured, 8))
assert count == 1
kernel = ok(cu.cuGraphKernelNodeGetParams(nodes[0]))
assert kernel.gridDimX * kernel.blockDimX >= N
fill = cu.CUDA_MEMSET_NODE_PARAMS()
fill.dst, fill.value, fill.elementSize, fill.width, fill.height = x.data.ptr, 0x40400000, 4, N, 1
built = ok(cu.cuGraphCreate(0))
first = ok(cu.cuGraphAddMemsetNode(built, None, 0, fill, ok(cu.cuCtxGetCurrent())))
ok(cu.cuGraphAddKernelNode(built, [first], 1, kernel))
ready = ok(cu.cuGraphInstantiate(built, 0))
ok(cu.cuGraphLaunch(ready, stream.ptr))
ok(cu.cuStreamSynchronize(stream.ptr))
assert (x.get() == 5).all()
print("results right")
