"""The functions of CuPy's main namespace: sets, polynomials, statistics, and the table of all."""

import math
import warnings
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.creation import CREATION
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.elementwise import ELEMENTWISE, where
from cupy._core.manipulation import MANIPULATION
from cupy._core.products import PRODUCTS
from cupy._core.queries import may_share_memory
from cupy._core.reductions import REDUCTIONS
from cupy._core.searching import SEARCHING
from cupy._core.selection import SELECTION
from cupy._core.ufunc import UFUNCS
from cupy._door import state
from cupy._door.meta import fresh
from cupy._door.older import zip_strict

_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)


# --- calls that only the worker can describe ----------------------------------------------------


def _arrays(value: Any) -> Any:
    """Upload host arrays and lists among the arguments of a function that takes them."""
    if isinstance(value, (np.ndarray, list)) or hasattr(value, "__cupy_get_ndarray__"):
        return convert.asarray(value)
    return value


def _host(value: Any) -> Any:
    """Upload an array of the host, as CuPy does for bins, weights and the like."""
    return convert.asarray(value) if isinstance(value, np.ndarray) else value


def _lazy(name: str, uploads: int = 0) -> Any:
    """Make a function with one array as its result; its first arguments may be lists."""

    def function(*args: Any, **kwargs: Any) -> Any:
        made = tuple(_arrays(arg) if at < uploads else arg for at, arg in enumerate(args))
        return make.lazy(name, made, {key: _host(value) for key, value in kwargs.items()})

    return function


def _asked(name: str, uploads: int = 0) -> Any:
    """Make a function with a result structure that depends on its arguments."""

    def function(*args: Any, **kwargs: Any) -> Any:
        made = tuple(_arrays(arg) if at < uploads else _host(arg) for at, arg in enumerate(args))
        return make.ask(name, *made, **{key: _host(value) for key, value in kwargs.items()})

    return function


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return differences of neighbours."""
    array = convert.asarray(a)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    if n == 0:
        return array
    if array.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    at = arguments.axis_of(axis, array.ndim)
    if prepend is not None or append is not None:
        keywords = {
            key: convert.asarray(value)
            for key, value in (("prepend", prepend), ("append", append))
            if value is not None
        }
        return make.lazy("diff", (array, n, at), keywords)
    shape = (*array.shape[:at], max(array.shape[at] - n, 0), *array.shape[at + 1 :])
    return make.forward("diff", (array, n, at), {}, fresh(array.dtype, shape))


def packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Any:
    """Pack truth values into the bits of bytes."""
    if bitorder not in ("big", "little"):
        raise ValueError("bitorder must be either 'big' or 'little'")
    array = need(a)
    if array.dtype.kind not in "biu":
        raise TypeError("Expected an input array of integer or boolean data type")
    return make.lazy("packbits", (array,), {"axis": axis, "bitorder": bitorder})


def unpackbits(a: Any, axis: Any = None, bitorder: str = "big") -> Any:
    """Unpack the bits of bytes into truth values."""
    if bitorder not in ("big", "little"):
        raise ValueError("bitorder must be either 'big' or 'little'")
    array = need(a)
    if array.dtype != np.uint8:
        raise TypeError("Expected an input array of unsigned byte data type")
    return make.lazy("unpackbits", (array,), {"axis": axis, "bitorder": bitorder})


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return the gradient, one array per axis."""
    f = convert.asarray(f)
    axes = arguments.axes_of(axis, f.ndim)
    if len(varargs) == len(axes):
        for at, distances in zip(axes, varargs):
            if np.ndim(distances) > 1:
                raise ValueError("distances must be either scalars or 1d")
            if np.ndim(distances) == 1 and len(distances) != f.shape[at]:
                raise ValueError(
                    "when 1d, distances must match the length of the corresponding dimension"
                )
    over = axis if axis is None else arguments.plain(axis)
    made = make.ask("gradient", f, *map(_arrays, varargs), axis=over, edge_order=edge_order)
    return list(made) if isinstance(made, tuple) else made


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """Return the distinct elements, and on demand where they were and how often."""
    keywords: dict[str, Any] = {"equal_nan": equal_nan}
    if axis is not None:
        keywords["axis"] = axis
    if not (return_index or return_inverse or return_counts):
        return make.lazy("unique", (convert.asarray(ar),), keywords)
    found = make.ask(
        "unique",
        convert.asarray(ar),
        return_index=return_index,
        return_inverse=return_inverse,
        return_counts=return_counts,
        **keywords,
    )
    return tuple(found)


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Return the mask of elements that occur in another array."""
    first, second = convert.asarray(element), convert.asarray(test_elements)
    return make.forward(
        "isin", (first, second, assume_unique, invert), {}, fresh(_BOOL, first.shape)
    )


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """Return the mask of a flattened array's elements that occur in another."""
    return isin(convert.asarray(ar1).ravel(), ar2, assume_unique, invert)


def bincount(x: Any, weights: Any = None, minlength: Any = None) -> Any:
    """Count how often each number occurs."""
    array = need(x, "x")
    if array.ndim > 1:
        raise ValueError("object too deep for desired array")
    if array.ndim < 1:
        raise ValueError("object of too small depth for desired array")
    if array.dtype.kind == "f" or array.dtype.kind == "c":
        raise TypeError(
            f"Cannot cast array data from {array.dtype!r} to dtype('int64') "
            "according to the rule 'safe'"
        )
    keywords: dict[str, Any] = {} if weights is None else {"weights": need(weights)}
    if minlength is not None:
        if minlength < 0:
            raise ValueError("'minlength' must not be negative")
        keywords["minlength"] = minlength
    return make.lazy("bincount", (array,), keywords)


