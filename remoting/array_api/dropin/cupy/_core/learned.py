"""Functions of CuPy's main namespace that the worker describes: a row for each.

What loops call is elsewhere, by rules of shape and dtype: operators, ufuncs, sums, indexing, views.
"""

# ruff: noqa: A002

from __future__ import annotations

import warnings
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert, joining
from cupy._core.dispatch import arguments, learning, make
from cupy._core.dispatch.arguments import is_array, is_scalar
from cupy._core.dispatch.learning import (
    AnyArray,
    Array,
    Asked,
    Count,
    Counts,
    Decides,
    Elements,
    Free,
    Like,
    Likes,
    Number,
    Operand,
    Own,
    Scalar,
    Twin,
    Value,
)
from cupy._core.queries import may_share_memory

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_named: Any = namedtuple
UniqueAllResult = _named("UniqueAllResult", "values indices inverse_indices counts")
UniqueCountsResult = _named("UniqueCountsResult", "values counts")
UniqueInverseResult = _named("UniqueInverseResult", "values inverse_indices")


# --- creation -------------------------------------------------------------------------------------


def bartlett(M: Count) -> ndarray: ...
def diag(v: Like, k: int = 0) -> ndarray: ...
def diagflat(v: Like, k: int = 0) -> ndarray: ...
def diag_indices(n: object, ndim: int = 2) -> tuple[ndarray, ...]: ...
def diag_indices_from(arr: Array) -> tuple[ndarray, ...]: ...
def eye(N: Count, M: Count = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any: ...
def identity(n: Count, dtype: object = float) -> ndarray:
    return eye(n, dtype=dtype)


def indices(dimensions: Counts, dtype: object = int) -> ndarray: ...
def ix_(*args: Like) -> Asked: ...
def kaiser(M: Count, beta: float) -> ndarray: ...
def linspace(
    start: Value,
    stop: Value,
    num: Count = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: object = None,
    axis: int = 0,
) -> Any: ...
def logspace(
    start: Value,
    stop: Value,
    num: Count = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: object = None,
    axis: int = 0,
) -> ndarray: ...
def meshgrid(
    *xi: Array, indexing: str = "xy", sparse: bool = False, copy: bool = True
) -> tuple[ndarray, ...]: ...
def tri(N: Count, M: Count = None, k: int = 0, dtype: object = float) -> Any:
    arguments.shape_of((N, N if M is None else M))


def tril(m: Like, k: int = 0) -> ndarray: ...
def tril_indices(n: Count, k: Number = 0, m: Count = None) -> tuple[ndarray, ...]: ...
def tril_indices_from(arr: AnyArray, k: Number = 0) -> tuple[ndarray, ...]: ...
def vander(x: Like, N: Count = None, increasing: bool = False) -> ndarray: ...


# --- sorting, searching, sets ---------------------------------------------------------------------


def sort(a: Twin, axis: object = -1, kind: object = None) -> Any:
    arguments.check_kind(kind)


def argsort(a: Own, axis: object = -1, kind: object = None) -> Any:
    arguments.check_kind(kind)


def partition(a: Twin, kth: object, axis: object = -1) -> ndarray: ...
def argpartition(a: Own, kth: object, axis: object = -1) -> ndarray: ...
def lexsort(keys: Array) -> ndarray: ...
def msort(a: Array) -> ndarray:
    return sort(a, 0)


def sort_complex(a: Twin) -> ndarray: ...
def searchsorted(a: Array, v: Operand, side: str = "left", sorter: Array = None) -> ndarray: ...
def nonzero(a: Array) -> Asked: ...
def argwhere(a: Array) -> Elements: ...
def unique(
    ar: AnyArray,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: object = None,
    *,
    equal_nan: bool = True,
) -> Elements:
    several = (return_index, return_inverse, return_counts)
    if any(several):
        return tuple(make.ask("unique", ar, *several, axis, equal_nan=equal_nan))
    return None


def unique_all(x: AnyArray) -> tuple[ndarray, ...]:
    return UniqueAllResult(*unique(x, True, True, True, equal_nan=False))


def unique_counts(x: AnyArray) -> tuple[ndarray, ...]:
    return UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x: AnyArray) -> tuple[ndarray, ...]:
    return UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False))


