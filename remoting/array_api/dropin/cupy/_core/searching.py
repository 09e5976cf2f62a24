"""Sorting, and searching for elements or places."""

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import is_array, need
from cupy._door.meta import fresh

_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)


def _copied(a: Any, axis: Any) -> tuple[Any, int]:
    """Return a copy and the axis to work along: the flat elements for None."""
    if axis is None:
        return arguments.able(a, "flatten").flatten(), -1
    return arguments.able(a, "copy").copy(), axis


def sort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    """Return a sorted copy."""
    made, axis = _copied(a, axis)
    made.sort(axis=axis, kind=kind)
    return made


def argsort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    """Return the indices that sort."""
    if not is_array(a):
        return arguments.able(a, "argsort").argsort(axis=axis, kind=kind)
    array = a
    if kind is not None and kind != "stable":
        raise ValueError(f"kind can only be None or 'stable', got {kind}")
    if axis is None:
        array, axis = array.ravel(), -1
    at = arguments.axis_of(axis, array.ndim or 1)
    return make.forward("argsort", (array, at), {}, fresh(_INT64, array.shape or (1,)))


def partition(a: Any, kth: Any, axis: Any = -1) -> Any:
    """Return a partitioned copy."""
    made, axis = _copied(a, axis)
    made.partition(kth, axis=axis)
    return made


def argpartition(a: Any, kth: Any, axis: Any = -1) -> Any:
    """Return the indices that partition."""
    if not is_array(a):
        return arguments.able(a, "argpartition").argpartition(kth, axis=axis)
    array, kth = a, arguments.plain(kth)
    if axis is None:
        array, axis = array.ravel(), -1
    at = arguments.axis_of(axis, array.ndim)
    return make.forward("argpartition", (array, kth, at), {}, fresh(_INT64, array.shape))


def msort(a: Any) -> Any:
    """Return a copy sorted along the first axis."""
    return sort(a, 0)


def lexsort(keys: Any) -> Any:
    """Return the indices that sort by several keys."""
    array = need(keys, "keys")
    return make.forward("lexsort", (array,), {}, fresh(_INT64, array.shape[1:]))


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return where elements would be inserted."""
    array, value = need(a), convert.asarray(v) if not arguments.is_scalar(v) else v
    shape = value.shape if is_array(value) else ()
    keywords = {} if sorter is None else {"sorter": need(sorter)}
    return make.forward("searchsorted", (array, value, side), keywords, fresh(_INT64, shape))


def nonzero(a: Any) -> tuple[Any, ...]:
    """Return the indices of the elements that are not zero."""
    array = need(a)
    return tuple(make.ask("nonzero", array))


def argwhere(a: Any) -> Any:
    """Return the indices of the elements that are not zero, as rows."""
    return make.lazy("argwhere", (need(a),), {})


def flatnonzero(a: Any) -> Any:
    """Return the indices of the flattened array that are not zero."""
    return make.lazy("flatnonzero", (need(a),), {})


SEARCHING: dict[str, Any] = make.public(globals())
