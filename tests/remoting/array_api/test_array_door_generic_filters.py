"""Filters of images by kernels of the program, beside SciPy's by functions."""

from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import close, package, refused

theirs: Any = pytest.importorskip("scipy.ndimage")
pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
ours = package("scipy.ndimage")

HOST = np.random.RandomState(5).rand(5, 6)
MEAN = """extern "C" __global__ void mean(const double *x, int n, double *y) {
  double sum = 0;
  for (int i = 0; i < n; ++i) { sum += x[i] * (i + 1); }
  y[0] = sum / n;
}"""
SHIFT = """extern "C" __global__
void shift(double *in, ptrdiff_t n, double *out, ptrdiff_t m) {
  for (int i = 0; i < m; ++i) { out[i] = in[i] - in[n - 1]; }
}"""
FOOTPRINT = np.asarray([[0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1]], bool)


@pytest.mark.parametrize("mode", ["reflect", "constant", "nearest", "mirror", "wrap"])
def test_a_raw_kernel_is_applied_to_each_window_and_line(cp: Any, ours: Any, mode: str) -> None:
    def shift(source: Any, target: Any) -> None:
        target[:] = source[: target.size] - source[-1]

    a, kernel = cp.asarray(HOST), cp.RawKernel(MEAN, "mean")
    for keywords in (
        {"size": (9, 2), "origin": (-2, 0), "cval": -1},
        {"footprint": FOOTPRINT, "origin": (1, -1)},
    ):
        mean = lambda x: (x * np.arange(1, len(x) + 1)).mean()  # noqa: E731
        wanted = theirs.generic_filter(HOST, mean, mode=mode, **keywords)
        close(ours.generic_filter(a, kernel, mode=mode, **keywords), wanted)
    kernel = cp.RawKernel(SHIFT, "shift")
    for axis, size, origin in ((-1, 3, 0), (0, 8, 2), (1, 13, -3)):
        keywords: Any = {"axis": axis, "mode": mode, "cval": 1.5, "origin": origin}
        wanted = theirs.generic_filter1d(HOST, shift, size, **keywords)
        close(ours.generic_filter1d(a, kernel, size, **keywords), wanted)


def test_a_reduction_is_applied_to_each_window(cp: Any, ours: Any) -> None:
    kernel = cp.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "total")
    for dtype in "lfd":
        host = (HOST * 9).astype(dtype)
        made = ours.generic_filter(cp.asarray(host), kernel, (3, 4), output=np.float64)
        assert made.dtype == np.float64
        close(made, theirs.generic_filter(host, np.sum, (3, 4), output="d"), 1e-6)
    made = ours.generic_filter(cp.asarray(HOST), kernel, (3,), axes=-1, mode="mirror", origin=1)
    wanted = theirs.generic_filter(HOST, np.sum, (1, 3), mode="mirror", origin=(0, 1))
    close(made, wanted)
    for into in (cp.asarray(HOST * -3), cp.zeros((5, 6), np.uint8)):
        wanted = theirs.generic_filter(HOST * -3, np.sum, 3, output=np.dtype(into.dtype.char))
        assert ours.generic_filter(cp.asarray(HOST * -3), kernel, 3, output=into) is into
        close(into, wanted)
    assert ours.generic_filter(cp.zeros((0, 3)), kernel, 3).shape == (0, 3)


def test_it_refuses_what_cupy_refuses(cp: Any, ours: Any) -> None:
    a, mean, of = cp.asarray(HOST), cp.RawKernel(MEAN, "mean"), ours.generic_filter
    refused(
        (TypeError, "bad function type", lambda: of(a, np.mean, 3)),
        (RuntimeError, "no footprint", lambda: of(a, mean)),
        (RuntimeError, "length equal", lambda: of(a, mean, (3, 3, 3))),
        (RuntimeError, "shape", lambda: of(a, mean, None, np.ones(3))),
        (ValueError, "all-zero", lambda: of(a, mean, None, [[0]])),
        (ValueError, "origin", lambda: of(a, mean, 3, origin=2)),
        (RuntimeError, "boundary", lambda: of(a, mean, 3, mode="odd")),
    )