def unique_values(x: AnyArray) -> Any:
    return unique(x, equal_nan=False)


def isin(
    element: Array, test_elements: Array, assume_unique: bool = False, invert: bool = False
) -> ndarray: ...
def in1d(ar1: Like, ar2: Like, assume_unique: bool = False, invert: bool = False) -> ndarray:
    return isin(ar1.ravel(), ar2, assume_unique, invert)


def intersect1d(
    arr1: AnyArray, arr2: AnyArray, assume_unique: bool = False, return_indices: bool = False
) -> Asked: ...
def setdiff1d(ar1: AnyArray, ar2: AnyArray, assume_unique: bool = False) -> Elements: ...
def union1d(arr1: Array, arr2: Array) -> Elements: ...


# --- selection ------------------------------------------------------------------------------------


def take(a: Own, indices: Value, axis: object = None, out: Any = None) -> Any:
    if out is not None and out.dtype != a.dtype:
        raise TypeError("Output dtype mismatch")


def take_along_axis(a: Array, indices: AnyArray, axis: object) -> ndarray: ...
def put(a: Array, ind: Value, v: Value, mode: str = "wrap") -> None: ...
def put_along_axis(arr: Array, indices: Array, values: Value, axis: object) -> None: ...
def putmask(a: Array, mask: Array, values: Value) -> None:
    if is_array(values):
        arguments.check_cast(values.dtype, a.dtype, "same_kind")


def place(arr: Array, mask: Like, vals: Like) -> Asked: ...
def fill_diagonal(a: Twin, val: Value, wrap: bool = False) -> None: ...
def choose(a: Own, choices: Array, out: object = None, mode: str = "raise") -> Asked: ...
def select(condlist: object, choicelist: object, default: object = 0) -> Any:
    if not is_scalar(default):
        raise TypeError("default only accepts scalar values")


def compress(condition: Like, a: Own, axis: object = None, out: object = None) -> Elements: ...
def extract(condition: Like, a: Array) -> Elements: ...
def unravel_index(indices: Twin, dims: object, order: object = "C") -> Asked: ...
def ravel_multi_index(
    multi_index: Likes, dims: object, mode: object = "wrap", order: str = "C"
) -> Asked: ...


# --- arrangement ----------------------------------------------------------------------------------


def delete(arr: Array, indices: object, axis: object = None) -> Elements: ...
def packbits(a: Array, axis: object = None, bitorder: str = "big") -> ndarray: ...
def pad(
    array: Operand, pad_width: object, mode: object = "constant", **kwargs: object
) -> ndarray: ...
def repeat(a: Own, repeats: Decides, axis: object = None) -> ndarray: ...
def resize(a: Like, new_shape: Counts) -> ndarray: ...
def roll(a: Array, shift: Free, axis: Counts = None) -> ndarray: ...
def rot90(a: Twin, k: Number = 1, axes: object = (0, 1)) -> ndarray: ...
def tile(A: Like, reps: Counts) -> ndarray: ...
def trim_zeros(filt: Array, trim: str = "fb") -> Elements: ...


# --- products -------------------------------------------------------------------------------------


