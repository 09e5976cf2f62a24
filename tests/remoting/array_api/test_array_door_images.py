"""Functions of `cupyx.scipy.ndimage` that take a function or a kernel, beside SciPy's."""

import functools
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import close, cupyx, refused

theirs: Any = pytest.importorskip("scipy.ndimage")

HOST = np.random.RandomState(5).rand(5, 6)
LABELS = np.random.RandomState(6).randint(0, 5, (5, 6))
MODES = ["reflect", "constant", "nearest", "mirror", "wrap"]
needs_compiler = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="needs a compiler")
_MEAN = """extern "C" __global__ void mean(const double *x, int n, double *y) {
  double sum = 0;
  for (int i = 0; i < n; ++i) { sum += x[i] * (i + 1); }
  y[0] = sum / n;
}"""
_SHIFT = """extern "C" __global__
void shift(double *in, ptrdiff_t n, double *out, ptrdiff_t m) {
  for (int i = 0; i < m; ++i) { out[i] = in[i] - in[n - 1]; }
}"""


@pytest.fixture
def ours(cp: Any) -> Any:
    del cp
    return cupyx("scipy.ndimage")


def mean(window: Any) -> Any:
    return (window * (np.arange(len(window)) + 1)).sum() / len(window)


def raw(cp: Any) -> Any:
    return cp.RawKernel(_MEAN, "mean")


# --- generic filters ------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("mode", MODES)
def test_a_raw_kernel_is_applied_to_each_window(cp: Any, ours: Any, mode: str) -> None:
    footprint = np.asarray([[0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1]], bool)
    for keywords in (
        {"size": 3, "cval": 2.5},
        {"size": (9, 2), "origin": (-2, 0), "cval": -1},
        {"footprint": footprint, "origin": (1, -1)},
    ):
        made = ours.generic_filter(cp.asarray(HOST), raw(cp), mode=mode, **keywords)
        close(made, theirs.generic_filter(HOST, mean, mode=mode, **keywords))


@needs_compiler
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f4", "f8"])
def test_a_reduction_is_applied_to_each_window(cp: Any, ours: Any, dtype: str) -> None:
    kernel = cp.ReductionKernel("T x", "U y", "x >= 1", "a + b", "y = a", "0", "large", "int")
    host = (HOST * 9).astype(dtype)
    made = ours.generic_filter(cp.asarray(host), kernel, (3, 4), output=np.float64)
    assert made.dtype == np.float64
    close(made, theirs.generic_filter(host, lambda x: (x >= 1).sum(), (3, 4), output="d"))


@needs_compiler
def test_a_generic_filter_may_write_its_input_and_filters_only_some_axes(
    cp: Any, ours: Any
) -> None:
    kernel = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")
    a, into = cp.asarray(HOST), cp.zeros((5, 6), np.uint8)
    assert ours.generic_filter(a, kernel, 3, output=a) is a
    close(a, theirs.generic_filter(HOST, np.sum, 3))
    a = cp.asarray(HOST)
    made = ours.generic_filter(a, kernel, (3,), axes=-1, mode="mirror", origin=1)
    close(made, theirs.generic_filter(HOST, np.sum, (1, 3), mode="mirror", origin=(0, 1)))
    assert ours.generic_filter(a * -3, kernel, 3, output=into) is into
    close(into, theirs.generic_filter(HOST * -3, np.sum, 3, output="B"))
    assert ours.generic_filter(cp.zeros((0, 3)), kernel, 3).shape == (0, 3)


@needs_compiler
@pytest.mark.parametrize("mode", MODES)
def test_a_raw_kernel_is_applied_to_each_line(cp: Any, ours: Any, mode: str) -> None:
    def shift(source: Any, target: Any) -> None:
        target[:] = source[: target.size] - source[-1]

    kernel, a = cp.RawKernel(_SHIFT, "shift"), cp.asarray(HOST)
    for axis, size, origin in ((-1, 3, 0), (0, 8, 2), (1, 13, -3)):
        keywords: Any = {"axis": axis, "mode": mode, "cval": 1.5, "origin": origin}
        made = ours.generic_filter1d(a, kernel, size, **keywords)
        close(made, theirs.generic_filter1d(HOST, shift, size, **keywords))
    into = cp.zeros((5, 6), "i4", order="F")
    assert ours.generic_filter1d(a * 9, kernel, 3, output=into) is into
    close(into, theirs.generic_filter1d(HOST * 9, shift, 3, output="i4"))


