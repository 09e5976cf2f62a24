"""Creation of arrays: everything about them is known here, so nothing waits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make, transfers
from cupy._core.dispatch.arguments import need
from cupy._door import dtypes, state
from cupy._door.meta import Meta, fresh, intern, keep_order


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return a new array without setting its elements."""
    return make.empty(arguments.shape_of(shape), dtype, order=_c_or_f(order))


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return a new array of zeros."""
    return make.new("door.zeros", arguments.shape_of(shape), dtype, _c_or_f(order))


def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return a new array of ones."""
    return make.full(arguments.shape_of(shape), 1, dtype, _c_or_f(order))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    """Return a new array of one value."""
    if dtype is None:
        ndarray: Any = state.hooks["ndarray"]
        dtype = fill_value.dtype if isinstance(fill_value, ndarray) else np.array(fill_value).dtype
    return _filled(empty(shape, dtype, order), fill_value)


def _filled(made: Any, value: Any) -> Any:
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


def _like(prototype: Any, dtype: Any, order: Any, subok: Any, shape: Any) -> Meta:
    if subok is not None and subok is not False:
        raise TypeError("subok is not supported yet")
    if isinstance(prototype, np.ndarray):  # CuPy only reads what it looks like
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


def _dense(meta: Meta) -> tuple[tuple[int, ...], Any, str] | None:
    """Return the arguments of ``empty`` for a layout, or None if it has neither order."""
    c, f = meta.contiguity
    if not (c or f):
        return None
    return meta.shape, meta.dtype, "C" if c else "F"


def _allocate(meta: Meta, name: str) -> Any:
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
    prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> Any:
    """Return a new array that looks like another."""
    return _allocate(_like(prototype, dtype, order, subok, shape), "door.empty")


def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> Any:
    """Return zeros that look like another array."""
    return _allocate(_like(a, dtype, order, subok, shape), "door.zeros")


def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> Any:
    """Return ones that look like another array."""
    return full_like(a, 1, dtype, order, subok, shape)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: Any = None,
    shape: Any = None,
) -> Any:
    """Return an array of one value that looks like another array."""
    return _filled(empty_like(a, dtype, order, subok, shape), fill_value)


