"""Errors that need no device come at the call, also where calls do not wait."""

from collections.abc import Callable
from typing import Any

import door_kit
import pytest

Wrong = Callable[[Any], Any]
NAN = float("nan")


def _set(kind: str, index: Any, value: Any) -> Wrong:
    return lambda cp: cp.zeros(3, kind).__setitem__(index(cp) if callable(index) else index, value)


def _of_complex(name: str, count: int) -> Wrong:
    return lambda cp: getattr(cp, name)(*[cp.ones(3, "D")] * count)


def _launch(grid: tuple[int, ...], block: tuple[int, ...]) -> Wrong:
    def call(cp: Any) -> None:
        kernel = cp.RawKernel('extern "C" __global__ void f(int *b) {}', "f")
        array = cp.zeros(3, "i4")
        kernel((1,), (1,), (array,))  # the first of a kind waits
        kernel(grid, block, (array,))

    return call


MASK: Wrong = lambda cp: cp.array([True, False, True])  # noqa: E731
INDEX: Wrong = lambda cp: cp.array([0, 1])  # noqa: E731


def _typed(cp: Any) -> None:
    kernel = cp.ElementwiseKernel("int32 a", "int32 b", "b = a", "wide_block")
    array = cp.zeros(3, "i4")
    kernel(array)
    kernel(array, block_size=2048)


WRONG: list[tuple[str, type[Exception], Wrong]] = [
    *((name, TypeError, _of_complex(name, 2)) for name in ("hypot", "arctan2", "copysign")),
    ("nextafter", TypeError, _of_complex("nextafter", 2)),
    *((name, TypeError, _of_complex(name, 1)) for name in ("isposinf", "isneginf", "i0")),
    ("dtype", TypeError, lambda cp: cp.sqrt(cp.ones(3), dtype="i4")),
    ("add", TypeError, lambda cp: cp.add(cp.ones(3), 1, out=cp.ones(3, "i4"))),
    ("add.at", TypeError, lambda cp: cp.add.at(cp.ones(3, "u1"), cp.array([0]), 1)),
    ("clip", ValueError, lambda cp: cp.clip(cp.ones(3), 0, 1, out=cp.zeros(4))),
    ("round", ValueError, lambda cp: cp.around(cp.ones(3), 0, out=cp.zeros(4))),
    ("round type", TypeError, lambda cp: cp.around(cp.ones(3), 0, out=cp.zeros(3, "i4"))),
    ("take", TypeError, lambda cp: cp.take(cp.ones(3), cp.array([0]), out=cp.zeros(1, "i4"))),
    ("all -1", OverflowError, _set("u1", Ellipsis, -1)),
    ("mask -1", OverflowError, _set("u1", MASK, -1)),
    ("index 300", OverflowError, _set("u1", INDEX, 300)),
    ("element 300", OverflowError, _set("u1", 0, 300)),
    ("all NaN", ValueError, _set("i4", Ellipsis, NAN)),
    ("element NaN", ValueError, _set("i4", 1, NAN)),
    ("slice inf", OverflowError, _set("i4", slice(2), float("inf"))),
    ("fill 300", OverflowError, lambda cp: cp.zeros(3, "u1").fill(300)),
    ("fill NaN", ValueError, lambda cp: cp.zeros(3, "i4").fill(NAN)),
    ("flat 300", OverflowError, lambda cp: cp.zeros(3, "u1").flat.__setitem__(0, 300)),
    ("full", OverflowError, lambda cp: cp.full((2,), 300, "i1")),
    ("full_like", OverflowError, lambda cp: cp.full_like(cp.zeros(2, "u1"), -1)),
]
LAUNCHES: list[tuple[str, Wrong]] = [
    ("2048 threads", _launch((1,), (2048,))),
    ("32 x 32 x 2 threads", _launch((1,), (32, 32, 2))),
    ("65 threads deep", _launch((1,), (1, 1, 65))),
    ("65536 blocks wide", _launch((1, 65536), (1,))),
    ("elementwise", _typed),
]


@pytest.mark.parametrize(
    ("kind", "wrong"), [pytest.param(kind, wrong, id=name) for name, kind, wrong in WRONG]
)
def test_what_the_client_can_judge_is_an_error_of_the_call(
    dropin: Any, kind: type[Exception], wrong: Wrong
) -> None:
    with pytest.raises(kind):
        wrong(dropin)


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")
@pytest.mark.parametrize("wrong", [pytest.param(wrong, id=name) for name, wrong in LAUNCHES])
def test_grids_that_no_gpu_has_are_errors_of_the_call(dropin: Any, wrong: Wrong) -> None:
    with pytest.raises(dropin.cuda.driver.CUDADriverError, match="invalid argument"):
        wrong(dropin)


def test_what_cupy_takes_is_no_error(dropin: Any) -> None:
    cp = dropin
    i, f = cp.array([1, 2], "i4"), cp.array([1.5, 2.5])
    assert cp.add(i, f, casting="no").tolist() == [2.5, 4.5]  # of outputs alone
    assert cp.add(f, f, dtype="i4").tolist() == [2, 4]
    assert cp.positive(cp.array([True, False])).tolist() == [True, False]
