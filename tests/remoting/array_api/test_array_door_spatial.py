"""`cupyx.scipy.spatial`: distances, trees and triangulations of the worker, beside SciPy's."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
import importlib
import json
from typing import Any

import door_kit
import numpy as np
import pytest

from gpupool.remoting.devices.geometry import distances

scipy: Any = pytest.importorskip("scipy")

POINTS = np.random.RandomState(4).rand(80, 3)
OTHERS = np.random.RandomState(5).rand(7, 3)
PLANE = np.random.RandomState(6).rand(40, 2)


@pytest.fixture
def ours(cp: Any) -> Any:
    del cp
    return importlib.import_module("cupyx.scipy.spatial")


@pytest.mark.parametrize("metric", [each for each in distances.METRICS if each[0] not in "hjkr"])
def test_distances_are_those_of_scipy_in_the_type_of_the_points(
    cp: Any, ours: Any, metric: str
) -> None:
    made = ours.distance.cdist(cp.asarray(POINTS), cp.asarray(OTHERS), metric)
    wanted = scipy.spatial.distance.cdist(POINTS, OTHERS, metric)
    np.testing.assert_allclose(made.get(), wanted, rtol=1e-12)
    single = ours.distance.cdist(*(cp.asarray(each, "f4") for each in (POINTS, OTHERS)), metric)
    assert single.dtype == np.float32
    rest = {"p": 2.0} if metric == "minkowski" else {}
    row = getattr(ours.distance, metric)(cp.asarray(POINTS[:1]), cp.asarray(OTHERS[:1]), **rest)
    assert row.shape == ()
    np.testing.assert_allclose(float(row), wanted[0, 0], rtol=1e-12)


def test_distances_of_other_metrics(cp: Any, ours: Any) -> None:
    whole = np.random.RandomState(7).randint(0, 2, (6, 9)).astype(float)
    for metric, rows in (("hamming", whole), ("russellrao", whole)):
        host = rows.astype(bool) if metric == "russellrao" else rows
        made = ours.distance.pdist(cp.asarray(rows), metric).get()
        np.testing.assert_allclose(made, scipy.spatial.distance.pdist(host, metric), rtol=1e-9)
    with pytest.raises(NotImplementedError, match="hellinger"):
        ours.distance.cdist(cp.asarray(POINTS), cp.asarray(POINTS), "hellinger")
    with pytest.raises(ValueError, match="Unknown Distance"):
        ours.distance.cdist(cp.asarray(POINTS), cp.asarray(POINTS), "far")
    with pytest.raises(ValueError, match="layout"):
        ours.distance.cdist(cp.asarray(POINTS), cp.asarray(POINTS, order="F"))
    with pytest.raises(ValueError, match="columns"):
        ours.distance.cdist(cp.asarray(POINTS), cp.asarray(PLANE))


def test_distances_are_written_where_the_program_says(cp: Any, ours: Any) -> None:
    a, out = cp.asarray(POINTS[:4]), cp.zeros((4, 4))
    assert ours.distance.cdist(a, a, out=out) is out
    condensed = ours.distance.pdist(a, out=out)
    np.testing.assert_allclose(condensed.get(), scipy.spatial.distance.pdist(POINTS[:4]))
    np.testing.assert_allclose(out.get(), scipy.spatial.distance.cdist(POINTS[:4], POINTS[:4]))
    made = ours.distance_matrix(a, a, 3)
    far = scipy.spatial.distance.cdist(POINTS[:4], POINTS[:4], "minkowski", p=3)
    np.testing.assert_allclose(made.get(), far)


@pytest.mark.parametrize("k", [1, 3, [1, 4], [2], 100])
@pytest.mark.parametrize("shape", [(7, 3), (3,), (2, 2, 3)])
def test_nearest_points_are_those_of_scipy(cp: Any, ours: Any, k: Any, shape: Any) -> None:
    x = np.random.RandomState(8).rand(*shape)
    tree, reference = ours.KDTree(cp.asarray(POINTS)), scipy.spatial.KDTree(POINTS)
    made = tree.query(cp.asarray(x), k, p=1)
    for one, other in zip(made, reference.query(x, k, p=1), strict=True):
        assert one.shape == (np.shape(other) or (1,))
        np.testing.assert_allclose(one.get(), np.reshape(other, one.shape))


def test_a_tree_finds_what_is_near(cp: Any, ours: Any) -> None:
    tree, reference = ours.KDTree(cp.asarray(POINTS)), scipy.spatial.KDTree(POINTS)
    near = tree.query_ball_point(cp.asarray(OTHERS), 0.4)
    wanted = reference.query_ball_point(OTHERS, 0.4, return_sorted=True)
    assert [each.tolist() for each in near] == [list(each) for each in wanted]
    counts = tree.query_ball_point(cp.asarray(OTHERS), 0.4, return_length=True)
    assert counts.tolist() == [len(each) for each in wanted]
    pairs = {tuple(pair) for pair in tree.query_pairs(0.2).tolist()}
    assert pairs == reference.query_pairs(0.2)
    other = ours.KDTree(cp.asarray(OTHERS))
    both = tree.query_ball_tree(other, 0.3)
    wanted = reference.query_ball_tree(scipy.spatial.KDTree(OTHERS), 0.3)
    assert [each.tolist() for each in both] == [sorted(each) for each in wanted]
    far = tree.sparse_distance_matrix(other, 0.3)
    wanted = reference.sparse_distance_matrix(scipy.spatial.KDTree(OTHERS), 0.3)
    np.testing.assert_allclose(far.toarray().get(), wanted.toarray())
    np.testing.assert_allclose(tree.mins.get(), POINTS.min(axis=0))
    assert np.isinf(tree.boxsize.get()).all()


def test_no_points_and_far_too_many(cp: Any, ours: Any) -> None:
    tree = ours.KDTree(cp.asarray(POINTS))
    assert tree.query_ball_point(cp.zeros((0, 3)), 0.4) == []
    assert tree.query(cp.zeros((0, 3)), 2)[1].shape == (0, 2)
    assert [each.size for each in tree.query_ball_point(cp.asarray(OTHERS) + 9, 0.4)] == [0] * 7
    assert tree.query_pairs(1e-9).shape == (0, 2)
    rows = cp.zeros((1 << 16, 1))
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match="distances"):
        ours.distance.cdist(rows, rows).sum().get()


def test_a_tree_of_a_box_and_wrong_arguments(cp: Any, ours: Any) -> None:
    tree = ours.KDTree(cp.asarray(POINTS), boxsize=1.0)
    wanted = scipy.spatial.KDTree(POINTS, boxsize=1.0).query(OTHERS + 1, 2)
    for one, other in zip(tree.query(cp.asarray(OTHERS + 1), 2), wanted, strict=True):
        np.testing.assert_allclose(one.get(), other)
    with pytest.raises(ValueError, match="box"):
        ours.KDTree(cp.asarray(POINTS) + 1, boxsize=1.0)
    with pytest.raises(ValueError, match="k must be"):
        tree.query(cp.asarray(OTHERS), k=None)
    with pytest.raises(ValueError, match="k must be"):
        tree.query(cp.asarray(OTHERS), k=0)
    with pytest.raises(ValueError, match="3"):
        tree.query(cp.asarray(PLANE))
    with pytest.raises(NotImplementedError, match="emulated GPU"):
        tree.index.get()
    with pytest.raises(TypeError, match="pickled"):
        copy.copy(tree)


def test_a_tree_does_not_follow_changes_of_its_points(cp: Any, ours: Any) -> None:
    points = cp.asarray(POINTS)
    tree = ours.KDTree(points)
    points[...] = 9
    distance, _ = tree.query(cp.asarray(POINTS[:3]))
    np.testing.assert_allclose(distance.get(), 0)


def test_a_triangulation_is_that_of_scipy(cp: Any, ours: Any) -> None:
    made, reference = ours.Delaunay(cp.asarray(PLANE)), scipy.spatial.Delaunay(PLANE)
    assert made.simplices.dtype == np.int32
    assert made.simplices.tolist() == reference.simplices.tolist()
    assert made.neighbors.tolist() == reference.neighbors.tolist()
    inner = np.asarray([[0.5, 0.5], [0.4, 0.6], [9.0, 9.0]])
    made.neighbors[...] = 1 << 30  # what the worker follows are its own
    found = made.find_simplex(cp.asarray(inner))
    assert found.tolist() == reference.find_simplex(inner).tolist()
    for one, other in zip(
        made.vertex_neighbor_vertices(), reference.vertex_neighbor_vertices, strict=True
    ):
        assert one.tolist() == other.tolist()
    with pytest.raises(ValueError, match="2D"):
        ours.Delaunay(cp.asarray(POINTS))
    with pytest.raises(ValueError, match="no triangulation"):
        ours.Delaunay(cp.zeros((3, 2)))


def test_a_triangulation_takes_the_place_of_points(cp: Any, ours: Any) -> None:
    interpolate: Any = importlib.import_module("cupyx.scipy.interpolate")
    values = cp.asarray(PLANE[:, 0])
    made = interpolate.LinearNDInterpolator(ours.Delaunay(cp.asarray(PLANE)), values)
    np.testing.assert_allclose(made(cp.asarray([[0.5, 0.5]])).get(), [0.5])


def test_more_neighbours_than_there_is_memory_are_refused(cp: Any, ours: Any) -> None:
    tree = ours.KDTree(cp.zeros((9000, 2)))
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        tree.query(cp.zeros((1000, 2)), 1 << 20)[0].get()
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        tree.query_ball_point(cp.zeros((9000, 2)), 1.0)


def test_both_ends_have_the_same_names() -> None:
    found = json.loads((door_kit.DROPIN.parent / "missing_names.json").read_text())
    lacking = {each for each in found["missing"] if each.startswith("cupyx.scipy.spatial")}
    prefix = "cupyx.scipy.spatial."
    assert lacking == {
        f"{prefix}delaunay_2d",
        *(f"{prefix}distance.{name}" for name in ("MetricInfo", "check_soft_dependencies")),
        *(f"{prefix}distance.{name}" for name in ("cuvs_available", "pylibraft_available")),
    }
