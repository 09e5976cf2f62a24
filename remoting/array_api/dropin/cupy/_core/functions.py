"""The other functions of CuPy's main namespace: rules where one is short, else described later."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import sys
from typing import Any

import numpy as np

from cupy._core import across, make
from cupy._core.creation import CREATION
from cupy._core.manipulation import MANIPULATION
from cupy._core.products import PRODUCTS
from cupy._core.reductions import REDUCTIONS, need
from cupy._core.ufunc import UFUNCS, broadcast
from cupy._door import state
from cupy._door.calls import Plan
from cupy._door.meta import fresh

_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)
_FLOAT64 = np.dtype(np.float64)


def _is_array(value: Any) -> bool:
    return isinstance(value, state.hooks["ndarray"])


# --- elementwise ----------------------------------------------------------------------------------


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> Any:
    """Limit the elements to a range."""
    array = need(a)
    if a_min is None and a_max is None:
        raise ValueError("array_clip: must set either max or min")
    low, high = (None if x is None else make.operand(x) for x in (a_min, a_max))
    given = [x for x in (low, high) if x is not None]
    shape = broadcast(array.shape, *[x.shape for x in given if _is_array(x)])
    kinds = [make.operand_type(x) for x in given]
    kind = _weak_result(array.dtype, kinds)
    if out is not None:
        make.check_cast(kind, need(out, "out").dtype, "same_kind")
        make.in_place("clip", (array, low, high), {"out": out})
        return out
    return make.forward("clip", (array, low, high), {}, fresh(kind, shape))


def _weak_result(dtype: np.dtype[Any], kinds: list[Any]) -> np.dtype[Any]:
    """Return the promoted type of an array with numbers, whose own types give way (NEP 50)."""
    result = dtype
    for kind in kinds:
        if isinstance(kind, np.dtype):
            result = np.promote_types(result, kind)
        elif kind is int:
            result = np.promote_types(result, np.int64) if result.kind == "b" else result
        elif kind is float:
            result = np.dtype(np.float64) if result.kind in "biu" else result
        elif result.kind != "c":
            result = (
                np.promote_types(result, np.complex64)
                if result.kind == "f"
                else np.dtype(np.complex128)
            )
    return result


def around(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Round to decimals."""
    array = make.asarray(a)
    if out is not None:
        make.in_place("around", (array, decimals), {"out": out})
        return out
    kind = np.dtype(np.float16) if array.dtype.kind == "b" else array.dtype
    return make.forward("around", (array, decimals), {}, fresh(kind, array.shape))


