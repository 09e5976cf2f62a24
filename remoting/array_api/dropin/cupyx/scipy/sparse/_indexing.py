"""Indices of sparse matrices, as the worker takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from cupy._core import convert
from cupy._door.calls import Remote


def key_of(matrix: Any, key: Any) -> Any:
    """Return an index with its arrays on the device; IndexError for none such."""
    items = key if isinstance(key, tuple) else (key,)
    made = tuple([_item(item) for item in items])
    arrays = any(isinstance(item, Remote) for item in made)
    if not arrays and sum(item is not None and item is not Ellipsis for item in made) > matrix.ndim:
        raise IndexError(f"too many indices for a matrix of {matrix.ndim} dimensions")
    axis, rest = 0, any(item is Ellipsis for item in made)
    for item in made:
        if type(item) is int and not rest and axis < matrix.ndim:
            length = matrix.shape[axis]
            if not -length <= item < length:
                raise IndexError(f"index ({item}) out of range")
        axis += item is not None
    return made if isinstance(key, tuple) else made[0]


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, (slice, Remote)):
        return item
    if isinstance(item, (list, np.ndarray, np.bool_, bool)):
        host = np.asarray(item)
        if host.dtype.kind not in "biu" and host.size:
            raise IndexError("Index dimension must be 1 or 2")
        return convert.array(host if host.size else host.astype(np.int32))
    if hasattr(item, "__index__"):
        return item.__index__()
    raise IndexError("Index dimension must be 1 or 2")
