"""Matrix and tensor products."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.ufunc import broadcast
from cupy._door import state
from cupy._door.calls import Plan
from cupy._door.meta import fresh
from cupy._door.older import zip_strict

_frame = sys._getframe  # pyright: ignore[reportPrivateUsage]


def _result(a: Any, b: Any) -> np.dtype[Any]:
    return np.promote_types(a.dtype, b.dtype)


_matmuls: dict[Any, Plan] = {}
_dots: dict[Any, Plan] = {}


def _matmul_shape(left: Any, right: Any) -> tuple[int, ...]:
    """Return the shape of a matrix product; ValueError where the operands do not fit."""
    if not left or not right:
        raise ValueError("matmul: operand has zero dimensions")
    if left[-1] != (right[-2] if len(right) > 1 else right[0]):
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            f"signature (n?,k),(k,m?)->(n?,m?) (size {right[-2:][0]} is different from {left[-1]})"
        )
    batch = broadcast(left[:-2], right[:-2])
    return batch + (left[-2:-1]) + (right[-1:] if len(right) > 1 else ())


def _matters(key: str, value: Any) -> bool:
    """Say whether a keyword of a ufunc differs from its default."""
    return value is not None and not (key in ("casting", "order") and value in ("same_kind", "K"))


def matmul(*args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Return the matrix product, broadcasting over leading axes."""
    short = out is None and not kwargs and len(args) == 2
    if short and type(args[0]) is type(args[1]) is make.classes.ndarray:
        plan = _matmuls.get((args[0]._gp_known, args[1]._gp_known))
        if plan is not None:
            return make.send_pair(args[0], args[1], plan, _frame(1))
    if len(args) == 3 and out is None:
        *args, out = args  # type: ignore[assignment]
    if len(args) != 2:
        raise TypeError(f"matmul() takes 2 arrays, but {len(args)} were given")
    a, b = need(args[0], "x1"), need(args[1], "x2")
    if kwargs.keys() & {"axes", "axis", "keepdims", "order"}:
        return _matmul_laid_out(a, b, out, **kwargs)
    shape = _matmul_shape(a.shape, b.shape)
    keywords = {key: value for key, value in kwargs.items() if _matters(key, value)}
    if unknown := keywords.keys() - {"dtype", "casting"}:
        raise TypeError(f"matmul() got an unexpected keyword argument {min(unknown)!r}")
    kind = arguments.dtype_of(keywords["dtype"]) if "dtype" in keywords else _result(a, b)
    if out is not None:
        if need(out, "out").shape != shape:
            raise ValueError("Output array has an invalid size")
        arguments.check_cast(kind, out.dtype, keywords.get("casting", "same_kind"))
        make.in_place("matmul", (a, b), {**keywords, "out": out})
        return out
    looks = fresh(kind, shape)
    if short:
        plan = Plan("matmul", ("h", "h"), (), "QQ", (looks,))
        make.remember(_matmuls, (a._gp_meta, b._gp_meta), plan)
    return make.forward("matmul", (a, b), keywords, looks)


def _matmul_laid_out(
    a: Any,
    b: Any,
    out: Any,
    *,
    axes: Any = None,
    axis: Any = None,
    keepdims: bool = False,
    order: str = "K",
    **keywords: Any,
) -> Any:
    """Return the matrix product over axes and in an order that are named.

    CuPy transposes views of the operands and of the result, and so does this.
    """
    if axis is not None:
        raise ValueError(
            "`axis` can be used only, if there is a single shared core dimension, but 3 are "
            "present in the signature (n?,k),(k,m?)->(n?,m?)"
        )
    if keepdims:
        raise ValueError("`keepdims` can only be used for scalar outputs")
    letter = arguments.normalize_order(order)
    if letter == "A":
        strict = all(each._gp_meta.contiguity == (False, True) for each in (a, b))
        letter = "F" if strict else "C"
    turns: list[Any] = [None, None, None]
    if axes is not None:
        if not isinstance(axes, list):
            raise ValueError("`axes` has to be of type list")
        if len(axes) != 3:
            raise ValueError(
                "The number of `axes` entries is not equal to the number of input and output "
                "arguments. Outputs may only be omitted if they are all scalar."
            )
        turns[:2] = [_turned(one, each.ndim) for one, each in zip_strict(axes[:2], (a, b))]
    first, second = (
        each if turn is None else each.transpose(turn)
        for each, turn in zip_strict((a, b), turns[:2])
    )
    shape = _matmul_shape(first.shape, second.shape)
    cores = (first.ndim > 1) + (second.ndim > 1)
    if axes is not None:
        turns[2] = _turned(axes[2], len(shape), cores)
    turn = turns[2] or tuple(range(len(shape)))
    if out is None:
        kind = keywords.get("dtype")
        kind = _result(a, b) if kind is None else arguments.dtype_of(kind)
        lengths = tuple(shape[turn.index(at)] for at in range(len(shape)))
        out = make.empty(lengths, kind, order="F" if letter == "F" else "C")
    matmul(first, second, out=need(out, "out").transpose(turn), **keywords)
    return out


