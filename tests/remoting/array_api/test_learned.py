"""Functions that the worker describes: the kinds of calls that are remembered."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def _asked(cp: Any, call: Callable[[], Any], times: int = 3) -> list[str]:
    """Return the questions of some calls."""
    [session] = cp._door.pool.sessions()
    asked: list[str] = []
    before = session.ask
    session.ask = lambda *args, **kwargs: asked.append(args[0]) or before(*args, **kwargs)
    try:
        for _ in range(times):
            call()
    finally:
        del session.ask
    return asked


CALLS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "one array": (lambda cp, a: cp.linalg.inv(a), 1),
    "several": (lambda cp, a: cp.linalg.svd(a, full_matrices=False), 1),
    "a list": (lambda cp, a: cp.gradient(a), 1),
    "nothing": (lambda cp, a: cp.fill_diagonal(a, 2.0), 1),
    "an output": (lambda cp, a: cp.cumsum(a, axis=1, out=a), 1),
    "a list of the host": (lambda cp, a: cp.cross(a, [1.0, 2.0, 3.0]), 1),
    "of elements": (lambda cp, a: cp.nonzero(a), 3),
    "errors of elements": (lambda cp, a: cp.repeat(a[0], cp.asarray([1, 2, 3])), 3),
    "a number": (lambda cp, a: cp.shares_memory(a, a), 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_kind_asks_once_unless_its_elements_decide(cp: Any, name: str) -> None:
    call, times = CALLS[name]
    a = cp.asarray([[4.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
    assert len(_asked(cp, lambda: call(cp, a))) == times


def test_a_float_of_another_value_is_of_the_same_kind(cp: Any) -> None:
    a, rates = cp.ones(3), iter((0.5, float("nan"), 7.0))
    assert len(_asked(cp, lambda: cp.isclose(a, a, next(rates)))) == 1


def test_a_float_that_is_a_count_is_known_by_its_value(cp: Any) -> None:
    for count in (8.0, 4.0, 8, 4.0):
        assert cp.fft.fftfreq(count, 0.5).shape == (int(count),)
        assert cp.rot90(cp.ones((2, 3)), count / 4).shape == ((2, 3) if count == 8 else (3, 2))


_FIXED = """bartlett blackman diag_indices einsum eye hamming hanning identity indices kaiser
    linspace logspace matrix_power meshgrid pad repeat resize tile tri tril_indices triu_indices"""
"""Rows with results that values of the host decide, and no elements."""


@pytest.mark.parametrize(
    "module", ["cupy._core.learned", "cupy.linalg", "cupy.polynomial.polynomial"]
)
def test_no_row_remembers_what_elements_decide(cp: Any, module: str) -> None:
    from cupy._door.errors import MismatchError  # pyright: ignore[reportMissingImports]

    values = [0, 3, 0, 0], [0, 0, 2, 1], [1, 1, 1, 1], [0, 0, 0, 0], [-1, 4, 4, 2]
    for name, function in vars(importlib.import_module(module)).items():
        if not hasattr(function, "__wrapped__") or name in _FIXED.split():
            continue
        needed = [each.default for each in inspect.signature(function).parameters.values()]
        count = max(1, needed.count(inspect.Parameter.empty))
        for made in [each for value in values for each in (cp.asarray(value), cp.diag(value))]:
            try:
                function(*[made * 1.0] * count)
                cp.cuda.Device().synchronize()
            except MismatchError:
                raise
            except Exception:  # noqa: BLE001 - some take no such arguments
                continue


def test_arguments_keep_their_types_and_are_checked(cp: Any) -> None:
    rows = np.ones((2, 3), np.float32)
    assert cp.average(rows, weights=rows).dtype == np.float32
    assert cp.average(rows, weights=rows.astype("F")).dtype == np.complex64
    assert cp.nanargmax(cp.ones(3), dtype="i4").dtype == np.int32
    assert cp.around(2.55, 1).tolist() == np.around(2.55, 1)
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        cp.cov(cp.ones((2, 3)), ddof=3)
    wrong: list[tuple[Any, Any]] = [
        (TypeError, lambda: cp.tri(cp.ones(2))),
        (TypeError, lambda: cp.polyval(cp.asarray(3), cp.ones(3))),
        (TypeError, lambda: cp.polyval(np.float32(3), cp.poly1d(cp.ones(3)))),
        (TypeError, lambda: cp.select([cp.ones(2, bool)], [cp.ones(2)], [3])),
        (ValueError, lambda: cp.tri(-2)),
        (ValueError, lambda: cp.packbits(cp.ones(3, bool), bitorder="none")),
        (ValueError, lambda: cp.histogramdd(cp.ones((3, 1)), bins=[[1, 2]])),
        (ValueError, lambda: cp.linalg.solve(cp.eye(3), cp.ones(0))),
    ]
    for error, call in wrong:
        with pytest.raises(error):
            call()


def test_a_wrong_memory_is_an_error_and_no_wrong_number(cp: Any) -> None:
    from cupy._door.errors import MismatchError  # pyright: ignore[reportMissingImports]

    [session] = cp._door.pool.sessions()
    a, b = cp.ones((2, 3)), cp.ones((3, 2))
    cp.roll(a, 1)
    cp.roll(b, 1)
    known = session.judged.known
    first, second = [kind for kind in known if kind[0] == "roll" and len(kind) > 3][:2]
    known[first] = known[second]
    with pytest.raises(MismatchError, match="the client inferred"):
        cp.roll(a, 1).get()


def test_a_row_has_the_parameters_of_a_function(cp: Any) -> None:
    assert list(inspect.signature(cp.linalg.svd).parameters) == [
        *("a", "full_matrices", "compute_uv")
    ]
    with pytest.raises(TypeError, match="unexpected keyword argument 'full'"):
        cp.linalg.svd(cp.eye(2), full=False)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'kth'"):
        cp.partition(cp.ones(3))
    with pytest.raises(TypeError, match=r"expected cupy\.ndarray, got ndarray"):
        cp.linalg.inv(np.eye(2))
    assert type(cp.linalg.eigh(cp.eye(2))) is tuple


def test_what_is_remembered_of_an_index_is_of_its_form(cp: Any) -> None:
    a, places = cp.arange(12.0).reshape(3, 4), cp.asarray([2, 0])
    host = a.get()
    for _ in range(2):
        assert (a[places].get() == host[[2, 0]]).all()
        assert (a[:, places].get() == host[:, [2, 0]]).all()
        assert (a[places, 1:3].get() == host[[2, 0], 1:3]).all()
        assert (a[[2], 1].get() == host[[2], 1]).all()
        a[places] = a[places] + 1
        host[[2, 0]] += 1
        a[[1], 2] = host[[1], 2] = 5
        a[a > 9] = host[host > 9] = 0.5
        assert (a.get() == host).all()