def test_a_generic_filter_refuses_what_cupy_refuses(cp: Any, ours: Any) -> None:
    a, kernel = cp.asarray(HOST), raw(cp)
    own = cp.ReductionKernel("T x", "T y", "_raw_x[0] - x", "a + b", "y = a", "0", "own")
    element = cp.ElementwiseKernel("T x", "T y", "y = x", "same")
    two = cp.ReductionKernel("T x, T z", "T y", "x * z", "a + b", "y = a", "0", "two")
    of, line, mean_of, total = ours.generic_filter, ours.generic_filter1d, np.mean, np.sum
    refused(
        (TypeError, "bad function type", lambda: of(a, mean_of, 3)),
        (TypeError, "only ReductionKernel", lambda: of(a, element, 3)),
        (TypeError, "1 input and output", lambda: of(a, two, 3)),
        (TypeError, "Complex", lambda: of(a * 1j, kernel, 3)),
        (NotImplementedError, "RawKernel", lambda: of(a, own, 3)),
        (RuntimeError, "no footprint", lambda: of(a, kernel)),
        (RuntimeError, "length equal", lambda: of(a, kernel, (3, 3, 3))),
        (RuntimeError, "shape", lambda: of(a, kernel, footprint=np.ones(3))),
        (ValueError, "all-zero", lambda: of(a, kernel, footprint=[[0]])),
        (ValueError, "origin", lambda: of(a, kernel, 3, origin=2)),
        (RuntimeError, "boundary", lambda: of(a, kernel, 3, mode="odd")),
        (RuntimeError, "shape", lambda: of(a, kernel, 3, output=cp.ones(2))),
        (TypeError, "extra_arg", lambda: of(a, kernel, 3, extra_arguments=(1,))),
        (TypeError, "bad function type", lambda: line(a, total, 3)),
        (TypeError, "Complex", lambda: line(a * 1j, kernel, 3)),
        (RuntimeError, "filter size", lambda: line(a, kernel, 0)),
        (cp.exceptions.AxisError, "", lambda: line(a, kernel, 3, axis=2)),
    )


# --- functions of the program ---------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, 2, [1, 3], [4, 9, 1]])
def test_a_function_is_called_for_each_label(cp: Any, ours: Any, index: Any) -> None:
    def total(x: Any, positions: Any) -> Any:
        return (x * positions).sum()

    of, rest = ours.labeled_comprehension, (total, np.float64, -1.0, True)
    made = of(cp.asarray(HOST), cp.asarray(LABELS), index, *rest)
    close(made, theirs.labeled_comprehension(HOST, LABELS, index, *rest))
    refused((ValueError, "same shape", lambda: of(cp.asarray(HOST), cp.ones(2, int), 1, *rest)))


def test_values_on_one_axis_have_one_index(cp: Any, ours: Any) -> None:
    a = cp.asarray([1, 0, 1])
    assert [place.tolist() for place in ours.value_indices(a)[1]] == [[0, 2]]
    assert [place.tolist() for place in cp.unravel_index(a, 3)] == [[1, 0, 1]]


# --- conventions of CuPy --------------------------------------------------------------------------


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
    refused(
        (ValueError, "", lambda: transform(a.astype("f8"), of).get()),
        (ValueError, "", lambda: transform(a, of[:2]).get()),
        (ValueError, "", lambda: transform(a, of, mode="mirror").get()),
        (ValueError, "", lambda: transform(a, of, output="f8").get()),
        (ValueError, "", lambda: transform(a[0], cp.eye(2, dtype="f4")).get()),
    )


@pytest.mark.parametrize("ignore_value", [None, 0, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_places_of_each_value(cp: Any, ours: Any, ignore_value: Any, adaptive: bool) -> None:
    of = ours.value_indices
    made = of(cp.asarray(LABELS), ignore_value=ignore_value, adaptive_index_dtype=adaptive)
    wanted = theirs.value_indices(LABELS, ignore_value=ignore_value)
    assert list(made) == sorted(wanted)
    for value, places in wanted.items():
        close(made[value], places)
        assert made[value][0].dtype == (np.int8 if adaptive else np.int64)
    assert of(cp.zeros((0,), int)) == {}
    refused(
        (ValueError, "integer array", lambda: of(cp.ones(3))),
        (ValueError, "negative", lambda: of(cp.asarray([-1, 2]))),
    )
