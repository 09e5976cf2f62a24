"""Inference of shapes, dtypes and strides by the drop-in, against NumPy and CuPy's tables."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.properties import examples

DTYPES = "?bBhHiIqQefdFD"
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def filled(shape: tuple[int, ...], dtype: str, order: str = "C") -> np.ndarray[Any, Any]:
    size = int(np.prod(shape, dtype=int))
    made = (np.arange(size) % 7).astype(dtype).reshape(shape)
    return np.asarray(made, order=order)  # type: ignore[call-overload]


def agree(ours: Any, theirs: np.ndarray[Any, Any]) -> None:
    """Compare the inferred properties, then the elements; the worker compares its result too."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours.get(), theirs)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    index = draw(hnp.basic_indices(shape, allow_newaxis=True))
    return shape, index


@given(indexed(), st.sampled_from("CF"))
@settings(max_examples=examples(150), deadline=None)
def test_basic_indexing_is_a_view_with_numpys_strides(cp: Any, pair: Any, order: str) -> None:
    shape, index = pair
    host = filled(shape, "i", order)
    array = cp.asarray(host)
    index_all = (*index, ...) if isinstance(index, tuple) and ... not in index else index
    theirs = np.asarray(
        host[
            index_all
            if isinstance(index_all, tuple)
            else (index_all, ...)
            if index_all is not ...
            else ...
        ]
    )
    ours = array[index]
    agree(ours, theirs)
    if 0 not in theirs.shape:
        for at, length in enumerate(theirs.shape):
            assert length == 1 or ours.strides[at] == theirs.strides[at]
    ours[...] = 99
    theirs[...] = 99
    assert np.array_equal(array.get(), host)


@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5), st.data())
@settings(max_examples=examples(120), deadline=None)
def test_integer_arrays_select_as_in_numpy(
    cp: Any, shape: tuple[int, ...], data: st.DataObject
) -> None:
    host = filled(shape, "q")
    places: list[Any] = []
    joined = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    for length in shape:
        what = data.draw(st.sampled_from(["array", "slice", "int", "array"]))
        if what == "array":
            places.append(
                data.draw(hnp.arrays(np.int64, joined, elements=st.integers(-length, length - 1)))
            )
        elif what == "slice":
            places.append(data.draw(st.slices(length)))
        else:
            places.append(data.draw(st.integers(0, length - 1)))
    if not any(isinstance(place, np.ndarray) for place in places):
        places[0] = np.zeros(joined, np.int64)
    theirs = np.asarray(host[tuple(places)])
    array = cp.asarray(host)
    index = tuple(cp.asarray(p) if isinstance(p, np.ndarray) else p for p in places)
    agree(array[index], theirs)
    host[tuple(places)] = 5
    array[index] = 5
    assert np.array_equal(array.get(), host)


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_masks_select_and_set(cp: Any, shape: tuple[int, ...], data: st.DataObject) -> None:
    host = filled(shape, "d")
    mask = data.draw(hnp.arrays(np.bool_, shape[: data.draw(st.integers(1, len(shape)))]))
    array = cp.asarray(host)
    agree(array[cp.asarray(mask)], host[mask])
    host[mask] = -1
    array[cp.asarray(mask)] = -1
    assert np.array_equal(array.get(), host)


def test_integer_indices_wrap_as_on_a_gpu(cp: Any) -> None:
    array = cp.arange(3)
    assert array[[1, 3]].get().tolist() == [1, 0]
    array[cp.array([1, 3])] = 10
    assert array.get().tolist() == [10, 10, 2]


@given(SHAPES, st.sampled_from("CF"), st.data())
@settings(max_examples=examples(120), deadline=None)
def test_reshape_and_transpose(
    cp: Any, shape: tuple[int, ...], order: str, data: st.DataObject
) -> None:
    host = filled(shape, "f", order)
    array = cp.asarray(host)
    axes = data.draw(st.permutations(range(len(shape))))
    ours, theirs = array.transpose(axes), host.transpose(axes)
    agree(ours, theirs)
    target = data.draw(st.permutations(shape))
    agree(ours.reshape(target), theirs.reshape(target))
    agree(ours.reshape(-1), theirs.reshape(-1))
    agree(ours.ravel(order), theirs.ravel(order))  # type: ignore[arg-type]
    for kept in "CFAK":
        copied, reference = ours.copy(kept), theirs.copy(kept)  # type: ignore[call-overload]
        agree(copied, reference)
        assert copied.flags.c_contiguous == reference.flags.c_contiguous
        assert copied.flags.f_contiguous == reference.flags.f_contiguous