def angle(z: Any, deg: bool = False) -> Any:
    """Return the angle of complex numbers."""
    if isinstance(z, np.ndarray):
        raise TypeError(f"Unsupported type {type(z)}")
    return _ANGLE(z, deg)


def cov(
    a: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    **kwargs: Any,
) -> Any:
    """Return the covariances of variables."""
    shape = np.shape(a) if isinstance(a, (list, tuple)) else a.shape
    if fweights is None and aweights is None and len(shape) <= 2:
        count = math.prod(shape) if len(shape) < 2 else shape[1 if rowvar else 0]
        if count <= ((0 if bias else 1) if ddof is None else ddof):
            warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    return _COV(a, y, rowvar, bias, ddof, fweights, aweights, **kwargs)


def histogramdd(sample: Any, bins: Any = 10, *args: Any, **kwargs: Any) -> Any:
    """Count points in the cells of a grid."""
    if isinstance(bins, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in bins):
        raise ValueError("array-like bins are not supported: use cupy.ndarray")
    return _HISTOGRAMDD(sample, bins, *args, **kwargs)


def piecewise(x: Any, condlist: Any, funclist: Any) -> Any:
    """Evaluate functions, each where its condition holds."""
    array = convert.asarray(x)
    if arguments.is_scalar(condlist):
        condlist = [condlist]
    conditions = (
        [convert.asarray(c) for c in condlist]
        if isinstance(condlist, (list, tuple))
        else [need(condlist)]
        if need(condlist).ndim == array.ndim
        else list(condlist)
    )
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"with {len(conditions)} condition(s), either {len(conditions)} or "
            f"{len(conditions) + 1} functions are expected"
        )
    made = CREATION["zeros_like"](array)
    if len(funclist) > len(conditions):
        rest = ~conditions[0]
        for condition in conditions[1:]:
            rest = rest & ~condition
        conditions = [*conditions, rest]
    for condition, function in zip_strict(conditions, funclist):
        if callable(function):
            raise NotImplementedError("Callable functions are not supported currently")
        value = convert.asarray(function).astype(made.dtype, copy=False)
        made = where(condition, value, made)
    return made


def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a Python function to vectors along an axis."""
    array = need(arr)
    at = arguments.axis_of(axis, array.ndim)
    moved = MANIPULATION["moveaxis"](array, at, -1)
    outer = moved.shape[:-1]
    if 0 in outer:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [convert.asarray(func1d(moved[index], *args, **kwargs)) for index in np.ndindex(outer)]
    joined = MANIPULATION["stack"](parts).reshape(outer + parts[0].shape)
    for offset in range(parts[0].ndim):
        joined = MANIPULATION["moveaxis"](joined, len(outer) + offset, at + offset)
    return joined


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Apply a function repeatedly, over each axis."""
    value = need(a)
    for axis in (axes,) if isinstance(axes, int) else axes:
        result = func(value, arguments.axis_of(axis, value.ndim))
        if result.ndim != value.ndim:
            result = MANIPULATION["expand_dims"](result, axis)
        value = result
    return value


def shares_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Say whether two arrays have elements in common; ``MAY_SHARE_BOUNDS`` compares ranges."""
    if max_work == "MAY_SHARE_BOUNDS":
        return may_share_memory(a, b)
    if max_work not in (None, "MAY_SHARE_EXACT"):
        raise NotImplementedError("Not supported for integer `max_work`.")
    return make.ask("shares_memory", need(a), need(b, "b"))


_COV = _lazy("cov", 2)
_ANGLE = _lazy("angle", 1)
_HISTOGRAMDD = _asked("histogramdd", 1)
FUNCTIONS: dict[str, Any] = {
    **CREATION,
    **MANIPULATION,
    **PRODUCTS,
    **REDUCTIONS,
    **ELEMENTWISE,
    **SEARCHING,
    **SELECTION,
    "angle": angle,
    "real_if_close": _lazy("real_if_close", 1),
    "sort_complex": _lazy("sort_complex"),
    "diff": diff,
    "gradient": gradient,
    "unique": unique,
    "isin": isin,
    "in1d": in1d,
    "bincount": bincount,
    "piecewise": piecewise,
    "apply_along_axis": apply_along_axis,
    "apply_over_axes": apply_over_axes,
    "convolve": _lazy("convolve", 2),
    "correlate": _lazy("correlate", 2),
    "corrcoef": _lazy("corrcoef", 2),
    "cov": cov,
    "digitize": _lazy("digitize", 2),
    "ediff1d": _lazy("ediff1d", 1),
    "interp": _lazy("interp", 3),
    "intersect1d": _asked("intersect1d", 2),
    "setdiff1d": _lazy("setdiff1d", 2),
    "setxor1d": _lazy("setxor1d", 2),
    "union1d": _lazy("union1d", 2),
    "histogram": _asked("histogram", 1),
    "histogram2d": _asked("histogram2d", 2),
    "histogramdd": histogramdd,
    "packbits": packbits,
    "unpackbits": unpackbits,
    "trapezoid": _lazy("trapezoid", 2),
    "unwrap": _lazy("unwrap", 1),
    "poly": _lazy("poly", 1),
    "polyfit": _asked("polyfit", 2),
    "roots": _lazy("roots", 1),
    "shares_memory": shares_memory,
}
state.hooks["functions"] = FUNCTIONS
state.hooks["ufuncs"] = UFUNCS
