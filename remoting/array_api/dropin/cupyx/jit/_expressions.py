"""Expressions of a kernel's text: what is a constant is computed here, the rest becomes C++."""

from __future__ import annotations

import ast
import builtins
import inspect
import numbers
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from cupyx.jit import _ufuncs
from cupyx.jit._functions import OF_PYTHON, Builtin, Edge, Steps, indexed, not_negative
from cupyx.jit._kinds import (
    BOOL,
    DIM3,
    SIZE,
    UINT32,
    VOID,
    Array,
    Const,
    Item,
    Iterator,
    Kind,
    Pack,
    Pointer,
    Scalar,
    Translated,
    Value,
    cast,
    packed,
    scalar_of,
    truth,
    value_of,
)

TYPES = (bool, np.bool_, numbers.Number)
"""Classes that are called to change the type of a number."""


class Names:
    """What the names in a Python function mean: its variables, its closure's, its module's."""

    def __init__(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.own = {*code.co_varnames, *code.co_cellvars}
        cells = zip(code.co_freevars, function.__closure__ or ())
        self._closure = dict(cells)
        self._module = function.__globals__

    def find(self, name: str) -> Const:
        """Return what a name from outside of the function means.

        Raises:
            NameError: nothing has this name, or not yet.
        """
        if name in self._closure:
            try:
                return Const(self._closure[name].cell_contents)
            except ValueError:  # an empty cell
                pass
        elif name not in self.own:
            if name in self._module:
                return Const(self._module[name])
            if hasattr(builtins, name):
                return Const(getattr(builtins, name))
        raise NameError(f"Unbound name: {name}")


class Expressions:
    """The translation of one function's expressions."""

    def __init__(self, unit: Any, names: Names) -> None:
        self.unit = unit
        self.mode: str = unit.mode
        self.names = names
        self.variables: dict[str, Any] = {}
        self.declarations: list[str] = []
        self.at: Any = None

    def fresh(self, prefix: str) -> str:
        """Return a name that the kernel does not have yet."""
        return self.unit.fresh(prefix)

    def declare(self, text: str) -> None:
        """Put a declaration at the head of the function."""
        if text not in self.declarations:
            self.declarations.append(text)

    def expression(self, node: ast.expr | None) -> Any:
        """Return the value of an expression."""
        if node is None:
            return Const(None)
        before, self.at = self.at, node
        translate: Callable[[Any], Any] | None = getattr(self, f"_{type(node).__name__}", None)
        if translate is None:
            raise ValueError(f"Not supported: {ast.unparse(node)} ({type(node).__name__})")
        made = translate(node)
        self.at = before
        # Names of `cupyx.jit` are objects of Python, and stand for values of the device.
        if isinstance(made, Const) and isinstance(made.obj, (Value, Builtin)):
            return made.obj
        return made

    def value(self, node: ast.expr | None) -> Value:
        """Return the value of an expression for the device."""
        return value_of(self.expression(node), self.mode)

    def _Constant(self, node: ast.Constant) -> Const:
        return Const(node.value)

    def _Name(self, node: ast.Name) -> Any:
        found = self.variables.get(node.id)
        return self.names.find(node.id) if found is None else found

    def _Tuple(self, node: ast.Tuple) -> Item:
        return self._items([self.expression(each) for each in node.elts])

    def _items(self, items: list[Any]) -> Item:
        if all(isinstance(each, Const) for each in items):
            return Const(tuple([each.obj for each in items]))
        return packed([value_of(each, self.mode) for each in items])

    def _BoolOp(self, node: ast.BoolOp) -> Item:
        made = self.expression(node.values[0])
        ends = isinstance(node.op, ast.Or)
        for each in node.values[1:]:
            if isinstance(made, Const) and bool(made.obj) is ends:
                return made
            made = _ufuncs.operate(type(node.op), [made, self.expression(each)], self.mode)
        return made

    def _BinOp(self, node: ast.BinOp) -> Item:
        left, right = self.expression(node.left), self.expression(node.right)
        return self.operate(type(node.op), left, right)

    def operate(self, kind: type, left: Item, right: Item) -> Item:
        """Return the result of an operator; addresses and iterators have two."""
        pair = [item.kind for item in (left, right) if isinstance(item, Value)]
        if any(isinstance(each, (Pointer, Iterator)) for each in pair):
            return self._moved(kind, value_of(left, self.mode), value_of(right, self.mode))
        return _ufuncs.operate(kind, [left, right], self.mode)

    @staticmethod
    def _moved(kind: type, left: Value, right: Value) -> Value:
        integers = [isinstance(each.kind, Scalar) and each.kind.letter in "iu"
                    for each in (left, right)]  # fmt: skip
        if kind is ast.Add and any(integers):
            return Value(f"({left.code} + {right.code})", right.kind if integers[0] else left.kind)
        if kind is ast.Sub and integers[1]:
            return Value(f"({left.code} - {right.code})", left.kind)
        if kind is ast.Sub and left.kind == right.kind:
            return Value(f"static_cast<long long>({left.code} - {right.code})", SIZE)
        raise TypeError(f"{kind.__name__} has no meaning for {left.kind} and {right.kind}")

    def _UnaryOp(self, node: ast.UnaryOp) -> Item:
        return _ufuncs.operate(type(node.op), [self.expression(node.operand)], self.mode)

    def _Compare(self, node: ast.Compare) -> Item:
        if len(node.ops) != 1:
            raise NotImplementedError(
                "a kernel compares two values at a time: join comparisons by `and`"
            )
        pair = [self.expression(node.left), self.expression(node.comparators[0])]
        return _ufuncs.operate(type(node.ops[0]), pair, self.mode)

    def _IfExp(self, node: ast.IfExp) -> Item:
        condition = self.expression(node.test)
        if isinstance(condition, Const):
            return self.expression(node.body if condition.obj else node.orelse)
        code = truth(condition, self.mode)
        body, other = self.expression(node.body), self.expression(node.orelse)
        values = [self._like(body, other), self._like(other, body)]
        kind, second = [each.kind for each in values]
        if kind != second:
            raise TypeError(f"one branch gives {kind}, and the other {second}")
        return Value(f"({code} ? {values[0].code} : {values[1].code})", kind)

    def _like(self, item: Item, other: Item) -> Value:
        """Return a number; that of Python has the type of the other one, where it may."""
        if isinstance(item, Const) and not isinstance(item.obj, np.generic):
            return cast(item, scalar_of(other, self.mode), "same_kind", self.mode)
        return value_of(item, self.mode)

    def _Subscript(self, node: ast.Subscript) -> Item:
        array = self.expression(node.value)
        several = isinstance(node.slice, ast.Tuple)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items = [self.expression(each) for each in parts]
        if isinstance(array, Value) and isinstance(array.kind, Array):
            not_negative(items)
        index = self._items(items) if several else items[0]
        if isinstance(array, Const):
            if isinstance(index, Const):
                return Const(array.obj[index.obj])
            if not isinstance(array.obj, tuple):
                kind = type(array.obj).__name__
                raise TypeError(f"{kind} is not subscriptable with what only the device knows")
        if isinstance(array, Value) and isinstance(array.kind, Pack):
            if not isinstance(index, Const):
                raise TypeError("the index of a tuple must be a constant")
            return self.part(array, index.obj)
        return indexed(array, index, self.mode)

    @staticmethod
    def part(pack: Value, index: Any) -> Value:
        """Return an item of a tuple."""
        kinds: tuple[Kind, ...] = getattr(pack.kind, "items", ())
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise TypeError("the index of a tuple must be an integer")
        if not -len(kinds) <= index < len(kinds):
            raise IndexError(f"the index {index} of a tuple of {len(kinds)}")
        at = int(index) % len(kinds)
        return Value(f"gpjit::get<{at}>({pack.code})", kinds[at])

    def _Attribute(self, node: ast.Attribute) -> Any:
        owner = self.expression(node.value)
        name = node.attr
        if isinstance(owner, (Const, Builtin)):
            return Const(getattr(owner.obj if isinstance(owner, Const) else owner, name))
        kind = getattr(owner, "kind", None)
        if isinstance(kind, Array):
            if name == "size":
                return Value(f"{owner.code}.size()", SIZE)
            if name in ("begin", "end"):
                return Edge(name, owner)
            if name in ("shape", "strides"):
                code = "lengths" if name == "shape" else "steps"
                return Value(f"{owner.code}.{code}()", Pack((SIZE,) * kind.ndim))
        if name == "ndim" and isinstance(kind, (Array, Pointer, Iterator)):
            return Const(kind.ndim if isinstance(kind, Array) else 1)
        if kind == DIM3 and name in ("x", "y", "z"):
            return Value(f"{owner.place or owner.code}.{name}", UINT32)
        method = getattr(kind, "method", None)
        found = None if method is None else method(name)
        if found is None:
            raise AttributeError(f"Unknown attribute: {name}")
        return found

    def _Call(self, node: ast.Call) -> Any:
        function = self.expression(node.func)
        if any(isinstance(each, ast.Starred) for each in node.args):
            raise NotImplementedError("a call with *args is not supported")
        args = [self.expression(each) for each in node.args]
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise NotImplementedError("a call with **kwargs is not supported")
            kwargs[keyword.arg] = self.expression(keyword.value)
        if isinstance(function, Const) and isinstance(
            function.obj, (type, types.BuiltinFunctionType)
        ):
            function = OF_PYTHON.get(function.obj, function)
        if isinstance(function, Builtin):
            return function.call(self, args, kwargs)
        if not isinstance(function, Const):
            raise TypeError("a kernel cannot call a value")
        return self._called(function.obj, args, kwargs)

    def _called(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Item:
        if isinstance(function, Translated):
            if kwargs:
                raise TypeError("a device function takes no keyword arguments")
            return self._device(function, args)
        ufunc = _ufuncs.find(function)
        everything = [*args, *kwargs.values()]
        constant = all(isinstance(each, Const) for each in everything)
        if ufunc is not None and not (constant and isinstance(function, np.ufunc)):
            dtype = kwargs.pop("dtype", Const(None))
            for key in kwargs:
                raise TypeError(f"{key!r} is no keyword of {ufunc.operation} in a kernel")
            if not isinstance(dtype, Const):
                raise TypeError("dtype must be a constant")
            return _ufuncs.call(ufunc, args, dtype.obj, self.mode)
        if constant:
            plain = {key: each.obj for key, each in kwargs.items()}
            return Const(function(*[each.obj for each in args], **plain))
        if inspect.isclass(function) and issubclass(function, TYPES):
            if len(args) != 1 or kwargs:
                raise TypeError(f"{function.__name__} takes one argument")
            return cast(args[0], Scalar(np.dtype(function)), "unsafe", self.mode)
        name = getattr(function, "__name__", function)
        raise TypeError(
            f"a kernel cannot call {name!r}; it can call device functions "
            "(rawkernel(device=True)), universal functions and what is in cupyx.jit"
        )

    def _device(self, function: Translated, args: list[Any]) -> Value:
        if not function.is_device:
            name = function.function.__name__
            raise TypeError(
                f"a kernel cannot call the kernel {name!r}: make it a device function, by "
                "rawkernel(device=True)"
            )
        values = [value_of(each, self.mode) for each in args]
        kinds = tuple([each.kind for each in values])
        name, result = self.unit.function(function.function, kinds)
        return Value(f"{name}({', '.join([each.code for each in values])})", result)

    def condition(self, node: ast.expr) -> Item:
        """Return a condition: a constant, or the code of a truth value."""
        made = self.expression(node)
        if isinstance(made, Const):
            return made
        if isinstance(made, Steps) or made.kind == VOID:
            raise TypeError("this is no condition")
        return Value(truth(made, self.mode), BOOL)
