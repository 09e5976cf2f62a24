"""Functions of CuPy's main namespace that the worker describes: a row for each.

What loops call is elsewhere, by rules of shape and dtype: operators, ufuncs, sums, indexing, views.
"""

# ruff: noqa: A002

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from cupy._core.dispatch import arguments, learning, make
from cupy._core.dispatch.arguments import is_array, is_scalar
from cupy._core.dispatch.learning import (
    Array,
    Asked,
    Count,
    Decides,
    Elements,
    Free,
    Like,
    Likes,
    Own,
    Scalar,
    Value,
)
from cupy._core.manipulation import pad_by
from cupy._core.queries import may_share_memory

UniqueAllResult = learning.named("UniqueAllResult", "values indices inverse_indices counts")
UniqueCountsResult = learning.named("UniqueCountsResult", "values counts")
UniqueInverseResult = learning.named("UniqueInverseResult", "values inverse_indices")


# --- creation -------------------------------------------------------------------------------------


def bartlett(M: Count) -> Any: ...
def diag(v: Like, k: int = 0) -> Any: ...
def diagflat(v: Like, k: int = 0) -> Any: ...
def diag_indices(n: Any, ndim: int = 2) -> Any: ...
def diag_indices_from(arr: Array) -> Any: ...
def eye(N: Any, M: Any = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any: ...
def identity(n: Any, dtype: Any = float) -> Any:
    return eye(n, dtype=dtype)


def indices(dimensions: Any, dtype: Any = int) -> Any: ...
def ix_(*args: Like) -> Asked: ...
def kaiser(M: Count, beta: float) -> Any: ...
def linspace(
    start: Value,
    stop: Value,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> Any: ...
def logspace(
    start: Value,
    stop: Value,
    num: Any = 50,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any: ...
def meshgrid(
    *xi: Like, indexing: str = "xy", sparse: bool = False, copy: bool = True
) -> tuple[Any, ...]: ...
def tri(N: Count, M: Count = None, k: int = 0, dtype: Any = float) -> Any:
    arguments.shape_of((N, N if M is None else M))


def tril(m: Like, k: int = 0) -> Any: ...
def tril_indices(n: Count, k: Count = 0, m: Count = None) -> Any: ...
def tril_indices_from(arr: Array, k: Count = 0) -> Any: ...
def vander(x: Like, N: Any = None, increasing: bool = False) -> Any: ...


# --- sorting, searching, sets ---------------------------------------------------------------------


def sort(a: Array, axis: Any = -1, kind: Any = None) -> Any:
    arguments.check_kind(kind)


def argsort(a: Own, axis: Any = -1, kind: Any = None) -> Any:
    arguments.check_kind(kind)


def partition(a: Array, kth: Any, axis: Any = -1) -> Any: ...
def argpartition(a: Own, kth: Any, axis: Any = -1) -> Any: ...
def lexsort(keys: Array) -> Any: ...
def msort(a: Array) -> Any:
    return sort(a, 0)


def sort_complex(a: Array) -> Any: ...
def searchsorted(a: Array, v: Value, side: str = "left", sorter: Array = None) -> Any: ...
def nonzero(a: Array) -> Asked: ...
def argwhere(a: Array) -> Elements: ...
def unique(
    ar: Like,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
) -> Elements:
    several = (return_index, return_inverse, return_counts)
    if any(several):
        return tuple(make.ask("unique", ar, *several, axis, equal_nan=equal_nan))
    return None


def unique_all(x: Like) -> Any:
    return UniqueAllResult(*unique(x, True, True, True, equal_nan=False))


def unique_counts(x: Like) -> Any:
    return UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x: Like) -> Any:
    return UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False))


def unique_values(x: Like) -> Any:
    return unique(x, equal_nan=False)


def isin(
    element: Like, test_elements: Like, assume_unique: bool = False, invert: bool = False
) -> Any: ...
def in1d(ar1: Like, ar2: Like, assume_unique: bool = False, invert: bool = False) -> Any:
    return isin(ar1.ravel(), ar2, assume_unique, invert)


def intersect1d(
    arr1: Like, arr2: Like, assume_unique: bool = False, return_indices: bool = False
) -> Asked: ...
def setdiff1d(ar1: Like, ar2: Like, assume_unique: bool = False) -> Elements: ...
def union1d(arr1: Like, arr2: Like) -> Elements: ...


# --- selection ------------------------------------------------------------------------------------


