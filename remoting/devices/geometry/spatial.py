"""Trees of points and triangulations of a worker: rules beside their table of members."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.remote_objects import Objects

_INDEX_BYTES = 40
"""Bytes of one index in a list of Python, before it becomes an array."""


class Spatial(Objects):
    """CuPy's trees and triangulations."""

    family = "spatial"

    def method(self, value: Any, name: str) -> Callable[..., Any]:
        """Return a method; the neighbours of all points come as one array, and their counts."""
        if name == "query_ball_point":
            return lambda *args, **kwargs: self.joined(value.query_ball_point(*args, **kwargs))
        return super().method(value, name)

    def joined(self, found: Any) -> Any:
        """Return a list of arrays as one array and their lengths; any other result as it is."""
        if type(found) not in (list,):
            return found
        arrays = np if self.emulated else self.backend.cupy
        counts = arrays.asarray([len(each) for each in found], np.int64)
        parts = [arrays.asarray(each, np.int64) for each in found]
        return arrays.concatenate([arrays.zeros(0, np.int64), *parts]), counts


class EmulatedSpatial(Spatial):
    """SciPy's trees and triangulations, with their memory accounted for."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy the points, which a client may change in place; raise for too many neighbours."""
        if name in self.classes:
            points, *rest = args
            if points.ndim != 2 or (name == "Delaunay" and points.shape[1] != 2):
                raise ValueError("KDTree supports 2D inputs, and Delaunay those of the plane")
            return (self.backend.adopt(np.array(points, np.float64)), *rest), kwargs
        return args, kwargs

    def new(self, kind: str, /, *args: Any, **kwargs: Any) -> Any:
        """Make a tree or a triangulation."""
        try:
            return super().new(kind, *args, **kwargs)
        except RuntimeError as error:
            if type(error).__name__ != "QhullError":  # whose class only SciPy has
                raise
            raise ValueError(f"the points have no triangulation: {error}".split("\n")[0]) from error

    def parts(self, value: Any) -> list[Any]:
        """Return nothing: the points were counted before."""
        return []

    def method(self, value: Any, name: str) -> Callable[..., Any]:
        """Return a method with the results of CuPy, which first looks whether they have room."""
        if name == "vertex_neighbor_vertices":
            return lambda: tuple([np.array(each) for each in value.vertex_neighbor_vertices])
        found: dict[str, Callable[..., Any]] = {
            "query": self._query,
            "query_ball_point": self._ball,
            "query_pairs": self._pairs,
            "sparse_distance_matrix": self._distances,
        }
        made = found.get(name)
        if made is None:
            return super().method(value, name)
        return lambda *args, **kwargs: made(value, *args, **kwargs)

    def attribute(self, value: Any, name: str) -> Any:
        """Return a copy of an array; the nodes of a GPU's tree have another order."""
        if name == "boxsize":
            return np.full(value.m, np.inf) if value.boxsize is None else np.array(value.boxsize)
        if name in ("bounds", "index", "tree"):
            raise UnsupportedError(f"KDTree.{name}: an emulated GPU has SciPy's tree, without it")
        return np.array(getattr(value, name))  # SciPy's compiled code goes where these say

    def _query(self, tree: Any, x: Any, k: Any = 1, *args: Any, **kwargs: Any) -> Any:
        try:
            counts = [int(each) for each in (k if type(k) in (list,) else [k])]
        except TypeError:
            counts = [0]
        if min(counts, default=0) < 1:
            raise ValueError("k must be an integer or list of integers, from 1 on")
        rows = max(1, x.size // max(1, tree.m))
        self.backend.expect(16 * rows * (max(counts) if isinstance(k, list) else counts[0]))
        distances, places = tree.query(x, k, *args, **kwargs)
        shape = np.shape(distances) or (1,)  # one point's one neighbour is no number in CuPy
        return (
            np.ascontiguousarray(distances).reshape(shape),
            np.ascontiguousarray(places, np.int64).reshape(shape),
        )

    def _ball(
        self,
        tree: Any,
        x: Any,
        r: Any,
        p: float = 2.0,
        eps: float = 0,
        return_sorted: Any = None,
        return_length: bool = False,
    ) -> Any:
        points = x.reshape(-1, x.shape[-1])
        counts = np.asarray(tree.query_ball_point(points, r, p, eps, return_length=True), np.int64)
        if return_length:
            return counts
        self.backend.expect(_INDEX_BYTES * int(counts.sum()))
        in_order = return_sorted is None or bool(return_sorted)
        return self.joined(list(tree.query_ball_point(points, r, p, eps, return_sorted=in_order)))

    def _pairs(self, tree: Any, r: Any, p: float = 2.0, eps: float = 0, **_rest: Any) -> Any:
        self.backend.expect(16 * int(tree.count_neighbors(tree, r, p)))
        made = tree.query_pairs(r, p, eps, output_type="ndarray").astype(np.int64)
        return made[np.lexsort((made[:, 1], made[:, 0]))]

    def _distances(self, tree: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        self.need(other)
        self.backend.expect(16 * tree.n * other.n)
        return tree.sparse_distance_matrix(other, *args, **{"output_type": "coo_matrix", **kwargs})
