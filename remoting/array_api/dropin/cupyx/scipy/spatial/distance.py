"""Distances between points, and between all pairs of points."""

from typing import Any

import cupy as _cupy

from cupyx import _extensions

_extensions.fill(globals())
_pdist = globals()["pdist"]
_cdist = globals()["cdist"]


def pdist(X: object, metric: object = "euclidean", *, out: object = None, **kwargs: object) -> Any:
    """Return the distance of each pair of rows; `out` is for the whole matrix of them."""
    if out is None:
        return _pdist(X, metric, **kwargs)
    made = _cdist(X, X, metric, out=out, **kwargs)
    return made[_cupy.triu_indices_from(made, 1)]
