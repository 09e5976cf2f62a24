"""Distances of an emulated GPU: SciPy's, with the arguments and types of CuPy's.

CuPy has them from cuVS, which takes matrices of points with one layout, and computes in their type.
"""

import importlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError

Operation = Callable[..., Any]

_METRICS = """
canberra
chebyshev chebychev cheby cheb ch
cityblock cblock cb c
correlation co
cosine cos
euclidean euclid eu e
hamming matching hamm ha h
hellinger
jensenshannon js
kl_divergence kl_div kld
minkowski mi m pnorm
russellrao
sqeuclidean sqe sqeuclid
"""
_NAMES = {alias: line.split()[0] for line in _METRICS.splitlines() for alias in line.split()}
"""By name or alias, the name of a metric."""
METRICS = tuple(dict.fromkeys(_NAMES.values()))
_NOT_EMULATED = ("hellinger", "jensenshannon", "kl_divergence")
_PAIRS_MAX = 1 << 31
"""Distances of one call: SciPy makes room for all of them before anyone counts it."""


def _matrix(metric: str, a: Any, b: Any, p: object) -> Any:
    if metric in _NOT_EMULATED:
        raise UnsupportedError(
            f"an emulated GPU has no distance {metric}: SciPy lacks that of cuVS"
        )
    if len(a) * len(b) > _PAIRS_MAX:
        raise MemoryError(f"{len(a) * len(b):,} distances are more than any device here holds")
    cdist = importlib.import_module("scipy.spatial.distance").cdist
    if metric == "minkowski":
        return cdist(a, b, "euclidean" if p == 2 else metric, **({} if p == 2 else {"p": p}))
    if metric == "russellrao":
        return cdist(a.astype(bool), b.astype(bool), metric)
    return cdist(a, b, metric)


def _check_layouts(first: Any, second: Any) -> Literal["C", "F"]:
    """Return the order of two arrays; ValueError where they differ, because cuVS takes one."""
    orders = ["F" if each.flags.fnc else "C" for each in (first, second)]
    if orders[0] != orders[1]:
        raise ValueError(f"the operands must have the same layout ({orders[0]} and {orders[1]})")
    return "F" if orders[0] == "F" else "C"


def pairwise(metric: str) -> Operation:
    """Return the distance of two vectors, which are rows as cuVS takes them."""

    def call(u: object, v: object, p: object = 2.0) -> Any:
        u, v = np.asarray(u), np.asarray(v)
        _check_layouts(u, v)
        if u.dtype.char not in "fd" or v.dtype != u.dtype:
            raise TypeError(f"two vectors of float32 or of float64, and not {u.dtype}, {v.dtype}")
        rows = np.atleast_2d(u), np.atleast_2d(v)
        return np.asarray(_matrix(metric, *rows, p)[0, 0], u.dtype)

    call.__name__ = metric
    return call


def cdist(XA: Any, XB: Any, metric: object = "euclidean", out: Any = None, **kwargs: object) -> Any:
    """Return the distances between the rows of two matrices."""
    a, b = (m if m.dtype.char in "fd" else m.astype(np.float32) for m in (XA, XB))
    order = _check_layouts(a, b)
    for name, matrix in (("XA", a), ("XB", b)):
        if matrix.ndim != 2:
            raise ValueError(f"{name} must be a 2-dimensional array.")
    if a.shape[1] != b.shape[1]:
        raise ValueError("XA and XB must have the same number of columns (i.e. feature dimension.)")
    if not isinstance(metric, str):
        raise TypeError("2nd argument metric must be a string identifier")
    known = _NAMES.get(metric.lower())
    if known is None:
        raise ValueError(f"Unknown Distance Metric: {metric.lower()}")
    made = _matrix(known, a, b, kwargs.get("p", 2.0))
    if out is None:
        return np.asarray(made, a.dtype, order)
    if out.shape != made.shape or out.dtype != a.dtype:
        raise ValueError(f"out must be an array of {a.dtype} of shape {made.shape}")
    out[...] = made
    return out


def pdist(X: object, metric: object = "euclidean", **kwargs: object) -> Any:
    """Return the distances between the rows of a matrix, each once."""
    made = cdist(X, X, metric, **kwargs)
    return made[np.triu_indices_from(made, 1)]


def distance_matrix(x: object, y: object, p: object = 2.0) -> Any:
    """Return Minkowski's distances between the rows of two matrices."""
    return cdist(np.asarray(x), np.asarray(y), "minkowski", p=p)


def distances() -> dict[str, Operation]:
    """Return the functions by their names in ``cupyx.scipy.spatial.distance``."""
    made = {metric: pairwise(metric) for metric in METRICS}
    return made | {"cdist": cdist, "pdist": pdist, "distance_matrix": distance_matrix}
