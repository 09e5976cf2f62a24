"""Questions about arrays and types that this machine answers by itself."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cupy._core.convert import ARRAY_PROTOCOLS, array, has_device_leaf
from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import is_array, need, weak_result
from cupy._door.calls import Remote
from cupy._door.meta import Meta


def get_array_module(*args: object) -> Any:
    """Return `cupy` if any argument is on a device, else `numpy`."""
    for arg in args:
        if isinstance(arg, Remote) or hasattr(arg, "__cupy_get_ndarray__"):
            return sys.modules["cupy"]
    return np


def ndim(a: Any) -> int:
    """Return the number of axes."""
    return a.ndim if is_array(a) else np.ndim(a)


def shape(a: Any) -> tuple[int, ...]:
    """Return the lengths of the axes."""
    return a.shape if is_array(a) else np.shape(a)


def size(a: object, axis: int | None = None) -> int:
    """Return the number of elements, or the length of an axis."""
    array = need(a)
    if axis is None:
        return array.size
    if not -array.ndim <= axis < array.ndim:
        raise IndexError("index out of range")
    return array.shape[axis]


def isscalar(element: object) -> bool:
    """Say whether it is a scalar; arrays of no dimensions are not."""
    return np.isscalar(element)


def isfortran(a: Any) -> bool:
    """Say whether it is Fortran-contiguous and not C-contiguous."""
    return a.flags.f_contiguous and not a.flags.c_contiguous


def iscomplexobj(x: Any) -> bool:
    """Say whether the type is complex."""
    return x.dtype.kind == "c" if is_array(x) else np.iscomplexobj(x)


def isrealobj(x: object) -> bool:
    """Say whether the type is not complex."""
    return not iscomplexobj(x)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the type that results from promotion."""
    if int(np.__version__.split(".")[0]) < 2:
        # Before NEP 50 NumPy looked at the values of scalars; CuPy 14 never does.
        strong = [
            x.dtype if hasattr(x, "dtype") else np.dtype(x)
            for x in arrays_and_dtypes
            if type(x) not in (int, float, complex)
        ]
        kinds = [type(x) for x in arrays_and_dtypes if type(x) in (int, float, complex)]
        if strong and kinds:
            return weak_result(np.result_type(*strong), kinds)
    return np.result_type(*[x.dtype if is_array(x) else x for x in arrays_and_dtypes])


def can_cast(from_: object, to: object, casting: str = "safe") -> bool:
    """Say whether a cast is allowed."""
    return np.can_cast(from_.dtype if is_array(from_) else from_, to, casting)  # type: ignore[arg-type]


def min_scalar_type(a: Any) -> Any:
    """Return the smallest type that holds a scalar; arrays of the GPU keep their own."""
    if has_device_leaf(a) or any(hasattr(a, each) for each in ARRAY_PROTOCOLS):
        return array(a, copy=None).dtype
    return np.min_scalar_type(a)


def common_type(*arrays: Any) -> Any:
    """Return the float type that is common to arrays."""
    if not arrays:
        return np.float16
    kinds = [np.dtype(np.float64) if a.dtype.kind in "iu" else a.dtype for a in arrays]
    if any(kind.kind == "b" for kind in kinds):
        raise TypeError("can't get common type for non-numeric array")
    return np.result_type(*kinds).type


def byte_bounds(a: Any) -> tuple[int, int]:
    """Return the first and the last address of an array's memory."""
    meta: Meta = need(a)._gp_meta
    start = int(a.data.ptr)
    low, high = meta.extent if meta.size else (0, 0)
    return start + low, start + high


def may_share_memory(a: object, b: object, max_work: object = None) -> bool:
    """Say whether the ranges of two arrays' memory overlap."""
    del max_work
    if (
        not is_array(a)
        or not is_array(b)
        or a._gp_device != b._gp_device
        or not (a.size and b.size)
    ):
        return False
    (first, end), (second, other_end) = byte_bounds(a), byte_bounds(b)
    return first < other_end and second < end


def is_available() -> bool:
    """Say whether there is a GPU session with at least one device."""
    return sys.modules["cupy"].cuda.is_available()


QUERIES = make.public(globals())
