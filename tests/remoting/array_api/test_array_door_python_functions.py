"""Functions of Python: `fuse` computes them as they are, `vectorize` calls them by element."""

from typing import Any

import numpy as np
import pytest
from door_cases import refused

HOST = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "amax", "mean", "std", "var"])
@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_a_fused_reduction_takes_arrays_of_both_kinds(cp: Any, name: str, axis: Any) -> None:
    fused = cp.fuse(lambda x: getattr(cp, name)(x * 2, axis))
    wanted = getattr(np, name)(HOST * 2, axis)
    ours, theirs = fused(cp.asarray(HOST)), fused(HOST)
    assert type(theirs).__module__ == "numpy"
    assert isinstance(ours, cp.ndarray)
    np.testing.assert_allclose(ours.get(), wanted)
    np.testing.assert_allclose(theirs, wanted)


def test_keywords_of_a_reduction_reach_the_method_of_an_array_of_numpy(cp: Any) -> None:
    out = np.zeros((3, 1), np.int32)
    assert cp.sum(HOST, axis=1, dtype="i4", out=out, keepdims=True) is out
    assert out.ravel().tolist() == [6, 22, 38]
    assert cp.var(HOST, ddof=1) == HOST.var(ddof=1)
    calls = (lambda: cp.sum([1, 2]), lambda: cp.all(HOST), lambda: cp.nansum(HOST))
    refused(*[(TypeError, "incorrect type", call) for call in calls])


def test_a_fused_function_cannot_branch_by_an_element(cp: Any) -> None:
    @cp.fuse()
    def absolute(x: Any) -> Any:
        return x if x > 0 else -x

    functions = [cp.fuse(lambda x, kind=kind: x * kind(x)) for kind in (int, float, complex)]
    given = [(absolute, shape) for shape in ((3, 3), (1,), ())] + [(f, ()) for f in functions]
    refused(*[(TypeError, "Python scalar", lambda f=f, s=s: f(cp.ones(s))) for f, s in given])
    assert absolute(-2) == 2
    assert bool(cp.ones(1)), "only within the function"
    inner = cp.fuse(lambda x: x + 1)
    assert cp.fuse(lambda x: inner(x) * 2)(cp.ones(1)).tolist() == [4]


def test_a_fused_function_keeps_its_name_and_its_changes(cp: Any) -> None:
    @cp.fuse()
    def plain(x: Any, y: Any) -> Any:
        """Add twice."""
        return x + 2 * y

    @cp.fuse(kernel_name="other")
    def named(x: Any) -> Any:
        x += 1
        return cp.sum(x)

    assert plain(cp.arange(3), cp.arange(3)).tolist() == [0, 3, 6]
    assert plain(1, 2) == 5
    assert (plain.__name__, plain.__doc__) == ("plain", "Add twice.")
    a = cp.zeros(4)
    assert (float(named(a)), a.tolist()) == (4, [1] * 4)
    assert repr(named) == "<Fusion name=other>"
    with pytest.raises(TypeError, match="'name'"):
        cp.fuse(name="x")


BELOW = np.arange(-3, 3).reshape(2, 3)
WRONG: list[Any] = [lambda x: None, str, lambda x: [x], lambda x: np.ones(2) * x]


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f4", "f8", "c8"])
def test_a_function_of_elements_may_branch(cp: Any, dtype: str) -> None:
    def clamp(x: Any, y: Any) -> Any:
        while abs(x) > 1:
            x = x - np.sign(x)
        return x * y if abs(x) == 1 else x

    host = BELOW.astype(dtype)
    made = cp.vectorize(clamp)(cp.asarray(host), cp.asarray(host[:1]))
    wanted = np.vectorize(clamp)(host, host[:1])
    assert isinstance(made, cp.ndarray)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(made.get(), wanted)


def test_results_have_the_type_that_all_branches_share(cp: Any) -> None:
    a = cp.asarray(BELOW, "f4")
    assert cp.vectorize(lambda x: x if x > 0 else 0)(a).dtype == np.float32
    assert cp.vectorize(lambda x: x > 0)(a).dtype == np.bool_
    assert cp.vectorize(lambda _x: 2)(a).dtype == np.int64
    assert cp.vectorize(lambda x, n: x + n)(cp.asarray([1], "i1"), 3).dtype == np.int64
    assert cp.vectorize(lambda x: cp.sin(x) * 2)(a).dtype == np.float32
    np.testing.assert_allclose(cp.vectorize(cp.sin)(a).get(), np.sin(BELOW), rtol=1e-6)
    assert cp.vectorize(lambda x: x * np.float32(2))(cp.zeros((0, 3), "i1")).dtype == np.float32
    assert cp.vectorize(lambda x: x)(cp.zeros((0, 3))).shape == (0, 3)
    low, high = cp.vectorize(lambda x: (min(x, 0), max(x, np.int64(1))))(a)
    np.testing.assert_array_equal(low.get(), BELOW.clip(None, 0))
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
        (TypeError, "of results", lambda: of(lambda x: (x, x) if x > 0 else x)(a - cp.arange(2))),
        (ZeroDivisionError, "", lambda: of(lambda x: 1 // int(x))(cp.zeros(1))),
    )
