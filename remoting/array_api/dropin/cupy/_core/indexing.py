"""Reading and writing parts of arrays, with the shapes known before anything is sent."""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import across, arguments, learning, make, transfers
from cupy._door import state, wire
from cupy._door.arrays import Array
from cupy._door.calls import Plan, plan_of
from cupy._door.meta import Meta, fresh, intern, of_view

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_FULL = slice(None)
_SLICE_COPY = os.environ.get("CUPY_EXPERIMENTAL_SLICE_COPY", "").strip() == "1"
_NOTHING = object()
"""Stands for an Ellipsis over no axis."""
_INT = struct.Struct("<q").pack
_HANDLE = struct.Struct("<Q").pack
_FLOAT = struct.Struct("<d").pack
_frame = sys._getframe


def prepare(index: object) -> tuple[Any, ...]:
    """Return an index as a tuple of int, slice, None, Ellipsis and device arrays."""
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    made: list[Any] = []
    for item in items:
        if item is None or item is Ellipsis or isinstance(item, Array):
            made.append(item)
        elif isinstance(item, slice):
            made.append(slice(_end(item, "start"), _end(item, "stop"), _end(item, "step")))
        elif isinstance(item, (bool, np.bool_)):
            made.append(convert.array(np.asarray(item)))
        elif hasattr(item, "__index__") and not isinstance(item, np.ndarray):
            made.append(item.__index__())
        else:
            made.append(_index_array(item))
    for item in made:
        if isinstance(item, Array):
            kind = item._gp_meta.dtype.kind
            if kind not in "biu":
                raise IndexError(
                    "arrays used as indices must be of integer or boolean type. "
                    f"(actual: {item._gp_meta.dtype.type})"
                )
    return tuple(made)


def _end(item: slice, name: str) -> Any:
    """Return one part of a slice as an int; one that is an array is read, as in CuPy."""
    part = getattr(item, name)
    if part is None or type(part) is int:
        return part
    try:
        return part.__index__() if hasattr(part, "__index__") else int(part)
    except TypeError:
        text = f"slice.{name} must be int or None or have __index__ method: {item}"
        raise TypeError(text) from None


def _index_array(item: object) -> ndarray:
    if isinstance(item, (list, tuple)) and not convert.has_device_leaf(item):
        host = np.asarray(item)  # ValueError for lists of unequal lengths
        item = host if host.size else host.astype(np.int32)  # no indices, not an empty mask
    try:
        made = convert.array(item)
    except ValueError:
        if isinstance(item, np.ndarray) and item.ndim:
            raise IndexError(
                "arrays used as indices must be of integer or boolean type. "
                f"(actual: {item.dtype.type})"
            ) from None
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or "
            "boolean arrays are valid indices"
        ) from None
    if made.size == 0 and not isinstance(item, np.ndarray):
        return made.astype(np.int32)
    return made


_rows: dict[Any, tuple[Plan, int]] = {}
_parts: dict[Any, tuple[Plan, bytes]] = {}


def getitem(a: ndarray, index: Any) -> ndarray:
    """Return ``a[index]``: a view for basic indices, a copy for arrays."""
    kind = type(index)
    if kind is int:
        plan, length = _rows.get(a._gp_known) or _row(a)
        if not -length <= index < length:
            raise IndexError(f"Index {index} is out of bounds for axis 0 with size {length}")
        return make.send_view(a, plan, _INT(index), _frame(1))
    key = _key(a._gp_known or a._gp_meta, index if kind is tuple else (index,))
    brief = None if key is not None else learning.short("ndarray.gather", (a, index), {})
    made = learning.recall(brief)
    if made is not learning.UNKNOWN:
        return made
    if key is None and a._gp_meta.dtype.fields is not None and _is_names(index):
        return _fields(a, index)
    if key is not None:
        found = _parts.get(key)
        if found is None:
            items = tuple([_slice(item) if type(item) is tuple else item for item in key[1:]])
            looks = basic(a._gp_meta, items)
            found = make.planned(a, "ndarray.getitem", (items,), {}, looks)
            make.remember(_parts, key, found)
        return make.send_view(a, found[0], found[1], _frame(1))
    items = prepare(index)
    if not any(isinstance(item, Array) for item in items):
        return make.view(a, "ndarray.getitem", (items,), basic(a._gp_meta, items))
    if any(isinstance(item, Array) and item._gp_meta.dtype.kind == "b" for item in items):
        check_masks(a._gp_meta, items)
        made = make.lazy("ndarray.gather", (a, items), {})
        learning.keep(brief, "ndarray.gather", (a, items), {}, wire.META_UNKNOWN)
        return made
    shape = advanced(a._gp_meta, items)
    looks = fresh(a._gp_meta.dtype, shape)
    made = make.forward("ndarray.gather", (a, items), {}, looks)
    learning.keep(brief, "ndarray.gather", (a, items), {}, looks)
    return made


