"""The norm of a vector by its name in `cupy.cublas`."""

from typing import Any

import cupy
from cupy._door.absent import lookup


def nrm2(x: Any, out: Any = None) -> Any:
    """Return the Euclidean norm of a vector; with ``out``, in an array of a device or of the host.

    Raises:
        ValueError: there is not one axis.
        TypeError: the dtype is none of BLAS, or ``out`` is no array.
    """
    if x.ndim != 1:
        raise ValueError(f"x must be a 1D array (actual: {x.ndim})")
    if x.dtype.char not in "fdFD":
        raise TypeError(f"invalid dtype: {x.dtype}")
    made = cupy.linalg.norm(x)
    if out is None:
        return made
    if not hasattr(out, "__setitem__"):
        raise TypeError("out must be either cupy or numpy ndarray")
    out[...] = made if isinstance(out, cupy.ndarray) else made.get()
    return out


__getattr__ = lookup(__name__)