def _turned(axes: Any, ndim: int, cores: int | None = None) -> tuple[int, ...] | None:
    """Return the order of axes that brings those of one matrix to the end; None if it is so."""
    cores = min(ndim, 2) if cores is None else cores
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    if len(given) != cores:
        raise np.exceptions.AxisError(
            f"{len(given)} axes of a matrix were given, but it has {cores}"
        )
    places = arguments.axes_of(given, ndim)
    order = (*(at for at in range(ndim) if at not in places), *places)
    return None if order == tuple(range(ndim)) else order


def _operator(a: Any, b: Any) -> Any:
    """Return ``a @ b`` of two arrays."""
    plan = _matmuls.get((a._gp_known, b._gp_known))
    # From the program by way of the array's own method.
    return matmul(a, b) if plan is None else make.send_pair(a, b, plan, _frame(2))


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return the dot product of two arrays."""
    ndarray: Any = make.classes.ndarray
    if out is None and type(a) is type(b) is ndarray:
        plan = _dots.get((a._gp_known, b._gp_known))
        if plan is not None:
            return make.send_pair(a, b, plan, _frame(1))
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        if arguments.is_scalar(a) or arguments.is_scalar(b):
            return state.hooks["ufuncs"]["multiply"](a, b, out=out)
        if not isinstance(a, ndarray):
            return arguments.able(a, "dot").dot(b, out)
        need(b, "b")
    kind = _result(a, b)
    if not a.ndim or not b.ndim:
        shape = a.shape or b.shape
    else:
        inner_axis = b.shape[-2] if b.ndim > 1 else b.shape[0]
        if a.shape[-1] != inner_axis:
            raise ValueError("Axis dimension mismatch")
        shape = a.shape[:-1] + b.shape[:-2] + (b.shape[-1:] if b.ndim > 1 else ())
    if out is not None:
        if out.shape != shape or out.dtype != kind:
            raise ValueError("Output array has an invalid size or dtype")
        make.in_place("dot", (a, b), {"out": out})
        return out
    plan = Plan("dot", ("h", "h"), (), "QQ", (fresh(kind, shape),))
    make.remember(_dots, (a._gp_meta, b._gp_meta), plan)
    return make.send_pair(a, b, plan, None)


def vdot(a: Any, b: Any) -> Any:
    """Return the dot product of two flattened arrays, the first conjugated."""
    if need(a).size != need(b, "b").size:
        raise ValueError("Axis dimension mismatch")
    return make.forward("vdot", (a, b), {}, fresh(_result(a, b), ()))


def inner(a: Any, b: Any) -> Any:
    """Return the product over the last axes."""
    ndarray: Any = state.hooks["ndarray"]
    if not isinstance(a, ndarray) or not isinstance(b, ndarray) or not a.ndim or not b.ndim:
        return state.hooks["ufuncs"]["multiply"](a, b)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError("Axis dimension mismatch")
    return make.forward("inner", (a, b), {}, fresh(_result(a, b), a.shape[:-1] + b.shape[:-1]))


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of all pairs of elements."""
    first, second = convert.asarray(a).ravel(), convert.asarray(b).ravel()
    if out is not None:
        return state.hooks["ufuncs"]["multiply"](first[:, None], second[None, :], out)
    shape = (first.size, second.size)
    return make.forward("outer", (first, second), {}, fresh(_result(first, second), shape))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the product summed over axes."""
    first, second = need(a), need(b, "b")
    try:
        count = arguments.integer(axes)
    except TypeError:
        over_a = arguments.axes_of(axes[0], first.ndim)
        over_b = arguments.axes_of(axes[1], second.ndim)
    else:
        over_a, over_b = tuple(range(first.ndim - count, first.ndim)), tuple(range(count))
    if not first.ndim or not second.ndim:
        if over_a or over_b:
            raise ValueError("An input is zero-dim while axes has dimensions")
        return state.hooks["ufuncs"]["multiply"](first, second)
    if len(over_a) != len(over_b) or any(
        first.shape[x] != second.shape[y] for x, y in zip_strict(over_a, over_b)
    ):
        raise ValueError("Axes dimension mismatch")
    shape = tuple(n for at, n in enumerate(first.shape) if at not in over_a)
    shape += tuple(n for at, n in enumerate(second.shape) if at not in over_b)
    looks = fresh(_result(first, second), shape)
    return make.forward("tensordot", (first, second, (over_a, over_b)), {}, looks)


def kron(a: Any, b: Any) -> Any:
    """Return the Kronecker product."""
    first, second = convert.asarray(a), convert.asarray(b)
    ndim = max(first.ndim, second.ndim)
    left = (1,) * (ndim - first.ndim) + first.shape
    right = (1,) * (ndim - second.ndim) + second.shape
    shape = tuple(x * y for x, y in zip_strict(left, right))
    return make.forward("kron", (first, second), {}, fresh(_result(first, second), shape))


def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    """Return the sum along a diagonal."""
    if not isinstance(a, state.hooks["ndarray"]):
        return arguments.able(a, "trace").trace(offset, axis1, axis2, dtype, out)
    return a.diagonal(offset, axis1, axis2).sum(-1, dtype, out, False)


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None
) -> Any:
    """Return the vector product."""
    keywords = {"axisa": axisa, "axisb": axisb, "axisc": axisc} if axis is None else {"axis": axis}
    return make.lazy("cross", (convert.asarray(a), convert.asarray(b)), keywords)


def _einsum_plain(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return subscripts and arrays, also from the form that alternates arrays and lists."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(operands[1:])
    arrays: list[Any] = []
    parts: list[str] = []
    items = list(operands)
    while len(items) >= 2:
        arrays.append(items.pop(0))
        parts.append(_letters(items.pop(0)))
    text = ",".join(parts)
    return (f"{text}->{_letters(items[0])}" if items else text), arrays


def _letters(numbers: Any) -> str:
    return "".join(
        "..." if n is Ellipsis else chr(ord("A") + n if n < 26 else ord("a") + n - 26)
        for n in numbers
    )


def _einsum_shape(text: str, arrays: list[Any]) -> tuple[int, ...]:
    """Return the shape of a result; ValueError where the subscripts do not fit."""
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise ValueError(
            "more operands provided to einstein sum function than specified in the subscripts "
            "string"
        )
    sizes: dict[str, int] = {}
    spread: tuple[int, ...] = ()
    for term, array in zip_strict(terms, arrays):
        before, dots, after = term.partition("...")
        named = len(before) + len(after)
        if named > array.ndim or (not dots and named != array.ndim):
            raise ValueError(
                "einstein sum subscripts string contains too many subscripts for operand"
                if named > array.ndim
                else "operand has more dimensions than subscripts given in einstein sum, but no "
                "'...' ellipsis provided to broadcast the extra dimensions."
            )
        tail = array.ndim - len(after)
        spread = broadcast(spread, array.shape[len(before) : tail])
        for letter, length in zip(before + after, array.shape[: len(before)] + array.shape[tail:]):
            if not letter.isalpha():
                raise ValueError(
                    f"invalid subscript {letter!r} in einstein sum subscripts string, "
                    "subscripts must be letters"
                )
            known = sizes.setdefault(letter, length)
            if known == 1:
                sizes[letter] = length
            elif length not in (1, known):
                raise ValueError(f"dimension mismatch for label {letter!r}: {known} and {length}")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = "..." + "".join(sorted({x for x in letters if letters.count(x) == 1}))
    before, dots, after = right.partition("...")
    for letter in before + after:
        if letter not in sizes or (before + after).count(letter) > 1:
            raise ValueError(
                f"einstein sum subscripts string includes output subscript {letter!r} wrongly"
            )
    return (*(sizes[x] for x in before), *(spread if dots else ()), *(sizes[x] for x in after))


def _einsum_strides(text: str, array: Any) -> tuple[int, ...] | None:
    """Return the strides of a result that is a view of its only operand; None if it is none.

    Where nothing is summed, NumPy and CuPy return a view in the operand's dtype, through which a
    program may write: axes in another order, and diagonals.
    """
    left, arrow, right = text.partition("->")
    before, dots, after = left.partition("...")
    middle = array.ndim - len(before) - len(after)
    # Axes behind the ellipsis get names that no subscript has.
    names = [*before, *range(middle), *after]
    steps: dict[Any, int] = {}
    lengths: dict[Any, int] = {}
    for name, length, step in zip_strict(names, array.shape, array.strides):
        if lengths.setdefault(name, length) != length:
            return None
        steps[name] = steps.get(name, 0) + step
    if not arrow:
        right = "..." + "".join(
            sorted(x for x in steps if isinstance(x, str) and left.count(x) == 1)
        )
    before, dots, after = right.partition("...")
    wanted = [*before, *(range(middle) if dots else ()), *after]
    if len(wanted) != len(steps):
        return None
    return tuple(steps[name] for name in wanted)


def einsum(*operands: Any, **kwargs: Any) -> Any:
    """Evaluate the Einstein summation of arrays."""
    if not operands:
        raise ValueError("must provide at least an operand and a subscripts list for einsum")
    text, arrays = _einsum_plain(operands)
    dtype = kwargs.pop("dtype", None)
    optimize = kwargs.pop("optimize", False)
    if kwargs:
        raise TypeError(f"Did not understand the following kwargs: {sorted(kwargs)}")
    arrays = [convert.asarray(item) for item in arrays]
    shape = _einsum_shape(text, arrays)
    if len(arrays) == 1:
        steps = _einsum_strides(text, arrays[0])
        if steps is not None:
            return make.as_strided(arrays[0], shape, steps)
    kind = (
        np.result_type(*[a.dtype for a in arrays]) if dtype is None else arguments.dtype_of(dtype)
    )
    keywords: dict[str, Any] = {} if dtype is None else {"dtype": kind}
    if optimize is not False and isinstance(optimize, (bool, str)):
        keywords["optimize"] = optimize
    return make.forward("einsum", (text, *arrays), keywords, fresh(kind, shape))


PRODUCTS: dict[str, Any] = make.public(globals())
state.hooks["matmul"] = _operator