def convolve(a: Array, v: Array, mode: str = "full") -> ndarray: ...
def correlate(a: Array, v: Array, mode: str = "valid") -> ndarray: ...
def cross(
    a: Like, b: Like, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: object = None
) -> ndarray: ...
def _einsum_view(text: str, a: ndarray) -> ndarray | None:
    """Return the view that a sum of one operand is where nothing is added; None for another."""
    text = text.replace(" ", "")
    unnamed = a.ndim - len(text.partition("->")[0].replace(".", ""))
    names, arrow, right = text.replace("...", "".join(map(chr, range(unnamed)))).partition("->")
    wanted = right if arrow else "".join(sorted(names))
    lengths, steps = dict(zip(names, a.shape)), dict.fromkeys(names, 0)
    for name, length, step in zip(names, a.shape, a.strides):
        if lengths[name] != length:
            return None
        steps[name] += step
    if "." in names or len(names) != a.ndim or sorted(wanted) != sorted(lengths):
        return None
    shape = tuple([lengths[name] for name in wanted])
    return make.as_strided(a, shape, tuple([steps[name] for name in wanted]))


def einsum(*operands: Scalar, **kwargs: object) -> ndarray | None:
    if not operands:
        raise ValueError("must provide at least an operand and a subscripts list for einsum")
    unknown = kwargs.keys() - {"dtype", "optimize"}
    if unknown:
        raise TypeError(f"Did not understand the following kwargs: {sorted(unknown)}")
    text, *arrays = operands
    if isinstance(text, str) and not all(map(is_array, arrays)):
        return einsum(text, *map(convert.asarray, arrays), **kwargs)
    return _einsum_view(*operands) if isinstance(text, str) and len(arrays) == 1 else None


def inner(a: Value, b: Value) -> ndarray: ...
def kron(a: Operand, b: Operand) -> ndarray: ...
def outer(a: Like, b: Like, out: object = None) -> ndarray: ...
def tensordot(a: Array, b: Array, axes: object = 2) -> ndarray: ...
def trace(
    a: Own, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: object = None, out: Any = None
) -> ndarray:
    return a.diagonal(offset, axis1, axis2).sum(-1, dtype, out, False)


def vdot(a: Array, b: Array) -> ndarray: ...


# --- statistics -----------------------------------------------------------------------------------


def average(
    a: Like,
    axis: object = None,
    weights: Decides = None,
    returned: bool = False,
    *,
    keepdims: object = False,
) -> Any: ...
def bincount(x: Array, weights: Array = None, minlength: object = None) -> Asked: ...
def corrcoef(
    a: AnyArray,
    y: AnyArray = None,
    rowvar: bool = True,
    bias: object = None,
    ddof: object = None,
    *,
    dtype: object = None,
) -> ndarray: ...
def count_nonzero(a: Array, axis: object = None) -> ndarray: ...
def cov(
    a: AnyArray,
    y: AnyArray = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Decides = None,
    aweights: Decides = None,
    *,
    dtype: object = None,
) -> Any:
    count = a.shape[0 if a.ndim > 1 and not rowvar else -1] if a.ndim else 1
    if fweights is None and aweights is None and count <= (not bias if ddof is None else ddof):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=4)


def cumsum(a: Array, axis: object = None, dtype: object = None, out: object = None) -> ndarray: ...
def cumulative_sum(
    x: Array,
    /,
    *,
    axis: object = None,
    dtype: object = None,
    out: object = None,
    include_initial: bool = False,
) -> ndarray: ...
def digitize(x: Operand, bins: Array, right: bool = False) -> ndarray: ...
def histogram(
    x: Array, bins: Value = 10, range: object = None, weights: Array = None, density: object = False
) -> Asked: ...
def histogram2d(
    x: Array,
    y: Array,
    bins: Any = 10,
    range: Any = None,
    weights: Array = None,
    density: Any = None,
) -> Asked: ...
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Like = None, density: Any = False
) -> Asked:
    if isinstance(bins, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in bins):
        raise ValueError("array-like bins not supported")
    given = (bins, range, weights, density)
    return None if is_array(sample) else histogramdd(joining.stack(sample, -1), *given)


