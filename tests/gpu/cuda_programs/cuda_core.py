"""cuda.core and cuda.bindings, NVIDIA's own Python: programs, launches, memory, graphs, events."""

import numpy as np
from sections import section

try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = r"""
extern "C" __global__ void scale(float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
"""
device = Device(0)
device.set_current()
stream = device.create_stream()


@section
def properties():
    return device.compute_capability.major, device.properties.multiprocessor_count > 0


@section
def kernels():
    import cupy

    major, minor = device.compute_capability
    options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
    kernel = Program(CODE, code_type="c++", options=options).compile("cubin").get_kernel("scale")
    x = cupy.arange(1000, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    config = LaunchConfig(grid=4, block=256)
    launch(stream, config, kernel, x.data.ptr, np.float32(3), np.int32(1000))
    stream.sync()
    return float(x.sum()), kernel.attributes.num_regs > 0


@section
def buffers():
    buffer = device.memory_resource.allocate(4096, stream=stream)
    size = buffer.size
    buffer.close(stream)
    stream.sync()
    return size


@section
def events():
    from cuda.core import EventOptions

    first = stream.record(options=EventOptions(timing_enabled=True))
    second = stream.record(options=EventOptions(timing_enabled=True))
    second.sync()
    return second - first >= 0


@section
def graphs():
    builder = device.create_graph_builder()
    builder.begin_building()
    graph = builder.end_building().complete()
    graph.launch(stream)
    stream.sync()
    return True


@section
def bindings():
    from cuda.bindings import driver, runtime

    free, total = driver.cuMemGetInfo()[1:]
    found = runtime.cudaGetDeviceProperties(0)[1]
    return 0 < int(free) <= int(total), found.name.decode()
