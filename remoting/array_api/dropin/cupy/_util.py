"""Parts of CuPy's `_util`, `_core.internal` and `_core._scalar` that public libraries use."""

import math
import warnings
from typing import Any

import numpy as np

from cupy._core.dispatch.arguments import axes_of, axis_of, dtype_of
from cupy._core.host import clear_memo as clear_memo
from cupy._core.host import memoize as memoize
from cupy._door.absent import lookup

_normalize_axis_index = axis_of
_broadcast_shapes = np.broadcast_shapes
prod = prod_sequence = math.prod

_NAMES = (
    "? bool, b signed char, B unsigned char, h short, H unsigned short, i int, I unsigned int, "
    "l long long, L unsigned long long, q long long, Q unsigned long long, e float16, f float, "
    "d double, F thrust::complex<float>, D thrust::complex<double>"
)
TYPENAMES = {pair[0]: pair[2:] for pair in _NAMES.split(", ")}
"""By the characters of NumPy."""


def _normalize_axis_indices(  # pyright: ignore[reportUnusedFunction]
    axes: Any, ndim: int, sort_axes: bool = True
) -> tuple[int, ...]:
    """Return non-negative axes, all of them for None."""
    made = axes_of(axes, ndim)
    return tuple(sorted(made)) if sort_axes else made


def get_size(size: Any) -> tuple[Any, ...]:
    """Return a shape as a tuple."""
    if size is None:
        raise TypeError("Use () not None as shape arguments")
    return tuple(size) if np.ndim(size) else (size,)


def clp2(x: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (x - 1).bit_length() if x > 0 else 0


def get_typename(dtype: Any, type_decls: Any = None) -> str:
    """Return the name of a type of numbers; the header that it needs goes to a set."""
    if dtype is None:
        raise TypeError("dtype is None")
    found = TYPENAMES.get(dtype_of(dtype).char)
    if found is None:
        raise ValueError(f"Unsupported dtype {dtype}")
    if type_decls is not None and found == "float16":
        type_decls.add('#include "cupy/float16.cuh"')
    return found


class PerformanceWarning(RuntimeWarning):
    """A call is slow; nothing here warns of it."""


def experimental(api_name: str) -> None:
    """Warn that an interface of a library may change."""
    warnings.warn(
        f"{api_name} is experimental. The interface can change in the future.",
        FutureWarning,
        stacklevel=3,
    )


__getattr__ = lookup(__name__)
