"""Solve the heat equation on a square, the domain split over up to two GPUs.

A plain CuPy program: each GPU keeps its half of the plate and, in every step, gets one row from
its neighbour. The result is checked against the same steps in NumPy.

    gpupool run -- python examples/solver.py [side] [steps]
"""

import sys
import time
from typing import Any

import cupy as cp
import numpy as np

ALPHA = 0.2  # diffusivity times the time step over the cell size squared; stable below 0.25


def start_temperature(side: int) -> np.ndarray[Any, Any]:
    """Return a cold plate with a hot disc and one warm edge."""
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    plate = np.where((x - 0.3) ** 2 + (y - 0.6) ** 2 < 0.02, 100.0, 0.0)
    plate[0] = 50.0
    return plate


def step(u: Any) -> None:
    """Advance the inside of a plate by one time step, in place."""
    inside = u[1:-1, 1:-1]
    change = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inside
    inside += ALPHA * change


def solve_on_gpus(plate: np.ndarray[Any, Any], steps: int, count: int) -> np.ndarray[Any, Any]:
    """Return the plate after ``steps``, computed by ``count`` GPUs (1 or 2)."""
    if count == 1:
        u = cp.asarray(plate)
        for _ in range(steps):
            step(u)
        return cp.asnumpy(u)
    half = plate.shape[0] // 2
    with cp.cuda.Device(0):
        top = cp.asarray(plate[: half + 1])
    with cp.cuda.Device(1):
        bottom = cp.asarray(plate[half - 1 :])
    for _ in range(steps):
        with cp.cuda.Device(0):
            step(top)
        with cp.cuda.Device(1):
            step(bottom)
            edge = bottom[1].copy()
        with cp.cuda.Device(0):
            sent = top[-2].copy()
            top[-1] = cp.asarray(edge)
        with cp.cuda.Device(1):
            bottom[0] = cp.asarray(sent)
    return np.concatenate([cp.asnumpy(top[:-1]), cp.asnumpy(bottom[1:])])


def main() -> int:
    """Solve, check, and say where."""
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    count = min(2, cp.cuda.runtime.getDeviceCount())
    for index in range(count):
        properties = cp.cuda.runtime.getDeviceProperties(index)
        gib = properties["totalGlobalMem"] / (1 << 30)
        print(f"GPU {index}: {properties['name'].decode()}, {gib:.1f} GiB")
    plate = start_temperature(side)
    began = time.perf_counter()
    found = solve_on_gpus(plate, steps, count)
    print(f"{steps} steps of {side} x {side} in {time.perf_counter() - began:.2f} s")
    reference = plate.copy()
    for _ in range(steps):
        step(reference)
    worst = float(np.abs(found - reference).max())
    print(f"largest difference from NumPy: {worst:.2e}")
    return 0 if worst < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
