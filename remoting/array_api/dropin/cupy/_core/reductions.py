"""Reductions and scans: the shape and dtype follow from the axes, so nothing waits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._door.calls import Plan, Remote
from cupy._door.meta import Meta, fresh

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_frame = sys._getframe
_memo: dict[Any, tuple[Plan, bytes]] = {}
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)

_BY_METHOD = ("argmax", "argmin", "max", "mean", "min", "prod", "ptp", "std", "sum", "var")
"""Functions of which CuPy does not check that they get an array of a device."""

Rule = Callable[[np.dtype], np.dtype]


def wide(dtype: np.dtype) -> np.dtype:
    """Sum small integers in 64 bits."""
    if dtype.kind in "bi":
        return _INT64
    return np.dtype(np.uint64) if dtype.kind == "u" else dtype


def floating(dtype: np.dtype) -> np.dtype:
    """Take the mean of integers in float64."""
    return _FLOAT64 if dtype.kind in "biu" else dtype


def reduced_shape(meta: Meta, axis: object, keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a reduction along ``axis``."""
    if axis is None and not keepdims:
        return ()
    axes = arguments.axes_of(axis, meta.ndim)
    if keepdims:
        return tuple([1 if at in axes else length for at, length in enumerate(meta.shape)])
    return tuple([length for at, length in enumerate(meta.shape) if at not in axes])


def reduce(
    name: str,
    a: object,
    rule: Rule,
    axis: object,
    dtype: object,
    out: object,
    keepdims: bool,
    empty_ok: bool = True,
    **extra: object,
) -> Any:
    """Send one reduction."""
    if name in _BY_METHOD and hasattr(a, name) and not isinstance(a, Remote):
        typed = {} if name in ("max", "min", "ptp") else {"dtype": dtype}
        named = {"axis": axis, "out": out, "keepdims": keepdims, **typed, **extra}
        return getattr(a, name)(**named)
    array = need(a)
    meta: Meta = array._gp_meta
    if axis is not None and type(axis) is not int:
        axis = arguments.plain(axis)
    if dtype is not None:
        dtype = arguments.dtype_of(dtype)
        if meta.dtype.kind == "c" and dtype.kind not in "bc":
            arguments.warn_of_complex()
    session = array._gp_session
    if out is None:
        key = (name, meta, axis, dtype, keepdims, tuple(extra.items()) if extra else ())
        found = _memo.get(key)
        if found is None:
            found = _plan(key, array, rule, empty_ok, extra)
        return make.send(array, found[0], found[1], None)
    shape = reduced_shape(meta, axis, keepdims)
    if need(out, "out").shape != shape:
        raise ValueError("Out shape is mismatched")
    keywords = _keywords(axis, dtype, keepdims, extra)
    session.call(name, (array,), {**keywords, "out": out})
    return out


def _keywords(axis: object, dtype: object, keepdims: bool, extra: dict[str, Any]) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if axis is not None:
        keywords["axis"] = axis
    if dtype is not None:
        keywords["dtype"] = dtype
    if keepdims:
        keywords["keepdims"] = True
    return keywords | extra


def _plan(
    key: Any, array: object, rule: Rule, empty_ok: bool, extra: dict[str, object]
) -> tuple[Plan, bytes]:
    name, meta, axis, dtype, keepdims, _ = key
    shape = reduced_shape(meta, axis, keepdims)
    if not empty_ok and meta.size == 0:
        lengths = [meta.shape[at] for at in arguments.axes_of(axis, meta.ndim)]
        if 0 in lengths:
            raise ValueError(
                f"zero-size array to reduction operation cupy_{name} which has no identity"
            )
    looks = fresh(rule(meta.dtype) if dtype is None else dtype, shape)
    keywords = _keywords(axis, dtype, keepdims, extra)
    return make.remember(_memo, key, make.planned(array, name, (), keywords, looks))


def _reduction(name: str, rule: Rule, *, typed: bool, empty_ok: bool = True) -> Any:
    def with_dtype(
        a: ndarray, axis: object = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        # Of ints alone, because True and 1.0 are the same key as 1.
        plain = axis is None or type(axis) is int
        if plain and out is None and type(a) is make.classes.ndarray:
            found = _memo.get((name, a._gp_known, axis, dtype, keepdims, ()))
            if found is not None:
                return make.send(a, found[0], found[1], _frame(1))
        return reduce(name, a, rule, axis, dtype, out, keepdims, empty_ok)

    def without_dtype(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        # Of ints alone, because True and 1.0 are the same key as 1.
        plain = axis is None or type(axis) is int
        if plain and out is None and type(a) is make.classes.ndarray:
            found = _memo.get((name, a._gp_known, axis, None, keepdims, ()))
            if found is not None:
                return make.send(a, found[0], found[1], _frame(1))
        return reduce(name, a, rule, axis, None, out, keepdims, empty_ok)

    function = with_dtype if typed else without_dtype
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Reduce along ``axis``, or all axes; see `numpy.{name}`."
    return function


REDUCTIONS = {
    **{name: _reduction(name, lambda _: _BOOL, typed=False) for name in ("all", "any")},
    **{
        name: _reduction(name, np.dtype, typed=False, empty_ok=False)
        for name in ("max", "min", "nanmax", "nanmin", "ptp")
    },
    **{name: _reduction(name, wide, typed=True) for name in ("sum", "prod", "nansum", "nanprod")},
    **{name: _reduction(name, floating, typed=True) for name in ("mean", "nanmean")},
    **{
        name: _reduction(name, lambda _: _INT64, typed=True, empty_ok=False)
        for name in ("argmax", "argmin", "nanargmax", "nanargmin")
    },
}
