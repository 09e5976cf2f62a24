"""Creation of arrays: everything about them is known here, so nothing waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core.dispatch import arguments, make, transfers
from cupy._core.dispatch.arguments import need
from cupy._door.meta import Meta, fresh, intern, keep_order

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def empty(shape: object, dtype: object = float, order: str = "C") -> ndarray:
    """Return a new array without setting its elements."""
    return make.empty(arguments.shape_of(shape), dtype, order=_c_or_f(order))


def zeros(shape: object, dtype: object = float, order: str = "C") -> ndarray:
    """Return a new array of zeros."""
    return make.new("door.zeros", arguments.shape_of(shape), dtype, _c_or_f(order))


def ones(shape: object, dtype: object = float, order: str = "C") -> ndarray:
    """Return a new array of ones."""
    return make.full(arguments.shape_of(shape), 1, dtype, _c_or_f(order))


def full(shape: object, fill_value: object, dtype: object = None, order: str = "C") -> ndarray:
    """Return a new array of one value."""
    if dtype is None:
        dtype = fill_value.dtype if arguments.is_array(fill_value) else np.array(fill_value).dtype
    return _filled(empty(shape, dtype, order), fill_value)


def _filled(made: ndarray, value: object) -> ndarray:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())
    if arguments.is_array(value):
        made[...] = value
    else:
        made.fill(value)
    return made


def _c_or_f(order: Any) -> str:
    if order in ("C", "F"):
        return order
    letter = arguments.normalize_order("C" if order is None else order)
    if letter not in ("C", "F"):
        raise ValueError("only 'C' or 'F' order is permitted")
    return letter


def _like(prototype: object, dtype: object, order: Any, subok: object, shape: object) -> Meta:
    if subok is not None and subok is not False:
        raise TypeError("subok is not supported yet")
    if isinstance(prototype, (np.ndarray, np.generic)):  # CuPy only reads what it looks like
        meta = intern(arguments.dtype_of(prototype.dtype), prototype.shape, prototype.strides)
    else:
        meta = need(prototype)._gp_meta
    kind = meta.dtype if dtype is None else arguments.dtype_of(dtype)
    letter = arguments.normalize_order(order)
    c, f = meta.contiguity
    lengths = meta.shape if shape is None else arguments.shape_of(shape)
    if letter == "A":
        letter = "F" if f and not c else "C"
    elif letter == "K" and len(lengths) != meta.ndim:
        letter = "C"
    if letter == "K":
        return keep_order(meta, kind, lengths)
    return fresh(kind, lengths, letter)


def _dense(meta: Meta) -> tuple[tuple[int, ...], object, str] | None:
    """Return the arguments of ``empty`` for a layout, or None if it has neither order."""
    c, f = meta.contiguity
    if not (c or f):
        return None
    return meta.shape, meta.dtype, "C" if c else "F"


def _allocate(meta: Meta, name: str) -> ndarray:
    dense = _dense(meta)
    if dense is not None:
        return make.forward(name, dense, {}, meta)
    # Axes in another order: allocate in memory order, and transpose.
    axes = sorted(range(meta.ndim), key=lambda at: -meta.strides[at])
    plain = tuple(meta.shape[at] for at in axes)
    base = make.forward(name, (plain, meta.dtype, "C"), {}, fresh(meta.dtype, plain))
    back = tuple(axes.index(at) for at in range(meta.ndim))
    made = base.transpose(back)
    made._gp_base = None
    return made


def empty_like(
    prototype: object, dtype: object = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """Return a new array that looks like another."""
    return _allocate(_like(prototype, dtype, order, subok, shape), "door.empty")


def zeros_like(
    a: object, dtype: object = None, order: str = "K", subok: object = None, shape: object = None
) -> ndarray:
    """Return zeros that look like another array."""
    return _allocate(_like(a, dtype, order, subok, shape), "door.zeros")


def ones_like(
    a: object, dtype: object = None, order: str = "K", subok: object = None, shape: object = None
) -> ndarray:
    """Return ones that look like another array."""
    return full_like(a, 1, dtype, order, subok, shape)


def full_like(
    a: object,
    fill_value: object,
    dtype: object = None,
    order: str = "K",
    subok: object = None,
    shape: object = None,
) -> ndarray:
    """Return an array of one value that looks like another array."""
    return _filled(empty_like(a, dtype, order, subok, shape), fill_value)


def arange(start: object, stop: object = None, step: Any = 1, dtype: object = None) -> ndarray:
    """Return evenly spaced values within an interval."""
    first: Any
    first, last = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    if dtype is None:
        # A number on the device counts as an integer in CuPy, whatever its type is.
        on_device = [arguments.is_array(value) for value in (first, last, step)]
        given = [
            np.dtype(np.int64) if there else np.asarray(value).dtype
            for value, there in zip((first, last, step), on_device)
        ]
        dtype = np.result_type(*given)
    kind = arguments.dtype_of(dtype)
    first, last, step = (
        value.item() if arguments.is_array(value) or isinstance(value, np.ndarray) else value
        for value in (first, last, step)
    )
    length = math.ceil((last - first) / step)
    if length < 0 or length != length:
        length = 0
    if kind.kind == "b":
        if length > 2:
            raise TypeError(
                "arange() is only supported for booleans when the result has at most length 2."
            )
        host = np.array([first, first + step], dtype=np.bool_)[:length]
        return transfers.upload(host)
    if kind.kind not in "iufc":
        raise ValueError("no fill-function for data-type.")
    if kind.kind in "iu":
        first, step = int(first), int(step)
    return make.forward("door.arange", (first, length, step, kind), {}, fresh(kind, (length,)))


CREATION = make.public(globals())
