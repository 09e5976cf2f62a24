"""A kernel of numba-cuda, with shared memory and a copy back."""

import numpy as np

# numba-cuda up to 0.22 wants a name that NumPy 2.5 has dropped.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
from numba import cuda, float32


@cuda.jit
def reverse(values):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    shared[i] = values[i]
    cuda.syncthreads()
    values[i] = shared[63 - i] * 2


data = cuda.to_device(np.arange(64, dtype=np.float32))
reverse[1, 64](data)
print("RESULT reverse", *data.copy_to_host()[:4])
print("RESULT memory", cuda.current_context().get_memory_info()[1] > 0)
