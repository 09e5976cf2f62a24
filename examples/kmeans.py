# /// script
# dependencies = ["numpy"]
# ///
"""Cluster points with k-means, the points split over up to two GPUs.

A plain CuPy program. The result is checked against the same iterations in NumPy.

    gpupool run -- python examples/kmeans.py [points] [clusters]
"""

import sys
import time
from typing import Any

import cupy as cp
import numpy as np

DIMENSIONS = 8
ITERATIONS = 10


def assign(xp: Any, points: Any, centres: Any) -> Any:
    """Return the number of the nearest centre of every point."""
    # |p - c|^2 = |p|^2 - 2 p.c + |c|^2, and |p|^2 is the same for all centres.
    return xp.argmin((centres * centres).sum(axis=1) - 2 * (points @ centres.T), axis=1)


def sums(xp: Any, points: Any, labels: Any, clusters: int) -> tuple[Any, Any]:
    """Return the sum and the number of points of each cluster."""
    member = (labels[:, None] == xp.arange(clusters)).astype(points.dtype)
    return member.T @ points, member.sum(axis=0)


def cluster_on_gpus(points: Any, first: Any, count: int) -> tuple[Any, Any]:
    """Return centres and labels after `ITERATIONS`, computed by ``count`` GPUs."""
    centres: Any = first
    clusters = len(first)
    parts: list[Any] = []
    for index, part in enumerate(np.array_split(points, count)):
        with cp.cuda.Device(index):
            parts.append(cp.asarray(part))
    labels: list[Any] = []
    for _ in range(ITERATIONS):
        partial: list[tuple[Any, Any]] = []
        labels = []
        for index, part in enumerate(parts):
            with cp.cuda.Device(index):
                here = cp.asarray(centres)
                labels.append(assign(cp, part, here))
                partial.append(sums(cp, part, labels[-1], clusters))
        # Everything above is only queued; the small sums are the one thing that is waited for.
        total: Any = np.sum([cp.asnumpy(total) for total, _ in partial], axis=0)
        number: Any = np.sum([cp.asnumpy(number) for _, number in partial], axis=0)
        means: Any = total / np.maximum(number, 1)[:, None]
        centres = centres.copy()
        centres[number > 0] = means[number > 0]
    return centres, np.concatenate([cp.asnumpy(part) for part in labels])


def main() -> int:
    """Cluster, check, and say where."""
    count_points = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    count = min(2, cp.cuda.runtime.getDeviceCount())
    for index in range(count):
        properties = cp.cuda.runtime.getDeviceProperties(index)
        gib = properties["totalGlobalMem"] / (1 << 30)
        print(f"GPU {index}: {properties['name'].decode()}, {gib:.1f} GiB")
    random = np.random.default_rng(7)
    true = random.uniform(-10, 10, (clusters, DIMENSIONS))
    points = true[random.integers(clusters, size=count_points)]
    points = points + random.normal(size=points.shape)
    first = points[:clusters]
    began = time.perf_counter()
    centres, labels = cluster_on_gpus(points, first, count)
    took = time.perf_counter() - began
    print(f"{ITERATIONS} iterations of {count_points:,} points in {took:.2f} s")
    reference = first
    wanted: Any = None
    for _ in range(ITERATIONS):
        wanted = assign(np, points, reference)
        total, number = sums(np, points, wanted, clusters)
        reference = np.where(number[:, None] > 0, total / np.maximum(number, 1)[:, None], reference)
    same = float((labels == wanted).mean())
    worst = float(np.abs(centres - reference).max())
    print(f"labels equal to NumPy's: {same:.4%}; largest difference of a centre: {worst:.2e}")
    # Rounding may move a point that lies between two centres; more would be a mistake.
    return 0 if same > 0.999 and worst < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
