"""The plans of transforms that a real GPU's CuPy keeps."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any


def plan_operations(backend: Any) -> dict[str, Callable[..., Any]]:
    """Return name to callable; all run in the one thread with the plans that CuPy keeps."""

    def cache() -> Any:
        return backend.cupy.fft.config.get_plan_cache()

    def numbers() -> list[int]:
        found = cache()
        sizes = (found.get_size(), found.get_curr_size())
        return [*sizes, found.get_memsize(), found.get_curr_memsize()]

    return {
        "fft.cache.numbers": numbers,
        "fft.cache.set_size": lambda size: cache().set_size(size),
        "fft.cache.set_memsize": lambda memsize: cache().set_memsize(memsize),
        "fft.cache.clear": lambda: cache().clear(),
    }