_choices: dict[Any, Plan] = {}


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Choose elements by a condition; with the condition alone, the indices where it holds."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if x is None:
        return nonzero(condition)
    args = (condition, x, y)
    key = make.looks(args)
    plan = _choices.get(key)
    if plan is not None:
        return make.send_mixed(args, plan, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    condition, x, y = make.operand(condition), make.operand(x), make.operand(y)
    shapes = [v.shape for v in (condition, x, y) if _is_array(v)]
    kinds = [make.operand_type(v) for v in (x, y)]
    strong = [k for k in kinds if isinstance(k, np.dtype)]
    if strong:
        kind = _weak_result(strong[0], [k for k in kinds if k is not strong[0]])
    else:
        kind = np.result_type(*[np.dtype(k) for k in kinds])
    if not _is_array(condition):
        condition = bool(condition)
    meta = fresh(kind, broadcast(*shapes) if shapes else ())
    return make.forward_planned(_choices, "where", (condition, x, y), meta)


def _truth(name: str) -> Any:
    def function(x: Any, out: Any = None) -> Any:
        array = make.asarray(x)
        if out is not None:
            make.in_place(name, (array, out), {})
            return out
        return make.forward(name, (array,), {}, fresh(_BOOL, array.shape))

    return function


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Say where two arrays are equal within tolerances."""
    first, second = make.asarray(a), make.asarray(b)
    shape = broadcast(first.shape, second.shape)
    return make.forward("isclose", (first, second, rtol, atol, equal_nan), {}, fresh(_BOOL, shape))


def allclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Say whether two arrays are equal within tolerances, as an array of no dimensions."""
    return isclose(a, b, rtol, atol, equal_nan).all()


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Say whether two arrays have the same shape and elements."""
    first, second = make.asarray(a1), make.asarray(a2)
    if first.shape != second.shape:
        return make.array(False)
    return make.forward("array_equal", (first, second, equal_nan), {}, fresh(_BOOL, ()))


def array_equiv(a1: Any, a2: Any) -> Any:
    """Say whether two arrays are equal after broadcasting."""
    first, second = make.asarray(a1), make.asarray(a2)
    try:
        broadcast(first.shape, second.shape)
    except ValueError:
        return make.array(False)
    return (first == second).all()


def real(val: Any) -> Any:
    """Return the real part."""
    return make.asarray(val).real


def imag(val: Any) -> Any:
    """Return the imaginary part."""
    return make.asarray(val).imag


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """Replace NaN and infinities by numbers."""
    if not _is_array(x):
        return make.forward("nan_to_num", (make.asarray(x),), {}, make.asarray(x)._meta)
    keywords = {"nan": nan, "posinf": posinf, "neginf": neginf}
    if copy:
        return make.forward("nan_to_num", (x,), keywords, fresh(x.dtype, x.shape))
    x[...] = make.forward("nan_to_num", (x,), keywords, fresh(x.dtype, x.shape))
    return x


# --- sorting and searching ------------------------------------------------------------------------


def sort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    """Return a sorted copy."""
    array = need(a)
    if axis is None:
        made, axis = array.flatten(), -1
    else:
        made = array.copy()
    made.sort(axis, kind)
    return made


def argsort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    """Return the indices that sort."""
    array = need(a)
    if kind is not None and kind != "stable":
        raise ValueError(f"kind can only be None or 'stable', got {kind}")
    if axis is None:
        array, axis = array.ravel(), -1
    at = make.axis_of(axis, array.ndim) if array.ndim else 0
    return make.forward("argsort", (array, at), {}, fresh(_INT64, array.shape or (1,)))


def partition(a: Any, kth: Any, axis: Any = -1) -> Any:
    """Return a partitioned copy."""
    array = need(a)
    if axis is None:
        made, axis = array.flatten(), -1
    else:
        made = array.copy()
    made.partition(kth, axis)
    return made


def argpartition(a: Any, kth: Any, axis: Any = -1) -> Any:
    """Return the indices that partition."""
    array = need(a)
    if axis is None:
        array, axis = array.ravel(), -1
    at = make.axis_of(axis, array.ndim)
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
    array, value = need(a), make.asarray(v) if not make.is_scalar(v) else v
    shape = value.shape if _is_array(value) else ()
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


# --- indexing -------------------------------------------------------------------------------------


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """Return elements at indices along an axis."""
    array = need(a)
    index = indices if make.is_scalar(indices) else make.asarray(indices)
    inserted = index.shape if _is_array(index) else ()
    if axis is None:
        shape = inserted
    else:
        at = make.axis_of(axis, array.ndim)
        shape = array.shape[:at] + inserted + array.shape[at + 1 :]
        axis = at
    if out is not None:
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
    at = make.axis_of(axis, array.ndim)
    if array.ndim != index.ndim:
        raise ValueError("`indices` and `a` must have the same number of dimensions")
    shape = broadcast((*array.shape[:at], 1, *array.shape[at + 1 :]), index.shape)
    return make.forward("take_along_axis", (array, index, at), {}, fresh(array.dtype, shape))


def put(a: Any, ind: Any, v: Any, mode: str = "wrap") -> None:
    """Set elements of the flattened array."""
    if mode not in ("raise", "wrap", "clip"):
        raise TypeError(f"clipmode not understood: {mode}")
    array = need(a)
    indices = ind if make.is_scalar(ind) else make.asarray(ind)
    values = v if make.is_scalar(v) else make.asarray(v)
    make.in_place("put", (array, indices, values, mode), {})


def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """Set elements by indices that match the other axes."""
    value = values if make.is_scalar(values) else make.asarray(values)
    make.in_place("put_along_axis", (need(arr), need(indices), value, axis), {})


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Set elements where a mask holds."""
    value = values if make.is_scalar(values) else make.asarray(values)
    if _is_array(value):
        make.check_cast(value.dtype, need(a).dtype, "same_kind")
    make.in_place("putmask", (need(a), need(mask), value), {})


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Set elements where a mask holds, from a vector."""
    make.in_place("place", (need(arr), make.asarray(mask), make.asarray(vals)), {})


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy values into an array, broadcasting."""
    target = need(dst, "dst")
    with state.on(target._device):
        _copy_to(target, src, casting, where)


def _copy_to(target: Any, src: Any, casting: str, where: Any) -> None:
    if isinstance(src, np.ndarray):
        src = src.item() if src.ndim == 0 else make.upload(src, target._session)
    source = src if make.is_scalar(src) else make.operand(src)
    kind = make.operand_type(source)
    if isinstance(kind, np.dtype) and not np.can_cast(kind, target.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {kind} to {target.dtype} in {casting} casting mode")
    if _is_array(source) and source._session is not target._session:
        if where is None and across.fill(target, source):
            return
        source = across.bring(source, target)
    keywords: dict[str, Any] = {}
    if where is not None:
        keywords["where"] = make.operand(where)
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
    value = val if make.is_scalar(val) else make.asarray(val)
    make.in_place("fill_diagonal", (array, value, wrap), {})


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Choose elements by number."""
    array = need(a)
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
    if not make.is_scalar(default):
        raise TypeError("default only accepts scalar values")
    for condition in condlist:
        if need(condition).dtype != _BOOL:
            raise ValueError("invalid entry in condlist: should be boolean ndarray")
    return make.lazy("select", (list(condlist), list(choicelist), default), {})


def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the slices where a condition holds."""
    mask = make.asarray(condition)
    if out is not None:
        make.in_place("compress", (mask, need(a), axis), {"out": out})
        return out
    return make.lazy("compress", (mask, need(a), axis), {})


def extract(condition: Any, a: Any) -> Any:
    """Return the elements where a condition holds."""
    return make.lazy("extract", (make.asarray(condition), make.asarray(a)), {})


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a view of a diagonal."""
    return need(a).diagonal(offset, axis1, axis2)


def unravel_index(indices: Any, dims: Any, order: str = "C") -> Any:
    """Return flat indices as coordinates."""
    array = make.asarray(indices)
    if order not in ("C", "F"):
        raise TypeError("order not understood")
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"indices of {array.dtype!r} cannot be cast to int64 according to the rule 'same_kind'"
        )
    shape = make.shape_of(dims)
    metas = tuple(fresh(_INT64, array.shape) for _ in shape)
    return make.forward_many("unravel_index", (array, shape, order), {}, metas)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "wrap", order: str = "C") -> Any:
    """Return coordinates as flat indices."""
    parts = tuple(make.asarray(part) for part in multi_index)
    return make.lazy(
        "ravel_multi_index", (parts, make.shape_of(dims)), {"mode": mode, "order": order}
    )


# --- calls that only the worker can describe ----------------------------------------------------


def _arrays(value: Any) -> Any:
    """Upload host arrays and lists among the arguments of a function that takes them."""
    if isinstance(value, (np.ndarray, list)):
        return make.asarray(value)
    return value


def _lazy(name: str, uploads: int = 0) -> Any:
    """Make a function with one array as its result; its first arguments may be lists."""

    def function(*args: Any, **kwargs: Any) -> Any:
        made = tuple(_arrays(arg) if at < uploads else arg for at, arg in enumerate(args))
        return make.lazy(name, made, kwargs)

    return function


def _asked(name: str, uploads: int = 0) -> Any:
    """Make a function whose result has a structure that depends on its arguments."""

    def function(*args: Any, **kwargs: Any) -> Any:
        made = tuple(_arrays(arg) if at < uploads else arg for at, arg in enumerate(args))
        return make.ask(name, *made, **kwargs)

    return function


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return differences of neighbours."""
    array = need(a)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    if n == 0:
        return array
    if array.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    at = make.axis_of(axis, array.ndim)
    if prepend is not None or append is not None:
        keywords = {
            key: make.asarray(value)
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
    made = make.ask(
        "gradient", need(f, "f"), *[_arrays(x) for x in varargs], axis=axis, edge_order=edge_order
    )
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
        return make.lazy("unique", (make.asarray(ar),), keywords)
    found = make.ask(
        "unique",
        make.asarray(ar),
        return_index=return_index,
        return_inverse=return_inverse,
        return_counts=return_counts,
        **keywords,
    )
    return tuple(found)


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Say which elements occur in another array."""
    first, second = make.asarray(element), make.asarray(test_elements)
    return make.forward(
        "isin", (first, second, assume_unique, invert), {}, fresh(_BOOL, first.shape)
    )


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """Say which elements of a flattened array occur in another."""
    return isin(make.asarray(ar1).ravel(), ar2, assume_unique, invert)


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


def piecewise(x: Any, condlist: Any, funclist: Any) -> Any:
    """Evaluate functions, each where its condition holds."""
    array = make.asarray(x)
    conditions = (
        [make.asarray(c) for c in condlist]
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
    for condition, function in zip(conditions, funclist, strict=True):
        if callable(function):
            raise NotImplementedError("Callable functions are not supported currently")
        made = where(condition, function, made).astype(made.dtype, copy=False)
    return made


def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a Python function to vectors along an axis."""
    array = need(arr)
    at = make.axis_of(axis, array.ndim)
    moved = MANIPULATION["moveaxis"](array, at, -1)
    outer = moved.shape[:-1]
    if 0 in outer:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [make.asarray(func1d(moved[index], *args, **kwargs)) for index in np.ndindex(outer)]
    joined = MANIPULATION["stack"](parts).reshape(outer + parts[0].shape)
    for offset in range(parts[0].ndim):
        joined = MANIPULATION["moveaxis"](joined, len(outer) + offset, at + offset)
    return joined


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Apply a function repeatedly, over each axis."""
    value = need(a)
    for axis in (axes,) if isinstance(axes, int) else axes:
        result = func(value, make.axis_of(axis, value.ndim))
        if result.ndim != value.ndim:
            result = MANIPULATION["expand_dims"](result, axis)
        value = result
    return value


FUNCTIONS: dict[str, Any] = {
    **CREATION,
    **MANIPULATION,
    **PRODUCTS,
    **REDUCTIONS,
    "clip": clip,
    "around": around,
    "round": around,
    "where": where,
    "isneginf": _truth("isneginf"),
    "isposinf": _truth("isposinf"),
    "iscomplex": _truth("iscomplex"),
    "isreal": _truth("isreal"),
    "isclose": isclose,
    "allclose": allclose,
    "array_equal": array_equal,
    "array_equiv": array_equiv,
    "real": real,
    "imag": imag,
    "angle": _lazy("angle", 1),
    "nan_to_num": nan_to_num,
    "real_if_close": _lazy("real_if_close", 1),
    "sort": sort,
    "argsort": argsort,
    "partition": partition,
    "argpartition": argpartition,
    "msort": msort,
    "lexsort": lexsort,
    "searchsorted": searchsorted,
    "sort_complex": _lazy("sort_complex"),
    "nonzero": nonzero,
    "argwhere": argwhere,
    "flatnonzero": flatnonzero,
    "take": take,
    "take_along_axis": take_along_axis,
    "put": put,
    "put_along_axis": put_along_axis,
    "putmask": putmask,
    "place": place,
    "copyto": copyto,
    "fill_diagonal": fill_diagonal,
    "choose": choose,
    "select": select,
    "compress": compress,
    "extract": extract,
    "diagonal": diagonal,
    "unravel_index": unravel_index,
    "ravel_multi_index": ravel_multi_index,
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
    "cov": _lazy("cov", 2),
    "digitize": _lazy("digitize", 2),
    "ediff1d": _lazy("ediff1d", 1),
    "interp": _lazy("interp", 3),
    "intersect1d": _asked("intersect1d", 2),
    "setdiff1d": _lazy("setdiff1d", 2),
    "setxor1d": _lazy("setxor1d", 2),
    "union1d": _lazy("union1d", 2),
    "histogram": _asked("histogram", 1),
    "histogram2d": _asked("histogram2d", 2),
    "histogramdd": _asked("histogramdd", 1),
    "packbits": packbits,
    "unpackbits": unpackbits,
    "trapezoid": _lazy("trapezoid", 2),
    "unwrap": _lazy("unwrap", 1),
    "poly": _lazy("poly", 1),
    "polyfit": _asked("polyfit", 2),
    "roots": _lazy("roots", 1),
    "may_share_memory": _asked("may_share_memory"),
    "shares_memory": _asked("shares_memory"),
}
state.hooks["functions"] = FUNCTIONS
state.hooks["ufuncs"] = UFUNCS