def take(a: Own, indices: Value, axis: Any = None, out: Any = None) -> Any:
    if out is not None and out.dtype != a.dtype:
        raise TypeError("Output dtype mismatch")


def take_along_axis(a: Array, indices: Array, axis: Any) -> Any: ...
def put(a: Array, ind: Value, v: Value, mode: str = "wrap") -> Any:
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"clipmode not understood: {mode}")


def put_along_axis(arr: Array, indices: Array, values: Value, axis: Any) -> Any: ...
def putmask(a: Array, mask: Array, values: Value) -> Any:
    if is_array(values):
        arguments.check_cast(values.dtype, a.dtype, "same_kind")


def place(arr: Array, mask: Like, vals: Like) -> Asked: ...
def fill_diagonal(a: Array, val: Value, wrap: bool = False) -> Any: ...
def choose(a: Own, choices: Any, out: Any = None, mode: str = "raise") -> Asked: ...
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    if not is_scalar(default):
        raise TypeError("default only accepts scalar values")


def compress(condition: Like, a: Own, axis: Any = None, out: Any = None) -> Elements: ...
def extract(condition: Like, a: Like) -> Elements: ...
def unravel_index(indices: Like, dims: Any, order: Any = "C") -> Asked: ...
def ravel_multi_index(
    multi_index: Likes, dims: Any, mode: Any = "wrap", order: str = "C"
) -> Asked: ...


# --- arrangement ----------------------------------------------------------------------------------


def delete(arr: Array, indices: Any, axis: Any = None) -> Elements: ...
def packbits(a: Array, axis: Any = None, bitorder: str = "big") -> Any:
    if bitorder not in ("big", "little"):
        raise ValueError("bitorder must be either 'big' or 'little'")


