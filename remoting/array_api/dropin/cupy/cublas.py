"""The function of `cupy.cublas` that public libraries call; thinc imports this module."""

from typing import Any

import numpy as np

import cupy
from cupy._door.absent import lookup


def nrm2(x: Any, out: Any = None) -> Any:
    """Return the Euclidean norm of a vector, in ``out`` if it is an array of device or host."""
    if x.ndim != 1:
        raise ValueError(f"x must be a 1D array (actual: {x.ndim})")
    if x.dtype.char not in "fdFD":
        raise TypeError(f"invalid dtype: {x.dtype}")
    made = cupy.linalg.norm(x)
    if out is None:
        return made
    is_host = type(out) is np.ndarray
    out[...] = made.get() if is_host else made
    return out


__getattr__ = lookup(__name__)
