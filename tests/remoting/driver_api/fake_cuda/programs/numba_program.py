# The wheels are not in the project's environment, so no checker can know their types.
# type: ignore
# ruff: noqa: ANN001, ANN201
"""The real numba-cuda on the fake driver: its kernels are compiled, loaded and launched."""

import numpy as np
from numba import cuda


@cuda.jit
def increment(data, n):
    i = cuda.grid(1)
    if i < n:
        data[i] += 1


host = np.arange(16, dtype=np.int32)
stream = cuda.stream()
data = cuda.to_device(host, stream=stream)
increment[2, 8, stream](data, 16)
back = data.copy_to_host(stream=stream)
stream.synchronize()
assert (back == host + 1).all()
mapped = cuda.mapped_array(4, dtype=np.float32)
mapped[:] = 3
assert mapped.sum() == 12
free, total = cuda.current_context().get_memory_info()
assert 0 < free < total
print("results right")
