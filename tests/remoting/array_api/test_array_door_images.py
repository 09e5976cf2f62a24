"""Functions of `cupyx.scipy.ndimage` by CuPy's conventions."""

import functools
from typing import Any

import numpy as np
import pytest
from door_cases import close, package, refused

theirs: Any = pytest.importorskip("scipy.ndimage")
ours = package("scipy.ndimage")

HOST = np.random.RandomState(5).rand(5, 6)
LABELS = np.random.RandomState(6).randint(0, 5, (5, 6))


@pytest.mark.parametrize("name", ["erosion", "dilation", "opening", "closing"])
def test_a_structure_may_be_its_shape(cp: Any, ours: Any, name: str) -> None:
    """SciPy takes the shape for the structure itself, and says nothing where it has one axis."""
    function, wanted = getattr(ours, f"binary_{name}"), getattr(theirs, f"binary_{name}")
    line, image = LABELS[0] > 0, LABELS > 1
    for host, structure, shape in (
        (line, (3,), (3,)),
        (line, 3, (3,)),
        (image, 2, (2, 2)),
        (image, (1, 3), (1, 3)),
    ):
        a = cp.asarray(host)
        for made in (function(a, structure), function(a, structure=structure)):
            close(made, wanted(host, np.ones(shape)))
    close(function(cp.asarray(image), 3, axes=(1,)), wanted(image, np.ones((1, 3))))


def test_an_image_in_texture_memory(cp: Any, ours: Any) -> None:
    host, matrix = HOST.astype("f4"), np.asarray([[1, 0, 0.25], [0, 1, -0.5], [0, 0, 1]], "f4")
    a, of = cp.asarray(host), cp.asarray(matrix)
    transform = functools.partial(ours.affine_transform, texture_memory=True)
    for order, mode, textures in ((0, "nearest", "nearest"), (1, "constant", "grid-constant")):
        made = transform(a, of, order=order, mode=mode)
        assert made.dtype == np.float32
        close(made, theirs.affine_transform(host, matrix, order=order, mode=textures))
    out = cp.zeros((5, 6), "f4")
    assert transform(a, of, output=out, order=1) is out
    assert float(abs(out).sum()) > 0
    refused((ValueError, "texture memory has", lambda: transform(a.astype("f8"), of).get()))


def test_the_places_of_each_value(cp: Any, ours: Any) -> None:
    made = ours.value_indices(cp.asarray(LABELS), ignore_value=3, adaptive_index_dtype=True)
    wanted = theirs.value_indices(LABELS, ignore_value=3)
    assert list(made) == sorted(wanted)
    for value, places in wanted.items():
        assert [place.tolist() for place in made[value]] == [at.tolist() for at in places]
        assert made[value][0].dtype == np.int8
    assert ours.value_indices(cp.zeros((0,), int)) == {}
