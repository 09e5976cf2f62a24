"""Trees of points and triangulations: objects of the worker's library, and their queries.

The client holds a handle of each, with the arrays that it was made of. A real GPU has CuPy's
classes, an emulated one SciPy's.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extensions import NO_SCIPY

Operation = Callable[..., Any]
ATTRIBUTES = ("bounds", "boxsize", "index", "maxes", "mins", "tree")
"""Arrays of a tree of points."""
_INDEX_BYTES = 40
"""Bytes of one index in a list of Python, before it becomes an array."""


@dataclass(frozen=True, eq=False)
class _Tree:
    """A tree of points, only for its operations."""

    made: Any


@dataclass(frozen=True, eq=False)
class Triangles:
    """A triangulation, only for its operations."""

    made: Any


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"no object of cupyx.scipy.spatial, but {type(value).__name__}")
    return value.made


class Spatial:
    """The operations with CuPy's own classes."""

    package = "cupyx.scipy.spatial"
    lacking = "this CuPy lacks it"

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def table(self) -> dict[str, Operation]:
        """Return name to callable."""
        made: dict[str, Operation] = {
            "spatial.tree": lambda data, boxsize=None: _Tree(self.tree(data, boxsize)),
            "spatial.query": lambda tree, *args: self.query(_is(_Tree, tree), *args),
            "spatial.count": lambda tree, *args: self.count(_is(_Tree, tree), *args),
            "spatial.ball": lambda tree, *args: self.ball(_is(_Tree, tree), *args),
            "spatial.pairs": lambda tree, *args: self.pairs(_is(_Tree, tree), *args),
            "spatial.triangles": self._triangles,
            "spatial.simplex": lambda made, *args: self.simplex(_is(Triangles, made), *args),
            "spatial.neighbours": lambda made: self.neighbours(_is(Triangles, made)),
        }
        return made | {f"spatial.get.{name}": self._attribute(name) for name in ATTRIBUTES}

    def named(self, name: str) -> Any:
        """Return a class of the library."""
        try:
            return getattr(importlib.import_module(self.package), name)
        except (ImportError, AttributeError):
            raise UnsupportedError(f"cupyx.scipy.spatial.{name}: {self.lacking}") from None

    def _attribute(self, name: str) -> Operation:
        return lambda tree: self.attribute(_is(_Tree, tree), name)

    def _triangles(self, points: Any) -> Any:
        made = self.triangles(points)
        return [Triangles(made), *self.corners(made)]

    # --- trees ------------------------------------------------------------------------------------

    def tree(self, data: Any, boxsize: Any) -> Any:
        """Return a tree of the rows of a matrix; a box repeats in all directions."""
        return self.named("KDTree")(data, boxsize=boxsize)

    def attribute(self, tree: Any, name: str) -> Any:
        """Return an array of a tree."""
        return getattr(tree, name)

    def query(self, tree: Any, x: Any, k: Any, eps: float, p: float, bound: float) -> Any:
        """Return the distances and indices of the nearest points."""
        return tree.query(x, k, eps, p, bound)

    def count(self, tree: Any, x: Any, r: Any, p: float, eps: float) -> Any:
        """Return how many points are within a distance of each point of ``x``."""
        return tree.query_ball_point(x, r, p, eps, return_length=True)

    def ball(self, tree: Any, x: Any, r: Any, p: float, eps: float, order: Any) -> Any:
        """Return the indices of the points near each of ``x`` in one array, and their counts."""
        found = tree.query_ball_point(x, r, p, eps, order)
        cupy = self.backend.cupy
        counts = cupy.asarray([each.size for each in found], np.int64)
        return cupy.concatenate([cupy.zeros(0, np.int64), *found]), counts

    def pairs(self, tree: Any, r: Any, p: float, eps: float) -> Any:
        """Return the pairs of points within a distance of each other."""
        return tree.query_pairs(r, p, eps)

    # --- triangulations ---------------------------------------------------------------------------

    def triangles(self, points: Any) -> Any:
        """Return the triangulation of points in the plane."""
        return self.named("Delaunay")(points)

    def corners(self, made: Any) -> Any:
        """Return the corners of each triangle, and its neighbours."""
        return made.simplices, made.neighbors

    def simplex(self, made: Any, xi: Any, tol: Any) -> Any:
        """Return the triangle of each point of ``xi``, -1 outside."""
        return made.find_simplex(xi, tol=tol)

    def neighbours(self, made: Any) -> Any:
        """Return the neighbours of all points in one array, after where each point's begin."""
        return tuple(made.vertex_neighbor_vertices())


