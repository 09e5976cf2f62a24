"""Functions of single elements that are no ufuncs: the shape and type follow from the operands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, learning, make
from cupy._core.dispatch.arguments import is_array
from cupy._core.learned import nonzero
from cupy._core.ufunc import broadcast
from cupy._door.calls import Plan
from cupy._door.meta import fresh

if TYPE_CHECKING:
    from cupy._core.array import ndarray


def clip(a: object, a_min: object, a_max: object, out: Any = None) -> ndarray:
    """Limit the elements to a range."""
    if not is_array(a):
        return arguments.able(a, "clip").clip(a_min, a_max, out=out)
    brief = learning.short("clip", (a, a_min, a_max), {}) if out is None else None
    made = learning.recall(brief)
    if made is not learning.UNKNOWN:
        return made
    array = a
    if a_min is None and a_max is None:
        if out is None:
            return array.copy()
        make.in_place("copyto", (out, array), {})
        return out
    low, high = (None if x is None else arguments.operand(x) for x in (a_min, a_max))
    given = [x for x in (low, high) if x is not None]
    shape = broadcast(array.shape, *[x.shape for x in given if is_array(x)])
    kinds = [arguments.operand_type(x) for x in given]
    kind = arguments.weak_result(array.dtype, kinds)
    if out is not None:
        arguments.check_out(out, kind, shape)
        make.in_place("clip", (array, low, high), {"out": out})
        return out
    learning.keep(brief, "clip", (array, low, high), {}, fresh(kind, shape))
    return make.forward("clip", (array, low, high), {}, fresh(kind, shape))


_choices: dict[object, Plan] = {}


def where(condition: object, x: object = None, y: object = None) -> Any:
    """Choose elements by a condition; with the condition alone, the indices where it holds."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if x is None:
        return nonzero(condition)
    args = (condition, x, y)
    key = make.looks(args)
    plan = _choices.get(key)
    if plan is not None:
        return make.send_mixed(args, plan, sys._getframe(1))
    condition, x, y = arguments.operand(condition), arguments.operand(x), arguments.operand(y)
    shapes = [v.shape for v in (condition, x, y) if is_array(v)]
    kinds = [arguments.operand_type(v) for v in (x, y)]
    strong = [k for k in kinds if isinstance(k, np.dtype)]
    if strong:
        kind = arguments.weak_result(strong[0], [k for k in kinds if k is not strong[0]])
    else:
        kind = np.result_type(*[np.dtype(k) for k in kinds])
    if not is_array(condition):
        condition = bool(condition)
    meta = fresh(kind, broadcast(*shapes) if shapes else ())
    return make.forward_planned(_choices, "where", (condition, x, y), meta)


def real(val: object) -> ndarray:
    """Return the real part."""
    return convert.asarray(val).real


def imag(val: object) -> ndarray:
    """Return the imaginary part."""
    return convert.asarray(val).imag


ELEMENTWISE = make.public(globals())
