"""The self-test of a GPU: exact computations, repeated for some seconds.

A product of matrices of small integers is exact in every format that a GPU multiplies in, so the
processor's result is the only right one. A pattern goes to the GPU, is inverted there and comes
back. All of it takes less than 64 MiB of the GPU's memory, beside CUDA's own.
"""

import importlib
import time
from typing import Any

import numpy as np

from gpupool.remoting.protocol.worker_messages import CheckGpu, GpuChecked, shortened

SIZE, SIZE_EMULATED = 1024, 64
PATTERN_SIZE = 4 << 20
WRONG_PRODUCT = "it computed a wrong product in its self-test"
WRONG_PATTERN = "its memory gave back another pattern in its self-test"


def run(test: CheckGpu) -> GpuChecked:
    """Test a GPU; a failure is returned, not raised."""
    try:
        arrays: Any = np if test.emulated else importlib.import_module("cupy")
        return _passes(arrays, test)
    except Exception as error:  # noqa: BLE001 - CuPy raises all kinds, and each is an answer
        return GpuChecked(0.0, shortened(f"its self-test failed: {type(error).__name__}: {error}"))


def _passes(arrays: Any, test: CheckGpu) -> GpuChecked:
    size = SIZE_EMULATED if test.emulated else SIZE
    cells = np.arange(size * size, dtype=np.float32).reshape(size, size)
    left, right = cells % 13 - 6, cells.T % 11 - 5
    expected = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)
    pattern = np.arange(PATTERN_SIZE // 4, dtype=np.uint32) * np.uint32(2_654_435_761)
    if test.spoil:
        expected[0, 0] += 1
    _one_pass(arrays, left, right, pattern)  # what is loaded first takes its time once
    began, count = time.perf_counter(), 0
    while True:
        product, back = _one_pass(arrays, left, right, pattern)
        count += 1
        problem = "" if np.array_equal(product, expected) else WRONG_PRODUCT
        if not np.array_equal(back, ~pattern):
            problem = WRONG_PATTERN
        took_s = time.perf_counter() - began
        if problem or took_s >= test.seconds:
            return GpuChecked(count / took_s, problem)


def _one_pass(arrays: Any, left: Any, right: Any, pattern: Any) -> tuple[Any, Any]:
    product = arrays.matmul(arrays.asarray(left), arrays.asarray(right))
    back = ~arrays.asarray(pattern)
    return (product, back) if arrays is np else (arrays.asnumpy(product), arrays.asnumpy(back))
