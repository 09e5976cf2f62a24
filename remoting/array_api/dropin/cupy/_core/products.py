"""Matrix products."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import need
from cupy._core.ufunc import UFUNCS, broadcast
from cupy._door.calls import Plan
from cupy._door.meta import fresh

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_frame = sys._getframe


def _result(a: ndarray, b: ndarray) -> np.dtype:
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


def _matters(key: str, value: object) -> bool:
    """Say whether a keyword of a ufunc differs from its default."""
    return value is not None and not (key in ("casting", "order") and value in ("same_kind", "K"))


def matmul(*args: Any, out: Any = None, **kwargs: Any) -> ndarray:
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
        made = make.ask("matmul", a, b, **({} if out is None else {"out": out}), **kwargs)
        return made if out is None else out
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


def operator(a: Any, b: Any) -> Any:
    """Return ``a @ b`` of two arrays."""
    plan = _matmuls.get((a._gp_known, b._gp_known))
    # From the program by way of the array's own method.
    return matmul(a, b) if plan is None else make.send_pair(a, b, plan, _frame(2))


def dot(a: Any, b: Any, out: Any = None) -> ndarray:
    """Return the dot product of two arrays."""
    ndarray = make.classes.ndarray
    if out is None and type(a) is type(b) is ndarray:
        plan = _dots.get((a._gp_known, b._gp_known))
        if plan is not None:
            return make.send_pair(a, b, plan, _frame(1))
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        if arguments.is_scalar(a) or arguments.is_scalar(b):
            return UFUNCS["multiply"](a, b, out=out)
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


PRODUCTS = {"dot": dot, "matmul": matmul}
