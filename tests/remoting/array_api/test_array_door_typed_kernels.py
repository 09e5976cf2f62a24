"""Elementwise and reduction kernels: their arguments by CuPy's rules, and their results."""

from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import refused

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def mixed(cp: Any) -> Any:
    """Return a kernel with two outputs, a number, and a raw array; compiled once."""
    return cp.ElementwiseKernel(
        "T x, T y, raw T table, float32 scale",
        "T sum, U place",
        "if (x < 0) return;\n sum = x + twice(y) * scale + table[i % table.size()]; place = i;",
        "mixed",
        preamble="template <class T> __device__ T twice(T x) { return 2 * x; }",
    )


LAYOUTS: list[Any] = [
    lambda cp, a: a,
    lambda cp, a: a.T,
    lambda cp, a: a[::2, ::-1],
    lambda cp, a: a[:, 1],
    lambda cp, a: cp.asfortranarray(a),
    lambda cp, a: a[:0],
    lambda cp, a: a[1, 2],
    lambda cp, a: a.reshape(2, 2, 5, 1),
    lambda cp, a: cp.broadcast_to(a[0], (7, 5)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_broadcasting(cp: Any, mixed: Any, layout: Any) -> None:
    x = layout(cp, cp.arange(20.0).reshape(4, 5))
    y = cp.arange(float(x.shape[-1] if x.ndim else 1))
    table = cp.array([100.0, 200, 300])[::2]
    place = cp.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=cp.int16)
    total = cp.zeros_like(place, dtype=float)
    assert isinstance(mixed(x, y, table, 0.5, total, place), tuple)
    there = np.broadcast_arrays(x.get(), y.get())[0]
    index = np.arange(there.size).reshape(there.shape)
    assert np.array_equal(place.get(), index)
    assert np.array_equal(total.get(), there + y.get() + np.array([100.0, 300])[index % 2])


def test_a_thread_that_returns_ends_its_own_element(cp: Any, mixed: Any) -> None:
    x = cp.array([1.0, -1, 2])
    total, place = cp.zeros(3), cp.full(3, 9, dtype=cp.int16)
    mixed(x, cp.zeros(3), cp.zeros(1), 1, total, place)
    assert total.get().tolist() == [1, 0, 2]
    assert place.get().tolist() == [0, 9, 2]


@pytest.fixture(scope="module")
def weighted(cp: Any) -> Any:
    """Return a reduction with two inputs and its own type; compiled once."""
    texts = ("T x, T weight", "T total", "x * weight + _J", "a + b", "total = (T)a", "0")
    return cp.ReductionKernel(*texts, "weighted", reduce_type="double")


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (2, 1), (0, 1, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes_of_a_reduction(cp: Any, weighted: Any, axis: Any, keepdims: bool) -> None:
    x = cp.arange(2 * 3 * 4, dtype=cp.float32).reshape(2, 3, 4).transpose(1, 0, 2)
    made = weighted(x, cp.float32(2), axis=axis, keepdims=keepdims)
    over = tuple(range(3)) if axis is None else axis
    wanted = (x.get() * 2).sum(axis=over, keepdims=keepdims)
    count = x.size // max(1, wanted.size)
    assert made.dtype == np.float32
    assert made.shape == wanted.shape
    assert np.array_equal(made.get(), wanted + count * (count - 1) // 2)
    out = cp.zeros((2, *wanted.shape), dtype=cp.float32).T[..., 0].T
    weighted(x, cp.float32(2), out=out, axis=axis, keepdims=keepdims)
    assert np.array_equal(out.get(), made.get())


def test_a_reduction_of_nothing_is_its_identity(cp: Any, weighted: Any) -> None:
    x = cp.zeros((0, 3), dtype=cp.float32)
    assert weighted(x, x, axis=0).get().tolist() == [0, 0, 0]
    assert weighted(x, x, axis=1).shape == (0,)
    kernel = cp.ReductionKernel("T x", "T y", "x", "max(a, b)", "y = a", None, "largest")
    with pytest.raises(ValueError, match="reduction operation largest which has no identity"):
        kernel(x)


def test_errors_of_a_call_are_cupys(cp: Any) -> None:
    x = cp.zeros((3, 4), dtype=cp.float32)
    kernel = cp.ElementwiseKernel("T x, float32 y", "T z", "z = x", "named")
    made, wide = cp.ElementwiseKernel, cp.zeros(4)
    refused(
        (TypeError, r"arguments for 'named'. It must be either", lambda: kernel(x)),
        (ValueError, "Specified 'size' can be used only if all", lambda: kernel(x, x, size=3)),
        (ValueError, "Loop size is undecided", lambda: kernel(1, 2)),
        (ValueError, "must be greater than zero", lambda: kernel(x, x, block_size=0)),
        (TypeError, "Wrong arguments {'wrong': 1}", lambda: kernel(x, x, wrong=1)),
        (TypeError, "Type is mismatched. y float64 float32", lambda: kernel(x, wide)),
        (TypeError, "Type is mismatched. x float32", lambda: kernel(x, x, cp.zeros((3, 4)))),
        (ValueError, "Out shape is mismatched", lambda: kernel(x, x, cp.zeros(4, "f"))),
        (TypeError, "must be cupy.ndarray", lambda: kernel(x, x, 3)),
        (TypeError, "Unsupported type", lambda: kernel(x, np.zeros(4))),
        (TypeError, "type 'T' is not decided by any array", lambda: kernel(1, x)),
        (ValueError, "Invalid kernel name", lambda: made("T x", "", "", "1")),
        (ValueError, "Can not use 'i'", lambda: made("T i", "T y", "")),
        (ValueError, "Unknown keyword", lambda: made("T x y z", "", "")),
        (ValueError, "Syntax error", lambda: made("T", "", "")),
    )


def test_errors_of_a_reduction_are_cupys(cp: Any) -> None:
    x = cp.zeros((3, 4))
    kernel = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "k")
    raw = cp.ReductionKernel("T x, raw T z", "T y", "x + z[0]", "a + b", "y = a", "0", "k")
    out = cp.zeros(())
    refused(
        (TypeError, "Wrong number of arguments for k", kernel),
        (ValueError, "Loop size is undecided", lambda: kernel(1.0)),
        (np.exceptions.AxisError, "axis 2", lambda: kernel(x, axis=2)),
        (ValueError, "duplicate value in 'axis'", lambda: kernel(x, axis=(0, 0))),
        (ValueError, "Out shape is mismatched", lambda: kernel(x, out=cp.zeros(2))),
        (ValueError, "cannot specify 'out'", lambda: kernel(x, out, out=out)),
        (TypeError, "Wrong arguments", lambda: kernel(x, sum=1)),
        (NotImplementedError, "Illegal conditions", lambda: raw(x, x, axis=1)),
    )


def test_a_kernel_for_nothing_is_not_compiled(cp: Any) -> None:
    kernel = cp.ElementwiseKernel("T x", "T y", "this is no C++", "k")
    assert kernel(cp.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(cp.cuda.compiler.CompileException, match=r"kernel\.cu"):
        kernel(cp.zeros(3))


@pytest.mark.slow  # a compilation for each type
@pytest.mark.parametrize("char", "?bBhHiIqQefdFD")
def test_each_type_is_added(cp: Any, char: str) -> None:
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = x + y", "plus")
    a = np.arange(6).astype(char).reshape(2, 3)
    made = kernel(cp.asarray(a), np.dtype(char).type(1))
    assert made.dtype == a.dtype
    assert np.array_equal(made.get(), a + np.dtype(char).type(1))
    total = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")
    assert np.allclose(total(cp.asarray(a), axis=1).get(), a.sum(1, dtype=char))


@pytest.mark.slow  # a compilation for each
def test_preparation_end_options_and_outputs(cp: Any) -> None:
    x = cp.arange(300)
    per_thread: Any = {"loop_prep": "T mine = 0", "after_loop": "atomicAdd(&y[0], mine)"}
    more: Any = {"no_return": True, "options": ("-DBY=2",), **per_thread}
    counts = cp.ElementwiseKernel("T x", "raw T y", "mine += x * BY", "counts", **more)
    total = cp.zeros(1, dtype=int)
    assert counts(x, total) is None
    assert int(total[0]) == 2 * 299 * 150
    place = "ptrdiff_t at[] = {0, i}; y[i] = x[at] + x.shape()[1] + x.strides()[0]"
    shaped = cp.ElementwiseKernel("raw T x", "raw T y", place, "shaped")
    assert shaped(cp.arange(12).reshape(3, 4), size=4).get().tolist() == [36, 37, 38, 39]
    place = "y = _ind.get()[0] * 10 + _ind.get()[1]"
    indexed = cp.ElementwiseKernel("T x", "T y", place, "indexed", reduce_dims=False)
    assert indexed(cp.zeros((2, 3))).get().tolist() == [[0, 1, 2], [10, 11, 12]]
    turned = "__shared__ T held[128]; held[threadIdx.x] = x; __syncthreads(); "
    turned += "y = held[blockDim.x - 1 - threadIdx.x]"
    shared = cp.ElementwiseKernel("T x", "T y", turned, "shared")
    assert shared(cp.arange(128)).get().tolist() == list(range(127, -1, -1))


def test_the_letter_of_a_texture_is_decided_by_no_array(cp: Any) -> None:
    kernel = cp.ElementwiseKernel("T x, U tex", "T y", "y = x + tex1D<T>(tex, i)", "of_texture")
    texture = object.__new__(cp.cuda.texture.TextureObject)
    assert kernel._bound([cp.zeros(3, "f"), texture], []) == {"T": np.float32}
    with pytest.raises(TypeError, match="'U' is not decided"):
        kernel._bound([cp.zeros(3, "f"), 1.0], [])
