"""Wrong calls are errors of the call: most are seen by the client, some by waiting for the worker.

Each error comes without a note on an earlier call, and the session goes on.
"""

from collections.abc import Callable
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import refused

Wrong = Callable[[Any, Any], Any]
Errors = type[Exception] | tuple[type[Exception], ...]
NAN, INF = float("nan"), float("inf")
LINALG_ERROR = np.linalg.LinAlgError


def _set(kind: str, index: Any, value: Any) -> Wrong:
    def call(cp: Any, _: Any) -> None:
        array, place = cp.zeros(3, kind), index(cp) if callable(index) else index
        array[place] = type(value)(1)  # of the same kind, and right
        array[place] = value

    return call


def _of_complex(name: str, count: int) -> Wrong:
    return lambda cp, a: getattr(cp, name)(*[cp.ones(3, "D")] * count)


MASK: Any = lambda cp: cp.array([True, False, True])  # noqa: E731
INDEX: Any = lambda cp: cp.array([0, 1])  # noqa: E731

WRONG: dict[str, list[tuple[Errors, Wrong]]] = {
    "views and indices": [
        (ValueError, lambda cp, a: a.reshape(5)),
        (ValueError, lambda cp, a: a.reshape(-1, order="K")),
        (ValueError, lambda cp, a: a.reshape(-1, copy="no")),
        (ValueError, lambda cp, a: a.view(type=np.ndarray)),
        *((IndexError, lambda cp, a, index=index: a[index])
          for index in (7, 2, -3, (0, 3), (1, -4), (..., 3), (slice(1), 3), ([0], 3))),
        *((IndexError, lambda cp, a, index=index: a.__setitem__(index, 1))
          for index in (2, -3, (0, 3), (..., 3), (slice(1), 3), ([0], 3), (2, [0]))),
        (IndexError, lambda cp, a: a[0, 0, 0]),
        (ValueError, lambda cp, a: a[[[1, 1], 1]]),
        (ValueError, lambda cp, a: a[[[1], slice(1, 2)]]),
        (IndexError, lambda cp, a: a[np.array(["1", "2"])]),
        (TypeError, lambda cp, a: a[: cp.arange(2)]),
        (TypeError, lambda cp, a: a[[1] :]),
        (np.exceptions.AxisError, lambda cp, a: cp.array(1).argsort(axis=2)),
        (ValueError, lambda cp, a: cp.ndarray((2, 3), strides=(8, 800))),
        (AttributeError, lambda cp, a: setattr(a.flags, "c_contiguous", False)),
        (Exception, lambda cp, a: cp.lib.stride_tricks.sliding_window_view(a, 9, writeable=True)),
        *((IndexError, lambda cp, a, index=index: a.flat[index])
          for index in (None, (0,), True, [0])),
        *((IndexError, lambda cp, a, index=index: a.flat.__setitem__(index, cp.ones(1)))
          for index in (None, (0,), True, [0])),
    ],
    "operands": [
        (ValueError, lambda cp, a: a @ a),
        (TypeError, lambda cp, a: a + np.ones(3)),
        (ValueError, lambda cp, a: cp.add(a, a, out=cp.zeros(1))),
        (TypeError, lambda cp, a: cp.add(a, 1.5, out=a)),
        (TypeError, lambda cp, a: cp.zeros(2) + [1, 2]),  # noqa: RUF005 - they do not join
        (OverflowError, lambda cp, a: cp.zeros(2, "u1") + 256),
        (OverflowError, lambda cp, a: cp.zeros(2, "u1") + -1),
        (TypeError, lambda cp, a: cp.sqrt(a, dtype="i4")),
        (TypeError, lambda cp, a: cp.add.at(cp.ones(3, "u1"), cp.array([0]), 1)),
        *((TypeError, _of_complex(name, 2)) for name in ("hypot", "arctan2", "copysign")),
        (TypeError, _of_complex("nextafter", 2)),
        *((TypeError, _of_complex(name, 1)) for name in ("isposinf", "isneginf", "i0")),
        (TypeError, lambda cp, a: cp.poly1d(a[0]) ** 2.0),
        (ValueError, lambda cp, a: cp.polyval(a, 2)),
        (TypeError, lambda cp, a: cp.polyval(cp.asarray(3), cp.ones(3))),
        (TypeError, lambda cp, a: cp.polyval(np.float32(3), cp.poly1d(cp.ones(3)))),
        (TypeError, lambda cp, a: np.frompyfunc(lambda x: x, 1, 1)(a)),
    ],
    "what leaves the device": [
        (TypeError, lambda cp, a: np.asarray(a)),
        (ValueError, lambda cp, a: bool(a)),
        (RuntimeError, lambda cp, a: a.get(out=np.empty((2, 6), "i8")[:, ::2])),
    ],
    "elements that are set": [
        (ValueError, lambda cp, a: a.__setitem__(slice(None), cp.zeros(5))),
        (ValueError, lambda cp, a: a.fill(cp.ones(1))),
        *((IndexError, lambda cp, a, index=index: a.__setitem__(index, 1.5))
          for index in ((1, False, -6), (4, True), (True, ..., 7))),
        (OverflowError, _set("u1", Ellipsis, -1)),
        (OverflowError, _set("u1", MASK, -1)),
        (OverflowError, _set("u1", INDEX, 300)),
        (OverflowError, _set("u1", 0, 300)),
        *((ValueError, _set("i4", index, NAN)) for index in (Ellipsis, MASK, INDEX)),
        (ValueError, _set("i4", 1, NAN)),
        (OverflowError, _set("i4", slice(2), INF)),
        (OverflowError, lambda cp, a: cp.zeros(3, "u1").fill(300)),
        (ValueError, lambda cp, a: cp.zeros(3, "i4").fill(NAN)),
        (OverflowError, lambda cp, a: cp.zeros(3, "u1").flat.__setitem__(0, 300)),
    ],
    "arrays that are made": [
        (ValueError, lambda cp, a: a.astype(object)),
        (ValueError, lambda cp, a: cp.zeros((2, -1))),
        (ValueError, lambda cp, a: cp.zeros((0, 2**63 - 1))),
        (ValueError, lambda cp, a: cp.ones((2**62, 4, 0))),
        (TypeError, lambda cp, a: cp.empty(None)),
        (TypeError, lambda cp, a: cp.empty(1.5)),
        *((ValueError, lambda cp, a, make=make: getattr(cp, make)(2, ">f8"))
          for make in ("zeros", "empty", "ones")),
        (OverflowError, lambda cp, a: cp.full((2,), 300, "i1")),
        (ValueError, lambda cp, a: cp.full((2,), np.ones(2))),
        (OverflowError, lambda cp, a: cp.full_like(cp.zeros(2, "u1"), -1)),
        (ValueError, lambda cp, a: cp.eye(-1)),
        (ValueError, lambda cp, a: cp.eye(3, -1)),
        (TypeError, lambda cp, a: cp.eye(2, 2.5)),
        (TypeError, lambda cp, a: cp.eye(2, k=0.5)),
        (TypeError, lambda cp, a: cp.identity(2.0)),
        (TypeError, lambda cp, a: cp.tri(cp.ones(2))),
        (ValueError, lambda cp, a: cp.tri(-2)),
        (ValueError, lambda cp, a: cp.vander(cp.ones(3), -1)),
        (TypeError, lambda cp, a: cp.vander(cp.ones(3), 2.5)),
        (TypeError, lambda cp, a: cp.diag(cp.ones(3), 1.5)),
    ],
    "functions": [
        (np.exceptions.AxisError, lambda cp, a: a.sum(axis=2)),
        (ValueError, lambda cp, a: cp.concatenate([a, a.T])),
        (ValueError, lambda cp, a: cp.clip(cp.ones(3), 0, 1, out=cp.zeros(4))),
        (ValueError, lambda cp, a: cp.around(cp.ones(3), 0, out=cp.zeros(4))),
        (TypeError, lambda cp, a: cp.around(cp.ones(3), 0, out=cp.zeros(3, "i4"))),
        (TypeError, lambda cp, a: cp.take(cp.ones(3), cp.array([0]), out=cp.zeros(1, "i4"))),
        (ValueError, lambda cp, a: a.take(cp.arange(2), axis=0, out=cp.ones(9, a.dtype))),
        (ValueError, lambda cp, a: cp.ones(3).cumsum(out=cp.ones(4))),
        (ValueError, lambda cp, a: cp.pad(a, 1, "no such mode")),
        (TypeError, lambda cp, a: cp.pad(a[0], [])),
        (TypeError, lambda cp, a: cp.pad(a[0], 1, lambda *_: None)),
        (NotImplementedError, lambda cp, a: cp.piecewise(a, [a < 1], [lambda x: x])),
        (TypeError, lambda cp, a: cp.select([a > 1], [a], [3])),
        (ValueError, lambda cp, a: cp.packbits(a > 1, bitorder="none")),
        (ValueError, lambda cp, a: cp.histogramdd(cp.ones((3, 1)), bins=[[1, 2]])),
        (ValueError, lambda cp, a: cp.percentile(cp.ones(3), 101)),
        (ValueError, lambda cp, a: cp.quantile(cp.ones(3), 0.5, method="none")),
        (ValueError, lambda cp, a: cp.convolve(cp.ones(0), cp.ones(2))),
        (ValueError, lambda cp, a: cp.copyto(cp.ones(3), cp.ones(4))),
        (ValueError, lambda cp, a: cp.copyto(cp.ones(3, "u2"), np.zeros(3, "u2"))),
        (TypeError, lambda cp, a: cp.copyto(cp.zeros(3, "u2"), np.array(1, "u8"), "no")),
        (TypeError, lambda cp, a: cp.copyto(cp.zeros(3, "u2"), np.uint64(1), "no")),
        (ValueError, lambda cp, a: cp.partition(cp.ones(3), 7)),
        (ValueError, lambda cp, a: cp.ones(3).partition(7)),
        (IndexError, lambda cp, a: cp.put(cp.ones(3), cp.asarray([4]), 1, mode="raise")),
        (ValueError, lambda cp, a: cp.put(a, cp.arange(1), 1, mode="none")),
        (ValueError, lambda cp, a: cp.bincount(cp.asarray([-1]))),
        (ValueError, lambda cp, a: cp.unravel_index(cp.asarray([9]), (2, 2))),
        (ValueError, lambda cp, a: cp.choose(cp.asarray([7]), cp.ones((1, 1)))),
        (ValueError, lambda cp, a: cp.cov(cp.ones((2, 2, 2)))),
        (ValueError, lambda cp, a: cp.repeat(a[0], cp.ones(2, "i4"))),
        (ValueError, lambda cp, a: cp.delete(a[0], [True, False])),
        (ValueError, lambda cp, a: cp.einsum()),
        (TypeError, lambda cp, a: cp.roll(a, 1, axis="0")),
        (ValueError, lambda cp, a: cp.gradient(cp.ones((2, 3)), 1, cp.arange(4))),
        (NotImplementedError, lambda cp, a: cp.shares_memory(a, a, 3)),
    ],
    "linalg and fft": [
        (LINALG_ERROR, lambda cp, a: cp.linalg.inv(a)),
        (ValueError, lambda cp, a: cp.linalg.solve(cp.eye(3), cp.ones(0))),
        ((LINALG_ERROR, ValueError), lambda cp, a: cp.linalg.tensorinv(cp.ones((2, 3)))),
        (ValueError, lambda cp, a: cp.linalg.matrix_transpose(cp.arange(3))),
        (TypeError, lambda cp, a: cp.fft.fft(cp.ones(5), 4.0)),
        (TypeError, lambda cp, a: cp.fft.irfft(cp.ones(5), 2.5)),
    ],
    "random": [
        (ValueError, lambda cp, a: cp.random.logseries(cp.ones(2))),
        (ValueError, lambda cp, a: cp.random.poisson(None)),
        (ValueError, lambda cp, a: cp.random.permutation(-1)),
        (ValueError, lambda cp, a: cp.random.randint(0, 300, dtype="u1")),
        (ValueError, lambda cp, a: cp.random.randint(-1, 3, dtype="u1")),
        (TypeError, lambda cp, a: cp.random.normal(size=3, dtype="f2")),
        (TypeError, lambda cp, a: cp.random.XORWOW(np.float64(0))),
        (TypeError, lambda cp, a: cp.random.RandomState(1.5)),
        (ValueError, lambda cp, a: cp.random.RandomState(-1)),
        (ValueError, lambda cp, a: cp.random.choice(3, 5, replace=False)),
        (ValueError, lambda cp, a: cp.random.choice([1.0, 2.0], 3, replace=False)),
        *((ValueError, lambda cp, a, nothing=nothing: cp.random.choice(nothing, 2))
          for nothing in (0, [], None)),
        (ValueError, lambda cp, a: cp.random.choice(3, 2, p=[0.5, 0.5])),
        *((ValueError, lambda cp, a, p=p: cp.random.choice(2, 2, p=p))
          for p in ([[0.5, 0.5]], [1.5, -0.5], [1.0, 0.5])),
        (NotImplementedError, lambda cp, a: cp.random.choice(2, 1, False, [0.5, 0.5])),
    ],
}  # fmt: skip
CASES = [
    pytest.param(error, call, id=f"{kind} {at}")
    for kind, cases in WRONG.items()
    for at, (error, call) in enumerate(cases)
]


