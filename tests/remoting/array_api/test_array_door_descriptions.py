"""Objects that describe an array by ``__cuda_array_interface__``, rightly or not."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import pytest


class Described:
    """Describes an array, with some fields of another description."""

    def __init__(self, array: Any, **fields: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **fields}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"shape": (4, 4)}, ValueError),
        ({"shape": (5,)}, ValueError),
        ({"shape": (-1,)}, ValueError),
        ({"shape": (-2, -2)}, ValueError),
        ({"shape": (2.0,)}, TypeError),
        ({"shape": (1 << 80,)}, ValueError),
        ({"strides": (8, 8)}, ValueError),
        ({"strides": (8.0,)}, TypeError),
        ({"strides": (16,)}, ValueError),
        ({"strides": (-8,)}, ValueError),
        ({"typestr": "<c16"}, ValueError),
        ({"typestr": ">f8"}, ValueError),
        ({"mask": 1}, ValueError),
        ({"data": (8, False)}, TypeError),  # memory of another library
    ],
)
def test_a_wrong_description_is_an_error_at_once(cp: Any, fields: Any, error: Any) -> None:
    [session] = cp._door.pool.sessions()
    a = cp.arange(4.0)
    for _ in range(2):
        with pytest.raises(error):
            cp.asarray(Described(a, **fields))
    session.synchronize()


def test_a_right_description_is_an_array_over_the_same_memory(cp: Any) -> None:
    a = cp.arange(6.0)
    for described, expected in (
        (Described(a), [0, 1, 2, 3, 4, 5]),
        (Described(a, shape=(True,)), [0]),
        (Described(a, shape=(3,), strides=[16]), [0, 2, 4]),
        (Described(a, typestr="<f4", shape=(12,), strides=None), None),
        (Described(a[2:4]), [2, 3]),
        (Described(a[2:4], shape=(4,)), [2, 3, 4, 5]),  # inside the memory of `a`
        (Described(a[5:], shape=(3,), strides=(-16,)), [5, 3, 1]),
        (Described(a[::-1]), [5, 4, 3, 2, 1, 0]),
    ):
        made = cp.asarray(described)
        assert expected is None or made.get().tolist() == expected
    made[0] = 9
    assert a.get().tolist() == [0, 1, 2, 3, 4, 9]


def test_a_described_array_is_an_operand(cp: Any) -> None:
    a = cp.arange(6.0).reshape(2, 3)
    assert (a + Described(a)).tolist() == cp.add(a, Described(a)).tolist() == (a * 2).tolist()
    assert cp.asnumpy(Described(a.T)).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert cp.asarray(Described(cp.zeros((2, 0)))).shape == (2, 0)
