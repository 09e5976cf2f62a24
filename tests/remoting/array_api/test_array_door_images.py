"""Functions of `cupyx.scipy.ndimage` by CuPy's conventions."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np
import pytest

scipy: Any = pytest.importorskip("scipy")

HOST = np.random.RandomState(5).rand(5, 6)
LABELS = np.random.RandomState(6).randint(0, 5, (5, 6))


@pytest.fixture
def ours(cp: Any) -> Any:
    del cp
    return importlib.import_module("cupyx.scipy.ndimage")


@pytest.mark.parametrize("name", ["erosion", "dilation", "opening", "closing"])
def test_a_structure_may_be_its_shape(cp: Any, ours: Any, name: str) -> None:
    """SciPy takes the shape for the structure itself, and says nothing where it has one axis."""
    function, wanted = getattr(ours, f"binary_{name}"), getattr(scipy.ndimage, f"binary_{name}")
    line, image = LABELS[0] > 0, LABELS > 1
    for host, structure, shape in (
        (line, (3,), (3,)),
        (line, 3, (3,)),
        (image, 2, (2, 2)),
        (image, (1, 3), (1, 3)),
    ):
        made = function(cp.asarray(host), structure)
        np.testing.assert_array_equal(made.get(), wanted(host, np.ones(shape)))
        made = function(cp.asarray(host), structure=structure)
        np.testing.assert_array_equal(made.get(), wanted(host, np.ones(shape)))
    made = function(cp.asarray(image), 3, axes=(1,))
    np.testing.assert_array_equal(made.get(), wanted(image, np.ones((1, 3))))


def test_an_image_in_texture_memory(cp: Any, ours: Any) -> None:
    host, matrix = HOST.astype("f4"), np.asarray([[1, 0, 0.25], [0, 1, -0.5], [0, 0, 1]], "f4")
    a, of = cp.asarray(host), cp.asarray(matrix)
    for order, mode, textures in ((0, "nearest", "nearest"), (1, "constant", "grid-constant")):
        made = ours.affine_transform(a, of, order=order, mode=mode, texture_memory=True)
        wanted = scipy.ndimage.affine_transform(host, matrix, order=order, mode=textures)
        assert made.dtype == np.float32
        np.testing.assert_allclose(made.get(), wanted)
    out = cp.zeros((5, 6), "f4")
    assert ours.affine_transform(a, of, output=out, order=1, texture_memory=True) is out
    assert float(abs(out).sum()) > 0
    with pytest.raises(ValueError, match="texture memory has"):
        ours.affine_transform(a.astype("f8"), of, texture_memory=True).get()