def _is_names(index: object) -> bool:
    return isinstance(index, str) or (
        isinstance(index, list) and all(isinstance(name, str) for name in index)
    )


def _fields(a: ndarray, index: Any) -> ndarray:
    """Return the view of one field of structures, or of those with some of the fields."""
    meta: Meta = a._gp_meta
    if isinstance(index, list):
        return a.view(meta.dtype[index])
    found = (meta.dtype.fields or {}).get(index)
    if found is None:
        raise ValueError(f"no field name of {index}")
    if found[0].shape:  # a sentence that CuPy's own tests look for
        raise ValueError("CuPy does not yet support accessing nested subarrays")
    looks = intern(found[0], meta.shape, meta.strides)
    return make.view(a, "ndarray.field", (index,), looks)


def _key(meta: Meta, index: tuple[Any, ...]) -> Any:
    """Return an index of ints, slices, None and Ellipsis as a key, or None for any other.

    Slices cannot be hashed before Python 3.12, so they stand there as start, stop and step; and
    True, which equals 1 as a key, means something else as an index.
    """
    shape = meta.shape
    axis = 0
    key: list[Any] = [meta]
    try:
        for item in index:
            kind = type(item)
            if kind is slice:
                key.append(item.indices(shape[axis]))
                axis += 1
            elif kind is int:
                key.append(item)
                axis += 1
            elif item is None:
                key.append(None)
            elif item is Ellipsis:
                if axis < 0:
                    return None
                key.append(Ellipsis)
                # What follows is counted from the last axis.
                axis = -sum(1 for other in index[len(key) - 1 :] if other is not None)
            else:
                return None
    except (IndexError, TypeError):
        return None  # too many, or a slice of other things than ints; the slow way knows
    return tuple(key)


def _slice(parts: tuple[int, int, int]) -> slice:
    start, stop, step = parts
    if start < 0:
        return slice(0, 0, step)  # none: it would start before the first and run down
    # A slice that runs down to the first element ends before it, which -1 does not say.
    return slice(start, None if stop < 0 else stop, step)


def _row(a: ndarray) -> tuple[Plan, int]:
    meta: Meta = a._gp_meta
    if not meta.shape:
        raise IndexError("too many indices for array: array is 0-dimensional, but 1 were indexed")
    found = _rows.get(meta)
    if found is None:
        looks = intern(meta.dtype, meta.shape[1:], meta.strides[1:])
        plan = Plan("ndarray.getitem", ("h", "i"), (), "Qq", (looks,))
        found = make.remember(_rows, meta, (plan, meta.shape[0]))
    return found


def basic(meta: Meta, items: tuple[Any, ...]) -> Meta:
    """Return the looks of a view by ints, slices, None and Ellipsis."""
    if not any(item is Ellipsis for item in items):
        # Without it, a complete index would make NumPy read the element.
        items = (*items, Ellipsis)
    return of_view(meta.shadow[items])


def _consumed(item: object) -> int:
    if item is None or item is Ellipsis or item is _NOTHING:
        return 0
    if isinstance(item, Array) and item._gp_meta.dtype.kind == "b":
        return item._gp_meta.ndim
    return 1