@pytest.mark.parametrize(("error", "call"), CASES)
def test_a_wrong_call_is_an_error_of_the_call(cp: Any, error: Any, call: Wrong) -> None:
    a = cp.arange(6).reshape(2, 3)
    for _ in ("first", "remembered"):
        with pytest.raises(error) as caught:
            call(cp, a)
        assert not getattr(caught.value, "__notes__", [])
    assert a.get().tolist() == [[0, 1, 2], [3, 4, 5]]
    cp._door.pool.current().synchronize()


# --- launches -------------------------------------------------------------------------------------


GRIDS = [
    ((1,), (2048,)),
    ((1,), (32, 32, 2)),
    ((1,), (1, 1, 65)),
    ((1, 65536), (1,)),
    ((), (1025,)),
]


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
def test_grids_that_no_gpu_has_are_errors_of_the_call(cp: Any) -> None:
    raw = cp.RawKernel('extern "C" __global__ void f(int *b) {}', "f")
    typed = cp.ElementwiseKernel("int32 a", "int32 b", "b = a", "wide_block")
    array, error, said = cp.zeros(3, "i4"), cp.cuda.driver.CUDADriverError, "_ERROR_INVALID_VALUE"
    raw((1,), (1,), (array,))  # the first of a kind waits
    typed(array)
    refused(
        *((error, said, lambda g=grid, b=block: raw(g, b, (array,))) for grid, block in GRIDS),
        (error, said, lambda: typed(array, block_size=2048)),
    )


# --- what is right --------------------------------------------------------------------------------


def test_what_cupy_takes_is_no_error(cp: Any) -> None:
    i, f = cp.array([1, 2], "i4"), cp.array([1.5, 2.5])
    assert cp.add(i, f, casting="no").tolist() == [2.5, 4.5]  # of outputs alone
    assert cp.add(f, f, dtype="i4").tolist() == [2, 4]
    assert cp.positive(cp.array([True, False])).tolist() == [True, False]
    assert (cp.zeros(2, "u1") + 255).tolist() == [255, 255]
    assert (cp.zeros(2, "u1") == 256).tolist() == [False, False]
    assert cp.array(np.array([1.0, 2.0], ">f8")).tolist() == [1, 2]
    target = cp.zeros(3, "u2")
    cp.copyto(target, np.array([1], "u2"), "equiv")
    cp.copyto(target[1:], np.float64(7.5), "unsafe")
    assert target.tolist() == [1, 7, 7]
    assert cp.arange(6)[[]].shape == (0,)
    assert cp.zeros((2, 3, 4))[[], [1]].shape == (0, 4)
    assert cp.zeros((2, 3, 4))[[cp.asarray([1, 0])]].shape == (1, 2, 3, 4)