class EmulatedSpatial(Spatial):
    """The operations with SciPy's classes, with their memory accounted for."""

    package = "scipy.spatial"
    lacking = NO_SCIPY

    def tree(self, data: Any, boxsize: Any) -> Any:
        """Return a tree of a copy of the points: a client may change its own in place."""
        if data.ndim != 2:
            raise ValueError(f"a matrix of points, and not an array of shape {data.shape}")
        if boxsize is not None and data.dtype != np.float64:
            raise ValueError("periodic KDTree is only available on float64")
        kept = self.backend.adopt(np.array(data, np.float64))
        return self.named("KDTree")(kept, boxsize=boxsize)

    def attribute(self, tree: Any, name: str) -> Any:
        """Return an array of a tree; the nodes of a GPU's tree have another order."""
        if name in ("mins", "maxes"):
            return np.array(getattr(tree, name))
        if name == "boxsize":
            made = np.full(tree.m, np.inf)
            return made if tree.boxsize is None else made * 0 + tree.boxsize
        raise UnsupportedError(f"KDTree.{name}: an emulated GPU has SciPy's tree, without it")

    def query(self, tree: Any, x: Any, k: Any, eps: float, p: float, bound: float) -> Any:
        """Return the distances and indices of the nearest points."""
        most = max(k) if isinstance(k, list) else k
        self.backend.expect(16 * max(1, x.size // max(1, tree.m)) * most)
        distances, places = tree.query(x, k, eps, p, bound)
        shape = np.shape(distances) or (1,)  # one point's one neighbour is no number in CuPy
        return (
            np.ascontiguousarray(distances).reshape(shape),
            np.ascontiguousarray(places, np.int64).reshape(shape),
        )

    def count(self, tree: Any, x: Any, r: Any, p: float, eps: float) -> Any:
        """Return how many points are within a distance of each point of ``x``."""
        points = x.reshape(-1, x.shape[-1])
        return np.asarray(tree.query_ball_point(points, r, p, eps, return_length=True), np.int64)

    def ball(self, tree: Any, x: Any, r: Any, p: float, eps: float, order: Any) -> Any:
        """Return the indices of the points near each of ``x`` in one array, and their counts."""
        counts = self.count(tree, x, r, p, eps)
        self.backend.expect(_INDEX_BYTES * int(counts.sum()))
        points = x.reshape(-1, x.shape[-1])
        found = tree.query_ball_point(points, r, p, eps, return_sorted=order is None or bool(order))
        parts = [np.asarray(each, np.int64) for each in found]
        return np.concatenate([np.zeros(0, np.int64), *parts]), counts

    def pairs(self, tree: Any, r: Any, p: float, eps: float) -> Any:
        """Return the pairs of points within a distance of each other, in the order of indices."""
        self.backend.expect(16 * int(tree.count_neighbors(tree, r, p)))
        made = tree.query_pairs(r, p, eps, output_type="ndarray").astype(np.int64)
        return made[np.lexsort((made[:, 1], made[:, 0]))]

    def triangles(self, points: Any) -> Any:
        """Return the triangulation of a copy of the points."""
        if points.ndim != 2 or points.shape[1] != 2:
            raise ValueError("Delaunay only supports 2D inputs at the moment.")
        kept = self.backend.adopt(np.array(points, np.float64))
        try:
            return self.named("Delaunay")(kept)
        except RuntimeError as error:  # Qhull's, whose class only SciPy has
            raise ValueError(f"the points have no triangulation: {error}".split("\n")[0]) from error

    def corners(self, made: Any) -> Any:
        """Return copies: SciPy's compiled code goes where the arrays say."""
        return made.simplices.copy(), made.neighbors.copy()

    def simplex(self, made: Any, xi: Any, tol: Any) -> Any:
        """Return the triangle of each point of ``xi``, -1 outside."""
        return made.find_simplex(xi, tol=tol)

    def neighbours(self, made: Any) -> Any:
        """Return copies of the neighbours of all points."""
        return tuple([np.array(each) for each in made.vertex_neighbor_vertices])


def real_spatial(backend: Any) -> dict[str, Operation]:
    """Return the operations of a real GPU."""
    return Spatial(backend).table()


def emulated_spatial(backend: Any) -> dict[str, Operation]:
    """Return the operations of an emulated GPU."""
    return EmulatedSpatial(backend).table()
