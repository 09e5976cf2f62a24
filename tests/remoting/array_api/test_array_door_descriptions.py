"""Objects that describe an array by ``__cuda_array_interface__``, rightly or not."""

from typing import Any

import pytest
from door_cases import Described, refused

WRONG: list[tuple[type[Exception], dict[str, Any]]] = [
    *((ValueError, {"shape": shape}) for shape in ((4, 4), (5,), (-1,), (-2, -2), (1 << 80,))),
    *((ValueError, {"strides": strides}) for strides in ((8, 8), (16,), (-8,))),
    *((ValueError, {"typestr": kind}) for kind in ("<c16", ">f8")),
    (ValueError, {"mask": 1}),
    (TypeError, {"shape": (2.0,)}),
    (TypeError, {"strides": (8.0,)}),
    (TypeError, {"data": (8, False)}),  # memory of another library
]


@pytest.mark.parametrize(("error", "fields"), WRONG)
def test_a_wrong_description_is_an_error_at_once(cp: Any, error: Any, fields: Any) -> None:
    a = cp.arange(4.0)
    refused(*[(error, "", lambda: cp.asarray(Described(a, **fields)))] * 2)
    cp._door.pool.current().synchronize()


def test_a_right_description_is_an_array_over_the_same_memory(cp: Any) -> None:
    a = cp.arange(6.0)
    for described, expected in (
        (Described(a), [0, 1, 2, 3, 4, 5]),
        (Described(a, shape=(True,)), [0]),
        (Described(a, shape=(3,), strides=[16]), [0, 2, 4]),
        (Described(a, typestr="<f4", shape=(12,), strides=None), None),
        (Described(a[2:4], shape=(4,)), [2, 3, 4, 5]),  # inside the memory of `a`
        (Described(a[5:], shape=(3,), strides=(-16,)), [5, 3, 1]),
        (Described(a[::-1]), [5, 4, 3, 2, 1, 0]),
    ):
        made = cp.asarray(described)
        assert expected is None or made.tolist() == expected
    made[0] = 9
    assert a.tolist() == [0, 1, 2, 3, 4, 9]


def test_functions_take_an_object_that_describes_our_memory(cp: Any) -> None:
    a = cp.arange(6.0).reshape(2, 3)
    for made in (cp.asarray(Described(a)), cp.array(Described(a), copy=False)):
        made[0, 0] += 10
    assert cp.asarray(Described(a.T)).strides == a.T.strides
    for made in (cp.add(a, Described(a)), a + Described(a)):
        assert float(made[0, 0]) == 40
    assert cp.asnumpy(Described(a[1])).tolist() == [3, 4, 5]
    assert cp.asarray(Described(cp.zeros((2, 0)))).shape == (2, 0)
    moved = Described(a, data=(a.data.ptr + 8, False))
    for call in (cp.asnumpy, cp.asarray, cp.array):
        refused((TypeError, "Described holds GPU memory of this process", lambda: call(moved)))  # noqa: B023
