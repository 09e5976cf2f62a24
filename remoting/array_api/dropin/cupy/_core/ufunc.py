"""Universal functions: CuPy's choice of a loop, and the shortest way to send the call."""

from __future__ import annotations

import math
import struct
import sys
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from cupy._core import convert, indexing
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.loops import LOOPS, Loop
from cupy._door import dtypes
from cupy._door.calls import Plan
from cupy._door.meta import Meta, fresh
from cupy._door.older import zip_strict

if TYPE_CHECKING:
    from cupy._core.array import ndarray

_frame = sys._getframe
_PAIR = struct.Struct("<QQQ").pack
_ONE = struct.Struct("<QQ").pack
_FLOAT_RIGHT = struct.Struct("<QQd").pack
_PAIR_INTO = struct.Struct("<QQQQ").pack
_FLOAT_INTO = struct.Struct("<QQdQ").pack
_FLOAT_LEFT = struct.Struct("<QdQ").pack
_INT_RIGHT = struct.Struct("<QQq").pack
_INT_LEFT = struct.Struct("<QqQ").pack
_WEAK: dict[type, np.dtype] = {
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
_BOOL = np.dtype(np.bool_)
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
_COMPARES = """
    equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor
"""
_COMPARE = frozenset(_COMPARES.split())

_REAL = ("arctan2", "copysign", "hypot", "i0", "nextafter")
"""Functions with complex loops that CuPy lists, and no compiler takes."""

_METHODS = {
    ("add", "reduce"): "sum",
    ("add", "accumulate"): "cumsum",
    ("multiply", "reduce"): "prod",
    ("multiply", "accumulate"): "cumprod",
}
_AT = frozenset(("add", "subtract", "maximum", "minimum", *_BITS))

Operand = Union[np.dtype, type]
"""A dtype, or int, float, complex for a Python number, a type that yields to the arrays'."""


def _kind_score(kind: Any) -> int:
    if issubclass(kind, np.bool_):
        return 0
    if issubclass(kind, (np.integer, int)):
        return 1
    return 2 if issubclass(kind, (np.inexact, float, complex)) else 3


def _use_weak(operands: tuple[Operand, ...]) -> bool:
    arrays = [_kind_score(item.type) for item in operands if isinstance(item, np.dtype)]
    scalars = [_kind_score(item) for item in operands if not isinstance(item, np.dtype)]
    return bool(arrays) and bool(scalars) and max(arrays) >= max(scalars)


def _accepts(operand: Operand, wanted: np.dtype, weak: bool) -> bool:
    if isinstance(operand, np.dtype):
        return np.can_cast(operand, wanted)
    if np.can_cast(_WEAK[operand], wanted):
        return True
    if not weak:
        return False
    # A weak scalar fits unless it is of a higher kind than the loop.
    return (
        wanted.kind != "b"
        and {int: "iufc", float: "fc", complex: "c"}[operand].find(wanted.kind) >= 0
    )


class ufunc:
    """A function that works element by element and broadcasts; see `numpy.ufunc`."""

    def __init__(self, name: str, loops: list[str], operation: str | None = None) -> None:
        self.name = f"cupy_{name}"
        self.__name__ = name
        self.operation = operation or name
        beyond = "VFD" if name in _REAL else "V"
        self._loops = [Loop(text) for text in loops if text[0] not in beyond]
        self.types = loops
        self._by_fields = "VV->?" in loops
        self.nin = len(self._loops[0].inputs)
        self.nout = len(self._loops[0].outputs)
        self.nargs = self.nin + self.nout
        self._memo: dict[object, Plan] = {}
        self._resolved: dict[object, Loop] = {}

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def resolve(self, operands: tuple[Operand, ...], dtype: object = None) -> Loop:
        """Return the loop that CuPy's ``guess_routine`` chooses; TypeError if there is none."""
        key = (operands, dtype)
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._find(operands, dtype)
        return found

    def _find(self, operands: tuple[Operand, ...], dtype: object) -> Loop:
        if self._by_fields and dtype is None and dtypes.are_compared(operands):
            return self._loops[0]  # whose result has the right type
        if dtype is not None:
            for loop in self._loops:
                if all(output == dtype for output in loop.outputs):
                    return loop
            raise TypeError(f"Wrong type ({dtype}) of arguments for {self.name}")
        weak = _use_weak(operands)
        for loop in self._loops:
            if all(
                _accepts(operand, wanted, weak or self.operation in _COMPARE)
                for operand, wanted in zip_strict(operands, loop.inputs)
            ):
                if (self.operation, loop.inputs[0].kind) in (("subtract", "b"), ("negative", "b")):
                    self._refuse_bool()
                return loop
        types = tuple(item if isinstance(item, np.dtype) else _WEAK[item] for item in operands)
        raise TypeError(f"Wrong type ({types}) of arguments for {self.name}")

    def _refuse_bool(self) -> None:
        if self.operation == "subtract":
            raise TypeError(
                "numpy boolean subtract, the `-` operator, is deprecated, use the bitwise_xor, "
                "the `^` operator, or the logical_xor function instead."
            )
        raise TypeError(
            "The numpy boolean negative, the `-` operator, is not supported, "
            "use the `~` operator or the logical_not function instead."
        )

    # --- the hot paths --------------------------------------------------------------------------

    def pair(self, a: Any, b: Any) -> ndarray:
        """Apply to two arrays."""
        plan = self._memo.get((a._gp_known, b._gp_known))
        session = a._gp_session
        if plan is None or b._gp_session is not session:
            plan = self._plan_pair(a, b)
        handle = next(session.handles)
        device = session.emit(plan, _PAIR(handle, a._gp_handle, b._gp_handle), _frame(2))
        kind, plain = type(a), make.classes.ndarray
        if kind is plain:
            if type(b) is plain:
                return make.plain(session, handle, plan.metas[0], device)
            a, kind = b, type(b)
        return make.result(session, handle, plan.metas[0], device, kind, source=a)

    def right(self, a: Any, number: Any) -> ndarray:
        """Apply to an array and a Python int or float, in this order."""
        kind = type(number)
        plan = self._memo.get((a._gp_known, kind)) or self._plan_scalar(a, kind, right=True)
        session = a._gp_session
        handle = next(session.handles)
        if kind is float:
            packed = _FLOAT_RIGHT(handle, a._gp_handle, number)
        else:
            low, high = plan.limits
            if not low <= number <= high:
                return self._general((a, number), {})
            packed = _INT_RIGHT(handle, a._gp_handle, number)
        device = session.emit(plan, packed, _frame(2))
        if type(a) is make.classes.ndarray:
            return make.plain(session, handle, plan.metas[0], device)
        return make.result(session, handle, plan.metas[0], device, type(a), source=a)

    def left(self, number: Any, a: Any) -> ndarray:
        """Apply to a Python int or float and an array, in this order."""
        kind = type(number)
        plan = self._memo.get((kind, a._gp_known)) or self._plan_scalar(a, kind, right=False)
        session = a._gp_session
        handle = next(session.handles)
        if kind is float:
            packed = _FLOAT_LEFT(handle, number, a._gp_handle)
        else:
            low, high = plan.limits
            if not low <= number <= high:
                return self._general((number, a), {})
            packed = _INT_LEFT(handle, number, a._gp_handle)
        device = session.emit(plan, packed, _frame(2))
        if type(a) is make.classes.ndarray:
            return make.plain(session, handle, plan.metas[0], device)
        return make.result(session, handle, plan.metas[0], device, type(a), source=a)

    def one(self, a: Any) -> ndarray:
        """Apply to one array."""
        plan = self._memo.get(a._gp_known)
        if plan is None:
            meta = a._gp_meta
            loop = self.resolve((meta.dtype,))
            outputs = tuple(fresh(output, meta.shape) for output in loop.outputs)
            plan = make.remember(self._memo, meta, Plan(self.operation, ("h",), (), "Q", outputs))
        session = a._gp_session
        handle = next(session.handles)
        device = session.emit(plan, _ONE(handle, a._gp_handle), _frame(2))
        if type(a) is make.classes.ndarray:
            return make.plain(session, handle, plan.metas[0], device)
        return make.result(session, handle, plan.metas[0], device, type(a), source=a)

    def into(self, a: Any, b: Any) -> ndarray:
        """Apply to two arrays, or to an array and a float, and put the result into the first."""
        scalar: bool = type(b) is float
        plan = self._memo.get(("into", a._gp_known, float if scalar else b._gp_known))
        session = a._gp_session
        if plan is None or (not scalar and b._gp_session is not session):
            plan = self._plan_into(a, b, scalar)
            if plan is None:
                return self._general((a, b, a), {})
        if scalar:
            packed = _FLOAT_INTO(0, a._gp_handle, b, a._gp_handle)
        else:
            other: Any = b
            packed = _PAIR_INTO(0, a._gp_handle, other._gp_handle, a._gp_handle)
        session.emit(plan, packed, _frame(2))
        return a

    def _plan_into(self, a: ndarray, b: Any, scalar: bool) -> Plan | None:
        meta: Meta = a._gp_meta
        other = float if scalar else b._gp_meta
        if not scalar and b._gp_session is not a._gp_session:
            a._gp_session.refuse(b)
        loop = self.resolve((meta.dtype, float if scalar else b._gp_meta.dtype))
        if not scalar and broadcast(meta.shape, b._gp_meta.shape) != meta.shape:
            return None  # the general way has the error
        arguments.check_cast(loop.outputs[0], meta.dtype, "same_kind")
        nodes = ("h", "f" if scalar else "h")
        layout = "QdQ" if scalar else "QQQ"
        plan = Plan(self.operation, nodes, (("out", "h"),), layout, ())
        return make.remember(self._memo, ("into", meta, other), plan)

    def _plan_pair(self, a: ndarray, b: ndarray) -> Plan:
        if b._gp_session is not a._gp_session:
            a._gp_session.refuse(b)
        first: Meta = a._gp_meta
        second: Meta = b._gp_meta
        loop = self.resolve((first.dtype, second.dtype))
        shape = broadcast(first.shape, second.shape)
        plan = Plan(self.operation, ("h", "h"), (), "QQ", (fresh(loop.outputs[0], shape),))
        return make.remember(self._memo, (first, second), plan)

    def _plan_scalar(self, a: ndarray, kind: type, *, right: bool) -> Plan:
        meta: Meta = a._gp_meta
        loop = self.resolve((meta.dtype, kind) if right else (kind, meta.dtype))
        code = "f" if kind is float else "i"
        letter = "d" if kind is float else "q"
        nodes = ("h", code) if right else (code, "h")
        layout = "Q" + letter if right else letter + "Q"
        plan = Plan(self.operation, nodes, (), layout, (fresh(loop.outputs[0], meta.shape),))
        wanted = loop.inputs[1 if right else 0]
        if wanted.kind in "iu" and self.operation not in _COMPARE:
            limits = np.iinfo(wanted)
            plan.limits = (int(limits.min), min(int(limits.max), (1 << 63) - 1))
        return make.remember(self._memo, (meta, kind) if right else (kind, meta), plan)

    # --- the general call -----------------------------------------------------------------------

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Apply the function; ``out``, ``dtype`` and ``casting`` are as in CuPy."""
        if not kwargs and len(args) == self.nin and self.nout == 1:
            ndarray = make.classes.ndarray
            if self.nin == 1:
                if type(args[0]) is ndarray:
                    return self.one(args[0])
            elif self.nin == 2:
                a, b = args
                if type(a) is ndarray:
                    if type(b) is ndarray:
                        return self.pair(a, b)
                    if type(b) is float or type(b) is int:
                        return self.right(a, b)
                elif type(b) is ndarray and (type(a) is float or type(a) is int):
                    return self.left(a, b)
        return self._general(args, kwargs)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop("out", None)
        where = kwargs.pop("_where", None)
        dtype = kwargs.pop("dtype", None)
        casting = kwargs.pop("casting", "same_kind")
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or "
                f"{self.nargs} (with outputs), but given {len(args)}."
            )
        inputs = tuple(arguments.operand(arg) for arg in args[: self.nin])
        outs = self._outs(args[self.nin :], out)
        if dtype is not None:
            dtype = np.dtype(dtype)
        loop = self.resolve(tuple(arguments.operand_type(item) for item in inputs), dtype)
        inputs = self._checked(inputs, loop)
        given = [item for item in outs if item is not None]
        shapes = [item._gp_meta.shape for item in (*inputs, *given) if arguments.is_array(item)]
        shape = broadcast(*shapes) if shapes else ()
        for item, result in zip_strict(outs, loop.outputs):
            if item is not None:
                if item._gp_meta.shape != shape:
                    raise ValueError("Out shape is mismatched")
                arguments.check_cast(result, item.dtype, casting)
                if result.kind == "c" and item.dtype.kind not in "bc":
                    arguments.warn_of_complex()
        keywords: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        if casting != "same_kind":
            keywords["casting"] = casting
        if where is not None:
            keywords["_where"] = arguments.operand(where)
        session = make.session_of(*inputs, *given)
        if given:
            # The worker has one form to handle: outputs that are not given are made here.
            made = [
                make.empty(shape, result, session) if item is None else item
                for item, result in zip_strict(outs, loop.outputs)
            ]
            keywords["out"] = made[0] if self.nout == 1 else tuple(made)
            session.call(self.operation, inputs, keywords)
            return keywords["out"]
        metas = [fresh(result, shape) for result in loop.outputs]
        handle, device = session.call(self.operation, inputs, keywords, *metas)
        source = next((item for item in inputs if make.is_subclassed(item)), None)
        kind = None if source is None else type(source)
        results = [
            make.result(session, handle + index, meta, device, kind, source=source)
            for index, meta in enumerate(metas)
        ]
        return results[0] if self.nout == 1 else tuple(results)

    def _outs(self, positional: tuple[object, ...], out: object) -> list[object]:
        outs: tuple[object, ...] = positional
        if out is not None:
            if positional:
                raise ValueError("Cannot specify 'out' as both a positional and keyword argument")
            outs = out if isinstance(out, tuple) else (out,)
            if isinstance(out, tuple) and len(outs) != self.nout:
                raise ValueError("The 'out' tuple must have exactly one entry per ufunc output")
            if not isinstance(out, tuple) and self.nout != 1:
                raise ValueError("'out' must be a tuple of arrays")
        for item in outs:
            if item is not None and not arguments.is_array(item):
                raise TypeError("Output arguments type must be cupy.ndarray")
        return [*outs, *[None] * (self.nout - len(outs))]

    def _checked(self, inputs: Any, loop: Loop) -> tuple[object, ...]:
        """Refuse Python integers that the loop's type cannot hold, as NEP 50 has it."""
        made: list[object] = []
        for item, wanted in zip_strict(inputs, loop.inputs):
            if type(item) is int:
                if wanted.kind in "iu" and self.operation not in _COMPARE:
                    limits = np.iinfo(wanted)
                    if not limits.min <= item <= limits.max:
                        raise OverflowError(f"Python integer {item} out of bounds for {wanted}")
                elif not -(1 << 63) <= item < 1 << 64:
                    # No integer of an array is as large, so infinity compares as this does.
                    beyond = math.inf if item > 0 else -math.inf
                    made.append(float(item) if wanted.kind in "fc" else beyond)
                    continue
            made.append(item)
        return tuple(made)

    # --- methods --------------------------------------------------------------------------------

    def outer(self, a: object, b: object, **kwargs: object) -> ndarray:
        """Apply to all pairs of elements of two arrays."""
        left, right = convert.asarray(a), convert.asarray(b)
        return self(
            left.reshape(left.shape + (1,) * right.ndim),
            right.reshape((1,) * left.ndim + right.shape),
            **kwargs,
        )

    def at(self, a: Any, indices: object, b: Any = None) -> None:
        """Apply in place at ``indices``, repeated ones as often as they occur."""
        if self.operation not in _AT:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        arguments.check_added(self.operation, a.dtype)
        index = indexing.prepare(indices)
        a._gp_session.call("ufunc.at", (self.operation, a, index, convert.operand(b)), {})

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        """Reduce along ``axis``; CuPy has this for ``add`` and ``multiply`` only."""
        return self._along(array, "reduce", axis, dtype, out, keepdims)

    def accumulate(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> ndarray:
        """Accumulate along ``axis``; CuPy has this for ``add`` and ``multiply`` only."""
        return self._along(array, "accumulate", axis, dtype, out)

    def _along(self, array: Any, kind: str, *args: object) -> ndarray:
        method = _METHODS.get((self.operation, kind))
        if method is None:
            raise NotImplementedError(f"`{self.name}.{kind}` is not supported yet")
        return getattr(array, method)(*args)

    def reduceat(
        self, array: object, indices: object, axis: int = 0, dtype: object = None, out: Any = None
    ) -> ndarray:
        """Reduce between ``indices``; CuPy has this for ``add`` only."""
        if self.operation != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return make.lazy(
            "ufunc.reduceat",
            (array, convert.asarray(indices)),
            {"axis": axis, "dtype": dtype, "out": out},
        )


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape; ValueError in NumPy's words if there is none."""
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return first
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(str(shape).replace(" ", "") for shape in shapes)
        raise ValueError(f"operands could not be broadcast together with shapes {text}") from None


_ALIASES = """
    abs:absolute acos:arccos acosh:arccosh asin:arcsin asinh:arcsinh atan:arctan atan2:arctan2
    atanh:arctanh bitwise_invert:invert bitwise_left_shift:left_shift bitwise_not:invert
    bitwise_right_shift:right_shift conj:conjugate degrees:rad2deg divide:true_divide mod:remainder
    pow:power radians:deg2rad
"""
ALIASES = {alias: name for alias, _, name in (pair.partition(":") for pair in _ALIASES.split())}


def _load() -> dict[str, ufunc]:
    table: dict[str, ufunc] = {}
    for line in LOOPS.replace("\n ", " ").strip().splitlines():
        name, *loops = line.split()
        table[name] = ufunc(name, [*loops])
    return table | {alias: table[name] for alias, name in ALIASES.items()}


UFUNCS = _load()
