"""`cupy.testing` and `cupy.typing`: the imports of programs' tests and annotations."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from door_cases import refused


@pytest.fixture
def testing(cp: Any) -> Any:
    return importlib.import_module("cupy.testing")


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "assert_allclose": ([1.0, 2.1], {"rtol": 0.01}),
    "assert_array_almost_equal": ([1.0, 2.01], {"decimal": 3}),
    "assert_array_almost_equal_nulp": ([1.0, 2.01], {"nulp": 4}),
    "assert_array_max_ulp": ([1.0, 2.01], {"maxulp": 4}),
    "assert_array_equal": ([1.0, 3.0], {}),
    "assert_array_less": ([2.0, 2.0], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_assertion_takes_arrays_of_both_kinds(cp: Any, testing: Any, name: str) -> None:
    left, (wrong, keywords) = [1.0, 2.0], CASES[name]
    right = [3.0, 3.0] if name == "assert_array_less" else left
    check: Callable[..., None] = getattr(testing, name)
    for x in (np.asarray(left), cp.asarray(left)):
        for kind in (np, cp):
            check(x, kind.asarray(right), **keywords)
            refused((AssertionError, "", lambda: check(x, kind.asarray(wrong), **keywords)))  # noqa: B023


def test_types_and_strides_are_compared_where_one_asks(cp: Any, testing: Any) -> None:
    whole, real = cp.ones((2, 3), "i4"), cp.ones((2, 3), "f8")
    testing.assert_array_equal(whole, real)
    turned, check = cp.asfortranarray(whole), testing.assert_array_equal
    check(whole, turned)
    strict = AssertionError if testing._has_strict else NotImplementedError
    refused(
        (strict, "", lambda: check(whole, real, strict=True)),
        (AssertionError, "Strides", lambda: check(whole, turned, strides_check=True)),
        (AssertionError, "it says", lambda: check(cp.ones(2), cp.zeros(2), err_msg="it says")),
    )


def test_lists_of_arrays(cp: Any, testing: Any) -> None:
    some, same = [cp.ones(2), np.zeros(3)], [np.ones(2), cp.zeros(3)]
    check = testing.assert_array_list_equal
    check(some, same)
    for other in ([], tuple(same), [np.ones(2), cp.ones(3)]):
        refused((AssertionError, "", lambda: check(some, other)))  # noqa: B023
    refused((AssertionError, "list or a tuple", lambda: check(cp.ones(2), cp.ones(2))))


def test_annotations_and_packages_that_need_no_import(cp: Any) -> None:
    typing = importlib.import_module("cupy.typing")
    assert typing.NDArray[np.float32].__origin__ is cp.ndarray
    assert all((typing.ArrayLike, typing.DTypeLike, typing.NBitBase))
    assert cp.typing is typing
    assert cp.testing.assert_allclose
    cupyx = importlib.import_module("cupyx")
    assert cupyx.scipy.__name__ == "cupyx.scipy"
    assert list(cp.ndindex(2, 1)) == [(0, 0), (1, 0)]
    assert cp.cuda.get_nvcc_path() is None