@given(indexed(), st.sampled_from("CF"), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_reshape_is_a_view_exactly_where_numpys_is(
    cp: Any, pair: Any, order: str, data: st.DataObject
) -> None:
    shape, index = pair
    host = filled(shape, "i", order)
    items = index if isinstance(index, tuple) else (index,)
    part = host[items if ... in items else (*items, ...)]
    ours = cp.asarray(host)[index]
    wanted = data.draw(st.permutations([*part.shape, 1]))
    for letter in "CF":
        theirs = part.reshape(wanted, order=letter)  # type: ignore[call-overload]
        made = ours.reshape(wanted, order=letter)
        agree(made, theirs)
        if theirs.size > 1:
            assert (made.base is not None) == np.may_share_memory(theirs, host)


@given(SHAPES, st.sampled_from(DTYPES), st.booleans(), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_reductions(
    cp: Any, shape: tuple[int, ...], dtype: str, keepdims: bool, data: st.DataObject
) -> None:
    host = filled(shape, dtype)
    array = cp.asarray(host)
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1)) if shape else None
    for name in ("sum", "prod", "any", "all"):
        ours = getattr(cp, name)(array, axis=axis, keepdims=keepdims)
        agree(ours, np.asarray(getattr(np, name)(host, axis=axis, keepdims=keepdims)))
    if host.size:
        for name in ("max", "min", "argmax"):
            if dtype in "FD":
                continue
            ours = getattr(cp, name)(array, axis=axis, keepdims=keepdims)
            agree(ours, np.asarray(getattr(np, name)(host, axis=axis, keepdims=keepdims)))
        ours = array.mean(axis, keepdims=keepdims)
        theirs = np.asarray(host.mean(axis, keepdims=keepdims))
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


@given(SHAPES, SHAPES)
@settings(max_examples=examples(100), deadline=None)
def test_broadcasting(cp: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = filled(left, "q"), filled(right, "h")
    try:
        theirs = np.asarray(a + b)
    except ValueError:
        with pytest.raises(ValueError, match="could not be broadcast"):
            assert cp.asarray(a) + cp.asarray(b) is None
        return
    agree(cp.asarray(a) + cp.asarray(b), theirs)


@pytest.mark.parametrize(
    "name", ["add", "multiply", "true_divide", "power", "maximum", "less", "arctan2", "logical_and"]
)
@pytest.mark.parametrize("first", DTYPES)
def test_result_types_of_pairs_are_numpys(cp: Any, name: str, first: str) -> None:
    for second in [*DTYPES, int, float, complex]:
        a = np.ones(2, first)
        b = second(1) if isinstance(second, type) else np.ones(2, second)
        try:
            wanted = getattr(np, name)(a, b).dtype
        except TypeError:
            continue
        theirs = cp.asarray(b) if isinstance(b, np.ndarray) else b
        try:
            ours = getattr(cp, name)(cp.asarray(a), theirs)
        except TypeError:
            # NumPy computes logic of complex numbers and mixed 64-bit integers; CuPy has no loop.
            assert name in ("logical_and", "arctan2", "less", "maximum")
            continue
        assert ours.dtype == wanted, (name, first, second)
        ours.get()


def test_python_integers_out_of_range_are_refused_at_once(cp: Any) -> None:
    array = cp.zeros(2, cp.uint8)
    with pytest.raises(OverflowError):
        assert array + 256 is None
    with pytest.raises(OverflowError):
        assert array + -1 is None
    assert (array == 256).get().tolist() == [False, False]
    assert (array + 255).get().tolist() == [255, 255]


@pytest.mark.parametrize(
    "call",
    [
        lambda cp, a: a.reshape(5),
        lambda cp, a: a[7],
        lambda cp, a: a[0, 0, 0],
        lambda cp, a: a.sum(axis=2),
        lambda cp, a: a @ a,
        lambda cp, a: cp.concatenate([a, a.T]),
        lambda cp, a: a + np.ones(3),
        lambda cp, a: cp.add(a, a, out=cp.zeros(1)),
        lambda cp, a: np.asarray(a),
        lambda cp, a: a.astype(object),
        lambda cp, a: cp.zeros((2, -1)),
        lambda cp, a: bool(a),
        lambda cp, a: cp.linalg.inv(a),
        lambda cp, a: a.__setitem__(slice(None), cp.zeros(5)),
        lambda cp, a: cp.zeros(2) + [1, 2],  # noqa: RUF005 - arrays and lists do not join
    ],
)
def test_mistakes_are_raised_where_they_are_made(cp: Any, call: Any) -> None:
    with pytest.raises((ValueError, TypeError, IndexError, np.linalg.LinAlgError)) as caught:
        call(cp, cp.zeros((2, 3)))
    assert not getattr(caught.value, "__notes__", [])


def test_a_wrong_inference_is_an_error_and_not_a_wrong_result(cp: Any) -> None:
    from cupy._core.dispatch import make  # pyright: ignore[reportMissingImports]
    from cupy._door.errors import MismatchError  # pyright: ignore[reportMissingImports]
    from cupy._door.meta import fresh  # pyright: ignore[reportMissingImports]

    array = cp.arange(4.0)
    wrong = make.forward("sqrt", (array,), {}, fresh(np.dtype(np.float32), (4,)))
    with pytest.raises(MismatchError, match="the client inferred float32"):
        wrong.get()
    assert array.get().tolist() == [0, 1, 2, 3]