def pad(array: Like, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    return pad_by(array, pad_width, mode, kwargs) if callable(mode) else None


def repeat(a: Own, repeats: Decides, axis: Any = None) -> Any: ...
def resize(a: Like, new_shape: Any) -> Any: ...
def roll(a: Array, shift: Free, axis: Any = None) -> Any: ...
def rot90(a: Array, k: Count = 1, axes: Any = (0, 1)) -> Any: ...
def tile(A: Like, reps: Any) -> Any: ...
def trim_zeros(filt: Array, trim: str = "fb") -> Elements: ...


# --- products -------------------------------------------------------------------------------------


def convolve(a: Like, v: Like, mode: str = "full") -> Any: ...
def correlate(a: Like, v: Like, mode: str = "valid") -> Any: ...
def cross(
    a: Like, b: Like, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None
) -> Any: ...
def _einsum_view(text: str, a: Any) -> Any:
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


def einsum(*operands: Scalar, **kwargs: Any) -> Any:
    if not operands:
        raise ValueError("must provide at least an operand and a subscripts list for einsum")
    unknown = kwargs.keys() - {"dtype", "optimize"}
    if unknown:
        raise TypeError(f"Did not understand the following kwargs: {sorted(unknown)}")
    if len(operands) == 2 and isinstance(operands[0], str):
        return _einsum_view(*operands)
    return None


def inner(a: Value, b: Value) -> Any: ...
def kron(a: Like, b: Like) -> Any: ...
def outer(a: Like, b: Like, out: Any = None) -> Any: ...
def tensordot(a: Array, b: Array, axes: Any = 2) -> Any: ...
def trace(
    a: Own, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    return a.diagonal(offset, axis1, axis2).sum(-1, dtype, out, False)


def vdot(a: Array, b: Array) -> Any: ...


# --- statistics -----------------------------------------------------------------------------------


def average(
    a: Like,
    axis: Any = None,
    weights: Decides = None,
    returned: bool = False,
    *,
    keepdims: Any = False,
) -> Any: ...
def bincount(x: Array, weights: Array = None, minlength: Any = None) -> Asked: ...
def corrcoef(
    a: Like,
    y: Like = None,
    rowvar: bool = True,
    bias: Any = None,
    ddof: Any = None,
    *,
    dtype: Any = None,
) -> Any: ...
def count_nonzero(a: Array, axis: Any = None) -> Any: ...
def cov(
    a: Like,
    y: Like = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Decides = None,
    aweights: Decides = None,
    *,
    dtype: Any = None,
) -> Any:
    count = a.shape[0 if a.ndim > 1 and not rowvar else -1] if a.ndim else 1
    if fweights is None and aweights is None and count <= (not bias if ddof is None else ddof):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=4)


def cumsum(a: Array, axis: Any = None, dtype: Any = None, out: Any = None) -> Any: ...
def cumulative_sum(
    x: Array,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any: ...
def digitize(x: Like, bins: Like, right: bool = False) -> Any: ...
def histogram(
    x: Like, bins: Value = 10, range: Any = None, weights: Like = None, density: Any = False
) -> Asked: ...
def histogram2d(
    x: Like, y: Like, bins: Any = 10, range: Any = None, weights: Like = None, density: Any = None
) -> Asked: ...
def histogramdd(
    sample: Like, bins: Any = 10, range: Any = None, weights: Like = None, density: Any = False
) -> Asked:
    if isinstance(bins, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in bins):
        raise ValueError("array-like bins not supported")


def median(
    a: Array,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any: ...
def percentile(
    a: Array,
    q: Decides,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    interpolation: Any = None,
) -> Any:
    if interpolation is not None:
        return percentile(a, q, axis, out, overwrite_input, interpolation, keepdims)
    return None


def quantile(
    a: Array,
    q: Decides,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    interpolation: Any = None,
) -> Any:
    if interpolation is not None:
        return quantile(a, q, axis, out, overwrite_input, interpolation, keepdims)
    return None


def std(
    a: Own,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
) -> Any: ...


# --- elements, logic ------------------------------------------------------------------------------


def angle(z: Like, deg: bool = False) -> Any: ...
def around(a: Like, decimals: int = 0, out: Any = None) -> Any:
    if out is not None:
        kind = np.dtype(np.float16) if a.dtype.kind == "b" else a.dtype
        arguments.check_out(out, kind, a.shape)


def array_equal(a1: Like, a2: Like, equal_nan: bool = False) -> Any: ...
def array_equiv(a1: Like, a2: Like) -> Any: ...
def diff(
    a: Like, n: int = 1, axis: int = -1, prepend: Value = None, append: Value = None
) -> Any: ...
def ediff1d(arr: Like, to_end: Value = None, to_begin: Value = None) -> Any: ...
def gradient(f: Like, *varargs: Value, axis: Any = None, edge_order: int = 1) -> list[Any]: ...
def interp(
    x: Like, xp: Like, fp: Like, left: Any = None, right: Any = None, period: Any = None
) -> Any: ...
def isneginf(x: Like, out: Any = None) -> Any: ...
def isreal(x: Like) -> Any: ...
def isclose(
    a: Like, b: Like, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any: ...
def nan_to_num(
    x: Like, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if copy:
        return None
    x[...] = nan_to_num(x, True, nan, posinf, neginf)
    return x


def poly(seq_of_zeros: Like) -> Elements: ...
def polyadd(a1: Like, a2: Like) -> Any: ...
def polyfit(
    x: Like,
    y: Like,
    deg: Any,
    rcond: Any = None,
    full: bool = False,
    w: Like = None,
    cov: Any = False,
) -> Asked: ...
def polymul(a1: Like, a2: Like) -> Elements: ...
def polyval(p: Array, x: Like) -> Any: ...
def real_if_close(a: Like, tol: Any = 100) -> Elements: ...
def roots(p: Like) -> Elements: ...
def shares_memory(a: Array, b: Array, max_work: Any = None) -> Asked:
    if max_work == "MAY_SHARE_BOUNDS":
        return may_share_memory(a, b)
    if max_work not in (None, "MAY_SHARE_EXACT"):
        raise NotImplementedError("Not supported for integer `max_work`.")
    return make.ask("shares_memory", a, b)


def trapezoid(y: Like, x: Like = None, dx: Any = 1.0, axis: int = -1) -> Any: ...
def unwrap(
    p: Like, discont: Any = None, axis: int = -1, *, period: Any = 6.283185307179586
) -> Any: ...


_ALSO = """
    allclose:isclose blackman:bartlett cumprod:cumsum cumulative_prod:cumulative_sum
    flatnonzero:argwhere hamming:bartlett hanning:bartlett iscomplex:isreal isposinf:isneginf
    nancumprod:cumsum nancumsum:cumsum nanmedian:median nanstd:std nanvar:std polysub:polyadd
    setxor1d:setdiff1d triu:tril triu_indices:tril_indices
    triu_indices_from:tril_indices_from unpackbits:packbits var:std
"""
LEARNED: dict[str, Any] = learning.rows(globals(), also=_ALSO)
LEARNED["round"] = around
