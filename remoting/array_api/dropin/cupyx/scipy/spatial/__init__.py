"""Points in space: distances, trees that find the nearest ones, triangulations of the plane."""

from __future__ import annotations

import warnings
from typing import Any

import cupy as _cupy
import numpy as _np
from cupy._core.dispatch import make as _make
from cupy._door import absent as _absent
from cupy._door.calls import Remote as _Remote
from cupy._door.meta import fresh as _fresh

from cupyx.scipy.spatial import distance as distance

distance_matrix = vars(distance)["distance_matrix"]


def _ask(name: str, *args: Any) -> Any:
    return _make.session_of(*args).ask(f"spatial.{name}", args)


def _attribute(name: str) -> Any:
    return property(lambda self: _ask(f"get.{name}", self), doc=f"`{name}` of the server's tree.")


class KDTree(_Remote):
    """A tree of points that finds those near others; it is the worker's."""

    bounds = _attribute("bounds")
    boxsize = _attribute("boxsize")
    index = _attribute("index")
    maxes = _attribute("maxes")
    mins = _attribute("mins")
    tree = _attribute("tree")

    def __init__(
        self,
        data: Any,
        leafsize: int = 10,
        compact_nodes: bool = True,
        copy_data: bool = False,
        balanced_tree: bool = True,
        boxsize: Any = None,
    ) -> None:
        del leafsize, compact_nodes  # without effect in CuPy too
        self.data = data.copy() if copy_data else _cupy.asarray(data)
        if not balanced_tree:
            warnings.warn(
                "balanced_tree=False is not supported by the GPU implementation of KDTree, "
                "skipping.",
                stacklevel=2,
            )
        self.n, self.m = self.data.shape
        box = None
        if boxsize is not None:
            box = _cupy.ascontiguousarray(
                _cupy.broadcast_to(_cupy.asarray(boxsize, dtype=float), (self.m,))
            )
        self._periodic = box is not None
        made = _ask("tree", self.data, box)
        self._gp_handle, self._gp_session = made, _make.session_of(self.data)

    def _points(self, x: Any) -> Any:
        x = _cupy.asarray(x)
        if self._periodic and x.dtype != _np.float64:
            raise ValueError("periodic KDTree is only available on float64")
        if not x.ndim or x.shape[-1] != self.m:
            raise ValueError(
                "The number of dimensions of the query points must match with the tree ones. "
                f"Expected {self.m}, got: {x.shape[-1] if x.ndim else 0}"
            )
        return x

    def query(
        self,
        x: Any,
        k: Any = 1,
        eps: float = 0.0,
        p: float = 2.0,
        distance_upper_bound: float = _np.inf,
    ) -> Any:
        """Return the distances and indices of the nearest points; this does not wait."""
        x = self._points(x)
        if not isinstance(k, list):
            try:
                k = int(k)
            except TypeError:
                raise ValueError("k must be an integer or list of integers") from None
        each = [int(one) for one in k] if isinstance(k, list) else [k]
        if not each or min(each) < 1:
            raise ValueError("k must be an integer or list of integers, from 1 on")
        count = len(each) if isinstance(k, list) else k
        shape = x.shape[:-1] if k == 1 and x.ndim > 1 else (*x.shape[:-1], count)
        metas = (_fresh(_np.dtype(float), shape, "C"), _fresh(_np.dtype(_np.int64), shape, "C"))
        given = each if isinstance(k, list) else k
        rest = (given, float(eps), float(p), float(distance_upper_bound))
        return _make.forward_many("spatial.query", (self, x, *rest), {}, metas)

    def query_ball_point(
        self,
        x: Any,
        r: Any,
        p: float = 2.0,
        eps: float = 0,
        return_sorted: Any = None,
        return_length: bool = False,
    ) -> Any:
        """Return the indices of the points within a distance of each of `x`, or how many."""
        x, distance, rest = self._points(x), float(r), (float(p), float(eps))
        if return_length:
            return _ask("count", self, x, distance, *rest)
        found, counts = _ask("ball", self, x, distance, *rest, return_sorted)
        ends = counts.get().cumsum().tolist()
        return _cupy.array_split(found, ends)[: len(ends)]

    def query_ball_tree(self, other: Any, r: Any, p: float = 2.0, eps: float = 0.0) -> Any:
        """Return the indices of the points of another tree that are near each of this one."""
        return other.query_ball_point(self.data, r, p=p, eps=eps, return_sorted=True)

    def query_pairs(
        self, r: Any, p: float = 2.0, eps: float = 0, output_type: str = "ndarray"
    ) -> Any:
        """Return the pairs of points within a distance of each other."""
        if output_type == "set":
            warnings.warn(
                "output_type='set' is not supported by the GPU implementation of KDTree, "
                "resorting back to 'ndarray'.",
                stacklevel=2,
            )
        return _ask("pairs", self, float(r), float(p), float(eps))

    def count_neighbors(
        self, other: Any, r: Any, p: float = 2.0, weights: Any = None, cumulative: bool = True
    ) -> Any:
        """Refuse, as CuPy does."""
        raise NotImplementedError("count_neighbors is not available on CuPy")

    def sparse_distance_matrix(
        self, other: Any, max_distance: Any, p: float = 2.0, output_type: str = "coo_matrix"
    ) -> Any:
        """Return the distances to the points of another tree, zero beyond a distance."""
        if output_type not in {"coo_matrix", "ndarray"}:
            raise ValueError(
                "sparse_distance_matrix only supports 'coo_matrix' and 'ndarray' outputs"
            )
        made = distance_matrix(self.data, other.data, p)
        made[made > max_distance] = 0
        if output_type == "ndarray":
            return made
        sparse: Any = __import__("cupyx.scipy.sparse", fromlist=["coo_matrix"])
        return sparse.coo_matrix(made)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a KDTree is on a server, and is not pickled or copied")


class Delaunay(_Remote):
    """A triangulation of points in the plane; it is the worker's."""

    def __init__(self, points: Any, furthest_site: bool = False, incremental: bool = False) -> None:
        if points.shape[-1] != 2:
            raise ValueError("Delaunay only supports 2D inputs at the moment.")
        for given, name in ((furthest_site, "furthest_site"), (incremental, "incremental")):
            if given:
                raise ValueError(f"{name} argument is not supported by CuPy.")
        self.points = _cupy.asarray(points)
        made, self.simplices, self.neighbors = _ask("triangles", self.points)
        self._gp_handle, self._gp_session = made, _make.session_of(self.points)

    def find_simplex(self, xi: Any, bruteforce: bool = False, tol: Any = None) -> Any:
        """Return the triangle of each point, -1 outside."""
        del bruteforce  # without effect in CuPy too
        xi = _cupy.asarray(xi)
        if xi.shape[-1] != 2:
            raise ValueError("Delaunay only supports 2D inputs at the moment.")
        return _ask("simplex", self, xi, None if tol is None else float(tol))

    def vertex_neighbor_vertices(self) -> Any:
        """Return the neighbours of all points in one array, after where each point's begin."""
        return _ask("neighbours", self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Delaunay is on a server, and is not pickled or copied")


__getattr__ = _absent.lookup(__name__)
