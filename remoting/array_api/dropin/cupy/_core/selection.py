"""Functions that pick elements, or set them, by numbers and by masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import across, arguments, make
from cupy._core.dispatch.arguments import is_array, need
from cupy._core.ufunc import broadcast
from cupy._door import state
from cupy._door.meta import fresh

_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """Return elements at indices along an axis."""
    if not is_array(a):
        return arguments.able(a, "take").take(indices, axis, out)
    array = a
    index = indices if arguments.is_scalar(indices) else convert.asarray(indices)
    inserted = index.shape if is_array(index) else ()
    if axis is None:
        shape = inserted
    else:
        array = array if array.ndim else array.ravel()
        at = arguments.axis_of(axis, array.ndim)
        shape = array.shape[:at] + inserted + array.shape[at + 1 :]
        axis = at
    if out is not None:
        if need(out, "out").dtype != array.dtype:
            raise TypeError("Output dtype mismatch")
        make.in_place("take", (array, index, axis), {"out": out})
        return out
    return make.forward("take", (array, index, axis), {}, fresh(array.dtype, shape))


def take_along_axis(a: Any, indices: Any, axis: Any) -> Any:
    """Return elements by indices that match the other axes."""
    array, index = need(a), need(indices, "indices")
    if index.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if axis is None:
        if index.ndim != 1:
            raise ValueError("when axis=None, `indices` must have a single dimension.")
        array, axis = array.ravel(), 0
    at = arguments.axis_of(axis, array.ndim)
    if array.ndim != index.ndim:
        raise ValueError("`indices` and `a` must have the same number of dimensions")
    shape = broadcast((*array.shape[:at], 1, *array.shape[at + 1 :]), index.shape)
    return make.forward("take_along_axis", (array, index, at), {}, fresh(array.dtype, shape))


def put(a: Any, ind: Any, v: Any, mode: str = "wrap") -> None:
    """Set elements of the flattened array."""
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"clipmode not understood: {mode}")
    array = need(a)
    indices = ind if arguments.is_scalar(ind) else convert.asarray(ind)
    values = v if arguments.is_scalar(v) else convert.asarray(v)
    make.in_place("put", (array, indices, values, mode), {})


def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """Set elements by indices that match the other axes."""
    value = values if arguments.is_scalar(values) else convert.asarray(values)
    make.in_place("put_along_axis", (need(arr), need(indices), value, axis), {})


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Set elements where a mask holds."""
    value = values if arguments.is_scalar(values) else convert.asarray(values)
    if is_array(value):
        arguments.check_cast(value.dtype, need(a).dtype, "same_kind")
    make.in_place("putmask", (need(a), need(mask), value), {})


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Set elements where a mask holds, from a vector."""
    make.in_place("place", (need(arr), convert.asarray(mask), convert.asarray(vals)), {})


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy values into an array, broadcasting."""
    target = need(dst, "dst")
    with state.on(target._gp_device):
        _copy_to(target, src, casting, where)


def _cast_scalar(value: Any, kind: np.dtype[Any], casting: str) -> Any:
    """Return a number of the host as the target's type, where NumPy's rule allows; else as it is.

    A number of NumPy has a type that the rule judges; a number of Python fits where NumPy says so.
    """
    if type(value) in (bool, int, float, complex):
        held = np.empty((), kind)
        np.copyto(held, value, casting=casting)  # type: ignore[arg-type]
        return held[()]
    if not isinstance(value, np.generic):
        return arguments.operand(value)
    if not np.can_cast(value.dtype, kind, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {value.dtype} to {kind} in {casting} casting mode")
    return value.astype(kind)


def _copy_to(target: Any, src: Any, casting: str, where: Any) -> None:
    if isinstance(src, np.ndarray):
        if src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        src = src.reshape(())[()]
    source = _cast_scalar(src, target.dtype, casting)
    if is_array(source) and not np.can_cast(source.dtype, target.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {source.dtype} to {target.dtype} in {casting} casting mode")
    if is_array(source) and source._gp_session is not target._gp_session:
        if where is None and across.fill(target, source):
            return
        source = across.bring(source, target)
    keywords: dict[str, Any] = {}
    if where is not None:
        keywords["where"] = arguments.operand(where)
    if casting != "same_kind":
        keywords["casting"] = casting
    make.in_place("copyto", (target, source), keywords)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Set the diagonal."""
    array = need(a)
    if array.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if array.ndim > 2 and len(set(array.shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    value = val if arguments.is_scalar(val) else convert.asarray(val)
    make.in_place("fill_diagonal", (array, value, wrap), {})


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Choose elements by number."""
    if not is_array(a):
        return arguments.able(a, "choose").choose(choices, out, mode)
    array = a
    options = choices if isinstance(choices, (list, tuple)) else need(choices)
    shapes = (
        [c.shape for c in options] if isinstance(options, (list, tuple)) else [options.shape[1:]]
    )
    shape = broadcast(array.shape, *shapes)
    if out is not None:
        make.in_place("choose", (array, options), {"out": out, "mode": mode})
        return out
    kind = (
        np.result_type(*[c.dtype for c in options])
        if isinstance(options, (list, tuple))
        else options.dtype
    )
    return make.forward("choose", (array, options), {"mode": mode}, fresh(kind, shape))


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Choose elements by a list of conditions."""
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if not condlist:
        raise ValueError("select with an empty condition list is not possible")
    if not arguments.is_scalar(default):
        raise TypeError("default only accepts scalar values")
    for condition in condlist:
        if condition.dtype != _BOOL:  # AttributeError for a list, as in CuPy
            raise ValueError("invalid entry in condlist: should be boolean ndarray")
    return make.lazy("select", (list(condlist), list(choicelist), default), {})


def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the slices where a condition holds."""
    if not is_array(a):
        return arguments.able(a, "compress").compress(condition, axis, out)
    mask = convert.asarray(condition)
    if out is not None:
        make.in_place("compress", (mask, need(a), axis), {"out": out})
        return out
    return make.lazy("compress", (mask, need(a), axis), {})


def extract(condition: Any, a: Any) -> Any:
    """Return the elements where a condition holds."""
    return make.lazy("extract", (convert.asarray(condition), convert.asarray(a)), {})


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a view of a diagonal."""
    return arguments.able(a, "diagonal").diagonal(offset, axis1, axis2)


def unravel_index(indices: Any, dims: Any, order: str | None = "C") -> Any:
    """Return flat indices as coordinates."""
    array = convert.asarray(indices)
    order = "C" if order is None else order
    if order not in ("C", "F"):
        raise ValueError("order not understood")
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"indices of {array.dtype!r} cannot be cast to int64 according to the rule 'same_kind'"
        )
    shape = arguments.shape_of(dims)
    if len(shape) == 1:  # a tuple of one, which is no one array
        return tuple(make.ask("unravel_index", array, shape, order))
    metas = tuple(fresh(_INT64, array.shape) for _ in shape)
    return make.forward_many("unravel_index", (array, shape, order), {}, metas)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "wrap", order: str = "C") -> Any:
    """Return coordinates as flat indices."""
    parts = tuple(convert.asarray(part) for part in multi_index)
    return make.lazy(
        "ravel_multi_index", (parts, arguments.shape_of(dims)), {"mode": mode, "order": order}
    )


SELECTION: dict[str, Any] = make.public(globals())
