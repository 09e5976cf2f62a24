"""Generalized ufuncs, arrays as a kernel's `mdspan`, and small functions of CuPy's surface."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np
import pytest


def gufunc(cp: Any, *args: Any, **kwargs: Any) -> Any:
    del cp
    return importlib.import_module("cupyx").GeneralizedUFunc(*args, **kwargs)


def test_a_function_runs_along_the_other_axes(cp: Any) -> None:
    product = gufunc(cp, lambda a, b: a @ b, "(i,j),(j,k)->(i,k)")
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(8.0).reshape(4, 2)
    assert np.allclose(product(cp.asarray(a), cp.asarray(b)).get(), a @ b)
    turned = product(cp.asarray(a.T), cp.asarray(b), axes=[(1, 0), (0, 1), (0, 1)])
    assert np.allclose(turned.get(), np.moveaxis(a @ b, 0, -1))


def test_what_a_signature_does_not_allow_is_refused(cp: Any) -> None:
    total = gufunc(cp, lambda x: x.sum(), "(i)->()")
    x = cp.arange(6.0).reshape(2, 3)
    assert total(x, axis=0, keepdims=True).get().tolist() == [[3.0, 5.0, 7.0]]
    with pytest.raises(ValueError, match="too few dimensions"):
        total(cp.asarray(1.0))
    with pytest.raises(ValueError, match="shape"):
        total(x, out=cp.zeros(3))
    with pytest.raises(TypeError, match="Cannot cast"):
        total(x, out=cp.zeros(2, np.int16))
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        gufunc(cp, lambda a, b: a, "(i),(i)->(i)")(x, cp.arange(2.0))
    for text in ("(i", "(i)->", "i->i", "(i|1)->(i|1)", "(i?|1)->()"):
        with pytest.raises(ValueError, match=r"signature|core dimension"):
            gufunc(cp, lambda x: x, text)


def test_a_loop_is_chosen_by_the_types(cp: Any) -> None:
    taken: list[str] = []

    def whole(x: Any) -> Any:
        taken.append(x.dtype.char)
        return x

    made = gufunc(cp, lambda x: x, "(i)->(i)", signatures=[("i->i", whole)])
    assert made(cp.arange(3, dtype=np.int16)).dtype == np.int32
    assert made(cp.arange(3.0)).dtype == np.float64
    assert taken == ["i"]


def test_an_mdspan_is_checked_as_cupy_checks_it(cp: Any) -> None:
    array = cp.arange(6.0).reshape(2, 3)
    assert array.mdspan(index_type=np.int32) is not None
    with pytest.raises(ValueError, match="index_type"):
        array.mdspan(index_type=np.int16)
    with pytest.raises(RuntimeError, match="non-positive stride"):
        array[::-1].mdspan(index_type=np.int64)
    assert array[::-1].mdspan(index_type=np.int64, allow_unsafe=True)._array is not None
    cp.cuda.Device().synchronize()


def test_an_initial_element_goes_into_the_given_array(cp: Any) -> None:
    out = cp.zeros((2, 4), np.int64)
    made = cp.cumulative_sum(cp.arange(6).reshape(2, 3), axis=1, out=out, include_initial=True)
    assert made is out
    assert out.get().tolist() == [[0, 0, 1, 3], [0, 3, 7, 12]]
