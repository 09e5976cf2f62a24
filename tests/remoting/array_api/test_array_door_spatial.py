"""`cupyx.scipy.spatial`: distances, trees and triangulations of the worker, beside SciPy's."""

import copy
from typing import Any

import numpy as np
import pytest
from door_cases import close, cupyx, package, refused

from gpupool.remoting.devices.geometry import distances

scipy: Any = pytest.importorskip("scipy")
ours = package("scipy.spatial")
cdist, pdist = scipy.spatial.distance.cdist, scipy.spatial.distance.pdist

POINTS = np.random.RandomState(4).rand(80, 3)
OTHERS = np.random.RandomState(5).rand(7, 3)
PLANE = np.random.RandomState(6).rand(40, 2)


@pytest.mark.parametrize("metric", [each for each in distances.METRICS if each[0] not in "hjkr"])
def test_distances_are_those_of_scipy_in_the_type_of_the_points(
    cp: Any, ours: Any, metric: str
) -> None:
    wanted = cdist(POINTS, OTHERS, metric)
    points, others = cp.asarray(POINTS), cp.asarray(OTHERS)
    close(ours.distance.cdist(points, others, metric), wanted)
    single = ours.distance.cdist(points.astype("f4"), others.astype("f4"), metric)
    assert single.dtype == np.float32
    rest = {"p": 2.0} if metric == "minkowski" else {}
    close(getattr(ours.distance, metric)(points[:1], others[:1], **rest), wanted[0, 0])


def test_distances_of_other_metrics(cp: Any, ours: Any) -> None:
    whole = np.random.RandomState(7).randint(0, 2, (6, 9)).astype(float)
    for metric, rows in (("hamming", whole), ("russellrao", whole)):
        host = rows.astype(bool) if metric == "russellrao" else rows
        close(ours.distance.pdist(cp.asarray(rows), metric), pdist(host, metric))
    a, rows, of = cp.asarray(POINTS), cp.zeros((1 << 16, 1)), ours.distance.cdist
    far = cp.cuda.memory.OutOfMemoryError
    refused(
        (NotImplementedError, "hellinger", lambda: of(a, a, "hellinger")),
        (ValueError, "Unknown Distance", lambda: of(a, a, "far")),
        (ValueError, "layout", lambda: of(a, cp.asfortranarray(a))),
        (ValueError, "columns", lambda: of(a, cp.asarray(PLANE))),
        (far, "distances", lambda: of(rows, rows).sum().get()),
    )


def test_distances_are_written_where_the_program_says(cp: Any, ours: Any) -> None:
    a, out = cp.asarray(POINTS[:4]), cp.zeros((4, 4))
    assert ours.distance.cdist(a, a, out=out) is out
    close(ours.distance.pdist(a, out=out), pdist(POINTS[:4]))
    close(out, cdist(POINTS[:4], POINTS[:4]))
    close(ours.distance_matrix(a, a, 3), cdist(POINTS[:4], POINTS[:4], "minkowski", p=3))


@pytest.mark.parametrize("k", [1, 3, [1, 4], [2], 100])
@pytest.mark.parametrize("shape", [(7, 3), (3,), (2, 2, 3)])
def test_nearest_points_are_those_of_scipy(cp: Any, ours: Any, k: Any, shape: Any) -> None:
    x = np.random.RandomState(8).rand(*shape)
    made = ours.KDTree(cp.asarray(POINTS)).query(cp.asarray(x), k, p=1)
    for one, other in zip(made, scipy.spatial.KDTree(POINTS).query(x, k, p=1), strict=True):
        close(one, np.reshape(other, np.shape(other) or (1,)))