def _expanded(meta: Meta, items: tuple[object, ...]) -> list[object]:
    used = sum(_consumed(item) for item in items)
    if used > meta.ndim:
        raise IndexError(
            f"too many indices for array: array is {meta.ndim}-dimensional, but {used} were indexed"
        )
    fill = [_FULL] * (meta.ndim - used)
    for at, item in enumerate(items):
        if item is Ellipsis:
            if any(other is Ellipsis for other in items[at + 1 :]):
                raise IndexError("an index can only have a single ellipsis ('...')")
            # One that stands for no axis still separates the arrays at its sides.
            return [*items[:at], *(fill or [_NOTHING]), *items[at + 1 :]]
    return [*items, *fill]


def _check_bounds(meta: Meta, index: int, axis: int) -> None:
    length = meta.shape[axis]
    if not -length <= index < length:
        raise IndexError(f"Index {index} is out of bounds for axis {axis} with size {length}")


def check_masks(meta: Meta, items: tuple[object, ...]) -> None:
    """Raise for an int out of bounds, or a mask without the shape of the axes it selects from."""
    axis = 0
    for item in _expanded(meta, items):
        if isinstance(item, Array) and item._gp_meta.dtype.kind == "b":
            shape = item._gp_meta.shape
            for offset, length in enumerate(shape):
                if length not in (0, meta.shape[axis + offset]):
                    raise IndexError(
                        f"boolean index did not match indexed array along axis {axis + offset}; "
                        f"size of axis is {meta.shape[axis + offset]} but size of corresponding "
                        f"boolean axis is {length}"
                    )
        elif type(item) is int:
            _check_bounds(meta, item, axis)
        axis += _consumed(item)


def advanced(meta: Meta, items: tuple[object, ...]) -> tuple[int, ...]:
    """Return the shape of a read by integer arrays, by NumPy's rules of their place."""
    expanded = _expanded(meta, items)
    arrays = [item._gp_meta.shape for item in expanded if isinstance(item, Array)]
    try:
        joined = np.broadcast_shapes(*arrays)
    except ValueError:
        text = " ".join(str(shape).replace(" ", "") for shape in arrays)
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {text}"
        ) from None
    like = [isinstance(item, (int, Array)) for item in expanded]
    first = like.index(True)
    together = all(like[first : first + sum(like)])
    # Arrays become full slices, so that the shadow tells the lengths of everything else.
    shape: list[int] = []
    place = 0
    axis = 0
    for item in expanded:
        if item is None:
            shape.append(1)
        elif item is _NOTHING:
            continue
        elif isinstance(item, slice):
            shape.append(len(range(*item.indices(meta.shape[axis]))))
            axis += 1
        else:
            if type(item) is int:
                _check_bounds(meta, item, axis)
            axis += 1
            if isinstance(item, Array) and place == 0:
                place = len(shape) + 1
    at = place - 1 if together else 0
    return (*shape[:at], *joined, *shape[at:])


_written: dict[Any, tuple[Plan, bytes]] = {}


def setitem(a: ndarray, index: object, value: Any) -> None:
    """Perform ``a[index] = value``; nothing waits."""
    kind = type(value)
    key = None
    if (
        kind is float
        or kind is make.classes.ndarray
        or (kind is int and -(1 << 63) <= value < 1 << 63)
    ):
        key = _key(a._gp_meta, index if type(index) is tuple else (index,))
    if key is None:
        if a._gp_meta.dtype.fields is not None and _is_names(index):
            a, index = _fields(a, index), Ellipsis
        is_checked = kind is float and a._gp_meta.dtype.kind in "iu"  # by its value
        brief = None if is_checked else learning.short("ndarray.setitem", (a, index, value), {})
        if learning.recall(brief) is learning.UNKNOWN:
            items, sent = _setitem(a, index, value)
            if sent is value:
                learning.keep(brief, "ndarray.setitem", (a, items, value), {})
        return
    array: bool = kind is make.classes.ndarray
    key = (value._gp_meta if array else kind, key)
    if not array:
        arguments.check_number(value, a._gp_meta.dtype)
    found = _written.get(key)
    session = a._gp_session
    if found is None or (array and value._gp_session is not session):
        if array and value._gp_session is not session:
            _setitem(a, index, value)
            return
        found = _plan_written(a, key, value)
    packed = _HANDLE(value._gp_handle) if array else _FLOAT(value) if kind is float else _INT(value)
    session.emit(found[0], make.HANDLES(0, a._gp_handle) + found[1] + packed, _frame(1))


