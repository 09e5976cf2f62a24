"""`fuse`: functions compute as they are, and reductions take arrays of NumPy, too, as in CuPy."""

from typing import Any

import numpy as np
import pytest

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
    for call in (lambda: cp.sum([1, 2]), lambda: cp.all(HOST), lambda: cp.nansum(HOST)):
        with pytest.raises(TypeError, match="incorrect type"):
            call()


def test_a_fused_function_cannot_branch_by_an_element(cp: Any) -> None:
    @cp.fuse()
    def absolute(x: Any) -> Any:
        return x if x > 0 else -x

    for shape in ((3, 3), (1,), ()):
        with pytest.raises(TypeError, match="Python scalar"):
            absolute(cp.ones(shape))
    for kind in (int, float, complex):
        with pytest.raises(TypeError, match="Python scalar"):
            cp.fuse(lambda x, kind=kind: x * kind(x))(cp.ones(()))
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