def test_a_tree_finds_what_is_near(cp: Any, ours: Any) -> None:
    tree, reference = ours.KDTree(cp.asarray(POINTS)), scipy.spatial.KDTree(POINTS)
    other, theirs = ours.KDTree(cp.asarray(OTHERS)), scipy.spatial.KDTree(OTHERS)
    wanted = [list(each) for each in reference.query_ball_point(OTHERS, 0.4, return_sorted=True)]
    near = tree.query_ball_point(cp.asarray(OTHERS), 0.4)
    assert [each.tolist() for each in near] == wanted
    counts = tree.query_ball_point(cp.asarray(OTHERS), 0.4, return_length=True)
    assert counts.tolist() == [len(each) for each in wanted]
    assert {tuple(pair) for pair in tree.query_pairs(0.2).tolist()} == reference.query_pairs(0.2)
    both = [sorted(each) for each in reference.query_ball_tree(theirs, 0.3)]
    assert [each.tolist() for each in tree.query_ball_tree(other, 0.3)] == both
    far = reference.sparse_distance_matrix(theirs, 0.3)
    close(tree.sparse_distance_matrix(other, 0.3).toarray(), far.toarray())
    close(tree.mins, POINTS.min(axis=0))
    assert np.isinf(tree.boxsize.get()).all()
    points = cp.asarray(POINTS)
    tree = ours.KDTree(points)
    points[...] = 9  # a tree does not follow changes of its points
    close(tree.query(cp.asarray(POINTS[:3]))[0], np.zeros(3))


def test_no_points_and_far_too_many(cp: Any, ours: Any) -> None:
    tree, many = ours.KDTree(cp.asarray(POINTS)), ours.KDTree(cp.zeros((9000, 2)))
    assert tree.query_ball_point(cp.zeros((0, 3)), 0.4) == []
    assert tree.query(cp.zeros((0, 3)), 2)[1].shape == (0, 2)
    assert [each.size for each in tree.query_ball_point(cp.asarray(OTHERS) + 9, 0.4)] == [0] * 7
    assert tree.query_pairs(1e-9).shape == (0, 2)
    far = cp.cuda.memory.OutOfMemoryError
    refused(
        (far, "", lambda: many.query(cp.zeros((1000, 2)), 1 << 20)[0].get()),
        (far, "", lambda: many.query_ball_point(cp.zeros((9000, 2)), 1.0)),
    )


def test_a_tree_of_a_box_and_wrong_arguments(cp: Any, ours: Any) -> None:
    tree, others = ours.KDTree(cp.asarray(POINTS), boxsize=1.0), cp.asarray(OTHERS)
    close(tree.query(others + 1, 2), scipy.spatial.KDTree(POINTS, boxsize=1.0).query(OTHERS + 1, 2))
    refused(
        (ValueError, "box", lambda: ours.KDTree(cp.asarray(POINTS) + 1, boxsize=1.0)),
        *[(ValueError, "k must be", lambda k=k: tree.query(others, k=k)) for k in (None, 0)],
        (ValueError, "3", lambda: tree.query(cp.asarray(PLANE))),
        (NotImplementedError, "emulated GPU", lambda: tree.index.get()),
        (TypeError, "pickled", lambda: copy.copy(tree)),
    )


def test_a_triangulation_is_that_of_scipy(cp: Any, ours: Any) -> None:
    made, reference = ours.Delaunay(cp.asarray(PLANE)), scipy.spatial.Delaunay(PLANE)
    assert made.simplices.dtype == np.int32
    assert made.simplices.tolist() == reference.simplices.tolist()
    assert made.neighbors.tolist() == reference.neighbors.tolist()
    inner = np.asarray([[0.5, 0.5], [0.4, 0.6], [9.0, 9.0]])
    made.neighbors[...] = 1 << 30  # what the worker follows are its own
    assert made.find_simplex(cp.asarray(inner)).tolist() == reference.find_simplex(inner).tolist()
    close(made.vertex_neighbor_vertices(), reference.vertex_neighbor_vertices)
    refused(
        (ValueError, "2D", lambda: ours.Delaunay(cp.asarray(POINTS))),
        (ValueError, "no triangulation", lambda: ours.Delaunay(cp.zeros((3, 2)))),
    )
    linear, values = cupyx("scipy.interpolate").LinearNDInterpolator, cp.asarray(PLANE[:, 0])
    close(linear(made, values)(cp.asarray([[0.5, 0.5]])), np.array([0.5]))
