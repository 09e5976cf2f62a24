"""Points in space: distances, trees that find the nearest ones, triangulations of the plane."""

from __future__ import annotations

from typing import Any

import cupy as _cupy
from cupy._door import absent as _absent

from cupyx import _objects
from cupyx.scipy.spatial import distance as distance

distance_matrix = vars(distance)["distance_matrix"]


class KDTree(_objects.RemoteObject):
    """A tree of points that finds those near others; it is the worker's."""

    def __init__(self, data: object, *args: object, **kwargs: object) -> None:
        self.data = _cupy.asarray(data)
        self.n, self.m = self.data.shape
        super().__init__(self.data, *args, **kwargs)

    def query_ball_point(self, x: object, *args: object, **kwargs: object) -> Any:
        """Return the indices of the points within a distance of each of `x`, or how many."""
        made = self._ask("query_ball_point", x, *args, **kwargs)
        if not isinstance(made, tuple):
            return made
        found, counts = made
        ends = counts.get().cumsum().tolist()
        return _cupy.array_split(found, ends)[: len(ends)]

    def query_ball_tree(self, other: Any, r: Any, p: float = 2.0, eps: float = 0.0) -> Any:
        """Return the indices of the points of another tree that are near each of this one."""
        return other.query_ball_point(self.data, r, p=p, eps=eps, return_sorted=True)


class Delaunay(_objects.RemoteObject):
    """A triangulation of points in the plane; it is the worker's."""

    def __init__(self, points: object, *args: object, **kwargs: object) -> None:
        self.points = _cupy.asarray(points)
        super().__init__(self.points, *args, **kwargs)


_objects.fill(globals(), "spatial")
__getattr__ = _absent.lookup(__name__)
