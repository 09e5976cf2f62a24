"""Arrays from other values: `array`, `asarray` and `astype`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import (
    dtype_of,
    integers,
    is_array,
    is_scalar,
    normalize_order,
    shape_of,
    view_dtype_of,
    warn_of_complex,
)
from cupy._core.dispatch.arguments import operand as _operand
from cupy._core.dispatch.transfers import upload
from cupy._door import dtypes, state
from cupy._door.arrays import Array
from cupy._door.calls import Plan, Remote
from cupy._door.meta import Meta, contiguous_strides, fresh, intern, keep_order

if TYPE_CHECKING:
    from cupy._core.array import ndarray

ARRAY_PROTOCOLS = ("__cupy_get_ndarray__", "__cuda_array_interface__")
"""Attributes of an object that is an array on a device, or describes one."""


def asarray(value: object) -> ndarray:
    """Return ``value`` as an array on the device, uploading it if it is none yet."""
    return value if is_array(value) else array(value)


def operand(value: object) -> Any:
    """Return a number as it is, and anything else as an array on the device."""
    is_number = value is None or is_scalar(value)
    return _operand(value) if is_number else asarray(value)


def array(
    obj: object,
    dtype: object = None,
    copy: object = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> Any:
    """Return a new array on the current device; see `cupy.array`."""
    # Pickles of arrays name this function by its module: it stays here.
    if subok:
        raise NotImplementedError("subok=True is not supported")
    order = normalize_order(order)
    convert = getattr(obj, "__cupy_get_ndarray__", None)
    if convert is not None:
        obj = convert()
    elif not isinstance(obj, Array) and hasattr(obj, "__cuda_array_interface__"):
        obj = from_interface(obj)
    if isinstance(obj, Array):
        made = _from_device(obj, dtype, copy, order, ndmin)
    elif isinstance(obj, (list, tuple)) and has_device_leaf(obj):
        made = _from_nested(obj, dtype, order, ndmin)
    else:
        made = _from_host(obj, dtype, copy, order, ndmin)
    if blocking:
        made._gp_session.synchronize()
    return made


def from_interface(obj: Any) -> ndarray:
    """Return the array that an object describes by ``__cuda_array_interface__``, without a copy.

    Raises:
        TypeError: its memory is not that of an array of this cupy.
        ValueError: masked, of a dtype that no device computes with, or outside that memory.
    """
    described = obj.__cuda_array_interface__
    if described.get("mask") is not None:
        raise ValueError("CuPy currently does not support masked arrays.")
    kind, shape = view_dtype_of(described["typestr"]), shape_of(described["shape"])
    address = described["data"][0]
    if 0 in shape:
        return make.empty(shape, kind)
    pointer = getattr(address, "pointer", None)
    if pointer is None:
        raise TypeError(
            f"{type(obj).__module__}.{type(obj).__qualname__} holds GPU memory of this process, "
            "and the arrays of this cupy are on a GPU of the pool: copy it through the host (numpy)"
        )
    strides = described.get("strides")
    steps = contiguous_strides(shape, kind.itemsize) if strides is None else integers(strides)
    if len(steps) != len(shape):
        raise ValueError(f"shape {shape} has not as many dimensions as strides {steps}")
    if not pointer.holds(intern(kind, shape, steps)):
        raise ValueError(
            f"{type(obj).__module__}.{type(obj).__qualname__} describes shape {shape} with strides "
            f"{steps}, which reach outside the array that it points to: correct the description"
        )
    return pointer.as_array(shape, kind, steps, "C")


def _from_host(obj: object, dtype: object, copy: object, order: str, ndmin: int) -> ndarray:
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    letter = order if order in ("C", "F") else "K" if isinstance(obj, np.ndarray) else "C"
    host = np.array(obj, dtype=dtype, copy=None if _COPY_NONE else False, order=letter, ndmin=ndmin)  # type: ignore[call-overload]
    dtype_of(host.dtype.newbyteorder("="))
    if order == "A":
        flags = host.flags
        host = np.asarray(host, order="F" if flags.f_contiguous and not flags.c_contiguous else "C")
    return upload(host, order=order if order in ("C", "F") else None)


_COPY_NONE = int(np.__version__.split(".")[0]) >= 2


def has_device_leaf(obj: object) -> bool:
    """Say whether a nested sequence holds device arrays; the first leaf of each branch tells."""
    items: Any = obj
    if not isinstance(obj, (list, tuple)):
        return isinstance(obj, Remote)
    if not items:
        return False
    first = items[0]
    # Not asked of an array of ours, whose description would ask the worker for its address.
    if not isinstance(first, Remote) and any(hasattr(first, each) for each in ARRAY_PROTOCOLS):
        return True
    return (isinstance(items[0], (list, tuple)) and any(map(has_device_leaf, items))) or any(
        isinstance(item, Remote) for item in items
    )


def _from_nested(obj: object, dtype: object, order: str, ndmin: int) -> Any:
    from cupy._core.joining import stack

    def build(value: object) -> Any:
        if isinstance(value, (list, tuple)):
            return stack([build(item) for item in value])
        if not isinstance(value, Remote) and any(hasattr(value, each) for each in ARRAY_PROTOCOLS):
            value = array(value, copy=None)
        if not isinstance(value, Remote):
            raise TypeError(f"Unsupported type {type(value)}")
        return value

    made = build(obj)
    kind = made.dtype if dtype is None else dtype_of(dtype)
    made = made.astype(kind, order="F" if order == "F" else "C", copy=False)
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def _from_device(obj: Any, dtype: Any, copy: Any, order: str, ndmin: int) -> ndarray:
    kind = obj.dtype if dtype is None else dtype_of(dtype)
    here = state.local.context[0]
    if obj._gp_device != here:
        made = obj.copy(order)
        if made.dtype != kind:
            made = made.astype(kind, order=order)
    else:
        made = astype(obj, kind, order, copy)
    if ndmin > made.ndim:
        if made is obj:
            made = made.view()
        made = made.reshape((1,) * (ndmin - made.ndim) + made.shape)
    return made


_casts: dict[Any, tuple[Plan, bytes]] = {}


def _has_order(meta: Meta, letter: str) -> bool:
    """Say whether an array is already in the order that a letter names."""
    c, f = meta.contiguity
    return {"K": True, "A": c or f, "C": c, "F": f}[letter]


def astype(source: Any, dtype: Any, order: str | None, copy: object) -> ndarray:
    """Return a converted copy, or the array itself where ``copy`` allows and nothing changes.

    ``copy``: True always, None if needed, False never (ValueError if it would be needed).
    """
    plain = copy is True and isinstance(dtype, (type, str, np.dtype))
    found = _casts.get((source._gp_known, dtype, order)) if plain else None
    if found is not None:
        return make.send(source, found[0], found[1], None)
    meta: Meta = source._gp_meta
    kind = meta.dtype if dtype is meta.dtype else dtype_of(dtype)
    key = (meta, dtype, order) if plain else None
    letter = normalize_order(order)
    if kind == meta.dtype and not copy and _has_order(meta, letter):
        return source
    if copy is False:
        raise ValueError("Unable to avoid copy while creating an array as requested.")
    if letter == "A":
        letter = "F" if meta.contiguity == (False, True) else "C"
    if meta.dtype.kind == "c" and kind.kind not in "bc":
        warn_of_complex()
        key = None  # each time with its warning
    if meta.size and kind != meta.dtype:
        dtypes.check_kernel(meta.dtype)
        dtypes.check_kernel(kind)
    made = keep_order(meta, kind) if letter == "K" else fresh(kind, meta.shape, letter)
    if key is not None:
        make.remember(_casts, key, make.planned(source, "ndarray.astype", (kind, letter), {}, made))
    return make.forward("ndarray.astype", (source, kind, letter), {}, made)