def eye(N: int, M: Any = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any:
    """Return ones on a diagonal."""
    shape = arguments.shape_of((N, N if M is None else M))
    kind = arguments.dtype_of(dtype)
    letter = _c_or_f(order)
    args = (*shape, arguments.integer(k), kind, letter)
    return make.forward("eye", args, {}, fresh(kind, shape, letter))


def identity(n: int, dtype: Any = float) -> Any:
    """Return the identity matrix."""
    return eye(n, dtype=dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
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
    if dtypes.kind_of(kind) not in "iufc":
        raise ValueError("no fill-function for data-type.")
    if kind.kind in "iu":
        first, step = int(first), int(step)
    return make.forward("door.arange", (first, length, step, kind), {}, fresh(kind, (length,)))


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return evenly spaced numbers."""
    num = num.__index__()
    if num < 0:
        raise ValueError(f"linspace with num<0 not supported: {num}")
    ndarray: Any = state.hooks["ndarray"]
    arrays = [value for value in (start, stop) if isinstance(value, ndarray)]
    if arrays or not (arguments.is_scalar(start) and arguments.is_scalar(stop)):
        start, stop = convert.asarray(start) * 1.0, convert.asarray(stop) * 1.0
        found = make.ask(
            "linspace",
            start,
            stop,
            num,
            endpoint=endpoint,
            retstep=retstep,
            axis=axis,
            **({} if dtype is None else {"dtype": arguments.dtype_of(dtype)}),
        )
        return tuple(found) if retstep else found
    kind = np.result_type(
        type(start) if isinstance(start, (bool, int, float, complex)) else start.dtype,
        type(stop) if isinstance(stop, (bool, int, float, complex)) else stop.dtype,
        np.float64,
    )
    out = kind if dtype is None else arguments.dtype_of(dtype)
    meta = fresh(out, (num,))
    made = make.forward("linspace", (start, stop, num), {"endpoint": endpoint, "dtype": out}, meta)
    if not retstep:
        return made
    parts = num - 1 if endpoint else num
    return made, ((stop - start) / parts if parts > 0 else math.nan)


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """Return numbers spaced evenly on a logarithmic scale."""
    powers = linspace(start, stop, num, endpoint, axis=axis)
    made = state.hooks["ufuncs"]["power"](base, powers)
    return made if dtype is None else made.astype(dtype)


def tri(N: int, M: Any = None, k: int = 0, dtype: Any = float) -> Any:
    """Return ones at and below a diagonal."""
    kind = arguments.dtype_of(dtype)
    shape = arguments.shape_of((N, N if M is None else M))
    return make.forward("tri", (*shape, k, kind), {}, fresh(kind, shape))


def _triangle(name: str) -> Any:
    def function(m: Any, k: int = 0) -> Any:
        array = convert.asarray(m)
        if array.ndim < 1:
            raise ValueError(f"{name} needs at least one dimension")
        shape = array.shape if array.ndim >= 2 else (array.shape[0],) * 2
        return make.forward(name, (array, k), {}, fresh(array.dtype, shape))

    return function


def diag(v: Any, k: int = 0) -> Any:
    """Return a copy of a diagonal, or a matrix with the given diagonal."""
    array = convert.asarray(v)
    if array.ndim == 2:
        return array.diagonal(k).copy()
    if array.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    number = arguments.integer(k)
    side = array.size + abs(number)
    return make.forward("diag", (array, number), {}, fresh(array.dtype, (side, side)))


def diagflat(v: Any, k: int = 0) -> Any:
    """Return a matrix with the flattened input as its diagonal."""
    return diag(convert.asarray(v).ravel(), k)


def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    """Return a Vandermonde matrix."""
    array = convert.asarray(x)
    if array.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    (columns,) = array.shape if N is None else arguments.shape_of((N,))
    kind = np.promote_types(array.dtype, int)
    return make.forward(
        "vander", (array, columns, increasing), {}, fresh(kind, (array.size, columns))
    )


def meshgrid(*xi: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> Any:
    """Return coordinate matrices from coordinate vectors."""
    if indexing not in ("ij", "xy"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    arrays = [convert.asarray(x) for x in xi]
    if any(array.ndim > 1 for array in arrays):
        raise ValueError("input has to be 1d")
    count = len(arrays)
    grids: list[Any] = []
    for at, array in enumerate(arrays):
        shape = [1] * count
        shape[1 - at if indexing == "xy" and count > 1 and at < 2 else at] = array.size
        grids.append(array.reshape(shape))
    if not sparse:
        grids = list(state.hooks["functions"]["broadcast_arrays"](*grids)) if grids else []
    return tuple([grid.copy() for grid in grids] if copy else grids)


def indices(dimensions: Any, dtype: Any = int) -> Any:
    """Return an array that holds the indices of a grid."""
    shape = arguments.shape_of(dimensions)
    kind = arguments.dtype_of(dtype)
    return make.forward("indices", (shape, kind), {}, fresh(kind, (len(shape), *shape)))


def _window(name: str) -> Any:
    def function(M: int) -> Any:
        return _windowed(name, M)

    return function


def _windowed(name: str, M: int, *rest: float) -> Any:
    length = max(int(M), 0)
    return make.forward(name, (length, *rest), {}, fresh(np.dtype(np.float64), (length,)))


def kaiser(M: int, beta: float) -> Any:
    """Return the Kaiser window of a shape."""
    return _windowed("kaiser", M, float(beta))


CREATION: dict[str, Any] = {
    **make.public(globals()),
    **{name: _triangle(name) for name in ("tril", "triu")},
    **{name: _window(name) for name in ("bartlett", "blackman", "hamming", "hanning")},
}
