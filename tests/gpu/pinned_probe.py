"""What pinned memory costs on a GPU server: made by CUDA, or with large pages and registered.

    python tests/gpu/pinned_probe.py [--mib 256] [--turns 7]

The first download of a size waits until the worker has made its buffer. Prints, for each way in
turns, how long that takes and how fast a copy from the GPU to it is, first and second.
"""

import argparse
import ctypes
import mmap
import statistics
import sys
import time
from typing import Any

HUGE, POPULATE_WRITE = 14, 23
"""MADV_HUGEPAGE; MADV_POPULATE_WRITE, of Linux 5.14 on."""


class Driver:
    """The functions of libcuda.so.1 that the probe calls; each ends the program when it fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Call one; integers are passed as 64 bits."""
        words = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        status = int(self._library[name](*words))
        if status:
            sys.exit(f"{name} returned {status}")


def copies(driver: Driver, target: int, source: int, size: int) -> list[float]:
    """Return the rates of two copies to ``target``, in GB/s."""
    rates: list[float] = []
    for _ in range(2):
        begin = time.perf_counter()
        driver.call("cuMemcpyDtoH_v2", target, source, size)
        rates.append(size / (time.perf_counter() - begin) / 1e9)
    return rates


def by_cuda(driver: Driver, source: int, size: int) -> list[float]:
    """Have CUDA make the memory."""
    found = ctypes.c_uint64(0)
    begin = time.perf_counter()
    driver.call("cuMemHostAlloc", ctypes.byref(found), size, 0)
    made = (time.perf_counter() - begin) * 1e3
    rates = copies(driver, found.value, source, size)
    driver.call("cuMemFreeHost", found.value)
    return [made, *rates]


def registered(driver: Driver, source: int, size: int, *, populate: bool) -> list[float]:
    """Make it here with large pages, and register it."""
    begin = time.perf_counter()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(HUGE)
    if populate:
        memory.madvise(POPULATE_WRITE)
    view = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(view)
    driver.call("cuMemHostRegister_v2", address, size, 0)
    made = (time.perf_counter() - begin) * 1e3
    rates = copies(driver, address, source, size)
    driver.call("cuMemHostUnregister", address)
    del view
    memory.close()
    return [made, *rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    driver, size = Driver(), options.mib << 20
    context, source = ctypes.c_uint64(0), ctypes.c_uint64(0)
    driver.call("cuInit", 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver.call("cuCtxSetCurrent", context.value)
    driver.call("cuMemAlloc_v2", ctypes.byref(source), size)
    driver.call("cuMemsetD8_v2", source.value, 1, size)
    driver.call("cuCtxSynchronize")
    ways = {
        "by CUDA": lambda: by_cuda(driver, source.value, size),
        "large pages, registered": lambda: registered(driver, source.value, size, populate=False),
        "the same, made before": lambda: registered(driver, source.value, size, populate=True),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(options.turns):
        for name, way in ways.items():
            found[name].append(way())
    for name, turns in found.items():
        made, first, second = (statistics.median(column) for column in zip(*turns, strict=True))
        worst = max(turn[0] for turn in turns)
        print(
            f"{name:24} made in {made:7.1f} ms (at most {worst:.1f}),"
            f" copies {first:5.1f} and {second:5.1f} GB/s"
        )


if __name__ == "__main__":
    main()
