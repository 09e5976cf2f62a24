"""`vectorize`: a Python function of elements, beside NumPy's."""

from typing import Any

import numpy as np
import pytest
from door_cases import refused

HOST = np.arange(-3, 3).reshape(2, 3)
WRONG: list[Any] = [lambda x: None, str, lambda x: [x], lambda x: np.ones(2) * x]


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f4", "f8", "c8"])
def test_a_function_of_elements_may_branch(cp: Any, dtype: str) -> None:
    def clamp(x: Any, y: Any) -> Any:
        while abs(x) > 1:
            x = x - np.sign(x)
        return x * y if abs(x) == 1 else x

    host = HOST.astype(dtype)
    made = cp.vectorize(clamp)(cp.asarray(host), cp.asarray(host[:1]))
    wanted = np.vectorize(clamp)(host, host[:1])
    assert isinstance(made, cp.ndarray)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(made.get(), wanted)


def test_results_have_the_type_that_all_branches_share(cp: Any) -> None:
    a = cp.asarray(HOST, "f4")
    assert cp.vectorize(lambda x: x if x > 0 else 0)(a).dtype == np.float32
    assert cp.vectorize(lambda x: x > 0)(a).dtype == np.bool_
    assert cp.vectorize(lambda _x: 2)(a).dtype == np.int64
    assert cp.vectorize(lambda x, n: x + n)(cp.asarray([1], "i1"), 3).dtype == np.int64
    assert cp.vectorize(lambda x: cp.sin(x) * 2)(a).dtype == np.float32
    np.testing.assert_allclose(cp.vectorize(cp.sin)(a).get(), np.sin(HOST), rtol=1e-6)
    assert cp.vectorize(lambda x: x * np.float32(2))(cp.zeros((0, 3), "i1")).dtype == np.float32
    assert cp.vectorize(lambda x: x)(cp.zeros((0, 3))).shape == (0, 3)
    low, high = cp.vectorize(lambda x: (min(x, 0), max(x, np.int64(1))))(a)
    np.testing.assert_array_equal(low.get(), HOST.clip(None, 0))
    assert (low.dtype, high.dtype) == (np.float32, np.float64)


def test_vectorize_refuses_what_cupy_refuses(cp: Any) -> None:
    def function(x: Any) -> Any:
        """Say so."""
        return x

    a = cp.ones(2)
    assert cp.vectorize(function).__doc__ == "Say so."

    def of(f: Any, **more: Any) -> Any:
        return cp.vectorize(f, **more)

    refused(
        (NotImplementedError, "excluded", lambda: of(function, excluded={0})),
        (NotImplementedError, "signature", lambda: of(function, signature="()->()")),
        (NotImplementedError, "otypes", lambda: of(function, otypes="d")(a)),
        (TypeError, "ndarray", lambda: of(function)(np.ones(2))),
        (ValueError, "Loop size", lambda: of(function)(2)),
        *[(TypeError, "Invalid return type", lambda f=f: of(f)(a)) for f in WRONG],
        (
            TypeError,
            "of results",
            lambda: of(lambda x: (x, x) if x > 0 else x)(cp.asarray([1, -1])),
        ),
        (ZeroDivisionError, "", lambda: of(lambda x: 1 // int(x))(cp.zeros(1))),
    )