def _plan_written(a: ndarray, key: Any, value: object) -> tuple[Plan, bytes]:
    looks, (meta, *parts) = key
    items = tuple([_slice(item) if type(item) is tuple else item for item in parts])
    target = basic(meta, items)
    if isinstance(looks, Meta):
        _check_fits(looks.shape, target.shape)
    session = a._gp_session
    call = ("ndarray.setitem", (a, items, value), {}, (), session)
    plan, values = plan_of(session.plans, *call)
    return make.remember(_written, key, (plan, plan.packer.pack(0, *values)[16:-8]))


def _setitem(a: Any, index: object, value: Any) -> tuple[object, object]:
    """Send a write by any index; return the index and the value, as they are sent."""
    items = (index,) if type(index) is int else prepare(index)
    arrays = any(isinstance(item, Array) for item in items)
    if arrays and isinstance(value, (np.ndarray, list, tuple)):
        # CuPy uploads values for index arrays, but not for slices (cupy#2079).
        value = convert.array(value, dtype=a.dtype)
    elif isinstance(value, np.ndarray):
        value = _host_value(a, index, value)
    elif isinstance(value, (list, tuple)):
        value = convert.array(value, dtype=a.dtype)
    else:
        value = arguments.operand(value)
    value = without_imaginary(value, a._gp_meta.dtype)
    arguments.check_number(value, a._gp_meta.dtype)
    if not arrays:
        target = basic(a._gp_meta, items)
        if isinstance(value, Array):
            _check_fits(value._gp_meta.shape, target.shape)
    elif any(isinstance(item, Array) and item._gp_meta.dtype.kind == "b" for item in items):
        check_masks(a._gp_meta, items)
    elif isinstance(value, Array):
        _check_fits(value._gp_meta.shape, advanced(a._gp_meta, items))
    else:
        advanced(a._gp_meta, items)
    if isinstance(value, Array) and value._gp_session is not a._gp_session:
        whole = not arrays and all(item is Ellipsis or item == _FULL for item in items)
        with state.on(a._gp_device):
            if not (whole and across.fill(a, value)):
                value = across.bring(value, a)
                a._gp_session.call("ndarray.setitem", (a, items, value), {})
        return items, None
    a._gp_session.call("ndarray.setitem", (a, items, value), {})
    return items, value


def without_imaginary(value: object, dtype: np.dtype) -> Any:
    """Return a scalar as a real one, with NumPy's warning, where the target is real."""
    if isinstance(value, (complex, np.complexfloating)) and dtype.kind not in "cb":
        arguments.warn_of_complex(5)
        return value.real
    return value


def _host_value(a: ndarray, index: object, value: np.ndarray) -> Any:
    if value.ndim == 0:
        return value[()] if value.dtype.char == "V" else value.item()
    if _SLICE_COPY and isinstance(index, slice) and index == _FULL:
        if a.dtype != value.dtype or a.shape != value.shape:
            raise ValueError(
                "copying a numpy.ndarray to a cupy.ndarray by empty slice assignment must ensure "
                "arrays have same shape and dtype"
            )
        return transfers.upload(value, a._gp_session)
    raise TypeError(f"Unsupported type {type(value)}")


def _check_fits(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    short = source
    while len(short) > len(target) and short[0] == 1:
        short = short[1:]
    ok = len(short) <= len(target) and all(
        length in (1, wanted) for length, wanted in zip(reversed(short), reversed(target))
    )
    if not ok:
        raise ValueError(f"could not broadcast input array from shape {source} into shape {target}")
