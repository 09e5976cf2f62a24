"""Kernels of Python's text: a product by tiles, a histogram, sums of warps, escapes of points.

The types are those that CuPy 14.2 takes with NumPy 2: an index of 32 bits without a sign is never
added to one with a sign.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np

SIZE, TILE, BINS, MOST = 48, 16, 10, 12


def data() -> tuple[Any, Any, Any, Any]:
    """Return two matrices, numbers between 0 and 1, and points of a plane."""
    random = np.random.default_rng(5)
    a, b = random.random((SIZE, SIZE)), random.random((SIZE, SIZE))
    real, imaginary = np.linspace(-2, 0.6, 24), np.linspace(-1.1, 1.2, 20)
    return a, b.T, random.random(1000), real + 1j * imaginary[:, None]


def run(xp: Any) -> list[Any]:
    """Return the product, the counts, the sums, and the steps until points escape."""
    return plain() if xp is np else translated(xp)


def plain() -> list[Any]:
    """Compute with NumPy."""
    a, b, x, points = data()
    counts = np.histogram(x, BINS, (0, 1))[0].astype(np.uint32)
    sums = x[:960].reshape(-1, 32).sum(axis=1)
    z, steps = np.zeros_like(points), np.zeros(points.shape, np.int32)
    for _ in range(MOST):
        inside = np.abs(z) <= 2
        z = np.where(inside, z * z + points, z)
        steps += inside
    return [a @ b, counts, sums, steps]


def translated(cp: Any) -> list[Any]:
    """Compute with kernels."""
    jit: Any = importlib.import_module("cupyx.jit")

    @jit.rawkernel()
    def product(a: Any, b: Any, c: Any, tiles: Any) -> None:
        i, j, side = jit.threadIdx.y, jit.threadIdx.x, jit.blockDim.x
        row, column = jit.blockIdx.y * side + i, jit.blockIdx.x * side + j
        left = jit.shared_memory(cp.float64, TILE * TILE)
        right = jit.shared_memory(cp.float64, TILE * TILE)
        total = cp.float64(0)
        for tile in range(tiles):
            left[i * side + j] = a[row, tile * side + j]
            right[i * side + j] = b[tile * side + i, column]
            jit.syncthreads()
            for k in range(side):
                total += left[i * side + k] * right[k * side + j]
            jit.syncthreads()
        c[row, column] = total

    @jit.rawkernel()
    def histogram(x: Any, counts: Any, size: Any) -> None:
        step = jit.gridsize(1)
        for i in range(jit.grid(1), size, step):
            jit.atomic_add(counts, cp.int64(x[i] * BINS), 1)

    @jit.rawkernel()
    def sums(x: Any, out: Any) -> None:
        i = jit.grid(1)
        value = x[i]
        lane = 16
        while lane > 0:
            value += jit.shfl_xor_sync(0xFFFFFFFF, value, lane)
            lane //= 2
        if jit.laneid() == 0:
            out[i // 32] = value

    @jit.rawkernel(device=True)
    def steps_of(point: Any, most: Any) -> Any:
        z = point * 0
        count = 0
        while count < most and cp.absolute(z) <= 2:
            z = z * z + point
            count += 1
        return count

    @jit.rawkernel()
    def escapes(points: Any, steps: Any, most: Any) -> None:
        i, j = jit.grid(2)
        if i < points.shape[0] and j < points.shape[1]:
            steps[i, j] = steps_of(points[i, j], most)

    a, b, x, points = [cp.asarray(each) for each in data()]
    c, counts = cp.zeros((SIZE, SIZE)), cp.zeros(BINS, np.uint32)
    warps, steps = cp.zeros(30), cp.zeros(points.shape, np.int32)
    blocks = SIZE // TILE
    product[(blocks, blocks), (TILE, TILE)](a, b, c, np.uint32(blocks))
    histogram((2,), (64,), (x, counts, np.uint32(x.size)))
    sums[10, 96](x[:960], warps)
    escapes[(3, 3), (8, 8)](points, steps, MOST)
    return [c, counts, warps, steps]
