"""Blur an image and find its edges, one colour channel after the other, on up to two GPUs.

A plain CuPy program: Gaussian blur by FFT, Sobel edges by slicing, contrast by percentiles. The
result is checked against the same filter in NumPy.

    gpupool run -- python examples/image_filter.py [side]
"""

import sys
import time
from typing import Any

import cupy as cp
import numpy as np

SIGMA = 2.5


def test_image(side: int) -> np.ndarray[Any, Any]:
    """Return a colourful image of shape (3, side, side) with values from 0 to 1."""
    y, x = np.mgrid[0:side, 0:side] / side
    rings = 0.5 + 0.5 * np.sin(60 * np.hypot(x - 0.5, y - 0.5))
    squares = ((x * 8).astype(int) + (y * 8).astype(int)) % 2
    noise = np.random.default_rng(3).random((side, side))
    return np.stack([rings, squares * 0.8, 0.7 * x + 0.3 * noise])


def edges(xp: Any, channel: Any) -> Any:
    """Return the edges of one channel, blurred before, stretched to 0..1."""
    rows, columns = channel.shape
    fy, fx = xp.fft.fftfreq(rows)[:, None], xp.fft.rfftfreq(columns)[None, :]
    kernel = xp.exp(-2 * (np.pi * SIGMA) ** 2 * (fy**2 + fx**2))
    smooth = xp.fft.irfft2(xp.fft.rfft2(channel) * kernel, s=channel.shape)
    padded = xp.pad(smooth, 1, mode="edge")
    across = padded[:, 2:] - padded[:, :-2]
    down = padded[2:] - padded[:-2]
    gx = across[:-2] + 2 * across[1:-1] + across[2:]
    gy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    size = xp.hypot(gx, gy)
    low, high = xp.percentile(size, 1), xp.percentile(size, 99)
    return xp.clip((size - low) / (high - low), 0.0, 1.0)


def main() -> int:
    """Filter, check, and say where."""
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    count = min(2, cp.cuda.runtime.getDeviceCount())
    for index in range(count):
        properties = cp.cuda.runtime.getDeviceProperties(index)
        gib = properties["totalGlobalMem"] / (1 << 30)
        print(f"GPU {index}: {properties['name'].decode()}, {gib:.1f} GiB")
    image = test_image(side)
    began = time.perf_counter()
    queued: list[Any] = []
    for number, channel in enumerate(image):
        with cp.cuda.Device(number % count):
            queued.append(edges(cp, cp.asarray(channel)))
    found = np.stack([cp.asnumpy(channel) for channel in queued])
    print(f"3 channels of {side} x {side} in {time.perf_counter() - began:.2f} s")
    wanted = np.stack([edges(np, channel) for channel in image])
    worst = float(np.abs(found - wanted).max())
    print(f"mean edge strength {found.mean():.4f}; largest difference from NumPy: {worst:.2e}")
    return 0 if worst < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