def median(
    a: Array,
    axis: object = None,
    out: object = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> ndarray: ...
def percentile(
    a: Array,
    q: Decides,
    axis: object = None,
    out: object = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    interpolation: object = None,
) -> ndarray: ...
def std(
    a: Own,
    axis: object = None,
    dtype: object = None,
    out: object = None,
    ddof: object = 0,
    keepdims: bool = False,
) -> ndarray: ...


# --- elements, logic ------------------------------------------------------------------------------


def angle(z: Operand, deg: bool = False) -> ndarray: ...
def around(a: Like, decimals: object = 0, out: object = None) -> Any:
    if out is not None:
        kind = np.dtype(np.float16) if a.dtype.kind == "b" else a.dtype
        arguments.check_out(out, kind, a.shape)


def array_equal(a1: Array, a2: Array, equal_nan: bool = False) -> ndarray: ...
def array_equiv(a1: Operand, a2: Operand) -> ndarray: ...
def diff(
    a: Like, n: int = 1, axis: int = -1, prepend: Value = None, append: Value = None
) -> ndarray: ...
def ediff1d(arr: Array, to_end: Value = None, to_begin: Value = None) -> ndarray: ...
def gradient(
    f: Like, *varargs: Value, axis: object = None, edge_order: int = 1
) -> list[ndarray]: ...
def interp(
    x: Array, xp: Array, fp: Array, left: object = None, right: object = None, period: object = None
) -> ndarray: ...
def isneginf(x: Operand, out: object = None) -> ndarray: ...
def iscomplex(x: Value) -> Any:
    return np.iscomplex(x) if is_scalar(x) else None


def isreal(x: Value) -> Any:
    return np.isreal(x) if is_scalar(x) else None


def isclose(
    a: Like, b: Like, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> ndarray: ...
def nan_to_num(
    x: Operand, copy: bool = True, nan: object = 0.0, posinf: object = None, neginf: object = None
) -> Any:
    if copy:
        return None
    x[...] = nan_to_num(x, True, nan, posinf, neginf)
    return x


def poly(seq_of_zeros: Array) -> Elements: ...
def piecewise(x: AnyArray, condlist: object, funclist: Any) -> None:
    if any(map(callable, funclist)):
        raise NotImplementedError("Callable functions are not supported currently")


def polyadd(a1: Operand, a2: Operand) -> ndarray: ...
def polyfit(
    x: Array,
    y: Array,
    deg: object,
    rcond: object = None,
    full: bool = False,
    w: Array = None,
    cov: object = False,
) -> Asked: ...
def polymul(a1: Operand, a2: Operand) -> Elements: ...
def polyval(p: Array, x: Like) -> ndarray: ...
def real_if_close(a: Operand, tol: object = 100) -> Elements: ...
def roots(p: Array) -> Elements: ...
def shares_memory(a: Array, b: Array, max_work: object = None) -> Asked:
    if max_work == "MAY_SHARE_BOUNDS":
        return may_share_memory(a, b)
    if max_work not in (None, "MAY_SHARE_EXACT"):
        raise NotImplementedError("Not supported for integer `max_work`.")
    return make.ask("shares_memory", a, b)


def trapezoid(y: Array, x: Array = None, dx: object = 1.0, axis: int = -1) -> ndarray: ...
def unwrap(
    p: Like, discont: object = None, axis: int = -1, *, period: object = 6.283185307179586
) -> ndarray: ...


_ALSO = """
    allclose:isclose blackman:bartlett cumprod:cumsum cumulative_prod:cumulative_sum
    flatnonzero:argwhere hamming:bartlett hanning:bartlett isposinf:isneginf
    nancumprod:cumsum nancumsum:cumsum nanmedian:median nanstd:std nanvar:std polysub:polyadd
    quantile:percentile setxor1d:setdiff1d triu:tril triu_indices:tril_indices
    triu_indices_from:tril_indices_from unpackbits:packbits var:std
"""
LEARNED = learning.rows(globals(), also=_ALSO)
LEARNED["round"] = around
